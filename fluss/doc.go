// Package fluss is the root of the formats of Apache Fluss: pure functions, no I/O.
// It holds no code of its own, only the tests that run all of them against vectors
// made by Fluss.
//
//	schema    data types, schemas, table descriptors, names
//	row       values, compacted and indexed rows, stored values
//	key       RocksDB keys and bucket numbers
//	layout    remote paths
//	snapshot  _METADATA, the description of a KV snapshot
//	manifest  the manifest of a bulk load
//	znode     documents that Fluss keeps in ZooKeeper and beside lake snapshots
package fluss
