package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Reads of a live cluster. Rows and leases of snapshots take snapshot:read, lake
// snapshots lake:read. They are recorded when refused only.

// Limits of reads.
const (
	// MaxReadRows bounds the keys of a lookup and the rows of a limit scan.
	MaxReadRows = 10_000
	// MaxLease is the longest time for which a lease is given or renewed at once: what a
	// reader that died keeps from being deleted.
	MaxLease = time.Hour
)

// read enters a use case on a target and returns the driver as D.
func read[D any](ctx context.Context, b *Broker, c Caller, t session.Target, op scope.Op, what string) (D, func(), error) {
	var none D
	leave, err := b.enter()
	if err != nil {
		return none, nil, err
	}
	err = b.mayRead(ctx, c, t, op)
	driver, ok := b.c.Driver.(D)
	if err == nil && !ok {
		err = fmt.Errorf("%w: %s", target.ErrNotOffered, what)
	}
	if err != nil {
		leave()
		return none, nil, err
	}
	return driver, leave, nil
}

// LakeSnapshot says up to where the lake holds a target. Of a partition's answer only
// its own offsets are told.
func (b *Broker) LakeSnapshot(ctx context.Context, c Caller, t session.Target, which target.LakeSelection) (target.LakeSnapshot, error) {
	if which.ID != nil && which.Readable {
		return target.LakeSnapshot{}, fmt.Errorf("%w: a lake snapshot is chosen by id or as readable, not both", session.ErrInvalid)
	}
	lake, leave, err := read[target.Lake](ctx, b, c, t, scope.LakeRead, "lake snapshots")
	if err != nil {
		return target.LakeSnapshot{}, err
	}
	defer leave()
	s, err := lake.LakeSnapshot(ctx, t, which)
	if err != nil || t.Partition == "" {
		return s, err
	}
	own := s.Buckets[:0]
	for _, o := range s.Buckets {
		if o.Partition != nil && o.Partition.Name == t.Partition {
			own = append(own, o)
		}
	}
	s.Buckets = own
	return s, nil
}

// LeaseRequest asks for snapshots to be kept.
type LeaseRequest struct {
	ID        string // the caller's own
	Duration  time.Duration
	Snapshots []target.SnapshotRef
}

// Lease is what is kept.
type Lease struct {
	Expires     time.Time
	Unavailable []target.SnapshotRef
}

// AcquireLease keeps snapshots from being deleted while they are read, or renews.
func (b *Broker) AcquireLease(ctx context.Context, c Caller, t session.Target, r LeaseRequest) (Lease, error) {
	if err := r.check(); err != nil {
		return Lease{}, err
	}
	leases, leave, err := read[target.Leases](ctx, b, c, t, scope.SnapshotRead, "leases of snapshots")
	if err != nil {
		return Lease{}, err
	}
	defer leave()
	expires := b.c.Now().Add(r.Duration) // at the latest then, as the cluster counts from later
	gone, err := leases.AcquireLease(ctx, t, leaseName(c, t, r.ID), r.Duration, r.Snapshots)
	return Lease{Expires: expires.UTC(), Unavailable: gone}, err
}

// ReleaseLease gives a lease of the caller up.
func (b *Broker) ReleaseLease(ctx context.Context, c Caller, t session.Target, id string) error {
	if err := checkLease(id); err != nil {
		return err
	}
	leases, leave, err := read[target.Leases](ctx, b, c, t, scope.SnapshotRead, "leases of snapshots")
	if err != nil {
		return err
	}
	defer leave()
	return leases.ReleaseLease(ctx, t, leaseName(c, t, id))
}

func (r LeaseRequest) check() error {
	if err := checkLease(r.ID); err != nil {
		return err
	}
	switch n := len(r.Snapshots); {
	case r.Duration < time.Second || r.Duration > MaxLease:
		return fmt.Errorf("%w: a lease of %s, want %s to %s", session.ErrInvalid, r.Duration, time.Second, MaxLease)
	case n == 0 || n > MaxReadRows:
		return fmt.Errorf("%w: a lease of %d snapshots, want 1 to %d", session.ErrInvalid, n, MaxReadRows)
	}
	seen := map[int]bool{}
	for _, s := range r.Snapshots {
		if s.Bucket < 0 || s.ID < 0 || seen[s.Bucket] {
			return fmt.Errorf("%w: snapshot %d of bucket %d: want one snapshot of each bucket", session.ErrInvalid, s.ID, s.Bucket)
		}
		seen[s.Bucket] = true
	}
	return nil
}

// checkLease wants a name that nobody hits by chance.
func checkLease(id string) error {
	ok := len(id) >= 16 && len(id) <= 64
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if !ok {
		return fmt.Errorf("%w: lease %.80q: want 16 to 64 letters, digits, dashes and underscores", session.ErrInvalid, id)
	}
	return nil
}

// leaseName is the cluster's name for a caller's lease. It is made of who asks and what
// for, so that nobody reaches another's lease, or one that is not the broker's.
func leaseName(c Caller, t session.Target, id string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", c.Principal.Issuer, c.Principal.Subject, t.String(), id))
	return "sluice-" + hex.EncodeToString(sum[:16])
}

// Lookup reads stored values by their keys, nil for a key that is not there.
func (b *Broker) Lookup(ctx context.Context, c Caller, t session.Target, bucket int, keys [][]byte) ([][]byte, error) {
	if n := len(keys); n == 0 || n > MaxReadRows {
		return nil, fmt.Errorf("%w: %d keys, want 1 to %d", session.ErrInvalid, n, MaxReadRows)
	}
	for i, k := range keys {
		if len(k) == 0 {
			return nil, fmt.Errorf("%w: key %d is empty", session.ErrInvalid, i)
		}
	}
	rows, leave, err := read[target.Rows](ctx, b, c, t, scope.SnapshotRead, "looking up rows")
	if err != nil {
		return nil, err
	}
	defer leave()
	return rows.Lookup(ctx, t, bucket, keys)
}

// LimitScan reads up to limit stored values of a bucket in the order of their keys.
func (b *Broker) LimitScan(ctx context.Context, c Caller, t session.Target, bucket, limit int) ([][]byte, error) {
	if limit < 1 || limit > MaxReadRows {
		return nil, fmt.Errorf("%w: limit %d, want 1 to %d", session.ErrInvalid, limit, MaxReadRows)
	}
	rows, leave, err := read[target.Rows](ctx, b, c, t, scope.SnapshotRead, "reading rows")
	if err != nil {
		return nil, err
	}
	defer leave()
	return rows.LimitScan(ctx, t, bucket, limit)
}

// ListOffsets returns an offset of each bucket's log.
func (b *Broker) ListOffsets(ctx context.Context, c Caller, t session.Target, at target.OffsetSpec) ([]target.BucketOffset, error) {
	rows, leave, err := read[target.Rows](ctx, b, c, t, scope.SnapshotRead, "offsets")
	if err != nil {
		return nil, err
	}
	defer leave()
	return rows.ListOffsets(ctx, t, nil, at)
}

// TableStats returns how many rows each bucket has.
func (b *Broker) TableStats(ctx context.Context, c Caller, t session.Target) ([]target.BucketRows, error) {
	rows, leave, err := read[target.Rows](ctx, b, c, t, scope.SnapshotRead, "table statistics")
	if err != nil {
		return nil, err
	}
	defer leave()
	return rows.TableStats(ctx, t, nil)
}
