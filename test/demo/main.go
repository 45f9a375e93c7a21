// Command demo runs Sluice's main job once, on real processes and real data, and
// checks the result row by row: it starts a sluiced on embedded defaults, lets two
// worker processes with tokens of their own build two buckets each, shows the
// policy refuse a worker that asks for a bucket of the other, commits, and compares
// every row read back with the input.
package main

import (
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/test/harness"
)

const (
	table   = "demo.places"
	buckets = 4
	// exitDenied is sluice's exit code for a request that policy denied.
	exitDenied = 4
)

func main() {
	var d demo
	bin := flag.String("bin", "bin", "directory with sluiced and sluice")
	flag.StringVar(&d.input, "input", "", "gzip-compressed CSV file to load")
	flag.StringVar(&d.policy, "policy", "examples/policy-demo", "policy directory")
	flag.StringVar(&d.dir, "dir", "", "where the files go (default: a temporary directory)")
	keep := flag.Bool("keep", false, "keep the files")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	d.bins = harness.BinsIn(*bin)
	if err := d.main(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

type demo struct {
	bins   harness.Bins
	input  string
	policy string
	dir    string
	broker *harness.Broker
}

func (d *demo) main(ctx context.Context, keep bool) (err error) {
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
			return err
		}
	} else if err := emptyDir(d.dir); err != nil {
		return err
	}
	if keep {
		say("files are kept in %s", d.dir)
	} else {
		defer os.RemoveAll(d.dir)
	}
	d.broker, err = harness.Start(ctx, harness.Options{Bins: d.bins, Data: d.dir, Policy: d.policy})
	if err != nil {
		return err
	}
	defer d.broker.Kill()
	say("sluiced is ready at %s", d.broker.URL)

	summary, err := d.run(ctx)
	if err != nil {
		return err
	}
	if err := d.broker.Stop(); err != nil {
		return fmt.Errorf("stop sluiced: %w", err)
	}
	fmt.Println(summary)
	return nil
}

// emptyDir makes sure that a directory named by the user holds nothing yet.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: name another directory in DEMO_DIR", dir)
	}
	return os.MkdirAll(dir, 0o755)
}

func (d *demo) run(ctx context.Context) (string, error) {
	start := time.Now()
	file := func(name string) string { return filepath.Join(d.dir, name) }
	step := func(subject, what string, args ...string) error {
		say("%s: %s", subject, what)
		_, err := d.broker.CLI(ctx, subject, args...)
		return err
	}

	if err := step("loader", "creates "+table+" with "+strconv.Itoa(buckets)+" buckets",
		"table", "create", table, "--from", d.input, "--primary-key", "id", "--buckets", strconv.Itoa(buckets)); err != nil {
		return "", err
	}
	if err := step("loader", "begins a bulk load", "session", "begin", table, "--context", file("context.json")); err != nil {
		return "", err
	}
	if err := d.refused(ctx, file("context.json")); err != nil {
		return "", err
	}

	var workers errgroup.Group
	for subject, part := range map[string]string{"worker-a": "0-1", "worker-b": "2-3"} {
		workers.Go(func() error {
			return step(subject, "builds buckets "+part, "build", "--context", file("context.json"), "--buckets", part,
				"--work-dir", file("work-"+subject), "--result", file(subject+".json"), d.input)
		})
	}
	if err := workers.Wait(); err != nil {
		return "", err
	}
	if err := step("loader", "commits both workers' files", "session", "commit",
		"--context", file("context.json"), file("worker-a.json"), file("worker-b.json")); err != nil {
		return "", err
	}

	say("reader: scans every row back")
	back := file("scan.csv")
	if _, err := d.broker.CLI(ctx, "reader", "scan", table, "--format", "csv", "--out", back); err != nil {
		return "", err
	}
	rows, read, differences, err := compare(d.input, back)
	if err != nil {
		return "", err
	}
	summary := fmt.Sprintf("demo: %d rows, %d buckets, committed, %d read back, %d differences", rows, buckets, read, differences)
	if differences != 0 || rows != read || rows == 0 {
		return "", errors.New(summary)
	}
	say("done in %.1f s", time.Since(start).Seconds())
	return summary, nil
}

// refused lets worker-a ask for a bucket of worker-b: anything but a denial by
// policy is a failure of the demo.
func (d *demo) refused(ctx context.Context, buildContext string) error {
	say("worker-a: asks for bucket 2, which is worker-b's")
	_, err := d.broker.CLI(ctx, "worker-a", "token", "exchange", "--context", buildContext, "--scope", "bucket:2:write")
	var cli *harness.CLIError
	if !errors.As(err, &cli) || cli.Code != exitDenied {
		return fmt.Errorf("worker-a was not denied bucket 2: %v", err)
	}
	say("refused: %s", strings.TrimSpace(cli.Stderr))
	return nil
}

// compare reads both files whole and counts rows that are missing, doubled or
// different. Coordinates are compared as numbers, everything else as text; an empty
// field is null in both.
func compare(input, back string) (rows, read, differences int, err error) {
	want, header, err := load(input)
	if err != nil {
		return 0, 0, 0, err
	}
	got, gotHeader, err := load(back)
	if err != nil {
		return 0, 0, 0, err
	}
	if strings.Join(header, ",") != strings.Join(gotHeader, ",") {
		return 0, 0, 0, fmt.Errorf("columns read back are %v, the input has %v", gotHeader, header)
	}
	for id, w := range want {
		g, ok := got[id]
		if !ok || !equal(header, w, g) {
			differences++
		}
	}
	for id := range got {
		if _, ok := want[id]; !ok {
			differences++
		}
	}
	return len(want), len(got), differences, nil
}

// fractions are the columns whose numbers may be written in several ways.
var fractions = map[string]bool{"lat": true, "lon": true}

func equal(header, a, b []string) bool {
	for i := range a {
		if a[i] == b[i] {
			continue
		}
		if !fractions[header[i]] {
			return false
		}
		x, errX := strconv.ParseFloat(a[i], 64)
		y, errY := strconv.ParseFloat(b[i], 64)
		if errX != nil || errY != nil || x != y {
			return false
		}
	}
	return true
}

// load reads a CSV file (gzip by its name) into rows by their first column, which
// must be unique.
func load(name string) (map[string][]string, []string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	c := csv.NewReader(r)
	header, err := c.Read()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	rows := map[string][]string{}
	for {
		rec, err := c.Read()
		if err == io.EOF {
			return rows, header, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, dup := rows[rec[0]]; dup {
			return nil, nil, fmt.Errorf("%s: %s %s stands twice", name, header[0], rec[0])
		}
		rows[rec[0]] = rec
	}
}

func say(format string, args ...any) {
	fmt.Printf("demo: "+format+"\n", args...)
}
