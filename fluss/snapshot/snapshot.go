// Package snapshot reads and writes _METADATA, the description of one KV snapshot of
// one bucket.
//
//	{"version":1,
//	 "table_id":n, "partition_id":n?, "bucket_id":n, "snapshot_id":n,
//	 "snapshot_location":uri,                      the snap-N directory
//	 "kv_snapshot_handle":{
//	   "shared_file_handles":[file…],              objects that later snapshots use, too
//	   "private_file_handles":[file…],
//	   "snapshot_incremental_size":bytes},         newly uploaded by this snapshot
//	 "log_offset":n,                               the next log offset to apply
//	 "row_count":n?,                               live keys; only with changelog image FULL
//	 "auto_inc_id_range":[{"column_id":n,"start":n,"end":n}]?}
//
//	file: {"kv_file_handle":{"path":uri,"size":bytes},"local_path":name}
//
// Two readers: Parse takes what Fluss takes, for snapshots that Fluss made; ParseStrict
// takes what a bulk load may deliver, rules 10 and 12–14 of the upstream contract as
// far as they need neither the load's plan nor storage.
//
// Facts about Fluss: org.apache.fluss.server.kv.snapshot.CompletedSnapshotJsonSerde.
package snapshot

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/internal/strictjson"
)

// docVersion is the only version of the document. It has not changed since Fluss 0.6.
const docVersion = 1

// File is one object of a snapshot.
type File struct {
	Path      string // absolute URI of the object
	Size      int64  // bytes
	LocalPath string // name inside the RocksDB directory
}

// AutoIncRange is a segment of auto-increment ids held by a bucket, both ends included.
type AutoIncRange struct {
	ColumnID   int32
	Start, End int64
}

// Metadata is the content of _METADATA.
type Metadata struct {
	Version         int // as read, 0 when absent; always written as 1
	TableID         int64
	PartitionID     *int64 // nil for unpartitioned tables
	BucketID        int
	SnapshotID      int64
	Location        string // the snapshot's directory, an absolute URI
	Shared, Private []File
	IncrementalSize int64  // bytes
	LogOffset       int64  // the next log offset to apply
	RowCount        *int64 // nil when not counted
	AutoInc         []AutoIncRange
}

// Parse reads _METADATA as Fluss does: unknown keys are ignored, of duplicate keys the
// last one counts, and the version is not looked at. It still refuses values of a
// wrong type, missing required keys and trailing content.
func Parse(b []byte) (*Metadata, error) {
	r := strictjson.NewReader(b)
	r.AllowDuplicateKeys()
	p := parser{r: r, unknown: r.Skip}
	m := p.metadata()
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("_METADATA: %w", err)
	}
	return m, nil
}

// ParseStrict reads _METADATA of a bulk load: version 1, no unknown or duplicate key,
// no shared file, no auto-increment range, no negative number, files that lie in the
// snapshot's directory under distinct safe names, and sizes that add up. Whether
// ids, location and row count are those that were planned is the caller's to compare.
func ParseStrict(b []byte) (*Metadata, error) {
	r := strictjson.NewReader(b)
	p := parser{r: r, unknown: r.Unknown}
	m := p.metadata()
	r.Required(p.version, "version")
	err := r.End()
	if err == nil {
		err = m.checkBulkLoad()
	}
	if err != nil {
		return nil, fmt.Errorf("_METADATA: %w", err)
	}
	return m, nil
}

type parser struct {
	r       *strictjson.Reader
	unknown func()
	version bool
}

func (p *parser) metadata() *Metadata {
	r, m := p.r, &Metadata{}
	var table, bucket, id, location, handle, offset bool
	r.Object(func(key string) {
		switch key {
		case "version":
			m.Version, p.version = int(r.Int32()), true
		case "table_id":
			m.TableID, table = r.Int64(), true
		case "partition_id":
			m.PartitionID = p.optional()
		case "bucket_id":
			m.BucketID, bucket = int(r.Int32()), true
		case "snapshot_id":
			m.SnapshotID, id = r.Int64(), true
		case "snapshot_location":
			m.Location, location = r.String(), true
		case "kv_snapshot_handle":
			p.handle(m)
			handle = true
		case "log_offset":
			m.LogOffset, offset = r.Int64(), true
		case "row_count":
			m.RowCount = p.optional()
		case "auto_inc_id_range":
			m.AutoInc = p.ranges()
		default:
			p.unknown()
		}
	})
	r.Required(table, "table_id")
	r.Required(bucket, "bucket_id")
	r.Required(id, "snapshot_id")
	r.Required(location, "snapshot_location")
	r.Required(handle, "kv_snapshot_handle")
	r.Required(offset, "log_offset")
	return m
}

func (p *parser) optional() *int64 {
	n := p.r.Int64()
	return &n
}

func (p *parser) handle(m *Metadata) {
	r := p.r
	var shared, private, size bool
	r.Object(func(key string) {
		switch key {
		case "shared_file_handles":
			m.Shared, shared = p.files(), true
		case "private_file_handles":
			m.Private, private = p.files(), true
		case "snapshot_incremental_size":
			m.IncrementalSize, size = r.Int64(), true
		default:
			p.unknown()
		}
	})
	r.Required(shared, "shared_file_handles")
	r.Required(private, "private_file_handles")
	r.Required(size, "snapshot_incremental_size")
}

func (p *parser) files() []File {
	files := []File{}
	p.r.Array(func(int) { files = append(files, p.file()) })
	return files
}

func (p *parser) file() File {
	r := p.r
	var f File
	var handle, local bool
	r.Object(func(key string) {
		switch key {
		case "kv_file_handle":
			p.object(&f)
			handle = true
		case "local_path":
			f.LocalPath, local = r.String(), true
		default:
			p.unknown()
		}
	})
	r.Required(handle, "kv_file_handle")
	r.Required(local, "local_path")
	return f
}

func (p *parser) object(f *File) {
	r := p.r
	var path, size bool
	r.Object(func(key string) {
		switch key {
		case "path":
			f.Path, path = r.String(), true
		case "size":
			f.Size, size = r.Int64(), true
		default:
			p.unknown()
		}
	})
	r.Required(path, "path")
	r.Required(size, "size")
}

func (p *parser) ranges() []AutoIncRange {
	r := p.r
	var ranges []AutoIncRange
	r.Array(func(int) {
		var a AutoIncRange
		var column, start, end bool
		r.Object(func(key string) {
			switch key {
			case "column_id":
				a.ColumnID, column = r.Int32(), true
			case "start":
				a.Start, start = r.Int64(), true
			case "end":
				a.End, end = r.Int64(), true
			default:
				p.unknown()
			}
		})
		r.Required(column, "column_id")
		r.Required(start, "start")
		r.Required(end, "end")
		ranges = append(ranges, a)
	})
	return ranges
}

// checkBulkLoad applies the rules of ParseStrict to a document of the right form.
func (m *Metadata) checkBulkLoad() error {
	switch {
	case m.Version != docVersion:
		return fmt.Errorf("version %d is not known, only %d", m.Version, docVersion)
	case m.TableID < 0 || m.BucketID < 0 || m.SnapshotID < 0 || m.PartitionID != nil && *m.PartitionID < 0:
		return errors.New("an id is negative")
	case m.Location == "":
		return errors.New("snapshot_location is empty")
	case len(m.Shared) > 0:
		return fmt.Errorf("%d shared files; a bulk load's files are all private", len(m.Shared))
	case len(m.AutoInc) > 0:
		return errors.New("auto-increment ranges; a bulk load holds none")
	case m.LogOffset < 0:
		return fmt.Errorf("log offset %d is negative", m.LogOffset)
	case m.RowCount != nil && *m.RowCount < 0:
		return fmt.Errorf("row count %d is negative", *m.RowCount)
	}
	return m.checkFiles()
}

func (m *Metadata) checkFiles() error {
	local, remote := map[string]bool{}, map[string]bool{}
	var sum int64
	for _, f := range m.Private {
		if err := CheckLocalPath(f.LocalPath); err != nil {
			return err
		}
		name, ok := strings.CutPrefix(f.Path, m.Location+"/")
		if !ok {
			return fmt.Errorf("file %q lies outside the snapshot's directory %q", f.Path, m.Location)
		}
		if err := CheckLocalPath(name); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		if local[f.LocalPath] || remote[f.Path] {
			return fmt.Errorf("file %q (%s) is listed twice", f.LocalPath, f.Path)
		}
		local[f.LocalPath], remote[f.Path] = true, true
		if f.Size < 0 || sum+f.Size < sum {
			return fmt.Errorf("file %q: size %d is out of range", f.LocalPath, f.Size)
		}
		sum += f.Size
	}
	if sum != m.IncrementalSize {
		return fmt.Errorf("files have %d bytes together, snapshot_incremental_size says %d", sum, m.IncrementalSize)
	}
	return nil
}

// CheckLocalPath checks that a file's path inside a RocksDB directory is relative,
// canonical and free of bytes that mean something to a shell, URI or file system:
// segments of printable ASCII without '\', '%', '?', '#' joined by '/', none of them
// empty, "." or "..".
func CheckLocalPath(path string) error {
	for i := 0; i < len(path); i++ {
		if c := path[i]; c <= ' ' || c > '~' || strings.IndexByte(`\%?#`, c) >= 0 {
			return fmt.Errorf("path %q has the byte %q", path, string(rune(c)))
		}
	}
	for _, segment := range strings.Split(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("path %q has the segment %q", path, segment)
		}
	}
	return nil
}

// Files returns all files, private ones first.
func (m *Metadata) Files() []File {
	return append(append(make([]File, 0, len(m.Private)+len(m.Shared)), m.Private...), m.Shared...)
}

// AppendJSON appends _METADATA, byte for byte as Fluss writes it.
func (m *Metadata) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	dst = strictjson.AppendInt(dst, "version", docVersion)
	dst = strictjson.AppendInt(dst, "table_id", m.TableID)
	if m.PartitionID != nil {
		dst = strictjson.AppendInt(dst, "partition_id", *m.PartitionID)
	}
	dst = strictjson.AppendInt(dst, "bucket_id", int64(m.BucketID))
	dst = strictjson.AppendInt(dst, "snapshot_id", m.SnapshotID)
	dst = strictjson.AppendText(dst, "snapshot_location", m.Location)
	dst = append(strictjson.AppendKey(dst, "kv_snapshot_handle"), '{')
	dst = appendFiles(dst, "shared_file_handles", m.Shared)
	dst = appendFiles(dst, "private_file_handles", m.Private)
	dst = strictjson.AppendInt(dst, "snapshot_incremental_size", m.IncrementalSize)
	dst = append(dst, '}')
	dst = strictjson.AppendInt(dst, "log_offset", m.LogOffset)
	if m.RowCount != nil {
		dst = strictjson.AppendInt(dst, "row_count", *m.RowCount)
	}
	if len(m.AutoInc) > 0 {
		dst = m.appendRanges(dst)
	}
	return append(dst, '}')
}

func appendFiles(dst []byte, key string, files []File) []byte {
	dst = append(strictjson.AppendKey(dst, key), '[')
	for i, f := range files {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"kv_file_handle":{`...)
		dst = strictjson.AppendText(dst, "path", f.Path)
		dst = strictjson.AppendInt(dst, "size", f.Size)
		dst = append(dst, '}')
		dst = strictjson.AppendText(dst, "local_path", f.LocalPath)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

func (m *Metadata) appendRanges(dst []byte) []byte {
	dst = append(strictjson.AppendKey(dst, "auto_inc_id_range"), '[')
	for i, a := range m.AutoInc {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		dst = strictjson.AppendInt(dst, "column_id", int64(a.ColumnID))
		dst = strictjson.AppendInt(dst, "start", a.Start)
		dst = strictjson.AppendInt(dst, "end", a.End)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}
