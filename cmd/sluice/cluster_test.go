package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// fakeCluster is a cluster with a table of two partitions, and a user if there are any.
func fakeCluster(t *testing.T, users map[string]string) (*flusstest.Cluster, string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cluster := flusstest.Start(t, flusstest.Options{Users: users})
	conf := client.Config{Bootstrap: cluster.Bootstrap()}
	for user, password := range users {
		conf.SASL = client.Password(user, password)
	}
	c, err := client.Dial(t.Context(), conf)
	must(err)
	defer c.Close()
	ctx := t.Context()
	s, err := schema.New([]schema.Column{{Name: "id", Type: schema.Type{Kind: schema.Int}}, {Name: "day", Type: schema.Type{Kind: schema.String}},
		{Name: "v", Type: schema.Type{Kind: schema.String, Nullable: true}}}, []string{"id", "day"})
	must(err)
	path := client.TablePath{Database: "shop", Table: "visits"}
	must(c.CreateDatabase(ctx, "shop", client.Refuse))
	must(c.CreateTable(ctx, path, &schema.Table{Schema: s, PartitionKey: []string{"day"}, BucketCount: 2}, client.Refuse))
	info, err := c.TableInfo(ctx, path)
	must(err)
	must(c.CreatePartition(ctx, info, "mon", client.Refuse))
	must(c.CreatePartition(ctx, info, "tue", client.Refuse))
	table, err := c.OpenTable(ctx, path)
	must(err)
	for i := range int32(10) {
		must(table.Upsert(ctx, []row.Value{row.Int32(i), row.String("mon"), row.String(fmt.Sprint("v", i))}))
	}
	parts, err := c.Partitions(ctx, path)
	must(err)
	cluster.SetLakeSnapshots(path, flusstest.LakeSnapshot{ID: 6, Readable: true, Offsets: []client.LakeOffset{{PartitionID: &parts[0].ID, Bucket: 1, LogOffset: 3}}},
		flusstest.LakeSnapshot{ID: 7, Offsets: []client.LakeOffset{{PartitionID: &parts[0].ID, Bucket: 1, LogOffset: 5}}})
	return cluster, strings.Join(cluster.Bootstrap(), ",")
}

// alone is a shell without a server.
func alone(t *testing.T) *shell {
	t.Helper()
	t.Chdir(t.TempDir())
	return &shell{t: t, ctx: t.Context(), env: map[string]string{}}
}

func TestAClusterIsReadWithoutAServer(t *testing.T) {
	_, at := fakeCluster(t, nil)
	s := alone(t)
	for _, row := range []struct {
		args string
		want []string
	}{
		{"describe shop.visits", []string{"partitioned by", "mon (id", "VARCHAR|STRING"}},
		{"describe shop.visits/mon", []string{"LOG END"}},
		{"lookup shop.visits 3 mon 7 mon --format csv", []string{"id,day,v\n3,mon,v3\n7,mon,v7\n"}},
		{"lookup shop.visits/mon 3 mon --columns v --format csv", []string{"v\nv3\n"}},
		{"scan shop.visits/mon --live --limit 4 -o json", []string{`"day":"mon"`}},
		{"lake shop.visits", []string{"lake snapshot  7", "mon (id"}},
		{"lake shop.visits --readable", []string{"lake snapshot  6"}},
		{"lake shop.visits --snapshot-id 6 -o json", []string{`"snapshot_id": 6`, `"partition_name": "mon"`, `"log_offset": 3`}},
		{"snapshots list shop.visits/mon -o json", []string{`"buckets": 2`, `"snapshots": []`}},
		{"scan shop.visits/mon --format csv", []string{"id,day,v\n"}},
	} {
		got := s.ok(append(strings.Fields(row.args), "--cluster", at)...)
		for _, want := range row.want {
			found := false
			for one := range strings.SplitSeq(want, "|") {
				found = found || strings.Contains(got, one)
			}
			if !found {
				t.Errorf("%s: there is no %q in\n%s", row.args, want, got)
			}
		}
	}
	if n := strings.Count(s.ok("scan", "shop.visits/mon", "--live", "--limit", "4", "-o", "json", "--cluster", at), "\n"); n != 4 {
		t.Errorf("%d rows for a limit of 4", n)
	}
}

func TestExitCodesOfAClusterAreThoseOfAServer(t *testing.T) {
	cluster, at := fakeCluster(t, nil)
	s := alone(t)
	for _, row := range []struct {
		name, args string
		code       int
		says       string
	}{
		{"a table that never was", "describe shop.nope", exitNotFound, "does not exist"},
		{"a key that is not there", "lookup shop.visits 3 mon 99 mon", exitNotFound, "99 mon"},
		{"half a key", "lookup shop.visits 3 mon 4", exitUsage, "id, day"},
		{"a key of another type", "lookup shop.visits three mon", exitUsage, "key column id"},
		{"a key of another partition", "lookup shop.visits/tue 3 mon", exitUsage, "partition mon"},
		{"a partitioned table as a whole", "scan shop.visits", exitUsage, "partitioned by day"},
		{"a partition that never was", "scan shop.visits/sun", exitNotFound, ""},
		{"a lake snapshot that is over", "lake shop.visits --snapshot-id 1", exitNotFound, "lake snapshot"},
		{"live rows without a limit", "scan shop.visits/mon --live", exitUsage, "--limit"},
		{"two lake snapshots", "lake shop.visits --snapshot-id 1 --readable", exitUsage, "readable"},
	} {
		r := s.run(append(strings.Fields(row.args), "--cluster", at)...)
		if r.code != row.code || !strings.Contains(r.stderr, row.says) {
			t.Errorf("%s: exit %d, %s", row.name, r.code, r.stderr)
		}
	}
	if r := s.run("describe", "shop.visits", "--sasl-user", "me"); r.code != exitUsage || !strings.Contains(r.stderr, "--cluster") {
		t.Errorf("a user of no cluster: exit %d, %s", r.code, r.stderr)
	}
	cluster.Stop(flusstest.Coordinator)
	if r := s.run("describe", "shop.visits", "--cluster", at); r.code != exitUnavailable {
		t.Errorf("a cluster that is away: exit %d, %s", r.code, r.stderr)
	}
}

func TestAClusterWithPasswords(t *testing.T) {
	_, at := fakeCluster(t, map[string]string{"me": "s3cret"})
	s := alone(t)
	file := filepath.Join(t.TempDir(), "password")
	for password, code := range map[string]int{"s3cret\n": exitOK, "s3cret": exitOK, "wr0ng": exitDenied} {
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
		r := s.run("describe", "shop.visits", "--cluster", at, "--sasl-user", "me", "--sasl-password-file", file)
		if r.code != code || strings.Contains(r.stderr, strings.TrimSpace(password)) {
			t.Errorf("password %q: exit %d, %s", password, r.code, r.stderr)
		}
	}
	if r := s.run("describe", "shop.visits", "--cluster", at, "--sasl-user", "me"); r.code != exitUsage {
		t.Errorf("no password: exit %d, %s", r.code, r.stderr)
	}
}

func TestAWarehouseOffersNoLiveRows(t *testing.T) {
	s := newShell(t)
	s.ok("table", "create", "shop.cold", "--descriptor", coldTable(t))
	for _, args := range []string{"lookup shop.cold 1", "lake shop.cold", "scan shop.cold --live --limit 1"} {
		if r := s.run(strings.Fields(args)...); r.code == exitOK || !strings.Contains(r.stderr, "not offered") && !strings.Contains(r.stderr, "not_offered") {
			t.Errorf("%s: exit %d, %s", args, r.code, r.stderr)
		}
	}
	if got := s.ok("describe", "shop.cold"); !strings.Contains(got, "primary key") || !strings.Contains(got, "SNAPSHOT") {
		t.Errorf("described as\n%s", got)
	}
}

func coldTable(t *testing.T) string {
	t.Helper()
	s, err := schema.New([]schema.Column{{Name: "id", Type: schema.Type{Kind: schema.Int}}}, []string{"id"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cold.json")
	if err := os.WriteFile(file, (&schema.Table{Schema: s, BucketCount: 1}).AppendJSON(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
