package builder

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// Kinds of failure, for errors.Is.
var (
	// ErrForeignBucket marks a row that belongs to a bucket that is not open here.
	ErrForeignBucket = errors.New("row of another bucket")
	// ErrFinished marks a use of a bucket after its Finish.
	ErrFinished = errors.New("bucket is finished")
	// ErrConflict marks an object that exists with other content.
	ErrConflict = errors.New("object exists with other content")
	// ErrClosed marks a use after Close.
	ErrClosed = errors.New("build session is closed")
	// ErrCheckpoint marks a checkpoint that does not fit the load or its files.
	ErrCheckpoint = errors.New("checkpoint cannot be resumed")
)

// OpenOptions tune a session. The zero value builds every bucket.
type OpenOptions struct {
	// Buckets are the buckets this worker builds; empty means all.
	Buckets []int
	// WorkDir is an existing directory for runs and finished files; only children
	// of the session's own are made and removed. Empty means os.TempDir().
	WorkDir string
	// Memory is the budget for rows that wait to be sorted, in bytes, index
	// included, shared by all open buckets; 0 means 256 MiB.
	Memory int64
	// Parallelism is the number of cores to use; 0 means GOMAXPROCS.
	Parallelism int
	Compression rocks.Compression
	// Events replace the client's when any of them is set.
	Events Events
	// Resume continues from a checkpoint of the same load.
	Resume *Checkpoint
	// TTL is the wish for the lifetime of each token; 0 means the broker's default.
	TTL time.Duration
}

// Session builds buckets of one load.
type Session struct{}

// Open checks the build context, gets a grant for its buckets and prepares the
// work directory. ctx covers the opening only.
func (c *Client) Open(ctx context.Context, bc *BuildContext, o OpenOptions) (*Session, error) {
	return nil, errNotBuilt
}

// Table is the frozen table.
func (s *Session) Table() *schema.Table { return nil }

// Buckets lists the buckets this session builds, ascending.
func (s *Session) Buckets() []int { return nil }

// Bucket returns the writer of one open bucket.
func (s *Session) Bucket(n int) (*BucketWriter, error) { return nil, errNotBuilt }

// BucketOf computes the bucket of a whole row in schema order.
func (s *Session) BucketOf(r []row.Value) (int, error) { return 0, errNotBuilt }

// Write adds a row to its bucket; ErrForeignBucket when that is not open here.
func (s *Session) Write(r []row.Value) error { return errNotBuilt }

// WriteRecord adds every row of a batch to its bucket. Rows before a refused one
// have been added.
func (s *Session) WriteRecord(rec arrow.RecordBatch) error { return errNotBuilt }

// Rows is the number of rows added so far, earlier checkpoints included.
func (s *Session) Rows() int64 { return 0 }

// Checkpoint makes everything added so far durable on local disk. position is the
// caller's: where its input stands.
func (s *Session) Checkpoint(ctx context.Context, position json.RawMessage) (*Checkpoint, error) {
	return nil, errNotBuilt
}

// Finish finishes every open bucket that is not finished yet and returns the
// files of all, by bucket.
func (s *Session) Finish(ctx context.Context) ([]BucketFiles, error) { return nil, errNotBuilt }

// Close ends the grant and removes the session's work directories, except what a
// checkpoint names and is still needed. It is safe to call twice.
func (s *Session) Close() error { return nil }

// Discard is Close that keeps nothing, checkpoint or not.
func (s *Session) Discard() error { return nil }

// BucketWriter builds one bucket. Writers of different buckets may be used
// concurrently.
type BucketWriter struct{}

// ID is the bucket's number.
func (w *BucketWriter) ID() int { return 0 }

// Put adds a whole row in schema order; a row of another bucket is refused.
func (w *BucketWriter) Put(r []row.Value) error { return errNotBuilt }

// WriteRecord adds every row of a batch; a row of another bucket is refused and
// ends the call, rows before it have been added.
func (w *BucketWriter) WriteRecord(rec arrow.RecordBatch) error { return errNotBuilt }

// Finish merges, writes and uploads the bucket. It may be repeated after an
// error; after a success it is ErrFinished.
func (w *BucketWriter) Finish(ctx context.Context) (BucketFiles, error) {
	return BucketFiles{}, errNotBuilt
}
