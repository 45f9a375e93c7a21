// Command bench measures Sluice and prints ratios: its Go benchmarks, each of which
// carries its limit, then whole processes against the RocksDB that Fluss uses, and then
// uploads to a real S3 server against the AWS SDK's transfer manager.
//
// The RocksDB peers are built by test/rocksoracle/build.sh and found through
// SLUICE_ROCKS_ORACLE or in the user's cache; without them that part says so and
// is left out. Rounds alternate between the contenders, and medians are quoted:
// trust the ratios, not the absolute figures.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "child-") {
		run := child
		if os.Getenv(storeEnv) != "" {
			run = storeChild
		}
		if err := run(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	rows := flag.Int("rows", 4_000_000, "rows of the comparison with RocksDB")
	rounds := flag.Int("rounds", 3, "alternations of the comparison")
	only := flag.String("only", "", "run one part: go, rocks, memory or s3")
	flag.Parse()
	b := bench{rows: *rows, rounds: *rounds}
	for _, part := range []struct {
		name string
		run  func() error
	}{{"go", b.goBenchmarks}, {"rocks", b.rocks}, {"memory", b.memory}, {"s3", b.s3}} {
		if *only != "" && *only != part.name {
			continue
		}
		if err := part.run(); err != nil {
			fmt.Fprintf(os.Stderr, "bench %s: %v\n", part.name, err)
			os.Exit(1)
		}
	}
}

type bench struct {
	rows, rounds int
}

// goBenchmarks runs the packages' own benchmarks.
func (b *bench) goBenchmarks() error {
	fmt.Println("== Go benchmarks; each package names its limit")
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", ".", "-benchmem", "-timeout", "60m",
		"./fluss/...", "./internal/extsort/...", "./internal/rocks/...", "./policy/...", "./session/pebblestore/...",
		"./broker/...", "./api/...", "./builder/...")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// figure is what every contender prints as one line of JSON.
type figure struct {
	Command string  `json:"command"`
	Codec   string  `json:"codec"`
	Rows    int64   `json:"rows"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rowsPerSecond"`
	CPU     float64 `json:"cpuSeconds"`
}

// series collects the rounds of one contender.
type series struct {
	name string
	all  []figure
}

func (s *series) median(of func(figure) float64) float64 {
	v := make([]float64, len(s.all))
	for i, f := range s.all {
		v[i] = of(f)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func rate(f figure) float64 { return f.Rate }
func cpu(f figure) float64  { return f.CPU }

// rocks compares unsorted rows to a finished directory, and full scans, with
// Fluss's RocksDB.
func (b *bench) rocks() error {
	java, err := oracle()
	if err != nil {
		fmt.Println("== comparison with RocksDB left out:", err)
		return nil
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	input := filepath.Join(dir, "rows")
	if err := writeRows(input, b.rows); err != nil {
		return err
	}
	fmt.Printf("\n== %d unsorted rows (16-byte key, 100-byte value) from one file to a finished directory\n", b.rows)
	out := filepath.Join(dir, "out")
	contenders := []struct {
		name string
		run  func() ([]figure, error)
	}{
		{"sluice", func() ([]figure, error) { return self("child-build", out, input) }},
		{"RocksDB sort + SstFileWriter + ingest, snappy", func() ([]figure, error) { return java("sst", out, input, "snappy") }},
		{"RocksDB put + flush + checkpoint, lz4", func() ([]figure, error) { return java("put", out, input, "lz4") }},
		{"limit: copy the file's rows through memory", func() ([]figure, error) { return self("child-copy", input) }},
	}
	results := make([]series, len(contenders))
	for range b.rounds {
		for i, c := range contenders {
			if err := os.RemoveAll(out); err != nil {
				return err
			}
			if c.name == "sluice" {
				if err := os.Mkdir(out, 0o755); err != nil {
					return err
				}
			}
			f, err := c.run()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			results[i].name = c.name
			results[i].all = append(results[i].all, f[len(f)-1])
		}
	}
	report(results)
	return b.scans(dir, input, java)
}

func (b *bench) scans(dir, input string, java tool) error {
	fmt.Printf("\n== full scan of %d rows, warm, checksums verified\n", b.rows)
	db := filepath.Join(dir, "db")
	if _, err := java("putc", db, input, "lz4"); err != nil {
		return err
	}
	results := []series{{name: "sluice, one core"}, {name: "sluice, blocks read ahead on a second core"}, {name: "RocksDB iterator"}}
	for range b.rounds {
		for i, run := range []func() ([]figure, error){
			func() ([]figure, error) { return self("child-scan", db) },
			func() ([]figure, error) { return self("child-prefetch", db) },
			func() ([]figure, error) { return java("scan", db) },
		} {
			f, err := run()
			if err != nil {
				return fmt.Errorf("%s: %w", results[i].name, err)
			}
			// Several passes: the best is the one with a warm cache and, for Java, a
			// warm compiler.
			results[i].all = append(results[i].all, slices.MaxFunc(f, func(a, b figure) int { return int(a.Rate - b.Rate) }))
		}
	}
	report(results)
	return nil
}

// report prints medians and how many times the first contender is faster.
func report(all []series) {
	first := all[0].median(rate)
	for i, s := range all {
		line := fmt.Sprintf("%-50s %6.2f M rows/s", s.name, s.median(rate)/1e6)
		if c := s.median(cpu); c > 0 {
			line += fmt.Sprintf("  %6.2f CPU s", c)
		}
		if i > 0 {
			line += fmt.Sprintf("  sluice is %.2f ×", first/s.median(rate))
		}
		fmt.Println(line)
	}
}

// memory builds ten million rows in a process of its own and compares its peak
// with the sort budget.
func (b *bench) memory() error {
	const rows, budget = 10_000_000, 256 << 20
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	input := filepath.Join(dir, "rows")
	if err := writeRows(input, rows); err != nil {
		return err
	}
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0], "child-build", out, input)
	cmd.Stderr = os.Stderr
	if _, err := cmd.Output(); err != nil {
		return err
	}
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	fmt.Printf("\n== memory of a build of %d rows: peak %d MiB, budget %d MiB, above it %d MiB (allowed 128)\n",
		rows, peak>>20, int64(budget)>>20, (peak-budget)>>20)
	return nil
}

type tool func(args ...string) ([]figure, error)

// oracle finds the Java peer.
func oracle() (tool, error) {
	dir := os.Getenv("SLUICE_ROCKS_ORACLE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(cache, "sluice", "rocks-oracle")
	}
	if _, err := os.Stat(filepath.Join(dir, "classes", "Oracle.class")); err != nil {
		return nil, fmt.Errorf("no oracle in %s: run test/rocksoracle/build.sh", dir)
	}
	path := filepath.Join(dir, "classes") + ":" + filepath.Join(dir, "lib", "*")
	return func(args ...string) ([]figure, error) {
		return figures(exec.Command("java", append([]string{"-Xmx6g", "-cp", path, "Oracle"}, args...)...))
	}, nil
}

func self(args ...string) ([]figure, error) { return figures(exec.Command(os.Args[0], args...)) }

// figures runs a contender under a generous bound and reads its lines.
func figures(cmd *exec.Cmd) ([]figure, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	return figuresOf(exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...))
}

// figuresOf runs a contender and reads its lines.
func figuresOf(cmd *exec.Cmd) ([]figure, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, errs.Bytes())
	}
	var all []figure
	for line := range strings.Lines(string(out)) {
		var f figure
		if json.Unmarshal([]byte(line), &f) == nil && f.Rows > 0 {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s printed no figure: %s", cmd.Path, out)
	}
	return all, nil
}
