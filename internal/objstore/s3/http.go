package s3

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// newHTTPClient is Go's default but for connections kept (parallel to one host) and
// redirects (a signature is good for one URL).
func newHTTPClient(parallel int) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.MaxIdleConnsPerHost = max(parallel, 32)
	t.MaxIdleConns = 0
	t.DisableCompression = true
	t.ForceAttemptHTTP2 = false
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// errStalled is a time-out to the SDK, which then tries again.
type stalledError struct{}

func (stalledError) Error() string   { return "no byte moved for too long" }
func (stalledError) Timeout() bool   { return true }
func (stalledError) Temporary() bool { return true }

var errStalled error = stalledError{}

// stallClient ends requests in which nothing moves, in either direction.
type stallClient struct {
	next  aws.HTTPClient
	after time.Duration
}

// Do implements aws.HTTPClient.
func (c *stallClient) Do(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{ctx: ctx, cancel: cancel, after: c.after, timer: time.AfterFunc(c.after, func() { cancel(errStalled) })}
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &watchedBody{req.Body, w, false}
	}
	resp, err := c.next.Do(req)
	if err != nil {
		err = w.explain(err)
		w.end()
		return nil, err
	}
	resp.Body = &watchedBody{resp.Body, w, true}
	return resp, nil
}

// watch is the watch over one request.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	after  time.Duration
	timer  *time.Timer
}

// moved postpones the end; it must not revive a timer that has been stopped.
func (w *watch) moved() {
	if w.timer.Stop() {
		w.timer.Reset(w.after)
	}
}

func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain replaces the error of a cancelled request by why it was cancelled.
func (w *watch) explain(err error) error {
	if err != nil && err != io.EOF && errors.Is(context.Cause(w.ctx), errStalled) {
		return errStalled
	}
	return err
}

// watchedBody reports each movement; closing that of the response ends the watch.
type watchedBody struct {
	io.ReadCloser
	w        *watch
	response bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.w.moved()
	}
	if b.response {
		err = b.w.explain(err)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	if b.response {
		b.w.end()
	}
	return err
}
