// Package key makes the RocksDB keys and the bucket numbers of KV tables.
//
// Two encodings are at work, and a table's properties choose both:
//
//	fmt = table.datalake.format, "" for none
//	ver = table.kv.format-version, absent = 1
//	lake(fmt) = Paimon's or Iceberg's encoding for those formats, else compacted
//
//	RocksDB key, over the physical primary key:
//	    ver 1                                   lake(fmt)
//	    ver 2, bucket key is the default one    lake(fmt)
//	    ver 2, bucket key is another            compacted
//	bucket bytes, over the bucket key:          lake(fmt)
//	bucket number:                              Fluss's, Paimon's or Iceberg's hash of the bucket bytes
//
// The lake format counts even when the table's lake is switched off. Tables of the
// lake format hudi are refused: their buckets hash Java strings.
//
// Keys sort by their bytes, which is not the order of the values: varints have
// their least significant byte first.
//
// Facts about Fluss: org.apache.fluss.row.encode.* and org.apache.fluss.bucketing.*,
// read and executed at 0.8.0, 0.9.1 and main of August 2026; see ../testdata. One
// version differs: 0.8 writes Paimon keys of TIMESTAMP_LTZ with more than three
// digits without their milliseconds, so that distinct instants collide. This package
// writes what 0.9 and later do; such tables must not be loaded into 0.8.
package key
