package objstoretest

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// ErrInjected is the error of a write that Faults broke.
var ErrInjected = errors.New("injected fault")

// World is what a failed write left behind: a failed answer does not say.
type World bool

// The worlds.
const (
	NothingStored World = false
	StoredAnyway  World = true
)

// Worlds lists both, for tests that run in each.
var Worlds = []World{NothingStored, StoredAnyway}

// String names the world.
func (w World) String() string {
	if w == StoredAnyway {
		return "stored although failed"
	}
	return "nothing stored"
}

// Faults is a store whose n-th write fails, once, in a chosen world. Safe for
// concurrent use.
type Faults struct {
	objstore.Store

	mu     sync.Mutex
	writes int
	failAt int // 0 = never
	world  World
}

// Arm makes the n-th write from now fail (1 = the next); 0 disarms.
func (f *Faults) Arm(n int, w World) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes, f.failAt, f.world = 0, n, w
}

// Writes is the number of writes since the last Arm.
func (f *Faults) Writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// write runs do, or breaks it.
func (f *Faults) write(do func() error) error {
	f.mu.Lock()
	f.writes++
	broken, world := f.writes == f.failAt, f.world
	f.mu.Unlock()
	if broken && world == NothingStored {
		return ErrInjected
	}
	err := do()
	if broken {
		return ErrInjected
	}
	return err
}

// Put implements objstore.Store.
func (f *Faults) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (info objstore.Info, err error) {
	err = f.write(func() (err error) {
		info, err = f.Store.Put(ctx, key, body, o)
		return err
	})
	return info, err
}

// Delete implements objstore.Store.
func (f *Faults) Delete(ctx context.Context, key string) error {
	return f.write(func() error { return f.Store.Delete(ctx, key) })
}

// Copy implements objstore.Copier on stores that do; others fail with
// errors.ErrUnsupported. It counts as a write.
func (f *Faults) Copy(ctx context.Context, src, dst, ifMatch string) (info objstore.Info, err error) {
	c, ok := f.Store.(objstore.Copier)
	if !ok {
		return objstore.Info{}, errors.ErrUnsupported
	}
	err = f.write(func() (err error) {
		info, err = c.Copy(ctx, src, dst, ifMatch)
		return err
	})
	return info, err
}
