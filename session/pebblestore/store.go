// Package pebblestore keeps sessions and grants in a Pebble database: the store of
// a single broker.
//
// Every change is one batch, a record with its indexes, written with a synced
// write-ahead log; concurrent changes share syncs. A change holds the locks of the
// records it touches until it is durable, and reads wait for those locks: nobody
// acts on a record that a crash could still take back.
//
// A failed write leaves the database in a state only a restart can tell (an error
// may hide a success). The store then refuses everything with ErrFailed; a new
// process that opens the directory finds the records as they are. A damaged record
// is an error of its own (ErrCorrupt names its key) and does not stop the others.
//
// One process at a time owns the directory, which is its user's only. A store with
// missing or damaged files is not opened, nor made anew: the error is ErrCorrupt and
// says to restore the directory. What cannot be told from a power cut is treated as
// one: a log ends at its first damaged entry, and of several logs the newest may be
// missing. The format is described in codec.go.
package pebblestore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble"
	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/session"
)

var (
	// ErrFailed is returned once a write has failed.
	ErrFailed = errors.New("session store failed; the process must be restarted")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("session store is closed")
)

// Options of a store; the zero value is fit for production.
type Options struct {
	FS     vfs.FS       // nil: the operating system's
	Logger *slog.Logger // nil: discards

	memTableSize uint64 // tests make it small
}

// Store implements session.Store.
type Store struct {
	db  *pebble.DB
	dir *pebble.Lock // on the directory
	log *slog.Logger

	// open is read-locked by every operation, so that Close waits for them.
	open   sync.RWMutex
	closed bool // guarded by open

	failure atomic.Pointer[error] // first failed write
	failed  chan struct{}         // closed with it
	warned  atomic.Int64          // when backgroundError last logged, ns since 1970

	locks [1024]sync.RWMutex // by hash of what lockFor names
	seed  maphash.Seed

	// grants is write-locked where grants are deleted and read-locked where one is
	// changed: a change must not bring a deleted grant back. It is taken before locks.
	grants sync.RWMutex

	// values is write-locked while values of a KV change, until that is durable.
	values sync.RWMutex

	activeMu sync.Mutex
	active   int // unfinished sessions, including those being created
}

var _ session.Store = (*Store)(nil)

// Open opens the store in dir and creates it when it does not exist.
func Open(dir string, o Options) (*Store, error) {
	s := &Store{log: o.Logger, seed: maphash.MakeSeed(), failed: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	fail := func(err error) (*Store, error) {
		return nil, fmt.Errorf("open session store %s: %w", dir, err)
	}
	if err := s.makeDir(dir, o.FS); err != nil {
		return fail(err)
	}
	fs := o.FS
	if fs == nil {
		fs = vfs.Default
	}
	var err error
	if s.dir, err = pebble.LockDirectory(dir, fs); err != nil {
		return fail(fmt.Errorf("lock it: %w", err))
	}
	err = checkFiles(dir, fs)
	if err == nil {
		err = s.openDB(dir, o)
	}
	if err == nil {
		err = s.Err()
	}
	if err == nil {
		err = s.checkVersion()
	}
	if err == nil {
		s.active, err = s.countActive()
	}
	if err != nil {
		return fail(errors.Join(damage(dir, err), s.Close()))
	}
	return s, nil
}

func (s *Store) openDB(dir string, o Options) error {
	return s.guard(func() (err error) {
		s.db, err = pebble.Open(dir, &pebble.Options{
			FS:                 o.FS,
			Lock:               s.dir,
			FormatMajorVersion: pebble.FormatNewest,
			MemTableSize:       o.memTableSize,
			Logger:             dbLogger{s},
			EventListener:      &pebble.EventListener{BackgroundError: s.backgroundError},
		})
		return err
	})
}

// guard runs a call of pebble that writes. On failures pebble panics or calls Fatalf,
// which must not return, and may leave its locks taken: the call gets a goroutine of
// its own that can end there, and nobody waits for it once the store has failed.
func (s *Store) guard(do func() error) error {
	done := make(chan error, 1)
	go func() {
		err, returned := error(nil), false
		defer func() {
			if r := recover(); r != nil {
				s.fail(panicked(r))
			}
			if !returned {
				err = s.Err()
			}
			done <- err
		}()
		err = do()
		returned = true
	}()
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-s.failed:
	}
	return s.Err()
}

// panicked makes an error of what pebble panicked with: a failed write, or what a
// file held that it relied on.
func panicked(r any) error {
	if e, ok := r.(runtime.Error); ok {
		return fmt.Errorf("pebble panicked: %w", e)
	}
	return fmt.Errorf("%w: %v", errWrite, r)
}

// dbLogger receives pebble's messages.
type dbLogger struct{ s *Store }

func (dbLogger) Infof(string, ...any) {}

func (l dbLogger) Errorf(format string, args ...any) {
	l.s.log.Error("session store: " + fmt.Sprintf(format, args...))
}

// Fatalf is how pebble reports that it could not write its log or its manifest. It
// must not return; pebble's own ends the process. Here it ends the goroutine, which
// is one of pebble's or of guard.
func (l dbLogger) Fatalf(format string, args ...any) {
	l.s.fail(fmt.Errorf("%w: %w", errWrite, fmt.Errorf(format, args...)))
	runtime.Goexit()
}

// backgroundError is called when a flush or a compaction failed, before pebble tries
// again at once. A damaged table concerns whoever reads it; any other failure ends
// with writes that wait for ever, so the store fails before that.
func (s *Store) backgroundError(err error) {
	if !errors.Is(err, pebble.ErrCorruption) {
		s.fail(fmt.Errorf("background work: %w", err))
		time.Sleep(time.Second) // nothing will succeed; leave the processor to others
		return
	}
	now := time.Now().UnixNano()
	if last := s.warned.Load(); now-last > int64(time.Minute) && s.warned.CompareAndSwap(last, now) {
		s.log.Error("session store: damaged table", "err", err)
	}
	time.Sleep(10 * time.Millisecond) // pebble's locks are held: writes wait for this
}

// checkVersion marks a new database and refuses one that this code does not read.
func (s *Store) checkVersion() error {
	v, err := s.get([]byte{keyVersion})
	switch {
	case err != nil:
		return err
	case len(v) == 1 && v[0] == storeVersion:
		return nil
	case v != nil:
		return fmt.Errorf("%w: store version %d; it reads version %d", errForeign, v, storeVersion)
	}
	empty := true
	if err := s.scan(nil, nil, func(_, _ []byte) (bool, error) { empty = false; return false, nil }); err != nil {
		return err
	}
	if !empty {
		return fmt.Errorf("%w: the directory holds another kind of database", errForeign)
	}
	b := s.db.NewBatch()
	set(b, []byte{keyVersion}, []byte{storeVersion})
	return s.commit(b)
}

func (s *Store) countActive() (n int, err error) {
	err = s.scanPrefix([]byte{keyActive}, func(_, _ []byte) (bool, error) { n++; return true, nil })
	return n, err
}

// Close closes the database. It waits for running operations. A store that failed
// is abandoned instead: closing it could wait for ever, and its directory stays
// locked until the process ends.
func (s *Store) Close() error {
	if err := s.Err(); err != nil {
		return err
	}
	s.open.Lock()
	defer s.open.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var err error
	if s.db != nil {
		err = s.guard(s.db.Close)
	}
	return errors.Join(err, s.dir.Close())
}

// Err returns the failure that made the store refuse everything, nil while it
// works.
func (s *Store) Err() error {
	if p := s.failure.Load(); p != nil {
		return fmt.Errorf("%w: %w", ErrFailed, *p)
	}
	return nil
}

// Failed is closed when Err becomes an error.
func (s *Store) Failed() <-chan struct{} { return s.failed }

func (s *Store) fail(err error) {
	if s.failure.CompareAndSwap(nil, &err) {
		s.log.Error("session store failed", "err", err)
		close(s.failed)
	}
}

// enter begins an operation; leave ends it.
func (s *Store) enter(ctx context.Context) error {
	s.open.RLock()
	err := ctx.Err()
	switch {
	case err != nil:
	case s.closed:
		err = ErrClosed
	default:
		err = s.Err()
	}
	if err != nil {
		s.open.RUnlock()
	}
	return err
}

func (s *Store) leave() { s.open.RUnlock() }

// lock write-locks what the keys name and returns the unlocking. All keys of an
// operation are taken in one call, in one global order.
func (s *Store) lock(keys ...[]byte) (unlock func()) {
	stripes := make([]int, len(keys))
	for i, k := range keys {
		stripes[i] = s.stripe(k)
	}
	slices.Sort(stripes)
	stripes = slices.Compact(stripes)
	for _, i := range stripes {
		s.locks[i].Lock()
	}
	return func() {
		for _, i := range stripes {
			s.locks[i].Unlock()
		}
	}
}

// rlock waits until no change of key is under way. A goroutine holds one at most.
func (s *Store) rlock(key []byte) (unlock func()) {
	l := &s.locks[s.stripe(key)]
	l.RLock()
	return l.RUnlock
}

func (s *Store) stripe(key []byte) int {
	return int(maphash.Bytes(s.seed, key) % uint64(len(s.locks)))
}

// get returns a copy of a value, nil when the key is absent.
func (s *Store) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, s.readError(key, err)
	}
	v = append([]byte{}, v...)
	// A write that failed while this read waited for it may be visible and not stored.
	return v, errors.Join(closer.Close(), s.Err())
}

func (s *Store) readError(key []byte, err error) error {
	if errors.Is(err, pebble.ErrCorruption) {
		return corrupt(key, "%w", err)
	}
	return fmt.Errorf("read key %q: %w", key, err)
}

// scan calls f for the keys in [lower, upper) until it returns false. f must not
// keep the slices.
func (s *Store) scan(lower, upper []byte, f func(k, v []byte) (bool, error)) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return s.readError(lower, err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		more, err := f(it.Key(), it.Value())
		if err != nil {
			return errors.Join(err, it.Close())
		}
		if !more {
			return it.Close()
		}
	}
	if err := it.Error(); err != nil {
		return errors.Join(s.readError(lower, err), it.Close())
	}
	return it.Close()
}

func (s *Store) scanPrefix(prefix []byte, f func(k, v []byte) (bool, error)) error {
	return s.scan(prefix, prefixEnd(prefix), f)
}

// set and del ignore errors: a batch in memory has none.
func set(b *pebble.Batch, key, value []byte) { _ = b.Set(key, value, nil) }
func del(b *pebble.Batch, key []byte)        { _ = b.Delete(key, nil) }

// commit writes a batch durably. After an error the outcome is open and the store
// has failed.
func (s *Store) commit(b *pebble.Batch) error {
	if err := s.Err(); err != nil {
		return err
	}
	durable.Point("pebblestore.write")
	if err := s.guard(func() error { return b.Commit(pebble.Sync) }); err != nil {
		s.fail(err)
		return s.Err()
	}
	durable.Point("pebblestore.written")
	return b.Close()
}

func epochOf(key, v []byte) (int64, error) {
	if v == nil {
		return 0, nil
	}
	if len(v) != 8 {
		return 0, corrupt(key, "an epoch of %d bytes", len(v))
	}
	e := int64(binary.BigEndian.Uint64(v))
	if e < 1 {
		return 0, corrupt(key, "epoch %d", e)
	}
	return e, nil
}

// Verify reads everything and checks every record, index and cross reference. It
// reports all it finds. Changes must not run meanwhile.
func (s *Store) Verify(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	v := verifier{want: map[string][]byte{}, have: map[string][]byte{}}
	err := s.scan(nil, nil, func(k, val []byte) (bool, error) {
		v.visit(bytes.Clone(k), bytes.Clone(val))
		return true, ctx.Err()
	})
	return errors.Join(append(v.errs, err, v.compare())...)
}

// verifier derives the indexes that the records call for and compares them with
// those that exist.
type verifier struct {
	want, have map[string][]byte
	epochs     []session.Session
	errs       []error
}

func (v *verifier) visit(k, val []byte) {
	switch k[0] {
	case keyVersion:
	case keySession:
		s, err := decodeSession(k, val)
		if err != nil {
			v.errs = append(v.errs, err)
			return
		}
		v.session(s)
	case keyGrant:
		g, err := decodeGrant(k, val)
		if err != nil {
			v.errs = append(v.errs, err)
			return
		}
		v.want[string(expiryKey(g.ExpiresAt, g.ID))] = []byte(g.SessionID)
		if g.SessionID != "" {
			v.want[string(holdsKey(g.SessionID, g.ID))] = expiryBytes(g.ExpiresAt)
		}
	case keyValue:
		if _, _, err := decodeValue(k, val); err != nil {
			v.errs = append(v.errs, err)
		}
	default:
		v.have[string(k)] = val
	}
}

func (v *verifier) session(s session.Session) {
	id := []byte(s.ID)
	v.want[string(targetKey(s.Target, s.ID))] = []byte{}
	v.want[string(submissionKey(s.Creator, s.Target, s.SubmissionID))] = id
	v.epochs = append(v.epochs, s)
	if s.Terminal() {
		return
	}
	k := activeKey(s.Target)
	if other, ok := v.want[string(k)]; ok {
		v.errs = append(v.errs, corrupt(k, "sessions %s and %s are both unfinished", other, id))
	}
	v.want[string(k)] = id
}

func (v *verifier) compare() error {
	var errs []error
	for _, s := range v.epochs {
		k := epochKey(s.Target)
		if e, err := epochOf(k, v.have[string(k)]); err != nil || e < s.Epoch {
			errs = append(errs, corrupt(k, "epoch %d, but session %s has %d (%v)", e, s.ID, s.Epoch, err))
		}
	}
	for k, val := range v.want {
		if got, ok := v.have[k]; !ok || !bytes.Equal(got, val) {
			errs = append(errs, corrupt([]byte(k), "index is %q (present: %v), the record says %q", got, ok, val))
		}
	}
	for k := range v.have {
		if _, ok := v.want[k]; !ok && k[0] != keyEpoch {
			errs = append(errs, corrupt([]byte(k), "index without a record"))
		}
	}
	return errors.Join(errs...)
}
