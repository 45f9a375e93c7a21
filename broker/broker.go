package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/token"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

// Ways a caller authenticated.
const (
	ViaIdentity = "identity" // an identity issuer's token
	ViaToken    = "token"    // a Sluice token
)

// Caller is an authenticated caller.
type Caller struct {
	Principal session.Principal
	Groups    []string
	Claims    map[string]string // further string claims of the identity token
	Via       string            // ViaIdentity or ViaToken
	Token     *token.Claims     // when Via is ViaToken
	TokenHash string            // hex SHA-256 of the presented token
	Address   string            // IP without port
	UserAgent string
	RequestID string
}

// Errors of this package; the others wrap the kinds of session, policy and objstore.
var (
	// ErrTokenInvalid: a presented Sluice token does not (or no longer) hold.
	ErrTokenInvalid = errors.New("token is not valid")
	// ErrScope: the token holds, but not for this.
	ErrScope = errors.New("outside the token's scope")
	// ErrBusy is matched by *BusyError.
	ErrBusy = errors.New("busy")
	// ErrUnsupported: the target driver does not offer this.
	ErrUnsupported = errors.New("not offered by this target")
)

// Denied is a refusal by policy; it matches policy.ErrDenied.
type Denied struct{ Decision policy.Decision }

// Error implements error.
func (d *Denied) Error() string {
	return fmt.Sprintf("%v: %v (decision %s)", policy.ErrDenied, d.Decision.Reasons, d.Decision.ID)
}

// Unwrap makes errors.Is(err, policy.ErrDenied) true.
func (d *Denied) Unwrap() error { return policy.ErrDenied }

// BusyError asks to come back later; nothing was done. It matches ErrBusy.
type BusyError struct {
	What       string
	RetryAfter time.Duration
}

// Error implements error.
func (e *BusyError) Error() string {
	return fmt.Sprintf("%s: too many at once, retry after %v", e.What, e.RetryAfter)
}

// Unwrap makes errors.Is(err, ErrBusy) true.
func (e *BusyError) Unwrap() error { return ErrBusy }

// Config configures a Broker. Store, Driver, Policy, Tokens and Audit are required.
type Config struct {
	Store  session.Store
	Driver target.Driver // may also implement target.Catalog and target.Snapshots
	Policy policy.Decider
	Tokens *token.Issuer
	Audit  audit.Sink
	Limits session.Limits   // zero value = session.DefaultLimits()
	Now    func() time.Time // nil = time.Now
	Logger *slog.Logger     // nil = discard

	// MaxConcurrentCommits bounds commits being validated or published; 0 = 2.
	MaxConcurrentCommits int
	// MaxConcurrentRequests bounds other use cases being served; 0 = 1024.
	MaxConcurrentRequests int
	// ValidateParallelism bounds buckets validated at once per commit; 0 = number of CPUs.
	ValidateParallelism int
	// SampleKeys is how many rows per bucket are decoded and hashed at validation,
	// spread evenly; 0 = 4096, negative = every row.
	SampleKeys int
	// SweepInterval is the pause between sweeps; 0 = 1 s.
	SweepInterval time.Duration
}

// Broker serves the use cases. Safe for concurrent use.
type Broker struct {
	c Config
}

// New checks the configuration. It performs no I/O.
func New(c Config) (*Broker, error) { return nil, errors.New("not built yet") }

// Run resumes unfinished sessions, then sweeps until ctx ends: deadlines, expired
// results, expired grants, key rotation. It returns nil when ctx ended.
func (b *Broker) Run(ctx context.Context) error { return errors.New("not built yet") }

// Close cancels commits in progress, which the next start resumes, and waits for them.
func (b *Broker) Close() error { return nil }

// BeginRequest asks for a session.
type BeginRequest struct {
	Target       session.Target
	SubmissionID string        // 1–128 printable ASCII bytes
	BuildTimeout time.Duration // 0 = the default
}

// Begin starts a session, or returns the one begun under the same submission id
// (created false).
func (b *Broker) Begin(ctx context.Context, c Caller, r BeginRequest) (s session.Session, created bool, err error) {
	return session.Session{}, false, errors.New("not built yet")
}

// Heartbeat shows that a builder is alive and still owns the epoch.
func (b *Broker) Heartbeat(ctx context.Context, c Caller, id string, epoch int64) (session.Session, error) {
	return session.Session{}, errors.New("not built yet")
}

// Get returns a session the caller may read.
func (b *Broker) Get(ctx context.Context, c Caller, id string) (session.Session, error) {
	return session.Session{}, errors.New("not built yet")
}

// List returns the sessions of a page that the caller may read, and the cursor for
// Filter.After of the next page, empty at the end. A page may be shorter than the
// limit although more follow.
func (b *Broker) List(ctx context.Context, c Caller, f session.Filter) ([]session.Session, string, error) {
	return nil, "", errors.New("not built yet")
}

// Commit freezes the manifest, validates, decides and publishes. A nil manifest
// goes on with one frozen before. Repeating it gives the same answer.
func (b *Broker) Commit(ctx context.Context, c Caller, id string, epoch int64, m *session.ManifestRef) (session.Session, error) {
	return session.Session{}, errors.New("not built yet")
}

// Abort ends a session that has not been decided. Repeating it gives the same answer.
func (b *Broker) Abort(ctx context.Context, c Caller, id string, epoch int64) (session.Session, error) {
	return session.Session{}, errors.New("not built yet")
}

// ExchangeRequest asks for a token: for a session, or with Target for reading a
// target without one.
type ExchangeRequest struct {
	SessionID string
	Target    *session.Target
	Scope     string        // space-separated, see package session/scope
	TTL       time.Duration // a wish; 0 = the default
	Audience  string        // "" or the issuer's audience
}

// Issued is a minted token.
type Issued struct {
	Token     credential.Secret
	ExpiresAt time.Time
	Scope     string // what was granted; may be less than asked
	Grant     session.Grant
}

// ExchangeToken records a grant and mints its token.
func (b *Broker) ExchangeToken(ctx context.Context, c Caller, r ExchangeRequest) (Issued, error) {
	return Issued{}, errors.New("not built yet")
}

// Introspection is what RFC 7662 tells about a token; Active false says nothing else.
type Introspection struct {
	Active bool
	Claims token.Claims
}

// Introspect tells whether a token holds right now. Tokens of others are inactive
// to a caller who may not read their session.
func (b *Broker) Introspect(ctx context.Context, c Caller, t credential.Secret) (Introspection, error) {
	return Introspection{}, errors.New("not built yet")
}

// Revoke ends a token. Unknown and foreign tokens are no error (RFC 7009).
func (b *Broker) Revoke(ctx context.Context, c Caller, t credential.Secret) error {
	return errors.New("not built yet")
}

// VerifyToken checks signature, grant, epoch and session of a Sluice token.
func (b *Broker) VerifyToken(ctx context.Context, t credential.Secret) (token.Claims, error) {
	return token.Claims{}, errors.New("not built yet")
}

// TokenCaller verifies a Sluice token and returns its bearer: the principal is the
// one of the grant. The api adds Address, UserAgent and RequestID.
func (b *Broker) TokenCaller(ctx context.Context, t credential.Secret) (Caller, error) {
	return Caller{}, errors.New("not built yet")
}

// JWKS is the JSON Web Key Set of the broker's tokens.
func (b *Broker) JWKS() []byte { return b.c.Tokens.JWKS() }

// Issuer is the iss claim of the broker's tokens.
func (b *Broker) Issuer() string { return b.c.Tokens.Issuer() }

// ObjectRequest asks to open one object through the gateway.
type ObjectRequest struct {
	Method string // GET, HEAD or PUT
	Key    string // canonical, see objstore.CheckKey
	Size   int64  // of a PUT; negative = not known
}

// ObjectGrant allows one request on one object.
type ObjectGrant struct {
	Key       string
	SessionID string
	MaxSize   int64 // of a PUT, bytes; 0 = no limit of its own
	// Seal must be called after the last byte of a PUT was read and before the
	// object becomes visible; an error means that the session has been frozen or
	// ended meanwhile and the object must not be stored. Nil for reads.
	Seal func() error
	// Done must be called when the request is over. Never nil.
	Done func()
}

// AuthorizeObject decides a request on one object: the key must lie within what
// the bearer's token grants, derived from the frozen plan.
func (b *Broker) AuthorizeObject(ctx context.Context, c Caller, r ObjectRequest) (ObjectGrant, error) {
	return ObjectGrant{}, errors.New("not built yet")
}

// TableDetail is a table with its partitions and schema history.
type TableDetail struct {
	Table      target.Table
	Partitions []target.Partition
	Schemas    []target.SchemaVersion
}

// CreateTable registers a table.
func (b *Broker) CreateTable(ctx context.Context, c Caller, database, table string, descriptor json.RawMessage) (target.Table, error) {
	return target.Table{}, errors.New("not built yet")
}

// GetTable describes a table.
func (b *Broker) GetTable(ctx context.Context, c Caller, database, table string) (TableDetail, error) {
	return TableDetail{}, errors.New("not built yet")
}

// ListTables lists the tables of a database ("" = all) that the caller may read.
func (b *Broker) ListTables(ctx context.Context, c Caller, database string) ([]target.Table, error) {
	return nil, errors.New("not built yet")
}

// DropTable drops a table and its data; refused while a session owns it.
func (b *Broker) DropTable(ctx context.Context, c Caller, database, table string) error {
	return errors.New("not built yet")
}

// CreatePartition adds a partition.
func (b *Broker) CreatePartition(ctx context.Context, c Caller, database, table, partition string) (target.Partition, error) {
	return target.Partition{}, errors.New("not built yet")
}

// DropPartition drops a partition and its data; refused while a session owns it.
func (b *Broker) DropPartition(ctx context.Context, c Caller, database, table, partition string) error {
	return errors.New("not built yet")
}

// ListPartitions lists the partitions of a table.
func (b *Broker) ListPartitions(ctx context.Context, c Caller, database, table string) ([]target.Partition, error) {
	return nil, errors.New("not built yet")
}

// KVSnapshots are the newest visible snapshots of a target.
type KVSnapshots struct {
	Target    session.Target
	Resolved  target.Resolved
	Buckets   int
	Snapshots []target.Snapshot // buckets without one are absent
}

// LatestKVSnapshots returns the newest visible snapshot of each bucket.
func (b *Broker) LatestKVSnapshots(ctx context.Context, c Caller, t session.Target) (KVSnapshots, error) {
	return KVSnapshots{}, errors.New("not built yet")
}

// SnapshotFile is one file of a snapshot.
type SnapshotFile struct {
	LocalPath string
	Path      string // absolute URI
	Size      int64
	Shared    bool
}

// KVSnapshotMetadata is one snapshot's parsed and verbatim metadata.
type KVSnapshotMetadata struct {
	Snapshot target.Snapshot
	RowCount *int64
	Files    []SnapshotFile
	Metadata json.RawMessage
}

// KVSnapshotMetadata returns the metadata of a visible snapshot; a nil id means the
// newest one.
func (b *Broker) KVSnapshotMetadata(ctx context.Context, c Caller, t session.Target, bucket int, snapshotID *int64) (KVSnapshotMetadata, error) {
	return KVSnapshotMetadata{}, errors.New("not built yet")
}
