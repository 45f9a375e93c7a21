package builder_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/api/client"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/session/credential"
)

// BenchmarkMemoryOfTenMillionRows builds 10 M rows of about 1.2 GB in a process of
// its own and reports the most memory it ever had, beyond its budget. The goal is
// less than 128 MiB.
//
//	go test ./builder -run xxx -bench TenMillion -benchtime 1x
func BenchmarkMemoryOfTenMillionRows(b *testing.B) {
	for _, budget := range []int64{64 << 20, 256 << 20} {
		b.Run(fmt.Sprintf("budget=%dMiB", budget>>20), func(b *testing.B) {
			for b.Loop() {
				over := peakOfABuild(b, 10_000_000, budget) - budget
				b.ReportMetric(float64(over)/(1<<20), "MiB-over-budget")
			}
			b.ReportMetric(10*float64(b.N)/b.Elapsed().Seconds(), "Mrows/s")
		})
	}
}

// TestMemoryStaysWithinTheBudget is the same with fewer rows, still many times the
// budget.
func TestMemoryStaysWithinTheBudget(t *testing.T) {
	if raceEnabled {
		t.Skip("skipped: the race detector needs memory of its own")
	}
	const budget = 16 << 20
	over := peakOfABuild(t, 1_000_000, budget) - budget
	t.Logf("%d MiB beyond the budget", over>>20)
	if over > 128<<20 {
		t.Errorf("%d MiB beyond the budget", over>>20)
	}
}

// peakOfABuild is the most resident memory of a process that builds so many rows,
// in bytes.
func peakOfABuild(tb testing.TB, rows int, budget int64) int64 {
	tb.Helper()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		tb.Skip("skipped: there is no /proc to read memory from")
	}
	f := newFake(tb, fakeTable(tb, 4, nil), "")
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if r.Method != http.MethodPut {
			next(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // keeping them would be this process's memory
		w.WriteHeader(http.StatusCreated)
	})
	self, err := os.Executable()
	must(tb, err)
	k, err := json.Marshal(child{URL: f.srv.URL, Token: f.identity.Reveal(), WorkDir: tb.TempDir(), Rows: rows, Budget: budget})
	must(tb, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVar+"="+string(k))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(tb, err)
	var kib int64
	_, err = fmt.Sscanf(string(out), "VmHWM: %d kB", &kib)
	must(tb, err)
	return kib << 10
}

// runMemoryChild builds rows without committing and prints its peak memory.
func runMemoryChild(k child) error {
	ctx := context.Background()
	c, err := builder.Connect(builder.Config{URL: k.URL, Identity: client.StaticToken(credential.New(k.Token))})
	if err != nil {
		return err
	}
	bc, err := c.BuildContext(ctx, loadID)
	if err != nil {
		return err
	}
	s, err := c.Open(ctx, bc, builder.OpenOptions{WorkDir: k.WorkDir, Memory: k.Budget})
	if err != nil {
		return err
	}
	defer s.Close()
	x := uint64(1)
	r := make([]row.Value, 4)
	name := make([]byte, 0, 128)
	for i := range k.Rows {
		x = x*6364136223846793005 + 1442695040888963407
		name = fmt.Appendf(name[:0], "%064x of %032d", x, i)
		r[0], r[1], r[2], r[3] = row.Int64(int64(x)), row.StringOfBytes(name), row.Float64(float64(i)), row.Int8(1)
		if err := s.Write(r); err != nil {
			return err
		}
	}
	files, err := s.Finish(ctx)
	if err != nil {
		return err
	}
	if len(files) != 4 {
		return fmt.Errorf("%d buckets", len(files))
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	peak, _, _ = strings.Cut(peak, "\n")
	fmt.Println("VmHWM:", strings.TrimSpace(peak))
	return nil
}
