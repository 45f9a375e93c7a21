package remotedb

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// memObjects serves one object and counts requests.
type memObjects struct {
	b     []byte
	gets  atomic.Int64
	bytes atomic.Int64
	// cut breaks the stream of the first so many requests for a range that ends at
	// any one offset, which a repeat for the rest of it does, too.
	cut  int64
	seen sync.Map // end → *atomic.Int64
	// hang, when set, is told of every request, which then waits for its context.
	hang chan struct{}
}

func (m *memObjects) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	m.gets.Add(1)
	if m.hang != nil {
		select {
		case m.hang <- struct{}{}:
		case <-ctx.Done(): // nobody counts any more
		}
		<-ctx.Done()
		return nil, objstore.Info{}, ctx.Err()
	}
	if key != "k" {
		return nil, objstore.Info{}, objstore.ErrNotFound
	}
	b := m.b[off:min(off+length, int64(len(m.b)))]
	m.bytes.Add(int64(len(b)))
	info := objstore.Info{Key: key, Size: int64(len(m.b))}
	before, _ := m.seen.LoadOrStore(off+length, new(atomic.Int64))
	if before.(*atomic.Int64).Add(1) <= m.cut {
		return io.NopCloser(io.MultiReader(bytes.NewReader(b[:len(b)/3]), brokenStream{})), info, nil
	}
	return io.NopCloser(bytes.NewReader(b)), info, nil
}

func (m *memObjects) Head(context.Context, string) (objstore.Info, error) {
	return objstore.Info{}, errors.New("not asked")
}

type brokenStream struct{}

func (brokenStream) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func randomBytes(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}

func openRemote(t *testing.T, m *memObjects) *handle {
	t.Helper()
	src := New(m, []File{{Local: "f", Key: "k", Size: int64(len(m.b))}})
	h, err := src.Open(context.Background(), "f")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h.(*handle)
}

func TestRemoteReadsEqualTheObject(t *testing.T) {
	for _, size := range []int{1, 1000, wholeFile, wholeFile + 1, 9 << 20} {
		for _, cut := range []int64{0, 1} {
			m := &memObjects{b: randomBytes(size), cut: cut}
			h := openRemote(t, m)
			r := rand.New(rand.NewPCG(1, 1))
			var wg sync.WaitGroup
			for g := range 4 {
				seed := r.Uint64()
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, 1))
					off := int64(0)
					for range 60 {
						if g%2 == 1 || off >= int64(size) { // odd ones jump about
							off = r.Int64N(int64(size))
						}
						p := make([]byte, 1+r.IntN(300<<10))
						n, err := h.ReadAt(p, off)
						if want := min(len(p), size-int(off)); n != want || (err == io.EOF) != (n < len(p)) || err != nil && err != io.EOF {
							t.Errorf("size %d: read %d of %d at %d, want %d: %v", size, n, len(p), off, want, err)
							return
						}
						if !bytes.Equal(p[:n], m.b[off:int(off)+n]) {
							t.Errorf("size %d: other bytes at %d", size, off)
							return
						}
						off += int64(n)
					}
				})
			}
			wg.Wait()
		}
	}
}

func TestSequentialReadsAskForRangesAhead(t *testing.T) {
	m := &memObjects{b: randomBytes(20 << 20)}
	h := openRemote(t, m)
	p := make([]byte, 64<<10)
	for off := int64(0); off < h.Size(); off += int64(len(p)) {
		if _, err := h.ReadAt(p, off); err != nil && err != io.EOF {
			t.Fatal(err)
		}
	}
	if n := m.gets.Load(); n > 16 {
		t.Errorf("%d requests for 20 MiB", n)
	}
	if n := m.bytes.Load(); n != 20<<20 {
		t.Errorf("%d bytes were transferred", n)
	}
}

func TestALookUpDoesNotReadAhead(t *testing.T) {
	m := &memObjects{b: randomBytes(20 << 20)}
	h := openRemote(t, m)
	for _, off := range []int64{19 << 20, 3 << 20, 11 << 20} {
		if _, err := h.ReadAt(make([]byte, 4096), off); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.bytes.Load(); n != 3*4096 {
		t.Errorf("%d bytes were transferred for three blocks", n)
	}
}

func TestASmallFileIsOneRequest(t *testing.T) {
	m := &memObjects{b: randomBytes(100 << 10)}
	h := openRemote(t, m)
	for _, off := range []int64{90 << 10, 0, 50 << 10, 99 << 10} {
		if _, err := h.ReadAt(make([]byte, 1000), off); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.gets.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestRemoteErrors(t *testing.T) {
	m := &memObjects{b: randomBytes(1000), cut: 10}
	h := openRemote(t, m)
	if _, err := h.ReadAt(make([]byte, 900), 0); err == nil || m.gets.Load() != rangeAttempts {
		t.Errorf("a stream that always breaks: %v after %d requests", err, m.gets.Load())
	}
	if _, err := h.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a negative offset was read")
	}
	if n, err := h.ReadAt(make([]byte, 1), 1000); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	m = &memObjects{b: randomBytes(1000)}
	h = openRemote(t, m)
	h.file.Size = 999
	if _, err := h.ReadAt(make([]byte, 10), 0); err == nil {
		t.Error("an object of another size was read")
	}
	h.file.Key = "other"
	if _, err := h.ReadAt(make([]byte, 999), 0); err == nil {
		t.Error("a failed range was read again as if it were good")
	}
}

// TestCloseEndsReadingAhead closes while requests hang.
func TestCloseEndsReadingAhead(t *testing.T) {
	m := &memObjects{b: randomBytes(4 << 20), hang: make(chan struct{})}
	h := openRemote(t, m)
	failed := make(chan error)
	go func() {
		_, err := h.ReadAt(make([]byte, 100), 0)
		failed <- err
	}()
	for range 1 + rangesHead { // the read and what is ahead of it
		<-m.hang
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
