package builder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/internal/extsort"
)

// BucketWriter builds one bucket. Its methods are safe for concurrent use.
type BucketWriter struct {
	s    *Session
	id   int
	rows atomic.Int64 // rows added

	// sorter is nil before the first row and after the directory is built. Only
	// Interrupt is called on it without mu.
	sorter atomic.Pointer[extsort.Sorter]

	finishing sync.Mutex // held while Finish runs, outside mu

	mu       sync.Mutex
	dir      string       // child of the work directory, "" before the first row
	sealed   bool         // Finish was called: no more rows
	built    *Built       // the finished directory
	uploaded []Uploaded   // what is stored of it
	files    *BucketFiles // the result
}

// Children of a bucket's directory.
const (
	runsDir = "runs"
	dbDir   = "db"
)

// progressEvery is the number of rows between reports.
const progressEvery = 1 << 14

// ID is the bucket's number.
func (w *BucketWriter) ID() int { return w.id }

// Rows is the number of rows added so far.
func (w *BucketWriter) Rows() int64 { return w.rows.Load() }

// Put adds a whole row in schema order; a row of another bucket is refused with a
// *ForeignBucketError, a bad value with a *row.ColumnError.
func (w *BucketWriter) Put(r []row.Value) error {
	e := w.s.rows.Get().(*rowEncoder)
	defer w.s.rows.Put(e)
	bucket, err := e.encodeKey(r)
	if err != nil {
		return err
	}
	if bucket != w.id {
		return w.foreign(bucket)
	}
	if err := e.encodeValue(r); err != nil {
		return err
	}
	return w.add(e.key, e.value)
}

// WriteRecord adds every row of a batch. A batch with a bad value is refused whole;
// at a row of another bucket the rows before it have been added.
func (w *BucketWriter) WriteRecord(rec arrow.RecordBatch) error {
	return w.s.writeRecord(rec, func(bucket int) (*BucketWriter, error) {
		if bucket != w.id {
			return nil, w.foreign(bucket)
		}
		return w, nil
	})
}

func (w *BucketWriter) foreign(bucket int) error {
	return &ForeignBucketError{Bucket: bucket, Open: []int{w.id}}
}

// add sorts a pair in.
func (w *BucketWriter) add(key, value []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	sorter, err := w.sorterLocked()
	if err != nil {
		return err
	}
	if err := sorter.Add(key, value); err != nil {
		return w.explain(err)
	}
	if n := w.rows.Add(1); n%progressEvery == 0 {
		w.s.notify.progress(w.id, func(p *Progress) { p.Rows = n })
	}
	return nil
}

// sorterLocked returns the sorter for more rows.
func (w *BucketWriter) sorterLocked() (*extsort.Sorter, error) {
	if err := w.s.checkOpen(); err != nil {
		return nil, err
	}
	if w.sealed {
		return nil, fmt.Errorf("bucket %d: %w", w.id, ErrFinished)
	}
	if s := w.sorter.Load(); s != nil {
		return s, nil
	}
	if err := w.makeDirLocked(); err != nil {
		return nil, err
	}
	return w.startSorterLocked(nil)
}

func (w *BucketWriter) startSorterLocked(runs []extsort.Run) (*extsort.Sorter, error) {
	dir := filepath.Join(w.path(), runsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, w.explain(fmt.Errorf("work directory: %w", err))
	}
	s, err := extsort.Resume(extsort.Config{
		Dir: dir, Memory: w.s.o.Memory / int64(len(w.s.open)), Parallelism: w.s.o.Parallelism,
		Progress: w.sorted,
	}, runs)
	if err != nil {
		return nil, err
	}
	w.sorter.Store(s)
	return s, nil
}

// sorted passes a sorter's counters on.
func (w *BucketWriter) sorted(p extsort.Progress) {
	w.s.notify.progress(w.id, func(q *Progress) {
		q.Rows, q.Spilled, q.Merged = w.rows.Load(), p.Spilled, p.Merged
	})
}

// path is the bucket's directory.
func (w *BucketWriter) path() string { return filepath.Join(w.s.o.WorkDir, w.dir) }

// dirPattern is the name of a bucket's directory up to its random end. Close
// removes only directories that this session made or resumed.
func (l *load) dirPattern(bucket int) string {
	return fmt.Sprintf("%s%d-", dirPrefix(l.bc), bucket)
}

func dirPrefix(bc *BuildContext) string {
	return fmt.Sprintf("fluss-bulkload-%s-bucket-", bc.Handle.BulkLoadID)
}

// WorkDirPattern matches the names of all directories that sessions of a load make in
// OpenOptions.WorkDir, as path.Match does. Close leaves those of a process that was
// killed: whoever knows that the load is over may remove them.
func WorkDirPattern(bc *BuildContext) string { return dirPrefix(bc) + "*" }

func (w *BucketWriter) makeDirLocked() error {
	if w.dir != "" {
		return nil
	}
	dir, err := os.MkdirTemp(w.s.o.WorkDir, w.s.load.dirPattern(w.id))
	if err != nil {
		return w.explain(fmt.Errorf("work directory: %w", err))
	}
	w.dir = filepath.Base(dir)
	return nil
}

// explain names what happened in this package's terms.
func (w *BucketWriter) explain(err error) error {
	switch {
	case errors.Is(err, extsort.ErrInterrupted):
		return ErrClosed
	case isNoSpace(err) && !errors.Is(err, ErrNoSpace):
		return fmt.Errorf("bucket %d: %w: %w", w.id, ErrNoSpace, err)
	}
	return fmt.Errorf("bucket %d: %w", w.id, err)
}

// Finish merges, writes and uploads the bucket. It may be repeated after an error,
// and goes on where it stopped; no rows can be added meanwhile. After a success it
// is ErrFinished.
func (w *BucketWriter) Finish(ctx context.Context) (BucketFiles, error) {
	return w.finish(ctx, w.s.load.plannedOffset, false)
}

// FinishAt is Finish for loads whose plan leaves the snapshot's log offset to the
// caller (rule "caller").
func (w *BucketWriter) FinishAt(ctx context.Context, logOffset int64) (BucketFiles, error) {
	if rule := w.s.load.bc.Plan.LogOffset; rule != logOffsetCaller || logOffset < 0 {
		return BucketFiles{}, fmt.Errorf("log offset %d cannot be set: the plan's rule is %q", logOffset, rule)
	}
	return w.finish(ctx, func(int64) (int64, error) { return logOffset, nil }, false)
}

// finishOnce is Finish that returns the result again.
func (w *BucketWriter) finishOnce(ctx context.Context) (BucketFiles, error) {
	return w.finish(ctx, w.s.load.plannedOffset, true)
}

// plannedOffset is the log offset of a snapshot with that many rows.
func (l *load) plannedOffset(rows int64) (int64, error) {
	switch l.bc.Plan.LogOffset {
	case logOffsetZero:
		return 0, nil
	case logOffsetRows:
		return rows, nil
	}
	return 0, fmt.Errorf("the plan leaves the log offset to the caller: use BucketWriter.FinishAt")
}

func (w *BucketWriter) finish(ctx context.Context, offset func(rows int64) (int64, error), again bool) (BucketFiles, error) {
	w.finishing.Lock()
	defer w.finishing.Unlock()
	if files := w.result(); files != nil {
		if again {
			return *files, nil
		}
		return BucketFiles{}, fmt.Errorf("bucket %d: %w", w.id, ErrFinished)
	}
	ctx, stop := w.s.within(ctx)
	defer stop()
	files, err := w.finishSteps(ctx, offset)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, ErrClosed) {
			return BucketFiles{}, cause
		}
		return BucketFiles{}, w.explain(err)
	}
	w.s.notify.finished(files)
	return files, nil
}

func (w *BucketWriter) finishSteps(ctx context.Context, offset func(rows int64) (int64, error)) (BucketFiles, error) {
	built, err := w.build(ctx)
	if err != nil {
		return BucketFiles{}, err
	}
	at, err := offset(built.Rows)
	if err != nil {
		return BucketFiles{}, err
	}
	files, err := w.deliver(ctx, built, at)
	if err != nil {
		return BucketFiles{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files = &files
	// The files are stored; only a checkpoint may still need the runs.
	return files, os.RemoveAll(filepath.Join(w.path(), dbDir))
}

func (w *BucketWriter) result() *BucketFiles {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.files
}

func (w *BucketWriter) done() bool { return w.result() != nil }

// close interrupts what runs and removes the bucket's directory unless it is kept.
func (w *BucketWriter) close(keep bool) error {
	if s := w.sorter.Load(); s != nil {
		s.Interrupt()
	}
	w.finishing.Lock()
	defer w.finishing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	if s := w.sorter.Swap(nil); s != nil {
		err = s.Close()
	}
	if w.dir != "" && !keep {
		err = errors.Join(err, os.RemoveAll(w.path()))
	}
	return err
}
