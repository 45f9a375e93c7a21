package scan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// leaseService is a Service of leases only.
type leaseService struct {
	Service
	acquire func(ctx context.Context) error
	calls   []string
}

func (s *leaseService) AcquireLease(ctx context.Context, _ v1.Target, req v1.LeaseRequest) (*v1.Lease, error) {
	slices.SortFunc(req.Snapshots, func(a, b v1.SnapshotRef) int { return a.BucketID - b.BucketID })
	s.calls = append(s.calls, fmt.Sprint("acquire ", req.Snapshots))
	return &v1.Lease{}, s.acquire(ctx)
}

func (s *leaseService) ReleaseLease(context.Context, v1.Target, string) error {
	s.calls = append(s.calls, "release")
	return nil
}

type codedError string

func (e codedError) Error() string       { return string(e) }
func (e codedError) ProblemCode() string { return string(e) }

func TestALeaseIsRenewedUntilItIsClosed(t *testing.T) {
	for name, row := range map[string]struct {
		acquire func(context.Context) error
		want    []string
	}{
		"where leases are offered": {func(context.Context) error { return nil },
			[]string{"acquire [{1 7}]", "acquire [{0 5} {1 8}]", "acquire [{0 5} {1 8}]", "acquire [{0 5} {1 8}]", "release"}},
		"where a lease cannot be had now": {func(context.Context) error { return errors.New("not now") },
			[]string{"acquire [{1 7}]", "acquire [{0 5} {1 8}]", "acquire [{0 5} {1 8}]", "acquire [{0 5} {1 8}]", "release"}},
		"where leases are not offered":   {func(context.Context) error { return codedError(v1.CodeNotOffered) }, []string{"acquire [{1 7}]"}},
		"where nobody has heard of them": {func(context.Context) error { return codedError(v1.CodeNotFound) }, []string{"acquire [{1 7}]"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &leaseService{acquire: row.acquire}
				l := newLease(s, v1.Target{})
				for _, refs := range [][]v1.SnapshotRef{{{BucketID: 1, SnapshotID: 7}}, {{BucketID: 0, SnapshotID: 5}, {BucketID: 1, SnapshotID: 8}}} {
					if err := l.add(t.Context(), refs); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(2*leaseRenewal + time.Second) // of the bubble's clock
				synctest.Wait()
				l.close()
				l.close()
				if !slices.Equal(s.calls, row.want) {
					t.Errorf("calls %q, want %q", s.calls, row.want)
				}
			})
		})
	}
}

func TestALeaseThatHangsDoesNotHoldUpAScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &leaseService{acquire: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		l := newLease(s, v1.Target{})
		begun := time.Now()
		if err := l.add(t.Context(), []v1.SnapshotRef{{}}); err != nil || time.Since(begun) != leaseTimeout {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		l.close()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		l = newLease(s, v1.Target{})
		if err := l.add(ended, []v1.SnapshotRef{{}}); !errors.Is(err, context.Canceled) {
			t.Errorf("a scan that was ended: %v", err)
		}
		l.close()
	})
}
