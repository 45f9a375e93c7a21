package env

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	zooKeeperClass    = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"
	coordinatorClass  = "org.apache.fluss.server.coordinator.CoordinatorServer"
	tabletServerClass = "org.apache.fluss.server.tablet.TabletServer"
	tieringClass      = "org.apache.fluss.flink.tiering.FlussLakeTieringEntrypoint"
	loginModule       = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule"
)

// writeFiles makes the directories and configurations of all processes.
func (f *Fluss) writeFiles() error {
	for _, d := range []string{f.RemotePath(), f.Warehouse(), f.plugins()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	if err := f.linkPlugins(); err != nil {
		return err
	}
	zk := node{ZooKeeper, 0}
	// A tick of a tenth of the session lets ZooKeeper take SessionTimeout as it is: it
	// allows 2 to 20 ticks. The four-letter words tell await who is registered.
	if err := f.writeConfig(zk, "zoo.cfg", "=", map[string]string{
		"dataDir": filepath.Join(f.nodeDir(zk), "data"), "clientPort": fmt.Sprint(f.ports[zk].client), "clientPortAddress": "127.0.0.1",
		"maxClientCnxns": "0", "admin.enableServer": "false", "tickTime": fmt.Sprint(f.o.SessionTimeout.Milliseconds() / 10),
		"4lw.commands.whitelist": "ruok, dump",
	}); err != nil {
		return err
	}
	for _, n := range f.servers() {
		if err := f.writeConfig(n, "server.yaml", ": ", f.serverConfig(n)); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fluss) writeConfig(n node, name, sep string, conf map[string]string) error {
	dir := f.nodeDir(n)
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		return err
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(conf)) {
		fmt.Fprintf(&b, "%s%s%s\n", k, sep, conf[k])
	}
	return os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o600)
}

func (f *Fluss) serverConfig(n node) map[string]string {
	c := map[string]string{
		"zookeeper.address":                f.ZooKeeper(),
		"zookeeper.client.session-timeout": millis(f.o.SessionTimeout),
		"bind.listeners":                   "FLUSS://" + loopback(f.ports[n].client),
		"data.dir":                         filepath.Join(f.nodeDir(n), "data"),
		"remote.data.dir":                  f.RemoteDir(),
		"kv.snapshot.interval":             millis(f.o.SnapshotInterval),
		"server.buffer.memory-size":        "128mb",
	}
	if n.role == TabletServer {
		c["tablet-server.id"] = fmt.Sprint(n.n)
	}
	if f.o.SASL {
		f.addSASL(c, n)
	}
	if s := f.o.S3; s != nil {
		maps.Copy(c, map[string]string{
			"s3.endpoint": s.Endpoint, "s3.region": s.Region, "s3.path-style-access": "true",
			"s3.access-key": s.Admin.AccessKeyID, "s3.secret-key": s.Admin.SecretAccessKey.Reveal(),
			// For what clients read themselves.
			"s3.assumed.role.arn": s.RoleARN, "s3.assumed.role.sts.endpoint": s.Endpoint,
		})
	}
	if f.o.Lake {
		maps.Copy(c, f.lakeConfig(""))
	}
	maps.Copy(c, f.o.Config)
	return c
}

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func (f *Fluss) addSASL(c map[string]string, n node) {
	users := loginModule + " required"
	for _, u := range append(slices.Collect(maps.Values(f.Users)), f.Admin) {
		users += " user_" + u.Name + `="` + u.Password.Reveal() + `"`
	}
	maps.Copy(c, map[string]string{
		"bind.listeners":                   fmt.Sprintf("INTERNAL://%s, CLIENT://%s", loopback(f.ports[n].internal), loopback(f.ports[n].client)),
		"internal.listener.name":           "INTERNAL",
		"security.protocol.map":            "CLIENT:sasl",
		"security.sasl.enabled.mechanisms": "plain",
		"security.sasl.plain.jaas.config":  users + ";",
	})
	if f.o.Authorizer {
		c["authorizer.enabled"] = "true"
		c["super.users"] = "User:" + f.Admin.Name
	}
}

func (f *Fluss) lakeConfig(prefix string) map[string]string {
	return map[string]string{
		prefix + "datalake.format":           "paimon",
		prefix + "datalake.paimon.metastore": "filesystem",
		prefix + "datalake.paimon.warehouse": "file://" + f.Warehouse(),
	}
}

func (f *Fluss) plugins() string { return filepath.Join(f.dir, "plugins") }

// linkPlugins gives the servers the file systems and lakes they need, and no more:
// each one loaded costs start-up time.
func (f *Fluss) linkPlugins() error {
	if f.o.S3 != nil {
		if err := linkJars(filepath.Join(f.jars, "s3"), filepath.Join(f.plugins(), "s3")); err != nil {
			return err
		}
	}
	if f.o.Lake {
		return linkJars(filepath.Join(f.lake, "plugin"), filepath.Join(f.plugins(), "paimon"))
	}
	return nil
}

func linkJars(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the process of a node.
func (f *Fluss) launch(ctx context.Context, n node) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := f.process(n); err != nil {
		return err
	}
	dir := f.nodeDir(n)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	p, err := spawn(dir, "log", []string{"FLUSS_PLUGINS_DIR=" + f.plugins()}, f.java, f.command(n)...)
	if err != nil {
		return fmt.Errorf("%s: %w", n, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.procs[n], f.paused[n] = p, false
	return nil
}

// command are the arguments of java.
func (f *Fluss) command(n node) []string {
	dir := f.nodeDir(n)
	heap := map[Role]string{ZooKeeper: "96m", Coordinator: f.o.CoordinatorHeap, TabletServer: f.o.TabletServerHeap, Tiering: tieringHeap}[n.role]
	flags := append(javaFlags(dir, heap), "-Dorg.slf4j.simpleLogger.log.org.apache.fluss.shaded=warn",
		"-Dorg.slf4j.simpleLogger.log.org.apache.fluss.config=warn") // it would print passwords
	jars := classPath(filepath.Join(f.jars, "server"))
	switch n.role {
	case ZooKeeper:
		return append(flags, "-cp", jars, zooKeeperClass, filepath.Join(dir, "zoo.cfg"))
	case Coordinator:
		return append(flags, "-cp", jars, coordinatorClass, "--configDir", dir)
	case TabletServer:
		return append(flags, "-XX:MaxDirectMemorySize=1g", "-cp", jars, tabletServerClass, "--configDir", dir)
	default:
		return f.tieringCommand(flags)
	}
}
