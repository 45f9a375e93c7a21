package rocks

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
)

// hashFile writes a new file and hashes it on the way. It implements Pebble's
// objstorage.Writable: exactly one of Finish and Abort ends it.
type hashFile struct {
	f    *os.File
	sum  hash.Hash
	buf  []byte
	size int64
	err  error // sticky
}

// hashBuffer is the size of one write to the file system.
const hashBuffer = 256 << 10

var errFileClosed = errors.New("file is closed")

func createFile(path string) (*hashFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return &hashFile{f: f, sum: sha256.New(), buf: make([]byte, 0, hashBuffer)}, nil
}

// Write appends p.
func (h *hashFile) Write(p []byte) error {
	for len(p) > 0 && h.err == nil {
		n := copy(h.buf[len(h.buf):cap(h.buf)], p)
		h.buf, p = h.buf[:len(h.buf)+n], p[n:]
		if len(h.buf) == cap(h.buf) {
			h.flush()
		}
	}
	return h.err
}

func (h *hashFile) flush() {
	if h.err != nil {
		return
	}
	h.sum.Write(h.buf)
	n, err := h.f.Write(h.buf)
	h.size += int64(n)
	h.buf, h.err = h.buf[:0], err
}

// Finish makes the content durable and closes the file; its directory entry is
// the caller's to sync.
func (h *hashFile) Finish() error {
	h.flush()
	if h.err == nil {
		h.err = h.f.Sync()
	}
	err := h.err
	h.close()
	return err
}

// Abort closes the file and leaves what was written.
func (h *hashFile) Abort() { h.close() }

func (h *hashFile) close() {
	if h.f == nil {
		return
	}
	if err := h.f.Close(); err != nil && h.err == nil {
		h.err = err
	}
	h.f = nil
	if h.err == nil {
		h.err = errFileClosed
	}
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
