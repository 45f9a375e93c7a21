package layout

import "testing"

func TestPaths(t *testing.T) {
	table := TableDir("s3://bucket/base//", "db", "t", 7)
	partition := PartitionDir("file:/data", "db", "t", 7, "2024$us", 11)
	content := "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	for got, want := range map[string]string{
		table:                         "s3://bucket/base/kv/db/t-7",
		partition:                     "file:/data/kv/db/t-7/2024$us-p11",
		BucketDir(table, 10):          "s3://bucket/base/kv/db/t-7/10",
		SharedDir(table, 0):           "s3://bucket/base/kv/db/t-7/0/shared",
		SnapshotDir(table, 1, -2):     "s3://bucket/base/kv/db/t-7/1/snap--2",
		MetadataPath(partition, 3, 5): "file:/data/kv/db/t-7/2024$us-p11/3/snap-5/_METADATA",
		ManifestPath(table, "0b5f6a3e-1c1d-4a39-9a51-0d5d6a0e9a11"): "s3://bucket/base/kv/db/t-7/_bulkload/0b5f6a3e-1c1d-4a39-9a51-0d5d6a0e9a11/manifest",
		StagingDir(table, "0b5f"):                                   "s3://bucket/base/kv/db/t-7/_bulkload/0b5f/data",
		FrozenManifestPath(table, "0b5f"):                           "s3://bucket/base/kv/db/t-7/_bulkload/0b5f/manifest.frozen",
		PrivateFileName(content, "abc"):                             "private-" + content + "-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if PrivateFileName(content, "CURRENT") == PrivateFileName(content, "MANIFEST-000001") {
		t.Error("files of equal content share a name")
	}
}

func TestCanonicalURI(t *testing.T) {
	for uri, want := range map[string]string{
		"file:/a/b": "file:///a/b", "file:///a/b": "file:///a/b", "file://host/a": "file://host/a", "s3://b/k": "s3://b/k", "": "",
	} {
		if got := CanonicalURI(uri); got != want {
			t.Errorf("%q: %q, want %q", uri, got, want)
		}
	}
}
