package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Put implements objstore.Writer. Info.SHA256 is always set, ModTime never.
func (s *Store) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	if err := errors.Join(ctx.Err(), s.checkKey(key), checkOptions(o)); err != nil {
		return objstore.Info{}, fmt.Errorf("put %q: %w", key, err)
	}
	p := &put{s: s, key: key, o: o, mark: rand.Text(), src: newSource(body, o)}
	info, err := p.run(ctx)
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			err = fmt.Errorf("put s3://%s/%s%s: %w", s.bucket, s.prefix, key, err)
		}
		return objstore.Info{}, err
	}
	return info, nil
}

func checkOptions(o objstore.PutOptions) error {
	switch {
	case o.HasSize && o.Size < 0:
		return fmt.Errorf("%w: size %d", objstore.ErrSize, o.Size)
	case o.HasSize && o.MaxSize > 0 && o.Size > o.MaxSize:
		return fmt.Errorf("%w: %d bytes, at most %d", objstore.ErrTooLarge, o.Size, o.MaxSize)
	case o.SHA256 != "" && (len(o.SHA256) != 64 || strings.Trim(o.SHA256, "0123456789abcdef") != ""):
		return fmt.Errorf("%w: %.80q is not 64 lower-case hex digits", objstore.ErrDigest, o.SHA256)
	}
	return nil
}

// put is one Put.
type put struct {
	s    *Store
	key  string
	o    objstore.PutOptions
	mark string // in the object's metadata
	src  *source
}

// run sends content that fits into one part as one request: whether it fits is known
// when a part is full and the content goes on.
func (p *put) run(ctx context.Context) (objstore.Info, error) {
	size, err := p.partSize()
	if err != nil {
		return objstore.Info{}, err
	}
	var buf []byte // unknown content grows it; what is small stays small
	switch {
	case p.o.HasSize && p.o.Size > size:
		buf = pooled(&p.s.parts, size)
	case p.o.HasSize:
		buf = make([]byte, 0, p.o.Size)
	}
	buf, last, err := p.src.next(ctx, buf, size)
	switch {
	case err != nil:
		return objstore.Info{}, err
	case last:
		return p.single(ctx, buf)
	}
	return p.multipart(ctx, buf, size)
}

// partSize is the configured one unless the object would have too many parts.
func (p *put) partSize() (int64, error) {
	size := p.s.partSize
	if p.o.HasSize {
		size = max(size, (p.o.Size+MaxParts-1)/MaxParts)
	}
	if size > MaxPartSize {
		return 0, fmt.Errorf("%w: %d bytes", objstore.ErrTooLarge, p.o.Size)
	}
	return size, nil
}

// info describes the object that this Put has made.
func (p *put) info(etag string) objstore.Info {
	return objstore.Info{Key: p.key, Size: p.src.size, ETag: etag, SHA256: p.src.digest()}
}

// conditions returns the headers that make the write conditional.
func (p *put) conditions() (ifMatch, ifNoneMatch *string) {
	if p.o.IfMatch != "" {
		return quotedETag(p.o.IfMatch), nil
	}
	return nil, aws.String("*")
}

func (s *Store) encryption() (types.ServerSideEncryption, *string) {
	if s.kmsKey == "" {
		return "", nil
	}
	return types.ServerSideEncryptionAwsKms, &s.kmsKey
}

func (p *put) single(ctx context.Context, content []byte) (objstore.Info, error) {
	sum := p.src.sum()
	in := &awss3.PutObjectInput{
		Bucket: &p.s.bucket, Key: p.s.full(p.key), Body: bytes.NewReader(content), ContentLength: aws.Int64(int64(len(content))),
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum)), Metadata: map[string]string{PutMetadata: p.mark},
	}
	in.IfMatch, in.IfNoneMatch = p.conditions()
	in.ServerSideEncryption, in.SSEKMSKeyId = p.s.encryption()
	out, err := p.s.client.PutObject(ctx, in, payloadHash(sum))
	if err == nil {
		return p.answered(ctx, out.ETag)
	}
	return p.resolve(ctx, err)
}

// answered takes the store's yes, unless it lacks what every store's yes has.
func (p *put) answered(ctx context.Context, etag *string) (objstore.Info, error) {
	if tag := bareETag(etag); tag != "" {
		return p.info(tag), nil
	}
	return p.resolve(ctx, errors.New("an answer without an ETag"))
}

// resolve finds out what a failed write has done. Requests are repeated, and so a
// "taken" may be the answer to the second copy of a request that won.
func (p *put) resolve(ctx context.Context, err error) (objstore.Info, error) {
	e := p.s.fail(ctx, "put", p.key, err)
	lost := errors.Is(e, objstore.ErrPrecondition) || errors.Is(e, objstore.ErrNotFound) && p.o.IfMatch != ""
	if e.ctx != nil || !lost && !errors.Is(e, ErrUnavailable) {
		return objstore.Info{}, e
	}
	there, mark, herr := p.s.head(ctx, p.key)
	switch {
	case herr == nil && mark == p.mark:
		return p.info(there.ETag), nil
	case lost:
		e.kind, e.Hint = p.taken(), ""
	case herr == nil && p.o.IfMatch == "", herr == nil && there.ETag != p.o.IfMatch:
		// Whatever became of the request: it cannot win any more.
		e.kind, e.Hint = p.taken(), ""
	}
	return objstore.Info{}, e
}

// taken is the kind of a write whose condition does not hold.
func (p *put) taken() error {
	if p.o.IfMatch != "" {
		return objstore.ErrPrecondition
	}
	return objstore.ErrExists
}

// checkPlace spares the transfer of what cannot be placed. It says nothing when it
// cannot tell.
func (p *put) checkPlace(ctx context.Context) error {
	info, _, err := p.s.head(ctx, p.key)
	switch {
	case err != nil && p.o.IfMatch != "" && errors.Is(err, objstore.ErrNotFound):
		return fmt.Errorf("%w: it is gone", objstore.ErrPrecondition)
	case err == nil && p.o.IfMatch == "":
		return objstore.ErrExists
	case err == nil && info.ETag != p.o.IfMatch:
		return fmt.Errorf("%w: it has ETag %s, not %.100s", objstore.ErrPrecondition, info.ETag, p.o.IfMatch)
	}
	return nil
}

// payloadHash gives a known digest of the body to the signature, so that the store
// checks it, over TLS too, and the SDK does not compute it again.
func payloadHash(sum []byte) func(*awss3.Options) {
	set := middleware.FinalizeMiddlewareFunc("SluicePayloadHash", func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
		return next.HandleFinalize(v4.SetPayloadHash(ctx, hex.EncodeToString(sum)), in)
	})
	return awss3.WithAPIOptions(func(stack *middleware.Stack) error { return stack.Finalize.Add(set, middleware.Before) })
}

// source reads content part by part, counts and hashes it, and checks it at its end.
type source struct {
	body    io.Reader
	o       objstore.PutOptions
	limit   int64
	tooLong error
	hash    hash.Hash // of what next has returned
	size    int64
	ahead   [1]byte // read to see whether content goes on
	isAhead bool
}

func newSource(body io.Reader, o objstore.PutOptions) *source {
	src := &source{body: body, o: o, limit: math.MaxInt64, tooLong: objstore.ErrTooLarge, hash: sha256.New()}
	switch {
	case o.HasSize:
		src.limit, src.tooLong = o.Size, objstore.ErrSize
	case o.MaxSize > 0:
		src.limit = o.MaxSize
	}
	return src
}

// sum is the digest of what next has returned so far.
func (r *source) sum() []byte    { return r.hash.Sum(nil) }
func (r *source) digest() string { return hex.EncodeToString(r.sum()) }

const firstRead = 64 << 10

// next fills buf, which grows to size, and reports whether that was the last of the
// content; the content has then been checked.
func (r *source) next(ctx context.Context, buf []byte, size int64) ([]byte, bool, error) {
	buf = buf[:0]
	if r.isAhead {
		buf, r.isAhead = append(buf, r.ahead[0]), false
		r.hash.Write(r.ahead[:])
	}
	if r.o.HasSize {
		size = min(size, r.o.Size-r.size+int64(len(buf)))
	}
	for int64(len(buf)) < size {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, int(min(size-int64(len(buf)), max(int64(len(buf)), firstRead))))
		}
		n, err := r.read(ctx, buf[len(buf):min(int64(cap(buf)), size)])
		r.hash.Write(buf[len(buf) : len(buf)+n])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, true, r.check()
		}
		if err != nil {
			return buf, false, err
		}
	}
	for {
		n, err := r.read(ctx, r.ahead[:])
		switch {
		case err != nil && err != io.EOF:
			return buf, false, err
		case n > 0:
			r.isAhead = true // an EOF that came with it comes again
			return buf, false, nil
		case err == io.EOF:
			return buf, true, r.check()
		}
	}
}

func (r *source) read(ctx context.Context, p []byte) (int, error) {
	n, err := r.body.Read(p)
	if r.size += int64(n); r.size > r.limit {
		return n, fmt.Errorf("%w: over %d bytes", r.tooLong, r.limit)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("read content: %w", err)
	}
	return n, err
}

// check compares the complete content with what the caller expects.
func (r *source) check() error {
	if r.o.HasSize && r.size != r.o.Size {
		return fmt.Errorf("%w: %d bytes, not %d", objstore.ErrSize, r.size, r.o.Size)
	}
	if r.o.SHA256 != "" && r.o.SHA256 != r.digest() {
		return fmt.Errorf("%w: content has sha256 %s, not %s", objstore.ErrDigest, r.digest(), r.o.SHA256)
	}
	return nil
}
