package extsort

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/fluss-sluice/sluice/internal/durable"
)

// Kinds of failure, for errors.Is. See also ErrCorrupt.
var (
	// ErrNoSpace marks a full disk. Nothing is lost: free space and call again.
	ErrNoSpace = errors.New("no space left for sort runs")
	// ErrTooLarge marks a record that does not fit the memory budget.
	ErrTooLarge = errors.New("record is too large for the sort memory")
	// ErrInterrupted marks a call that Interrupt or Close ended.
	ErrInterrupted = errors.New("sort was interrupted")
)

const (
	// MinMemory is the smallest budget, in bytes.
	MinMemory = 256 << 10
	// DefaultMemory is the budget when none is set.
	DefaultMemory = 256 << 20

	segments  = 4   // pieces of the budget
	maxFanIn  = 256 // runs read at once, a bound on open files
	maxBlock  = 128 << 10
	minBlock  = 4 << 10
	runPrefix = "run-"
	runSuffix = ".slx"
)

// Config says where and how to sort. Dir is required.
type Config struct {
	// Dir is an existing directory for runs; nothing else may write run-*.slx there.
	Dir string
	// Memory is the budget in bytes for records, their index and the buffers of runs
	// being merged; 0 means DefaultMemory.
	Memory int64
	// Parallelism is the number of segments sorted and written at once, beside the
	// goroutine that adds; 0 means GOMAXPROCS.
	Parallelism int
	// Progress, when set, is called now and then, never twice at a time. It must not
	// call the sorter.
	Progress func(Progress)
}

// Progress is a snapshot of a sorter's counters.
type Progress struct {
	Added   int64 // records in full segments and runs
	Spilled int64 // bytes written to runs
	Runs    int   // runs on disk
	Merged  int64 // records emitted by the running Merge
}

// Stats sums up a merge.
type Stats struct {
	Added   int64 // records added; those in resumed runs count once per key and run
	Emitted int64 // distinct keys
	Runs    int   // runs merged at the end
	Spilled int64 // bytes written to runs, merges included
}

// Sorter sorts. One goroutine at a time calls its methods, except Interrupt.
type Sorter struct {
	dir         string
	memory      int64
	segmentSize int
	blockSize   int
	parallelism int
	create      func(path string) (outFile, error)
	progress    func(Progress)
	progressMu  sync.Mutex // held while progress runs

	cur *segment // being filled; owned by the caller's goroutine

	jobs sync.WaitGroup // background goroutines

	mu       sync.Mutex
	changed  sync.Cond
	free     []*segment // empty
	held     []*segment // full, by age, not being spilled
	spilling int
	sorting  int
	total    int        // segments that exist
	runs     []*runFile // by age
	stale    []*runFile // sealed, but replaced by a merge of runs
	overflow bool       // what was added does not fit in memory
	spillErr error      // of a background spill, for the next call
	stopped  bool
	age      uint64 // of the youngest segment
	files    uint64 // number of the latest run file
	stats    Progress
}

// New starts an empty sorter. Runs that lie in the directory are removed: they are
// leftovers of a crash, or Resume would have been given them.
func New(c Config) (*Sorter, error) { return Resume(c, nil) }

// Resume starts a sorter that holds sealed runs, given as Seal listed them. Other
// runs in the directory are leftovers of a crash and are removed.
func Resume(c Config, runs []Run) (*Sorter, error) {
	s, err := configure(c)
	if err != nil {
		return nil, err
	}
	if err := s.adopt(runs); err != nil {
		return nil, err
	}
	return s, nil
}

func configure(c Config) (*Sorter, error) {
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.Memory < MinMemory {
		return nil, fmt.Errorf("sort memory is %d bytes, want at least %d", c.Memory, MinMemory)
	}
	if c.Parallelism <= 0 {
		c.Parallelism = runtime.GOMAXPROCS(0)
	}
	st, err := os.Stat(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("sort directory: %w", err)
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("sort directory %s is not a directory", c.Dir)
	}
	s := &Sorter{dir: c.Dir, memory: c.Memory, parallelism: min(c.Parallelism, segments-1), progress: c.Progress}
	s.blockSize = int(min(max(c.Memory/64, minBlock), maxBlock))
	// Each background goroutine holds one block while it writes.
	s.segmentSize = (int(c.Memory) - s.parallelism*(s.blockSize+s.blockSize/4)) / segments
	s.changed.L = &s.mu
	s.create = func(path string) (outFile, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	return s, nil
}

// adopt opens sealed runs, gives them ages in their order, and removes others.
func (s *Sorter) adopt(runs []Run) error {
	keep := map[string]bool{}
	for _, want := range runs {
		if want.Name != filepath.Base(want.Name) || !isRunName(want.Name) || keep[want.Name] {
			return fmt.Errorf("%q is not the name of a sort run", want.Name)
		}
		r, err := openRun(s.dir, want)
		if err != nil {
			return err
		}
		keep[want.Name] = true
		s.files = max(s.files, runNumber(want.Name))
		s.age++
		r.age = s.age
		s.runs = append(s.runs, r)
		s.stats.Added += r.Records
		s.stats.Runs++
	}
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("sort directory: %w", err)
	}
	for _, e := range names {
		if isRunName(e.Name()) && !keep[e.Name()] {
			if err := os.Remove(filepath.Join(s.dir, e.Name())); err != nil {
				return fmt.Errorf("remove the leftover of an earlier sort: %w", err)
			}
		}
	}
	return nil
}

func isRunName(name string) bool { return runNumber(name) > 0 }

// runNumber is the number in a run's file name, 0 for other names.
func runNumber(name string) uint64 {
	digits, ok := strings.CutPrefix(name, runPrefix)
	digits, ok2 := strings.CutSuffix(digits, runSuffix)
	n, err := strconv.ParseUint(digits, 10, 63)
	if !ok || !ok2 || err != nil {
		return 0
	}
	return n
}

// Add copies a pair. The last Add of a key wins. When Add fails, the pair was not
// added and everything before it is still there.
func (s *Sorter) Add(key, value []byte) error {
	if s.cur != nil && s.cur.put(key, value) {
		return nil
	}
	return s.addSlowly(key, value)
}

func (s *Sorter) addSlowly(key, value []byte) error {
	if need, most := recordSize(len(key), len(value)), s.segmentSize*7/8-entrySize; need > most {
		return fmt.Errorf("%w: it takes %d bytes, at most %d fit; raise the memory", ErrTooLarge, need, most)
	}
	if s.startSpilling() && s.cur.put(key, value) {
		return nil
	}
	s.handOver()
	seg, err := s.takeFree()
	if err != nil {
		return err
	}
	s.cur = seg
	seg.put(key, value)
	s.report()
	return nil
}

// startSpilling reports whether the segment being filled was the last free one and
// held back its last eighth: up to there everything may still fit in memory.
func (s *Sorter) startSpilling() bool {
	if s.cur == nil || s.cur.limit == len(s.cur.mem) {
		return false
	}
	s.cur.limit = len(s.cur.mem)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overflow = true
	s.balanceLocked()
	return true
}

// handOver gives the segment being filled to the background.
func (s *Sorter) handOver() {
	seg := s.cur
	if seg == nil {
		return
	}
	s.cur = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if seg.n == 0 {
		s.free = append(s.free, seg)
		return
	}
	s.age++
	seg.age = s.age
	s.stats.Added += int64(seg.n)
	s.held = append(s.held, seg)
	s.sortLocked()
}

// sortLocked starts sorting held segments, as far as parallelism allows. A segment
// is taken out of held while it is sorted.
func (s *Sorter) sortLocked() {
	for !s.stopped && s.sorting+s.spilling < s.parallelism {
		i := slices.IndexFunc(s.held, func(g *segment) bool { return g.sorted == nil })
		if i < 0 {
			return
		}
		seg := s.held[i]
		s.held = slices.Delete(s.held, i, i+1)
		s.sorting++
		s.jobs.Go(func() { s.sortJob(seg) })
	}
}

func (s *Sorter) sortJob(seg *segment) {
	seg.sort()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sorting--
	s.holdLocked(seg)
	s.balanceLocked()
}

// holdLocked puts a segment back among the held ones, by age.
func (s *Sorter) holdLocked(seg *segment) {
	i, _ := slices.BinarySearchFunc(s.held, seg.age, func(g *segment, age uint64) int { return cmp.Compare(g.age, age) })
	s.held = slices.Insert(s.held, i, seg)
}

// balanceLocked starts what should run in the background now, and wakes waiters.
// Spills begin when no segment is free, so that what fits in memory stays there.
func (s *Sorter) balanceLocked() {
	if s.overflow && s.spillErr == nil && len(s.free) == 0 && s.total == segments {
		s.spillLocked(s.parallelism)
	}
	s.sortLocked()
	s.changed.Broadcast()
}

// spillLocked starts spilling the oldest segments until n jobs run.
func (s *Sorter) spillLocked(n int) {
	for !s.stopped && len(s.held) > 0 && s.sorting+s.spilling < n {
		seg := s.held[0]
		s.held = slices.Delete(s.held, 0, 1)
		s.spilling++
		s.jobs.Go(func() { s.spillJob(seg) })
	}
}

func (s *Sorter) spillJob(seg *segment) {
	seg.sort()
	r, err := s.writeSegment(seg)
	s.mu.Lock()
	s.spilling--
	if err != nil {
		s.holdLocked(seg)
		s.spillErr = cmp.Or(s.spillErr, err)
	} else {
		seg.reset()
		s.free = append(s.free, seg)
		s.addRunLocked(r)
	}
	s.balanceLocked()
	s.mu.Unlock()
	s.report()
}

func (s *Sorter) addRunLocked(r *runFile) {
	i, _ := slices.BinarySearchFunc(s.runs, r.age, func(f *runFile, age uint64) int { return cmp.Compare(f.age, age) })
	s.runs = slices.Insert(s.runs, i, r)
	s.stats.Runs = len(s.runs)
	s.stats.Spilled += r.Size
}

// takeFree returns an empty segment, waiting for a spill when there is none.
func (s *Sorter) takeFree() (*segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A spill in the background may have failed long ago. What counts is whether
	// there is space now, so a failure is tried once more before it is reported.
	retried := false
	for len(s.free) == 0 && s.total == segments && !s.stopped {
		if s.spillErr != nil && s.spilling == 0 {
			if retried {
				break
			}
			retried = true
			s.spillErr = nil
		}
		s.overflow = true
		s.balanceLocked()
		s.changed.Wait()
	}
	switch {
	case s.stopped:
		return nil, ErrInterrupted
	case len(s.free) > 0:
		seg := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.balanceLocked()
		return seg, nil
	case s.total < segments:
		return s.growLocked()
	}
	return nil, s.takeErrLocked()
}

// growLocked makes one more segment.
func (s *Sorter) growLocked() (*segment, error) {
	seg, err := newSegment(s.segmentSize)
	if err != nil {
		return nil, err
	}
	s.total++
	if s.total == segments && !s.overflow {
		seg.limit -= seg.limit / 8
	}
	s.balanceLocked()
	return seg, nil
}

func (s *Sorter) takeErrLocked() error {
	err := s.spillErr
	s.spillErr = nil
	return err
}

func (s *Sorter) nextRunPath() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files++
	return filepath.Join(s.dir, fmt.Sprintf("%s%08d%s", runPrefix, s.files, runSuffix))
}

// writeSegment writes a sorted segment as a run.
func (s *Sorter) writeSegment(seg *segment) (*runFile, error) {
	return s.writeRun(seg.age, func(w *runWriter) error {
		c := cursor{seg: seg}
		for n := 0; c.nextInSegment(); n++ {
			if n%checkEvery == 0 && s.isStopped() {
				return ErrInterrupted
			}
			if err := w.add(c.whole, c.key); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Sorter) writeRun(age uint64, fill func(w *runWriter) error) (*runFile, error) {
	path := s.nextRunPath()
	f, err := s.create(path)
	if err != nil {
		return nil, fmt.Errorf("create sort run: %w", noSpace(err))
	}
	w, err := newRunWriter(f, path, s.blockSize)
	if err == nil {
		err = fill(w)
	}
	var r *runFile
	if err == nil {
		r, err = w.finish(age)
	}
	if err != nil {
		w.abandon()
		return nil, err
	}
	return r, nil
}

func (s *Sorter) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// noSpace marks a full disk.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// settle hands over what is being filled and waits until done holds, or ctx ends,
// or a background spill fails. step runs before each wait, with the lock held. As in
// takeFree, a failure is old news until it has happened twice, and none is left
// behind for a later call.
func (s *Sorter) settle(ctx context.Context, step func(), done func() bool) error {
	s.handOver()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	retried := false
	for {
		switch {
		case s.stopped:
			return ErrInterrupted
		case ctx.Err() != nil:
			return ctx.Err()
		case s.spillErr != nil && s.spilling > 0:
			s.changed.Wait()
			continue
		case s.spillErr != nil && retried:
			return s.takeErrLocked()
		case s.spillErr != nil:
			retried, s.spillErr = true, nil
			continue
		case done():
			return nil
		}
		step()
		s.changed.Wait()
	}
}

// Seal writes everything added so far to durable runs and lists all of them, the
// oldest first. Sealed runs survive Close.
func (s *Sorter) Seal(ctx context.Context) ([]Run, error) {
	spill := func() { s.spillLocked(s.parallelism) }
	idle := func() bool { return len(s.held) == 0 && s.sorting+s.spilling == 0 }
	if err := s.settle(ctx, spill, idle); err != nil {
		return nil, err
	}
	s.report()
	if err := s.syncRuns(); err != nil {
		return nil, err
	}
	list := make([]Run, len(s.runs))
	for i, r := range s.runs {
		r.sealed = true
		list[i] = r.Run
	}
	return list, nil
}

func (s *Sorter) syncRuns() error {
	for _, r := range s.runs {
		if r.synced {
			continue
		}
		if err := syncFile(filepath.Join(s.dir, r.Name)); err != nil {
			return fmt.Errorf("make sort run %s durable: %w", r.Name, noSpace(err))
		}
		r.synced = true
	}
	if err := durable.SyncDir(s.dir); err != nil {
		return fmt.Errorf("make sort directory durable: %w", err)
	}
	return nil
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Interrupt makes a call that runs or waits on another goroutine, and every later
// one, fail with ErrInterrupted. Only Close and Discard are of use afterwards.
func (s *Sorter) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.changed.Broadcast()
}

// Close gives the memory back and removes every run that was never sealed. It must
// not run beside another call: Interrupt and wait for that one first.
func (s *Sorter) Close() error { return s.end(false) }

// Discard is Close that removes sealed runs too.
func (s *Sorter) Discard() error { return s.end(true) }

func (s *Sorter) end(everything bool) error {
	s.Interrupt()
	s.jobs.Wait()
	if s.cur != nil {
		s.free = append(s.free, s.cur)
	}
	for _, seg := range slices.Concat(s.free, s.held) {
		seg.free()
	}
	s.cur, s.free, s.held, s.total = nil, nil, nil, 0
	var errs []error
	for _, r := range slices.Concat(s.runs, s.stale) {
		if everything || !r.sealed {
			if err := os.Remove(filepath.Join(s.dir, r.Name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove sort run: %w", err))
			}
		}
	}
	s.runs, s.stale = nil, nil
	return errors.Join(errs...)
}

// report calls the progress function.
func (s *Sorter) report() {
	if s.progress == nil {
		return
	}
	s.progressMu.Lock()
	defer s.progressMu.Unlock()
	s.mu.Lock()
	p := s.stats
	s.mu.Unlock()
	s.progress(p)
}
