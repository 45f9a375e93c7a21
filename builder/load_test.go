package builder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// testRow is version v of row id: text in three scripts, nulls, negative numbers.
func testRow(id, v int) []row.Value {
	r := []row.Value{row.Int64(int64(id)), row.String(fmt.Sprintf("name %d.%d é漢", id, v)), row.Float64(float64(id) / -7), row.Int8(int8(id % 128))}
	if id%5 == 0 {
		r[1] = row.Value{}
	}
	if id%11 == 0 {
		r[2], r[3] = row.Value{}, row.Value{}
	}
	return r
}

// inputRows are rows 0..n-1 in random order, a third of them preceded somewhere by
// an older version.
func inputRows(n int) [][]row.Value {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	var rows [][]row.Value
	for _, id := range r.Perm(n) {
		if id%3 == 0 {
			rows = append(rows, testRow(id, 1))
		}
	}
	for _, id := range r.Perm(n) {
		rows = append(rows, testRow(id, 2))
	}
	return rows
}

// open opens a session that the test closes.
func (f *fake) open(c *builder.Client, o builder.OpenOptions) *builder.Session {
	f.t.Helper()
	s, err := f.tryOpen(c, o)
	must(f.t, err)
	f.t.Cleanup(func() { must(f.t, s.Close()) })
	return s
}

func (f *fake) tryOpen(c *builder.Client, o builder.OpenOptions) (*builder.Session, error) {
	f.t.Helper()
	if o.WorkDir == "" {
		o.WorkDir = f.t.TempDir()
	}
	return c.Open(f.t.Context(), f.begin(c), o)
}

func writeAll(t testing.TB, s *builder.Session, rows [][]row.Value) {
	t.Helper()
	for _, r := range rows {
		must(t, s.Write(r))
	}
}

// load writes, finishes and commits rows.
func (f *fake) load(c *builder.Client, o builder.OpenOptions, rows [][]row.Value) []builder.BucketFiles {
	f.t.Helper()
	s := f.open(c, o)
	writeAll(f.t, s, rows)
	files, err := s.Finish(f.t.Context())
	must(f.t, err)
	f.commitFiles(c, files)
	return files
}

func (f *fake) commitFiles(c *builder.Client, files []builder.BucketFiles) {
	f.t.Helper()
	got, err := c.Commit(f.t.Context(), f.context, files)
	must(f.t, err)
	if got.State != "COMMITTED" {
		f.t.Fatalf("state %s", got.State)
	}
}

// holds fails unless a scan yields exactly rows 0..n-1 in their second version.
func (f *fake) holds(c *builder.Client, n int) {
	f.t.Helper()
	rows, err := c.SnapshotScanRows(f.t.Context(), builder.ScanRequest{Target: f.context.Handle.Target})
	must(f.t, err)
	seen := map[int]bool{}
	for _, r := range rows {
		id := int(r[0].Int())
		if seen[id] || id < 0 || id >= n || !row.EqualAll(r, testRow(id, 2)) {
			f.t.Fatalf("row %d is foreign, doubled or different", id)
		}
		seen[id] = true
	}
	if len(seen) != n {
		f.t.Fatalf("%d rows, want %d", len(seen), n)
	}
}

func TestALoadComesBackEqual(t *testing.T) {
	for _, n := range []int{0, 1, 20_000} {
		t.Run(fmt.Sprintf("%d rows", n), func(t *testing.T) {
			f := newFake(t, fakeTable(t, 4, nil), "")
			c := f.connect()
			files := f.load(c, builder.OpenOptions{Memory: 1 << 20}, inputRows(n))
			var rows int64
			for b, bf := range files {
				if bf.BucketID != b || bf.BulkLoadID != loadID || bf.Bytes == 0 {
					t.Errorf("files %+v", bf)
				}
				rows += bf.Rows
			}
			if rows != int64(n) {
				t.Errorf("%d rows in the result", rows)
			}
			f.holds(c, n)
		})
	}
}

func TestMetadataIsStoredLastAndSaysWhatIsThere(t *testing.T) {
	for _, image := range []string{"FULL", "WAL"} {
		for _, rule := range []string{"zero", "row_count"} {
			t.Run(image+" "+rule, func(t *testing.T) {
				f := newFake(t, fakeTable(t, 2, func(t *schema.Table) { t.Properties["table.changelog.image"] = image }), "")
				f.context.Plan.LogOffset = rule
				files := f.load(f.connect(), builder.OpenOptions{}, inputRows(300))
				last := map[string]string{}
				for _, k := range f.putKeys()[:len(f.putKeys())-1] { // the manifest comes last of all
					last[filepath.Dir(k)] = filepath.Base(k)
				}
				for dir, name := range last {
					if name != "_METADATA" {
						t.Errorf("the last object in %s is %s", dir, name)
					}
				}
				for _, bf := range files {
					m, err := snapshot.ParseStrict(f.get(f.keyOf(bf.Metadata.Path)))
					must(t, err)
					if (m.RowCount != nil) != (image == "FULL") || m.RowCount != nil && *m.RowCount != bf.Rows {
						t.Errorf("row count %v of %d", m.RowCount, bf.Rows)
					}
					if want := map[string]int64{"zero": 0, "row_count": bf.Rows}[rule]; m.LogOffset != want {
						t.Errorf("log offset %d, want %d", m.LogOffset, want)
					}
					if !slices.IsSortedFunc(m.Private, func(a, b snapshot.File) int { return strings.Compare(a.LocalPath, b.LocalPath) }) {
						t.Errorf("files are not in the order of their local paths")
					}
				}
			})
		}
	}
}

func TestACallersLogOffset(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	f.context.Plan.LogOffset = "caller"
	s := f.open(f.connect(), builder.OpenOptions{})
	w, err := s.Bucket(0)
	must(t, err)
	if _, err := w.Finish(t.Context()); err == nil {
		t.Fatal("finished without a log offset")
	}
	bf, err := w.FinishAt(t.Context(), 4711)
	must(t, err)
	m, err := snapshot.ParseStrict(f.get(f.keyOf(bf.Metadata.Path)))
	must(t, err)
	if m.LogOffset != 4711 {
		t.Fatalf("log offset %d", m.LogOffset)
	}

	f = newFake(t, fakeTable(t, 1, nil), "")
	w, err = f.open(f.connect(), builder.OpenOptions{}).Bucket(0)
	must(t, err)
	if _, err := w.FinishAt(t.Context(), 1); err == nil {
		t.Fatal("a log offset was taken against the plan")
	}
}

// TestBatchesAndRowsMakeTheSameObjects also proves that two builds of the same rows
// are equal byte by byte, which retries rely on.
func TestBatchesAndRowsMakeTheSameObjects(t *testing.T) {
	rows := inputRows(5000)
	byRow := newFake(t, fakeTable(t, 3, nil), "")
	byRow.load(byRow.connect(), builder.OpenOptions{Memory: 3 * 256 << 10, Parallelism: 1}, rows)

	byBatch := newFake(t, fakeTable(t, 3, nil), "")
	s := byBatch.open(byBatch.connect(), builder.OpenOptions{})
	b, err := flussarrow.NewBuilder(nil, s.Table().Schema.Columns)
	must(t, err)
	defer b.Release()
	for i, r := range rows {
		must(t, b.Append(r))
		if b.Len() == 700 || i == len(rows)-1 {
			batch := b.NewBatch()
			must(t, s.WriteRecord(batch))
			batch.Release()
		}
	}
	if s.Rows() != int64(len(rows)) {
		t.Errorf("%d rows counted, %d written", s.Rows(), len(rows))
	}
	files, err := s.Finish(t.Context())
	must(t, err)
	byBatch.commitFiles(byBatch.connect(), files)
	want, got := byRow.stored(), byBatch.stored()
	if !maps.EqualFunc(want, got, func(a, b []byte) bool { return string(a) == string(b) }) {
		t.Fatalf("objects differ:\n%q\n%q", slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
	}
}

func TestTwoWorkersShareALoad(t *testing.T) {
	f := newFake(t, fakeTable(t, 4, nil), "")
	c := f.connect()
	rows := inputRows(4000)
	var files []builder.BucketFiles
	for _, mine := range [][]int{{0, 3}, {1, 2}} {
		s := f.open(c, builder.OpenOptions{Buckets: mine, SkipForeign: true})
		writeAll(t, s, rows)
		if s.Rows()+s.Skipped() != int64(len(rows)) || s.Skipped() == 0 {
			t.Errorf("%d rows, %d skipped", s.Rows(), s.Skipped())
		}
		part, err := s.Finish(t.Context())
		must(t, err)
		files = append(files, part...)
	}
	f.commitFiles(c, files)
	f.holds(c, 4000)
	for _, granted := range f.scopes() {
		if strings.Contains(granted, "bucket") && granted != "bucket:0:write bucket:3:write" && granted != "bucket:1-2:write" {
			t.Errorf("a worker asked for %q", granted)
		}
	}
}

func TestRowsOfAnotherBucketAreNamed(t *testing.T) {
	f := newFake(t, fakeTable(t, 4, nil), "")
	s := f.open(f.connect(), builder.OpenOptions{Buckets: []int{1, 2}})
	id := 0
	for {
		b, err := s.BucketOf(testRow(id, 1))
		must(t, err)
		if b == 3 {
			break
		}
		id++
	}
	err := s.Write(testRow(id, 1))
	if !errors.Is(err, builder.ErrForeignBucket) || err.Error() != "row belongs to bucket 3, this session builds buckets 1-2" {
		t.Errorf("Write: %v", err)
	}
	w, err := s.Bucket(2)
	must(t, err)
	err = w.Put(testRow(id, 1))
	var foreign *builder.ForeignBucketError
	if !errors.As(err, &foreign) || foreign.Bucket != 3 || err.Error() != "row belongs to bucket 3, this writer builds bucket 2" {
		t.Errorf("Put: %v", err)
	}
	if _, err := s.Bucket(3); !errors.Is(err, builder.ErrForeignBucket) {
		t.Errorf("Bucket: %v", err)
	}
	if _, err := s.Bucket(4); err == nil || errors.Is(err, builder.ErrForeignBucket) {
		t.Errorf("a bucket that does not exist: %v", err)
	}
	if s.Rows() != 0 {
		t.Errorf("%d rows were added", s.Rows())
	}
}

func TestBadRowsAreRefusedByColumn(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	s := f.open(f.connect(), builder.OpenOptions{})
	bad := func(change func(r []row.Value) []row.Value) error { return s.Write(change(testRow(1, 1))) }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a null key":           {bad(func(r []row.Value) []row.Value { r[0] = row.Value{}; return r }), `column "id"`},
		"a key out of shape":   {bad(func(r []row.Value) []row.Value { r[0] = row.String("1"); return r }), `column "id"`},
		"a value out of range": {bad(func(r []row.Value) []row.Value { r[3] = row.Int64(128); return r }), `column "small"`},
		"too few values":       {bad(func(r []row.Value) []row.Value { return r[:3] }), "3 values"},
		"too many values":      {bad(func(r []row.Value) []row.Value { return append(r, row.Bool(true)) }), "5 values"},
		"no values":            {s.Write(nil), "0 values"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	files, err := s.Finish(t.Context())
	must(t, err)
	if files[0].Rows != 0 {
		t.Errorf("%d rows were added", files[0].Rows)
	}
}

func TestAFinishedBucketIsFinished(t *testing.T) {
	f := newFake(t, fakeTable(t, 2, nil), "")
	s := f.open(f.connect(), builder.OpenOptions{})
	writeAll(t, s, inputRows(100))
	w, err := s.Bucket(0)
	must(t, err)
	first, err := w.Finish(t.Context())
	must(t, err)
	if _, err := w.Finish(t.Context()); !errors.Is(err, builder.ErrFinished) {
		t.Errorf("second Finish: %v", err)
	}
	var late error
	for id := 0; late == nil; id++ {
		late = s.Write(testRow(id, 3))
	}
	if !errors.Is(late, builder.ErrFinished) {
		t.Errorf("a row after Finish: %v", late)
	}
	all, err := s.Finish(t.Context())
	must(t, err)
	if all[0] != first || all[1].BucketID != 1 {
		t.Errorf("the session says %+v", all)
	}
	again, err := s.Finish(t.Context())
	must(t, err)
	if !slices.Equal(all, again) {
		t.Errorf("finishing the session again says %+v", again)
	}
}

func TestRowsOfAnotherPartitionAreRefused(t *testing.T) {
	table := fakeTable(t, 2, func(table *schema.Table) {
		s, err := schema.New([]schema.Column{
			{Name: "id", Type: schema.Type{Kind: schema.Int}}, {Name: "day", Type: schema.Type{Kind: schema.String}},
		}, []string{"id", "day"})
		must(t, err)
		table.Schema, table.PartitionKey = s, []string{"day"}
	})
	f := newFake(t, table, "monday")
	s := f.open(f.connect(), builder.OpenOptions{})
	r := func(id int32, day string) []row.Value { return []row.Value{row.Int32(id), row.String(day)} }
	must(t, s.Write(r(1, "monday")))
	must(t, s.Write(r(2, "monday")))
	want := `row of partition "tuesday"; this load is of partition "monday"`
	if err := s.Write(r(3, "tuesday")); err == nil || err.Error() != want {
		t.Errorf("Write: %v", err)
	}
	b, err := flussarrow.NewBuilder(nil, table.Schema.Columns)
	must(t, err)
	defer b.Release()
	for i, day := range []string{"monday", "monday", "tuesday"} {
		must(t, b.Append(r(int32(10+i), day)))
	}
	batch := b.NewBatch()
	defer batch.Release()
	if err := s.WriteRecord(batch); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "row 2 of the batch") {
		t.Errorf("WriteRecord: %v", err)
	}
	files, err := s.Finish(t.Context())
	must(t, err)
	if files[0].Rows+files[1].Rows != 4 {
		t.Errorf("%+v", files)
	}
	if !strings.Contains(files[0].Metadata.Path, "/monday-p3/0/") {
		t.Errorf("path %s", files[0].Metadata.Path)
	}
}

func TestOpenRefuses(t *testing.T) {
	f := newFake(t, fakeTable(t, 4, nil), "")
	c := f.connect()
	good := *f.begin(c)
	with := func(change func(bc *builder.BuildContext)) *builder.BuildContext {
		bc := good
		bc.SnapshotIDs = slices.Clone(good.SnapshotIDs)
		change(&bc)
		return &bc
	}
	for name, bc := range map[string]*builder.BuildContext{
		"no context":             nil,
		"a newer context":        with(func(bc *builder.BuildContext) { bc.Version = 2 }),
		"an id that is a path":   with(func(bc *builder.BuildContext) { bc.Handle.BulkLoadID = "../../etc" }),
		"a schema id too large":  with(func(bc *builder.BuildContext) { bc.SchemaID = 40000 }),
		"paths elsewhere":        with(func(bc *builder.BuildContext) { bc.Plan.UploadRoot = "mem://warehouse/rootless/kv" }),
		"too few snapshot ids":   with(func(bc *builder.BuildContext) { bc.SnapshotIDs = bc.SnapshotIDs[:3] }),
		"a negative snapshot id": with(func(bc *builder.BuildContext) { bc.SnapshotIDs[2] = -1 }),
		"an unknown offset rule": with(func(bc *builder.BuildContext) { bc.Plan.LogOffset = "max" }),
		"a partition without id": with(func(bc *builder.BuildContext) { bc.Handle.Target.Partition = "p" }),
		"a merge engine": with(func(bc *builder.BuildContext) {
			bc.Table = fakeTable(t, 4, func(t *schema.Table) { t.Properties["table.merge-engine"] = "first_row" }).AppendJSON(nil)
		}),
	} {
		if s, err := c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: t.TempDir()}); err == nil {
			s.Close()
			t.Errorf("%s was taken", name)
		}
	}
	for name, o := range map[string]builder.OpenOptions{
		"a bucket that does not exist": {Buckets: []int{4}},
		"a negative bucket":            {Buckets: []int{-1}},
		"a bucket twice":               {Buckets: []int{1, 1}},
		"too little memory":            {Memory: 1000},
		"a missing work directory":     {WorkDir: filepath.Join(t.TempDir(), "no")},
	} {
		s, err := f.tryOpen(c, o)
		if err == nil {
			s.Close()
			t.Errorf("%s was taken", name)
		}
		if errors.Is(err, builder.ErrRequest) != (o.Buckets != nil) {
			t.Errorf("%s: %v is of another kind", name, err)
		}
	}
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if r.URL.Path == "/v1/token" {
			problem(w, 403, v1.CodeDenied, "policy says no")
			return
		}
		next(w, r)
	})
	if _, err := f.tryOpen(c, builder.OpenOptions{Buckets: []int{0, 1, 3}}); err == nil || !strings.Contains(err.Error(), "policy says no") || !strings.Contains(err.Error(), "buckets 0-1,3") {
		t.Errorf("a denied worker: %v", err)
	}
}

func TestBeginRefuses(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	c := f.connect()
	target := f.context.Handle.Target
	for name, req := range map[string]builder.BeginRequest{
		"a negative timeout": {Target: target, SubmissionID: "s", BuildTimeout: -time.Second},
		"a tiny timeout":     {Target: target, SubmissionID: "s", BuildTimeout: time.Microsecond},
		"no submission id":   {Target: target},
	} {
		if _, err := c.Begin(t.Context(), req); !errors.Is(err, builder.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBeginOfAnEndedSessionSaysHowItEnded(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	c := f.connect()
	bc := f.begin(c)
	if _, err := c.Abort(t.Context(), bc); err != nil {
		t.Fatal(err)
	}
	_, err := c.Begin(t.Context(), builder.BeginRequest{Target: bc.Handle.Target, SubmissionID: "s"})
	var ended *builder.EndedError
	if !errors.As(err, &ended) || ended.Session.State != "ABORTED" || !strings.Contains(err.Error(), "ABORTED_BY_CALLER") {
		t.Fatalf("error %v", err)
	}
}

func TestBuildContextSurvivesJSON(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	c := f.connect()
	b, err := json.Marshal(f.begin(c))
	must(t, err)
	var bc builder.BuildContext
	must(t, json.Unmarshal(b, &bc))
	s, err := c.Open(t.Context(), &bc, builder.OpenOptions{WorkDir: t.TempDir()})
	must(t, err)
	must(t, s.Close())
	again, err := c.BuildContext(t.Context(), loadID)
	must(t, err)
	if b2, _ := json.Marshal(again); string(b2) != string(b) {
		t.Errorf("the context fetched again differs")
	}
}

func TestCloseRemovesOnlyItsOwn(t *testing.T) {
	f := newFake(t, fakeTable(t, 2, nil), "")
	dir := t.TempDir()
	for _, other := range []string{"fluss-bulkload-" + loadID + "-bucket-0-old", "else"} {
		must(t, os.MkdirAll(filepath.Join(dir, other, "db"), 0o700))
	}
	s, err := f.tryOpen(f.connect(), builder.OpenOptions{WorkDir: dir, Memory: 512 << 10})
	must(t, err)
	writeAll(t, s, inputRows(8000))
	if len(children(t, dir)) != 4 {
		t.Fatalf("children %v", children(t, dir))
	}
	must(t, s.Close())
	must(t, s.Close())
	if got := children(t, dir); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
	if err := s.Write(testRow(1, 1)); !errors.Is(err, builder.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	if _, err := s.Finish(t.Context()); !errors.Is(err, builder.ErrClosed) {
		t.Errorf("Finish after Close: %v", err)
	}
	if _, err := s.Checkpoint(t.Context(), nil); !errors.Is(err, builder.ErrClosed) {
		t.Errorf("Checkpoint after Close: %v", err)
	}
}

func children(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestCloseInterruptsFinish closes while an upload hangs.
func TestCloseInterruptsFinish(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	hangs, letGo := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if r.Method == http.MethodPut {
			if first.CompareAndSwap(false, true) {
				close(hangs)
			}
			<-letGo
		}
		next(w, r)
	})
	s, err := f.tryOpen(f.connect(), builder.OpenOptions{})
	must(t, err)
	writeAll(t, s, inputRows(10))
	done := make(chan error)
	go func() {
		_, err := s.Finish(context.Background())
		done <- err
	}()
	<-hangs
	must(t, s.Close())
	if err := <-done; !errors.Is(err, builder.ErrClosed) {
		t.Errorf("Finish: %v", err)
	}
	close(letGo)
}

func TestAnExpiredTokenIsReplaced(t *testing.T) {
	f := newFake(t, fakeTable(t, 2, nil), "")
	var seen sync.Map
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if _, again := seen.LoadOrStore(r.Method+r.URL.Path, true); !again && strings.HasPrefix(r.URL.Path, "/v1/objects/") {
			problem(w, 401, v1.CodeUnauthenticated, "the token has expired")
			return
		}
		next(w, r)
	})
	c := f.connect()
	f.load(c, builder.OpenOptions{Parallelism: 1}, inputRows(500))
	f.holds(c, 500)
}

func TestCommitWantsExactlyOneResultPerBucket(t *testing.T) {
	f := newFake(t, fakeTable(t, 3, nil), "")
	c := f.connect()
	s := f.open(c, builder.OpenOptions{})
	files, err := s.Finish(t.Context())
	must(t, err)
	foreign, beyond, empty := files[1], files[1], files[1]
	foreign.BulkLoadID = "another"
	beyond.BucketID = 3
	empty.Metadata = v1.ObjectRef{}
	for want, list := range map[string][]builder.BucketFiles{
		"bucket 2 are missing":      files[:2],
		"bucket 0 are missing":      nil,
		"bucket 1 twice":            {files[0], files[1], files[1], files[2]},
		"belong to load another":    {files[0], foreign, files[2]},
		"bucket 3, the load has":    {files[0], beyond, files[2]},
		"bucket 1 name no metadata": {files[0], empty, files[2]},
	} {
		if _, err := c.Commit(t.Context(), f.context, list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if f.commitCount() != 0 || len(f.get(f.keyOf(f.context.Plan.ManifestPath))) > 0 {
		t.Error("the broker was asked")
	}
	f.commitFiles(c, []builder.BucketFiles{files[2], files[0], files[1]})
}

func TestCommitIsRepeatedUntilItIsAnswered(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	f.answerSlowly(3)
	var tries atomic.Int64
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if !strings.HasSuffix(r.URL.Path, "/commit") {
			next(w, r)
			return
		}
		switch tries.Add(1) {
		case 1:
			problem(w, 503, v1.CodeOverloaded, "later")
		case 2: // stored, but the answer is lost
			next(&discard{header: http.Header{}}, r)
			panic(http.ErrAbortHandler)
		default:
			next(w, r)
		}
	})
	var waits []string
	c := f.connect(func(c *builder.Config) {
		c.Events.CommitWaiting = func(w builder.Waiting) { waits = append(waits, w.String()) }
	})
	files := f.load(c, builder.OpenOptions{}, inputRows(20))
	if len(waits) != 4 || !strings.Contains(waits[0], "later") || !strings.Contains(waits[3], "COMMITTING") {
		t.Errorf("waits: %q", waits)
	}
	// Again, from a process that does not know: tokens are no longer given.
	f.commitFiles(c, files)
	f.holds(c, 20)
}

// discard is an answer that nobody gets.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

func TestCommitGivesUpWithItsBudget(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if strings.HasSuffix(r.URL.Path, "/commit") {
			problem(w, 503, v1.CodeOverloaded, "never")
			return
		}
		next(w, r)
	})
	var once atomic.Bool
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Hour))
	defer cancel()
	c := f.connect(func(c *builder.Config) {
		c.Events.CommitWaiting = func(builder.Waiting) {
			if once.CompareAndSwap(false, true) {
				return
			}
			cancel()
		}
	})
	s := f.open(c, builder.OpenOptions{})
	files, err := s.Finish(t.Context())
	must(t, err)
	_, err = c.Commit(ctx, f.context, files)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "never") || !strings.Contains(err.Error(), "do not abort") {
		t.Errorf("error %v", err)
	}
}

func TestCommitSurfacesARefusalAtOnce(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	c := f.connect()
	s := f.open(c, builder.OpenOptions{})
	files, err := s.Finish(t.Context())
	must(t, err)
	for k := range f.stored() {
		if strings.Contains(k, "private-") {
			f.set(k, []byte("other bytes"))
		}
	}
	_, err = c.Commit(t.Context(), f.context, files)
	if err == nil || !strings.Contains(err.Error(), v1.CodeInvalidManifest) || f.commitCount() != 1 {
		t.Errorf("%d commits: %v", f.commitCount(), err)
	}
}

func TestEventsTellTheWholeStory(t *testing.T) {
	f := newFake(t, fakeTable(t, 2, nil), "")
	var uploads []builder.Upload
	var finished []int
	phases := map[int][]builder.Phase{}
	last := map[int]builder.Progress{}
	events := builder.Events{
		Progress: func(p builder.Progress) {
			if s := phases[p.Bucket]; len(s) == 0 || s[len(s)-1] != p.Phase {
				phases[p.Bucket] = append(s, p.Phase)
			}
			last[p.Bucket] = p
		},
		Uploaded:       func(u builder.Upload) { uploads = append(uploads, u) },
		BucketFinished: func(bf builder.BucketFiles) { finished = append(finished, bf.BucketID) },
	}
	files := f.load(f.connect(), builder.OpenOptions{Events: events, Memory: 1 << 20}, inputRows(60_000))
	slices.Sort(finished)
	if !slices.Equal(finished, []int{0, 1}) {
		t.Errorf("finished %v", finished)
	}
	for b, bf := range files {
		if p := last[b]; p.Merged != bf.Rows || p.Bytes != bf.Bytes || p.Uploaded < p.Bytes || p.Rows < p.Merged || p.Spilled == 0 {
			t.Errorf("bucket %d ended at %+v, files %+v", b, p, bf)
		}
		if want := []builder.Phase{builder.PhaseRows, builder.PhaseMerge, builder.PhaseUpload, builder.PhaseDone}; !slices.Equal(phases[b], want) {
			t.Errorf("phases %v", phases[b])
		}
	}
	if len(uploads) != len(f.putKeys())-1 { // the manifest is the client's
		t.Errorf("%d uploads reported of %d", len(uploads), len(f.putKeys()))
	}
}

func TestScansOfALoad(t *testing.T) {
	f := newFake(t, fakeTable(t, 4, nil), "")
	c := f.connect()
	target := f.context.Handle.Target
	if rows, err := c.SnapshotScanRows(t.Context(), builder.ScanRequest{Target: target}); err != nil || len(rows) > 0 {
		t.Errorf("a table without snapshots: %d rows, %v", len(rows), err)
	}
	files := f.load(c, builder.OpenOptions{}, inputRows(3000))
	zero, one := int64(0), int64(1)
	for name, q := range map[string]struct {
		req  builder.ScanRequest
		rows int64
	}{
		"one bucket":             {builder.ScanRequest{Buckets: []int{2}}, files[2].Rows},
		"two buckets":            {builder.ScanRequest{Buckets: []int{3, 0}}, files[0].Rows + files[3].Rows},
		"its snapshot by id":     {builder.ScanRequest{Buckets: []int{1}, SnapshotID: &one}, files[1].Rows},
		"a limit over buckets":   {builder.ScanRequest{Limit: files[0].Rows + 5}, files[0].Rows + 5},
		"columns in other order": {builder.ScanRequest{Columns: []string{"small", "id"}}, 3000},
	} {
		q.req.Target = target
		rows, err := c.SnapshotScanRows(t.Context(), q.req)
		if err != nil || int64(len(rows)) != q.rows {
			t.Errorf("%s: %d rows, want %d: %v", name, len(rows), q.rows, err)
		}
	}
	for name, req := range map[string]builder.ScanRequest{
		"a bucket beyond the last":     {Buckets: []int{4}},
		"a snapshot that is not there": {Buckets: []int{1}, SnapshotID: &zero},
		"an unknown column":            {Columns: []string{"nope"}},
		"a negative limit":             {Limit: -1},
		"an unknown schema":            {SchemaID: func() *int32 { n := int32(9); return &n }()},
	} {
		req.Target = target
		if _, err := c.SnapshotScanRows(t.Context(), req); err == nil {
			t.Errorf("%s was read", name)
		} else if errors.Is(err, builder.ErrRequest) != (req.SnapshotID == nil) {
			t.Errorf("%s: %v is of another kind", name, err)
		}
	}
	m, err := c.KVSnapshotMetadata(t.Context(), target, 1, nil)
	if err != nil || m.SnapshotID != 1 || *m.RowCount != files[1].Rows {
		t.Errorf("metadata %+v, %v", m, err)
	}
	s, err := c.LatestKVSnapshots(t.Context(), target)
	if err != nil || len(s.Snapshots) != 4 {
		t.Errorf("snapshots %+v, %v", s, err)
	}
}

func TestCompressionIsTheCallersChoice(t *testing.T) {
	size := map[rocks.Compression]int64{}
	for _, codec := range []rocks.Compression{rocks.None, rocks.Snappy, rocks.Zstd} {
		f := newFake(t, fakeTable(t, 1, nil), "")
		c := f.connect()
		size[codec] = f.load(c, builder.OpenOptions{Compression: codec}, inputRows(5000))[0].Bytes
		f.holds(c, 5000)
	}
	if !(size[rocks.Zstd] < size[rocks.Snappy] && size[rocks.Snappy] < size[rocks.None]) {
		t.Errorf("sizes %v", size)
	}
}
