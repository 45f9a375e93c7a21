package api

import (
	"net/http"
	"net/url"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/session"
)

// readTarget is a table of the path with the partition of the query, and the query's
// other parameters.
func (s *Server) readTarget(r *http.Request, others ...string) (session.Target, url.Values, error) {
	db, table, err := s.table(r)
	if err != nil {
		return session.Target{}, nil, err
	}
	q, err := queryOf(r, append(others, "partition")...)
	if err != nil {
		return session.Target{}, nil, err
	}
	t := session.Target{Database: db, Table: table, Partition: q.Get("partition")}
	eventOf(r.Context()).target = clip(t.String())
	return t, q, nil
}

func (s *Server) lakeSnapshot(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, q, err := s.readTarget(r, "id", "readable")
	if err != nil {
		return err
	}
	var which target.LakeSelection
	if q.Has("id") {
		id, err := number("id", q.Get("id"), 0)
		if err != nil {
			return err
		}
		which.ID = &id
	}
	if q.Has("readable") {
		switch q.Get("readable") {
		case "true", "": // ?readable
			which.Readable = true
		case "false":
		default:
			return invalid("readable %q is neither true nor false", clip(q.Get("readable")))
		}
	}
	got, err := s.broker.LakeSnapshot(r.Context(), c, t, which)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusOK, wireLake(t, got))
	return nil
}

func wireLake(t session.Target, s target.LakeSnapshot) v1.LakeSnapshot {
	out := v1.LakeSnapshot{Target: wireTarget(t), TableID: s.TableID, SnapshotID: s.SnapshotID, Buckets: make([]v1.LakeOffset, 0, len(s.Buckets))}
	for _, b := range s.Buckets {
		o := v1.LakeOffset{BucketID: b.Bucket, LogOffset: b.LogOffset}
		if b.Partition != nil {
			o.PartitionID, o.PartitionName = &b.Partition.ID, b.Partition.Name
		}
		out.Buckets = append(out.Buckets, o)
	}
	return out
}

func (s *Server) acquireLease(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, _, err := s.readTarget(r)
	if err != nil {
		return err
	}
	var req v1.LeaseRequest
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	if req.DurationMS < 0 || req.DurationMS > int64(broker.MaxLease/time.Millisecond) {
		return invalid("duration_ms %d: a lease lasts at most %s", req.DurationMS, broker.MaxLease)
	}
	ask := broker.LeaseRequest{ID: req.LeaseID, Duration: time.Duration(req.DurationMS) * time.Millisecond}
	for _, ref := range req.Snapshots {
		ask.Snapshots = append(ask.Snapshots, target.SnapshotRef{Bucket: ref.BucketID, ID: ref.SnapshotID})
	}
	got, err := s.broker.AcquireLease(r.Context(), c, t, ask)
	if err != nil {
		return err
	}
	out := v1.Lease{LeaseID: req.LeaseID, Expires: got.Expires, Unavailable: []v1.SnapshotRef{}}
	for _, u := range got.Unavailable {
		out.Unavailable = append(out.Unavailable, v1.SnapshotRef{BucketID: u.Bucket, SnapshotID: u.ID})
	}
	writeJSON(w, r, http.StatusOK, out)
	return nil
}

func (s *Server) releaseLease(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, _, err := s.readTarget(r)
	if err != nil {
		return err
	}
	lease, err := param(r, "lease")
	if err != nil {
		return err
	}
	if err := s.broker.ReleaseLease(r.Context(), c, t, lease); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) lookup(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, _, err := s.readTarget(r)
	if err != nil {
		return err
	}
	var req v1.LookupRequest
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	values, err := s.broker.Lookup(r.Context(), c, t, req.BucketID, req.Keys)
	if err != nil {
		return err
	}
	writeValues(w, r, values)
	return nil
}

func (s *Server) rows(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, q, err := s.readTarget(r, "bucket", "limit")
	if err != nil {
		return err
	}
	bucket, err := number("bucket", q.Get("bucket"), 0)
	if err != nil {
		return err
	}
	limit, err := number("limit", q.Get("limit"), 1)
	if err != nil {
		return err
	}
	if bucket > maxBucket || limit > v1.MaxRows {
		return invalid("bucket %d or limit %d is too large: a request reads at most %d rows", bucket, limit, v1.MaxRows)
	}
	values, err := s.broker.LimitScan(r.Context(), c, t, int(bucket), int(limit))
	if err != nil {
		return err
	}
	writeValues(w, r, values)
	return nil
}

func writeValues(w http.ResponseWriter, r *http.Request, values [][]byte) {
	if values == nil {
		values = [][]byte{}
	}
	writeJSON(w, r, http.StatusOK, v1.Values{Values: values})
}

func (s *Server) offsets(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, q, err := s.readTarget(r, "at")
	if err != nil {
		return err
	}
	var at target.OffsetSpec
	switch v := q.Get("at"); v {
	case "", v1.OffsetsLatest:
	case v1.OffsetsEarliest:
		at.Earliest = true
	default:
		if at.At, err = time.Parse(time.RFC3339, v); err != nil {
			return invalid("at %q is neither %s nor %s nor a time of RFC 3339", clip(v), v1.OffsetsLatest, v1.OffsetsEarliest)
		}
	}
	got, err := s.broker.ListOffsets(r.Context(), c, t, at)
	if err != nil {
		return err
	}
	out := v1.Offsets{Target: wireTarget(t), Buckets: make([]v1.BucketOffset, 0, len(got))}
	for _, b := range got {
		out.Buckets = append(out.Buckets, v1.BucketOffset{BucketID: b.Bucket, LogOffset: b.Offset})
	}
	writeJSON(w, r, http.StatusOK, out)
	return nil
}

func (s *Server) stats(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, _, err := s.readTarget(r)
	if err != nil {
		return err
	}
	got, err := s.broker.TableStats(r.Context(), c, t)
	if err != nil {
		return err
	}
	out := v1.TableStats{Target: wireTarget(t), Buckets: make([]v1.BucketStats, 0, len(got))}
	for _, b := range got {
		out.Buckets = append(out.Buckets, v1.BucketStats{BucketID: b.Bucket, RowCount: b.Rows})
	}
	writeJSON(w, r, http.StatusOK, out)
	return nil
}

func (s *Server) schemas(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	db, table, err := s.table(r)
	if err != nil {
		return err
	}
	d, err := s.broker.GetTable(r.Context(), c, db, table)
	if err != nil {
		return err
	}
	out := v1.SchemaList{Schemas: make([]v1.SchemaVersion, 0, len(d.Schemas))}
	for _, v := range d.Schemas {
		out.Schemas = append(out.Schemas, v1.SchemaVersion{SchemaID: v.ID, SchemaJSON: v.JSON})
	}
	writeJSON(w, r, http.StatusOK, out)
	return nil
}
