package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// cluster is a running Fluss with its own Java client.
type cluster struct {
	fluss  *env.Fluss
	client *flussoracle.Oracle
}

// startCluster starts an unmodified Fluss and returns a configuration for sluiced that
// makes it the target.
func (d *demo) startCluster(ctx context.Context) (string, error) {
	say("starts a Fluss cluster; the first time its jars are fetched with Maven")
	f, err := env.StartFluss(ctx, env.FlussOptions{})
	if err != nil {
		return "", err
	}
	d.cluster = &cluster{fluss: f}
	if d.cluster.client, err = flussoracle.Start(ctx, f, flussoracle.Options{}); err != nil {
		return "", err
	}
	say("Fluss 0.9.1 is ready at %s: ZooKeeper, a coordinator, a tablet server; remote directory %s", f.Bootstrap(), f.RemoteDir())
	file := filepath.Join(d.dir, "sluiced.yaml")
	text := fmt.Sprintf("target:\n  fluss:\n    bootstrap: [%q]\n    zookeeper: [%q]\n  directory:\n    root: %q\n    uri: %q\n",
		f.Bootstrap(), f.ZooKeeper(), f.RemotePath(), f.RemoteDir())
	return file, os.WriteFile(file, []byte(text), 0o600)
}

func (c *cluster) stop() error {
	var err error
	if c.client != nil {
		err = c.client.Stop()
	}
	return errors.Join(err, c.fluss.Stop())
}

// create has the Java client create the table whose columns the input shows.
func (d *demo) create(ctx context.Context, table string) error {
	say("the Java client: creates %s with %d buckets", table, buckets)
	descriptor, err := d.broker.CLI(ctx, "loader", "table", "create", table, "--from", d.input, "--primary-key", "id", "--buckets", strconv.Itoa(buckets), "--dry-run")
	if err != nil {
		return err
	}
	_, err = d.cluster.client.CreateTableJSON(ctx, flussoracle.T(table), descriptor)
	return err
}

// judge has the Java client read every row, and counts differences from the input.
func (d *demo) judge(ctx context.Context, table string) (read, differences int, err error) {
	found, err := d.cluster.client.Read(ctx, flussoracle.LimitScan, flussoracle.T(table))
	if err != nil {
		return 0, 0, err
	}
	_, header, err := load(d.input)
	if err != nil {
		return 0, 0, err
	}
	back := filepath.Join(d.dir, "java.csv")
	if err := writeRows(back, header, found); err != nil {
		return 0, 0, err
	}
	_, read, differences, err = compare(d.input, back)
	return read, differences, err
}

func writeRows(file string, header []string, found []flussoracle.Found) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	_ = w.Write(header) // Flush has the error
	record := make([]string, len(header))
	for _, r := range found {
		columns := map[string]json.RawMessage{}
		if err := json.Unmarshal(r.Row, &columns); err != nil {
			return errors.Join(err, f.Close())
		}
		for i, name := range header {
			if record[i] = string(columns[name]); record[i] == "null" {
				record[i] = ""
			}
			if text := ""; strings.HasPrefix(record[i], `"`) {
				if err := json.Unmarshal(columns[name], &text); err != nil {
					return errors.Join(err, f.Close())
				}
				record[i] = text
			}
		}
		_ = w.Write(record)
	}
	w.Flush()
	return errors.Join(w.Error(), f.Close())
}

// adopted reads what the cluster has adopted with its own client, kills the tablet
// server, and reads again.
func (d *demo) adopted(ctx context.Context, table string, rows int) (string, error) {
	say("the Java client: reads every row back")
	read, differences, err := d.judge(ctx, table)
	if err != nil {
		return "", err
	}
	say("kill -9 of the tablet server, and a new one")
	start := time.Now()
	if err := d.cluster.fluss.Kill(env.TabletServer, 0); err != nil {
		return "", err
	}
	if err := d.cluster.fluss.Restart(ctx, env.TabletServer, 0); err != nil {
		return "", err
	}
	again, more, err := d.judgeAgain(ctx, table, rows)
	if err != nil {
		return "", err
	}
	say("the Java client read every row again %.1f s after the kill", time.Since(start).Seconds())
	direct, others, err := d.direct(ctx, table+"_direct")
	if err != nil {
		return "", err
	}
	differences += more + others
	summary := fmt.Sprintf("demo on Fluss 0.9.1: %d rows, %d buckets, adopted, %d read back by the Java client, %d after kill -9, %d loaded by one command without a server, %d differences",
		rows, buckets, read, again, direct, differences)
	if differences != 0 || read != rows || again != rows || direct != rows {
		return "", errors.New(summary)
	}
	return summary, nil
}

// direct loads a table by one command that knows nothing but a server of the cluster.
func (d *demo) direct(ctx context.Context, table string) (read, differences int, err error) {
	if err := d.create(ctx, table); err != nil {
		return 0, 0, err
	}
	at := d.cluster.fluss.Bootstrap()
	say("sluice load --cluster %s --table %s --input %s, without a server", at, table, filepath.Base(d.input))
	start := time.Now()
	cmd := exec.CommandContext(ctx, d.bins.Sluice, "load", "--cluster", at, "--table", table, "--input", d.input,
		"--work-dir", filepath.Join(d.dir, "direct"), "--state-dir", filepath.Join(d.dir, "state"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("sluice load --cluster: %w: %s", err, out)
	}
	say("loaded in %.1f s; the Java client: reads every row back", time.Since(start).Seconds())
	return d.judge(ctx, table)
}

// judgeAgain is judge behind a fail-over: buckets have no leader for a while, and the
// Java client's limit scan takes a leader's refusal for an empty bucket.
func (d *demo) judgeAgain(ctx context.Context, table string, rows int) (read, differences int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		read, differences, err = d.judge(ctx, table)
		if err == nil && read == rows {
			return read, differences, nil
		}
		select {
		case <-ctx.Done():
			return read, differences, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}
