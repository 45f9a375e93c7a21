// Package layout names the remote objects of KV snapshots and bulk loads. Roots and
// results are absolute URIs; no function looks at storage.
package layout

// TableDir returns {remoteDir}/kv/{db}/{table}-{tableID}.
func TableDir(remoteDir, db, table string, tableID int64) string { return "" }

// PartitionDir returns {remoteDir}/kv/{db}/{table}-{tableID}/{partition}-p{partitionID}.
func PartitionDir(remoteDir, db, table string, tableID int64, partition string, partitionID int64) string {
	return ""
}

// BucketDir returns {dir}/{bucket} for a table or partition directory.
func BucketDir(dir string, bucket int) string { return "" }

// SnapshotDir returns {dir}/{bucket}/snap-{snapshotID}.
func SnapshotDir(dir string, bucket int, snapshotID int64) string { return "" }

// SharedDir returns {dir}/{bucket}/shared.
func SharedDir(dir string, bucket int) string { return "" }

// MetadataPath returns {dir}/{bucket}/snap-{snapshotID}/_METADATA.
func MetadataPath(dir string, bucket int, snapshotID int64) string { return "" }

// ManifestPath returns {dir}/_bulkload/{bulkLoadID}/manifest.
func ManifestPath(dir, bulkLoadID string) string { return "" }

// PrivateFileName returns private-{contentSHA256}-{sha256 of localPath}.
func PrivateFileName(contentSHA256, localPath string) string { return "" }
