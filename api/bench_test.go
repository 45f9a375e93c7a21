package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/authn"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session/credential"
)

// BenchmarkWarmTokenExchange is the whole token endpoint beside its limit, a bare
// HTTP echo of the same body, in one server process of its own, whose CPU time is
// compared: the shipped policy with 1,000 principals, a synced store on disk, an
// audit file, a log. Warm means that the identity token was verified before.
//
// x-echo is the figure that counts; the goal is below 15. Rounds alternate and the
// median ratio is reported.
func BenchmarkWarmTokenExchange(b *testing.B) {
	child := startBenchServer(b)
	form := child.form(b)
	const rounds, requests, parallel = 5, 4000, 16
	exchange := func() float64 {
		return child.cpu(b, requests, parallel, child.URL+"/v1/token", form)
	}
	echo := func() float64 { return child.cpu(b, requests, parallel, child.Echo, form) }
	echo()
	exchange() // warm: code, connections, identity cache, policy
	b.ResetTimer()
	var ratios, micros, echoes []float64
	for range rounds {
		e, x := echo(), exchange()
		ratios, micros, echoes = append(ratios, x/e), append(micros, x), append(echoes, e)
	}
	b.StopTimer()
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(median(ratios), "x-echo")
	b.ReportMetric(median(micros), "cpu-µs/exchange")
	b.ReportMetric(median(echoes), "cpu-µs/echo")
	b.ReportMetric(0, "ns/op") // meaningless here
}

// benchServer is what the server process prints.
type benchServer struct {
	URL     string `json:"url"`
	Echo    string `json:"echo"`
	CPU     string `json:"cpu"`
	Session string `json:"session"`
	Token   string `json:"token"` // a development identity for this process only
}

func startBenchServer(b *testing.B) *benchServer {
	b.Helper()
	args := []string{"-test.run", "^TestBenchServer$"}
	if p := os.Getenv("SLUICE_BENCH_PROFILE"); p != "" {
		args = append(args, "-test.cpuprofile", p)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SLUICE_BENCH_SERVER=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	s := new(benchServer)
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err != nil {
		b.Fatalf("%s: %v", line, err)
	}
	go io.Copy(io.Discard, stdout)
	return s
}

func (s *benchServer) form(b *testing.B) string {
	return url.Values{
		"grant_type": {v1.GrantTypeTokenExchange}, "subject_token_type": {v1.TokenTypeJWT}, "subject_token": {s.Token},
		"resource": {v1.ResourceSession + s.Session}, "scope": {"bucket:0:write"},
	}.Encode()
}

// cpu sends requests and returns the server's CPU time per request in µs.
func (s *benchServer) cpu(b *testing.B, requests, parallel int, target, form string) float64 {
	b.Helper()
	h := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallel}}
	defer h.CloseIdleConnections()
	before := s.cpuTime(b)
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for range requests / parallel {
				res, err := h.Post(target, "application/x-www-form-urlencoded", strings.NewReader(form))
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != http.StatusOK {
					b.Errorf("%s: status %d", target, res.StatusCode)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64((s.cpuTime(b) - before).Microseconds()) / float64(requests)
}

func (s *benchServer) cpuTime(b *testing.B) time.Duration {
	b.Helper()
	res, err := http.Get(s.CPU)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(n)
}

// TestBenchServer is the server process of the benchmark, not a test.
func TestBenchServer(t *testing.T) {
	if os.Getenv("SLUICE_BENCH_SERVER") != "1" {
		t.Skip("run by BenchmarkWarmTokenExchange")
	}
	dir := t.TempDir()
	trail, err := audit.OpenFile(filepath.Join(dir, "audit.jsonl"), audit.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer trail.Close()
	engine, err := policy.Open(t.Context(), policy.Config{Data: benchPolicy(1000)})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	w := newWorldOn(t, filepath.Join(dir, "sessions"), nil, engine, trail, func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(logFile, nil))
	})
	s := benchServer{URL: w.url, Session: w.begin("t1").Session.ID, Token: w.identity("worker-7").Reveal()}
	s.Echo, s.CPU = serveBare(t, func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = rw.Write(body)
	}), serveBare(t, func(rw http.ResponseWriter, _ *http.Request) {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		fmt.Fprint(rw, u.Utime.Nano()+u.Stime.Nano())
	})
	line, _ := json.Marshal(s)
	fmt.Println(string(line))
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark is over
}

func serveBare(t *testing.T, h http.HandlerFunc) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

// benchPolicy has n principals with a grant of their own and two roles, one of whom
// loads.
func benchPolicy(n int) []byte {
	subjects := map[string]any{"loader": map[string]any{"roles": []string{"loader"}}}
	for i := range n {
		subjects["worker-"+strconv.Itoa(i)] = map[string]any{
			"roles":  []string{"worker", "reader"},
			"grants": map[string]any{"demo.*": map[string]any{"write": map[string]any{"buckets": []any{[]int{0, 1}}, "max_ttl": 600}}},
		}
	}
	role := func(target string, permissions ...string) map[string]any {
		g := map[string]any{}
		for _, p := range permissions {
			g[p] = map[string]any{}
		}
		return map[string]any{"grants": map[string]any{target: g}}
	}
	b, err := json.Marshal(map[string]any{
		"principals": map[string]any{authn.DevIssuerName: subjects},
		"groups":     map[string]any{},
		"roles": map[string]any{
			"loader": role("*", "begin", "create", "commit", "read"), "reader": role("*", "read"),
			"worker": map[string]any{"grants": map[string]any{"demo.*": map[string]any{"write": map[string]any{"buckets": []any{[]int{0, 3}}, "max_ttl": 300}}}},
		},
	})
	if err != nil {
		panic(err)
	}
	return b
}

// BenchmarkAuthenticate is what every request pays: a warm identity token, or a
// Sluice token, which is looked up every time.
func BenchmarkAuthenticate(b *testing.B) {
	w := newWorld(b)
	tok := w.identity("worker")
	session := w.exchange("worker", w.begin("t1").Session.ID, "bucket:0:write").Secret
	for name, t := range map[string]credential.Secret{"warm-identity": tok, "session-token": session} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.server.authn.Authenticate(b.Context(), t); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
