package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/broker/target/fluss"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
)

// flussConfig is a live cluster as the target, instead of a warehouse.
type flussConfig struct {
	Bootstrap         []string      `yaml:"bootstrap,omitempty"`
	SASL              saslConfig    `yaml:"sasl,omitempty"`
	ZooKeeper         []string      `yaml:"zookeeper,omitempty"`
	ZooKeeperRoot     string        `yaml:"zookeeper_root,omitempty"`
	ZooKeeperAuthFile string        `yaml:"zookeeper_auth_file,omitempty"`
	Publication       string        `yaml:"publication,omitempty"`
	MissingPartitions string        `yaml:"missing_partitions,omitempty"`
	RemoveCreated     bool          `yaml:"remove_created,omitempty"`
	Principal         string        `yaml:"principal,omitempty"`
	WiderRules        string        `yaml:"wider_rules,omitempty"`
	RestoreTimeout    time.Duration `yaml:"restore_timeout,omitempty"`
}

type saslConfig struct {
	Username     string `yaml:"username,omitempty"`
	PasswordFile string `yaml:"password_file,omitempty"`
}

// live reports whether the target is a cluster. Then target.directory is its remote
// directory, and not a warehouse of ours.
func (t *targetConfig) live() bool { return len(t.Fluss.Bootstrap) > 0 }

const flussKey = "target.fluss"

func (t *targetConfig) checkFluss(bad func(key, format string, args ...any)) {
	f := t.Fluss
	if !t.live() {
		if fmt.Sprint(f) != fmt.Sprint(flussConfig{}) {
			bad(flussKey+".bootstrap", "is required for a live cluster: host:port of any of its servers")
		}
		return
	}
	for key, list := range map[string][]string{"bootstrap": f.Bootstrap, "zookeeper": f.ZooKeeper} {
		for _, a := range list {
			if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
				bad(flussKey+"."+key, "%.100q is not host:port", a)
			}
		}
	}
	if r := f.ZooKeeperRoot; r != "" && (!strings.HasPrefix(r, "/") || strings.HasSuffix(r, "/")) {
		bad(flussKey+".zookeeper_root", "%.100q: want the cluster's zookeeper.path.root, as in /fluss", r)
	}
	if len(f.ZooKeeper) == 0 {
		bad(flussKey+".zookeeper", "is required: epochs are read and snapshot ids drawn there")
	}
	if (f.SASL.Username == "") != (f.SASL.PasswordFile == "") {
		bad(flussKey+".sasl", "username and password_file go together")
	}
	if p := fluss.Publication(f.Publication); p != "" && !slices.Contains([]fluss.Publication{fluss.InPlace, fluss.Birth, fluss.Restart}, p) {
		bad(flussKey+".publication", "%.50q is none of %s, %s, %s", f.Publication, fluss.InPlace, fluss.Birth, fluss.Restart)
	}
	if m := session.Missing(f.MissingPartitions); m != session.MissingRefuse && m != session.MissingCreate && m != session.MissingBirth {
		bad(flussKey+".missing_partitions", "%.50q is neither %s nor %s", f.MissingPartitions, session.MissingCreate, session.MissingBirth)
	}
	if f.Principal != "" && !strings.HasPrefix(f.Principal, "User:") {
		bad(flussKey+".principal", "want User:name")
	}
	if f.Principal != "" && f.SASL.Username != "" && f.Principal != "User:"+f.SASL.Username {
		bad(flussKey+".principal", "is not the user of sasl.username: sluiced's own rules would be withdrawn")
	}
	switch w := fluss.WiderRules(f.WiderRules); {
	case w != fluss.RefuseWider && w != fluss.NoticeWider:
		bad(flussKey+".wider_rules", "%.50q is not %s", f.WiderRules, fluss.NoticeWider)
	case w != "" && f.Principal == "":
		bad(flussKey+".wider_rules", "means something with %s.principal only", flussKey)
	}
	if f.RestoreTimeout < 0 {
		bad(flussKey+".restore_timeout", "must not be negative")
	}
	if t.Directory.URI == "" {
		bad("target.directory.root", "is required with %s: the cluster's remote.data.dir", flussKey)
	}
}

// openDriver opens the target over its objects.
func (s *service) openDriver(ctx context.Context, c config, objects objstore.Store, log *slog.Logger) (target.Driver, error) {
	if !c.Target.live() {
		return directory.Open(directory.Config{Objects: objects, RootURI: c.Target.Directory.URI})
	}
	f, log := c.Target.Fluss, log.With("part", "fluss")
	cc := client.Config{Bootstrap: f.Bootstrap, Logger: log}
	if f.SASL.Username != "" {
		password, err := secretFile(flussKey+".sasl.password_file", f.SASL.PasswordFile)
		if err != nil {
			return nil, err
		}
		cc.SASL = client.Password(f.SASL.Username, password.Reveal())
	}
	cl, err := client.Dial(ctx, cc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flussKey, err)
	}
	s.onClose(cl.Close)
	release, err := cl.Release(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s.bootstrap: no cluster answers: %w", flussKey, err)
	}
	zc := zk.Config{Servers: f.ZooKeeper, Root: f.ZooKeeperRoot, Logger: log}
	if f.ZooKeeperAuthFile != "" {
		zc.Digest = func(context.Context) (string, error) {
			auth, err := secretFile(flussKey+".zookeeper_auth_file", f.ZooKeeperAuthFile)
			return auth.Reveal(), err
		}
	}
	z, err := zk.New(zc)
	if err != nil {
		return nil, fmt.Errorf("%s.zookeeper: %w", flussKey, err)
	}
	s.onClose(z.Close)
	s.nodes = z
	d, err := fluss.Open(fluss.Config{
		Client: cl, Objects: objects, RootURI: c.Target.Directory.URI, ZooKeeper: z,
		Publication: fluss.Publication(f.Publication), Missing: session.Missing(f.MissingPartitions), RemoveCreated: f.RemoveCreated,
		Principal: f.Principal, WiderRules: fluss.WiderRules(f.WiderRules), RestoreTimeout: f.RestoreTimeout, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flussKey, err)
	}
	log.Info("a live cluster is the target", "bootstrap", f.Bootstrap, "release", fmt.Sprint(release), "remote", c.Target.Directory.URI)
	return d, nil
}

// secretFile reads a secret without the line end that editors add. What the file holds
// never gets into an error.
func secretFile(key, path string) (credential.Secret, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return credential.Secret{}, fmt.Errorf("%s: %w", key, err)
	}
	text := strings.TrimRight(string(b), "\r\n")
	if text == "" || len(text) > maxKeyFile || strings.ContainsAny(text, "\x00\r\n") {
		return credential.Secret{}, fmt.Errorf("%s: %s does not hold one secret and nothing else", key, path)
	}
	return credential.New(text), nil
}
