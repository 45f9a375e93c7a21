package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// OnFull says what a full disk does.
type OnFull string

// What a full disk does.
const (
	Stop     OnFull = "stop"     // nothing is done that cannot be recorded
	Continue OnFull = "continue" // events are lost and counted; a Note says how many
)

// Config configures a Log. Its zero value is one that keeps everything for ever.
type Config struct {
	// Sync makes every event survive power loss (one fsync, shared by events that
	// arrive together); without it an event survives the death of the process only.
	Sync bool
	// MaxSize and MaxAge end a segment; 0 = 64 MiB and 24 h. A segment without events is
	// not ended by its age.
	MaxSize int64
	MaxAge  time.Duration
	// Keep deletes segments that ended longer ago, KeepBytes the oldest above a total
	// size; 0 = never. With Copy, what was not copied is not deleted.
	Keep      time.Duration
	KeepBytes int64
	// OnFull is what a full disk does; "" = Stop. Other failures always stop.
	OnFull OnFull
	// Redact drops fields of events: see CheckRedaction.
	Redact []string
	// Copy receives every segment that has ended, under its name; nil = none.
	Copy Copier

	Now    func() time.Time // nil = time.Now
	Logger *slog.Logger     // nil = discard
}

// Copier is what copying needs of an object store. It never replaces or deletes.
type Copier interface {
	objstore.Reader
	objstore.Writer
}

const (
	defaultSize = 64 << 20
	defaultAge  = 24 * time.Hour
	// tendEvery is how often ages are looked at, and copies that failed tried again.
	tendEvery = time.Minute
	// quietFor is the pause between complaints about the same trouble.
	quietFor = 10 * time.Second
	// keepBuffer is the largest line buffer that is kept between events.
	keepBuffer = 1 << 20
)

// Log is a decision log that is being written. One process writes a directory.
type Log struct {
	c    Config
	fs   fileSystem
	lock io.Closer
	drop redaction

	mu     sync.Mutex
	closed bool
	active *segment // nil: the next segment is still to be begun
	torn   bool     // the active file may hold more than pos.size
	pos    position
	synced position // what is known to be durable, of the active segment
	gen    uint64   // counts the times that pos went back
	back   error    // why it did last
	buf    []byte
	old    []ended // ended segments, the oldest first
	fails  failures
	stats  Stats

	// syncing is held while the active file is synced, one at a time. It is locked
	// before mu.
	syncing sync.Mutex

	kick chan struct{} // wakes the keeper
	stop context.CancelFunc
	done sync.WaitGroup
}

// position is a place in the log: behind line seq. refused and lost are the failures
// that lines up to it tell of.
type position struct {
	seq           uint64
	hash          digest
	size          int64 // of the active file
	refused, lost uint64
}

type segment struct {
	f      file
	name   string
	first  uint64
	begun  time.Time
	events int
}

// ended is a segment that is written no more.
type ended struct {
	Anchor
	size   int64
	at     time.Time // when the one behind it was begun
	copied bool
}

// failures are the events that could not be written since the log was opened.
type failures struct {
	refused, lost uint64
	since         time.Time // of the first that no line tells of yet
	err           error
	told          time.Time // when the logger was told last
}

// Stats counts since the log was opened, but for Seq, Segments and Bytes.
type Stats struct {
	Seq      uint64 // of the last line
	Segments int
	Bytes    int64 // of all segments here
	Events   uint64
	Refused  uint64 // events that could not be written; what they tell of was not done
	Lost     uint64 // events that could not be written; what they tell of was done
	Copied   uint64 // segments
	Uncopied int    // ended segments that are still to be copied
	Failed   uint64 // attempts to copy or to delete that failed
	Removed  uint64 // segments deleted by retention
}

var errClosed = errors.New("closed")

// Open opens or begins the log in a directory, which it makes (0700). What a crash left
// of a last line is cut off, and a line says so.
func Open(dir string, c Config) (*Log, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("decision log %s: %w", dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("decision log %s: %w", dir, err)
	}
	l, err := openOn(dirSource(dir), c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("decision log %s: %w", dir, err), lock.Close())
	}
	l.lock = lock
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.done.Go(func() { l.keeper(ctx) })
	return l, nil
}

// openOn opens the log without its keeper.
func openOn(fs fileSystem, c Config) (*Log, error) {
	if c.MaxSize == 0 {
		c.MaxSize = defaultSize
	}
	if c.MaxAge == 0 {
		c.MaxAge = defaultAge
	}
	if c.OnFull == "" {
		c.OnFull = Stop
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxSize < 0 || c.MaxAge < 0 || c.Keep < 0 || c.KeepBytes < 0 {
		return nil, errors.New("sizes and ages must not be negative")
	}
	if c.OnFull != Stop && c.OnFull != Continue {
		return nil, fmt.Errorf("on a full disk it can %s or %s, not %q", Stop, Continue, c.OnFull)
	}
	drop, err := newRedaction(c.Redact)
	if err != nil {
		return nil, err
	}
	l := &Log{c: c, fs: fs, drop: drop, kick: make(chan struct{}, 1), stop: func() {}}
	l.pos.hash = origin
	return l, l.resume()
}

// Record implements Sink.
func (l *Log) Record(_ context.Context, e Event) error {
	e.Version = Version
	l.drop.apply(&e)
	e.Path, e.Detail = clip(e.Path), clip(e.Detail)
	payload, err := json.Marshal(&e)
	if err != nil {
		return fmt.Errorf("%w: event: %w", ErrNotRecorded, err)
	}
	if len(payload) > MaxLine-1024 {
		return fmt.Errorf("%w: an event of %d bytes, at most %d", ErrNotRecorded, len(payload), MaxLine-1024)
	}
	if err := l.put(lineEvent, payload, l.c.Sync); err != nil {
		return l.failed(err)
	}
	return nil
}

// put appends a line, durably or not.
func (l *Log) put(member string, payload []byte, durably bool) error {
	l.mu.Lock()
	err := l.append(member, payload)
	gen, seq := l.gen, l.pos.seq
	l.mu.Unlock()
	if err == nil && durably {
		err = l.syncTo(gen, seq)
	}
	return err
}

// append writes a line behind what is due before it. mu is held.
func (l *Log) append(member string, payload []byte) error {
	if l.closed {
		return errClosed
	}
	if err := l.ready(); err != nil {
		return err
	}
	now := l.c.Now()
	if n, due := l.gap(); due {
		if err := l.note(n); err != nil {
			return err
		}
		l.pos.refused, l.pos.lost = l.fails.refused, l.fails.lost
		l.c.Logger.Warn("the decision log is written again", "refused", n.Refused, "lost", n.Lost)
	}
	full := l.pos.size+int64(len(payload))+int64(len(lineSeq)+maxDigit+len(linePrev)+hashLen+len(lineEvent)+tailLen+1) > l.c.MaxSize
	if a := l.active; a.events > 0 && (full || now.Sub(a.begun) >= l.c.MaxAge) {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	if err := l.write(member, payload); err != nil {
		return err
	}
	if member == lineEvent {
		l.active.events++
		l.stats.Events++
	}
	return nil
}

// ready makes the active file one that ends with pos. mu is held.
func (l *Log) ready() error {
	if l.active == nil {
		return l.begin(Note{})
	}
	if l.torn {
		if err := l.active.f.Truncate(l.pos.size); err != nil {
			return err
		}
		l.torn = false
	}
	return nil
}

// gap is the note on events that no line tells of. mu is held.
func (l *Log) gap() (Note, bool) {
	n := Note{Kind: NoteGap, Refused: l.fails.refused - l.pos.refused, Lost: l.fails.lost - l.pos.lost}
	if n.Refused+n.Lost == 0 {
		return n, false
	}
	since := l.fails.since
	n.Since, n.Error = &since, clip(l.fails.err.Error())
	return n, true
}

// note writes a note. mu is held.
func (l *Log) note(n Note) error {
	n.Time = l.c.Now().UTC()
	payload, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return l.write(lineNote, payload)
}

// write writes one line at the end of the active file. What a failed write left is
// cut off at once, or before the next line. mu is held.
func (l *Log) write(member string, payload []byte) error {
	var hash digest
	l.buf, hash = appendLine(l.buf[:0], l.pos.seq+1, l.pos.hash, member, payload)
	_, err := l.active.f.WriteAt(l.buf, l.pos.size)
	n := int64(len(l.buf))
	if cap(l.buf) > keepBuffer {
		l.buf = nil
	}
	if err != nil {
		l.torn = l.active.f.Truncate(l.pos.size) != nil
		return err
	}
	l.pos.seq, l.pos.hash, l.pos.size = l.pos.seq+1, hash, l.pos.size+n
	return nil
}

// begin begins the segment behind pos, durably. An attempt that failed is repeated: it
// may have left the file, with nothing in it that anybody was told is kept. mu is held.
func (l *Log) begin(n Note) error {
	s := &segment{name: segmentName(l.pos.seq + 1), first: l.pos.seq + 1, begun: l.c.Now().UTC()}
	n.Kind, n.Time, n.Format = NoteSegment, s.begun, lineFormat
	payload, err := json.Marshal(n)
	if err != nil {
		return err
	}
	f, err := l.fs.create(s.name)
	if err != nil {
		return err
	}
	line, hash := appendLine(nil, s.first, l.pos.hash, lineNote, payload)
	_, err = f.WriteAt(line, 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = l.fs.syncDir()
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.f = f
	l.active, l.torn = s, false
	l.pos.seq, l.pos.hash, l.pos.size = s.first, hash, int64(len(line))
	l.synced = l.pos
	return nil
}

// rotate ends the active segment and begins the next. mu is held.
func (l *Log) rotate() error {
	if err := l.active.f.Sync(); err != nil {
		l.unsynced(err)
		return err
	}
	l.synced = l.pos
	err := l.active.f.Close()
	l.old = append(l.old, ended{
		Anchor: Anchor{File: l.active.name, First: l.active.first, Last: l.pos.seq, Hash: l.pos.hash.String()},
		size:   l.pos.size, at: l.c.Now().UTC(),
	})
	l.active = nil
	select {
	case l.kick <- struct{}{}:
	default:
	}
	return errors.Join(err, l.begin(Note{}))
}

// syncTo returns once line seq is durable. Callers queue on syncing, and whoever gets
// it syncs for all who wrote before.
func (l *Log) syncTo(gen, seq uint64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.gen != gen:
		return l.back
	case l.synced.seq >= seq:
		return nil
	case l.active == nil:
		return errClosed
	}
	f, upTo := l.active.f, l.pos
	l.mu.Unlock()
	err := f.Sync()
	l.mu.Lock()
	switch {
	case l.gen != gen:
		return l.back
	case l.synced.seq >= seq: // a rotation was faster
		return nil
	case err != nil:
		l.unsynced(err)
		return err
	}
	l.synced = upTo
	return nil
}

// unsynced takes back the lines that are not known to be durable, after a sync that
// failed: a second one may succeed without having written them. With Config.Sync nobody
// was told that they are kept; without it all were, and they stay. mu is held.
func (l *Log) unsynced(err error) {
	if !l.c.Sync {
		return
	}
	l.gen++
	l.back = err
	l.pos = l.synced
	l.torn = l.active.f.Truncate(l.pos.size) != nil
}

// failed counts an event that was not recorded, and says whether its effect may go on.
func (l *Log) failed(err error) error {
	if errors.Is(err, errClosed) {
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	goOn := l.c.OnFull == Continue && isFull(err)
	now := l.c.Now()
	l.mu.Lock()
	f := &l.fails
	if f.refused == l.pos.refused && f.lost == l.pos.lost {
		f.since, f.err, f.told = now.UTC(), err, time.Time{}
	}
	if goOn {
		f.lost++
	} else {
		f.refused++
	}
	tell := now.Sub(f.told) >= quietFor
	if tell {
		f.told = now
	}
	refused, lost, since := f.refused-l.pos.refused, f.lost-l.pos.lost, f.since
	l.mu.Unlock()
	if tell {
		l.c.Logger.Error("THE DECISION LOG CANNOT BE WRITTEN", "refused", refused, "unrecorded", lost, "since", since, "error", err)
	}
	if goOn {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNotRecorded, err)
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Ready returns nil while events can be recorded, or may be lost. After a failure it
// tries the log, which brings it back once the cause is gone.
func (l *Log) Ready() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("%w: %w", ErrNotRecorded, errClosed)
	}
	_, due := l.gap()
	if !due && l.active != nil {
		l.mu.Unlock()
		return nil
	}
	err := l.ready()
	if n, due := l.gap(); err == nil && due {
		if err = l.note(n); err == nil {
			l.pos.refused, l.pos.lost = l.fails.refused, l.fails.lost
		}
	}
	gen, seq := l.gen, l.pos.seq
	l.mu.Unlock()
	if err == nil && l.c.Sync {
		err = l.syncTo(gen, seq)
	}
	if err == nil || l.c.OnFull == Continue && isFull(err) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNotRecorded, err)
}

// Stats counts what the log did.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Seq, s.Segments, s.Bytes = l.pos.seq, len(l.old), 0
	s.Refused, s.Lost = l.fails.refused, l.fails.lost
	if l.active != nil {
		s.Segments++
		s.Bytes = l.pos.size
	}
	for _, o := range l.old {
		s.Bytes += o.size
		if !o.copied && l.c.Copy != nil {
			s.Uncopied++
		}
	}
	return s
}

// Close makes all events durable and ends the keeper. Later events fail.
func (l *Log) Close() error {
	l.stop()
	l.done.Wait()
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var err error
	if l.active != nil {
		err = errors.Join(l.active.f.Sync(), l.active.f.Close())
		l.active = nil
	}
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
	}
	return err
}

var _ Sink = (*Log)(nil)
