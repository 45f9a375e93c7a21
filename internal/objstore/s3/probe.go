package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

var _ objstore.MultipartProber = (*Store)(nil)

// ProbeMultipart implements objstore.MultipartProber. Its uploads have one part each,
// which may be small.
func (s *Store) ProbeMultipart(ctx context.Context, key string) error {
	first, err := s.prepare(ctx, key, "first", "")
	if err != nil {
		return err
	}
	second, err := s.prepare(ctx, key, "second", "") // begun while the name is free
	if err != nil {
		return s.abort(ctx, key, &first.id, err)
	}
	made, err := first.complete(ctx)
	if err != nil {
		return s.abort(ctx, key, &second.id, s.abort(ctx, key, &first.id, err))
	}
	if err := second.refused(ctx, "an upload in parts was completed over an object: it ignores If-None-Match on CompleteMultipartUpload", objstore.ErrExists); err != nil {
		return err
	}
	replacement, err := s.prepare(ctx, key, "replacement", made.ETag)
	if err != nil {
		return err
	}
	if _, err := replacement.complete(ctx); err != nil {
		return s.abort(ctx, key, &replacement.id, err)
	}
	stale, err := s.prepare(ctx, key, "stale", made.ETag)
	if err != nil {
		return err
	}
	return stale.refused(ctx, "an upload in parts replaced an object by its old ETag: it ignores If-Match on CompleteMultipartUpload", objstore.ErrPrecondition)
}

// prepared is an upload of one part that only lacks its completion.
type prepared struct {
	put
	id    string
	parts []types.CompletedPart
}

func (s *Store) prepare(ctx context.Context, key, content, ifMatch string) (*prepared, error) {
	o := objstore.PutOptions{IfMatch: ifMatch, Size: int64(len(content)), HasSize: true}
	p := &prepared{put: put{s: s, key: key, o: o, mark: rand.Text(), src: newSource(strings.NewReader(content), o)}, parts: make([]types.CompletedPart, 1)}
	buf, _, err := p.src.next(ctx, nil, o.Size)
	if err == nil {
		p.id, err = p.create(ctx)
	}
	if err != nil {
		return nil, err
	}
	number := int32(1)
	p.parts[0].PartNumber = &number
	if err := p.uploadPart(ctx, p.id, &p.parts[0], buf, nil); err != nil {
		return nil, s.abort(ctx, key, &p.id, err)
	}
	return p, nil
}

func (p *prepared) complete(ctx context.Context) (objstore.Info, error) {
	return p.put.complete(ctx, p.id, p.parts)
}

// refused wants the completion to fail with one kind of error.
func (p *prepared) refused(ctx context.Context, broken string, want error) error {
	switch _, err := p.complete(ctx); {
	case err == nil:
		return fmt.Errorf("s3://%s/%s%s: %w: %s", p.s.bucket, p.s.prefix, p.key, objstore.ErrConditions, broken)
	case !errors.Is(err, want):
		return p.s.abort(ctx, p.key, &p.id, err)
	default:
		return p.s.abort(ctx, p.key, &p.id, nil)
	}
}
