package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

// lake is the root of warehouses that keys are vended for.
const lake = "s3://lake/warehouse"

// vendor is a vend.Vendor with the guarantees of one: single flight, a cache, and
// ErrRevoked for keys whose session was invalidated while they were made.
type vendor struct {
	now  func() time.Time
	life time.Duration

	mint sync.Mutex // one at a time

	mu        sync.Mutex
	calls     int
	asked     []vend.Request
	cache     map[string]vend.Answer
	forgotten map[string]int // by session: how often it was invalidated
	fail      error
	meanwhile func(vend.Request) // while keys are being made
	extra     time.Duration      // the answer's AliveUntil beyond Expires
}

func handing(hands ...session.HandOver) func(*Config) {
	return func(c *Config) {
		c.Vendor = &vendor{now: c.Now, life: time.Hour, cache: map[string]vend.Answer{}, forgotten: map[string]int{}}
		c.HandOvers = hands
	}
}

var copying = handing(session.HandOverCopy)

// openKeys is a world on s3:// with a vendor.
func openKeys(t testing.TB, hands ...session.HandOver) (*world, *vendor) {
	t.Helper()
	w := openRoot(t, lake, handing(hands...))
	return w, w.config.Vendor.(*vendor)
}

// Vend implements vend.Vendor.
func (v *vendor) Vend(ctx context.Context, r vend.Request) (vend.Answer, error) {
	v.mint.Lock()
	defer v.mint.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked = append(v.asked, r)
	if r.Session == "" || r.Epoch < 1 || r.Deadline.IsZero() || len(r.Locations) == 0 || r.DecisionID == "" || r.PolicyRevision == "" {
		return vend.Answer{}, vend.ErrInvalid
	}
	if v.fail != nil {
		return vend.Answer{}, v.fail
	}
	k := fmt.Sprint(r.Principal, r.Session, r.Epoch, r.PolicyRevision, r.Locations)
	if a, ok := v.cache[k]; ok {
		a.Cached = true
		return a, nil
	}
	v.calls++
	before, call := v.forgotten[r.Session], v.calls
	if f := v.meanwhile; f != nil {
		v.meanwhile = nil
		v.mu.Unlock()
		f(r)
		v.mu.Lock()
	}
	if v.forgotten[r.Session] != before {
		return vend.Answer{}, vend.ErrRevoked
	}
	life := min(v.life, r.Deadline.Sub(v.now()))
	if r.MaxTTL > 0 {
		life = min(life, r.MaxTTL)
	}
	end := v.now().Add(life)
	a := vend.Answer{
		Credentials: []vend.Credential{{
			Locations: r.Locations, AccessKeyID: fmt.Sprint("AKIA", call), SecretAccessKey: credential.New("canary-secret"),
			SessionToken: credential.New("canary-token"), SessionName: "sluice-" + r.DecisionID, Expires: end,
		}},
		Store: vend.Store{Region: "r"}, Lifetime: life, Expires: end, AliveUntil: end.Add(v.extra), RefreshAt: end.Add(-life / 5),
	}
	v.cache[k] = a
	return a, nil
}

// Invalidate implements vend.Vendor.
func (v *vendor) Invalidate(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forgotten[id]++
	clear(v.cache)
}

func (v *vendor) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.calls
}

// keys are vended ones in the hands of whoever got them.
type keys struct {
	w *world
	Credentials
}

// keys vends keys to a worker, who keeps them.
func (w *world) keys(c Caller, s session.Session, scope string) keys {
	w.t.Helper()
	bearer, _ := w.token(c, s, scope)
	got, err := w.Credentials(ctx, bearer, CredentialRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return keys{w, got}
}

// put is what the object store does with a PUT under the keys: it replaces what is
// there, inside of what the keys open and for as long as they live.
func (k keys) put(uri string, content []byte) error {
	k.w.t.Helper()
	bucket, key, _ := strings.Cut(strings.TrimPrefix(uri, "s3://"), "/")
	if !k.w.clock().Before(k.AliveUntil) {
		return errors.New("ExpiredToken")
	}
	for _, c := range k.Answer.Credentials {
		for _, l := range c.Locations {
			if l.Access == vend.Write && l.Bucket == bucket && (l.Object && l.Prefix.String() == key || !l.Object && l.Prefix.Contains(key)) {
				k.w.overwrite(uri, content)
				return nil
			}
		}
	}
	return errors.New("AccessDenied")
}

func (w *world) overwrite(uri string, content []byte) {
	w.t.Helper()
	k, err := w.driver.Key(uri)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.objects.Store.Delete(ctx, k); err != nil {
		w.t.Fatal(err)
	}
	w.put(uri, content)
}

// content reads an object past the broker; nil = there is none.
func (w *world) content(uri string) []byte {
	w.t.Helper()
	k, err := w.driver.Key(uri)
	if err != nil {
		w.t.Fatal(err)
	}
	body, _, err := w.objects.Store.Get(ctx, k, 0, -1)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(body); err != nil {
		w.t.Fatal(err)
	}
	return append([]byte{}, b.Bytes()...)
}

// below lists the keys of objects below a URI.
func (w *world) below(uri string) (list []string) {
	w.t.Helper()
	k, err := w.driver.Key(uri)
	if err != nil {
		w.t.Fatal(err)
	}
	for info, err := range w.objects.Store.List(ctx, k+"/") {
		if err != nil {
			w.t.Fatal(err)
		}
		list = append(list, info.Key)
	}
	return list
}

// wantPublished compares every published file with what was built.
func (l *load) wantPublished(when string) {
	l.w.t.Helper()
	for b, bl := range l.buckets {
		for _, f := range bl.meta.Private {
			if got := l.w.content(f.Path); !bytes.Equal(got, bl.files[f.LocalPath]) {
				l.w.t.Errorf("%s: %s of bucket %d has %d bytes that nobody validated", when, f.LocalPath, b, len(got))
			}
		}
	}
	if n := l.w.visible(places); n != len(l.buckets) {
		l.w.t.Errorf("%s: %d buckets visible", when, n)
	}
}

// spied is a store that tells of every step before it is taken.
type spied struct {
	objstore.Store
	before func(op, key string)
}

func (s *spied) Head(ctx context.Context, key string) (objstore.Info, error) {
	s.before("head", key)
	return s.Store.Head(ctx, key)
}

func (s *spied) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	s.before("get", key)
	return s.Store.Get(ctx, key, off, length)
}

func (s *spied) Copy(ctx context.Context, src, dst, ifMatch string) (objstore.Info, error) {
	s.before("copy", src)
	if err := ctx.Err(); err != nil {
		return objstore.Info{}, err
	}
	return s.Store.(objstore.Copier).Copy(ctx, src, dst, ifMatch)
}

// spy calls act once, before the first step op on a key with this end.
func (w *world) spy(op, suffix string, act func()) (reached *atomic.Bool) {
	reached = new(atomic.Bool)
	w.objects.Store = &spied{Store: w.objects.Store, before: func(o, key string) {
		if o == op && strings.HasSuffix(key, suffix) && reached.CompareAndSwap(false, true) {
			act()
		}
	}}
	return reached
}
