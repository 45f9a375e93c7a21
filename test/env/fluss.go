package env

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/session/credential"
)

// FlussVersion is the release that StartFluss starts.
const FlussVersion = "0.9.1-incubating"

// Role is what a process of a Fluss cluster does.
type Role string

// The roles. There may be several tablet servers, numbered from 0 as Fluss numbers
// them; of the others there is number 0 only.
const (
	ZooKeeper    Role = "zookeeper"
	Coordinator  Role = "coordinator"
	TabletServer Role = "tabletserver"
	Tiering      Role = "tiering" // StartTiering starts it
)

// FlussOptions of a cluster; the zero value is one tablet server, open to everyone,
// with its remote directory on the local disk.
type FlussOptions struct {
	// TabletServers is their number; 0 means 1.
	TabletServers int
	// SASL makes clients authenticate with SASL/PLAIN, as one of the Users or as Admin.
	// The servers among themselves use listeners of their own without it.
	SASL bool
	// Users are names of users beside Admin; their passwords are random.
	Users []string
	// Authorizer makes the servers check ACLs; Admin is a super user. Needs SASL.
	Authorizer bool
	// RemoteDir is a local directory for remote data; Stop leaves it alone. "" means one
	// that Stop removes.
	RemoteDir string
	// S3 puts remote data under RemotePrefix of the server's Bucket instead; a SeaweedFS,
	// whose role the servers take for the keys that they hand to clients.
	S3 *Server
	// SnapshotInterval between KV snapshots; 0 means 5 s.
	SnapshotInterval time.Duration
	// SessionTimeout of the servers' ZooKeeper sessions; 0 means 6 s. A killed server is
	// missed when it is over, and a restarted one serves only then.
	SessionTimeout time.Duration
	// Lake makes Paimon the data lake of the cluster, on the local disk. Tables whose
	// table.datalake.enabled is true are tiered once StartTiering has been called.
	Lake bool
	// Config is added to the configuration of all servers.
	Config map[string]string
	// CoordinatorHeap and TabletServerHeap are sizes for java -Xmx; "" means 256m, 512m.
	CoordinatorHeap, TabletServerHeap string
	// StartTimeout bounds waiting for readiness, also in Restart; 0 means 90 s.
	StartTimeout time.Duration
}

// RemotePrefix is the remote directory in the bucket of FlussOptions.S3.
const RemotePrefix = "fluss-remote"

// FlussUser is a user of a cluster with SASL.
type FlussUser struct {
	Name     string
	Password credential.Secret
}

// Fluss is a running cluster, an unmodified release: ZooKeeper, a coordinator, tablet
// servers, each a process on 127.0.0.1. Its methods may be called concurrently, but
// not Kill, Terminate, Restart and Stop of the same process.
type Fluss struct {
	Admin FlussUser            // empty without SASL
	Users map[string]FlussUser // by name, Admin not among them

	o     FlussOptions
	dir   string // data, configurations, logs
	jars  string
	lake  string // jars of the lake, "" without
	java  string
	ports map[node]ports

	mu       sync.Mutex // guards what follows
	procs    map[node]*process
	paused   map[node]bool
	sessions map[node]string // ZooKeeper session before the last end of the process
	stopped  bool
}

type node struct {
	role Role
	n    int
}

func (n node) String() string { return fmt.Sprintf("%s-%d", n.role, n.n) }

// ports of a process: client is the one that tests use.
type ports struct{ client, internal int }

// StartFluss starts a cluster and returns when its coordinator and all tablet servers
// know each other; ctx governs the start only. An error wraps ErrUnavailable when
// there is no JDK or Fluss cannot be installed.
func StartFluss(ctx context.Context, o FlussOptions) (*Fluss, error) {
	f, err := startFluss(ctx, withDefaults(o))
	if err != nil {
		return nil, fmt.Errorf("start Fluss: %w", err)
	}
	return f, nil
}

func withDefaults(o FlussOptions) FlussOptions {
	set := func(s *string, def string) {
		if *s == "" {
			*s = def
		}
	}
	set(&o.CoordinatorHeap, "256m")
	set(&o.TabletServerHeap, "512m")
	for _, d := range []struct {
		at  *time.Duration
		def time.Duration
	}{{&o.SnapshotInterval, 5 * time.Second}, {&o.SessionTimeout, 6 * time.Second}, {&o.StartTimeout, 90 * time.Second}} {
		if *d.at == 0 {
			*d.at = d.def
		}
	}
	o.TabletServers = max(o.TabletServers, 1)
	return o
}

func startFluss(ctx context.Context, o FlussOptions) (*Fluss, error) {
	if o.Authorizer && !o.SASL {
		return nil, errors.New("an authorizer needs SASL")
	}
	java, err := javaTool("java")
	if err != nil {
		return nil, err
	}
	jars, err := installJars(ctx, "fluss")
	if err != nil {
		return nil, err
	}
	lake := ""
	if o.Lake {
		if lake, err = installJars(ctx, "fluss-lake"); err != nil {
			return nil, err
		}
	}
	const tries = 3 // for the same reason as in start
	for try := 1; ; try++ {
		f := &Fluss{o: o, java: java, jars: jars, lake: lake, procs: map[node]*process{}, paused: map[node]bool{}, sessions: map[node]string{}}
		err := f.start(ctx)
		if err == nil {
			return f, nil
		}
		err = errors.Join(err, f.Stop())
		if !errors.Is(err, errExited) || try == tries {
			return nil, err
		}
	}
}

func (f *Fluss) start(ctx context.Context) (err error) {
	if f.dir, err = tempDir("fluss"); err != nil {
		return err
	}
	if err := f.choosePorts(); err != nil {
		return err
	}
	if f.o.SASL {
		f.makeUsers()
	}
	if err := f.writeFiles(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.o.StartTimeout)
	defer cancel()
	if err := f.launch(ctx, node{ZooKeeper, 0}); err != nil {
		return err
	}
	if err := f.await(ctx, node{ZooKeeper, 0}); err != nil {
		return err
	}
	servers := f.servers()
	for _, n := range servers {
		if err := f.launch(ctx, n); err != nil {
			return err
		}
	}
	for _, n := range servers {
		if err := f.await(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// servers are the coordinator and the tablet servers.
func (f *Fluss) servers() []node {
	nodes := []node{{Coordinator, 0}}
	for i := range f.o.TabletServers {
		nodes = append(nodes, node{TabletServer, i})
	}
	return nodes
}

func (f *Fluss) choosePorts() error {
	nodes := append(f.servers(), node{ZooKeeper, 0})
	free, err := freePorts(2 * len(nodes))
	if err != nil {
		return err
	}
	f.ports = map[node]ports{}
	for i, n := range nodes {
		f.ports[n] = ports{client: free[2*i], internal: free[2*i+1]}
		if !f.o.SASL {
			f.ports[n] = ports{client: free[2*i], internal: free[2*i]}
		}
	}
	return nil
}

func (f *Fluss) makeUsers() {
	f.Admin = FlussUser{"admin", credential.New(rand.Text())}
	f.Users = map[string]FlussUser{}
	for _, name := range f.o.Users {
		f.Users[name] = FlussUser{name, credential.New(rand.Text())}
	}
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// Bootstrap is host:port of the coordinator, for clients.
func (f *Fluss) Bootstrap() string { return f.Address(Coordinator, 0) }

// ZooKeeper is host:port of ZooKeeper; Fluss's nodes are below /fluss.
func (f *Fluss) ZooKeeper() string { return f.Address(ZooKeeper, 0) }

// Address is host:port of a process, for clients. It stays the same over restarts.
func (f *Fluss) Address(role Role, n int) string { return loopback(f.ports[node{role, n}].client) }

// RemoteDir is the remote directory as Fluss names it: a file or s3 URI.
func (f *Fluss) RemoteDir() string {
	if s := f.o.S3; s != nil {
		return "s3://" + s.Bucket + "/" + RemotePrefix
	}
	return "file://" + f.RemotePath()
}

// RemotePath is the remote directory on the local disk.
func (f *Fluss) RemotePath() string {
	if f.o.RemoteDir != "" {
		return f.o.RemoteDir
	}
	return filepath.Join(f.dir, "remote")
}

// Warehouse is the local directory of the lake.
func (f *Fluss) Warehouse() string { return filepath.Join(f.dir, "warehouse") }

// DataDir is the local data directory of a tablet server.
func (f *Fluss) DataDir(n int) string { return filepath.Join(f.nodeDir(node{TabletServer, n}), "data") }

func (f *Fluss) nodeDir(n node) string { return filepath.Join(f.dir, n.String()) }

// ClientClassPath is what a Java client needs beside Fluss's client to read the remote
// directory; it may be empty.
func (f *Fluss) ClientClassPath() string {
	if f.o.S3 == nil {
		return ""
	}
	return classPath(filepath.Join(f.jars, "s3"))
}

// PID is the process id, 0 when it is not running.
func (f *Fluss) PID(role Role, n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.procs[node{role, n}]; p != nil && p.alive() {
		return p.cmd.Process.Pid
	}
	return 0
}

// Kill ends a process with SIGKILL and returns when it is gone; nothing when it is not
// running. Its ZooKeeper session lives on until SessionTimeout.
func (f *Fluss) Kill(role Role, n int) error { return f.end(node{role, n}, syscall.SIGKILL) }

// Terminate ends a process with SIGTERM, on which a tablet server hands its leaders to
// others, and returns when it is gone.
func (f *Fluss) Terminate(role Role, n int) error { return f.end(node{role, n}, syscall.SIGTERM) }

const endTimeout = 30 * time.Second

func (f *Fluss) end(n node, sig syscall.Signal) error {
	p, err := f.process(n)
	if err != nil {
		return err
	}
	if p == nil || !p.alive() {
		return nil
	}
	f.rememberSession(n)
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", n, err)
	}
	f.setPaused(n, false)
	select {
	case <-p.done:
		return nil
	case <-time.After(endTimeout):
		return fmt.Errorf("%s does not end within %v of %v:\n%s", n, endTimeout, sig, p.log())
	}
}

// Restart starts a process anew, killing it when it runs, and returns when it serves:
// for a killed server that is after its old ZooKeeper session is over.
func (f *Fluss) Restart(ctx context.Context, role Role, n int) error {
	at := node{role, n}
	if err := f.Kill(role, n); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.o.StartTimeout)
	defer cancel()
	err := f.launch(ctx, at)
	if err == nil {
		err = f.await(ctx, at)
	}
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	return nil
}

// Pause stops a process with SIGSTOP; Resume lets it go on.
func (f *Fluss) Pause(role Role, n int) error { return f.signal(node{role, n}, sigPause) }

// Resume undoes Pause.
func (f *Fluss) Resume(role Role, n int) error { return f.signal(node{role, n}, sigResume) }

func (f *Fluss) signal(n node, sig syscall.Signal) error {
	p, err := f.process(n)
	if err != nil {
		return err
	}
	if p == nil {
		return fmt.Errorf("%s is not running", n)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("%s: %w", n, err)
	}
	f.setPaused(n, sig == sigPause)
	return nil
}

func (f *Fluss) setPaused(n node, paused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused[n] = paused
}

// process returns the last process of a node, nil when there was none.
func (f *Fluss) process(n node) (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.ports[n]; !ok && n != (node{Tiering, 0}) {
		return nil, fmt.Errorf("the cluster has no %s", n)
	}
	return f.procs[n], nil
}

// running are the processes that run and are not paused.
func (f *Fluss) running() []node {
	f.mu.Lock()
	defer f.mu.Unlock()
	var nodes []node
	for n, p := range f.procs {
		if p.alive() && !f.paused[n] {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Log is the end of what a process has printed over all its restarts.
func (f *Fluss) Log(role Role, n int) string {
	p, err := f.process(node{role, n})
	if err != nil || p == nil {
		return ""
	}
	return p.log()
}

// LogFile is the file of all that a process has printed; Stop removes it.
func (f *Fluss) LogFile(role Role, n int) string {
	return filepath.Join(f.nodeDir(node{role, n}), "log")
}

// Logs are the ends of all logs, for a failing test.
func (f *Fluss) Logs() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for n, p := range f.procs {
		all = append(all, fmt.Sprintf("=== %s\n%s\n", n, p.log()))
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// Stop ends all processes, waits until they are gone, and removes their files. A
// second call does nothing.
func (f *Fluss) Stop() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped || f.dir == "" {
		return nil
	}
	f.stopped = true
	// Nothing of the data is needed, so none is asked to hand anything over.
	for _, p := range f.procs {
		_ = p.cmd.Process.Kill() // it may be gone
	}
	for _, p := range f.procs {
		<-p.done
	}
	if err := os.RemoveAll(f.dir); err != nil {
		return fmt.Errorf("stop Fluss: %w", err)
	}
	return nil
}

// NeedFluss starts a cluster for one test and stops it afterwards, logging the ends of
// its logs when the test has failed; it skips or fails the test when Fluss is not
// available.
func NeedFluss(t testing.TB, o FlussOptions) *Fluss {
	t.Helper()
	f, err := StartFluss(t.Context(), o)
	if err != nil {
		Missing(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(f.Logs())
		}
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Fluss returns the shared cluster with these options; it skips or fails the test when
// Fluss is not available. Tests that kill or pause servers want NeedFluss.
func (s *Servers) Fluss(t testing.TB, o FlussOptions) *Fluss {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("%+v", o)
	if s.clusters == nil {
		s.clusters = map[string]*startedFluss{}
	}
	if s.clusters[key] == nil {
		f, err := StartFluss(context.WithoutCancel(t.Context()), o)
		s.clusters[key] = &startedFluss{f, err}
	}
	if err := s.clusters[key].err; err != nil {
		Missing(t, err)
	}
	return s.clusters[key].cluster
}

type startedFluss struct {
	cluster *Fluss
	err     error
}
