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

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

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
	child.compare(b, "exchange", "echo", child.post("/v1/token", "", formType, form), postTo(child.Echo, formType, form))
}

// BenchmarkSign is POST /v1/sign beside its limit: an HTTP echo that makes one bare
// SigV4 signature of the same request with the AWS SDK's signer, in the same server
// process. No store is involved. A write is recorded in the audit file, a read is not.
func BenchmarkSign(b *testing.B) {
	child := startBenchServer(b)
	for name, body := range map[string]string{"write": child.SignPut, "read": child.SignGet} {
		b.Run(name, func(b *testing.B) {
			child.compare(b, "sign", "sigv4-echo", child.post("/v1/sign", child.Sluice, jsonType, body), postTo(child.SigV4, jsonType, body))
		})
	}
}

// BenchmarkCachedCredentials is GET /v1/credentials with keys that the vendor has,
// beside a bare HTTP echo of a body as long as the answer. STS is in the same process
// and called once.
func BenchmarkCachedCredentials(b *testing.B) {
	child := startBenchServer(b)
	ask := func() (*http.Request, error) {
		r, err := http.NewRequest(http.MethodGet, child.URL+"/v1/credentials", nil)
		r.Header.Set("Authorization", "Bearer "+child.Sluice)
		return r, err
	}
	child.compare(b, "credentials", "echo", ask, postTo(child.Echo, jsonType, strings.Repeat("x", child.Answer)))
}

const (
	formType = "application/x-www-form-urlencoded"
	jsonType = "application/json"
)

// maker makes one request after the other.
type maker func() (*http.Request, error)

func postTo(url, media, body string) maker {
	return func() (*http.Request, error) {
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		r.Header.Set("Content-Type", media)
		return r, err
	}
}

func (s *benchServer) post(path, token, media, body string) maker {
	plain := postTo(s.URL+path, media, body)
	return func() (*http.Request, error) {
		r, err := plain()
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return r, err
	}
}

// compare reports the server's CPU time of requests, of those that are the limit, and
// the median of the ratios of alternating rounds.
func (s *benchServer) compare(b *testing.B, what, limit string, request, bare maker) {
	const rounds, requests, parallel = 5, 4000, 16
	s.cpu(b, requests, parallel, bare)
	s.cpu(b, requests, parallel, request) // warm: code, connections, caches, policy
	b.ResetTimer()
	var ratios, micros, limits []float64
	for range rounds {
		l, x := s.cpu(b, requests, parallel, bare), s.cpu(b, requests, parallel, request)
		ratios, micros, limits = append(ratios, x/l), append(micros, x), append(limits, l)
	}
	b.StopTimer()
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(median(ratios), "x-"+limit)
	b.ReportMetric(median(micros), "cpu-µs/"+what)
	b.ReportMetric(median(limits), "cpu-µs/"+limit)
	b.ReportMetric(1e6/median(micros), what+"/cpu-s")
	b.ReportMetric(0, "ns/op") // meaningless here
}

// benchServer is what the server process prints.
type benchServer struct {
	URL     string `json:"url"`
	Echo    string `json:"echo"`
	CPU     string `json:"cpu"`
	SigV4   string `json:"sigv4"` // an echo that signs
	Session string `json:"session"`
	Token   string `json:"token"`  // a development identity for this process only
	Sluice  string `json:"sluice"` // a session token for this process only
	SignPut string `json:"sign_put"`
	SignGet string `json:"sign_get"`
	Answer  int    `json:"answer"` // length of an answer with keys, bytes
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
func (s *benchServer) cpu(b *testing.B, requests, parallel int, next maker) float64 {
	b.Helper()
	h := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallel}}
	defer h.CloseIdleConnections()
	before := s.cpuTime(b)
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for range requests / parallel {
				req, err := next()
				if err != nil {
					b.Error(err)
					return
				}
				res, err := h.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != http.StatusOK {
					b.Errorf("%s: status %d", req.URL.Path, res.StatusCode)
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

// TestBenchServer is the server process of the benchmarks, not a test.
func TestBenchServer(t *testing.T) {
	if os.Getenv("SLUICE_BENCH_SERVER") != "1" {
		t.Skip("run by the benchmarks")
	}
	dir := t.TempDir()
	trail, err := audit.Open(filepath.Join(dir, "audit"), audit.Config{})
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
	vendor, _ := stsVendor(t, time.Now)
	w := newWorldOf(t, parts{
		dir: filepath.Join(dir, "sessions"), decider: engine, trail: trail, root: "s3://lake/wh", vendor: vendor, handOvers: allHandOvers,
	}, func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(logFile, nil))
		sign := stub
		c.Sign = &sign
	})
	bc := w.begin("t1").Context
	s := benchServer{URL: w.url, Session: bc.Handle.BulkLoadID, Token: w.identity("worker-7").Reveal()}
	token := w.exchange("worker-7", s.Session, "bucket:0:write").Secret
	s.Sluice, s.Answer = token.Reveal(), len(w.send("GET", "/v1/credentials", nil, bearerOf(token)...).body)
	s.SignPut, s.SignGet, s.SigV4 = benchSigning(t, bc)
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

// benchSigning returns what is sent to be signed, and the URL of an echo that signs the
// same request.
func benchSigning(t *testing.T, bc *v1.BuildContext) (put, get, url string) {
	t.Helper()
	const content = "x"
	s := &signing{bc: bc}
	key := strings.TrimPrefix(bc.Plan.UploadRoot, bc.RemoteDataDir+"/") + "/0/snap-0/" + fileOf(content)
	signer, keys := v4.NewSigner(), aws.Credentials{AccessKeyID: "ID", SecretAccessKey: "bench"}
	url = serveBare(t, func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		out, err := http.NewRequest(http.MethodPut, bc.SignedURL+key, nil)
		if err == nil {
			out.ContentLength = int64(len(content))
			out.Header.Set("If-None-Match", "*")
			out.Header.Set("X-Amz-Checksum-Sha256", checksumOf(content))
			err = signer.SignHTTP(r.Context(), keys, out, sumOf(content), "s3", "us-east-1", time.Now())
		}
		if err != nil {
			rw.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = rw.Write(body)
	})
	spell := func(r v1.SignRequest) string {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return spell(s.put(key, content)), spell(s.get(key)), url
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
			"grants": map[string]any{"demo.*": map[string]any{"write": map[string]any{"buckets": []any{[]int{0, 1}}, "max_ttl": 900}}},
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
			"worker": map[string]any{"grants": map[string]any{"demo.*": map[string]any{"write": map[string]any{"buckets": []any{[]int{0, 3}}, "max_ttl": 900}}}},
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
