package key

import (
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Encoder makes the keys and buckets of one table. An Encoder belongs to one
// goroutine; Clone makes one for another.
type Encoder struct {
	key    codec
	bucket codec // the same as key when shared
	hash   bucketFunc
	count  int32
	shared bool

	buf []byte // scratch of Bucket
}

// New returns the encoder a KV table needs. Lake formats and format versions that it
// cannot write are refused by name.
func New(t *schema.Table) (*Encoder, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if len(t.Schema.PrimaryKey) == 0 {
		return nil, errors.New("table has no primary key")
	}
	if t.BucketCount < 1 {
		return nil, errors.New("table has no bucket count")
	}
	version, err := t.KVFormatVersion()
	if err != nil {
		return nil, err
	}
	e := &Encoder{count: int32(t.BucketCount)}
	lake := t.LakeFormat()
	if e.bucket, e.hash, err = newBucket(t, lake); err != nil {
		return nil, err
	}
	if version == 2 && !t.DefaultBucketKey() {
		lake = ""
	}
	if e.shared = t.DefaultBucketKey(); e.shared {
		e.key = e.bucket
		return e, nil
	}
	e.key, err = newCodec(t.Schema, t.PhysicalPrimaryKey(), lake)
	return e, err
}

// newBucket returns the encoding and the hash of a table's bucket key.
func newBucket(t *schema.Table, lake string) (codec, bucketFunc, error) {
	hash := flussBucket
	switch lake {
	case "", "lance":
	case "paimon":
		hash = paimonBucket
	case "iceberg":
		hash = icebergBucket
	default:
		return nil, nil, fmt.Errorf("lake format %q: its keys and buckets are not supported", lake)
	}
	c, err := newCodec(t.Schema, t.BucketColumns(), lake)
	return c, hash, err
}

func newCodec(s *schema.Schema, index []int, lake string) (codec, error) {
	switch lake {
	case "paimon":
		return newPaimon(s, index)
	case "iceberg":
		return newIceberg(s, index)
	}
	return row.NewFieldsEncoder(s, index)
}

// Clone returns an independent encoder for another goroutine.
func (e *Encoder) Clone() *Encoder {
	c := *e
	c.buf = nil
	return &c
}

// AppendKey appends the RocksDB key of a whole row in schema order. It allocates only
// when dst must grow. An error about one column is a *row.ColumnError; dst is then
// returned unchanged.
func (e *Encoder) AppendKey(dst []byte, r []row.Value) ([]byte, error) { return e.key.Append(dst, r) }

// DecodeKey reads a RocksDB key into the primary-key columns of a whole row; other
// values stay. Text and bytes alias key.
func (e *Encoder) DecodeKey(key []byte, into []row.Value) error { return e.key.Decode(key, into) }

// AppendBucketKey appends the bytes that the bucket function hashes.
func (e *Encoder) AppendBucketKey(dst []byte, r []row.Value) ([]byte, error) {
	return e.bucket.Append(dst, r)
}

// DecodeBucketKey reads bucket bytes into the bucket-key columns of a whole row.
func (e *Encoder) DecodeBucketKey(b []byte, into []row.Value) error { return e.bucket.Decode(b, into) }

// Bucket returns the bucket of a whole row, 0 ≤ bucket < bucket count. It uses a
// buffer of the Encoder and allocates only while that grows.
func (e *Encoder) Bucket(r []row.Value) (int, error) {
	var err error
	if e.buf, err = e.bucket.Append(e.buf[:0], r); err != nil {
		return 0, err
	}
	return e.BucketOfBytes(e.buf), nil
}

// SharedBytes reports whether bucket bytes and key are the same, so that BucketOfKey
// answers from a key alone. It is so for every table with the default bucket key.
func (e *Encoder) SharedBytes() bool { return e.shared }

// BucketOfKey returns the bucket of a key made by AppendKey. It panics unless
// SharedBytes.
func (e *Encoder) BucketOfKey(key []byte) int {
	if !e.shared {
		panic("key: BucketOfKey of a table whose keys do not hold the bucket bytes")
	}
	return e.BucketOfBytes(key)
}

// BucketOfBytes returns the bucket of bytes made by AppendBucketKey.
func (e *Encoder) BucketOfBytes(b []byte) int { return int(e.hash(b, e.count)) }

// Buckets returns the table's bucket count.
func (e *Encoder) Buckets() int { return int(e.count) }
