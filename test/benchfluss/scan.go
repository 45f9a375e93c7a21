package main

import (
	"context"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/builder/scan"
	"github.com/fluss-sluice/sluice/fluss/client"
)

const scanRounds = 3

// counter is what both clients compute of the rows, so that each reads every column.
type counter struct{ rows, sum int64 }

type scanned struct {
	counter
	wall, cpu time.Duration // the fastest round's
}

// scans reads the snapshots of a loaded table. Rounds alternate, and each contender's
// fastest one counts: the first of the Java client is spent on compiling.
func (b *bench) scans(ctx context.Context) error {
	table, err := b.table(ctx, "scanned", "FULL", buckets)
	if err != nil {
		return err
	}
	if _, err := b.load(ctx, table, b.rows, buckets, builder.Snappy); err != nil {
		return err
	}
	conns, err := client.Dial(ctx, client.Config{Bootstrap: []string{b.fluss.Bootstrap()}})
	if err != nil {
		return err
	}
	defer conns.Close()
	direct := flussdirect.New(flussdirect.Config{Client: conns, Open: flussdirect.Dir("")})
	defer direct.Close()
	ways := []struct {
		name string
		run  func() (scanned, error)
	}{
		{"Java client", func() (scanned, error) {
			r, err := b.java.CountScan(ctx, table, threads)
			return scanned{counter{r.Rows, r.Sum}, r.Wall, r.CPU}, err
		}},
		{"Sluice, direct", func() (scanned, error) {
			return timed(func() (counter, error) { return drain(direct.SnapshotScan(ctx, scan.Request{Target: targetOf(table)})) })
		}},
		{"Sluice, by sluiced", func() (scanned, error) {
			broker := cpuOf(b.broker.PID())
			s, err := timed(func() (counter, error) {
				return drain(b.client.SnapshotScan(ctx, scan.Request{Target: targetOf(table)}))
			})
			s.cpu += cpuOf(b.broker.PID()) - broker
			return s, err
		}},
	}
	best := make([]scanned, len(ways))
	for round := range scanRounds {
		for i, w := range ways {
			if err := b.settle(ctx); err != nil {
				return err
			}
			s, err := w.run()
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if s.rows != b.rows || i > 0 && s.counter != best[0].counter {
				return fmt.Errorf("%s read %+v, want %d rows and %+v", w.name, s.counter, b.rows, best[0].counter)
			}
			if round == 0 || s.wall < best[i].wall {
				best[i] = s
			}
		}
	}
	for i, w := range ways {
		fmt.Printf("scan, %-20s %6.2f s, %6.2f CPU s", w.name, best[i].wall.Seconds(), best[i].cpu.Seconds())
		if i > 0 {
			fmt.Printf(": %.1f x faster, %.1f x less CPU", best[0].wall.Seconds()/best[i].wall.Seconds(), best[0].cpu.Seconds()/best[i].cpu.Seconds())
		}
		fmt.Println()
	}
	return b.java.DropTable(ctx, table)
}

func timed(f func() (counter, error)) (scanned, error) {
	cpu, start := self(), time.Now()
	c, err := f()
	return scanned{c, time.Since(start), self() - cpu}, err
}

func drain(s *scan.Scan, err error) (counter, error) {
	if err != nil {
		return counter{}, err
	}
	defer s.Close()
	var c counter
	for r, err := range s.Rows() {
		if err != nil {
			return counter{}, err
		}
		c.rows++
		c.sum += r[0].Int() + int64(len(r[1].Str())) + int64(r[2].Float64())
	}
	return c, nil
}
