package directory

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/session"
)

// recordVersion is the version of every JSON document of this file. Readers refuse
// other versions, unknown keys and trailing content: a record that a newer Sluice
// wrote must not be changed by an older one.
const recordVersion = 1

// ids are the counters of the warehouse: the next ids to give out.
//
//	{"version":1,"next_table_id":n,"next_partition_id":n}
type ids struct {
	Version   int   `json:"version"`
	Table     int64 `json:"next_table_id"`
	Partition int64 `json:"next_partition_id"`
}

// States of a registration.
const (
	active   = "ACTIVE"
	dropping = "DROPPING" // not visible any more; a repeated drop finishes it
)

// registration is a table.
//
//	{"version":1,"database":…,"table":…,"table_id":n,"state":"ACTIVE"|"DROPPING",
//	 "created_time":ms,"modified_time":ms,"schema_id":n,"table_json":{Fluss table descriptor},
//	 "schemas":[{"schema_id":n,"schema_json":{Fluss schema}}…],
//	 "partitions":[{"partition_name":…,"partition_id":n,"state":…}…]}
type registration struct {
	tableRecord
	Schemas    []target.SchemaVersion `json:"schemas"`
	Partitions []partition            `json:"partitions"` // ordered by name
}

// tableRecord is what a list of tables needs of a registration.
type tableRecord struct {
	Version  int             `json:"version"`
	Database string          `json:"database"`
	Name     string          `json:"table"`
	ID       int64           `json:"table_id"`
	State    string          `json:"state"`
	Created  int64           `json:"created_time"`
	Modified int64           `json:"modified_time"`
	SchemaID int32           `json:"schema_id"`
	Table    json.RawMessage `json:"table_json"`
}

type partition struct {
	Name  string `json:"partition_name"`
	ID    int64  `json:"partition_id"`
	State string `json:"state"`
}

// partition returns the index of a partition, or -1.
func (r *registration) partition(name string) int {
	return slices.IndexFunc(r.Partitions, func(p partition) bool { return p.Name == name })
}

// States of a fence.
const (
	fenceNew        = "NEW" // as registered: no session yet, nothing published
	fenceBegun      = "BEGUN"
	fenceCommitting = "COMMITTING"
	fenceCommitted  = "COMMITTED"
	fenceAborted    = "ABORTED"
	fenceDropped    = "DROPPED"
)

// fence is the content of _bulkload/fence; see the package comment.
//
//	{"version":1,"epoch":n,"session_id":uuid,"state":…,"snapshot_id":n,"expires":RFC 3339,
//	 "abort":{"reason":n,"message":…}?,
//	 "published":[{"bucket_id","snapshot_id","log_offset","metadata_path"}…]?}
//
// snapshot_id is -1 when no session got as far as having one. published exists
// exactly in COMMITTED, ordered by bucket. In NEW, which every target begins with,
// the epoch is 0, session_id empty, snapshot_id -1 and expires 0001-01-01T00:00:00Z.
type fence struct {
	Version    int               `json:"version"`
	Epoch      int64             `json:"epoch"`
	SessionID  string            `json:"session_id"`
	State      string            `json:"state"`
	SnapshotID int64             `json:"snapshot_id"`
	Expires    time.Time         `json:"expires"` // a BEGUN fence that nobody aborted may be taken over then
	Abort      *session.Abort    `json:"abort,omitempty"`
	Published  []target.Snapshot `json:"published,omitempty"`
}

// owns reports whether a session holds the target.
func (f *fence) owns(now time.Time) bool {
	return f.State == fenceCommitting || f.State == fenceBegun && now.Before(f.Expires)
}

func decodeFence(b []byte) (*fence, error) {
	var f fence
	if err := document.Decode(b, &f, &f.Version, recordVersion); err != nil {
		return nil, fmt.Errorf("fence: %w", err)
	}
	states := []string{fenceNew, fenceBegun, fenceCommitting, fenceCommitted, fenceAborted, fenceDropped}
	if !slices.Contains(states, f.State) || f.Epoch < 0 || f.SnapshotID < -1 ||
		(f.State == fenceCommitted) != (len(f.Published) > 0) ||
		f.State == fenceNew && (f.Epoch != 0 || f.SessionID != "" || f.SnapshotID != -1) {
		return nil, fmt.Errorf("fence: state %q, epoch %d, snapshot id %d, %d published", f.State, f.Epoch, f.SnapshotID, len(f.Published))
	}
	return &f, nil
}

// unparsed skips a value: it must be JSON, no more is looked at.
type unparsed struct{}

func (*unparsed) UnmarshalJSON([]byte) error { return nil }

// decodeTableRecord reads a registration without its schemas and partitions.
func decodeTableRecord(b []byte) (*tableRecord, error) {
	var r struct {
		tableRecord
		Schemas    unparsed `json:"schemas"`
		Partitions unparsed `json:"partitions"`
	}
	if err := document.Decode(b, &r, &r.Version, recordVersion); err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	return &r.tableRecord, nil
}

func decodeRegistration(b []byte) (*registration, error) {
	var r registration
	if err := document.Decode(b, &r, &r.Version, recordVersion); err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	return &r, nil
}
