// Package target defines what a session does to the world. A driver freezes a
// target at Begin, wins the decision, and publishes committed files; drivers live
// in subpackages (directory: a warehouse without a cluster).
//
// Every step may be repeated: a broker that died is replaced by one that calls the
// same method with the same record.
package target

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// ErrDamaged: something that must be stored for a target is not there, so that what
// was published cannot be known. The error names the object and what to do.
var ErrDamaged = errors.New("the target is damaged")

// ErrStuck: a decided session cannot be published as things are, and repeating alone does
// not help. The error says what is in the way and what can be done.
var ErrStuck = errors.New("the publication is stuck")

// Capabilities are facts about a driver that shape a session's plan.
type Capabilities struct {
	Name        string             // "directory", "fluss"
	LogOffset   string             // session.Plan.LogOffset
	Publication string             // session.Plan.Publication
	HandOvers   []session.HandOver // those Begin can plan
	// Defaults are what options that a caller leaves open become.
	Defaults session.Options
}

// Table is a table as the driver knows it.
type Table struct {
	Database   string          `json:"database"`
	Name       string          `json:"table"`
	ID         int64           `json:"table_id"`
	SchemaID   int32           `json:"schema_id"`
	Descriptor json.RawMessage `json:"table_json"`    // Fluss table descriptor JSON
	Created    int64           `json:"created_time"`  // ms
	Modified   int64           `json:"modified_time"` // ms
	RemoteDir  string          `json:"remote_data_dir"`
}

// Partition is one partition of a table.
type Partition struct {
	Name string `json:"partition_name"`
	ID   int64  `json:"partition_id"`
}

// Resolved is a target before it is fenced.
type Resolved struct {
	// Missing: it does not exist, and the options say what to do about that. Of a
	// missing table only the names are known.
	Missing   bool
	Table     Table
	Partition *Partition
	// Epoch is the highest epoch the target has seen; the next session takes Epoch+1.
	Epoch int64
}

// Frozen is a fenced, empty target: what EventReady writes into the record.
type Frozen struct {
	Table       Table
	Partition   *Partition
	SnapshotIDs []int64 // position = bucket
	Plan        session.Plan
}

// Snapshot names one KV snapshot of a bucket.
type Snapshot struct {
	Bucket       int    `json:"bucket_id"`
	ID           int64  `json:"snapshot_id"`
	LogOffset    int64  `json:"log_offset"`
	MetadataPath string `json:"metadata_path"` // absolute URI
}

// Driver is one kind of target. Methods are safe for concurrent use; errors wrap
// the kinds of package session.
type Driver interface {
	Capabilities() Capabilities

	// Resolve describes a target for a load with these options, which Capabilities'
	// defaults have completed. It has no side effect. Missing tables and partitions are
	// session.ErrTargetNotFound unless the options say what to do about them; tables
	// that must not be bulk loaded, and options that cannot be kept, are
	// session.ErrTargetRefused with the reason.
	Resolve(ctx context.Context, t session.Target, o session.Options) (Resolved, error)

	// Begin fences the target for the session (epoch and id from s), proves it
	// empty and freezes it, with a plan for the session's hand-over. Idempotent per session id. session.ErrTargetOwned
	// when another session holds the fence, session.ErrTargetNotEmpty when there
	// is content, session.ErrStaleEpoch when the fence is at or above s.Epoch.
	Begin(ctx context.Context, s session.Session) (Frozen, error)

	// Decide wins the commit decision in the fence, before the store records it.
	// Idempotent; session.ErrStaleEpoch or ErrEnded when the fence has moved on.
	Decide(ctx context.Context, s session.Session) error

	// Publish makes every bucket visible. Forward only, idempotent. *Lost when that has
	// become impossible for good; the fence has then been given back.
	Publish(ctx context.Context, s session.Session) error

	// Abort gives the target back. Idempotent; ErrWrongState once decided.
	Abort(ctx context.Context, s session.Session) error

	// Objects is the store behind a session's remote directory, and Key turns an
	// absolute URI below remoteDir into a key of it.
	Objects() objstore.Store
	Key(uri string) (string, error)
}

// Yielding is a driver whose publication can get stuck in a way that only an operator can
// judge.
type Yielding interface {
	// GiveUp ends a decided session without publishing what is left, and gives its fence
	// back. What was published stays; the message says what that is. Idempotent;
	// ErrWrongState when the session is not decided or is published.
	GiveUp(ctx context.Context, s session.Session) (message string, err error)
}

// Droppable is a driver whose targets others can drop while a session holds them. What
// a session has stored for its target may be deleted with it.
type Droppable interface {
	// Gone reports whether a session's target is not there any more; one that is yet to
	// come into being is not gone. What is gone never comes back.
	Gone(ctx context.Context, s session.Session) (bool, error)
}

// Lost is what Publish returns for a decided session that can never be published (any
// further). Cause, if any, is the error that showed it.
type Lost struct {
	Abort session.Abort
	Cause error
}

// Error implements error.
func (e *Lost) Error() string { return fmt.Sprintf("%v: %s", e.Abort.Reason, e.Abort.Message) }

// Unwrap returns the cause.
func (e *Lost) Unwrap() error { return e.Cause }

// Catalog lists and changes tables, for drivers that own theirs.
type Catalog interface {
	CreateTable(ctx context.Context, database, table string, descriptor json.RawMessage) (Table, error)
	DropTable(ctx context.Context, database, table string) error
	GetTable(ctx context.Context, database, table string) (Table, error)
	ListTables(ctx context.Context, database string) ([]Table, error) // "" = every database
	CreatePartition(ctx context.Context, database, table, partition string) (Partition, error)
	DropPartition(ctx context.Context, database, table, partition string) error
	ListPartitions(ctx context.Context, database, table string) ([]Partition, error)
	// Schema returns one schema of a table's history as Fluss schema JSON.
	Schema(ctx context.Context, database, table string, schemaID int32) (json.RawMessage, error)
	Schemas(ctx context.Context, database, table string) ([]SchemaVersion, error)
}

// SchemaVersion is one entry of a table's schema history.
type SchemaVersion struct {
	ID   int32           `json:"schema_id"`
	JSON json.RawMessage `json:"schema_json"`
}

// Snapshots reads published KV snapshots.
type Snapshots interface {
	// LatestKVSnapshots returns the newest visible snapshot of each bucket;
	// buckets without one are absent.
	LatestKVSnapshots(ctx context.Context, t session.Target) (Resolved, []Snapshot, error)
	// KVSnapshotMetadata returns the verbatim _METADATA of one visible snapshot.
	KVSnapshotMetadata(ctx context.Context, t session.Target, bucket int, snapshotID int64) (json.RawMessage, error)
}

// Ended is what Begin and Decide return for a session whose fence was given back
// before: it tells the reason that the fence kept. It matches session.ErrEnded.
type Ended struct{ Abort session.Abort }

// Error implements error.
func (e *Ended) Error() string {
	return fmt.Sprintf("%v: the fence was given back (%v)", session.ErrEnded, e.Abort.Reason)
}

// Unwrap makes errors.Is(err, session.ErrEnded) true.
func (e *Ended) Unwrap() error { return session.ErrEnded }

// Now is the clock type drivers take.
type Now func() time.Time
