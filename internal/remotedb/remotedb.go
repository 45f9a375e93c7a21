// Package remotedb reads a RocksDB database whose files are objects of a store, under
// other names than RocksDB's.
package remotedb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// ReadAhead is the largest range asked for at once, in bytes.
const ReadAhead = 2 << 20

// Read-ahead of one open file. Ranges grow, so that opening a file and looking up
// few rows stays cheap, and a scan asks for much at a time.
const (
	firstRange = 256 << 10
	lastRange  = ReadAhead
	rangesHead = 2 // ranges asked for ahead of the one being read
	// wholeFile is the size up to which a file is fetched by one request.
	wholeFile = 256 << 10
	// attempts at a range whose stream breaks.
	rangeAttempts = 3
)

// File is one file of a database.
type File struct {
	Local string // RocksDB's name
	Key   string // of the object
	Size  int64  // bytes
}

// Source is a RocksDB directory whose files are objects under other names.
type Source struct {
	objects objstore.Reader
	files   map[string]File
}

// New returns the directory with these files.
func New(r objstore.Reader, files []File) *Source {
	s := &Source{objects: r, files: map[string]File{}}
	for _, f := range files {
		s.files[f.Local] = f
	}
	return s
}

var _ rocks.Source = (*Source)(nil)

// List names the files.
func (s *Source) List(context.Context) ([]string, error) {
	names := make([]string, 0, len(s.files))
	for n := range s.files {
		names = append(names, n)
	}
	return names, nil
}

// Open opens a file. Nothing is asked of the store yet: sizes are known.
func (s *Source) Open(ctx context.Context, name string) (rocks.Handle, error) {
	f, ok := s.files[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	h := &handle{objects: s.objects, file: f, rangeSize: firstRange}
	h.ctx, h.cancel = context.WithCancel(ctx)
	return h, nil
}

// handle reads one object by ranges, and reads ahead once reads follow each
// other.
type handle struct {
	objects objstore.Reader
	file    File
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu        sync.Mutex
	ranges    []*fetched // ascending, adjacent
	expect    int64      // where a read that continues the last one begins
	rangeSize int64      // of the next range
}

// fetched is one range, being fetched until done is closed.
type fetched struct {
	off  int64
	buf  []byte
	err  error
	done chan struct{}
}

func (r *fetched) end() int64 { return r.off + int64(len(r.buf)) }

// Size is the length of the object.
func (h *handle) Size() int64 { return h.file.Size }

// Close stops reading ahead.
func (h *handle) Close() error {
	h.cancel()
	h.wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ranges = nil
	return nil
}

// ReadAt fills p from off, as io.ReaderAt says.
func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	n, short := len(p), error(nil)
	if off < 0 {
		return 0, fmt.Errorf("read at offset %d", off)
	}
	if rest := h.file.Size - off; int64(n) > rest {
		n, short = int(max(rest, 0)), io.EOF
	}
	if n == 0 {
		return 0, short
	}
	done, err := h.fill(p[:n], off)
	if err != nil {
		return done, err
	}
	return n, short
}

// fill reads from ranges where the read continues the last one, else directly.
func (h *handle) fill(p []byte, off int64) (done int, err error) {
	if !h.sequential(off, int64(len(p))) {
		return len(p), h.fetch(p, off)
	}
	for done < len(p) {
		r := h.rangeAt(off + int64(done))
		if r == nil { // another reader moved the ranges on
			return len(p), h.fetch(p[done:], off+int64(done))
		}
		<-r.done
		if r.err != nil {
			return done, r.err
		}
		done += copy(p[done:], r.buf[off+int64(done)-r.off:])
	}
	return done, nil
}

// sequential reports whether a read should go through ranges, and if so starts
// those it needs and a few ahead.
func (h *handle) sequential(off, n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	inside := len(h.ranges) > 0 && off >= h.ranges[0].off && off <= h.ranges[len(h.ranges)-1].end()
	if off != h.expect && !inside && h.file.Size > wholeFile {
		return false
	}
	if !inside {
		h.ranges = h.ranges[:0]
		if h.file.Size <= wholeFile {
			off, n = 0, h.file.Size
		}
	}
	for len(h.ranges) > 1 && h.ranges[0].end() <= off {
		h.ranges = h.ranges[1:]
	}
	h.expect = off + n
	h.extendLocked(off, off+n)
	return true
}

// extendLocked starts ranges until end is covered and some lie ahead of it.
func (h *handle) extendLocked(off, end int64) {
	next, ahead := off, 0
	if k := len(h.ranges); k > 0 {
		next = h.ranges[k-1].end()
		for _, r := range h.ranges {
			if r.off >= end {
				ahead++
			}
		}
	}
	for next < h.file.Size && (next < end || ahead < rangesHead) {
		if next >= end {
			ahead++
		}
		size := min(max(h.rangeSize, end-next), h.file.Size-next)
		h.rangeSize = min(2*h.rangeSize, lastRange)
		h.startLocked(next, size)
		next += size
	}
}

func (h *handle) startLocked(off, size int64) {
	r := &fetched{off: off, buf: make([]byte, size), done: make(chan struct{})}
	h.ranges = append(h.ranges, r)
	h.wg.Go(func() {
		defer close(r.done)
		r.err = h.fetch(r.buf, r.off)
	})
}

func (h *handle) rangeAt(off int64) *fetched {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.ranges {
		if off >= r.off && off < r.end() {
			return r
		}
	}
	return nil
}

// fetch reads one range from the store. A stream that breaks is opened again where
// it stopped.
func (h *handle) fetch(p []byte, off int64) error {
	for attempt := 1; ; attempt++ {
		n, err := h.fetchOnce(p, off)
		if err == nil {
			return nil
		}
		if h.ctx.Err() != nil || attempt == rangeAttempts || errors.Is(err, objstore.ErrNotFound) {
			return fmt.Errorf("object %s: %w", h.file.Key, err)
		}
		p, off = p[n:], off+int64(n)
	}
}

func (h *handle) fetchOnce(p []byte, off int64) (int, error) {
	body, info, err := h.objects.Get(h.ctx, h.file.Key, off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if info.Size != h.file.Size {
		return 0, fmt.Errorf("it has %d bytes, the snapshot says %d", info.Size, h.file.Size)
	}
	return io.ReadFull(body, p)
}
