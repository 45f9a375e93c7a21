// Package v1 holds the wire types of Sluice's HTTP API, version 1.
//
// Field names are snake_case, times are RFC 3339, durations are integers whose
// name ends in their unit. Unknown request fields are refused. Types here hold no
// secret, and are safe to store and to log, except TokenResponse, Credentials,
// StorageCredentials and AWSCredentials.
package v1

import (
	"encoding/json"
	"fmt"
	"time"
)

// Target names one physical table path.
type Target struct {
	Database  string `json:"database"`
	Table     string `json:"table"`
	Partition string `json:"partition,omitempty"`
}

// String prints database.table or database.table/partition.
func (t Target) String() string {
	s := t.Database + "." + t.Table
	if t.Partition != "" {
		s += "/" + t.Partition
	}
	return s
}

// BeginRequest is the body of POST /v1/sessions.
type BeginRequest struct {
	Target Target `json:"target"`
	// SubmissionID is the caller's idempotency key, unique per caller and target:
	// the same one again returns the same session. 1–128 printable ASCII bytes.
	SubmissionID string `json:"submission_id"`
	// BuildTimeoutMS bounds the build; 0 means the server's default (24 h).
	BuildTimeoutMS int64 `json:"build_timeout_ms,omitempty"`
	// HandOver asks for one of the server's hand-overs: same, copy, wait or verify;
	// empty means the server's default.
	HandOver string `json:"hand_over,omitempty"`
	LoadOptions
}

// LoadOptions are what a load may do to its target and how it is published. What is
// left open is the server's default.
type LoadOptions struct {
	// Publication of a live cluster: in_place, birth or restart.
	Publication string `json:"publication,omitempty"`
	// Visibility is VisibilityAtomic when readers must see all rows of the load or none;
	// a load that could only be published bucket by bucket is then refused.
	Visibility string `json:"visibility,omitempty"`
	// Missing is what to do about a table or partition that does not exist: MissingCreate
	// (empty, at begin) or MissingBirth (with its rows, at commit); empty refuses it.
	Missing string `json:"missing,omitempty"`
	// ReplaceEmpty lets the load drop its target, proved empty right before, and make it
	// anew with its rows.
	ReplaceEmpty bool `json:"replace_empty,omitempty"`
	// RemoveCreated lets an abort drop what begin created, if it is still empty.
	RemoveCreated bool `json:"remove_created,omitempty"`
	// TableJSON is the Fluss descriptor of a table that does not exist; it needs Missing.
	TableJSON json.RawMessage `json:"table_json,omitempty"`
}

// Words of LoadOptions and of Plan.Visibility.
const (
	VisibilityAtomic  = "atomic"  // all rows of the load or none
	VisibilityBuckets = "buckets" // some buckets loaded and others still empty
	MissingCreate     = "create"
	MissingBirth      = "birth"
)

// BeginResponse answers POST /v1/sessions: 201 for a new session, 200 for one that
// the submission id had begun before. Context is absent once the session ended.
type BeginResponse struct {
	Session Session       `json:"session"`
	Context *BuildContext `json:"context,omitempty"`
}

// BuildContext is the immutable description of a frozen target: everything a
// builder needs and no credential. It may be stored and shipped anywhere.
type BuildContext struct {
	Version int    `json:"version"` // 1
	Handle  Handle `json:"handle"`
	Epoch   int64  `json:"epoch"`

	SchemaID     int32           `json:"schema_id"`
	Table        json.RawMessage `json:"table"`         // Fluss table descriptor JSON
	CreatedTime  int64           `json:"created_time"`  // ms
	ModifiedTime int64           `json:"modified_time"` // ms
	// RemoteDataDir is the root URI below which every path of the load lies.
	RemoteDataDir string  `json:"remote_data_dir"`
	SnapshotIDs   []int64 `json:"snapshot_ids"` // position = bucket number
	Plan          Plan    `json:"plan"`
	// SignedURL is the URL of the root at the object store, with a slash at its end,
	// for requests that are sent there with a signature of POST /v1/sign; empty when
	// the server signs none. The object gateway takes every object in any case.
	SignedURL string `json:"signed_url,omitempty"`
}

// SignRequest describes a request to the object store that is about to be sent. It
// and the answer are what Iceberg's REST catalogs call remote signing.
type SignRequest struct {
	Method        string              `json:"method"`
	URL           string              `json:"url"`
	Headers       map[string][]string `json:"headers"`
	PayloadSHA256 string              `json:"payload_sha256"` // of the body, lower-case hex; of nothing without one
}

// SignResponse is what to add to the request.
type SignResponse struct {
	Headers   map[string][]string `json:"headers"` // a credential: they open the store for this request
	ExpiresAt time.Time           `json:"expires_at"`
	Cacheable bool                `json:"cacheable"` // false
}

// Handle names a load of one physical table.
type Handle struct {
	Target      Target `json:"target"`
	TableID     int64  `json:"table_id"`
	PartitionID *int64 `json:"partition_id,omitempty"`
	BulkLoadID  string `json:"bulk_load_id"` // the session id
}

// Plan says where files go; paths are absolute URIs. See the design of hand-over.
type Plan struct {
	UploadRoot   string `json:"upload_root"`
	FinalRoot    string `json:"final_root"`
	ManifestPath string `json:"manifest_path"`
	Publication  string `json:"publication"`
	HandOver     string `json:"hand_over"`
	LogOffset    string `json:"log_offset"` // "zero", "row_count" or "caller"
	// Visibility is what readers see while the load is published: VisibilityAtomic or
	// VisibilityBuckets; empty in contexts of older servers.
	Visibility string `json:"visibility,omitempty"`
	// Fence is what keeps other writers from a cluster's table until it is published:
	// "rules", "rules_partly", "proofs" or "unborn"; empty where nobody else can write.
	Fence string `json:"fence,omitempty"`
}

// ObjectRef names an object with its length and digest.
type ObjectRef struct {
	Path   string `json:"path"`
	Length int64  `json:"length"`
	SHA256 string `json:"sha256"` // 64 lower-case hex digits
}

// BucketFiles is the result of building one bucket.
type BucketFiles struct {
	BulkLoadID string    `json:"bulk_load_id"`
	BucketID   int       `json:"bucket_id"`
	Metadata   ObjectRef `json:"metadata"` // the bucket's _METADATA
	Rows       int64     `json:"rows"`
	Bytes      int64     `json:"bytes"`
}

// Session is the state of a bulk load.
type Session struct {
	ID               string     `json:"id"`
	SubmissionID     string     `json:"submission_id,omitempty"`
	Target           Target     `json:"target"`
	Epoch            int64      `json:"epoch"`
	State            string     `json:"state"` // BEGUN COMMITTING COMMITTED ABORTED
	Phase            string     `json:"phase"`
	Buckets          int        `json:"buckets"`
	Creator          string     `json:"creator"` // subject
	Created          time.Time  `json:"created"`
	Updated          time.Time  `json:"updated"`
	BuildDeadline    time.Time  `json:"build_deadline"`
	DecisionDeadline *time.Time `json:"decision_deadline,omitempty"`
	ResultExpires    *time.Time `json:"result_expires,omitempty"`
	Manifest         *ObjectRef `json:"manifest,omitempty"`
	ValidationError  string     `json:"validation_error,omitempty"`
	Stats            *Stats     `json:"stats,omitempty"`
	AbortReason      string     `json:"abort_reason,omitempty"`
	AbortMessage     string     `json:"abort_message,omitempty"`
	// TokensLiveUntil is set on ended sessions: until when a token issued earlier
	// still verifies by signature (every use of it is refused already).
	TokensLiveUntil *time.Time `json:"tokens_live_until,omitempty"`
	// HandOver is the session's hand-over: same, copy, wait or verify.
	HandOver string `json:"hand_over"`
	// Options are those of the load without the table descriptor, the server's defaults
	// filled in.
	Options *LoadOptions `json:"options,omitempty"`
	// KeysLiveUntil is until when the object store may still accept keys that were
	// vended for the session; absent when none were. Nothing revokes them earlier,
	// unless the server is configured to.
	KeysLiveUntil *time.Time `json:"keys_live_until,omitempty"`
	// Verification is the second look at a session published with hand-over verify.
	Verification *Verification `json:"verification,omitempty"`
}

// Verification is due when the last vended key has expired. An Error says what
// differs from what was published.
type Verification struct {
	Due   time.Time  `json:"due"`
	Done  *time.Time `json:"done,omitempty"`
	Error string     `json:"error,omitempty"`
}

// Credentials answers GET /v1/sessions/{id}/credentials: keys of the object store
// that together open what the token's scope names, each location by exactly one of
// them. It holds secrets: it is not stored, and its String is redacted.
type Credentials struct {
	Mode      string    `json:"mode"` // "sts"
	SessionID string    `json:"session_id,omitempty"`
	Scope     string    `json:"scope"`
	Region    string    `json:"region"`
	Endpoint  string    `json:"endpoint,omitempty"` // empty = the provider's own for the region
	PathStyle bool      `json:"path_style"`
	ExpiresAt time.Time `json:"expires_at"` // a client stops using them then
	RefreshAt time.Time `json:"refresh_at"` // a client asks again then
	// LiveUntil is the latest instant at which the store may accept one of the keys;
	// no revocation ends them earlier unless the server is configured to.
	LiveUntil       time.Time `json:"live_until"`
	LifetimeSeconds int64     `json:"lifetime_seconds"` // asked of the provider
	// Bound says what limited the lifetime: policy, session, configured, role,
	// role_chaining or provider.
	Bound       string `json:"bound"`
	DecisionID  string `json:"decision_id"`
	Credentials []Keys `json:"credentials"`
}

// Keys are one set of keys with what they open.
type Keys struct {
	Locations       []KeyLocation `json:"locations"`
	AccessKeyID     string        `json:"access_key_id"`
	SecretAccessKey string        `json:"secret_access_key"`
	SessionToken    string        `json:"session_token"`
	ExpiresAt       time.Time     `json:"expires_at"`
	SessionName     string        `json:"session_name"` // in the provider's log
}

// KeyLocation is what keys open: every object below URI, or the one it names.
type KeyLocation struct {
	URI    string `json:"uri"`    // s3://bucket/prefix, without a slash at its end
	Access string `json:"access"` // AccessRead or AccessWrite
	Object bool   `json:"object,omitempty"`
}

// Accesses of a KeyLocation. Write includes reading.
const (
	AccessRead  = "read"
	AccessWrite = "write"
)

// String names what the keys open and hides them.
func (c Credentials) String() string {
	return fmt.Sprintf("%d sets of keys for %q until %s", len(c.Credentials), c.Scope, c.ExpiresAt.Format(time.RFC3339))
}

// GoString implements fmt.GoStringer.
func (c Credentials) GoString() string { return c.String() }

// String hides the keys.
func (k Keys) String() string {
	return fmt.Sprintf("keys %s until %s", k.AccessKeyID, k.ExpiresAt.Format(time.RFC3339))
}

// GoString implements fmt.GoStringer.
func (k Keys) GoString() string { return k.String() }

// StorageCredentials is the answer in the shape of Iceberg's REST catalog
// (LoadCredentialsResponse), for ?format=iceberg.
type StorageCredentials struct {
	StorageCredentials []StorageCredential `json:"storage-credentials"`
}

// StorageCredential is one entry: clients use the one with the longest prefix.
type StorageCredential struct {
	Prefix string            `json:"prefix"`
	Config map[string]string `json:"config"` // holds secrets
}

// String names the place and hides the keys.
func (c StorageCredential) String() string {
	return fmt.Sprintf("keys for %s with %d properties", c.Prefix, len(c.Config))
}

// GoString implements fmt.GoStringer.
func (c StorageCredential) GoString() string { return c.String() }

// AWSCredentials answers GET /v1/aws/credentials in the shape that the AWS SDKs'
// container provider reads, and is what credential_process prints with Version 1.
type AWSCredentials struct {
	Version         int       `json:"Version,omitempty"` // credential_process only
	AccessKeyID     string    `json:"AccessKeyId"`
	SecretAccessKey string    `json:"SecretAccessKey"`
	Token           string    `json:"Token,omitempty"`        // container provider
	SessionToken    string    `json:"SessionToken,omitempty"` // credential_process
	Expiration      time.Time `json:"Expiration"`
}

// String hides the keys.
func (c AWSCredentials) String() string {
	return fmt.Sprintf("keys %s until %s", c.AccessKeyID, c.Expiration.Format(time.RFC3339))
}

// GoString implements fmt.GoStringer.
func (c AWSCredentials) GoString() string { return c.String() }

// AWSError is an error in the shape that the AWS SDKs' container provider reads.
type AWSError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Stats sums up a committed manifest.
type Stats struct {
	Rows  int64 `json:"rows"` // -1 when the table keeps no row counts
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// SessionList is a page of GET /v1/sessions; Next continues it (?after=).
type SessionList struct {
	Sessions []Session `json:"sessions"`
	Next     string    `json:"next,omitempty"`
}

// HeartbeatRequest, CommitRequest and AbortRequest carry the caller's epoch.
type HeartbeatRequest struct {
	Epoch int64 `json:"epoch"`
}

// CommitRequest freezes and commits. A nil Manifest goes on with one frozen before.
type CommitRequest struct {
	Epoch    int64      `json:"epoch"`
	Manifest *ObjectRef `json:"manifest,omitempty"`
}

// AbortRequest gives a load up.
type AbortRequest struct {
	Epoch int64 `json:"epoch"`
	// GiveUp ends a decided load whose publication is stuck, and no other. What was
	// published stays.
	GiveUp bool `json:"give_up,omitempty"`
}

// TokenResponse is RFC 8693 section 2.2.1.
type TokenResponse struct {
	AccessToken     string `json:"access_token"`
	IssuedTokenType string `json:"issued_token_type"`
	TokenType       string `json:"token_type"` // Bearer
	ExpiresIn       int64  `json:"expires_in"` // seconds
	Scope           string `json:"scope"`
}

// TokenError is RFC 6749 section 5.2, extended by our own code and decision id.
type TokenError struct {
	Code        string `json:"error"`
	Description string `json:"error_description,omitempty"`
	// ProblemCode is the code that other endpoints would use, e.g. session_ended.
	ProblemCode string `json:"code,omitempty"`
	DecisionID  string `json:"decision_id,omitempty"`
	// Reasons are policy reason codes.
	Reasons []string `json:"reasons,omitempty"`
}

// DevTokenRequest is the body of POST /dev/token, which exists on servers started
// with --dev only. The answer is a TokenResponse with an identity token.
type DevTokenRequest struct {
	Subject    string   `json:"subject"`
	Groups     []string `json:"groups,omitempty"`
	TTLSeconds int64    `json:"ttl_seconds,omitempty"` // 0 = 12 h
}

// Introspection is RFC 7662; an inactive token has Active false and nothing else.
type Introspection struct {
	Active     bool     `json:"active"`
	Scope      string   `json:"scope,omitempty"`
	Subject    string   `json:"sub,omitempty"`
	Issuer     string   `json:"iss,omitempty"`
	Audience   []string `json:"aud,omitempty"`
	Expires    int64    `json:"exp,omitempty"`
	IssuedAt   int64    `json:"iat,omitempty"`
	NotBefore  int64    `json:"nbf,omitempty"`
	ID         string   `json:"jti,omitempty"`
	TokenType  string   `json:"token_type,omitempty"`
	Session    string   `json:"sid,omitempty"`
	Epoch      int64    `json:"epoch,omitempty"`
	Target     *Target  `json:"tgt,omitempty"`
	Policy     string   `json:"pol,omitempty"`
	DecisionID string   `json:"did,omitempty"`
}

// Table describes a registered table.
type Table struct {
	Database      string          `json:"database"`
	Table         string          `json:"table"`
	TableID       int64           `json:"table_id"`
	SchemaID      int32           `json:"schema_id"`
	TableJSON     json.RawMessage `json:"table_json"`
	CreatedTime   int64           `json:"created_time"`
	ModifiedTime  int64           `json:"modified_time"`
	RemoteDataDir string          `json:"remote_data_dir"`
	// Partitions and Schemas are filled by GET /v1/tables/{db}/{table} only.
	Partitions []Partition     `json:"partitions,omitempty"`
	Schemas    []SchemaVersion `json:"schemas,omitempty"`
	// SignedURL is BuildContext.SignedURL for reading; filled where Schemas is.
	SignedURL string `json:"signed_url,omitempty"`
}

// Partition is one partition of a table.
type Partition struct {
	Name string `json:"partition_name"`
	ID   int64  `json:"partition_id"`
}

// SchemaVersion is one entry of a table's schema history.
type SchemaVersion struct {
	SchemaID   int32           `json:"schema_id"`
	SchemaJSON json.RawMessage `json:"schema_json"`
}

// CreateTableRequest is the body of POST /v1/tables.
type CreateTableRequest struct {
	Database  string          `json:"database"`
	Table     string          `json:"table"`
	TableJSON json.RawMessage `json:"table_json"`
}

// CreatePartitionRequest is the body of POST /v1/tables/{db}/{table}/partitions.
type CreatePartitionRequest struct {
	Partition string `json:"partition_name"`
}

// TableList is the answer of GET /v1/tables.
type TableList struct {
	Tables []Table `json:"tables"`
}

// PartitionList is the answer of GET /v1/tables/{db}/{table}/partitions.
type PartitionList struct {
	Partitions []Partition `json:"partitions"`
}

// SnapshotLatest stands for the newest snapshot in …/snapshots/kv/{bucket}/{id}.
const SnapshotLatest = "latest"

// KVSnapshots is the answer of GET /v1/tables/{db}/{table}/snapshots/kv[?partition=].
type KVSnapshots struct {
	Target      Target       `json:"target"`
	TableID     int64        `json:"table_id"`
	PartitionID *int64       `json:"partition_id,omitempty"`
	Buckets     int          `json:"buckets"`
	Snapshots   []KVSnapshot `json:"snapshots"` // buckets without a snapshot are absent
}

// KVSnapshot names one KV snapshot of a bucket.
type KVSnapshot struct {
	BucketID     int    `json:"bucket_id"`
	SnapshotID   int64  `json:"snapshot_id"`
	LogOffset    int64  `json:"log_offset"`
	MetadataPath string `json:"metadata_path"`
}

// KVSnapshotMetadata is the answer of …/snapshots/kv/{bucket}/{id}.
type KVSnapshotMetadata struct {
	BucketID   int             `json:"bucket_id"`
	SnapshotID int64           `json:"snapshot_id"`
	LogOffset  int64           `json:"log_offset"`
	RowCount   *int64          `json:"row_count,omitempty"`
	Files      []KVFile        `json:"files"`
	Metadata   json.RawMessage `json:"metadata"` // the _METADATA object, verbatim
}

// KVFile is one file of a snapshot.
type KVFile struct {
	LocalPath string `json:"local_path"` // RocksDB's file name
	Path      string `json:"path"`       // absolute URI
	Size      int64  `json:"size"`
	Shared    bool   `json:"shared"`
}

// Health is the answer of /livez and /readyz.
type Health struct {
	Status string `json:"status"`
}

// HealthOK is the only status of a Health; failures are problems.
const HealthOK = "ok"

// Problem is an RFC 9457 problem document.
type Problem struct {
	Type       string `json:"type"` // a URI per code
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Detail     string `json:"detail,omitempty"`
	Instance   string `json:"instance,omitempty"` // the request id
	Code       string `json:"code"`               // stable, see openapi.yaml
	DecisionID string `json:"decision_id,omitempty"`
	// Reasons are policy reason codes.
	Reasons []string `json:"reasons,omitempty"`
	// Problems are what is wrong with a refused policy, with positions.
	Problems []PolicyProblem `json:"problems,omitempty"`
}

// Media types and fixed strings of the token endpoint (RFC 8693).
const (
	GrantTypeTokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	TokenTypeJWT           = "urn:ietf:params:oauth:token-type:jwt"
	TokenTypeAccessToken   = "urn:ietf:params:oauth:token-type:access_token"
	// ResourceSession prefixes the resource parameter that names a session, and
	// ResourceTarget the one that names a target for reading (db.table[/partition]).
	ResourceSession = "urn:sluice:session:"
	ResourceTarget  = "urn:sluice:target:"
)
