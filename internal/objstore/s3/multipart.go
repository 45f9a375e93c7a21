package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// abortTimeout bounds the clean-up after a failure, which goes on when the caller
// has given up.
const abortTimeout = 30 * time.Second

// multipart uploads content whose first part is full.
func (p *put) multipart(ctx context.Context, first []byte, size int64) (objstore.Info, error) {
	if err := p.checkPlace(ctx); err != nil {
		return objstore.Info{}, err
	}
	id, err := p.create(ctx)
	if err != nil {
		return objstore.Info{}, err
	}
	parts, err := p.uploadParts(ctx, id, first, size)
	if err != nil {
		return objstore.Info{}, p.s.abort(ctx, p.key, &id, err)
	}
	info, err := p.complete(ctx, id, parts)
	if err != nil {
		err = p.s.abort(ctx, p.key, &id, err)
	}
	return info, err
}

// create begins an upload and returns its id.
func (p *put) create(ctx context.Context) (string, error) {
	in := &awss3.CreateMultipartUploadInput{
		Bucket: &p.s.bucket, Key: p.s.full(p.key), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
		Metadata: map[string]string{PutMetadata: p.mark},
	}
	in.ServerSideEncryption, in.SSEKMSKeyId = p.s.encryption()
	out, err := p.s.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return "", p.s.fail(ctx, "put", p.key, err)
	}
	return aws.ToString(out.UploadId), nil
}

// complete makes the object visible, unless its condition does not hold.
func (p *put) complete(ctx context.Context, id string, parts []types.CompletedPart) (objstore.Info, error) {
	in := &awss3.CompleteMultipartUploadInput{
		Bucket: &p.s.bucket, Key: p.s.full(p.key), UploadId: &id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}, MpuObjectSize: &p.src.size,
	}
	in.IfMatch, in.IfNoneMatch = p.conditions()
	out, err := p.s.client.CompleteMultipartUpload(ctx, in)
	if err == nil {
		return p.answered(ctx, out.ETag)
	}
	return p.resolve(ctx, err)
}

// uploadParts reads and uploads at once. The content has been checked when it
// returns nil.
func (p *put) uploadParts(ctx context.Context, id string, buf []byte, size int64) ([]types.CompletedPart, error) {
	sum := p.src.sum() // of the first part, which is all that has been read; of others unknown
	group, gctx := errgroup.WithContext(ctx)
	var parts []*types.CompletedPart
	var err error
	for last := false; ; {
		if len(parts) == MaxParts {
			err = fmt.Errorf("%w: over %d parts of %d bytes; say its size beforehand or raise the part size", objstore.ErrTooLarge, MaxParts, size)
			break
		}
		select {
		case p.s.slots <- struct{}{}:
		case <-gctx.Done():
			err = gctx.Err()
		}
		if err != nil {
			break
		}
		part := &types.CompletedPart{PartNumber: aws.Int32(int32(len(parts) + 1))}
		parts = append(parts, part)
		content, known := buf, sum
		sum = nil
		group.Go(func() error {
			defer func() { <-p.s.slots }()
			return p.uploadPart(gctx, id, part, content, known)
		})
		if last {
			break
		}
		if buf, last, err = p.src.next(gctx, pooled(&p.s.parts, size), size); err != nil {
			break
		}
	}
	if err != nil {
		group.Go(func() error { return err }) // cancels the others; an earlier error stays the first
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	completed := make([]types.CompletedPart, len(parts))
	for i, part := range parts {
		completed[i] = *part
	}
	return completed, nil
}

// uploadPart uploads one part, whose buffer it owns. Its digest may be known.
func (p *put) uploadPart(ctx context.Context, id string, part *types.CompletedPart, content, sum []byte) error {
	if sum == nil {
		digest := sha256.Sum256(content)
		sum = digest[:]
	}
	part.ChecksumSHA256 = aws.String(base64.StdEncoding.EncodeToString(sum))
	out, err := p.s.client.UploadPart(ctx, &awss3.UploadPartInput{
		Bucket: &p.s.bucket, Key: p.s.full(p.key), UploadId: &id, PartNumber: part.PartNumber,
		Body: bytes.NewReader(content), ContentLength: aws.Int64(int64(len(content))), ChecksumSHA256: part.ChecksumSHA256,
	}, payloadHash(sum))
	if err != nil {
		return p.s.fail(ctx, "put", p.key, err)
	}
	if part.ETag = out.ETag; aws.ToString(out.ETag) == "" {
		return p.s.fail(ctx, "put", p.key, errors.New("an answer without an ETag"))
	}
	// A failed attempt may still be reading its body: then the buffer is left to the
	// garbage collector.
	if tries, ok := retry.GetAttemptResults(out.ResultMetadata); ok && len(tries.Results) == 1 {
		giveBack(&p.s.parts, content, p.s.partSize)
	}
	return nil
}

// abort removes the parts after a failure, if it is one, and returns it. Completion may have
// won without our knowing: then there is nothing to abort.
func (s *Store) abort(ctx context.Context, key string, id *string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	_, err := s.client.AbortMultipartUpload(ctx, &awss3.AbortMultipartUploadInput{Bucket: &s.bucket, Key: s.full(key), UploadId: id})
	if err == nil {
		return cause
	}
	e := s.fail(ctx, "abort upload of", key, err)
	switch {
	case e.Code == "NoSuchUpload":
		return cause
	case cause == nil:
		return fmt.Errorf("its parts are left to the bucket's lifecycle rule: %w", e)
	}
	return fmt.Errorf("%w (its parts are left to the bucket's lifecycle rule: %w)", cause, e)
}
