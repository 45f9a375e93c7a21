package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Get implements objstore.Reader. With ErrRange it returns the Info too.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	err := errors.Join(ctx.Err(), s.checkKey(key))
	if err == nil && off < 0 {
		err = fmt.Errorf("%w: offset %d", objstore.ErrRange, off)
	}
	if err != nil {
		return nil, objstore.Info{}, fmt.Errorf("get %q: %w", key, err)
	}
	if length == 0 {
		return s.getNothing(ctx, key, off)
	}
	n := s.chunkSize
	if length > 0 {
		n = min(n, length)
	}
	rctx, cancel := context.WithCancel(ctx)
	out, info, err := s.getRange(rctx, key, off, n, "")
	if errors.Is(err, objstore.ErrRange) { // at the end it is none
		cancel()
		return s.getNothing(ctx, key, off)
	}
	if err != nil {
		cancel()
		return nil, objstore.Info{}, err
	}
	r := &reader{s: s, ctx: rctx, cancel: cancel, key: key, etag: info.ETag, next: off, end: info.Size, window: 1}
	if length > 0 {
		r.end = off + min(length, info.Size-off)
	}
	r.fetch(out)
	return r, info, nil
}

// getNothing answers ranges without bytes, for which S3 has no answer.
func (s *Store) getNothing(ctx context.Context, key string, off int64) (io.ReadCloser, objstore.Info, error) {
	info, _, err := s.head(ctx, key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	if off > info.Size {
		return nil, info, fmt.Errorf("get s3://%s/%s%s: %w: offset %d of %d bytes", s.bucket, s.prefix, key, objstore.ErrRange, off, info.Size)
	}
	return http.NoBody, info, nil
}

// getRange opens n bytes (or fewer, at the end) of an object, which must have the
// ETag unless that is empty.
func (s *Store) getRange(ctx context.Context, key string, off, n int64, etag string) (*awss3.GetObjectOutput, objstore.Info, error) {
	in := &awss3.GetObjectInput{Bucket: &s.bucket, Key: s.full(key), Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1))}
	if etag != "" {
		in.IfMatch = quotedETag(etag)
	}
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		e := s.fail(ctx, "get", key, err)
		if etag != "" && (errors.Is(e, objstore.ErrNotFound) || errors.Is(e, objstore.ErrRange)) {
			e.kind = objstore.ErrPrecondition // it was there when it was opened
		}
		return nil, objstore.Info{}, e
	}
	info := objstore.Info{Key: key, ETag: bareETag(out.ETag), ModTime: aws.ToTime(out.LastModified)}
	got := aws.ToInt64(out.ContentLength)
	if info.Size, err = wholeSize(aws.ToString(out.ContentRange), off, got, n); err == nil && etag != "" && info.ETag != etag {
		err = objstore.ErrPrecondition
	}
	if err != nil {
		_ = out.Body.Close() // of no use
		return nil, objstore.Info{}, fmt.Errorf("get s3://%s/%s%s: %w", s.bucket, s.prefix, key, err)
	}
	return out, info, nil
}

// wholeSize is the size of the object according to the answer to a request for n
// bytes from off; got is the length of its body.
func wholeSize(contentRange string, off, got, n int64) (int64, error) {
	if contentRange == "" && off == 0 && got <= n {
		return got, nil // the whole object instead of a range, which is the same here
	}
	span, total, _ := strings.Cut(strings.TrimPrefix(contentRange, "bytes "), "/")
	first, last, _ := strings.Cut(span, "-")
	f, errF := strconv.ParseInt(first, 10, 64)
	l, errL := strconv.ParseInt(last, 10, 64)
	size, errS := strconv.ParseInt(total, 10, 64)
	switch {
	case errors.Join(errF, errL, errS) != nil:
		return 0, fmt.Errorf("%w: it answers a range request with Content-Range %q", ErrConfig, printable(contentRange, 60))
	case f != off || l-f+1 != got || got < 1 || l != min(off+n, size)-1:
		return 0, fmt.Errorf("%w: it answers a request for bytes %d-%d with %d of %q", ErrConfig, off, off+n-1, got, printable(contentRange, 60))
	}
	return size, nil
}

// reader reads an object chunk by chunk, ahead of its user: the more it reads, the
// further ahead, so that a look at a header does not fetch the object.
type reader struct {
	s      *Store
	ctx    context.Context // of the whole reader
	cancel context.CancelFunc
	key    string
	etag   string

	next, end int64    // what is not yet being fetched
	window    int      // chunks to have in the queue
	queue     []*chunk // in order; the first is being read
	rest      []byte   // of the first chunk
	err       error    // of an earlier Read
	fetching  sync.WaitGroup
}

// chunk is a piece of an object on its way.
type chunk struct {
	buf  []byte
	err  error
	done chan struct{} // closed when buf and err are final
}

// fetch starts fetching the next chunk, whose request has perhaps been answered.
func (r *reader) fetch(out *awss3.GetObjectOutput) {
	off, n := r.next, min(r.s.chunkSize, r.end-r.next)
	r.next += n
	c := &chunk{done: make(chan struct{})}
	r.queue = append(r.queue, c)
	r.fetching.Go(func() {
		defer close(c.done)
		if n == r.s.chunkSize {
			c.buf = pooled(&r.s.chunks, n)[:n]
		} else {
			c.buf = make([]byte, n)
		}
		c.err = r.fill(c.buf, off, out)
	})
}

// fill reads a chunk. The SDK repeats requests that fail; here what broke in the
// middle of a body goes on where it broke.
func (r *reader) fill(buf []byte, off int64, out *awss3.GetObjectOutput) error {
	for try := 1; ; try++ {
		if out == nil {
			var err error
			if out, _, err = r.s.getRange(r.ctx, r.key, off, int64(len(buf)), r.etag); err != nil {
				return err
			}
		}
		n, err := io.ReadFull(out.Body, buf)
		_ = out.Body.Close() // after what counts
		out, buf, off = nil, buf[n:], off+int64(n)
		if len(buf) == 0 {
			return nil
		}
		if n > 0 {
			try = 1
		}
		if try >= r.s.attempts || r.ctx.Err() != nil {
			return r.s.fail(r.ctx, "get", r.key, err)
		}
		delay, err := r.s.backoff.BackoffDelay(try, err)
		if err != nil {
			return err
		}
		select {
		case <-time.After(delay):
		case <-r.ctx.Done():
		}
	}
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		r.advance()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(p, r.rest)
	if r.rest = r.rest[n:]; len(r.rest) == 0 {
		giveBack(&r.s.chunks, r.queue[0].buf, r.s.chunkSize)
		r.queue = r.queue[1:]
		r.window = min(r.window+1, r.s.readAhead)
	}
	return n, nil
}

// advance waits for the first chunk of the queue and keeps the queue full.
func (r *reader) advance() {
	for len(r.queue) < r.window && r.next < r.end {
		r.fetch(nil)
	}
	if len(r.queue) == 0 {
		r.err = io.EOF
		return
	}
	c := r.queue[0]
	<-c.done // ends with the reader's context at the latest
	if r.err = c.err; r.err == nil {
		r.err = r.ctx.Err()
	}
	if r.err == nil {
		r.rest = c.buf
	}
}

// Close implements io.Closer; it waits for the requests under way to end.
func (r *reader) Close() error {
	r.cancel()
	r.fetching.Wait()
	if r.err == nil {
		r.err = errors.New("read of a closed object")
	}
	r.rest, r.queue = nil, nil
	return nil
}
