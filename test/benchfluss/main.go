// Command benchfluss measures Sluice against a real Fluss cluster's own ways, in one run:
//
//   - load: the same rows online, by the Java client's UpsertWriter with two threads (its
//     best), up to a snapshot that holds them; and by Sluice, up to a committed load whose
//     rows the cluster serves. Once from memory, and once more by Sluice from a Parquet
//     file, which the Java client is spared.
//   - scan: all rows of the snapshots, by the Java client with two threads and by Sluice.
//   - away: how long a bucket is not served while its load is published, by its size.
//
// It prints wall time, CPU seconds of everything that took part, and ratios. Rows are an
// int key, a string of 40 bytes and a double, made by flussoracle.BenchRow on both sides.
// Before each measurement it waits until the servers have nothing left to do.
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

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
	"github.com/fluss-sluice/sluice/test/harness"
)

func main() {
	var b bench
	bin := flag.String("bin", "bin", "directory with sluiced and sluice")
	flag.Int64Var(&b.rows, "rows", 1_000_000, "rows to load")
	flag.IntVar(&b.replicas, "replicas", 1, "replicas of each bucket, 1 or 3")
	only := flag.String("only", "", "run one part: load, scan or away")
	away := flag.String("away", "1,10,100", "sizes of the buckets that are published, in MB of rows")
	flag.Parse()
	b.bins = harness.BinsIn(*bin)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx, *only, *away); err != nil {
		fmt.Fprintln(os.Stderr, "benchfluss:", err)
		os.Exit(1)
	}
}

// buckets of the tables that are loaded and scanned.
const buckets = 3

// threads of the Java client; more were not faster on two cores.
const threads = 2

type bench struct {
	rows     int64
	replicas int
	bins     harness.Bins

	dir    string
	fluss  *env.Fluss
	java   *flussoracle.Oracle
	broker *harness.Broker
	client *builder.Client // of the broker
}

func (b *bench) run(ctx context.Context, only, away string) (err error) {
	if b.dir, err = os.MkdirTemp("", "sluice-benchfluss-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.fluss, err = env.StartFluss(ctx, env.FlussOptions{TabletServers: b.replicas, TabletServerHeap: "1g"}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.fluss.Stop()) }()
	if b.java, err = flussoracle.Start(ctx, b.fluss, flussoracle.Options{Heap: "1g"}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.java.Stop()) }()
	if err := b.startBroker(ctx); err != nil {
		return err
	}
	defer b.broker.Kill()
	fmt.Printf("%d rows, %d buckets, %d replicas\n", b.rows, buckets, b.replicas)
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"load", func() error { return b.loads(ctx) }},
		{"scan", func() error { return b.scans(ctx) }},
		{"away", func() error { return b.away(ctx, away) }},
	} {
		if only != "" && only != part.name {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

func (b *bench) startBroker(ctx context.Context) error {
	config := filepath.Join(b.dir, "sluiced.yaml")
	text := fmt.Sprintf("target:\n  fluss:\n    bootstrap: [%q]\n    zookeeper: [%q]\n  directory:\n    root: %q\n    uri: %q\n",
		b.fluss.Bootstrap(), b.fluss.ZooKeeper(), b.fluss.RemotePath(), b.fluss.RemoteDir())
	err := os.WriteFile(config, []byte(text), 0o600)
	if err != nil {
		return err
	}
	if b.broker, err = harness.Start(ctx, harness.Options{Bins: b.bins, Data: b.dir, Args: []string{"--config", config}}); err != nil {
		return err
	}
	api, err := client.New(client.Config{BaseURL: b.broker.URL})
	if err != nil {
		return err
	}
	identity, err := api.DevToken(ctx, v1.DevTokenRequest{Subject: "bench"})
	if err != nil {
		return err
	}
	b.client, err = builder.Connect(builder.Config{URL: b.broker.URL, Identity: client.StaticToken(identity.Secret)})
	return err
}

func (b *bench) table(ctx context.Context, name, image string, buckets int) (flussoracle.Table, error) {
	table := flussoracle.T("bench." + name)
	_, err := b.java.CreateTable(ctx, table, flussoracle.Definition{
		Columns: flussoracle.BenchColumns, PrimaryKey: []string{"id"}, Buckets: buckets,
		Properties: map[string]string{"table.changelog.image": image, "table.replication.factor": strconv.Itoa(b.replicas)},
	})
	return table, err
}

func targetOf(t flussoracle.Table) v1.Target { return v1.Target{Database: t.Database, Table: t.Table} }
