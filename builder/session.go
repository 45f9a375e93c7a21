package builder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/extsort"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Kinds of failure, for errors.Is.
var (
	// ErrRequest marks a request for what cannot be: a bucket, column or schema that is
	// not there, or a limit or timeout that is none. Repeating it does not help.
	ErrRequest = errors.New("request cannot be met")
	// ErrForeignBucket marks a row of a bucket that is not open here; the error is a
	// *ForeignBucketError.
	ErrForeignBucket = errors.New("row of another bucket")
	// ErrFinished marks a use of a bucket after its Finish.
	ErrFinished = errors.New("bucket is finished")
	// ErrConflict marks an object that exists with other content.
	ErrConflict = errors.New("object exists with other content")
	// ErrClosed marks a use after Close.
	ErrClosed = errors.New("build session is closed")
	// ErrCheckpoint marks a checkpoint that does not fit the load or its files.
	ErrCheckpoint = errors.New("checkpoint cannot be resumed")
	// ErrNoSpace marks a full disk. Rows before the failed call are safe: free space
	// and call again, or resume from the last checkpoint.
	ErrNoSpace = extsort.ErrNoSpace
)

// requestError is an ErrRequest in words of its own.
type requestError struct{ text string }

func (e *requestError) Error() string        { return e.text }
func (e *requestError) Is(target error) bool { return target == ErrRequest }

func badRequest(format string, args ...any) error {
	return &requestError{fmt.Sprintf(format, args...)}
}

// ForeignBucketError is a row that belongs to another bucket.
type ForeignBucketError struct {
	Bucket int   // the row's
	Open   []int // the buckets that would have been taken
}

// Error names both.
func (e *ForeignBucketError) Error() string {
	if len(e.Open) == 1 {
		return fmt.Sprintf("row belongs to bucket %d, this writer builds bucket %d", e.Bucket, e.Open[0])
	}
	return fmt.Sprintf("row belongs to bucket %d, this session builds buckets %s", e.Bucket, bucketRanges(e.Open))
}

// Is makes errors.Is(err, ErrForeignBucket) hold.
func (e *ForeignBucketError) Is(target error) bool { return target == ErrForeignBucket }

// Compression is the codec of the files that are built.
type Compression = rocks.Compression

// The codecs. Zstd makes the smallest files at a multiple of the CPU time.
const (
	Snappy = rocks.Snappy
	None   = rocks.None
	Zstd   = rocks.Zstd
)

// OpenOptions tune a session. The zero value builds every bucket.
type OpenOptions struct {
	// Buckets are the buckets this worker builds; empty means all, or those of Resume.
	Buckets []int
	// SkipForeign makes Session.Write and WriteRecord pass over rows of other
	// buckets instead of failing, so that several workers can read the same input.
	SkipForeign bool
	// WorkDir is an existing directory for runs and finished files; only children
	// of the session's own are made and removed. Empty means os.TempDir().
	WorkDir string
	// Memory is the budget for rows that wait to be sorted, in bytes, index
	// included, shared by all open buckets; 0 means 256 MiB.
	Memory int64
	// Parallelism is the number of cores to use; 0 means GOMAXPROCS.
	Parallelism int
	// Compression of the files; the zero value is Snappy.
	Compression Compression
	// Events replace the client's when any of them is set.
	Events Events
	// Resume continues from a checkpoint of the same load; WorkDir is the same one.
	Resume *Checkpoint
	// TTL is the wish for the lifetime of each token; 0 means the broker's default.
	TTL time.Duration
}

// Session builds buckets of one load. Its methods are safe for concurrent use; the
// order of rows added by concurrent calls is not defined, and with it which of two
// rows of one key wins.
type Session struct {
	load    *load
	o       OpenOptions
	tokens  *client.Tokens
	store   store // nil until it is opened
	upload  uploader
	notify  *notifier
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	writers []*BucketWriter // by bucket number, nil where not open here
	open    []*BucketWriter // ascending
	numbers []int           // of open
	builds  chan struct{}   // one token per bucket being merged
	tables  int             // tables that one of them writes at once
	uploads chan struct{}   // one token per object being stored
	rows    sync.Pool       // of *rowEncoder
	batches sync.Pool       // of *batchEncoder
	skipped atomic.Int64

	mu           sync.Mutex
	closed       bool
	checkpointed bool // a checkpoint names our directories
}

// Bounds of what runs at once, whatever the number of cores: a table being written
// takes some 7 MiB outside the memory budget, and all of them together must stay
// well below 128 MiB.
const (
	parallelBuilds  = 6  // buckets being merged
	parallelTables  = 12 // tables being written, all buckets together
	parallelUploads = 4  // objects being stored
)

// Open checks the build context, gets a grant for its buckets and prepares the
// work directory. ctx covers the opening only. Close the session.
func (c *Client) Open(ctx context.Context, bc *BuildContext, o OpenOptions) (*Session, error) {
	l, err := newLoad(bc)
	if err != nil {
		return nil, err
	}
	if o, err = o.withDefaults(l, c.events); err != nil {
		return nil, err
	}
	s := newSession(l, o)
	// What a checkpoint names stays when opening fails: the next attempt needs it.
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, s.end(s.checkpointed))
	}
	s.tokens = client.NewTokens(c.api, client.ExchangeRequest{SessionID: bc.Handle.BulkLoadID, Scope: bucketScope(s.numbers), TTL: o.TTL})
	if s.store, err = c.store(s.tokens, placeOf(bc)); err != nil {
		return nil, errors.Join(err, s.end(s.checkpointed))
	}
	s.upload.objects = s.store
	if s.allDone() {
		return s, nil // nothing is left to store, and the load may be committed already
	}
	if err := s.admit(ctx); err != nil {
		what := fmt.Sprintf("open buckets %s of", bucketRanges(s.numbers))
		return nil, errors.Join(wrapLoad(what, bc, err), s.end(s.checkpointed))
	}
	return s, nil
}

// admit asks for the grant, so that who may not build learns it before there is work.
func (s *Session) admit(ctx context.Context) error {
	if _, err := s.tokens.Token(ctx); err != nil {
		return err
	}
	return s.store.ready(ctx)
}

func (o OpenOptions) withDefaults(l *load, e Events) (OpenOptions, error) {
	if o.WorkDir == "" {
		o.WorkDir = os.TempDir()
	}
	if st, err := os.Stat(o.WorkDir); err != nil {
		return o, fmt.Errorf("work directory: %w", err)
	} else if !st.IsDir() {
		return o, fmt.Errorf("work directory %s is not a directory", o.WorkDir)
	}
	if o.Memory == 0 {
		o.Memory = extsort.DefaultMemory
	}
	if o.Parallelism <= 0 {
		o.Parallelism = runtime.GOMAXPROCS(0)
	}
	if !o.Events.any() {
		o.Events = e
	}
	var err error
	if o.Buckets, err = chooseBuckets(o, len(l.bc.SnapshotIDs)); err != nil {
		return o, err
	}
	if least := int64(len(o.Buckets)) * extsort.MinMemory; o.Memory < least {
		return o, fmt.Errorf("memory of %d bytes is too little for %d buckets: give at least %d, or open fewer buckets", o.Memory, len(o.Buckets), least)
	}
	if o.Resume != nil {
		err = o.Resume.fits(l, o.Buckets)
	}
	return o, err
}

// chooseBuckets returns the buckets to open, ascending.
func chooseBuckets(o OpenOptions, n int) ([]int, error) {
	list := slices.Clone(o.Buckets)
	if len(list) == 0 && o.Resume != nil {
		for _, b := range o.Resume.Buckets {
			list = append(list, b.BucketID)
		}
	}
	if len(list) == 0 {
		for b := range n {
			list = append(list, b)
		}
	}
	slices.Sort(list)
	for i, b := range list {
		if b < 0 || b >= n {
			return nil, badRequest("there is no bucket %d: the load has buckets 0 to %d", b, n-1)
		}
		if i > 0 && list[i-1] == b {
			return nil, badRequest("bucket %d is named twice", b)
		}
	}
	return list, nil
}

func newSession(l *load, o OpenOptions) *Session {
	s := &Session{
		load: l, o: o, numbers: o.Buckets, notify: newNotifier(o.Events),
		writers: make([]*BucketWriter, len(l.bc.SnapshotIDs)),
		uploads: make(chan struct{}, parallelUploads),
	}
	builds := min(o.Parallelism, len(o.Buckets), parallelBuilds)
	s.builds, s.tables = make(chan struct{}, builds), min(o.Parallelism, parallelTables/builds)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.rows.New = func() any { return l.newRowEncoder() }
	for _, b := range o.Buckets {
		w := &BucketWriter{s: s, id: b}
		s.writers[b] = w
		s.open = append(s.open, w)
	}
	return s
}

// prepare restores what a checkpoint names.
func (s *Session) prepare() error {
	if s.o.Resume == nil {
		return nil
	}
	s.checkpointed = true
	for _, b := range s.o.Resume.Buckets {
		if err := s.writers[b.BucketID].restore(b); err != nil {
			return fmt.Errorf("%w: bucket %d: %w", ErrCheckpoint, b.BucketID, err)
		}
	}
	return nil
}

// bucketScope asks to write buckets, which includes reading them back: what an
// earlier attempt left must be compared.
func bucketScope(buckets []int) []string {
	var list []string
	for _, r := range runsOf(buckets) {
		list = append(list, scope.Scope{Op: scope.Write, First: r[0], Last: r[1]}.String())
	}
	return list
}

// runsOf joins ascending numbers into ranges, both ends included.
func runsOf(numbers []int) [][2]int {
	var runs [][2]int
	for _, n := range numbers {
		if k := len(runs); k > 0 && runs[k-1][1] == n-1 {
			runs[k-1][1] = n
		} else {
			runs = append(runs, [2]int{n, n})
		}
	}
	return runs
}

func bucketRanges(numbers []int) string {
	s := ""
	for i, r := range runsOf(numbers) {
		if i > 0 {
			s += ","
		}
		s += fmt.Sprint(r[0])
		if r[1] > r[0] {
			s += fmt.Sprintf("-%d", r[1])
		}
	}
	return s
}

// Table is the frozen table.
func (s *Session) Table() *schema.Table { return s.load.table }

// Buckets lists the buckets this session builds, ascending.
func (s *Session) Buckets() []int { return slices.Clone(s.numbers) }

// Bucket returns the writer of one open bucket.
func (s *Session) Bucket(n int) (*BucketWriter, error) {
	if n < 0 || n >= len(s.writers) {
		return nil, badRequest("there is no bucket %d: the load has buckets 0 to %d", n, len(s.writers)-1)
	}
	if s.writers[n] == nil {
		return nil, &ForeignBucketError{Bucket: n, Open: s.numbers}
	}
	return s.writers[n], nil
}

// BucketOf computes the bucket of a whole row in schema order.
func (s *Session) BucketOf(r []row.Value) (int, error) {
	e := s.rows.Get().(*rowEncoder)
	defer s.rows.Put(e)
	return e.encodeKey(r)
}

// Write adds a whole row in schema order to its bucket.
func (s *Session) Write(r []row.Value) error {
	e := s.rows.Get().(*rowEncoder)
	defer s.rows.Put(e)
	bucket, err := e.encodeKey(r)
	if err != nil {
		return err
	}
	w := s.writers[bucket]
	if w == nil {
		return s.foreign(bucket)
	}
	if err := e.encodeValue(r); err != nil {
		return err
	}
	return w.add(e.key, e.value)
}

// foreign skips a row of another bucket, or refuses it.
func (s *Session) foreign(bucket int) error {
	if s.o.SkipForeign {
		s.skipped.Add(1)
		return nil
	}
	return &ForeignBucketError{Bucket: bucket, Open: s.numbers}
}

// Rows is the number of rows added so far, those before a resumed checkpoint
// included. Rows of one key count each time.
func (s *Session) Rows() int64 {
	var n int64
	for _, w := range s.open {
		n += w.rows.Load()
	}
	return n
}

// Skipped is the number of rows of other buckets that SkipForeign passed over.
func (s *Session) Skipped() int64 { return s.skipped.Load() }

// Finish finishes every open bucket and returns the files of all, by bucket. It may
// be repeated after an error, and then goes on where it stopped.
func (s *Session) Finish(ctx context.Context) ([]BucketFiles, error) {
	files := make([]BucketFiles, len(s.open))
	g := newGroup(ctx)
	for i, w := range s.open {
		g.run(func(ctx context.Context) (err error) {
			files[i], err = w.finishOnce(ctx)
			return err
		})
	}
	if err := g.wait(); err != nil {
		return nil, err
	}
	return files, nil
}

// Close ends the grant and removes the session's own directories, except those
// that a checkpoint of an unfinished session names. Calls that run are
// interrupted. Once every bucket is finished, earlier checkpoints are worthless:
// take one after Finish and keep it until Commit has succeeded.
func (s *Session) Close() error {
	s.mu.Lock()
	keep := s.checkpointed
	s.mu.Unlock()
	return s.end(keep && !s.allDone())
}

// Discard is Close that keeps nothing, checkpoint or not.
func (s *Session) Discard() error { return s.end(false) }

func (s *Session) allDone() bool {
	return !slices.ContainsFunc(s.open, func(w *BucketWriter) bool { return !w.done() })
}

func (s *Session) end(keep bool) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	var errs []error
	for _, w := range s.open {
		errs = append(errs, w.close(keep))
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	if s.tokens != nil {
		errs = append(errs, s.tokens.Close())
	}
	return errors.Join(errs...)
}

func (s *Session) checkOpen() error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	return nil
}

// within is ctx that also ends when the session is closed.
func (s *Session) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}
