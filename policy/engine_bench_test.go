//go:build unix

package policy

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// cpuTime is what the process has used of the processors, which says more than the
// wall clock on a busy machine.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDecide is one decision by the shipped rules, allowed and denied, at two
// sizes of data: a keyed policy costs the same.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		e, err := Open(b.Context(), Config{Data: benchData(n), Memory: -1})
		if err != nil {
			b.Fatal(err)
		}
		for _, allow := range []bool{true, false} {
			b.Run(fmt.Sprintf("grants=%d/allow=%v", n, allow), func(b *testing.B) {
				b.ReportAllocs()
				start, took := cpuTime(), []time.Duration{}
				for i := 0; b.Loop(); i++ {
					in := benchInput(i * 7919 % n)
					if !allow {
						in.Request.Buckets = []int{3, 0}
						in.Target.Database = "other"
					}
					began := time.Now()
					d, err := e.Decide(b.Context(), in)
					took = append(took, time.Since(began))
					if err != nil || d.Allow != allow {
						b.Fatalf("%+v, %v", d, err)
					}
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
				b.ReportMetric(float64((cpuTime()-start).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// BenchmarkReload is what an edit costs beside reading it: of rules (a hundred more
// than shipped) over the same data, and of data as a whole under the same rules.
func BenchmarkReload(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		s, err := readShipped()
		if err != nil {
			b.Fatal(err)
		}
		s = s.withData(benchData(n))
		for i := range 100 {
			s.rules = append(s.rules, rawFile{fmt.Sprintf("more%d.rego", i), KindRules,
				[]byte(fmt.Sprintf("package sluice.more%d\n\nrefused if input.principal.subject == \"worker-%d\"\n", i, i))})
		}
		bundle, err := newBundle(s)
		if err != nil {
			b.Fatal(err)
		}
		whole, _, err := build(b.Context(), bundle, nil, defaultLimits)
		if err != nil {
			b.Fatal(err)
		}
		otherRules, otherData := *whole, *whole
		otherRules.revision.Rules, otherData.revision.Data = "", ""
		for name, known := range map[string]*generation{"rules": &otherRules, "data": &otherData} {
			b.Run(fmt.Sprintf("%s/grants=%d", name, n), func(b *testing.B) {
				start := cpuTime()
				for b.Loop() {
					if _, _, err := build(b.Context(), bundle, known, defaultLimits); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((cpuTime()-start).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			})
		}
	}
}

// BenchmarkPatch is an edit of one grant at two sizes of data: it costs the same.
func BenchmarkPatch(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		e, err := Open(b.Context(), Config{Data: benchData(n)})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("grants=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			start := cpuTime()
			for i := 0; b.Loop(); i++ {
				path := []string{"principals", "https://issuer.example", fmt.Sprintf("worker-%d", i*7919%n), "grants", "demo.x"}
				if _, err := e.Patch(b.Context(), DataDelta{Ops: []DataOp{{OpSet, path, []byte(`{"write": {}}`)}}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime()-start).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}
