package scan

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

const (
	// leaseDuration is what a scan that died keeps from being deleted.
	leaseDuration = 10 * time.Minute
	// A lease is renewed three times before it would end.
	leaseRenewal = leaseDuration / 4
	// leaseTimeout bounds one attempt, so that a scan is not held up.
	leaseTimeout = 10 * time.Second
	// releaseTimeout bounds giving a lease up; one that is not given up expires.
	releaseTimeout = 5 * time.Second
)

// lease holds snapshots until it is closed. Where leases are not offered, or cannot be
// had, it holds nothing: snapshots that are deleted are then noticed by their reader.
type lease struct {
	service Service
	target  v1.Target
	id      string

	mu     sync.Mutex
	held   map[int]int64 // snapshot by bucket
	none   bool          // not offered
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newLease(s Service, t v1.Target) *lease {
	return &lease{service: s, target: t, id: "scan-" + rand.Text(), held: map[int]int64{}}
}

// add holds further snapshots, and renews. A failure is no reason not to scan: the lease
// may be had at the next turn.
func (l *lease) add(ctx context.Context, which []v1.SnapshotRef) error {
	l.mu.Lock()
	for _, k := range which {
		l.held[k.BucketID] = k.SnapshotID
	}
	l.mu.Unlock()
	_ = l.acquire(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel == nil && !l.none {
		renewing, cancel := context.WithCancel(context.WithoutCancel(ctx))
		l.cancel = cancel
		l.wg.Go(func() { l.renew(renewing) })
	}
	return ctx.Err()
}

// acquire asks for all that is held, if leases are offered.
func (l *lease) acquire(ctx context.Context) error {
	l.mu.Lock()
	req := v1.LeaseRequest{LeaseID: l.id, DurationMS: leaseDuration.Milliseconds()}
	for b, id := range l.held {
		req.Snapshots = append(req.Snapshots, v1.SnapshotRef{BucketID: b, SnapshotID: id})
	}
	none := l.none
	l.mu.Unlock()
	if none {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	_, err := l.service.AcquireLease(ctx, l.target, req)
	switch codeOf(err) {
	// Servers of an older version do not know the request.
	case v1.CodeNotOffered, v1.CodeNotImplemented, v1.CodeNotFound, v1.CodeMethodNotAllowed:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.none = true
		return nil
	}
	return err
}

// renew keeps the lease until ctx ends. A failure is tried again at the next turn.
func (l *lease) renew(ctx context.Context) {
	t := time.NewTicker(leaseRenewal)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			_ = l.acquire(ctx)
		}
	}
}

// close stops renewing and gives the lease up.
func (l *lease) close() {
	l.mu.Lock()
	cancel := l.cancel
	l.cancel = nil
	l.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	l.wg.Wait()
	ctx, done := context.WithTimeout(context.Background(), releaseTimeout)
	defer done()
	_ = l.service.ReleaseLease(ctx, l.target, l.id)
}
