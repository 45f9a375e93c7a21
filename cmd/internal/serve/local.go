package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fluss-sluice/sluice/api/authn"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/session/credential"
)

// ErrLoad marks a Load that cannot work whatever the cluster does.
var ErrLoad = errors.New("load into a cluster")

// Load is one load into a live cluster, and how to reach it.
type Load struct {
	// DataDir keeps sessions and keys from one start to the next. LogFile gets the
	// service's log; it is written on, not over.
	DataDir, LogFile string
	// Database and Table are all that the service may touch.
	Database, Table string

	// Bootstrap is host:port of any of the cluster's servers.
	Bootstrap []string
	// User and PasswordFile are for SASL; "" for a cluster that asks for none.
	User, PasswordFile string

	// ZooKeeper is host:port of its servers. Root is zookeeper.path.root, "" for /fluss;
	// AuthFile holds user:password of ZooKeeper, "" for none.
	ZooKeeper               []string
	ZooKeeperRoot, AuthFile string

	// RemoteURI is remote.data.dir as the cluster names it. Remote is where this
	// process finds it: a directory, or s3://bucket/prefix.
	RemoteURI, Remote string
	// Region, Endpoint and PathStyle are for s3://; keys come from where the AWS SDK
	// finds them.
	Region, Endpoint string
	PathStyle        bool

	// MayCreate and MayDrop say whether the load may do that to its table: options of
	// Begin need it. MayGiveUp is for ending a decided load as it is.
	MayCreate, MayDrop, MayGiveUp bool
}

// Local is a service for one load inside of the process that loads.
type Local struct {
	url     string
	dev     *authn.DevIssuer
	service *service
	http    *http.Server
	log     io.Closer
	stop    context.CancelFunc
	parts   *errgroup.Group
}

// localSubject is who the loader is. Nobody else is anybody: the issuer's key is in
// memory only, and no endpoint gives its tokens away.
const localSubject = "load"

// Start runs the service on a port of loopback until Close. It proves first that the
// cluster, its ZooKeeper and its remote directory can be reached; ctx governs that
// only. What an earlier Start in the same data directory left is finished or aborted as
// by any broker.
func Start(ctx context.Context, l Load) (_ *Local, err error) {
	c, err := l.config()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLoad, err)
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	out, err := os.OpenFile(l.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of the load: %w", err)
	}
	s := &Local{log: out, dev: c.identities}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	log := newLogger(c.Log, out)
	socket, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	c.PublicURL = urlOf(socket.Addr(), false)
	if s.service, err = wire(ctx, c, log); err == nil {
		err = s.service.reachesNodes(ctx, cmp.Or(l.ZooKeeperRoot, "/fluss"))
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	s.run(c, socket)
	log.Info("ready", "url", s.url, "database", l.Database, "table", l.Table)
	return s, nil
}

// config is the configuration file that says the same.
func (l Load) config() (config, error) {
	c := defaults()
	c.Listen, c.DataDir = "127.0.0.1:0", l.DataDir
	c.Issuer.URL = "urn:sluice:broker" // not the address, which changes with each start
	c.Policy.Watch = false
	f := &c.Target.Fluss
	f.Bootstrap, f.SASL = l.Bootstrap, saslConfig{Username: l.User, PasswordFile: l.PasswordFile}
	f.ZooKeeper, f.ZooKeeperRoot, f.ZooKeeperAuthFile = l.ZooKeeper, l.ZooKeeperRoot, l.AuthFile
	d := &c.Target.Directory
	d.Root, d.URI = l.Remote, layout.CanonicalURI(l.RemoteURI)
	if d.onS3() {
		d.S3.Region, d.S3.Endpoint, d.S3.PathStyle = l.Region, l.Endpoint, l.PathStyle
	} else if info, err := os.Stat(d.Root); err != nil || !info.IsDir() {
		return c, fmt.Errorf("its remote directory is %s: there is no directory %s here: mount it and name the place", l.RemoteURI, d.Root)
	}
	var err error
	if c.policyData, err = l.policy(); err != nil {
		return c, err
	}
	if c.identities, err = authn.NewDevIssuer(nil); err != nil {
		return c, err
	}
	c.complete()
	return c, c.check()
}

// policy grants the load and nothing else.
func (l Load) policy() ([]byte, error) {
	none := struct{}{}
	grants := map[string]any{"begin": none, "write": none, "commit": none, "read": none}
	if l.MayCreate {
		grants["create"] = none
	}
	if l.MayDrop {
		grants["drop"] = none
	}
	if l.MayGiveUp {
		grants["alter"] = none
	}
	return json.Marshal(map[string]any{
		"principals": map[string]any{authn.DevIssuerName: map[string]any{
			localSubject: map[string]any{"grants": map[string]any{l.Database + "." + l.Table: grants}},
		}},
		"groups": none, "roles": none,
	})
}

// reachTimeout bounds the proof that ZooKeeper is the cluster's.
const reachTimeout = 20 * time.Second

// reachesNodes proves that ZooKeeper answers and that a Fluss cluster lives at the root.
func (s *service) reachesNodes(ctx context.Context, root string) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	switch _, err := s.nodes.Children(ctx, "/tabletservers/ids"); {
	case errors.Is(err, zk.ErrNoNode):
		return fmt.Errorf("ZooKeeper answers, but no Fluss cluster lives at the root %s there: name the cluster's zookeeper.address and zookeeper.path.root: %w", root, err)
	case err != nil:
		return fmt.Errorf("ZooKeeper: %w", err)
	}
	return nil
}

// run starts what runs until Close.
func (s *Local) run(c config, socket net.Listener) {
	s.url = c.PublicURL
	s.http = s.service.api.HTTPServer()
	limited := s.service.api.LimitConnections(socket, c.MaxConnections, true)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.parts = new(errgroup.Group)
	s.parts.Go(func() error { return s.service.broker.Run(ctx) })
	s.parts.Go(func() error {
		if err := s.http.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
}

// URL is where it listens.
func (s *Local) URL() string { return s.url }

// Token is the loader's identity token, made anew by each call.
func (s *Local) Token(context.Context) (credential.Secret, error) {
	t, _, err := s.dev.Token(localSubject, nil, time.Hour)
	return t, err
}

// closeTimeout is how long Close waits for requests in progress. The only client has
// none any more, but may have opened a connection that it did not need, which net/http
// waits for 5 s for.
const closeTimeout = 300 * time.Millisecond

// Close lets requests in progress end, and stops. Sessions stay as they are: the next
// Start in the same data directory goes on with them.
func (s *Local) Close() error {
	var errs []error
	if s.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := s.http.Shutdown(ctx); err != nil {
			_ = s.http.Close()
		}
		s.stop()
		errs = append(errs, s.parts.Wait())
	}
	if s.service != nil {
		errs = append(errs, s.service.close())
	}
	return errors.Join(append(errs, s.log.Close())...)
}

// StateDir is where loads keep their data when no directory is named: below
// $XDG_STATE_HOME, else ~/.local/state.
func StateDir(getenv func(string) string) (string, error) {
	base := getenv("XDG_STATE_HOME")
	if home := getenv("HOME"); !filepath.IsAbs(base) {
		if !filepath.IsAbs(home) {
			return "", errors.New("neither XDG_STATE_HOME nor HOME names a directory")
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "sluice"), nil
}

// RemoteHere is where this machine finds a cluster's remote directory if it is called
// there as the cluster calls it.
func RemoteHere(uri string) (string, error) {
	uri = layout.CanonicalURI(uri)
	if dir, ok := strings.CutPrefix(uri, "file://"); ok && filepath.IsAbs(dir) {
		return dir, nil
	}
	for _, scheme := range []string{s3Scheme, "s3a://"} {
		if rest, ok := strings.CutPrefix(uri, scheme); ok {
			return s3Scheme + rest, nil
		}
	}
	return "", fmt.Errorf("the cluster's remote directory is %s: only file:// and s3:// can be reached from here; mount it and name the place", withoutUserinfo(uri))
}
