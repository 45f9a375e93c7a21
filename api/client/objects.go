package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Objects reads and writes objects through the broker's gateway, or at the store
// itself (SignedObjects). It implements objstore.Reader and objstore.Writer; errors
// carry the objstore kinds.
type Objects struct {
	c    *Client
	root string // remote data directory, with a trailing slash
	way  way
}

// way is how requests on objects reach them.
type way interface {
	request(ctx context.Context, method, key string, body io.Reader) (*http.Request, error)
	// roundTrip authorizes and sends; content is the SHA-256 of a PUT's body, if it is
	// known. A refused token is dropped, so that the next call begins with a fresh
	// one. sent says whether net/http took the body over.
	roundTrip(ctx context.Context, req *http.Request, content string) (res *http.Response, sent bool, err error)
	// digest is the SHA-256 of the whole object in an answer, "" when it says none.
	digest(h http.Header) string
	// needsDigest says that a PUT must know its content's SHA-256.
	needsDigest() bool
	// maxPut is the size of the largest object, in bytes; 0 = the server says.
	maxPut() int64
}

var (
	_ objstore.Reader = (*Objects)(nil)
	_ objstore.Writer = (*Objects)(nil)
)

// Objects is the object store behind remoteDir (BuildContext.RemoteDataDir or
// Table.RemoteDataDir), reached with ts's tokens.
func (c *Client) Objects(ts TokenSource, remoteDir string) *Objects {
	return &Objects{c: c, root: strings.TrimRight(remoteDir, "/") + "/", way: &gatewayWay{c, ts}}
}

// Key turns an absolute URI below the remote directory into an object key.
func (o *Objects) Key(uri string) (string, error) {
	key, ok := strings.CutPrefix(uri, o.root)
	if !ok {
		return "", fmt.Errorf("%w: %q does not lie below %q", objstore.ErrInvalidKey, uri, o.root)
	}
	if err := objstore.CheckKey(key); err != nil {
		return "", err
	}
	return key, nil
}

// maxUnsized is how much of a body of unknown size is held in memory to learn it.
const maxUnsized = 4 << 20

// Put creates an object. The body is sent again after a failure only if it is an
// io.Seeker. A repeat that finds the object there succeeds when its digest is
// o.SHA256: then the lost answer was ours, or the same bytes were there before.
func (o *Objects) Put(ctx context.Context, key string, body io.Reader, opt objstore.PutOptions) (objstore.Info, error) {
	if opt.IfMatch != "" {
		return objstore.Info{}, errors.New("client: objects are created, none is replaced (PutOptions.IfMatch)")
	}
	err := objstore.CheckKey(key)
	if err != nil {
		return objstore.Info{}, err
	}
	if body, opt, err = sized(body, opt); err != nil {
		return objstore.Info{}, fmt.Errorf("put %s: %w", key, err)
	}
	if opt.MaxSize > 0 && opt.Size > opt.MaxSize {
		return objstore.Info{}, fmt.Errorf("put %s: %w: %d bytes, at most %d", key, objstore.ErrTooLarge, opt.Size, opt.MaxSize)
	}
	if most := o.way.maxPut(); most > 0 && opt.Size > most {
		return objstore.Info{}, fmt.Errorf("put %s: %w: %d bytes, and one signed request holds %d: send it with keys of the store or through the gateway", key, objstore.ErrTooLarge, opt.Size, most)
	}
	start, seeker := position(body)
	if opt.SHA256 == "" && o.way.needsDigest() {
		if opt.SHA256, err = digestFrom(body, seeker, start); err != nil {
			return objstore.Info{}, fmt.Errorf("put %s: %w", key, err)
		}
	}
	if seeker == nil {
		return o.putOnce(ctx, key, body, opt)
	}
	var info objstore.Info
	uncertain := false
	err = o.repeat(ctx, true, func() error {
		if uncertain {
			if _, err := seeker.Seek(start, io.SeekStart); err != nil {
				return fmt.Errorf("put %s: read the body again: %w", key, err)
			}
		}
		var err error
		info, err = o.putOnce(ctx, key, body, opt)
		if uncertain && opt.SHA256 != "" && errors.Is(err, objstore.ErrExists) {
			if found, herr := o.headOnce(ctx, key); herr == nil && found.SHA256 == opt.SHA256 {
				info, err = found, nil
			}
		}
		uncertain = uncertain || err != nil
		return err
	})
	return info, err
}

// sized makes sure that the size of a body is known, which the gateway requires.
func sized(body io.Reader, opt objstore.PutOptions) (io.Reader, objstore.PutOptions, error) {
	if opt.HasSize {
		return body, opt, nil
	}
	if start, s := position(body); s != nil {
		end, err := s.Seek(0, io.SeekEnd)
		if err == nil {
			_, err = s.Seek(start, io.SeekStart)
		}
		opt.Size, opt.HasSize = end-start, true
		return body, opt, err
	}
	b, err := io.ReadAll(io.LimitReader(body, maxUnsized+1))
	if err != nil {
		return nil, opt, err
	}
	if len(b) > maxUnsized {
		return nil, opt, fmt.Errorf("a body of more than %d bytes needs its size (PutOptions.HasSize)", maxUnsized)
	}
	opt.Size, opt.HasSize = int64(len(b)), true
	return bytes.NewReader(b), opt, nil
}

// digestFrom is the SHA-256 of what is left of a body, which is put back to start.
func digestFrom(body io.Reader, s io.Seeker, start int64) (string, error) {
	if s == nil {
		return "", errors.New("a body that is read once needs its SHA-256 (PutOptions.SHA256)")
	}
	h := sha256.New()
	if _, err := io.Copy(h, body); err != nil {
		return "", fmt.Errorf("read the body: %w", err)
	}
	if _, err := s.Seek(start, io.SeekStart); err != nil {
		return "", fmt.Errorf("read the body again: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// expectContinue is the size of a body, in bytes, from which a useless upload costs
// more than one round trip.
const expectContinue = 256 << 10

// position says where a body that can be sent again begins.
func position(body io.Reader) (int64, io.Seeker) {
	s, ok := body.(io.Seeker)
	if !ok {
		return 0, nil
	}
	at, err := s.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, nil
	}
	return at, s
}

func (o *Objects) putOnce(ctx context.Context, key string, body io.Reader, opt objstore.PutOptions) (objstore.Info, error) {
	counted := newCountingReader(body, opt.Size)
	req, err := o.way.request(ctx, http.MethodPut, key, counted)
	if err != nil {
		return objstore.Info{}, err
	}
	req.ContentLength = opt.Size
	if opt.Size == 0 {
		_, _ = io.ReadFull(counted, make([]byte, 1)) // fault has the error
		if err := counted.fault(0); err != nil {
			return objstore.Info{}, fmt.Errorf("put %s: %w", key, err)
		}
		req.Body = http.NoBody
	}
	if opt.Size > expectContinue {
		// The server can refuse before the body is sent.
		req.Header.Set("Expect", "100-continue")
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("If-None-Match", "*")
	res, sent, err := o.way.roundTrip(ctx, req, opt.SHA256)
	if err == nil {
		drain(res.Body)
	}
	if !sent || req.Body == http.NoBody {
		_ = counted.Close()
	}
	// net/http may read the body after it answered, until it closes it: wait, so
	// that the caller gets its reader back idle.
	<-counted.closed
	if err != nil {
		// What is wrong with the body is not the network's fault and not repeated.
		if berr := counted.fault(opt.Size); berr != nil {
			return objstore.Info{}, fmt.Errorf("put %s: %w", key, berr)
		}
		return objstore.Info{}, err
	}
	info := o.infoOf(key, res.Header, counted.n)
	if info.SHA256 == "" {
		info.SHA256 = opt.SHA256
	}
	return info, nil
}

// Get opens an object from byte off; a negative length reads to the end. A stream
// that breaks fails the read: open the rest again from where it stopped.
func (o *Objects) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, objstore.Info{}, err
	}
	if off < 0 {
		return nil, objstore.Info{}, fmt.Errorf("get %s: %w: offset %d", key, objstore.ErrRange, off)
	}
	var body io.ReadCloser
	var info objstore.Info
	err := o.repeat(ctx, true, func() error {
		var err error
		body, info, err = o.getOnce(ctx, key, off, length)
		return err
	})
	return body, info, err
}

func (o *Objects) getOnce(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if length == 0 {
		// HTTP has no empty range; existence and bounds still count.
		info, err := o.headOnce(ctx, key)
		if err == nil && off > info.Size {
			err = fmt.Errorf("get %s: %w: offset %d of %d bytes", key, objstore.ErrRange, off, info.Size)
		}
		return http.NoBody, info, err
	}
	req, err := o.way.request(ctx, http.MethodGet, key, nil)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	partial := off > 0 || length > 0
	if partial {
		req.Header.Set("Range", byteRange(off, length))
	}
	res, _, err := o.way.roundTrip(ctx, req, "")
	if err != nil {
		if errors.Is(err, objstore.ErrRange) { // at offset 0 too: of an empty object
			return o.atEnd(ctx, key, off, err)
		}
		return nil, objstore.Info{}, err
	}
	if partial && res.StatusCode != http.StatusPartialContent {
		drain(res.Body)
		return nil, objstore.Info{}, fmt.Errorf("get %s: the server ignored the range %s", key, byteRange(off, length))
	}
	info := o.infoOf(key, res.Header, res.ContentLength)
	if partial {
		start, size, err := contentRange(res.Header.Get("Content-Range"))
		if err != nil || start != off {
			drain(res.Body)
			return nil, objstore.Info{}, fmt.Errorf("get %s: asked for %s, got Content-Range %q", key, byteRange(off, length), res.Header.Get("Content-Range"))
		}
		info.Size = size
	}
	return res.Body, info, nil
}

// atEnd tells a read that begins exactly at the end, which is empty, from one
// behind it. HTTP answers 416 to both.
func (o *Objects) atEnd(ctx context.Context, key string, off int64, rangeErr error) (io.ReadCloser, objstore.Info, error) {
	info, err := o.headOnce(ctx, key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	if off == info.Size {
		return http.NoBody, info, nil
	}
	return nil, objstore.Info{}, rangeErr
}

// Head describes an object.
func (o *Objects) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	var info objstore.Info
	err := o.repeat(ctx, true, func() error {
		var err error
		info, err = o.headOnce(ctx, key)
		return err
	})
	return info, err
}

func (o *Objects) headOnce(ctx context.Context, key string) (objstore.Info, error) {
	req, err := o.way.request(ctx, http.MethodHead, key, nil)
	if err != nil {
		return objstore.Info{}, err
	}
	res, _, err := o.way.roundTrip(ctx, req, "")
	if err != nil {
		return objstore.Info{}, err
	}
	drain(res.Body)
	return o.infoOf(key, res.Header, res.ContentLength), nil
}

// repeat is Client.repeat, and once more after a token was refused and dropped.
func (o *Objects) repeat(ctx context.Context, repeatable bool, f func() error) error {
	err := o.c.repeat(ctx, repeatable, f)
	var e *Error
	if repeatable && errors.As(err, &e) && e.dropped {
		err = o.c.repeat(ctx, repeatable, f)
	}
	return err
}

// gatewayWay asks the broker for the objects themselves.
type gatewayWay struct {
	c  *Client
	ts TokenSource
}

func (g *gatewayWay) request(ctx context.Context, method, key string, body io.Reader) (*http.Request, error) {
	path, err := objectPath(key)
	if err != nil {
		return nil, err
	}
	return g.c.request(ctx, method, path, nil, body)
}

func (g *gatewayWay) roundTrip(ctx context.Context, req *http.Request, content string) (res *http.Response, sent bool, err error) {
	if content != "" {
		req.Header.Set(v1.HeaderContentSHA256, content)
	}
	used, err := authorize(ctx, req, g.ts)
	if err != nil {
		return nil, false, err
	}
	res, err = g.c.send(req)
	// Not errors.As: when ctx has ended, err may wrap its cause, and that may be the
	// Error of another request.
	if e, ok := err.(*Error); ok {
		e.kind = objectKind(e)
		e.dropped = dropRefused(g.ts, used, e)
	}
	return res, true, err
}

func (g *gatewayWay) digest(h http.Header) string { return h.Get(v1.HeaderContentSHA256) }

func (g *gatewayWay) needsDigest() bool { return false }

func (g *gatewayWay) maxPut() int64 { return 0 }

// objectPath escapes a key segment by segment.
func objectPath(key string) (string, error) {
	if err := objstore.CheckKey(key); err != nil {
		return "", err
	}
	segs := strings.Split(key, "/")
	for i, s := range segs {
		segs[i] = url.PathEscape(s)
	}
	return "/v1/objects/" + strings.Join(segs, "/"), nil
}

func byteRange(off, length int64) string {
	if length < 0 {
		return fmt.Sprintf("bytes=%d-", off)
	}
	return fmt.Sprintf("bytes=%d-%d", off, off+length-1)
}

// contentRange reads "bytes first-last/size".
func contentRange(h string) (first, size int64, err error) {
	var last int64
	if _, err := fmt.Sscanf(h, "bytes %d-%d/%d", &first, &last, &size); err != nil {
		return 0, 0, err
	}
	return first, size, nil
}

func (o *Objects) infoOf(key string, h http.Header, size int64) objstore.Info {
	info := objstore.Info{Key: key, Size: size, ETag: h.Get("ETag"), SHA256: o.way.digest(h)}
	if t, err := http.ParseTime(h.Get("Last-Modified")); err == nil {
		info.ModTime = t
	}
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && info.Size < 0 {
		info.Size = n
	}
	return info
}

// countingReader watches a body being sent. It hides the caller's Close and type:
// the caller owns the body, and net/http must take the length from us.
//
// It looks one byte behind the announced end before it gives the last byte away:
// net/http looks there, too, but may do so after the server has stored what it got.
type countingReader struct {
	r      io.Reader
	size   int64
	n      int64
	err    error // what the body's Read returned last
	once   sync.Once
	closed chan struct{}
}

func newCountingReader(r io.Reader, size int64) *countingReader {
	return &countingReader{r: r, size: size, closed: make(chan struct{})}
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 && err == nil && c.n+int64(n) >= c.size {
		var more [1]byte
		var m int
		if m, err = io.ReadFull(c.r, more[:]); m > 0 {
			c.n = c.size + 1
			return 0, objstore.ErrSize
		}
	}
	c.n += int64(n)
	c.err = err
	return n, err
}

// Close is net/http's sign that it will not read any more.
func (c *countingReader) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// fault says whether the body itself is the reason of a failure: it could not be
// read, or is not as long as was said.
func (c *countingReader) fault(size int64) error {
	switch {
	case c.err != nil && c.err != io.EOF:
		return fmt.Errorf("read the body: %w", c.err)
	case c.n > size, c.err == io.EOF && c.n < size:
		return fmt.Errorf("%w: %d bytes were announced, the body has %d", objstore.ErrSize, size, c.n)
	}
	return nil
}
