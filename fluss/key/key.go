// Package key makes the RocksDB keys and bucket numbers of primary-key tables.
package key

import (
	"errors"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

var errNotBuilt = errors.New("not built yet")

// Encoder makes the keys and buckets of one table. One Encoder per goroutine.
type Encoder struct{}

// New returns the encoder a table needs; lake formats it cannot write are refused by name.
func New(t *schema.Table) (*Encoder, error) { return nil, errNotBuilt }

// Clone returns an independent encoder for another goroutine.
func (e *Encoder) Clone() *Encoder { return e }

// AppendKey appends the RocksDB key of a whole row in schema order.
func (e *Encoder) AppendKey(dst []byte, r []row.Value) ([]byte, error) { return dst, errNotBuilt }

// AppendBucketKey appends the bytes that the bucket function hashes.
func (e *Encoder) AppendBucketKey(dst []byte, r []row.Value) ([]byte, error) {
	return dst, errNotBuilt
}

// Bucket returns the bucket of a row.
func (e *Encoder) Bucket(r []row.Value) (int, error) { return 0, errNotBuilt }

// SharedBytes reports whether the bucket bytes are the key, so that BucketOfKey works.
func (e *Encoder) SharedBytes() bool { return false }

// BucketOfKey returns the bucket of an encoded key; only when SharedBytes.
func (e *Encoder) BucketOfKey(key []byte) int { return 0 }

// BucketOfBytes returns the bucket of bytes made by AppendBucketKey.
func (e *Encoder) BucketOfBytes(b []byte) int { return 0 }

// DecodeKey reads a RocksDB key into the primary-key columns of a whole row.
func (e *Encoder) DecodeKey(key []byte, into []row.Value) error { return errNotBuilt }

// PartitionName returns the partition a row belongs to, "" for unpartitioned tables.
func PartitionName(t *schema.Table, r []row.Value) (string, error) { return "", errNotBuilt }

// FormatPartitionValue prints one partition column's value as Fluss does.
func FormatPartitionValue(t schema.Type, v row.Value) (string, error) { return "", errNotBuilt }
