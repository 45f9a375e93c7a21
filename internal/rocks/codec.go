package rocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Compression types of a block trailer (include/rocksdb/compression_type.h).
const (
	codecNone      = 0
	codecSnappy    = 1
	codecZlib      = 2 // raw deflate
	codecBzip2     = 3
	codecLZ4       = 4
	codecLZ4HC     = 5
	codecXpress    = 6
	codecZstd      = 7
	codecZstdDraft = 0x40 // the same format, written before it was final
)

// zstdDictMagic starts a trained Zstandard dictionary; other dictionaries are
// raw content.
const zstdDictMagic = 0xec30a437

var (
	errLength    = errors.New("length of the decompressed block is wrong")
	errLengthGap = errors.New("no length before the compressed block")
)

// errTooLarge says that a block claims more memory than MaxBlockSize.
type errTooLarge struct {
	size uint64
	max  int
}

func (e *errTooLarge) Error() string {
	return fmt.Sprintf("block of %d bytes, at most %d are allowed", e.size, e.max)
}

// unpacker decompresses blocks of one table: it knows the format version and
// the dictionary. It is safe for concurrent use.
type unpacker struct {
	version uint32
	max     int // bytes of one decompressed block
	dict    []byte
	zstd    func() (*zstd.Decoder, error)
	inflate *sync.Pool // of *inflater
}

func newUnpacker(version uint32, max int, shared func() (*zstd.Decoder, error)) *unpacker {
	return &unpacker{
		version: version,
		max:     max,
		zstd:    shared,
		inflate: &sync.Pool{New: func() any { return new(inflater) }},
	}
}

// newZstd makes a decoder that never writes beyond the capacity it is given.
func newZstd(opts ...zstd.DOption) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, append(opts,
		zstd.WithDecoderConcurrency(0),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true))...)
}

// setDict installs the table's dictionary.
func (u *unpacker) setDict(dict []byte) {
	u.dict = dict
	u.zstd = sync.OnceValues(func() (*zstd.Decoder, error) {
		if len(dict) >= 8 && binary.LittleEndian.Uint32(dict) == zstdDictMagic {
			return newZstd(zstd.WithDecoderDicts(dict))
		}
		return newZstd(zstd.WithDecoderDictRaw(0, dict))
	})
}

// unpack decompresses src into buf, which grows when it is too small. It is not
// called for codecNone. From format version 2 on every codec but Snappy, which
// has its own, is preceded by the decompressed length as a varint.
func (u *unpacker) unpack(codec byte, src, buf []byte) ([]byte, error) {
	switch codec {
	case codecSnappy:
		return u.snappy(src, buf)
	case codecZlib:
		if u.version < 2 {
			return u.inflateUnsized(src, buf)
		}
		dst, src, err := u.sized(src, buf)
		if err != nil {
			return nil, err
		}
		return u.inflateSized(src, dst)
	case codecLZ4, codecLZ4HC:
		return u.lz4(src, buf)
	case codecZstd, codecZstdDraft:
		dst, src, err := u.sized(src, buf)
		if err != nil {
			return nil, err
		}
		return u.unzstd(src, dst)
	case codecBzip2:
		return nil, &foreignFeature{"bzip2 compression"}
	case codecXpress:
		return nil, &foreignFeature{"Xpress compression"}
	}
	return nil, fmt.Errorf("unknown compression type %d", codec)
}

// room returns a slice of n bytes, in buf when that is large enough.
func (u *unpacker) room(n uint64, buf []byte) ([]byte, error) {
	if n > uint64(u.max) {
		return nil, &errTooLarge{n, u.max}
	}
	if uint64(cap(buf)) < n {
		// A little more, so that slightly larger blocks that follow fit.
		return make([]byte, n, n+n/8), nil
	}
	return buf[:n], nil
}

// sized reads the length before src and returns room for it.
func (u *unpacker) sized(src, buf []byte) (dst, rest []byte, err error) {
	n, k := binary.Uvarint(src)
	if k <= 0 {
		return nil, nil, errLengthGap
	}
	dst, err = u.room(n, buf)
	return dst, src[k:], err
}

func (u *unpacker) snappy(src, buf []byte) ([]byte, error) {
	n, err := snappy.DecodedLen(src)
	if err != nil {
		return nil, err
	}
	dst, err := u.room(uint64(n), buf)
	if err != nil {
		return nil, err
	}
	return snappy.Decode(dst, src)
}

// lz4 before format version 2 has the length in eight bytes.
func (u *unpacker) lz4(src, buf []byte) (dst []byte, err error) {
	if u.version >= 2 {
		dst, src, err = u.sized(src, buf)
	} else if len(src) < 8 {
		err = errLengthGap
	} else {
		dst, err = u.room(binary.LittleEndian.Uint64(src), buf)
		src = src[8:]
	}
	if err != nil {
		return nil, err
	}
	if len(dst) == 0 {
		// The decoder's assembly does not survive an empty destination. No block of
		// a database is empty: each ends in its restart points.
		return nil, errLength
	}
	var n int
	if len(u.dict) > 0 {
		n, err = lz4.UncompressBlockWithDict(src, dst, u.dict)
	} else {
		n, err = lz4.UncompressBlock(src, dst)
	}
	if err == nil && n != len(dst) {
		err = errLength
	}
	return dst, err
}

func (u *unpacker) unzstd(src, dst []byte) ([]byte, error) {
	z, err := u.zstd()
	if err != nil {
		return nil, fmt.Errorf("zstd dictionary: %w", err)
	}
	// The limit on capacity keeps the decoder inside dst.
	n := len(dst)
	out, err := z.DecodeAll(src, dst[:0:n])
	if err == nil && len(out) != n {
		err = errLength
	}
	return dst, err
}

// inflater is a reusable deflate reader.
type inflater struct {
	src bytes.Reader
	r   io.ReadCloser
}

func (i *inflater) reset(src, dict []byte) error {
	i.src.Reset(src)
	if i.r == nil {
		i.r = flate.NewReaderDict(&i.src, dict)
		return nil
	}
	return i.r.(flate.Resetter).Reset(&i.src, dict)
}

func (u *unpacker) inflateSized(src, dst []byte) ([]byte, error) {
	i := u.inflate.Get().(*inflater)
	defer u.inflate.Put(i)
	if err := i.reset(src, u.dict); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(i.r, dst); err != nil {
		return nil, err
	}
	if n, _ := i.r.Read(make([]byte, 1)); n != 0 {
		return nil, errLength
	}
	return dst, nil
}

// inflateUnsized grows as it reads: before format version 2 zlib blocks do not
// say how long they are.
func (u *unpacker) inflateUnsized(src, buf []byte) ([]byte, error) {
	i := u.inflate.Get().(*inflater)
	defer u.inflate.Put(i)
	if err := i.reset(src, u.dict); err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(buf[:0])
	n, err := io.Copy(out, io.LimitReader(i.r, int64(u.max)+1))
	if err != nil {
		return nil, err
	}
	if n > int64(u.max) {
		return nil, &errTooLarge{uint64(n), u.max}
	}
	return out.Bytes(), nil
}
