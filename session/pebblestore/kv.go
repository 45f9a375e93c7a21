package pebblestore

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/fluss-sluice/sluice/session/kv"
)

// A value of a KV:
//
//	+---------+-----------------+----------------------+----------+
//	| version | CRC-32C         | version of the value | value    |
//	| 1 byte  | 4 bytes, little | 8 bytes, big-endian  | the rest |
//	+---------+-----------------+----------------------+----------+
//
// The checksum covers the key, then the version byte, then what follows it.
const (
	valueVersion = 1
	valueHeader  = recordHeader + 8
)

// KV is a key-value store of its own inside the database: its changes are synced as
// those of sessions are, and it fails and closes with the Store.
func (s *Store) KV(name string) kv.Store { return &keyValues{s, kvPrefix(name)} }

type keyValues struct {
	s      *Store
	prefix []byte
}

func kvPrefix(name string) []byte { return key(keyValue, name) }

func (k *keyValues) key(name string) []byte { return append(bytes.Clone(k.prefix), name...) }

// Get implements kv.Store.
func (k *keyValues) Get(ctx context.Context, name string) ([]byte, uint64, error) {
	if err := k.s.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer k.s.leave()
	k.s.values.RLock()
	defer k.s.values.RUnlock()
	return k.get(name)
}

func (k *keyValues) get(name string) ([]byte, uint64, error) {
	key := k.key(name)
	b, err := k.s.get(key)
	if b == nil || err != nil {
		return nil, 0, err
	}
	return decodeValue(key, b)
}

// Apply implements kv.Store.
func (k *keyValues) Apply(ctx context.Context, ops ...kv.Op) error {
	if err := kv.Check(ops); err != nil {
		return err
	}
	if err := k.s.enter(ctx); err != nil {
		return err
	}
	defer k.s.leave()
	k.s.values.Lock()
	defer k.s.values.Unlock()
	b := k.s.db.NewBatch()
	for _, op := range ops {
		_, have, err := k.get(op.Key)
		if err == nil && !op.Any && have != op.Expect {
			err = kv.Conflict(op, have)
		}
		if err != nil {
			_ = b.Close() // a batch in memory
			return err
		}
		if key := k.key(op.Key); op.Delete {
			del(b, key)
		} else {
			set(b, key, encodeValue(key, have+1, op.Value))
		}
	}
	if len(ops) == 0 {
		return b.Close()
	}
	return k.s.commit(b)
}

// Scan implements kv.Store.
func (k *keyValues) Scan(ctx context.Context, prefix, after string, f func(kv.Entry) (bool, error)) error {
	if err := k.s.enter(ctx); err != nil {
		return err
	}
	defer k.s.leave()
	k.s.values.RLock()
	defer k.s.values.RUnlock()
	lower := k.key(prefix)
	upper := prefixEnd(lower)
	if next := append(k.key(after), 0); after != "" && bytes.Compare(next, lower) > 0 {
		lower = next
	}
	if bytes.Compare(lower, upper) >= 0 {
		return ctx.Err()
	}
	return k.s.scan(lower, upper, func(key, b []byte) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		value, version, err := decodeValue(key, b)
		if err != nil {
			return false, err
		}
		return f(kv.Entry{Key: string(key[len(k.prefix):]), Value: bytes.Clone(value), Version: version})
	})
}

func encodeValue(key []byte, version uint64, value []byte) []byte {
	b := make([]byte, recordHeader, valueHeader+len(value))
	b[0] = valueVersion
	b = append(binary.BigEndian.AppendUint64(b, version), value...)
	binary.LittleEndian.PutUint32(b[1:], checksum(key, b))
	return b
}

// decodeValue returns a part of b, never nil.
func decodeValue(key, b []byte) (value []byte, version uint64, err error) {
	switch {
	case len(b) < valueHeader:
		return nil, 0, corrupt(key, "a value of %d bytes", len(b))
	case b[0] != valueVersion:
		return nil, 0, corrupt(key, "value version %d; this program reads version %d", b[0], valueVersion)
	case checksum(key, b) != binary.LittleEndian.Uint32(b[1:]):
		return nil, 0, corrupt(key, "checksum mismatch")
	}
	version = binary.BigEndian.Uint64(b[recordHeader:])
	if version == 0 {
		return nil, 0, corrupt(key, "version 0")
	}
	return b[valueHeader:], version, nil
}
