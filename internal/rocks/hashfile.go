package rocks

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"sync/atomic"
)

// hashFile writes a new file and hashes it on the way. It implements Pebble's
// objstorage.Writable: exactly one of Finish and Abort ends it.
//
// Hashing and writing a table take as long as building it, so they happen on a
// goroutine of their own, which starts with the first full buffer and ends in
// Finish or Abort.
type hashFile struct {
	buf    []byte
	size   int64
	closed bool

	full  chan []byte // nil until the goroutine runs
	empty chan []byte
	done  chan struct{}

	// Owned by the goroutine while it runs.
	f      *os.File
	sum    hash.Hash
	failed atomic.Pointer[error] // set once
}

const (
	// hashBuffer is the size of one write to the file system.
	hashBuffer = 256 << 10
	// hashBuffers is how many buffers a file has: one being filled, one being
	// written, one in between.
	hashBuffers = 3
)

var errFileClosed = errors.New("file is closed")

func createFile(path string) (*hashFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &hashFile{f: f, sum: sha256.New(), buf: make([]byte, 0, hashBuffer)}, nil
}

// Write appends p.
func (h *hashFile) Write(p []byte) error {
	if h.closed {
		return errFileClosed
	}
	h.size += int64(len(p))
	for len(p) > 0 {
		if len(h.buf) == cap(h.buf) {
			if err := h.err(); err != nil {
				return err
			}
			h.handOver()
		}
		n := copy(h.buf[len(h.buf):cap(h.buf)], p)
		h.buf, p = h.buf[:len(h.buf)+n], p[n:]
	}
	return nil
}

func (h *hashFile) err() error {
	if p := h.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// handOver gives the buffer to the goroutine and takes an empty one.
func (h *hashFile) handOver() {
	if h.full == nil {
		h.full, h.empty = make(chan []byte, hashBuffers), make(chan []byte, hashBuffers)
		h.done = make(chan struct{})
		for range hashBuffers - 1 {
			h.empty <- make([]byte, 0, hashBuffer)
		}
		go h.run()
	}
	h.full <- h.buf
	h.buf = <-h.empty
}

func (h *hashFile) run() {
	defer close(h.done)
	for b := range h.full {
		h.put(b)
		h.empty <- b[:0]
	}
}

func (h *hashFile) put(b []byte) {
	if h.err() != nil {
		return
	}
	h.sum.Write(b)
	if _, err := h.f.Write(b); err != nil {
		h.failed.Store(&err)
	}
}

// join ends the goroutine.
func (h *hashFile) join() {
	if h.full != nil {
		close(h.full)
		<-h.done
		h.full = nil
	}
}

// Finish makes the content durable and closes the file; its directory entry is
// the caller's to sync.
func (h *hashFile) Finish() error {
	if h.closed {
		return errFileClosed
	}
	h.join()
	h.put(h.buf)
	err := h.err()
	if err == nil {
		err = h.f.Sync()
	}
	return errors.Join(err, h.close())
}

// Abort closes the file and leaves what was written.
func (h *hashFile) Abort() {
	if !h.closed {
		h.join()
		h.close()
	}
}

func (h *hashFile) close() error {
	h.closed = true
	return h.f.Close()
}

func (h *hashFile) finished(name string) File {
	return File{Name: name, Size: h.size, SHA256: hex.EncodeToString(h.sum.Sum(nil))}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}
