package tabular

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// An Arrow stream is a sequence of messages, an Arrow file is the same between two
// magic words, with a directory at the end that nothing here needs:
//
//	file    = "ARROW1" 00 00 | stream | directory | "ARROW1"
//	stream  = message… | FFFFFFFF 00000000
//	message = FFFFFFFF | int32 LE length of metadata | metadata | body
//
// (before Arrow 0.15 without FFFFFFFF). The metadata is a flatbuffer that gives the
// length of the body, see Message.fbs and Schema.fbs of the Arrow format.
//
// The reader below hands messages to the Arrow library only after it has checked
// the lengths in them against what is there, because the library allocates what
// they ask for.

const (
	arrowMagic = "ARROW1"
	// maxMetadata and maxBody bound one message.
	maxMetadata = 64 << 20
	maxBody     = 4 << 30
	// maxInflated bounds what a compressed body may become.
	maxInflated = 4 << 30
)

// arrowMessages reads the messages of a stream or file; it implements
// ipc.MessageReader.
type arrowMessages struct {
	r    *bufio.Reader
	file bool // the magic word was there
	last *ipc.Message
}

func newArrowMessages(r io.Reader) (*arrowMessages, error) {
	m := &arrowMessages{r: bufio.NewReaderSize(r, readBuffer)}
	head, err := m.r.Peek(8)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if m.file = bytes.HasPrefix(head, []byte(arrowMagic)); m.file {
		if _, err := m.r.Discard(8); err != nil {
			return nil, errShortArrow
		}
	}
	return m, nil
}

var errShortArrow = errors.New("truncated: the file ends inside a message; was its copy or its writing interrupted?")

// Retain and Release are the interface's; there is nothing to count.
func (m *arrowMessages) Retain() {}

// Release is Retain's counterpart.
func (m *arrowMessages) Release() {}

// Message returns the next message, or io.EOF behind the last one.
func (m *arrowMessages) Message() (*ipc.Message, error) {
	if m.last != nil {
		m.last.Release()
		m.last = nil
	}
	size, err := m.length()
	if err != nil {
		return nil, err
	}
	meta, err := m.take(int64(size))
	if err != nil {
		return nil, err
	}
	bodyLen, err := checkMessage(meta)
	if err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	body, err := m.take(bodyLen)
	if err != nil {
		return nil, err
	}
	if err := checkBody(meta, body); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	m.last = ipc.NewMessage(memory.NewBufferBytes(meta), memory.NewBufferBytes(body))
	return m.last, nil
}

// length reads what stands in front of the metadata.
func (m *arrowMessages) length() (int32, error) {
	var word [4]byte
	if _, err := io.ReadFull(m.r, word[:]); err != nil {
		if err == io.EOF && !m.file {
			return 0, io.EOF // streams may just end
		}
		return 0, shortArrow(err)
	}
	n := int32(binary.LittleEndian.Uint32(word[:]))
	if n == -1 {
		if _, err := io.ReadFull(m.r, word[:]); err != nil {
			return 0, shortArrow(err)
		}
		n = int32(binary.LittleEndian.Uint32(word[:]))
	}
	switch {
	case n == 0:
		return 0, m.end()
	case n < 8 || n > maxMetadata:
		return 0, fmt.Errorf("message with metadata of %d bytes", n)
	}
	return n, nil
}

// end checks that a file is complete.
func (m *arrowMessages) end() error {
	if !m.file {
		return io.EOF
	}
	rest, err := io.ReadAll(io.LimitReader(m.r, maxMetadata))
	if err != nil {
		return err
	}
	if !bytes.HasSuffix(rest, []byte(arrowMagic)) {
		return errShortArrow
	}
	return io.EOF
}

func shortArrow(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errShortArrow
	}
	return err
}

// take reads n bytes; memory grows with what is there, not with what n claims.
func (m *arrowMessages) take(n int64) ([]byte, error) {
	const step = 1 << 20
	out := make([]byte, 0, min(n, step))
	for int64(len(out)) < n {
		from := len(out)
		out = append(out, make([]byte, min(n-int64(from), max(int64(from), step)))...)
		if _, err := io.ReadFull(m.r, out[from:]); err != nil {
			return nil, shortArrow(err)
		}
	}
	return out, nil
}

var errFlatbuffer = errors.New("damaged metadata")

// flat reads a flatbuffer with bounds checks. Positions are offsets from its start;
// 0 is no position. The first fault sticks.
type flat struct {
	b   []byte
	bad bool
}

func (f *flat) u16(at int) int { return int(f.uint(at, 2)) }
func (f *flat) u32(at int) int { return int(f.uint(at, 4)) }

func (f *flat) uint(at, n int) uint64 {
	if at < 0 || at+n > len(f.b) {
		f.bad = true
		return 0
	}
	var v uint64
	for i := n - 1; i >= 0; i-- {
		v = v<<8 | uint64(f.b[at+i])
	}
	return v
}

// field is the position of a table's field, 0 when it is absent.
func (f *flat) field(table, i int) int {
	vtable := table - int(int32(f.u32(table)))
	size := f.u16(vtable)
	slot := 4 + 2*i
	if f.bad || slot+2 > size {
		return 0
	}
	off := f.u16(vtable + slot)
	if off == 0 {
		return 0
	}
	return table + off
}

// follow is the position an offset field points at, 0 when it is absent.
func (f *flat) follow(table, i int) int {
	at := f.field(table, i)
	if at == 0 {
		return 0
	}
	to := at + f.u32(at)
	if to >= len(f.b) {
		f.bad = true
		return 0
	}
	return to
}

// vector is the first element's position and the number of elements of width bytes.
func (f *flat) vector(table, i, width int) (start, n int) {
	at := f.follow(table, i)
	if at == 0 {
		return 0, 0
	}
	n = f.u32(at)
	if f.bad || n > (len(f.b)-at-4)/width {
		f.bad = true
		return 0, 0
	}
	return at + 4, n
}

// The header types of Message.fbs.
const (
	headSchema     = 1
	headDictionary = 2
	headBatch      = 3
)

// header is the kind and position of a message's header; a dictionary's batch
// counts as a batch.
func (f *flat) header() (kind, at int) {
	root := f.u32(0)
	if k := f.field(root, 1); k > 0 {
		kind = int(f.uint(k, 1))
	}
	at = f.follow(root, 2)
	if kind == headDictionary && at > 0 {
		return headBatch, f.follow(at, 1)
	}
	return kind, at
}

// checkMessage checks the vectors of a message's metadata and returns the length of
// its body.
func checkMessage(meta []byte) (int64, error) {
	f := &flat{b: meta}
	kind, at := f.header()
	switch {
	case at == 0:
		f.bad = true
	case kind == headSchema:
		f.fields(at, 1, 0)
		f.vector(at, 2, 4)
	case kind == headBatch:
		f.vector(at, 1, 16)
		f.vector(at, 2, 16)
		f.vector(at, 4, 8)
	}
	var body int64
	if k := f.field(f.u32(0), 3); k > 0 {
		body = int64(f.uint(k, 8))
	}
	if f.bad {
		return 0, errFlatbuffer
	}
	if body < 0 || body > maxBody {
		return 0, fmt.Errorf("body of %d bytes", body)
	}
	return body, nil
}

// fields checks a vector of fields and their children.
func (f *flat) fields(table, i, depth int) {
	const deepest = 64
	start, n := f.vector(table, i, 4)
	if depth > deepest {
		f.bad = true
	}
	for k := 0; k < n && !f.bad; k++ {
		at := start + 4*k
		field := at + f.u32(at)
		if f.bad || field >= len(f.b) {
			f.bad = true
			return
		}
		f.vector(field, 6, 4)
		f.fields(field, 5, depth+1)
	}
}

// checkBody checks where the buffers of a batch lie in its body, and what they say
// they become when decompressed.
func checkBody(meta, body []byte) error {
	f := &flat{b: meta}
	kind, at := f.header()
	if kind != headBatch {
		return nil
	}
	compressed := f.follow(at, 3) > 0
	start, n := f.vector(at, 2, 16)
	total := int64(0)
	for k := range n {
		off, size := int64(f.uint(start+16*k, 8)), int64(f.uint(start+16*k+8, 8))
		if off < 0 || size < 0 || off > int64(len(body)) || size > int64(len(body))-off {
			return errors.New("a buffer outside the body")
		}
		if !compressed || size < 8 {
			continue
		}
		inflated := int64(binary.LittleEndian.Uint64(body[off:]))
		if inflated < -1 || inflated > maxInflated {
			return fmt.Errorf("a buffer of %d bytes", inflated)
		}
		if total += max(inflated, 0); total > maxInflated {
			return errors.New("buffers larger than 4 GiB")
		}
	}
	if f.bad {
		return errFlatbuffer
	}
	return nil
}
