package extsort

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// A run file. Integers are little endian; a checksum is CRC-32C.
//
//	header, 32 bytes
//	   0  8  magic "SLUICRUN"
//	   8  2  version, 1
//	  10  2  flags, 0
//	  12  4  target size of a block's payload
//	  16 12  zero
//	  28  4  checksum of bytes 0–27
//	blocks, any number
//	   0  4  payload length, > 0
//	   4  4  checksum of the payload
//	   8  …  payload: whole records (uvarint key length, uvarint value length, key,
//	         value), keys strictly ascending through the whole file
//	end of blocks
//	   0  4  0
//	trailer
//	   0  8  records in the file
//	   8  4  length of the largest payload
//	  12  4  checksum of the blocks' checksums, in order
//	  16  4  length of the first key, 4 length of the last key, first key, last key
//	   …  4  length of the trailer up to here
//	   …  4  checksum of the trailer up to here
//
// A file ends with its trailer, so one that was cut off anywhere is noticed when
// it is opened, before a row of it is used.
const (
	runMagic      = "SLUICRUN"
	runVersion    = 1
	runHeaderSize = 32
	blockHeadSize = 8
	trailerFixed  = 24
	trailerTail   = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrCorrupt marks a run that is damaged, cut off or another one than was sealed.
var ErrCorrupt = errors.New("sort run is corrupt")

// Run names a sealed run. It is what a checkpoint keeps.
type Run struct {
	Name     string `json:"name"` // file name in Config.Dir
	Size     int64  `json:"size"` // bytes of the file
	Records  int64  `json:"records"`
	Checksum uint32 `json:"checksum"` // of the blocks' checksums
}

// runFile is a run on disk.
type runFile struct {
	Run
	age      uint64
	maxBlock int
	first    []byte
	last     []byte
	sealed   bool
	synced   bool
}

// memory is what a reader of the run needs.
func (r *runFile) memory() int64 { return int64(r.maxBlock) + blockHeadSize }

// outFile is what a run is written to; tests replace it to run out of space.
type outFile interface {
	io.Writer
	io.Closer
}

// runWriter writes one run.
type runWriter struct {
	f          outFile
	path       string
	target     int
	buf        []byte // block header, then payload
	size       int64
	records    int64
	maxBlock   int
	sums       uint32
	first      []byte
	lastRecord []byte // valid until the next flush
}

func newRunWriter(f outFile, path string, target int) (*runWriter, error) {
	w := &runWriter{f: f, path: path, target: target, buf: make([]byte, blockHeadSize, blockHeadSize+target+target/4)}
	head := make([]byte, runHeaderSize)
	copy(head, runMagic)
	binary.LittleEndian.PutUint16(head[8:], runVersion)
	binary.LittleEndian.PutUint32(head[12:], uint32(target))
	binary.LittleEndian.PutUint32(head[28:], crc32.Checksum(head[:28], castagnoli))
	return w, w.write(head)
}

func (w *runWriter) write(b []byte) error {
	n, err := w.f.Write(b)
	w.size += int64(n)
	if err != nil {
		return fmt.Errorf("write sort run %s: %w", w.path, noSpace(err))
	}
	return nil
}

// add appends a record whose key and encoded form are given.
func (w *runWriter) add(whole, key []byte) error {
	if len(w.buf) > blockHeadSize && len(w.buf)+len(whole) > w.target+blockHeadSize {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if w.records == 0 {
		w.first = append([]byte(nil), key...)
	}
	w.records++
	w.buf = append(w.buf, whole...)
	w.lastRecord = w.buf[len(w.buf)-len(whole):]
	return nil
}

func (w *runWriter) flush() error {
	payload := w.buf[blockHeadSize:]
	if len(payload) == 0 {
		return nil
	}
	sum := crc32.Checksum(payload, castagnoli)
	binary.LittleEndian.PutUint32(w.buf, uint32(len(payload)))
	binary.LittleEndian.PutUint32(w.buf[4:], sum)
	w.sums = crc32.Update(w.sums, castagnoli, w.buf[4:8])
	w.maxBlock = max(w.maxBlock, len(payload))
	if err := w.write(w.buf); err != nil {
		return err
	}
	w.buf = w.buf[:blockHeadSize]
	return nil
}

// finish writes what is left and the trailer, and closes the file.
func (w *runWriter) finish(age uint64) (*runFile, error) {
	r := &runFile{age: age, first: w.first}
	if w.records > 0 {
		_, k, _ := splitRecord(w.lastRecord)
		r.last = append([]byte(nil), k...)
	}
	if err := w.flush(); err != nil {
		return nil, err
	}
	t := binary.LittleEndian.AppendUint64(make([]byte, 4, 64), uint64(w.records))
	t = binary.LittleEndian.AppendUint32(t, uint32(w.maxBlock))
	t = binary.LittleEndian.AppendUint32(t, w.sums)
	t = binary.LittleEndian.AppendUint32(t, uint32(len(r.first)))
	t = binary.LittleEndian.AppendUint32(t, uint32(len(r.last)))
	t = append(append(t, r.first...), r.last...)
	sum := crc32.Checksum(t[4:], castagnoli)
	t = binary.LittleEndian.AppendUint32(t, uint32(len(t)-4))
	t = binary.LittleEndian.AppendUint32(t, sum)
	if err := w.write(t); err != nil {
		return nil, err
	}
	if err := w.f.Close(); err != nil {
		return nil, fmt.Errorf("close sort run %s: %w", w.path, noSpace(err))
	}
	r.Run = Run{Name: filepath.Base(w.path), Size: w.size, Records: w.records, Checksum: w.sums}
	r.maxBlock = w.maxBlock
	return r, nil
}

// abandon closes and removes an unfinished run, so that its space is free again.
func (w *runWriter) abandon() {
	w.f.Close()
	os.Remove(w.path)
}

func corrupt(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrCorrupt, path, fmt.Sprintf(format, args...))
}

// openRun checks that the file in dir is the run that was sealed.
func openRun(dir string, want Run) (*runFile, error) {
	path := filepath.Join(dir, want.Name)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open sort run: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open sort run: %w", err)
	}
	if st.Size() != want.Size {
		return nil, corrupt(path, "it has %d bytes, not the %d that were sealed", st.Size(), want.Size)
	}
	if err := checkHeader(f, path); err != nil {
		return nil, err
	}
	r, err := readTrailer(f, path, st.Size())
	if err != nil {
		return nil, err
	}
	if r.Records != want.Records || r.Checksum != want.Checksum {
		return nil, corrupt(path, "it is not the run that was sealed")
	}
	r.Run, r.sealed, r.synced = want, true, true
	return r, nil
}

func checkHeader(f io.ReaderAt, path string) error {
	head := make([]byte, runHeaderSize)
	if _, err := f.ReadAt(head, 0); err != nil {
		return corrupt(path, "no header: %v", err)
	}
	if string(head[:8]) != runMagic {
		return corrupt(path, "not a sort run")
	}
	if crc32.Checksum(head[:28], castagnoli) != binary.LittleEndian.Uint32(head[28:]) {
		return corrupt(path, "header checksum")
	}
	if v := binary.LittleEndian.Uint16(head[8:]); v != runVersion {
		return fmt.Errorf("sort run %s has version %d; this program reads version %d", path, v, runVersion)
	}
	return nil
}

func readTrailer(f io.ReaderAt, path string, size int64) (*runFile, error) {
	if size < runHeaderSize+4+trailerFixed+trailerTail {
		return nil, corrupt(path, "%d bytes are too few", size)
	}
	var tail [trailerTail]byte
	if _, err := f.ReadAt(tail[:], size-trailerTail); err != nil {
		return nil, fmt.Errorf("read sort run %s: %w", path, err)
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if n < trailerFixed || n > size-trailerTail-4-runHeaderSize {
		return nil, corrupt(path, "trailer length %d", n)
	}
	t := make([]byte, n)
	if _, err := f.ReadAt(t, size-trailerTail-n); err != nil {
		return nil, fmt.Errorf("read sort run %s: %w", path, err)
	}
	if crc32.Checksum(t, castagnoli) != binary.LittleEndian.Uint32(tail[4:]) {
		return nil, corrupt(path, "trailer checksum")
	}
	r := &runFile{maxBlock: int(binary.LittleEndian.Uint32(t[8:]))}
	r.Records = int64(binary.LittleEndian.Uint64(t))
	r.Checksum = binary.LittleEndian.Uint32(t[12:])
	first, last := int64(binary.LittleEndian.Uint32(t[16:])), int64(binary.LittleEndian.Uint32(t[20:]))
	if trailerFixed+first+last != n || int64(r.maxBlock) > size {
		return nil, corrupt(path, "trailer fields")
	}
	r.first, r.last = t[trailerFixed:trailerFixed+first], t[trailerFixed+first:]
	return r, nil
}

// runReader reads a run's blocks in order.
type runReader struct {
	f    *os.File
	path string
	run  *runFile
	buf  []byte
	head [blockHeadSize]byte
	off  int64
	sums uint32
}

func (r *runFile) open(dir string) (*runReader, error) {
	path := filepath.Join(dir, r.Name)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open sort run: %w", err)
	}
	return &runReader{f: f, path: path, run: r, off: runHeaderSize, buf: make([]byte, r.memory())}, nil
}

func (r *runReader) close() error { return r.f.Close() }

// next returns the payload of the next block, nil at the end. It is valid until
// the following call.
//
// One read fetches a payload and the head of the block behind it.
func (r *runReader) next() ([]byte, error) {
	if r.off == runHeaderSize {
		if _, err := r.f.ReadAt(r.head[:], r.off); err != nil {
			return nil, r.broken(err)
		}
	}
	n := int(binary.LittleEndian.Uint32(r.head[:]))
	if n == 0 {
		return nil, r.finished()
	}
	if n > r.run.maxBlock {
		return nil, corrupt(r.path, "block of %d bytes at offset %d, at most %d", n, r.off, r.run.maxBlock)
	}
	// There are always eight bytes behind a payload: the end mark and the trailer.
	b := r.buf[:n+blockHeadSize]
	if _, err := r.f.ReadAt(b, r.off+blockHeadSize); err != nil {
		return nil, r.broken(err)
	}
	sum := binary.LittleEndian.Uint32(r.head[4:])
	if crc32.Checksum(b[:n], castagnoli) != sum {
		return nil, corrupt(r.path, "block checksum at offset %d", r.off)
	}
	r.sums = crc32.Update(r.sums, castagnoli, r.head[4:8])
	copy(r.head[:], b[n:])
	r.off += int64(blockHeadSize + n)
	return b[:n], nil
}

func (r *runReader) finished() error {
	if r.sums != r.run.Checksum {
		return corrupt(r.path, "blocks are missing or out of order before offset %d", r.off)
	}
	return nil
}

func (r *runReader) broken(err error) error {
	if errors.Is(err, io.EOF) {
		return corrupt(r.path, "it ends inside a block at offset %d", r.off)
	}
	return fmt.Errorf("read sort run %s: %w", r.path, err)
}
