package serve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// TestMain lets the test binary be sluiced itself, so that signals, exit codes and
// locks between processes are real.
func TestMain(m *testing.M) {
	if os.Getenv("SLUICED_TEST_RUN") == "1" {
		os.Exit(Main(os.Args[1:], "", os.Stdout, os.Stderr))
	}
	os.Exit(servers.Run(m))
}

// process is a running sluiced.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	done chan struct{}
	err  error

	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start runs sluiced and waits for its ready line.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, done: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], args...)
	p.cmd.Env = append(os.Environ(), "SLUICED_TEST_RUN=1")
	p.cmd.Stderr = p
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.done })
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, out)
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "sluiced is ready at ")
	if err != nil || !ok {
		<-p.done
		t.Fatalf("first line %q, %v, %v\n%s", line, err, p.err, p.text())
	}
	p.url = url
	return p
}

func (p *process) stop(sig os.Signal) error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
	<-p.done
	return p.err
}

func (p *process) client(subject string) *client.Client {
	p.t.Helper()
	c, err := client.New(client.Config{BaseURL: p.url})
	if err != nil {
		p.t.Fatal(err)
	}
	return c.WithIdentity(client.DevIdentity(c, subject))
}

const tableJSON = `{"version":1,"schema":{"version":1,"columns":[{"name":"id","data_type":{"type":"INTEGER","nullable":false},"id":0}],` +
	`"primary_key":["id"],"highest_field_id":0},"partition_key":[],"bucket_key":["id"],"bucket_count":2,"properties":{},"custom_properties":{}}`

func TestDevelopmentModeServesAndStateSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	data := filepath.Join(dir, "data")
	args := []string{"--dev", "--data", data, "--listen", "127.0.0.1:0", "--ready-file", ready}
	p := start(t, args...)
	if b, err := os.ReadFile(ready); err != nil || strings.TrimSpace(string(b)) != p.url {
		t.Errorf("ready file %q, %v; want %s", b, err, p.url)
	}
	c := p.client("me")
	if _, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "t", TableJSON: json.RawMessage(tableJSON)}); err != nil {
		t.Fatal(err)
	}
	begun, err := c.Begin(t.Context(), v1.BeginRequest{Target: v1.Target{Database: "demo", Table: "t"}, SubmissionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := c.Exchange(t.Context(), client.ExchangeRequest{SessionID: begun.Session.ID, Scope: []string{"bucket:0:write"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Fatalf("SIGTERM: %v\n%s", err, p.text())
	}
	if _, err := os.Stat(ready); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ready file is still there: %v", err)
	}

	p = start(t, args...)
	got, err := p.client("me").Session(t.Context(), begun.Session.ID)
	if err != nil || got.State != "BEGUN" || got.Epoch != begun.Session.Epoch {
		t.Fatalf("%+v %v", got, err)
	}
	// The token was issued on another port by another process and still holds.
	in, err := p.client("me").WithIdentity(client.StaticToken(tok.Secret)).Introspect(t.Context(), tok.Secret)
	if err != nil || !in.Active {
		t.Errorf("%+v %v", in, err)
	}
	for _, f := range []string{"sessions", "keys", "audit", "warehouse"} {
		if _, err := os.Stat(filepath.Join(data, f)); err != nil {
			t.Error(err)
		}
	}
	if st, err := os.Stat(data); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the data directory has mode %v, %v", st.Mode(), err)
	}
}

func TestADataDirectoryHasOneOwner(t *testing.T) {
	data := t.TempDir()
	start(t, "--dev", "--data", data, "--listen", "127.0.0.1:0")
	cmd := exec.Command(os.Args[0], "--dev", "--data", data, "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "SLUICED_TEST_RUN=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !strings.Contains(string(out), "another running sluiced") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestAPortInUseIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var out, errs bytes.Buffer
	code := Main([]string{"--dev", "--listen", l.Addr().String()}, "", &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), l.Addr().String()) {
		t.Fatalf("%d %s", code, errs.String())
	}
}

func TestATemporaryDataDirectoryGoes(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	p := start(t, "--dev", "--listen", "127.0.0.1:0")
	if m, _ := filepath.Glob(filepath.Join(tmp, "sluice-dev-*")); len(m) != 1 {
		t.Fatalf("%v", m)
	}
	if err := p.stop(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if m, _ := filepath.Glob(filepath.Join(tmp, "*")); len(m) != 0 {
		t.Errorf("left behind: %v", m)
	}
}

func TestSIGTERMWaitsForRequestsInProgress(t *testing.T) {
	p := start(t, "--dev", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	c := p.client("me")
	if _, err := c.CreateTable(t.Context(), v1.CreateTableRequest{Database: "demo", Table: "t", TableJSON: json.RawMessage(tableJSON)}); err != nil {
		t.Fatal(err)
	}
	begun, err := c.Begin(t.Context(), v1.BeginRequest{Target: v1.Target{Database: "demo", Table: "t"}, SubmissionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := c.Exchange(t.Context(), client.ExchangeRequest{SessionID: begun.Session.ID, Scope: []string{"bucket:0:write"}})
	if err != nil {
		t.Fatal(err)
	}
	// An upload whose second half is sent after the signal.
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	key := strings.TrimPrefix(begun.Context.Plan.UploadRoot, begun.Context.RemoteDataDir+"/") + "/0/snap-0/_METADATA"
	fmt.Fprintf(conn, "PUT /v1/objects/%s HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\nIf-None-Match: *\r\nExpect: 100-continue\r\nAuthorization: Bearer %s\r\n\r\n", key, tok.Secret.Reveal())
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q %v", line, err) // the server is reading the body now
	}
	_, _ = r.ReadString('\n')
	fmt.Fprint(conn, "half")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for refused := false; !refused; { // the listener is closed: draining has begun
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if refused = err != nil; !refused {
			c.Close()
		}
	}
	fmt.Fprint(conn, "half")
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusCreated {
		t.Fatalf("the upload in progress: %v %v\n%s", res, err, p.text())
	}
	<-p.done
	if p.err != nil {
		t.Fatalf("%v\n%s", p.err, p.text())
	}
}

func TestASecondSignalEndsTheWait(t *testing.T) {
	p := start(t, "--dev", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /dev/token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q %v", line, err)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, func() bool { return strings.Contains(p.text(), `"stopping"`) })
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Fatalf("%v\n%s", err, p.text())
	}
	if !strings.Contains(p.text(), "cut off") {
		t.Errorf("nothing was cut off:\n%s", p.text())
	}
}

func TestTLSAndReload(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	first := writeCertificate(t, cert, key, "first")
	policyDir := filepath.Join(dir, "policy")
	copyDir(t, "../../../policy/rego", policyDir)
	p := start(t, "--dev", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--policy", policyDir)
	if !strings.HasPrefix(p.url, "https://") {
		t.Fatal(p.url)
	}
	name := func(pool *x509.CertPool) (string, error) {
		c, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{RootCAs: pool})
		if err != nil {
			return "", err
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
	}
	if n, err := name(first); n != "first" {
		t.Fatal(n, err)
	}
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: first}, ForceAttemptHTTP2: true}}
	res, err := h.Get(p.url + "/readyz")
	if err != nil || res.StatusCode != 200 || res.ProtoMajor != 2 || res.Header.Get("Strict-Transport-Security") == "" {
		t.Fatalf("%v %v", res, err)
	}
	res.Body.Close()

	second := writeCertificate(t, cert, key, "second")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { n, _ := name(second); return n == "second" })

	if err := os.WriteFile(cert, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(policyDir, "authz.rego"), []byte("package sluice.authz\nnonsense("), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, func() bool { return strings.Contains(p.text(), "certificate reload refused") })
	if n, err := name(second); n != "second" {
		t.Errorf("the last good certificate is gone: %q %v", n, err)
	}
	if !strings.Contains(p.text(), "the last good revision goes on") {
		t.Errorf("no word about the policy:\n%s", p.text())
	}
	h = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: second}}}
	res, err = h.Get(p.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(text), `sluice_policy_loads_total{outcome="refused"} `) ||
		strings.Contains(string(text), `sluice_policy_loads_total{outcome="refused"} 0`) || strings.Contains(string(text), "\nsluice_policy_stale_since_seconds 0\n") {
		t.Errorf("metrics do not tell of the refused policy: %v\n%s", err, text)
	}
}

// eventually polls for what another process does in its own time.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal("it did not happen")
		case <-tick.C:
		}
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func writeCertificate(t *testing.T, cert, key, name string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(cert, crt, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(crt)
	return pool
}
