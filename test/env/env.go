// Package env starts real S3 and STS servers for tests, demonstrations and
// benchmarks: SeaweedFS and MiniStack, as packed on PyPI, pinned by hash. A Ceph RGW
// from the system's packages is started only by tests that ask for it (StoresFull).
//
// A server runs in a temporary directory of its own, listens on 127.0.0.1 only,
// has random keys, and is gone with its files when Stop returns. Its binary comes
// from a cache in the user's cache directory, filled once with pip under a file
// lock; any number of test binaries may start servers at the same time.
//
// In a test package:
//
//	var servers env.Servers
//
//	func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }
//
//	func TestIt(t *testing.T) { s := servers.Get(t, env.SeaweedFS) … }
//
// Without python3, pip or a way to the package index, Get skips the test and says
// why; with SLUICE_REQUIRE_TOOLS in the environment it fails instead.
//
// What the servers are lax about, as measured:
//
//   - SeaweedFS compares keys in policies without regard to case, wants no right for
//     ACL and tagging headers, caps DurationSeconds silently at the role's maximum,
//     and answers an expired token with InvalidAccessKeyId.
//   - MiniStack verifies no signature of its root user, who Admin is, and does not look
//     at DurationSeconds. Its AssumeRoleWithWebIdentity checks
//     neither signature nor session policy: nothing here offers a role for it.
//   - Ceph RGW 16 drops the session policy from many a session token that was changed,
//     lets a session assume its role again, ignores If-None-Match on
//     CompleteMultipartUpload, and ends at a session policy of more than 2,048
//     characters.
package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/session/credential"
)

// RequireTools is the environment variable that turns skipping into failing.
const RequireTools = "SLUICE_REQUIRE_TOOLS"

// ErrUnavailable marks a server that cannot be had on this machine, in contrast to
// one that does not work.
var ErrUnavailable = errors.New("server not available")

// Kind is a server implementation.
type Kind string

// The servers.
const (
	SeaweedFS Kind = "seaweedfs"
	MiniStack Kind = "ministack"
	// CephRGW takes half a minute and 2 GB of memory, and comes from the system's
	// packages. It is none of Kinds; see StoresFull.
	CephRGW Kind = "cephrgw"
)

// StoresFull is the environment variable that lets tests start CephRGW
// (`make test-stores-full`).
const StoresFull = "SLUICE_STORES_FULL"

// ClusterFull is the environment variable that adds the long tests of a Fluss cluster.
const ClusterFull = "SLUICE_CLUSTER_FULL"

// Kinds lists the servers, for tests that run against each.
var Kinds = []Kind{SeaweedFS, MiniStack}

// Region of every server.
const Region = "us-east-1"

// Account of every server's users and roles.
const Account = "000000000000"

// Options of a server; the zero value has no web identity.
type Options struct {
	// WebIdentity, when its Issuer is set, adds a role that tokens of an OIDC issuer
	// may assume (SeaweedFS only).
	WebIdentity WebIdentity
	// DefaultDuration of a session whose request leaves DurationSeconds out; 0 means
	// an hour. Tests of expiry need seconds, which DurationSeconds cannot ask for.
	// SeaweedFS only.
	DefaultDuration time.Duration
	// StartTimeout bounds waiting for readiness; 0 means 90 s.
	StartTimeout time.Duration
}

// WebIdentity names whose tokens a role trusts.
type WebIdentity struct {
	Issuer   string // "iss" of the tokens; may be http on loopback
	JWKS     string // URL of the keys
	ClientID string // "aud" of the tokens
	Subject  string // "sub" of the tokens
}

// Keys are long-lived keys of a user.
type Keys struct {
	AccessKeyID     string
	SecretAccessKey credential.Secret
}

// Server is a running server.
type Server struct {
	Kind     Kind
	Endpoint string // http://127.0.0.1:port, of S3 and STS; wants path-style addresses
	Region   string

	Bucket      string // exists, empty, open to the roles
	OtherBucket string // exists, empty, open to Admin only

	Admin  Keys // may do everything
	Vendor Keys // may assume the roles and nothing else

	RoleARN    string // may use Bucket; sessions of at most an hour, the least a role can have
	WebRoleARN string // the same for Options.WebIdentity, else empty

	process *process   // the one that serves
	others  []*process // of a server that is several, all of them
	base    string     // directory of the others' directories
}

// Start starts a server and returns when it answers; ctx governs the start only.
// An error wraps ErrUnavailable when the server cannot be installed here.
func Start(ctx context.Context, kind Kind, o Options) (*Server, error) {
	if o.StartTimeout == 0 {
		o.StartTimeout = 90 * time.Second
	}
	s, err := start(ctx, kind, o)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", kind, err)
	}
	return s, nil
}

func start(ctx context.Context, kind Kind, o Options) (*Server, error) {
	launch := map[Kind]func(context.Context, string, Options) (*Server, error){SeaweedFS: launchSeaweedFS, MiniStack: launchMiniStack, CephRGW: launchCephRGW}[kind]
	if launch == nil {
		return nil, errors.New("unknown kind of server")
	}
	dir := ""
	if kind != CephRGW {
		var err error
		if dir, err = install(ctx, kind); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, o.StartTimeout)
	defer cancel()
	// Ports are chosen by asking for free ones; another process can take one before
	// the server does.
	const tries = 3
	for try := 1; ; try++ {
		s, err := launch(ctx, dir, o)
		if err == nil || !errors.Is(err, errExited) || try == tries {
			return s, err
		}
	}
}

// newServer has what all servers have in common.
func newServer(kind Kind, port int) *Server {
	return &Server{
		Kind: kind, Endpoint: fmt.Sprintf("http://127.0.0.1:%d", port), Region: Region,
		Bucket: "lake", OtherBucket: "elsewhere", Admin: newKeys(), Vendor: newKeys(),
		RoleARN: roleARN("BulkWriter"),
	}
}

func roleARN(name string) string { return "arn:aws:iam::" + Account + ":role/" + name }

// Stop ends the server, waits until it is gone, and removes its files.
func (s *Server) Stop() error {
	if err := s.stop(); err != nil {
		return fmt.Errorf("stop %s: %w", s.Kind, err)
	}
	return nil
}

func (s *Server) stop() error {
	if s.base == "" {
		return s.process.stop()
	}
	var errs []error
	for i := len(s.others) - 1; i >= 0; i-- {
		errs = append(errs, s.others[i].stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.base))...)
}

// Log is the end of what the server has printed.
func (s *Server) Log() string { return s.process.log() }

// Need starts a server for one test and stops it afterwards; it skips or fails the
// test when the server is not available.
func Need(t testing.TB, kind Kind, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), kind, o)
	if err != nil {
		Missing(t, err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Missing ends a test for which something could not be had: it skips, with the
// reason, what wraps ErrUnavailable unless SLUICE_REQUIRE_TOOLS is set.
func Missing(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrUnavailable) && os.Getenv(RequireTools) == "" {
		t.Skipf("skipped: %v", err)
	}
	t.Fatal(err)
}

// Servers are the servers that the tests of one package share, each started when
// first asked for. The zero value is ready.
type Servers struct {
	mu       sync.Mutex
	started  map[Kind]*started
	clusters map[string]*startedFluss // by options
}

type started struct {
	server *Server
	err    error
}

// Run runs the tests and stops the servers; its result is for os.Exit.
func (s *Servers) Run(m *testing.M) int {
	code := m.Run()
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Get returns the shared server of a kind, started with zero Options; it skips or
// fails the test when the server is not available.
func (s *Servers) Get(t testing.TB, kind Kind) *Server {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started == nil {
		s.started = map[Kind]*started{}
	}
	if s.started[kind] == nil {
		server, err := Start(context.WithoutCancel(t.Context()), kind, Options{})
		s.started[kind] = &started{server, err}
	}
	if err := s.started[kind].err; err != nil {
		Missing(t, err)
	}
	return s.started[kind].server
}

// Stop stops what was started. Get starts anew.
func (s *Servers) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, st := range s.started {
		if st.server != nil {
			errs = append(errs, st.server.Stop())
		}
	}
	for _, c := range s.clusters {
		if c.cluster != nil {
			errs = append(errs, c.cluster.Stop())
		}
	}
	s.started, s.clusters = nil, nil
	return errors.Join(errs...)
}
