package rocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// tailSize is read when a table is opened: footer, metaindex, properties and
// often the index lie there.
const tailSize = 64 << 10

// table is an open table. It is immutable and safe for concurrent use.
type table struct {
	name   string
	h      Handle
	size   uint64
	footer footer
	unpack *unpacker

	index       blockHandle
	indexType   uint32
	indexFormat indexFormat
	indexBlock  []byte // when it was cheap to keep

	// override replaces the sequence number of every entry: the table was
	// ingested whole (RocksDB's "global sequence number").
	override    bool
	overrideSeq uint64

	deletes     []fragment // range deletes, clipped to the table's bounds
	deleteBytes int64      // size of the block they alias

	kept int64 // bytes counted in DB.tableBytes
}

// tableConfig is what a database tells its tables.
type tableConfig struct {
	maxBlock int
	zstd     func() (*zstd.Decoder, error)
}

// openTable reads footer, metaindex, properties, dictionary and range deletes. f
// is the table's entry in the MANIFEST.
func openTable(h Handle, f *fileEntry, c tableConfig) (*table, error) {
	t := &table{name: f.name(), h: h, size: f.size}
	if got := h.Size(); got < 0 || uint64(got) != f.size {
		return nil, corrupt(t.name, -1, "file has %d bytes, the MANIFEST says %d", got, f.size)
	}
	tail := make([]byte, min(t.size, tailSize))
	tailAt := t.size - uint64(len(tail))
	if err := t.readAt(tail, tailAt); err != nil {
		return nil, err
	}
	var err error
	if t.footer, err = parseFooter(tail, t.size); err != nil {
		return nil, t.fault(t.size-min(t.size, footerSize), err)
	}
	t.unpack = newUnpacker(t.footer.version, c.maxBlock, c.zstd)
	m := metaReader{t: t, tail: tail, at: tailAt}
	if err := t.readMeta(&m, f); err != nil {
		return nil, err
	}
	return t, nil
}

// fault marks an error about bytes of this table: unsupported features as such,
// everything else as corruption.
func (t *table) fault(offset uint64, err error) error {
	kind := ErrCorrupt
	if errors.Is(err, errForeign) {
		kind = ErrUnsupported
	}
	return &fault{kind: kind, file: t.name, offset: int64(offset), detail: err.Error()}
}

// readAt fills b. A file that ends early is corrupt; other failures are the
// source's and stay what they are.
func (t *table) readAt(b []byte, off uint64) error {
	n, err := t.h.ReadAt(b, int64(off))
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF || err == io.ErrUnexpectedEOF {
		return corrupt(t.name, int64(off), "file ends %d bytes early", len(b)-n)
	}
	return fmt.Errorf("read %s at offset %d: %w", t.name, off, err)
}

// checkHandle makes sure that a block with its trailer lies inside the file and
// within the memory limit.
func (t *table) checkHandle(h blockHandle) error {
	if h.length > uint64(t.unpack.max) {
		return t.fault(h.offset, &errTooLarge{h.length, t.unpack.max})
	}
	if h.offset >= t.size || h.length+blockTrailerSize > t.size-h.offset {
		return t.fault(h.offset, fmt.Errorf("block of %d bytes reaches beyond the file's %d", h.length, t.size))
	}
	return nil
}

// decode verifies and decompresses a block that was read with its trailer. The
// result is raw itself when the block is not compressed, else it lies in buf,
// which grows when it is too small.
func (t *table) decode(raw []byte, offset uint64, buf []byte, verify bool) (block []byte, owned bool, err error) {
	n := len(raw) - blockTrailerSize
	if verify && t.footer.checksum != checksumNone {
		sum := blockChecksum(t.footer.checksum, raw[:n+1]) + placeModifier(t.footer.base, offset)
		if sum != binary.LittleEndian.Uint32(raw[n+1:]) {
			return nil, false, t.fault(offset, errors.New("block fails its checksum"))
		}
	}
	codec := raw[n]
	if codec == codecNone {
		return raw[:n:n], false, nil
	}
	block, err = t.unpack.unpack(codec, raw[:n], buf)
	if err != nil {
		return nil, false, t.fault(offset, fmt.Errorf("decompress block: %w", err))
	}
	return block, true, nil
}

// metaReader reads blocks other than data, preferably from the tail that is in
// memory already.
type metaReader struct {
	t    *table
	tail []byte
	at   uint64 // offset of tail
}

// block returns memory that may alias the tail.
func (m *metaReader) block(h blockHandle) ([]byte, error) {
	if err := m.t.checkHandle(h); err != nil {
		return nil, err
	}
	n := h.length + blockTrailerSize
	var raw []byte
	if h.offset >= m.at && m.tail != nil {
		raw = m.tail[h.offset-m.at:][:n]
	} else {
		raw = make([]byte, n)
		if err := m.t.readAt(raw, h.offset); err != nil {
			return nil, err
		}
	}
	b, _, err := m.t.decode(raw, h.offset, nil, true)
	return b, err
}

// Names in the metaindex.
const (
	metaProperties    = "rocksdb.properties"
	metaPropertiesOld = "rocksdb.stats"
	metaDictionary    = "rocksdb.compression_dict"
	metaRangeDeletes  = "rocksdb.range_del"
	metaIndex         = "rocksdb.index" // from format version 6
)

// readMeta follows the metaindex.
func (t *table) readMeta(m *metaReader, f *fileEntry) error {
	t.index = t.footer.index
	b, err := m.block(t.footer.metaindex)
	if err != nil {
		return err
	}
	meta, err := parseMetaindex(b)
	if err != nil {
		return t.fault(t.footer.metaindex.offset, err)
	}
	if meta.properties != nil {
		if err := t.readProperties(m, *meta.properties, f); err != nil {
			return err
		}
	}
	if meta.index != nil && t.footer.version >= 6 {
		t.index = *meta.index
	}
	if meta.dict != nil && meta.dict.length > 0 {
		b, err := m.block(*meta.dict)
		if err != nil {
			return err
		}
		t.unpack.setDict(bytes.Clone(b))
	}
	if meta.rangeDeletes != nil {
		if err := t.readRangeDeletes(m, *meta.rangeDeletes, f); err != nil {
			return err
		}
	}
	return t.checkHandle(t.index)
}

// metaindex holds the handles that matter; absent blocks are nil.
type metaindex struct{ properties, dict, rangeDeletes, index *blockHandle }

// parseMetaindex reads the block that maps names to block handles. Entries of
// other names may hold anything.
func parseMetaindex(block []byte) (metaindex, error) {
	var m metaindex
	it := newPlainIter(block)
	for it.next() {
		var to **blockHandle
		switch string(it.key) {
		case metaProperties, metaPropertiesOld:
			to = &m.properties
		case metaDictionary:
			to = &m.dict
		case metaRangeDeletes:
			to = &m.rangeDeletes
		case metaIndex:
			to = &m.index
		default:
			continue
		}
		d := decoder{b: it.val}
		h := d.handle()
		if d.bad {
			return m, fmt.Errorf("metaindex entry %q is no block handle", it.key)
		}
		*to = &h
	}
	return m, it.err
}

func (t *table) readProperties(m *metaReader, h blockHandle, f *fileEntry) error {
	b, err := m.block(h)
	if err != nil {
		return err
	}
	p, err := parseProperties(b)
	if err != nil {
		return t.fault(h.offset, err)
	}
	if p.comparator != "" && p.comparator != comparatorName {
		return t.fault(h.offset, &foreignFeature{fmt.Sprintf("comparator %q", p.comparator)})
	}
	if p.indexType > indexWithFirst {
		return t.fault(h.offset, &foreignFeature{fmt.Sprintf("index type %d", p.indexType)})
	}
	t.indexType = p.indexType
	t.indexFormat = indexFormat{
		userKeys: p.indexUserKeys,
		delta:    p.indexDelta,
		firstKey: p.indexType == indexWithFirst,
	}
	if p.externalVersion < 2 {
		return nil
	}
	// An ingested table says 0 and takes its number from the MANIFEST, or says
	// the MANIFEST's.
	if p.globalSeq != 0 && p.globalSeq != f.largestSeq {
		return t.fault(h.offset, fmt.Errorf("table was ingested at sequence number %d, the MANIFEST says %d", p.globalSeq, f.largestSeq))
	}
	t.override, t.overrideSeq = true, f.largestSeq
	return nil
}

// properties are the table properties that matter for reading.
type properties struct {
	comparator      string
	indexType       uint32
	indexUserKeys   bool
	indexDelta      bool
	externalVersion uint32 // 0: not made by an SST file writer
	globalSeq       uint64
}

// parseProperties reads a properties block. Most values are varints, a few are
// fixed little-endian integers; which is which is in RocksDB's
// table/meta_blocks.cc and table/sst_file_writer_collectors.h.
func parseProperties(block []byte) (properties, error) {
	var p properties
	it := newPlainIter(block)
	for it.next() {
		v := it.val
		short := false
		flag := func() bool {
			n, k := binary.Uvarint(v)
			short = k <= 0
			return n != 0
		}
		fixed32 := func() uint32 {
			if short = len(v) != 4; short {
				return 0
			}
			return binary.LittleEndian.Uint32(v)
		}
		switch string(it.key) {
		case "rocksdb.comparator":
			p.comparator = string(v)
		case "rocksdb.index.key.is.user.key":
			p.indexUserKeys = flag()
		case "rocksdb.index.value.is.delta.encoded":
			p.indexDelta = flag()
		case "rocksdb.block.based.table.index.type":
			p.indexType = fixed32()
		case "rocksdb.external_sst_file.version":
			p.externalVersion = fixed32()
		case "rocksdb.external_sst_file.global_seqno":
			if short = len(v) != 8; !short {
				p.globalSeq = binary.LittleEndian.Uint64(v)
			}
		}
		if short {
			return p, fmt.Errorf("property %q has %d bytes", it.key, len(v))
		}
	}
	return p, it.err
}

// indexCursor walks the data blocks of a table in order, through one or two
// levels of index.
type indexCursor struct {
	t    *table
	top  *indexIter
	part *indexIter // the partition that top stands on, for indexTwoLevel
	err  error

	topBytes, partBytes int64 // of blocks that are the cursor's own
}

func (t *table) newCursor() (*indexCursor, error) {
	block, own := t.indexBlock, int64(0)
	if block == nil {
		var err error
		if block, err = t.readIndex(); err != nil {
			return nil, err
		}
		own = int64(cap(block))
	}
	top, err := newIndexIter(block, t.indexFormat)
	if err != nil {
		return nil, t.fault(t.index.offset, err)
	}
	return &indexCursor{t: t, top: top, topBytes: own}, nil
}

func (t *table) readIndex() ([]byte, error) {
	m := metaReader{t: t}
	return m.block(t.index)
}

// at is the index entry of the current data block.
func (c *indexCursor) at() *indexIter {
	if c.part != nil {
		return c.part
	}
	return c.top
}

func (c *indexCursor) next() bool {
	if c.t.indexType != indexTwoLevel {
		return c.ok(c.top, c.t.index, c.top.next())
	}
	for {
		if c.part != nil {
			if c.ok(c.part, c.top.handle, c.part.next()) {
				return true
			}
			if c.err != nil {
				return false
			}
		}
		if !c.ok(c.top, c.t.index, c.top.next()) || !c.openPart() {
			return false
		}
	}
}

// seek moves to the first data block that can hold a key not less than key.
func (c *indexCursor) seek(key []byte) bool {
	c.part = nil
	if !c.ok(c.top, c.t.index, c.top.seek(key)) {
		return false
	}
	if c.t.indexType != indexTwoLevel {
		return true
	}
	if !c.openPart() {
		return false
	}
	if c.ok(c.part, c.top.handle, c.part.seek(key)) {
		return true
	}
	return c.err == nil && c.next()
}

// ok turns the iterator's error into one about the block it walks.
func (c *indexCursor) ok(it *indexIter, at blockHandle, moved bool) bool {
	if it.err != nil {
		c.err = c.t.fault(at.offset, fmt.Errorf("index: %w", it.err))
	}
	return moved && c.err == nil
}

func (c *indexCursor) openPart() bool {
	m := metaReader{t: c.t}
	b, err := m.block(c.top.handle)
	if err == nil {
		c.partBytes = int64(cap(b))
		if c.part, err = newIndexIter(b, c.t.indexFormat); err != nil {
			err = c.t.fault(c.top.handle.offset, err)
		}
	}
	c.err = err
	return err == nil
}
