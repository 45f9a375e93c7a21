package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/test/env"
)

// Sizes of the comparison with the AWS SDK.
const (
	uploadSize = 512 << 20
	readSize   = 256 << 20
	scanRows   = 2_000_000
)

// storeEnv tells a contender where its objects are, as the JSON of place.
const storeEnv = "SLUICE_BENCH_STORE"

// place is a bucket of a server, or a directory.
type place struct {
	Endpoint, Region, Bucket, AccessKey, SecretKey string
	Dir                                            string
}

// contender is a process that moves bytes or rows.
type contender struct {
	name  string
	place place
	args  []string
	all   []figure
	peaks []int64 // resident bytes
}

// s3 compares uploads with those of the AWS SDK's own transfer manager, and reads and
// scans from S3 with those from a local directory.
func (b *bench) s3() error {
	server, err := env.Start(context.Background(), env.SeaweedFS, env.Options{})
	if errors.Is(err, env.ErrUnavailable) {
		fmt.Println("\n== comparison on S3 left out:", err)
		return nil
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err == nil {
		err = b.onServer(server, dir)
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return errors.Join(err, server.Stop())
}

func (b *bench) onServer(server *env.Server, dir string) error {
	remote := place{
		Endpoint: server.Endpoint, Region: server.Region, Bucket: server.Bucket,
		AccessKey: server.Admin.AccessKeyID, SecretKey: server.Admin.SecretAccessKey.Reveal(),
	}
	here := place{Dir: filepath.Join(dir, "lake")}
	input := filepath.Join(dir, "bytes")
	if err := writeNoise(input, uploadSize); err != nil {
		return err
	}
	fmt.Printf("\n== upload of %d MiB from one file to S3 (SeaweedFS, plain HTTP), in parts of 8 MiB, 5 at once\n", uploadSize>>20)
	uploads := []*contender{
		{name: "sluice", place: remote, args: []string{"child-put", input}},
		{name: "AWS SDK transfer manager, its defaults (CRC-32)", place: remote, args: []string{"child-put-sdk", input, ""}},
		{name: "AWS SDK transfer manager, SHA-256", place: remote, args: []string{"child-put-sdk", input, "SHA256"}},
	}
	if err := b.alternate(uploads, "MiB/s", 1<<20); err != nil {
		return err
	}
	fmt.Printf("\n== read of an object of %d MiB\n", readSize>>20)
	// By processes of their own: a child's peak counts from that of its parent.
	for _, p := range []place{remote, here} {
		if _, err := p.command("child-fill", input).Output(); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	reads := []*contender{
		{name: "sluice, from S3", place: remote, args: []string{"child-get"}},
		{name: "AWS SDK transfer manager, from S3", place: remote, args: []string{"child-get-sdk"}},
		{name: "sluice, from a local directory", place: here, args: []string{"child-get"}},
	}
	if err := b.alternate(reads, "MiB/s", 1<<20); err != nil {
		return err
	}
	fmt.Printf("\n== scan of one KV snapshot of %d rows, decoded\n", scanRows)
	scans := []*contender{
		{name: "from S3", place: remote, args: []string{"child-scan-kv"}},
		{name: "from a local directory", place: here, args: []string{"child-scan-kv"}},
	}
	return b.alternate(scans, "M rows/s", 1e6)
}

// alternate lets contenders take turns, each round begun by another one, and prints
// medians and how many times the first contender is faster: the median of the rounds'
// own ratios, as what else the machine does changes from round to round.
func (b *bench) alternate(all []*contender, unit string, scale float64) error {
	for round := range b.rounds {
		for i := range all {
			c := all[(round+i)%len(all)]
			if err := c.run(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	for i, c := range all {
		s := series{name: c.name, all: c.all}
		line := fmt.Sprintf("%-52s %8.2f %s  %6.2f CPU s  peak %4d MiB", c.name, s.median(rate)/scale, unit, s.median(cpu), median(c.peaks)>>20)
		if i > 0 {
			ratios := make([]float64, b.rounds)
			for r := range ratios {
				ratios[r] = all[0].all[r].Rate / c.all[r].Rate
			}
			line += fmt.Sprintf("  the first is %.2f × (%.2f to %.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
		}
		fmt.Println(line)
	}
	return nil
}

func median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// run runs the contender once; of several passes the fastest counts.
func (c *contender) run() error {
	cmd := c.place.command(c.args...)
	all, err := figuresOf(cmd)
	if err != nil {
		return err
	}
	c.all = append(c.all, slices.MaxFunc(all, func(a, b figure) int { return int(a.Rate - b.Rate) }))
	c.peaks = append(c.peaks, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss<<10)
	return nil
}

// command runs this program on the place.
func (p place) command(args ...string) *exec.Cmd {
	where, _ := json.Marshal(p) // strings
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), storeEnv+"="+string(where)), os.Stderr
	return cmd
}

// fill puts what is read and scanned into a place.
func (p place) fill(input string) error {
	objects, err := p.open()
	if err != nil {
		return err
	}
	defer objects.Close()
	f, err := os.Open(input)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := putPart(context.Background(), objects, readKey, f, readSize); err != nil {
		return err
	}
	return putSnapshot(context.Background(), objects, filepath.Dir(input), scanRows)
}

// open opens the place as Sluice does.
func (p place) open() (objects, error) {
	if p.Dir != "" {
		return local.Open(p.Dir, local.Options{})
	}
	return p.s3()
}
