package session

import (
	"encoding/json"
	"time"
)

// State is the visible state of a session. The numeric codes are those of the
// upstream bulk-load contract and never change.
type State uint8

// The states. The zero value is StateBegun on purpose: a record that exists has
// at least begun.
const (
	StateBegun      State = 0
	StateCommitting State = 1
	StateCommitted  State = 2
	StateAborted    State = 3
)

// AbortReason says why a session ended without publication. Codes 0–3 are
// upstream's; AbortTargetLost is ours.
type AbortReason uint8

// The reasons.
const (
	AbortTargetNotEmpty   AbortReason = 0 // the target held rows, a snapshot or a log
	AbortBuildDeadline    AbortReason = 1 // no manifest before the build deadline
	AbortDecisionDeadline AbortReason = 2 // the frozen manifest never became valid
	AbortByCaller         AbortReason = 3
	AbortFenceLost        AbortReason = 4 // another session won the fence object (ours)
	AbortTargetGone       AbortReason = 5 // dropped or changed before it was published (ours)
	AbortGivenUp          AbortReason = 6 // an operator gave up what was left to publish (ours)
)

// Phase refines StateBegun and StateCommitting; it is detail text for people and
// is derived from the record, never stored.
type Phase string

// The phases, in the order in which a session passes through them.
const (
	PhaseFencing    Phase = "fencing"    // BEGUN, no snapshot ids yet
	PhaseBuilding   Phase = "building"   // BEGUN, workers may write
	PhaseFrozen     Phase = "frozen"     // BEGUN, manifest frozen, being validated
	PhaseAborting   Phase = "aborting"   // BEGUN, abort reason recorded, target being given back
	PhasePublishing Phase = "publishing" // COMMITTING
	PhaseDone       Phase = "done"       // COMMITTED or ABORTED
)

// Target names one physical table path. Partition is empty for an unpartitioned
// table.
type Target struct {
	Database  string `json:"database"`
	Table     string `json:"table"`
	Partition string `json:"partition,omitempty"`
}

// Principal is an authenticated caller: the issuer that vouches for it and the
// subject that issuer names.
type Principal struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
}

// ManifestRef names the object that lists every bucket's files.
type ManifestRef struct {
	Path   string `json:"path"`   // absolute URI
	Length int64  `json:"length"` // bytes
	SHA256 string `json:"sha256"` // 64 lower-case hex digits of the content
}

// HandOver says what happens to objects that a worker could still reach after
// the manifest is frozen.
type HandOver string

// The hand-overs. A session's is chosen at Begin; keys of the object store are vended
// only for sessions that expect them to outlive the freeze, which all but same do.
const (
	// HandOverSame: nothing a worker holds works after the freeze, so the upload root
	// is the final root (gateway and sign).
	HandOverSame HandOver = "same"
	// HandOverCopy: workers write under the session's staging root; the broker copies
	// what the manifest names into the final root, which no worker's key ever covered,
	// and validates the copies.
	HandOverCopy HandOver = "copy"
	// HandOverWait: workers write to the final root; validation begins when the last
	// vended key has expired.
	HandOverWait HandOver = "wait"
	// HandOverVerify: workers write to the final root; files are validated and
	// published, and validated once more when the last vended key has expired.
	HandOverVerify HandOver = "verify"
)

// Effective reads the empty hand-over, of records of older versions, as HandOverSame.
func (h HandOver) Effective() HandOver {
	if h == "" {
		return HandOverSame
	}
	return h
}

// Known reports whether h is one of the hand-overs. The empty one is not.
func (h HandOver) Known() bool {
	switch h {
	case HandOverSame, HandOverCopy, HandOverWait, HandOverVerify:
		return true
	}
	return false
}

// ExpectsKeys reports whether keys that can write may be vended: they outlive the
// freeze, and with HandOverSame nothing may.
func (h HandOver) ExpectsKeys() bool { return h.Effective() != HandOverSame }

// Verification is the second look at a published session's files (HandOverVerify).
type Verification struct {
	Due   time.Time  `json:"due"`             // when the last vended key has expired
	Done  *time.Time `json:"done,omitempty"`  // when it was made
	Error string     `json:"error,omitempty"` // what differs from what was published; "" = nothing
}

// Plan says where workers write and where published files lie. Workers take
// every path from it and never compute one.
type Plan struct {
	// UploadRoot is the URI under which bucket directories are written:
	// {UploadRoot}/{bucket}/snap-{snapshot id}/…
	UploadRoot string `json:"upload_root"`
	// FinalRoot is the URI of the table's (or partition's) KV directory.
	FinalRoot string `json:"final_root"`
	// ManifestPath is the URI of {FinalRoot}/_bulkload/{session id}/manifest.
	ManifestPath string `json:"manifest_path"`
	// Publication is the driver's way to make files visible, e.g. "conditional-write".
	Publication string `json:"publication"`
	// HandOver is the guarantee between freeze and publication.
	HandOver HandOver `json:"hand_over"`
	// LogOffset is the driver's rule for a snapshot's log offset: "zero", "row_count" or "caller".
	LogOffset string `json:"log_offset"`
	// Visibility is what readers see while the load is published; "" in plans of older
	// versions, which do not say.
	Visibility Visibility `json:"visibility,omitempty"`
	// Fence is what keeps other writers from the target until it is published, in the
	// driver's words; "" where nobody else can write.
	Fence string `json:"fence,omitempty"`
}

// Abort records why a session ended or is ending.
type Abort struct {
	Reason  AbortReason `json:"reason"`
	Message string      `json:"message,omitempty"` // at most 4096 bytes of UTF-8
}

// Stats sums up what validation found in a manifest's files.
type Stats struct {
	Rows  int64 `json:"rows"`  // -1 when the table keeps no row counts
	Files int64 `json:"files"` // private files, _METADATA and manifest not counted
	Bytes int64 `json:"bytes"` // bytes of those files
}

// Session is the durable record of one bulk load. Fields are grouped by the step
// that writes them; see Apply for the invariants between them.
type Session struct {
	// Version is the store's compare-and-swap token, 0 for a record that was
	// never stored.
	Version uint64 `json:"version"`

	// Written once, when the session is reserved.
	ID             string    `json:"id"` // lower-case UUID
	SubmissionID   string    `json:"submission_id"`
	Target         Target    `json:"target"`
	Epoch          int64     `json:"epoch"` // ≥ 1
	Creator        Principal `json:"creator"`
	DecisionID     string    `json:"decision_id"`
	PolicyRevision string    `json:"policy_revision"`
	Created        time.Time `json:"created"`
	BuildDeadline  time.Time `json:"build_deadline"`
	// HandOver is what Begin chose; "" in records of older versions means HandOverSame.
	HandOver HandOver `json:"hand_over,omitempty"`
	// Options are what else Begin chose.
	Options Options `json:"options,omitzero"`

	// KeysAliveUntil is the latest instant at which the object store may still accept a
	// key that was vended to a worker of this session and can write; nil = none was. It
	// is stored before a key is handed out (EventVended) and does not change after the
	// freeze. Keys that can only read are not counted: they change nothing.
	KeysAliveUntil *time.Time `json:"keys_alive_until,omitempty"`

	// Written when the target is fenced and proved empty (EventReady).
	TableID       int64           `json:"table_id"`
	PartitionID   *int64          `json:"partition_id,omitempty"`
	SchemaID      int32           `json:"schema_id"`
	TableJSON     json.RawMessage `json:"table_json,omitempty"` // Fluss table descriptor
	TableCreated  int64           `json:"table_created"`        // ms since the epoch
	TableModified int64           `json:"table_modified"`       // ms since the epoch
	RemoteDataDir string          `json:"remote_data_dir,omitempty"`
	SnapshotIDs   []int64         `json:"snapshot_ids,omitempty"` // position = bucket number
	Plan          Plan            `json:"plan"`

	// Written when a manifest is frozen (EventFreeze).
	Manifest         *ManifestRef `json:"manifest,omitempty"`
	DecisionDeadline *time.Time   `json:"decision_deadline,omitempty"`
	// ValidationError is the last reason why the frozen manifest was refused.
	ValidationError string `json:"validation_error,omitempty"`

	// Written by the decision and the end.
	State         State      `json:"state"`
	Stats         *Stats     `json:"stats,omitempty"`
	AbortInfo     *Abort     `json:"abort,omitempty"`
	ResultExpires *time.Time `json:"result_expires,omitempty"`
	// Verification is present on published sessions with HandOverVerify.
	Verification *Verification `json:"verification,omitempty"`
	Updated      time.Time     `json:"updated"`
}

// Grant is the record of one token, written before the token is minted.
type Grant struct {
	ID        string    `json:"id"` // the token's jti
	SessionID string    `json:"session_id,omitempty"`
	Epoch     int64     `json:"epoch,omitempty"`
	Target    Target    `json:"target"`
	Principal Principal `json:"principal"`
	// Groups and Claims are the caller's as policy saw them at issue, so that the
	// token's bearer is later judged as the same principal.
	Groups         []string          `json:"groups,omitempty"`
	Claims         map[string]string `json:"claims,omitempty"`
	Scope          []string          `json:"scope"`
	Audience       string            `json:"audience"`
	IssuedAt       time.Time         `json:"issued_at"`
	ExpiresAt      time.Time         `json:"expires_at"`
	DecisionID     string            `json:"decision_id"`
	PolicyRevision string            `json:"policy_revision"`
	Revoked        *time.Time        `json:"revoked,omitempty"`
}
