package api

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/session"
)

// This file turns domain values into wire types and back. It decides nothing.

func targetOf(t v1.Target) session.Target {
	return session.Target{Database: t.Database, Table: t.Table, Partition: t.Partition}
}

func wireTarget(t session.Target) v1.Target {
	return v1.Target{Database: t.Database, Table: t.Table, Partition: t.Partition}
}

// parseTarget reads database.table[/partition]. Database names hold no dot and
// table names no slash, so each text has one reading; the driver checks the names.
func parseTarget(s string) (session.Target, error) {
	db, rest, ok := strings.Cut(s, ".")
	table, partition, hasPartition := strings.Cut(rest, "/")
	if !ok || db == "" || table == "" || hasPartition && partition == "" {
		return session.Target{}, invalid("target %q is not of the form database.table[/partition]", clip(s))
	}
	return session.Target{Database: db, Table: table, Partition: partition}, nil
}

func wireSession(s session.Session) v1.Session {
	w := v1.Session{
		ID: s.ID, SubmissionID: s.SubmissionID, Target: wireTarget(s.Target), Epoch: s.Epoch,
		State: s.State.String(), Phase: string(s.Phase()), Buckets: len(s.SnapshotIDs), Creator: s.Creator.Subject,
		Created: s.Created, Updated: s.Updated, BuildDeadline: s.BuildDeadline,
		DecisionDeadline: s.DecisionDeadline, ResultExpires: s.ResultExpires, ValidationError: s.ValidationError,
	}
	w.HandOver, w.KeysLiveUntil = string(s.HandOver.Effective()), s.KeysAliveUntil
	w.Options = wireOptions(s.Options)
	if v := s.Verification; v != nil {
		w.Verification = &v1.Verification{Due: v.Due, Done: v.Done, Error: v.Error}
	}
	if m := s.Manifest; m != nil {
		w.Manifest = &v1.ObjectRef{Path: m.Path, Length: m.Length, SHA256: m.SHA256}
	}
	if st := s.Stats; st != nil {
		w.Stats = &v1.Stats{Rows: st.Rows, Files: st.Files, Bytes: st.Bytes}
	}
	if a := s.AbortInfo; a != nil {
		w.AbortReason, w.AbortMessage = a.Reason.String(), a.Message
	}
	return w
}

func optionsOf(o v1.LoadOptions) (session.Options, error) {
	table, err := session.CompactJSON(o.TableJSON)
	return session.Options{
		Publication: o.Publication, Visibility: session.Visibility(o.Visibility), Missing: session.Missing(o.Missing),
		ReplaceEmpty: o.ReplaceEmpty, RemoveCreated: o.RemoveCreated, TableJSON: table,
	}, err
}

// wireOptions leaves the descriptor out: it is large, and once the table exists its own
// counts.
func wireOptions(o session.Options) *v1.LoadOptions {
	if o == (session.Options{}) {
		return nil
	}
	return &v1.LoadOptions{
		Publication: o.Publication, Visibility: string(o.Visibility), Missing: string(o.Missing),
		ReplaceEmpty: o.ReplaceEmpty, RemoveCreated: o.RemoveCreated,
	}
}

// wireContext is the build context of a session, nil while it has none: before the
// target is frozen and after the end.
func (srv *Server) wireContext(s session.Session) *v1.BuildContext {
	if s.Terminal() || len(s.SnapshotIDs) == 0 {
		return nil
	}
	c := &v1.BuildContext{
		Version: 1,
		Handle:  v1.Handle{Target: wireTarget(s.Target), TableID: s.TableID, PartitionID: s.PartitionID, BulkLoadID: s.ID},
		Epoch:   s.Epoch, SchemaID: s.SchemaID, Table: s.TableJSON,
		CreatedTime: s.TableCreated, ModifiedTime: s.TableModified,
		RemoteDataDir: s.RemoteDataDir, SnapshotIDs: s.SnapshotIDs,
		Plan: v1.Plan{
			UploadRoot: s.Plan.UploadRoot, FinalRoot: s.Plan.FinalRoot, ManifestPath: s.Plan.ManifestPath,
			Publication: s.Plan.Publication, HandOver: string(s.Plan.HandOver), LogOffset: s.Plan.LogOffset,
			Visibility: string(s.Plan.Visibility),
			Fence:      s.Plan.Fence,
		},
	}
	if srv.signer != nil {
		c.SignedURL = srv.signer.BaseURL()
	}
	return c
}

func wireTable(t target.Table) v1.Table {
	return v1.Table{
		Database: t.Database, Table: t.Name, TableID: t.ID, SchemaID: t.SchemaID, TableJSON: t.Descriptor,
		CreatedTime: t.Created, ModifiedTime: t.Modified, RemoteDataDir: t.RemoteDir,
	}
}

func wirePartitions(ps []target.Partition) []v1.Partition {
	out := make([]v1.Partition, 0, len(ps))
	for _, p := range ps {
		out = append(out, v1.Partition{Name: p.Name, ID: p.ID})
	}
	return out
}

func wireKVSnapshots(k broker.KVSnapshots) v1.KVSnapshots {
	w := v1.KVSnapshots{
		Target: wireTarget(k.Target), TableID: k.Resolved.Table.ID, Buckets: k.Buckets,
		Snapshots: make([]v1.KVSnapshot, 0, len(k.Snapshots)),
	}
	if p := k.Resolved.Partition; p != nil {
		w.PartitionID = &p.ID
	}
	for _, s := range k.Snapshots {
		w.Snapshots = append(w.Snapshots, v1.KVSnapshot{BucketID: s.Bucket, SnapshotID: s.ID, LogOffset: s.LogOffset, MetadataPath: s.MetadataPath})
	}
	return w
}

func wireKVSnapshotMetadata(k broker.KVSnapshotMetadata) v1.KVSnapshotMetadata {
	w := v1.KVSnapshotMetadata{
		BucketID: k.Snapshot.Bucket, SnapshotID: k.Snapshot.ID, LogOffset: k.Snapshot.LogOffset,
		RowCount: k.RowCount, Metadata: k.Metadata, Files: make([]v1.KVFile, 0, len(k.Files)),
	}
	for _, f := range k.Files {
		w.Files = append(w.Files, v1.KVFile{LocalPath: f.LocalPath, Path: f.Path, Size: f.Size, Shared: f.Shared})
	}
	return w
}

func wireIntrospection(i broker.Introspection) v1.Introspection {
	if !i.Active {
		return v1.Introspection{}
	}
	c := i.Claims
	t := wireTarget(c.Target)
	return v1.Introspection{
		Active: true, Scope: c.Scope, Subject: c.Subject, Issuer: c.Issuer, Audience: []string{c.Audience},
		Expires: c.Expires.Unix(), IssuedAt: c.IssuedAt.Unix(), NotBefore: c.NotBefore.Unix(), ID: c.ID,
		TokenType: tokenTypeBearer, Session: c.SessionID, Epoch: c.Epoch, Target: &t,
		Policy: c.PolicyRevision, DecisionID: c.DecisionID,
	}
}

// param is a path parameter, decoded exactly once: chi matches the raw path when
// there is one.
func param(r *http.Request, name string) (string, error) {
	v := chi.URLParam(r, name)
	if r.URL.RawPath != "" {
		d, err := url.PathUnescape(v)
		if err != nil {
			return "", invalid("%s: %v", name, err)
		}
		v = d
	}
	return v, nil
}

// params reads several path parameters.
func params(r *http.Request, names ...string) ([]string, error) {
	out := make([]string, len(names))
	for i, n := range names {
		v, err := param(r, n)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// queryOf reads a query strictly: only the names given, each at most once unless
// it ends in "*".
func queryOf(r *http.Request, names ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("the query is malformed")
	}
	for name, values := range q {
		known, many := false, false
		for _, n := range names {
			base, star := strings.CutSuffix(n, "*")
			if base == name {
				known, many = true, star
			}
		}
		if !known {
			return nil, invalid("unknown query parameter %q", clip(name))
		}
		if len(values) > 1 && !many {
			return nil, invalid("query parameter %q appears twice", clip(name))
		}
	}
	return q, nil
}

// number reads a decimal query or path value of at least low.
func number(name, v string, low int64) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < low {
		return 0, invalid("%s %q is not a number of at least %d", name, clip(v), low)
	}
	return n, nil
}
