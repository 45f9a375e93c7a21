package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

var _ objstore.Copier = (*Store)(nil)

// Copy implements objstore.Copier, within the bucket. A source that is replaced
// meanwhile is ErrPrecondition, also when ifMatch is empty. Info.SHA256 is set when
// the source has one and is copied in one request; ModTime is left zero.
func (s *Store) Copy(ctx context.Context, src, dst, ifMatch string) (objstore.Info, error) {
	if err := errors.Join(ctx.Err(), s.checkKey(src), s.checkKey(dst)); err != nil {
		return objstore.Info{}, fmt.Errorf("copy %q to %q: %w", src, dst, err)
	}
	from, _, err := s.head(ctx, src)
	if err != nil {
		return objstore.Info{}, fmt.Errorf("copy to %q: %w", dst, err)
	}
	if ifMatch != "" && from.ETag != ifMatch {
		return objstore.Info{}, fmt.Errorf("copy s3://%s/%s%s to %q: %w: it has ETag %s, not %.100s", s.bucket, s.prefix, src, dst, objstore.ErrPrecondition, from.ETag, ifMatch)
	}
	c := &copying{s: s, from: from, key: dst, mark: rand.Text()}
	if from.Size <= s.copySize {
		return c.single(ctx)
	}
	return c.multipart(ctx)
}

// copying is one Copy.
type copying struct {
	s    *Store
	from objstore.Info // the version that is copied
	key  string        // of the copy
	mark string        // in the copy's metadata
}

// source is the value of X-Amz-Copy-Source, a path with the escapes of one.
func (c *copying) source() *string {
	segments := strings.Split(c.s.prefix+c.from.Key, "/")
	for i, seg := range segments {
		segments[i] = strings.ReplaceAll(url.QueryEscape(seg), "+", "%20")
	}
	return aws.String(c.s.bucket + "/" + strings.Join(segments, "/"))
}

func (c *copying) fail(ctx context.Context, err error) *Error {
	return c.s.fail(ctx, fmt.Sprintf("copy %q to", c.s.prefix+c.from.Key), c.key, err)
}

func (c *copying) single(ctx context.Context) (objstore.Info, error) {
	in := &awss3.CopyObjectInput{
		Bucket: &c.s.bucket, Key: c.s.full(c.key), CopySource: c.source(), CopySourceIfMatch: quotedETag(c.from.ETag),
		ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
		MetadataDirective: types.MetadataDirectiveReplace, Metadata: map[string]string{PutMetadata: c.mark},
	}
	in.ServerSideEncryption, in.SSEKMSKeyId = c.s.encryption()
	out, err := c.s.client.CopyObject(ctx, in)
	if err != nil {
		return c.resolve(ctx, err)
	}
	if out.CopyObjectResult == nil {
		out.CopyObjectResult = &types.CopyObjectResult{}
	}
	return c.answered(ctx, out.CopyObjectResult.ETag, c.from.SHA256)
}

// answered takes the store's yes, unless it lacks what every store's yes has.
func (c *copying) answered(ctx context.Context, etag *string, sha256 string) (objstore.Info, error) {
	if tag := bareETag(etag); tag != "" {
		return objstore.Info{Key: c.key, Size: c.from.Size, ETag: tag, SHA256: sha256}, nil
	}
	return c.resolve(ctx, errors.New("an answer without an ETag"))
}

// resolve finds out what a failed request has done.
func (c *copying) resolve(ctx context.Context, err error) (objstore.Info, error) {
	e := c.fail(ctx, err)
	if e.ctx != nil || !errors.Is(e, ErrUnavailable) {
		return objstore.Info{}, e
	}
	there, mark, herr := c.s.head(ctx, c.key)
	if herr != nil || mark != c.mark || there.Size != c.from.Size {
		return objstore.Info{}, e
	}
	return objstore.Info{Key: c.key, Size: there.Size, ETag: there.ETag, SHA256: there.SHA256}, nil
}

// multipart copies what is too large for one request.
func (c *copying) multipart(ctx context.Context) (objstore.Info, error) {
	in := &awss3.CreateMultipartUploadInput{
		Bucket: &c.s.bucket, Key: c.s.full(c.key), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
		Metadata: map[string]string{PutMetadata: c.mark},
	}
	in.ServerSideEncryption, in.SSEKMSKeyId = c.s.encryption()
	out, err := c.s.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return objstore.Info{}, c.fail(ctx, err)
	}
	info, err := c.fill(ctx, out.UploadId)
	if err != nil {
		err = c.s.abort(ctx, c.key, out.UploadId, err)
	}
	return info, err
}

// fill copies the parts and completes the upload.
func (c *copying) fill(ctx context.Context, id *string) (objstore.Info, error) {
	parts, err := c.copyParts(ctx, id)
	if err != nil {
		return objstore.Info{}, err
	}
	out, err := c.s.client.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: &c.s.bucket, Key: c.s.full(c.key), UploadId: id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}, MpuObjectSize: &c.from.Size,
	})
	if err != nil {
		return c.resolve(ctx, err)
	}
	return c.answered(ctx, out.ETag, "")
}

// copyParts copies as many parts at once as the store uploads.
func (c *copying) copyParts(ctx context.Context, id *string) ([]types.CompletedPart, error) {
	size := max(c.s.copySize, (c.from.Size+MaxParts-1)/MaxParts)
	parts := make([]types.CompletedPart, (c.from.Size+size-1)/size)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(cap(c.s.slots))
	for i := range parts {
		group.Go(func() error {
			select {
			case c.s.slots <- struct{}{}:
				defer func() { <-c.s.slots }()
			case <-gctx.Done():
				return gctx.Err()
			}
			off := int64(i) * size
			parts[i].PartNumber = aws.Int32(int32(i + 1))
			return c.copyPart(gctx, id, &parts[i], off, min(off+size, c.from.Size)-1)
		})
	}
	return parts, group.Wait()
}

// copyPart copies the bytes from first to last, both included.
func (c *copying) copyPart(ctx context.Context, id *string, part *types.CompletedPart, first, last int64) error {
	out, err := c.s.client.UploadPartCopy(ctx, &awss3.UploadPartCopyInput{
		Bucket: &c.s.bucket, Key: c.s.full(c.key), UploadId: id, PartNumber: part.PartNumber, CopySource: c.source(),
		CopySourceIfMatch: quotedETag(c.from.ETag), CopySourceRange: aws.String(fmt.Sprintf("bytes=%d-%d", first, last)),
	})
	if err != nil {
		return c.fail(ctx, err)
	}
	if out.CopyPartResult == nil || aws.ToString(out.CopyPartResult.ETag) == "" {
		return c.fail(ctx, errors.New("an answer without an ETag"))
	}
	part.ETag, part.ChecksumSHA256 = out.CopyPartResult.ETag, out.CopyPartResult.ChecksumSHA256
	return nil
}
