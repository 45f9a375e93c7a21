// Package rocks writes and reads RocksDB directories in pure Go.
//
// A Fluss key-value snapshot is a RocksDB checkpoint: table files (*.sst), one
// MANIFEST that lists them, and CURRENT that names the MANIFEST. The builder
// writes such directories without a RocksDB; the broker and the scan read
// those that Fluss's own RocksDB (FRocksDB 6.20.3) or ours made.
//
// # Words
//
//   - A table is one *.sst file: data blocks of sorted entries, an index of the
//     blocks, a filter, properties, and a footer that leads to all of them.
//   - An internal key is the user key followed by eight bytes, little endian:
//     sequence number << 8 | kind. Higher sequence numbers are newer.
//   - A level is a set of tables. Tables of level 0 may overlap, those of one
//     deeper level never do. A sorted run is one table of level 0 or one whole
//     deeper level.
//   - The MANIFEST is a log of edits; applied in order they give the live tables.
//
// # Writing
//
// [Writer] takes rows in strictly ascending key order and makes a database of
// one sorted run in the deepest level (6 of 0 to 6) with every sequence number
// 0 and an empty history. RocksDB opens it read-only or read-write; nothing in
// it is subject to compaction before the first write. There is no write-ahead
// log, no OPTIONS file, no LOCK.
//
// # Reading
//
// [Open] reads what RocksDB from 2.x to 9.x writes into block-based tables:
// format versions 0 to 6; no compression, Snappy, zlib, LZ4, LZ4HC and
// Zstandard, with dictionaries; checksums CRC32C, xxHash32, xxHash64 and XXH3;
// plain, partitioned and first-key indexes; deletes, single deletes and range
// deletes. What it cannot read faithfully it refuses with [ErrUnsupported] and
// the feature's name: merge operands, blobs, user-defined timestamps, wide
// columns, a write-ahead log that still holds rows, comparators other than
// bytewise, format version 7 and later, several column families.
//
// Bytes are never trusted: every length is checked before it is used, a block
// larger than [Options].MaxBlockSize is not allocated, and damage is reported
// as [ErrCorrupt] with file and offset.
package rocks
