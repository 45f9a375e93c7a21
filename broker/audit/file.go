package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"unicode/utf8"
)

// maxText bounds free text of a caller in an event, in bytes.
const maxText = 1024

// FileOptions qualify OpenFile.
type FileOptions struct {
	// Sync makes every event survive power loss (one fsync each, shared by events
	// that arrive together); without it an event survives the death of the process
	// only.
	Sync bool
}

// File is a sink that appends JSON lines to a file, one write per event. A line
// that a full disk or a crash cut short is ended before the next one is written,
// so that a reader loses that event and no other; its caller was told so.
type File struct {
	o FileOptions

	mu  sync.Mutex
	f   *os.File // nil once closed
	cut bool     // the last write may have left part of a line
	seq uint64   // lines written

	// One fsync at a time; it covers every line up to synced.
	syncMu sync.Mutex
	synced uint64
}

var errClosed = errors.New("audit log is closed")

// OpenFile opens or creates an audit log (0600).
func OpenFile(path string, o FileOptions) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	cut, err := endsMidLine(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("audit log %s: %w", path, err)
	}
	return &File{o: o, f: f, cut: cut}, nil
}

func endsMidLine(f *os.File) (bool, error) {
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() || st.Size() == 0 {
		return false, nil
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], st.Size()-1); err != nil {
		return false, err
	}
	return last[0] != '\n', nil
}

// Record implements Sink.
func (f *File) Record(_ context.Context, e Event) error {
	e.Version = Version
	e.Path, e.Detail = clip(e.Path), clip(e.Detail)
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("audit event: %w", err)
	}
	seq, err := f.append(line)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	if !f.o.Sync {
		return nil
	}
	if err := f.syncTo(seq); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

func (f *File) append(line []byte) (seq uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return 0, errClosed
	}
	if f.cut {
		line = append([]byte{'\n'}, line...)
	}
	f.cut = true
	if _, err := f.f.Write(append(line, '\n')); err != nil {
		return 0, err
	}
	f.cut = false
	f.seq++
	return f.seq, nil
}

// syncTo returns once line seq is durable. Callers queue on syncMu, and whoever
// gets it syncs for all who wrote before.
func (f *File) syncTo(seq uint64) error {
	f.syncMu.Lock()
	defer f.syncMu.Unlock()
	if f.synced >= seq {
		return nil
	}
	f.mu.Lock()
	file, upTo := f.f, f.seq
	f.mu.Unlock()
	if file == nil {
		return errClosed
	}
	if err := file.Sync(); err != nil {
		return err
	}
	f.synced = upTo
	return nil
}

// Close syncs and closes the file. Later events fail.
func (f *File) Close() error {
	f.syncMu.Lock()
	defer f.syncMu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return nil
	}
	err := errors.Join(f.f.Sync(), f.f.Close())
	f.f = nil
	return err
}

// clip cuts text at a character boundary.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
