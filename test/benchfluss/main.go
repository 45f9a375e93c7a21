// Command benchfluss loads the same rows into a real Fluss cluster twice in one run:
// online, by the Java client's UpsertWriter with two threads (its best), up to a
// snapshot that holds them; and by Sluice, up to a committed load whose rows the cluster
// serves. It prints wall time, CPU seconds of everything that took part, and ratios.
//
// Rows are an int key, a string of 40 bytes and a double, made in memory on both sides
// by flussoracle.BenchRow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
	"github.com/fluss-sluice/sluice/test/harness"
)

func main() {
	bin := flag.String("bin", "bin", "directory with sluiced and sluice")
	rows := flag.Int64("rows", 1_000_000, "rows to load")
	replicas := flag.Int("replicas", 1, "replicas of each bucket, 1 or 3")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, harness.BinsIn(*bin), *rows, *replicas); err != nil {
		fmt.Fprintln(os.Stderr, "benchfluss:", err)
		os.Exit(1)
	}
}

// buckets of every table.
const buckets = 3

type bench struct {
	fluss    *env.Fluss
	java     *flussoracle.Oracle
	broker   *harness.Broker
	rows     int64
	replicas int
}

// figures of one load.
type figures struct {
	loaded, kept time.Duration // until the last row is acknowledged, and until a snapshot holds all
	cpu          time.Duration // of clients and servers, until kept
}

func run(ctx context.Context, bins harness.Bins, rows int64, replicas int) (err error) {
	b := &bench{rows: rows, replicas: replicas}
	dir, err := os.MkdirTemp("", "sluice-benchfluss-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if b.fluss, err = env.StartFluss(ctx, env.FlussOptions{TabletServers: replicas, TabletServerHeap: "1g"}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.fluss.Stop()) }()
	if b.java, err = flussoracle.Start(ctx, b.fluss, flussoracle.Options{Heap: "1g"}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.java.Stop()) }()
	config := filepath.Join(dir, "sluiced.yaml")
	text := fmt.Sprintf("target:\n  fluss:\n    bootstrap: [%q]\n    zookeeper: [%q]\n  directory:\n    root: %q\n    uri: %q\n",
		b.fluss.Bootstrap(), b.fluss.ZooKeeper(), b.fluss.RemotePath(), b.fluss.RemoteDir())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	if b.broker, err = harness.Start(ctx, harness.Options{Bins: bins, Data: dir, Args: []string{"--config", config}}); err != nil {
		return err
	}
	defer b.broker.Kill()

	fmt.Printf("%d rows, %d buckets, %d replicas\n", rows, buckets, replicas)
	results := map[string]figures{}
	for _, peer := range []struct{ name, image string }{{"UpsertWriter, FULL", "FULL"}, {"UpsertWriter, WAL", "WAL"}} {
		if results[peer.name], err = b.online(ctx, peer.image); err != nil {
			return fmt.Errorf("%s: %w", peer.name, err)
		}
		report(peer.name, results[peer.name])
	}
	sluice, err := b.sluice(ctx)
	if err != nil {
		return fmt.Errorf("sluice: %w", err)
	}
	report("Sluice", sluice)
	for _, name := range []string{"UpsertWriter, FULL", "UpsertWriter, WAL"} {
		r := results[name]
		fmt.Printf("Sluice against %s: %.1f x faster to the last row, %.1f x to a snapshot, %.1f x less CPU\n", name,
			r.loaded.Seconds()/sluice.loaded.Seconds(), r.kept.Seconds()/sluice.kept.Seconds(), r.cpu.Seconds()/sluice.cpu.Seconds())
	}
	return nil
}

func report(name string, f figures) {
	fmt.Printf("%-20s rows in %6.2f s, in a snapshot after %6.2f s, %6.2f CPU s\n", name, f.loaded.Seconds(), f.kept.Seconds(), f.cpu.Seconds())
}

func (b *bench) table(ctx context.Context, name, image string) (flussoracle.Table, error) {
	table := flussoracle.T("bench." + name)
	_, err := b.java.CreateTable(ctx, table, flussoracle.Definition{
		Columns: flussoracle.BenchColumns, PrimaryKey: []string{"id"}, Buckets: buckets,
		Properties: map[string]string{"table.changelog.image": image, "table.replication.factor": strconv.Itoa(b.replicas)},
	})
	return table, err
}

// online is the Java client's way.
func (b *bench) online(ctx context.Context, image string) (figures, error) {
	table, err := b.table(ctx, "online_"+strings.ToLower(image), image)
	if err != nil {
		return figures{}, err
	}
	before, start := b.servers(), time.Now()
	r, err := b.java.Load(ctx, table, b.rows, 2)
	if err == nil && r.Acknowledged != b.rows {
		err = fmt.Errorf("%d of %d rows were acknowledged", r.Acknowledged, b.rows)
	}
	if err != nil {
		return figures{}, err
	}
	if err := b.java.WaitSnapshots(ctx, table, 5*time.Minute); err != nil {
		return figures{}, err
	}
	return figures{loaded: r.Wall, kept: time.Since(start), cpu: b.servers() - before + r.CPU}, nil
}

// sluice is ours: begin, build with a token, commit. The commit answers when the
// cluster serves the rows from the snapshot that holds them.
func (b *bench) sluice(ctx context.Context) (figures, error) {
	table, err := b.table(ctx, "sluice", "FULL")
	if err != nil {
		return figures{}, err
	}
	api, err := client.New(client.Config{BaseURL: b.broker.URL})
	if err != nil {
		return figures{}, err
	}
	identity, err := api.DevToken(ctx, v1.DevTokenRequest{Subject: "bench"})
	if err != nil {
		return figures{}, err
	}
	c, err := builder.Connect(builder.Config{URL: b.broker.URL, Identity: client.StaticToken(identity.Secret)})
	if err != nil {
		return figures{}, err
	}
	work, err := os.MkdirTemp("", "sluice-benchfluss-work-")
	if err != nil {
		return figures{}, err
	}
	defer os.RemoveAll(work)
	before, start := b.servers()+self(), time.Now()
	s, err := b.load(ctx, c, v1.Target{Database: table.Database, Table: table.Table}, work)
	if err != nil {
		return figures{}, err
	}
	took := time.Since(start)
	if s.Stats == nil || s.Stats.Rows != b.rows {
		return figures{}, fmt.Errorf("committed %+v", s.Stats)
	}
	if n, err := b.java.RowCount(ctx, table); err != nil || n != b.rows {
		return figures{}, fmt.Errorf("the cluster counts %d rows, %w", n, err)
	}
	return figures{loaded: took, kept: took, cpu: b.servers() + self() - before}, nil
}

func (b *bench) load(ctx context.Context, c *builder.Client, target v1.Target, work string) (*v1.Session, error) {
	bc, err := c.Begin(ctx, builder.BeginRequest{Target: target, SubmissionID: "bench"})
	if err != nil {
		return nil, err
	}
	s, err := c.Open(ctx, bc, builder.OpenOptions{Buckets: []int{0, 1, 2}, WorkDir: work})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for i := range b.rows {
		id, text, d := flussoracle.BenchRow(i)
		if err := s.Write([]row.Value{row.Int32(id), row.String(string(text[:])), row.Float64(d)}); err != nil {
			return nil, err
		}
	}
	files, err := s.Finish(ctx)
	if err != nil {
		return nil, err
	}
	return c.Commit(ctx, bc, files)
}

// servers is the CPU time of the cluster and of sluiced so far.
func (b *bench) servers() time.Duration {
	total := cpuOf(b.broker.PID())
	for role, n := range map[env.Role]int{env.ZooKeeper: 1, env.Coordinator: 1, env.TabletServer: b.replicas} {
		for i := range n {
			total += cpuOf(b.fluss.PID(role, i))
		}
	}
	return total
}

// clockTick is USER_HZ, which is 100 on every Linux.
const clockTick = 10 * time.Millisecond

// cpuOf reads /proc/pid/stat; 0 where there is none.
func cpuOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick
}

func self() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail with these arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
