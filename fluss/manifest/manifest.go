// Package manifest reads and writes bulk-load manifests: the one object that says
// which _METADATA each bucket of a load ended with.
//
//	{"version":1,
//	 "bulk_load_id":uuid,
//	 "buckets":[{"bucket_id":0,
//	             "snapshot_metadata":{"path":uri,"length":bytes,"sha256":hex}},
//	            …]}                                   one for every bucket, in order
//
// There is one canonical form, compact and with keys in this order; Parse takes any
// order and white space, and nothing else. It applies rules 5–8 of the upstream
// contract as far as they need no plan: whose load it is, how many buckets the table
// has and which paths were planned is the caller's to compare.
//
// The form is that of the public proof of concept of bulk load in Fluss.
package manifest

import (
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/fluss/internal/strictjson"
)

// docVersion is the only version of the document.
const docVersion = 1

// Bucket refers to the _METADATA of one bucket.
type Bucket struct {
	BucketID int
	Path     string // absolute URI
	Length   int64  // bytes, at least 1
	SHA256   string // of the content, 64 lower-case hex digits
}

// Manifest is a bulk-load manifest.
type Manifest struct {
	BulkLoadID string   // lower-case UUID
	Buckets    []Bucket // position = bucket number
}

// Parse reads a manifest: version 1, no unknown or duplicate key at any level, no
// trailing content, buckets complete and ascending from 0, references well formed.
func Parse(b []byte) (*Manifest, error) {
	r := strictjson.NewReader(b)
	m := read(r)
	err := r.End()
	if err == nil {
		err = m.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

func read(r *strictjson.Reader) *Manifest {
	m := &Manifest{}
	var version, id, buckets bool
	r.Object(func(key string) {
		switch key {
		case "version":
			version = true
			if v := r.Int64(); r.Ok() && v != docVersion {
				r.Fail("version %d is not known, only %d", v, docVersion)
			}
		case "bulk_load_id":
			m.BulkLoadID, id = r.String(), true
		case "buckets":
			buckets = true
			r.Array(func(int) { m.Buckets = append(m.Buckets, readBucket(r)) })
		default:
			r.Unknown()
		}
	})
	r.Required(version, "version")
	r.Required(id, "bulk_load_id")
	r.Required(buckets, "buckets")
	return m
}

func readBucket(r *strictjson.Reader) Bucket {
	var b Bucket
	var id, metadata bool
	r.Object(func(key string) {
		switch key {
		case "bucket_id":
			b.BucketID, id = int(r.Int32()), true
		case "snapshot_metadata":
			readReference(r, &b)
			metadata = true
		default:
			r.Unknown()
		}
	})
	r.Required(id, "bucket_id")
	r.Required(metadata, "snapshot_metadata")
	return b
}

func readReference(r *strictjson.Reader, b *Bucket) {
	var path, length, sum bool
	r.Object(func(key string) {
		switch key {
		case "path":
			b.Path, path = r.String(), true
		case "length":
			b.Length, length = r.Int64(), true
		case "sha256":
			b.SHA256, sum = r.String(), true
		default:
			r.Unknown()
		}
	})
	r.Required(path, "path")
	r.Required(length, "length")
	r.Required(sum, "sha256")
}

// Check applies the rules of Parse to a manifest that was made otherwise.
func (m *Manifest) Check() error {
	if !isUUID(m.BulkLoadID) {
		return fmt.Errorf("bulk_load_id %q is not a lower-case UUID", m.BulkLoadID)
	}
	if len(m.Buckets) == 0 {
		return errors.New("no buckets")
	}
	for i := range m.Buckets {
		b := &m.Buckets[i]
		switch {
		case b.BucketID != i:
			return fmt.Errorf("buckets[%d] is bucket %d; buckets must be complete and in order", i, b.BucketID)
		case b.Path == "":
			return fmt.Errorf("bucket %d: path is empty", i)
		case b.Length < 1:
			return fmt.Errorf("bucket %d: length %d is less than 1", i, b.Length)
		case len(b.SHA256) != 64 || !isHex(b.SHA256):
			return fmt.Errorf("bucket %d: sha256 is not 64 lower-case hex digits", i)
		}
	}
	return nil
}

func isHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isUUID(s string) bool {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return false
	}
	return isHex(s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:])
}

// AppendJSON appends the manifest in its canonical form.
func (m *Manifest) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	dst = strictjson.AppendInt(dst, "version", docVersion)
	dst = strictjson.AppendText(dst, "bulk_load_id", m.BulkLoadID)
	dst = append(strictjson.AppendKey(dst, "buckets"), '[')
	for i := range m.Buckets {
		b := &m.Buckets[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		dst = strictjson.AppendInt(dst, "bucket_id", int64(b.BucketID))
		dst = append(strictjson.AppendKey(dst, "snapshot_metadata"), '{')
		dst = strictjson.AppendText(dst, "path", b.Path)
		dst = strictjson.AppendInt(dst, "length", b.Length)
		dst = strictjson.AppendText(dst, "sha256", b.SHA256)
		dst = append(dst, '}', '}')
	}
	return append(dst, ']', '}')
}
