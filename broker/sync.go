package broker

import (
	"context"
	"reflect"
	"sync"

	"github.com/fluss-sluice/sluice/session"
)

// same compares two records but for their store versions.
func same(a, b session.Session) bool {
	a.Version, b.Version = 0, 0
	return reflect.DeepEqual(a, b)
}

// keyLocks is a lock per key. The zero value is ready.
type keyLocks struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	held chan struct{} // holds one element while locked
	refs int           // holders and waiters, guarded by keyLocks.mu
}

func (l *keyLocks) ref(key string) *keyLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m == nil {
		l.m = map[string]*keyLock{}
	}
	k := l.m[key]
	if k == nil {
		k = &keyLock{held: make(chan struct{}, 1)}
		l.m[key] = k
	}
	k.refs++
	return k
}

func (l *keyLocks) unref(key string, k *keyLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.refs--; k.refs == 0 {
		delete(l.m, key)
	}
}

func (l *keyLocks) unlocker(key string, k *keyLock) func() {
	return func() {
		<-k.held
		l.unref(key, k)
	}
}

// lock waits for the key or the end of ctx.
func (l *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	k := l.ref(key)
	select {
	case k.held <- struct{}{}:
		return l.unlocker(key, k), nil
	case <-ctx.Done():
		l.unref(key, k)
		return nil, ctx.Err()
	}
}

// tryLock takes the key if it is free.
func (l *keyLocks) tryLock(key string) (unlock func(), ok bool) {
	k := l.ref(key)
	select {
	case k.held <- struct{}{}:
		return l.unlocker(key, k), true
	default:
		l.unref(key, k)
		return nil, false
	}
}

// uploads counts, per session, the uploads whose last byte has been read and that
// become visible in this moment. A freeze waits for them, so that validation sees
// every object that was stored and none appears behind it. The zero value is ready.
type uploads struct {
	mu      sync.Mutex
	cond    *sync.Cond
	n       map[string]int
	waiting int // freezes in drain
}

func (u *uploads) enter(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == nil {
		u.n = map[string]int{}
		u.cond = sync.NewCond(&u.mu)
	}
	u.n[id]++
}

func (u *uploads) leave(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n[id]--; u.n[id] == 0 {
		delete(u.n, id)
	}
	u.cond.Broadcast()
}

// drain returns when no upload of the session is between Seal and Done. The store
// already refuses new ones. Each lasts as long as one fsync and one rename.
func (u *uploads) drain(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.n[id] > 0 {
		u.waiting++
		u.cond.Wait()
		u.waiting--
	}
}
