// Command demo runs Sluice's main job once, on real processes and real data, and
// checks the result row by row: it starts a sluiced on embedded defaults, lets two
// worker processes with tokens of their own build two buckets each, shows the
// policy refuse a worker that asks for a bucket of the other, commits, and compares
// every row read back with the input.
//
// With -s3 the warehouse lies in a bucket of a real S3 server (SeaweedFS), which the
// demo installs, starts and stops, and the job runs once by each way to the store:
// through sluiced (gateway), with requests that sluiced signs one by one (sign), and
// with keys that an STS makes for one worker's buckets (sts). Only sluiced gets the
// store's own keys.
//
// With -fluss the target is a real Fluss cluster, which the demo installs, starts and
// stops as well: its own Java client creates the table and reads every row back, before
// and after the tablet server was killed. A second table is loaded by one command,
// sluice load --cluster, without sluiced.
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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/harness"
)

// mode is a way to the object store.
type mode struct {
	name     string // of --credentials
	table    string
	handOver string // of the load
}

var (
	local = []mode{{"gateway", "demo.places", "same"}}
	onS3  = []mode{
		{"gateway", "demo.places_gateway", "same"}, {"sign", "demo.places_sign", "same"},
		// Keys outlive the commit, so what they wrote is copied to where they do not reach.
		{"sts", "demo.places_sts", "copy"},
	}
)

var onFluss = []mode{{"gateway", "demo.places", "same"}}

const (
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
	flag.BoolVar(&d.s3, "s3", false, "put the warehouse on an S3 server started for it (needs python3 and pip)")
	flag.BoolVar(&d.fluss, "fluss", false, "load into a Fluss cluster started for it (needs Java and Maven)")
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
	s3     bool
	broker *harness.Broker
	server *env.Server // with s3

	fluss   bool
	cluster *cluster // with fluss
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
	options := harness.Options{Bins: d.bins, Data: d.dir, Policy: d.policy}
	if d.s3 {
		var file string
		if file, err = d.startServer(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.server.Stop()) }()
		options.Args = []string{"--config", file}
	}
	if d.fluss {
		file, err := d.startCluster(ctx)
		if d.cluster != nil {
			defer func() { _ = d.cluster.stop() }() // what it read has been compared by then
		}
		if err != nil {
			return err
		}
		options.Args = []string{"--config", file}
	}
	d.broker, err = harness.Start(ctx, options)
	if err != nil {
		return err
	}
	defer d.broker.Kill()
	say("sluiced is ready at %s", d.broker.URL)

	modes := local
	if d.s3 {
		modes = onS3
	}
	if d.fluss {
		modes = onFluss
	}
	var summaries []string
	for _, m := range modes {
		summary, err := d.run(ctx, m)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		summaries = append(summaries, summary)
	}
	if d.s3 {
		if err := d.countObjects(ctx, len(modes)); err != nil {
			return err
		}
	}
	if err := d.broker.Stop(); err != nil {
		return fmt.Errorf("stop sluiced: %w", err)
	}
	for _, s := range summaries {
		fmt.Println(s)
	}
	return nil
}

// warehousePrefix is where the warehouse lies in the server's bucket.
const warehousePrefix = "warehouse"

// startServer starts an S3 server and returns a configuration for sluiced that puts
// its warehouse there.
func (d *demo) startServer(ctx context.Context) (string, error) {
	say("starts an S3 server; the first time it is installed with pip")
	server, err := env.Start(ctx, env.SeaweedFS, env.Options{})
	if err != nil {
		return "", err
	}
	d.server = server
	say("%s is ready at %s, the warehouse is s3://%s/%s", server.Kind, server.Endpoint, server.Bucket, warehousePrefix)
	file, err := harness.WriteS3Config(d.dir, server, warehousePrefix)
	if err == nil {
		err = harness.AddCredentials(file, server)
	}
	if err != nil {
		return "", errors.Join(err, server.Stop())
	}
	return file, nil
}

// countObjects makes sure that the load is where it should be and nowhere else.
func (d *demo) countObjects(ctx context.Context, tables int) error {
	objects, size := 0, int64(0)
	pages := s3.NewListObjectsV2Paginator(d.server.S3(d.server.Admin.Provider()), &s3.ListObjectsV2Input{Bucket: &d.server.Bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			if !strings.HasPrefix(aws.ToString(o.Key), warehousePrefix+"/kv/") {
				continue
			}
			objects++
			size += aws.ToInt64(o.Size)
		}
	}
	if objects < tables*2*buckets {
		return fmt.Errorf("the bucket holds only %d objects of %d tables", objects, tables)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "sluiced", "warehouse")); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is a local warehouse as well: %v", err)
	}
	say("the bucket holds %d tables in %d objects, %.1f MB", tables, objects, float64(size)/1e6)
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

// run does the whole job once and returns its summary.
func (d *demo) run(ctx context.Context, m mode) (string, error) {
	start := time.Now()
	dir := filepath.Join(d.dir, m.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	step := func(subject, what string, args ...string) error {
		say("%s: %s", subject, what)
		_, err := d.broker.CLI(ctx, subject, args...)
		return err
	}

	create := func() error {
		return step("loader", "creates "+m.table+" with "+strconv.Itoa(buckets)+" buckets",
			"table", "create", m.table, "--from", d.input, "--primary-key", "id", "--buckets", strconv.Itoa(buckets))
	}
	if d.fluss {
		create = func() error { return d.create(ctx, m.table) }
	}
	if err := create(); err != nil {
		return "", err
	}
	if err := step("loader", "begins a bulk load, hand-over "+m.handOver,
		"session", "begin", m.table, "--hand-over", m.handOver, "--context", file("context.json")); err != nil {
		return "", err
	}
	if err := d.refused(ctx, file("context.json")); err != nil {
		return "", err
	}

	var workers errgroup.Group
	for subject, part := range map[string]string{"worker-a": "0-1", "worker-b": "2-3"} {
		workers.Go(func() error {
			return step(subject, "builds buckets "+part+" by "+m.name, "build", "--context", file("context.json"), "--buckets", part,
				"--credentials", m.name, "--work-dir", file("work-"+subject), "--result", file(subject+".json"), d.input)
		})
	}
	if err := workers.Wait(); err != nil {
		return "", err
	}
	var t *thief
	if m.name == "sts" {
		var err error
		if t, err = d.steal(ctx, file("context.json")); err != nil {
			return "", err
		}
		if err := t.before(ctx, file("worker-b.json")); err != nil {
			return "", err
		}
	}
	if err := step("loader", "commits both workers' files", "session", "commit", "--credentials", m.name,
		"--context", file("context.json"), file("worker-a.json"), file("worker-b.json")); err != nil {
		return "", err
	}
	if t != nil {
		if err := t.after(ctx, file("context.json")); err != nil {
			return "", err
		}
	}

	say("reader: scans every row back by %s", m.name)
	back := file("scan.csv")
	if _, err := d.broker.CLI(ctx, "reader", "scan", m.table, "--credentials", m.name, "--format", "csv", "--out", back); err != nil {
		return "", err
	}
	rows, read, differences, err := compare(d.input, back)
	if err != nil {
		return "", err
	}
	name := "demo"
	if d.s3 {
		name = "demo by " + m.name
	}
	summary := fmt.Sprintf("%s: %d rows, %d buckets, committed, %d read back, %d differences", name, rows, buckets, read, differences)
	if differences != 0 || rows != read || rows == 0 {
		return "", errors.New(summary)
	}
	say("done in %.1f s", time.Since(start).Seconds())
	if d.fluss {
		return d.adopted(ctx, m.table, rows)
	}
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
