// Package layout names the remote objects of KV snapshots and bulk loads.
//
//	{remote dir}/kv/{database}/{table}-{table id}/                              TableDir
//	{remote dir}/kv/{database}/{table}-{table id}/{partition}-p{partition id}/  PartitionDir
//	{dir of table or partition}/
//	    {bucket}/                                                               BucketDir
//	        shared/                                                             SharedDir
//	        snap-{snapshot id}/                                                 SnapshotDir
//	            private-{sha256 of content}-{sha256 of local path}              PrivateFileName
//	            _METADATA                                                       MetadataPath
//	    _bulkload/{bulk load id}/manifest                                       ManifestPath
//	    _bulkload/{bulk load id}/data/                                          StagingDir
//	    _bulkload/{bulk load id}/manifest.frozen                                FrozenManifestPath
//
// Roots and results are absolute URIs; a root's trailing slash is dropped. No
// function looks at storage, and none checks names: database, table and partition
// names come from package schema, whose alphabet holds no slash.
//
// Facts about Fluss: org.apache.fluss.utils.FlussPaths; private file names and the
// manifest's place are those of the public proof of concept of bulk load. StagingDir
// and FrozenManifestPath are ours.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// The fixed names of the layout. They never change.
const (
	MetadataName   = "_METADATA"
	ManifestName   = "manifest"
	FrozenName     = "manifest.frozen"
	StagingName    = "data"
	bulkLoadDir    = "_bulkload"
	kvDir          = "kv"
	sharedDir      = "shared"
	snapshotPrefix = "snap-"
	privatePrefix  = "private-"
)

// TableDir returns {remoteDir}/kv/{db}/{table}-{tableID}.
func TableDir(remoteDir, db, table string, tableID int64) string {
	return join(remoteDir, kvDir, db, table+"-"+strconv.FormatInt(tableID, 10))
}

// PartitionDir returns {remoteDir}/kv/{db}/{table}-{tableID}/{partition}-p{partitionID}.
func PartitionDir(remoteDir, db, table string, tableID int64, partition string, partitionID int64) string {
	return join(TableDir(remoteDir, db, table, tableID), partition+"-p"+strconv.FormatInt(partitionID, 10))
}

// BucketDir returns {dir}/{bucket} for a table or partition directory.
func BucketDir(dir string, bucket int) string { return join(dir, strconv.Itoa(bucket)) }

// SharedDir returns {dir}/{bucket}/shared.
func SharedDir(dir string, bucket int) string { return join(BucketDir(dir, bucket), sharedDir) }

// SnapshotDir returns {dir}/{bucket}/snap-{snapshotID}.
func SnapshotDir(dir string, bucket int, snapshotID int64) string {
	return join(BucketDir(dir, bucket), snapshotPrefix+strconv.FormatInt(snapshotID, 10))
}

// MetadataPath returns {dir}/{bucket}/snap-{snapshotID}/_METADATA.
func MetadataPath(dir string, bucket int, snapshotID int64) string {
	return join(SnapshotDir(dir, bucket, snapshotID), MetadataName)
}

// ManifestPath returns {dir}/_bulkload/{bulkLoadID}/manifest.
func ManifestPath(dir, bulkLoadID string) string {
	return join(dir, bulkLoadDir, bulkLoadID, ManifestName)
}

// StagingDir returns {dir}/_bulkload/{bulkLoadID}/data: where the workers of a load
// write when its files are copied to their final place afterwards. Bucket directories
// lie in it as in dir.
func StagingDir(dir, bulkLoadID string) string {
	return join(dir, bulkLoadDir, bulkLoadID, StagingName)
}

// FrozenManifestPath returns {dir}/_bulkload/{bulkLoadID}/manifest.frozen: the
// broker's own copy of the manifest, where nobody else's keys reach.
func FrozenManifestPath(dir, bulkLoadID string) string {
	return join(dir, bulkLoadDir, bulkLoadID, FrozenName)
}

// PrivateFileName names a private file after its content, given as 64 lower-case hex
// digits, and after its path inside the RocksDB directory: private-{content}-{sha256
// of localPath}. A retry that builds the same file finds the same name.
func PrivateFileName(contentSHA256, localPath string) string {
	sum := sha256.Sum256([]byte(localPath))
	return privatePrefix + contentSHA256 + "-" + hex.EncodeToString(sum[:])
}

func join(dir string, names ...string) string {
	return strings.TrimRight(dir, "/") + "/" + strings.Join(names, "/")
}

// CanonicalURI writes a local URI as Java prints it, file:/dir, in the usual form,
// file:///dir, which the functions here take and return. Others stay as they are.
func CanonicalURI(uri string) string {
	if rest, ok := strings.CutPrefix(uri, "file:/"); ok && !strings.HasPrefix(rest, "/") {
		return "file:///" + rest
	}
	return uri
}
