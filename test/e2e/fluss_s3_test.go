package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/builder/flussdirect/s3dir"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
	"github.com/fluss-sluice/sluice/test/harness"
)

// writeFarConfig configures a broker for a cluster that knows its users and keeps its
// files on S3. Workers get keys, signatures or the gateway.
func writeFarConfig(t *testing.T, f *env.Fluss, store *env.Server, user env.FlussUser) string {
	t.Helper()
	dir := t.TempDir()
	file, err := harness.WriteS3Config(dir, store, env.RemotePrefix)
	if err == nil {
		err = harness.AddCredentials(file, store)
	}
	if err != nil {
		t.Fatal(err)
	}
	password := filepath.Join(dir, "fluss-password")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	far := fmt.Sprintf("target:\n  fluss:\n    bootstrap: [%q]\n    zookeeper: [%q]\n    missing_partitions: birth\n    principal: User:%s\n    sasl:\n      username: %s\n      password_file: %q\n",
		f.Bootstrap(), f.ZooKeeper(), user.Name, user.Name, password)
	err = errors.Join(os.WriteFile(password, []byte(user.Password.Reveal()+"\n"), 0o600),
		os.WriteFile(file, []byte(strings.NewReplacer("target:\n", far, "[wait, verify]", "[wait]").Replace(string(text))), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// far is a table there, of (id, name, v) or, partitioned by p, of that too.
var (
	farColumns = []flussoracle.Column{{Name: "id", Type: "INT NOT NULL"}, {Name: "name", Type: "STRING"}, {Name: "v", Type: "DOUBLE"}}
	farWhole   = flussoracle.Definition{Columns: farColumns, PrimaryKey: []string{"id"}, Buckets: buckets}
	farParts   = flussoracle.Definition{
		Columns: append(slices.Clone(farColumns), flussoracle.Column{Name: "p", Type: "STRING NOT NULL"}), PrimaryKey: []string{"id", "p"},
		PartitionBy: []string{"p"}, Buckets: buckets,
	}
)

func farRow(i int, partition string) []row.Value {
	if partition == "" {
		return oneRow(i)
	}
	return append(oneRow(i), row.String(partition))
}

// TestLoadsIntoAClusterOnS3 has a broker that is an ordinary user of a cluster with an
// authorizer load into it in every way: in place and by birth, by keys that outlive the
// freeze and by requests that do not. Fluss's own client, the broker's readers and one
// that asks the cluster itself read the same rows.
func TestLoadsIntoAClusterOnS3(t *testing.T) {
	const rows = 800
	store := env.Need(t, env.SeaweedFS, env.Options{})
	f := env.NeedFluss(t, env.FlussOptions{S3: store, SASL: true, Authorizer: true, Users: []string{"sluice", "writer"}})
	judge := flussoracle.Need(t, f, flussoracle.Options{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(judge.CreateACLs(t.Context(), flussoracle.ACL{ResourceType: "DATABASE", Resource: "demo", User: "sluice", Operation: "ALL"},
		flussoracle.ACL{ResourceType: "CLUSTER", Resource: "fluss-cluster", User: "sluice", Operation: "DESCRIBE"}))
	w := newWorld(t, "--config", writeFarConfig(t, f, store, f.Users["sluice"]))
	direct := openFar(t, f, store)
	for _, c := range []struct {
		way       builder.Credentials
		handOver  string
		partition string
		fence     string
	}{
		{builder.STS, "copy", "", "rules"},
		{builder.Gateway, "same", "", "rules"},
		{builder.Sign, "same", "", "rules"},
		{builder.STS, "copy", "north", "unborn"},
		{builder.Sign, "same", "south", "unborn"},
	} {
		t.Run(fmt.Sprintf("%s %s %s", c.way, c.handOver, c.partition), func(t *testing.T) {
			w.way = c.way
			target := v1.Target{Database: "demo", Table: fmt.Sprintf("far_%s_%s", c.way, c.handOver), Partition: c.partition}
			table, definition := flussoracle.T("demo."+target.Table), farWhole
			if c.partition != "" {
				target.Table += "_parts"
				table, definition = flussoracle.T("demo."+target.Table).Part(c.partition), farParts
			}
			_, err := judge.CreateTable(t.Context(), flussoracle.T("demo."+target.Table), definition)
			must(err)
			must(judge.CreateACLs(t.Context(), flussoracle.ACL{ResourceType: "TABLE", Resource: "demo." + target.Table, User: "writer", Operation: "WRITE"}))
			bc, err := w.as("loader").Begin(t.Context(), builder.BeginRequest{Target: target, SubmissionID: "one", HandOver: c.handOver})
			must(err)
			if bc.Plan.Fence != c.fence || bc.Plan.HandOver != c.handOver || (bc.Plan.UploadRoot != bc.Plan.FinalRoot) != (c.handOver == "copy") {
				t.Errorf("plan %+v", bc.Plan)
			}
			files := farBuild(t, w, bc, rows, c.partition)
			s, err := w.as("loader").Commit(t.Context(), bc, files)
			if err != nil || s.State != "COMMITTED" || s.Stats.Rows != rows {
				t.Fatalf("%+v, %v\n%s", s, err, w.Log())
			}
			for _, mode := range []flussoracle.ReadMode{flussoracle.SnapshotScan, flussoracle.LimitScan} {
				found, err := judge.Read(t.Context(), mode, table)
				must(err)
				texts := make([]flussoracle.Row, len(found))
				for i := range found {
					texts[i] = found[i].Row
				}
				farEqual(t, texts, rows, c.partition)
			}
			for _, way := range []builder.Credentials{builder.Gateway, builder.Sign, builder.STS} {
				w.way = way
				got, err := w.as("reader").SnapshotScanRows(t.Context(), builder.ScanRequest{Target: target})
				if err != nil {
					t.Fatalf("scan by %v: %v\n%s", way, err, w.Log())
				}
				farRowsEqual(t, got, rows, c.partition)
			}
			scan, err := direct.SnapshotScan(t.Context(), flussdirect.ScanRequest{Target: flussdirect.Target{Database: "demo", Table: target.Table, Partition: c.partition}})
			must(err)
			defer scan.Close()
			var got [][]row.Value
			for r, err := range scan.Rows() {
				must(err)
				got = append(got, slices.Clone(r))
			}
			farRowsEqual(t, got, rows, c.partition)
		})
	}
	t.Run("users who are refused", func(t *testing.T) { refusedUsers(t, w, f, store) })
	noneHolds(t, map[string][]byte{"the broker's log": []byte(w.Log())}, append(w.identities, f.Users["sluice"].Password, f.Admin.Password, store.Admin.SecretAccessKey, store.Vendor.SecretAccessKey))
}

// refusedUsers: the commands that read a cluster themselves, and a broker at its start,
// say that it was the user that was refused, and none says the password.
func refusedUsers(t *testing.T, w *world, f *env.Fluss, store *env.Server) {
	wrong := env.FlussUser{Name: "sluice", Password: credential.New("not-the-password-of-it")}
	unable := f.Users["writer"]
	file := func(u env.FlussUser) string {
		name := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(name, []byte(u.Password.Reveal()+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	all := []string{"scan", "describe", "snapshots list", "lookup"}
	for name, c := range map[string]struct {
		args, verbs []string
		says        string
	}{
		"a wrong password": {[]string{"--sasl-user", wrong.Name, "--sasl-password-file", file(wrong)}, all, "authentication"},
		"no user":          {nil, all, "authentication"},
		// Who may write may describe, which is all that Fluss asks for snapshots.
		"a user who may not read": {[]string{"--sasl-user", unable.Name, "--sasl-password-file", file(unable)}, []string{"lookup"}, "not authorized"},
	} {
		for _, verb := range c.verbs {
			args := append(append(strings.Fields(verb), "--cluster", f.Bootstrap(), "demo.far_sign_same"), c.args...)
			if verb == "lookup" {
				args = append(args, "1")
			}
			out, err := w.cli("reader", args...)
			if err == nil || !strings.Contains(out, c.says) || strings.Contains(out, wrong.Password.Reveal()) {
				t.Errorf("%s, %s: %v: %s", name, verb, err, out)
			}
		}
	}
	_, err := harness.Start(t.Context(), harness.Options{Bins: bins, Data: t.TempDir(), Policy: policyDir, Args: []string{"--config", writeFarConfig(t, f, store, wrong)}})
	if err == nil || !strings.Contains(err.Error(), "target.fluss") || !strings.Contains(err.Error(), "authentication") || strings.Contains(err.Error(), wrong.Password.Reveal()) {
		t.Errorf("a broker with a wrong password: %v", err)
	}
}

func openFar(t *testing.T, f *env.Fluss, store *env.Server) *flussdirect.Client {
	t.Helper()
	cl, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{f.Bootstrap()}, SASL: client.Password(f.Admin.Name, f.Admin.Password.Reveal())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	d := flussdirect.New(flussdirect.Config{Client: cl, Open: s3dir.Open(s3dir.Config{
		Region: store.Region, Endpoint: store.Endpoint, PathStyle: true, Credentials: store.Admin.Provider(),
	})})
	t.Cleanup(func() { d.Close() })
	return d
}

func farBuild(t *testing.T, w *world, bc *builder.BuildContext, n int, partition string) []builder.BucketFiles {
	t.Helper()
	var all []builder.BucketFiles
	for subject, mine := range map[string][]int{"worker-a": {0, 1}, "worker-b": {2, 3}} {
		s, err := w.as(subject).Open(t.Context(), bc, builder.OpenOptions{Buckets: mine, WorkDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for i := range n {
			if err := s.Write(farRow(i, partition)); err != nil && !errors.Is(err, builder.ErrForeignBucket) {
				t.Fatal(err)
			}
		}
		files, err := s.Finish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	return all
}

// farEqual compares rows of Fluss's own client.
func farEqual(t *testing.T, found []flussoracle.Row, n int, partition string) {
	t.Helper()
	s := farSchema(t, partition)
	got := make([][]row.Value, len(found))
	for i := range found {
		var err error
		if got[i], err = flussoracle.ParseRow(s, found[i]); err != nil {
			t.Fatal(err)
		}
	}
	farRowsEqual(t, got, n, partition)
}

func farRowsEqual(t *testing.T, got [][]row.Value, n int, partition string) {
	t.Helper()
	if len(got) != n {
		t.Fatalf("%d rows, want %d", len(got), n)
	}
	byID := map[int64][]row.Value{}
	for _, r := range got {
		byID[int64(r[0].Int())] = r
	}
	for i := range n {
		if r := byID[int64(i)]; r == nil || !row.EqualAll(r, farRow(i, partition)) {
			t.Fatalf("row %d is %v", i, r)
		}
	}
}

func farSchema(t *testing.T, partition string) *schema.Schema {
	t.Helper()
	if partition == "" {
		return tableSchema(t)
	}
	p, err := schema.ParseType("STRING NOT NULL")
	if err != nil {
		t.Fatal(err)
	}
	s, err := schema.New(append(slices.Clone(tableSchema(t).Columns), schema.Column{Name: "p", Type: p}), []string{"id", "p"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
