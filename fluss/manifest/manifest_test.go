package manifest

import (
	"reflect"
	"strings"
	"testing"
)

const sum = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

const doc = `{"version":1,"bulk_load_id":"0b5f6a3e-1c1d-4a39-9a51-0d5d6a0e9a11","buckets":[` +
	`{"bucket_id":0,"snapshot_metadata":{"path":"s3://b/0/snap-0/_METADATA","length":500,"sha256":"` + sum + `"}},` +
	`{"bucket_id":1,"snapshot_metadata":{"path":"s3://b/1/snap-4/_METADATA","length":501,"sha256":"` + sum + `"}}]}`

func TestManifestComesBack(t *testing.T) {
	m, err := Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	want := &Manifest{BulkLoadID: "0b5f6a3e-1c1d-4a39-9a51-0d5d6a0e9a11", Buckets: []Bucket{
		{0, "s3://b/0/snap-0/_METADATA", 500, sum}, {1, "s3://b/1/snap-4/_METADATA", 501, sum}}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("manifest is %+v", m)
	}
	if got := string(m.AppendJSON(nil)); got != doc {
		t.Errorf("manifest prints as\n%s, want\n%s", got, doc)
	}
	spaced := strings.NewReplacer(",", " ,\n", ":", " : ").Replace(`{"buckets":[{"snapshot_metadata":{"sha256":"`+sum+`","path":"p","length":1},"bucket_id":0}],"bulk_load_id":"`+want.BulkLoadID+`","version":1}`) + "\n"
	if m, err := Parse([]byte(spaced)); err != nil || m.Buckets[0].Path != "p" {
		t.Errorf("another order and white space: %+v, %v", m, err)
	}
}

func TestManifestsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"another version", `"version":1`, `"version":2`, "version 2 is not known"},
		{"no version", `"version":1,`, ``, `"version" is missing`},
		{"a version in quotes", `"version":1`, `"version":"1"`, "want a number"},
		{"no load", `"bulk_load_id":"0b5f6a3e-1c1d-4a39-9a51-0d5d6a0e9a11",`, ``, `"bulk_load_id" is missing`},
		{"an upper-case load", `0b5f6a3e`, `0B5F6A3E`, "not a lower-case UUID"},
		{"a load that is no UUID", `0b5f6a3e-1c1d`, `0b5f6a3e01c1d`, "not a lower-case UUID"},
		{"a short load", `0b5f6a3e-1c1d-4a39-9a51-0d5d6a0e9a11`, `0b5f6a3e`, "not a lower-case UUID"},
		{"an unknown key", `"version":1`, `"version":1,"x":1`, "x at byte"},
		{"an unknown key of a bucket", `"bucket_id":1`, `"bucket_id":1,"rows":5`, "buckets[1].rows"},
		{"an unknown key of a reference", `"length":501`, `"length":501,"etag":"x"`, "buckets[1].snapshot_metadata.etag"},
		{"a duplicate key", `"version":1`, `"version":1,"version":1`, "duplicate key"},
		{"a duplicate key of a bucket", `"bucket_id":1`, `"bucket_id":1,"bucket_id":1`, "duplicate key"},
		{"a duplicate key of a reference", `"length":501`, `"length":501,"length":501`, "duplicate key"},
		{"a missing bucket", `"bucket_id":1`, `"bucket_id":2`, "buckets[1] is bucket 2"},
		{"a doubled bucket", `"bucket_id":1`, `"bucket_id":0`, "buckets[1] is bucket 0"},
		{"a bucket in quotes", `"bucket_id":1`, `"bucket_id":"1"`, "want a number"},
		{"a bucket without an id", `"bucket_id":1,`, ``, `"bucket_id" is missing`},
		{"a bucket without metadata", `"bucket_id":0,"snapshot_metadata":{"path":"s3://b/0/snap-0/_METADATA","length":500,"sha256":"` + sum + `"}`, `"bucket_id":0`, `"snapshot_metadata" is missing`},
		{"an empty path", `s3://b/0/snap-0/_METADATA`, ``, "path is empty"},
		{"no path", `"path":"s3://b/0/snap-0/_METADATA",`, ``, `"path" is missing`},
		{"a length of 0", `"length":500`, `"length":0`, "less than 1"},
		{"a length that is a fraction", `"length":500`, `"length":500.5`, "want an integer"},
		{"no length", `"length":500,`, ``, `"length" is missing`},
		{"an upper-case digest", sum, strings.ToUpper(sum), "64 lower-case hex"},
		{"a short digest", sum, sum[1:], "64 lower-case hex"},
		{"no digest", `,"sha256":"` + sum + `"`, ``, `"sha256" is missing`},
		{"content behind the document", `}}]}`, `}}]}{}`, "content after"},
		{"an array", doc, `[` + doc + `]`, "want an object"},
		{"null buckets", doc, `{"version":1,"bulk_load_id":"x","buckets":null}`, "want an array"},
		{"no buckets", doc, `{"version":1,"bulk_load_id":"0b5f6a3e-1c1d-4a39-9a51-0d5d6a0e9a11","buckets":[]}`, "no buckets"},
	} {
		changed := strings.Replace(doc, c.old, c.new, 1)
		if changed == doc {
			t.Fatalf("%s: nothing to replace", c.name)
		}
		if _, err := Parse([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(doc))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(m.AppendJSON(nil))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%q prints as %s: %v", b, m.AppendJSON(nil), err)
		}
	})
}
