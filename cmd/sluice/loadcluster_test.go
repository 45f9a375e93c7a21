package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiclient "github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/test/env"
)

// clusters are shared by the tests.
var clusters env.Servers

// envTestRun makes the test binary sluice.
const envTestRun = "SLUICE_TEST_RUN"

// loader is a shell beside a real cluster, without a server.
type loader struct {
	*shell
	cluster *env.Fluss
	client  *client.Client
	state   string
}

func newLoader(t *testing.T) *loader {
	t.Helper()
	f := clusters.Fluss(t, env.FlussOptions{})
	c, err := client.Dial(t.Context(), client.Config{Bootstrap: []string{f.Bootstrap()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l := &loader{shell: alone(t), cluster: f, client: c, state: filepath.Join(t.TempDir(), "state")}
	l.env[envStateDir] = l.state
	return l
}

var tables int

// table creates one: id INT, day STRING, v STRING; partitioned by day if asked.
func (l *loader) table(partitions ...string) string {
	l.t.Helper()
	tables++
	path := client.TablePath{Database: "fluss", Table: fmt.Sprint("load_", tables)}
	table := &schema.Table{BucketCount: 3}
	key := []string{"id"}
	if partitions != nil {
		table.PartitionKey, key = []string{"day"}, []string{"id", "day"}
	}
	var err error
	table.Schema, err = schema.New([]schema.Column{{Name: "id", Type: schema.Type{Kind: schema.Int}}, {Name: "day", Type: schema.Type{Kind: schema.String, Nullable: partitions == nil}},
		{Name: "v", Type: schema.Type{Kind: schema.String, Nullable: true}}}, key)
	must := func(err error) {
		if err != nil {
			l.t.Fatal(err)
		}
	}
	must(err)
	must(l.client.CreateTable(l.ctx, path, table, client.Refuse))
	if len(partitions) > 0 {
		info, err := l.client.TableInfo(l.ctx, path)
		must(err)
		for _, p := range partitions {
			must(l.client.CreatePartition(l.ctx, info, p, client.Refuse))
		}
	}
	return path.String()
}

const loadedRows = 500

// input writes a CSV file of loadedRows rows.
func (l *loader) input(name, day string) {
	l.t.Helper()
	var b strings.Builder
	b.WriteString("id,day,v\n")
	for i := range loadedRows {
		fmt.Fprintf(&b, "%d,%s,v%d\n", i, day, i)
	}
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// loaded checks that the cluster serves every row.
func (l *loader) loaded(target, day string) {
	l.t.Helper()
	lines := strings.Fields(l.ok("scan", target, "--live", "--limit", "1000", "--format", "csv", "--cluster", l.cluster.Bootstrap()))
	if len(lines) != 1+loadedRows {
		l.t.Errorf("%s: %d rows", target, len(lines)-1)
	}
	for i := 0; i < loadedRows; i += 100 {
		if want := fmt.Sprintf("%d,%s,v%d", i, day, i); !strings.Contains(strings.Join(lines, "\n")+"\n", want+"\n") {
			l.t.Errorf("%s: there is no %s", target, want)
		}
	}
}

// leftovers are the files in the state directory but for locks.
func (l *loader) leftovers() []string {
	var out []string
	_ = filepath.WalkDir(l.state, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(path, ".lock") {
			out = append(out, path)
		}
		return nil
	})
	return out
}

// killed runs a command line in a process of its own that dies at a crash point.
func (l *loader) killed(at string, args ...string) {
	l.t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envTestRun+"=1", durable.CrashVar+"="+at, envStateDir+"="+l.state)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() >= 0 {
		l.t.Fatalf("it was not killed at %s: %v\n%s", at, err, out.String())
	}
}

func TestAClusterIsLoadedWithoutAServer(t *testing.T) {
	l := newLoader(t)
	at := l.cluster.Bootstrap()
	l.input("rows.csv", "mon")

	plain := l.table()
	r := l.run("load", plain, "rows.csv", "--cluster", at)
	if r.code != exitOK || !strings.Contains(r.stdout, "committed 500 rows") || !strings.Contains(r.stderr, "3 buckets") || !strings.Contains(r.stderr, "loaded 500 rows") {
		t.Fatalf("exit %d, %s\n%s", r.code, r.stdout, r.stderr)
	}
	l.loaded(plain, "mon")

	parted := l.table("mon", "tue")
	var res loadResult
	if err := json.Unmarshal([]byte(l.ok("load", "--cluster", at, "--table", parted, "--partition", "mon", "--input", "rows.csv", "-o", "json",
		"--remote-dir", l.cluster.RemotePath(), "--zookeeper", l.cluster.ZooKeeper())), &res); err != nil {
		t.Fatal(err)
	}
	if res.Rows != loadedRows || res.Committed == nil || res.Committed.Rows != loadedRows || res.Target.Partition != "mon" {
		t.Errorf("%+v", res)
	}
	l.loaded(parted+"/mon", "mon")

	l.input("wed.csv", "wed")
	l.fails(exitNotFound, "", "load", parted+"/wed", "wed.csv", "--cluster", at)
	l.ok("load", parted+"/wed", "wed.csv", "--cluster", at, "--missing", "birth")
	l.loaded(parted+"/wed", "wed")

	empty := l.table()
	if r := l.run("load", empty, "rows.csv", "--cluster", at, "--visibility", "atomic"); r.code == exitOK || !strings.Contains(r.stderr, "replace_empty") {
		t.Errorf("what exists was loaded at once: exit %d, %s", r.code, r.stderr)
	}
	if r := l.run("load", empty, "rows.csv", "--cluster", at, "--visibility", "atomic", "--replace-empty"); r.code != exitOK || !strings.Contains(r.stderr, "all rows or none") {
		t.Errorf("exit %d, %s", r.code, r.stderr)
	}
	l.loaded(empty, "mon")
	newborn := "fluss.newborn"
	info, err := l.client.TableInfo(l.ctx, client.TablePath{Database: "fluss", Table: strings.TrimPrefix(plain, "fluss.")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("table.json", info.JSON, 0o600); err != nil {
		t.Fatal(err)
	}
	l.ok("load", newborn, "rows.csv", "--cluster", at, "--missing", "birth", "--table-json", "table.json")
	l.loaded(newborn, "mon")
	if left := l.leftovers(); len(left) != 0 {
		t.Errorf("left %v", left)
	}

	for _, row := range []struct {
		name, args string
		code       int
		says       string
	}{
		{"a table that was loaded", plain + " rows.csv", exitConflict, "loaded before"},
		{"a partition that was loaded", parted + "/mon rows.csv", exitConflict, "loaded before"},
		{"a partitioned table as a whole", parted + " rows.csv", exitConflict, "name one partition"},
		{"a table that is not there", "fluss.nope rows.csv", exitNotFound, "cluster's own clients"},
		{"an input that is not there", plain + " nope.csv", exitInput, "nope.csv"},
		{"rows of another partition", parted + "/tue rows.csv", exitInput, "partition"},
		{"another directory than the cluster's", parted + "/tue rows.csv --remote-dir .", exitConflict, "does not keep its files"},
		{"a directory that is not there", parted + "/tue rows.csv --remote-dir gone", exitUsage, "mount it"},
		{"a ZooKeeper that is away", parted + "/tue rows.csv --zookeeper 127.0.0.1:1", exitUnavailable, "ZooKeeper"},
		{"another root of ZooKeeper", parted + "/tue rows.csv --zookeeper-root /elsewhere", exitUnavailable, "no Fluss cluster lives at the root /elsewhere"},
		{"a root that is no path", parted + "/tue rows.csv --zookeeper-root elsewhere", exitUsage, "zookeeper.path.root"},
		{"a ZooKeeper without a port", parted + "/tue rows.csv --zookeeper localhost", exitUsage, "host:port"},
		{"keys of the store", parted + "/tue rows.csv --credentials sts", exitUsage, "--cluster"},
		{"a way that does not exist", parted + "/tue rows.csv --publication magic", exitUsage, "in_place"},
	} {
		r := l.run(append(append([]string{"load"}, strings.Fields(row.args)...), "--cluster", at)...)
		if r.code != row.code || !strings.Contains(r.stderr, row.says) {
			t.Errorf("%s: exit %d, %s", row.name, r.code, r.stderr)
		}
	}
	// Nothing of all that was in the way.
	l.input("tue.csv", "tue")
	l.ok("load", parted+"/tue", "tue.csv", "--cluster", at)
	l.loaded(parted+"/tue", "tue")
}

// TestTheServiceOfALoadServesNobodyElse looks at it as another user of the machine does.
func TestTheServiceOfALoadServesNobodyElse(t *testing.T) {
	l := newLoader(t)
	mine, other := l.table(), l.table()
	target, _ := parseTarget(mine)
	s, err := startLocal(t.Context(), &job{Target: target, Cluster: &clusterLoad{clusterFlags: clusterFlags{Bootstrap: []string{l.cluster.Bootstrap()}}, StateDir: l.state}}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if u, err := url.Parse(s.URL()); err != nil || !isLoopback(u.Hostname()) {
		t.Errorf("it listens on %s", s.URL())
	}
	for _, row := range []struct {
		name string
		as   apiclient.TokenSource
		on   string
		want int
	}{
		{"without a token", nil, mine, http.StatusUnauthorized},
		{"with a token of its own making", apiclient.StaticToken(credential.New("eyJhbGciOiJub25lIn0.e30.")), mine, http.StatusUnauthorized},
		{"the loader itself on another table", apiclient.TokenFunc(s.Token), other, http.StatusForbidden},
	} {
		c, err := apiclient.New(apiclient.Config{BaseURL: s.URL(), Identity: row.as})
		if err != nil {
			t.Fatal(err)
		}
		target, _ := parseTarget(row.on)
		_, err = c.Begin(t.Context(), v1.BeginRequest{Target: target, SubmissionID: "x"})
		var refused *apiclient.Error
		if !errors.As(err, &refused) || refused.StatusCode != row.want {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	c, err := apiclient.New(apiclient.Config{BaseURL: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.DevToken(t.Context(), v1.DevTokenRequest{Subject: "load"}); err == nil {
		t.Error("it gives tokens away")
	}
	// One process at a time: the second would undo what the first does.
	if _, err := startLocal(t.Context(), &job{Target: target, Cluster: &clusterLoad{clusterFlags: clusterFlags{Bootstrap: []string{l.cluster.Bootstrap()}}, StateDir: l.state}}, false); describe(err).ExitCode != exitConflict {
		t.Errorf("a second one started: %v", err)
	}
}

// TestAKilledLoadIsRepeated kills the loader, and the service in it, at each of its
// steps, and repeats the command.
func TestAKilledLoadIsRepeated(t *testing.T) {
	l := newLoader(t)
	l.input("rows.csv", "mon")
	for _, point := range []string{
		"begin.reserved", "begin.fenced", "begin.ready", "builder.after-file", "builder.after-checkpoint", "builder.after-manifest",
		"commit.frozen", "commit.decided", "fluss.SERVED:2", "commit.published", "commit.recorded", "builder.after-commit",
	} {
		t.Run(point, func(t *testing.T) {
			l.t = t
			table := l.table()
			args := []string{"load", table, "rows.csv", "--cluster", l.cluster.Bootstrap(), "--quiet"}
			l.killed(point, args...)
			if out := l.ok(args...); !strings.Contains(out, "committed 500 rows") {
				t.Error(out)
			}
			l.loaded(table, "mon")
			if left := l.leftovers(); len(left) != 0 {
				t.Errorf("left %v", left)
			}
			if _, err := os.Stat(defaultWorkDir); err == nil {
				t.Error("the work directory is left")
			}
		})
	}
}

// TestAKilledLoadWhoseWorkIsLost begins anew, or finds that it is done.
func TestAKilledLoadWhoseWorkIsLost(t *testing.T) {
	l := newLoader(t)
	l.input("rows.csv", "mon")
	l.input("other.csv", "tue")
	for _, row := range []struct{ name, point, second, day string }{
		{"before its decision it is given up", "builder.after-checkpoint", "other.csv", "tue"},
		{"behind its decision it is finished", "fluss.NOTIFYING", "rows.csv", "mon"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l.t = t
			table := l.table()
			l.killed(row.point, "load", table, "rows.csv", "--cluster", l.cluster.Bootstrap())
			if err := os.RemoveAll(defaultWorkDir); err != nil {
				t.Fatal(err)
			}
			l.ok("load", table, row.second, "--cluster", l.cluster.Bootstrap())
			l.loaded(table, row.day)
		})
	}
	table := l.table()
	l.t = t
	l.killed("begin.ready", "load", table, "rows.csv", "--cluster", l.cluster.Bootstrap())
	if r := l.run("load", table, "other.csv", "--cluster", l.cluster.Bootstrap()); r.code != exitUsage || !strings.Contains(r.stderr, "unfinished job") {
		t.Errorf("another command in the same work directory: exit %d, %s", r.code, r.stderr)
	}
	l.env[envStateDir] = t.TempDir()
	if r := l.run("load", table, "rows.csv", "--cluster", l.cluster.Bootstrap(), "--work-dir", "second"); r.code != exitConflict || !strings.Contains(r.stderr, "state directory") {
		t.Errorf("from another state directory: exit %d, %s", r.code, r.stderr)
	}
	l.env[envStateDir] = l.state
	l.ok("load", "--resume")
	l.loaded(table, "mon")
}

// write adds rows of somebody else, to each bucket some.
func (l *loader) write(name string) {
	l.t.Helper()
	table, err := l.client.OpenTable(l.ctx, client.TablePath{Database: "fluss", Table: strings.TrimPrefix(name, "fluss.")})
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range int32(30) {
		if err := table.Upsert(l.ctx, []row.Value{row.Int32(i), row.String("sun"), row.String("theirs")}); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestALoadThatIsStuckIsToldAndEnded writes into the table behind the decision.
func TestALoadThatIsStuckIsToldAndEnded(t *testing.T) {
	l := newLoader(t)
	l.input("rows.csv", "mon")
	at := l.cluster.Bootstrap()
	for _, row := range []struct {
		name        string
		lost        bool
		again, last []string
	}{
		{"with its work directory", false, []string{"load", "--resume"}, []string{"load", "--resume", "--give-up"}},
		{"without", true, []string{"load", "TABLE", "rows.csv", "--cluster", at}, []string{"load", "TABLE", "rows.csv", "--cluster", at, "--give-up"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			l.t = t
			table := l.table()
			of := func(args []string) []string {
				args = slices.Clone(args)
				for i := range args {
					args[i] = strings.Replace(args[i], "TABLE", table, 1)
				}
				return args
			}
			l.killed("commit.decided", "load", table, "rows.csv", "--cluster", at)
			l.write(table)
			if row.lost {
				if err := os.RemoveAll(defaultWorkDir); err != nil {
					t.Fatal(err)
				}
			}
			r := l.run(of(row.again)...)
			if r.code != exitConflict || !strings.Contains(r.stderr, "rows of somebody else") || !strings.Contains(r.stderr, "--give-up") || strings.Contains(r.stderr, "session abort") {
				t.Fatalf("a stuck load: exit %d, %s", r.code, r.stderr)
			}
			if r = l.run(of(row.last)...); r.code != exitConflict || !strings.Contains(r.stderr, "was given up: buckets [] serve") {
				t.Fatalf("its end: exit %d, %s", r.code, r.stderr)
			}
			if _, err := os.Stat(defaultWorkDir); err == nil {
				t.Error("the work directory is left")
			}
			if r = l.run("load", table, "rows.csv", "--cluster", at, "--give-up"); r.code != exitConflict || !strings.Contains(r.stderr, "no load of "+table+" is stuck") {
				t.Errorf("once more: exit %d, %s", r.code, r.stderr)
			}
			if r = l.run("load", table, "rows.csv", "--cluster", at); r.code != exitConflict || !strings.Contains(r.stderr, "target_not_empty") {
				t.Errorf("a load into their rows: exit %d, %s", r.code, r.stderr)
			}
		})
	}
	l.fails(exitUsage, "--cluster", "load", "fluss.t", "rows.csv", "--give-up")
}

// TestALoadWhoseFilesAreSpoiled changes a file before validation, and behind the decision.
func TestALoadWhoseFilesAreSpoiled(t *testing.T) {
	l := newLoader(t)
	l.input("rows.csv", "mon")
	for _, row := range []struct{ name, at, says string }{
		{"before it is validated", "commit.frozen", "delete " + defaultWorkDir},
		{"behind the decision", "commit.decided", "--give-up"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l.t = t
			table := l.table()
			args := []string{"load", table, "rows.csv", "--cluster", l.cluster.Bootstrap()}
			l.killed(row.at, args...)
			files, err := filepath.Glob(filepath.Join(l.cluster.RemotePath(), "kv", "fluss", strings.TrimPrefix(table, "fluss.")+"-*", "0", "snap-*", "private-*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("files of a bucket: %v, %v", files, err)
			}
			if err := os.WriteFile(files[0], []byte("spoiled"), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if r := l.run(args...); r.code != exitConflict || !strings.Contains(r.stderr, row.says) || !strings.Contains(r.stderr, "bucket 0") {
					t.Fatalf("exit %d, %s", r.code, r.stderr)
				}
			}
			if row.at == "commit.decided" {
				l.fails(exitConflict, "was given up", append(args, "--give-up")...)
				return
			}
			if err := os.RemoveAll(defaultWorkDir); err != nil {
				t.Fatal(err)
			}
			l.ok(args...)
			l.loaded(table, "mon")
		})
	}
}

// TestALoadKilledWhileItTidiesUp leaves no half of its state behind.
func TestALoadKilledWhileItTidiesUp(t *testing.T) {
	l := newLoader(t)
	l.input("rows.csv", "mon")
	table := l.table()
	args := []string{"load", table, "rows.csv", "--cluster", l.cluster.Bootstrap()}
	l.killed("load.discarded", args...)
	l.loaded(table, "mon")
	if r := l.run(args...); r.code != exitConflict || !strings.Contains(r.stderr, "loaded before") {
		t.Errorf("repeated: exit %d, %s", r.code, r.stderr)
	}
	for _, left := range l.leftovers() {
		if filepath.Base(left) != "log.jsonl" {
			t.Errorf("left %s", left)
		}
	}
}

func TestAClusterThatCannotBeLoaded(t *testing.T) {
	s := alone(t)
	s.env[envStateDir] = filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile("rows.csv", []byte("id,day,v\n1,mon,x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := silent.Addr().String()
	silent.Close()
	_, plain := fakeCluster(t, nil)
	locked := flusstest.Start(t, flusstest.Options{Users: map[string]string{"me": "s3cret"}})
	if err := os.WriteFile("password", []byte("wr0ng"), 0o600); err != nil {
		t.Fatal(err)
	}
	told := func(settings map[string]string) string {
		return strings.Join(flusstest.Start(t, flusstest.Options{Settings: settings}).Bootstrap(), ",")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s.ctx = ctx
	for _, row := range []struct {
		name, at, more string
		code           int
		says           string
	}{
		{"nobody listens", nobody, "", exitUnavailable, nobody},
		{"an address without a port", "localhost", "", exitUsage, "host:port"},
		{"a port that is none", "localhost:99999", "", exitUsage, "port number"},
		{"a web server", web.Listener.Addr().String(), "", exitUnavailable, ""},
		{"a user is asked for", strings.Join(locked.Bootstrap(), ","), "", exitDenied, "--sasl-user"},
		{"a password's file that is not there", plain, "--sasl-user me --sasl-password-file gone", exitUsage, "--sasl-password-file: password of me"},
		{"a wrong password", strings.Join(locked.Bootstrap(), ","), "--sasl-user me --sasl-password-file password", exitDenied, ""},
		{"a user without a password", plain, "--sasl-user me", exitUsage, "--sasl-password-file"},
		{"it does not say where its files are", plain, "", exitUsage, "--remote-dir"},
		{"it does not say where its ZooKeeper is", told(map[string]string{remoteSetting: "file://" + t.TempDir()}), "", exitUsage, "--zookeeper"},
		{"its files are where nobody reaches", told(map[string]string{remoteSetting: "hdfs://ns/fluss", nodesSetting: "127.0.0.1:1"}), "", exitUsage, "hdfs://ns/fluss"},
		{"its directory is not mounted", told(map[string]string{remoteSetting: "file:///no/such/place", nodesSetting: "127.0.0.1:1"}), "", exitUsage, "/no/such/place"},
	} {
		r := s.run(append([]string{"load", "shop.visits/mon", "rows.csv", "--cluster", row.at}, strings.Fields(row.more)...)...)
		if r.code != row.code || !strings.Contains(r.stderr, row.says) || strings.Contains(r.stderr, "wr0ng") {
			t.Errorf("%s: exit %d, %s", row.name, r.code, r.stderr)
		}
	}
	if r := s.run("load", "shop.visits/mon", "rows.csv", "--zookeeper", "127.0.0.1:1"); r.code != exitUsage || !strings.Contains(r.stderr, "--cluster") {
		t.Errorf("a ZooKeeper of no cluster: exit %d, %s", r.code, r.stderr)
	}
	s.env[envStateDir] = ""
	if r := s.run("load", "shop.visits/mon", "rows.csv", "--cluster", plain); r.code != exitUsage || !strings.Contains(r.stderr, "--state-dir") {
		t.Errorf("no place for its state: exit %d, %s", r.code, r.stderr)
	}
}
