package flussdirect

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder/scan"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// This file is what a Sluice server would answer, asked of the cluster.

// service is what scans ask, which do not need to know where _METADATA lies.
type service struct{ *Client }

var _ scan.Service = service{}

// LatestKVSnapshots implements scan.Service.
func (s service) LatestKVSnapshots(ctx context.Context, t Target) (*v1.KVSnapshots, error) {
	return s.latest(ctx, t)
}

// Error is a cluster's refusal with the code that a Sluice server would give it.
type Error struct {
	Code string // of package v1
	Err  error
}

// Error says what was refused.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what the cluster said.
func (e *Error) Unwrap() error { return e.Err }

// ProblemCode is Code.
func (e *Error) ProblemCode() string { return e.Code }

func refuse(code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// absent reports a refusal that says that names or ids are of nothing.
func absent(err error) bool {
	switch client.CodeOf(err) {
	case client.CodeTableNotExist, client.CodeDatabaseNotExist, client.CodePartitionNotExist, client.CodeUnknownTableOrBucket,
		client.CodeKVSnapshotNotExist, client.CodeLakeSnapshotNotExist, client.CodeTableNotPartitioned, client.CodeSchemaNotExist:
		return true
	}
	return errors.Is(err, objstore.ErrNotFound)
}

// coded gives an error its code, if there is one.
func coded(err error) error {
	var refused *client.Error
	var own *Error
	switch {
	case err == nil, errors.As(err, &own):
		return err
	case absent(err):
		return &Error{v1.CodeNotFound, err}
	case errors.Is(err, client.ErrUnsupported), client.CodeOf(err) == client.CodeLakeNotConfigured:
		return &Error{v1.CodeNotOffered, err}
	case errors.Is(err, client.ErrLogTable), client.CodeOf(err) == client.CodeNotPrimaryKeyTable:
		return &Error{v1.CodeTargetRefused, err}
	case client.CodeOf(err) == client.CodeAuthentication:
		return &Error{v1.CodeUnauthenticated, err}
	case client.CodeOf(err) == client.CodeAuthorization:
		return &Error{v1.CodeDenied, err}
	case errors.Is(err, client.ErrUnreachable), errors.Is(err, client.ErrNoAnswer), errors.As(err, &refused) && refused.Code.Retriable():
		return &Error{v1.CodeClusterUnavailable, err}
	}
	return err
}

func pathOf(t Target) client.TablePath {
	return client.TablePath{Database: t.Database, Table: t.Table}
}

// maxPhysical bounds the targets that are remembered.
const maxPhysical = 4096

// on calls with the ids of a target, and once more when remembered ones are over: a
// table or partition of that name may have been made anew.
func (c *Client) on(ctx context.Context, t Target, call func(client.Physical) error) error {
	c.mu.Lock()
	p, remembered := c.physical[t]
	c.mu.Unlock()
	for {
		var err error
		if !remembered {
			p, err = c.client.Resolve(ctx, pathOf(t), t.Partition)
		}
		if err == nil {
			err = call(p)
		}
		c.mu.Lock()
		switch {
		case err == nil:
			if len(c.physical) >= maxPhysical {
				clear(c.physical)
			}
			c.physical[t] = p
		case absent(err):
			delete(c.physical, t)
		}
		c.mu.Unlock()
		if !remembered || !absent(err) {
			return coded(err)
		}
		remembered = false
	}
}

// Tables lists the tables of a database.
func (c *Client) Tables(ctx context.Context, database string) ([]string, error) {
	names, err := c.client.Tables(ctx, database)
	return names, coded(err)
}

// Table describes a table with its partitions and schema history.
func (c *Client) Table(ctx context.Context, database, table string) (*v1.Table, error) {
	p := client.TablePath{Database: database, Table: table}
	info, err := c.client.TableInfo(ctx, p)
	if err != nil {
		return nil, coded(err)
	}
	out := &v1.Table{
		Database: database, Table: table, TableID: info.ID, SchemaID: info.SchemaID, TableJSON: info.JSON,
		CreatedTime: info.Created.UnixMilli(), ModifiedTime: info.Modified.UnixMilli(), RemoteDataDir: info.RemoteDataDir,
	}
	if len(info.Table.PartitionKey) > 0 {
		partitions, err := c.client.Partitions(ctx, p)
		if err != nil {
			return nil, coded(err)
		}
		for _, part := range partitions {
			out.Partitions = append(out.Partitions, v1.Partition{Name: part.Name, ID: part.ID})
		}
	}
	for id := int32(1); id <= info.SchemaID; id++ { // they count without gaps
		s := info.Table.Schema
		if id < info.SchemaID {
			if _, s, err = c.client.Schema(ctx, p, id); err != nil {
				return nil, coded(err)
			}
		}
		out.Schemas = append(out.Schemas, v1.SchemaVersion{SchemaID: id, SchemaJSON: s.AppendJSON(nil)})
	}
	return out, nil
}

// LatestKVSnapshots returns the newest snapshot of each bucket; buckets without one are
// absent.
func (c *Client) LatestKVSnapshots(ctx context.Context, t Target) (*v1.KVSnapshots, error) {
	out, err := c.latest(ctx, t)
	if err != nil {
		return nil, err
	}
	for i := range out.Snapshots {
		s := &out.Snapshots[i]
		err := c.on(ctx, t, func(p client.Physical) error {
			m, err := c.client.KVSnapshotMetadata(ctx, p.Bucket(int32(s.BucketID)), s.SnapshotID)
			if err == nil {
				s.MetadataPath, err = metadataURI(m)
			}
			return err
		})
		if err != nil && !absent(err) {
			return nil, fmt.Errorf("bucket %d, snapshot %d: %w", s.BucketID, s.SnapshotID, err)
		}
	}
	return out, nil
}

// latest leaves out where _METADATA lies, which takes a question for each bucket.
func (c *Client) latest(ctx context.Context, t Target) (*v1.KVSnapshots, error) {
	got, err := c.client.LatestKVSnapshots(ctx, pathOf(t), t.Partition)
	switch client.CodeOf(err) {
	case client.CodePartitionNotExist, client.CodeInvalidPartition:
		if t.Partition == "" {
			return nil, refuse(v1.CodeTargetRefused, "%s is partitioned: name one partition", t)
		}
	}
	if err != nil {
		return nil, coded(err)
	}
	out := &v1.KVSnapshots{Target: t, TableID: got.Physical.TableID, PartitionID: got.Physical.PartitionID, Buckets: len(got.Buckets), Snapshots: []v1.KVSnapshot{}}
	for _, b := range got.Buckets {
		if b.Exists {
			out.Snapshots = append(out.Snapshots, v1.KVSnapshot{BucketID: int(b.Bucket), SnapshotID: b.ID, LogOffset: b.LogOffset})
		}
	}
	return out, nil
}

// KVSnapshotMetadata returns one snapshot of a bucket, read from the store; a nil id
// means the newest.
func (c *Client) KVSnapshotMetadata(ctx context.Context, t Target, bucket int, snapshotID *int64) (*v1.KVSnapshotMetadata, error) {
	if snapshotID == nil {
		latest, err := c.latest(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, s := range latest.Snapshots {
			if s.BucketID == bucket {
				snapshotID = &s.SnapshotID
			}
		}
		if snapshotID == nil {
			return nil, refuse(v1.CodeNotFound, "bucket %d of %s has no snapshot", bucket, t)
		}
	}
	var out *v1.KVSnapshotMetadata
	err := c.on(ctx, t, func(p client.Physical) (err error) {
		out, err = c.metadata(ctx, p, bucket, *snapshotID)
		return err
	})
	return out, err
}

func (c *Client) metadata(ctx context.Context, p client.Physical, bucket int, id int64) (*v1.KVSnapshotMetadata, error) {
	told, err := c.client.KVSnapshotMetadata(ctx, p.Bucket(int32(bucket)), id)
	if err != nil {
		return nil, err
	}
	uri, err := metadataURI(told)
	if err != nil {
		return nil, err
	}
	raw, err := (&tableFiles{c: c, ctx: ctx, physical: p}).read(ctx, uri)
	if err != nil {
		return nil, err
	}
	m, err := snapshot.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", uri, err)
	}
	out := &v1.KVSnapshotMetadata{BucketID: bucket, SnapshotID: id, LogOffset: told.LogOffset, RowCount: m.RowCount, Metadata: raw}
	for _, f := range m.Private {
		out.Files = append(out.Files, v1.KVFile{LocalPath: f.LocalPath, Path: f.Path, Size: f.Size})
	}
	for _, f := range m.Shared {
		out.Files = append(out.Files, v1.KVFile{LocalPath: f.LocalPath, Path: f.Path, Size: f.Size, Shared: true})
	}
	return out, nil
}

// AcquireLease keeps snapshots from being deleted, or renews a lease (0.9).
func (c *Client) AcquireLease(ctx context.Context, t Target, req v1.LeaseRequest) (*v1.Lease, error) {
	out := &v1.Lease{LeaseID: req.LeaseID, Unavailable: []v1.SnapshotRef{}}
	d := time.Duration(req.DurationMS) * time.Millisecond
	err := c.on(ctx, t, func(p client.Physical) error {
		refs := make([]client.SnapshotRef, len(req.Snapshots))
		for i, s := range req.Snapshots {
			refs[i] = client.SnapshotRef{Bucket: p.Bucket(int32(s.BucketID)), SnapshotID: s.SnapshotID}
		}
		out.Expires, out.Unavailable = time.Now().Add(d).UTC(), []v1.SnapshotRef{}
		gone, err := c.client.AcquireLease(ctx, req.LeaseID, d, refs)
		for _, u := range gone {
			out.Unavailable = append(out.Unavailable, v1.SnapshotRef{BucketID: int(u.Bucket.Bucket), SnapshotID: u.SnapshotID})
		}
		return err
	})
	return out, err
}

// ReleaseLease gives a lease up.
func (c *Client) ReleaseLease(ctx context.Context, _ Target, lease string) error {
	return coded(c.client.DropLease(ctx, lease))
}

// Lookup reads stored rows of a bucket by their encoded keys. OpenTable has one for
// values.
func (c *Client) Lookup(ctx context.Context, t Target, req v1.LookupRequest) (*v1.Values, error) {
	out := &v1.Values{}
	err := c.on(ctx, t, func(p client.Physical) (err error) {
		out.Values, err = c.client.Lookup(ctx, p, int32(req.BucketID), req.Keys)
		return err
	})
	return out, err
}

// LimitScan reads up to limit stored rows of a bucket in the order of their keys.
func (c *Client) LimitScan(ctx context.Context, t Target, bucket, limit int) (*v1.Values, error) {
	out := &v1.Values{}
	err := c.on(ctx, t, func(p client.Physical) (err error) {
		out.Values, err = c.client.LimitScan(ctx, p, int32(bucket), int32(limit))
		return err
	})
	return out, err
}

// buckets are the numbers of a target's buckets.
func (c *Client) buckets(ctx context.Context, t Target) ([]int32, error) {
	_, all, err := c.client.Buckets(ctx, pathOf(t), t.Partition)
	if err != nil {
		return nil, coded(err)
	}
	ids := make([]int32, len(all))
	for i, b := range all {
		ids[i] = b.ID
	}
	return ids, nil
}

// ListOffsets returns an offset of each bucket's log: v1.OffsetsLatest,
// v1.OffsetsEarliest, or a time in RFC 3339, for the first record that is not older.
func (c *Client) ListOffsets(ctx context.Context, t Target, at string) (*v1.Offsets, error) {
	spec := client.LatestOffset
	switch at {
	case v1.OffsetsLatest:
	case v1.OffsetsEarliest:
		spec = client.EarliestOffset
	default:
		when, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return nil, refuse(v1.CodeInvalidRequest, "offsets at %q: %w", at, err)
		}
		spec = client.OffsetAt(when)
	}
	ids, err := c.buckets(ctx, t)
	if err != nil {
		return nil, err
	}
	out := &v1.Offsets{Target: t}
	err = c.on(ctx, t, func(p client.Physical) error {
		out.Buckets = []v1.BucketOffset{}
		got, err := c.client.ListOffsets(ctx, p, ids, spec)
		for i := range got {
			out.Buckets = append(out.Buckets, v1.BucketOffset{BucketID: int(ids[i]), LogOffset: got[i]})
		}
		return err
	})
	return out, err
}

// TableStats returns how many rows each bucket has now (0.9).
func (c *Client) TableStats(ctx context.Context, t Target) (*v1.TableStats, error) {
	ids, err := c.buckets(ctx, t)
	if err != nil {
		return nil, err
	}
	out := &v1.TableStats{Target: t}
	err = c.on(ctx, t, func(p client.Physical) error {
		out.Buckets = []v1.BucketStats{}
		for _, b := range ids {
			n, err := c.client.TableStats(ctx, p, b)
			if err != nil {
				return err
			}
			s := v1.BucketStats{BucketID: int(b)}
			if n.Known {
				s.RowCount = &n.Rows
			}
			out.Buckets = append(out.Buckets, s)
		}
		return nil
	})
	return out, err
}

// GetLatestLakeSnapshot returns the newest lake snapshot of a target: up to which log
// offsets the lake holds it. Of a partition its own offsets are told only.
func (c *Client) GetLatestLakeSnapshot(ctx context.Context, t Target) (*v1.LakeSnapshot, error) {
	s, err := c.client.LatestLakeSnapshot(ctx, pathOf(t))
	return lake(t, s, err)
}

// GetLakeSnapshot returns a lake snapshot by the lake's own id (0.9). Clusters keep few.
func (c *Client) GetLakeSnapshot(ctx context.Context, t Target, id int64) (*v1.LakeSnapshot, error) {
	s, err := c.client.LakeSnapshot(ctx, pathOf(t), id)
	return lake(t, s, err)
}

// GetReadableLakeSnapshot returns the newest lake snapshot that can be read together
// with the log behind its offsets (0.9).
func (c *Client) GetReadableLakeSnapshot(ctx context.Context, t Target) (*v1.LakeSnapshot, error) {
	s, err := c.client.ReadableLakeSnapshot(ctx, pathOf(t))
	return lake(t, s, err)
}

func lake(t Target, s client.LakeSnapshot, err error) (*v1.LakeSnapshot, error) {
	if err != nil {
		return nil, coded(fmt.Errorf("lake snapshot of %s: %w", t, err))
	}
	out := &v1.LakeSnapshot{Target: t, TableID: s.TableID, SnapshotID: s.SnapshotID, Buckets: []v1.LakeOffset{}}
	for _, b := range s.Buckets {
		if t.Partition == "" || t.Partition == b.PartitionName {
			out.Buckets = append(out.Buckets, v1.LakeOffset{PartitionID: b.PartitionID, PartitionName: b.PartitionName, BucketID: int(b.Bucket), LogOffset: b.LogOffset})
		}
	}
	return out, nil
}
