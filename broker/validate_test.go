package broker

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/manifest"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// spoil is one way to get a load wrong. Exactly one of its functions is set.
type spoil struct {
	name string
	says string // part of the refusal
	// load changes the files or metadata before they are stored.
	load func(l *load)
	// meta changes the raw _METADATA of bucket 1.
	meta func(raw string) string
	// manifest changes the manifest, raw its bytes.
	manifest func(m *manifest.Manifest)
	raw      func(raw string) string
	// after changes what is stored.
	after func(l *load, ref *session.ManifestRef)
}

func meta(change func(m *snapshot.Metadata)) func(*load) {
	return func(l *load) { change(l.buckets[1].meta) }
}

// replace overwrites a stored object, which no worker can.
func (l *load) replace(uri string, content []byte) {
	l.w.t.Helper()
	uri = l.staged(uri)
	k, err := l.w.driver.Key(uri)
	if err != nil {
		l.w.t.Fatal(err)
	}
	if err := l.w.objects.Store.Delete(ctx, k); err != nil {
		l.w.t.Fatal(err)
	}
	if content != nil {
		l.w.put(uri, content)
	}
}

// sst returns the reference of a table file of bucket 1.
func (l *load) sst() snapshot.File {
	for _, f := range l.buckets[1].meta.Private {
		if strings.HasSuffix(f.LocalPath, ".sst") {
			return f
		}
	}
	l.w.t.Fatal("no table file")
	return snapshot.File{}
}

// rebuilt builds bucket 1 anew from chosen rows.
func rebuilt(rows func(enc func(id int64, region string, schemaID int16) (k, v []byte, bucket int)) [][2][]byte) func(*load) {
	return func(l *load) {
		table, err := schema.ParseTable(l.s.TableJSON)
		if err != nil {
			l.w.t.Fatal(err)
		}
		l.buckets[1] = l.w.bucket(l.s, table, 1, rows(encoder(l.w.t, table)))
	}
}

// in returns the first id of a bucket.
func in(enc func(id int64, region string, schemaID int16) (k, v []byte, bucket int), bucket int) int64 {
	for id := int64(0); ; id++ {
		if _, _, b := enc(id, "", 1); b == bucket {
			return id
		}
	}
}

var spoils = []spoil{
	// Rule 4
	{name: "the manifest is missing", says: "missing", after: func(l *load, ref *session.ManifestRef) { l.replace(ref.Path, nil) }},
	{name: "the manifest is longer than declared", says: "declared", after: func(l *load, ref *session.ManifestRef) { ref.Length-- }},
	{name: "the manifest is shorter than declared", says: "declared", after: func(l *load, ref *session.ManifestRef) { ref.Length++ }},
	{name: "the manifest has another digest", says: "SHA-256", after: func(l *load, ref *session.ManifestRef) { ref.SHA256 = hexSum(nil) }},
	// Rule 5
	{name: "a duplicate key in the manifest", raw: func(r string) string { return strings.Replace(r, `"version":1`, `"version":1,"version":1`, 1) }},
	{name: "an unknown key in the manifest", raw: func(r string) string { return strings.Replace(r, `"version":1`, `"version":1,"more":1`, 1) }},
	{name: "a duplicate key in an entry", raw: func(r string) string { return strings.Replace(r, `"bucket_id":1`, `"bucket_id":1,"bucket_id":1`, 1) }},
	{name: "content behind the manifest", raw: func(r string) string { return r + "{}" }},
	{name: "a manifest that is no object", raw: func(string) string { return "[]" }},
	// Rule 6
	{name: "manifest version 2", raw: func(r string) string { return strings.Replace(r, `"version":1`, `"version":2`, 1) }},
	{name: "another session's manifest", says: "bulk load", manifest: func(m *manifest.Manifest) { m.BulkLoadID = "00000000-0000-4000-8000-000000000000" }},
	// Rule 7
	{name: "a missing bucket", manifest: func(m *manifest.Manifest) { m.Buckets = m.Buckets[:2] }},
	{name: "an extra bucket", manifest: func(m *manifest.Manifest) {
		m.Buckets = append(m.Buckets, m.Buckets[2])
		m.Buckets[3].BucketID = 3
	}},
	{name: "a doubled bucket", manifest: func(m *manifest.Manifest) { m.Buckets[2] = m.Buckets[1] }},
	{name: "permuted buckets", manifest: func(m *manifest.Manifest) { m.Buckets[1], m.Buckets[2] = m.Buckets[2], m.Buckets[1] }},
	{name: "no buckets", manifest: func(m *manifest.Manifest) { m.Buckets = nil }},
	// Rule 8
	{name: "another bucket's metadata", says: "want", manifest: func(m *manifest.Manifest) { m.Buckets[1].Path = m.Buckets[2].Path }},
	{name: "metadata of another snapshot", says: "want", manifest: func(m *manifest.Manifest) {
		m.Buckets[1].Path = strings.Replace(m.Buckets[1].Path, "snap-0", "snap-1", 1)
	}},
	{name: "metadata on another host", says: "want", manifest: func(m *manifest.Manifest) {
		m.Buckets[1].Path = strings.Replace(m.Buckets[1].Path, "file://", "file://other", 1)
	}},
	{name: "metadata under another scheme", says: "want", manifest: func(m *manifest.Manifest) {
		m.Buckets[1].Path = strings.Replace(m.Buckets[1].Path, "file:", "s3:", 1)
	}},
	{name: "metadata by a dotted path", says: "want", manifest: func(m *manifest.Manifest) {
		m.Buckets[1].Path = strings.Replace(m.Buckets[1].Path, "/1/", "/2/../1/", 1)
	}},
	{name: "metadata by a path with an empty segment", says: "want", manifest: func(m *manifest.Manifest) {
		m.Buckets[1].Path = strings.Replace(m.Buckets[1].Path, "/1/", "//1/", 1)
	}},
	// Rule 9
	{name: "metadata over the limit", manifest: func(m *manifest.Manifest) { m.Buckets[1].Length = 16<<20 + 1 }},
	{name: "metadata of another length", says: "declared", manifest: func(m *manifest.Manifest) { m.Buckets[1].Length++ }},
	{name: "metadata of another digest", says: "SHA-256", manifest: func(m *manifest.Manifest) { m.Buckets[1].SHA256 = hexSum(nil) }},
	{name: "metadata is missing", says: "missing", after: func(l *load, ref *session.ManifestRef) {
		l.replace(layout.MetadataPath(l.s.Plan.UploadRoot, 1, 0), nil)
	}},
	// Rule 10
	{name: "metadata version 2", meta: func(r string) string { return strings.Replace(r, `"version":1`, `"version":2`, 1) }},
	{name: "metadata without a version", meta: func(r string) string { return strings.Replace(r, `"version":1,`, ``, 1) }},
	{name: "a duplicate key in metadata", meta: func(r string) string { return strings.Replace(r, `"version":1`, `"version":1,"version":1`, 1) }},
	{name: "an unknown key in metadata", meta: func(r string) string { return strings.Replace(r, `"version":1`, `"version":1,"more":1`, 1) }},
	{name: "a duplicate key in a file entry", meta: func(r string) string {
		return strings.Replace(r, `"local_path":`, `"local_path":"CURRENT","local_path":`, 1)
	}},
	{name: "content behind metadata", meta: func(r string) string { return r + " x" }},
	{name: "a size that is a string", meta: func(r string) string { return regexp.MustCompile(`"size":(\d+)`).ReplaceAllString(r, `"size":"$1"`) }},
	// Rule 11
	{name: "metadata of another table", says: "table 9", load: meta(func(m *snapshot.Metadata) { m.TableID = 9 })},
	{name: "metadata of another bucket", says: "bucket 2", load: meta(func(m *snapshot.Metadata) { m.BucketID = 2 })},
	{name: "metadata of another snapshot id", says: "snapshot 1", load: meta(func(m *snapshot.Metadata) { m.SnapshotID = 1 })},
	{name: "metadata of a partition", says: "_METADATA", load: meta(func(m *snapshot.Metadata) { m.PartitionID = new(int64) })},
	{name: "another location", says: "location", load: meta(func(m *snapshot.Metadata) {
		m.Location += "0"
		for i := range m.Private {
			m.Private[i].Path = strings.Replace(m.Private[i].Path, "/snap-0/", "/snap-00/", 1)
		}
	})},
	// Rule 12
	{name: "a shared file", load: meta(func(m *snapshot.Metadata) { m.Shared, m.Private = m.Private[:1], m.Private[1:] })},
	{name: "an auto-increment range", load: meta(func(m *snapshot.Metadata) { m.AutoInc = []snapshot.AutoIncRange{{ColumnID: 0, Start: 1, End: 2}} })},
	{name: "a log offset", says: "log_offset", load: meta(func(m *snapshot.Metadata) { m.LogOffset = 34 })},
	{name: "a negative log offset", load: meta(func(m *snapshot.Metadata) { m.LogOffset = -1 })},
	{name: "no row count", says: "row_count", load: meta(func(m *snapshot.Metadata) { m.RowCount = nil })},
	{name: "a negative row count", load: meta(func(m *snapshot.Metadata) { n := int64(-1); m.RowCount = &n })},
	// Rule 13
	{name: "a file outside the snapshot", says: "outside", load: meta(func(m *snapshot.Metadata) {
		m.Private[0].Path = strings.Replace(m.Private[0].Path, "/1/", "/2/", 1)
	})},
	{name: "a file by a dotted path", load: meta(func(m *snapshot.Metadata) {
		m.Private[0].Path = strings.Replace(m.Private[0].Path, "/snap-0/", "/snap-0/../snap-0/", 1)
	})},
	{name: "a file by a path with an empty segment", load: meta(func(m *snapshot.Metadata) {
		m.Private[0].Path = strings.Replace(m.Private[0].Path, "/snap-0/", "/snap-0//", 1)
	})},
	{name: "a file of a sibling snapshot", load: meta(func(m *snapshot.Metadata) {
		m.Private[0].Path = strings.Replace(m.Private[0].Path, "/snap-0/", "/snap-00/", 1)
	})},
	{name: "a local path that climbs", load: meta(func(m *snapshot.Metadata) { m.Private[0].LocalPath = "../CURRENT" })},
	{name: "an absolute local path", load: meta(func(m *snapshot.Metadata) { m.Private[0].LocalPath = "/CURRENT" })},
	{name: "a file twice", load: meta(func(m *snapshot.Metadata) {
		m.Private = append(m.Private, m.Private[0])
		m.IncrementalSize += m.Private[0].Size
	})},
	{name: "a negative size", load: meta(func(m *snapshot.Metadata) { m.Private[0].Size = -1 })},
	{name: "a size that overflows the sum", load: meta(func(m *snapshot.Metadata) {
		m.Private[0].Size, m.Private[1].Size = 1<<63-1, 1<<63-1
	})},
	{name: "a missing file", says: "missing", after: func(l *load, ref *session.ManifestRef) { l.replace(l.sst().Path, nil) }},
	{name: "a file that was cut", says: "declared", after: func(l *load, ref *session.ManifestRef) {
		f := l.sst()
		l.replace(f.Path, l.buckets[1].files[f.LocalPath][:f.Size-1])
	}},
	{name: "a file that grew", says: "declared", after: func(l *load, ref *session.ManifestRef) {
		f := l.sst()
		l.replace(f.Path, append(bytes.Clone(l.buckets[1].files[f.LocalPath]), 0))
	}},
	// Rule 14
	{name: "a sum that is wrong", says: "", load: meta(func(m *snapshot.Metadata) { m.IncrementalSize++ })},
	// Rule 16
	{name: "a flipped byte in a file of unchanged length", says: "SHA-256", after: func(l *load, ref *session.ManifestRef) {
		f := l.sst()
		content := bytes.Clone(l.buckets[1].files[f.LocalPath])
		content[len(content)/2] ^= 1
		l.replace(f.Path, content)
	}},
	{name: "a name without digests", says: "private", load: meta(func(m *snapshot.Metadata) { m.Private[0].Path = m.Location + "/x" })},
	{name: "a name with another path's digest", says: "private", load: func(l *load) {
		m := l.buckets[1].meta
		m.Private[0].Path = m.Location + "/" + layout.PrivateFileName(hexSum(l.buckets[1].files[m.Private[0].LocalPath]), "other")
	}},
	// Rule 17
	{name: "a damaged table file with a matching digest", load: func(l *load) {
		name := l.sst().LocalPath
		l.buckets[1].files[name][10] ^= 1
		l.buckets[1].describe()
	}},
	{name: "no CURRENT", load: func(l *load) { delete(l.buckets[1].files, "CURRENT"); l.buckets[1].describe() }},
	{name: "no table file", load: func(l *load) { delete(l.buckets[1].files, l.sst().LocalPath); l.buckets[1].describe() }},
	{name: "no files at all", load: func(l *load) { clear(l.buckets[1].files); l.buckets[1].describe() }},
	// Rule 18
	{name: "a row count that is wrong", says: "rows", load: meta(func(m *snapshot.Metadata) { *m.RowCount++ })},
	// Rule 19
	{name: "a row of another bucket", says: "belongs to bucket", load: rebuilt(func(enc func(int64, string, int16) ([]byte, []byte, int)) [][2][]byte {
		k, v, _ := enc(in(enc, 2), "", 1)
		return [][2][]byte{{k, v}}
	})},
	{name: "a key that is not its row's", says: "not the key of its row", load: rebuilt(func(enc func(int64, string, int16) ([]byte, []byte, int)) [][2][]byte {
		k, _, _ := enc(in(enc, 1), "", 1)
		_, v, _ := enc(in(enc, 1)+1000, "", 1)
		return [][2][]byte{{k, v}}
	})},
	{name: "a row of another schema", says: "schema 2", load: rebuilt(func(enc func(int64, string, int16) ([]byte, []byte, int)) [][2][]byte {
		k, v, _ := enc(in(enc, 1), "", 2)
		return [][2][]byte{{k, v}}
	})},
	{name: "a row that does not decode", says: "key", load: rebuilt(func(enc func(int64, string, int16) ([]byte, []byte, int)) [][2][]byte {
		k, v, _ := enc(in(enc, 1), "", 1)
		return [][2][]byte{{k, v[:4]}}
	})},
	{name: "a value without a schema id", says: "key", load: rebuilt(func(enc func(int64, string, int16) ([]byte, []byte, int)) [][2][]byte {
		k, _, _ := enc(in(enc, 1), "", 1)
		return [][2][]byte{{k, {0}}}
	})},
}

func TestSpoiledLoadsAreRefused(t *testing.T) {
	for _, sp := range spoils {
		spoiled(t, sp.name, sp)
		spoiled(t, sp.name+", copied", sp, copying)
	}
}

func spoiled(t *testing.T, name string, sp spoil, change ...func(*Config)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		w := open(t, change...)
		w.table("places")
		s := w.begin("one")
		l := w.build(s, 100)
		ref := l.storeSpoiled(sp)
		_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
		if !errors.Is(err, session.ErrInvalidManifest) || !strings.Contains(err.Error(), sp.says) {
			t.Errorf("got %v, want a refusal that says %q", err, sp.says)
		}
		got, _ := w.store.Get(ctx, s.ID)
		if got.Phase() != session.PhaseFrozen && got.Phase() != session.PhaseBuilding {
			t.Errorf("%v", got.Phase())
		}
		if n := w.visible(places); n != 0 {
			t.Errorf("%d buckets visible", n)
		}
	})
}

// storeSpoiled is load.store with one thing wrong.
func (l *load) storeSpoiled(sp spoil) session.ManifestRef {
	l.w.t.Helper()
	if sp.load != nil {
		sp.load(l)
	}
	m := &manifest.Manifest{BulkLoadID: l.s.ID}
	for b, bl := range l.buckets {
		for name, content := range bl.files {
			uri := layout.SnapshotDir(l.s.Plan.UploadRoot, b, 0) + "/" + layout.PrivateFileName(hexSum(content), name)
			l.w.put(uri, content)
		}
		raw := string(bl.meta.AppendJSON(nil))
		if sp.meta != nil && b == 1 {
			raw = l.changed(raw, sp.meta)
		}
		m.Buckets = append(m.Buckets, l.storeMeta(b, []byte(raw)))
	}
	if sp.manifest != nil {
		sp.manifest(m)
	}
	raw := string(m.AppendJSON(nil))
	if sp.raw != nil {
		raw = l.changed(raw, sp.raw)
	}
	ref := l.storeManifest([]byte(raw))
	if sp.after != nil {
		sp.after(l, &ref)
	}
	return ref
}

func (l *load) changed(raw string, change func(string) string) string {
	l.w.t.Helper()
	after := change(raw)
	if after == raw {
		l.w.t.Fatal("the spoil changes nothing")
	}
	return after
}

func TestSoundLoadsPass(t *testing.T) {
	rows := []struct {
		name       string
		properties string
		rows       int
		want       session.Stats
	}{
		{"full rows", "", 1000, session.Stats{Rows: 1000}},
		{"no rows at all", "", 0, session.Stats{}},
		{"empty buckets beside a full one", "", 1, session.Stats{Rows: 1}},
		{"a WAL image keeps no count", `"table.changelog.image":"WAL"`, 100, session.Stats{Rows: -1}},
		{"indexed rows", `"table.kv.format":"INDEXED"`, 100, session.Stats{Rows: 100}},
	}
	for _, r := range rows {
		for _, sample := range []int{0, 1, -1} {
			t.Run(fmt.Sprint(r.name, " sample ", sample), func(t *testing.T) {
				w := open(t, func(c *Config) { c.SampleKeys = sample })
				if _, err := w.CreateTable(ctx, alice, "geo", "places", descriptor(false, 3, r.properties)); err != nil {
					t.Fatal(err)
				}
				if s := w.committed(r.rows); s.Stats.Rows != r.want.Rows || s.Stats.Files < 6 || s.Stats.Bytes == 0 {
					t.Errorf("%+v", s.Stats)
				}
			})
		}
	}
}

func TestAWALTableMustNotCount(t *testing.T) {
	w := open(t)
	if _, err := w.CreateTable(ctx, alice, "geo", "places", descriptor(false, 3, `"table.changelog.image":"WAL"`)); err != nil {
		t.Fatal(err)
	}
	s := w.begin("one")
	l := w.build(s, 10)
	l.buckets[0].meta.RowCount = new(int64)
	ref := l.store()
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, session.ErrInvalidManifest)
}

func TestPartitionsAreLoadedOneByOne(t *testing.T) {
	w := open(t)
	if _, err := w.CreateTable(ctx, alice, "geo", "places", descriptor(true, 2, "")); err != nil {
		t.Fatal(err)
	}
	begin := func(p string) session.Session {
		if _, err := w.CreatePartition(ctx, alice, "geo", "places", p); err != nil {
			t.Fatal(err)
		}
		s, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "places", Partition: p}, SubmissionID: p})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	east, west := begin("east"), begin("west")
	ref := w.build(east, 50).store()
	if done, err := w.Commit(ctx, alice, east.ID, east.Epoch, &ref); err != nil || done.Stats.Rows != 50 {
		t.Fatalf("%+v, %v", done.Stats, err)
	}
	if w.visible(east.Target) != 2 || w.visible(west.Target) != 0 {
		t.Error("the wrong partition became visible")
	}
	// Rows of the other partition.
	wrong := west
	wrong.Target.Partition = "east"
	ref = w.build(wrong, 50).store()
	_, err := w.Commit(ctx, alice, west.ID, west.Epoch, &ref)
	if !errors.Is(err, session.ErrInvalidManifest) || !strings.Contains(err.Error(), `partition "east"`) {
		t.Error(err)
	}
}

func TestTheInputLimitHolds(t *testing.T) {
	w := open(t, func(c *Config) { c.Limits = session.DefaultLimits(); c.Limits.InputMaxSize = 1000 })
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 1000).store()
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	if !errors.Is(err, session.ErrInvalidManifest) || !strings.Contains(err.Error(), "limit") {
		t.Error(err)
	}
}

// A store that fails says nothing about the files.
func TestTheDatabaseManifestIsBounded(t *testing.T) {
	w := open(t, func(c *Config) {
		c.Limits = session.DefaultLimits()
		c.Limits.ManifestMaxSize = 64 << 10
	})
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 100)
	for name, content := range l.buckets[1].files {
		if strings.HasPrefix(name, "MANIFEST-") {
			l.buckets[1].files[name] = append(content, make([]byte, 64<<10)...) // zeros are padding
		}
	}
	l.buckets[1].describe()
	ref := l.store()
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	if !errors.Is(err, session.ErrInvalidManifest) || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("%v", err)
	}
}

func TestAFailingStoreIsNotHeldAgainstTheManifest(t *testing.T) {
	w := open(t)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 100).store()
	down := errors.New("the store is down")
	good := w.objects.Store
	w.objects.Store = brokenGet{good, down}
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, down)
	if got, _ := w.store.Get(ctx, s.ID); got.Phase() != session.PhaseFrozen || got.ValidationError != "" {
		t.Errorf("%v %q", got.Phase(), got.ValidationError)
	}
	w.objects.Store = good
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, nil); err != nil {
		t.Error(err)
	}
}

var _ objstore.Store = brokenGet{}
