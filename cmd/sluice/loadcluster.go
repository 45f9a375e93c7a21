package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/cmd/internal/serve"
	fluss "github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/internal/durable"
)

// envStateDir is the environment's --state-dir.
const envStateDir = "SLUICE_STATE_DIR"

// clusterLoad says which cluster a load goes into without a server, and how it is
// reached. It stands in the job, so that --resume needs nothing else.
type clusterLoad struct {
	clusterFlags
	ZooKeeper []string `json:"zookeeper,omitempty"`
	Root      string   `json:"zookeeper_root,omitempty"`
	AuthFile  string   `json:"zookeeper_auth_file,omitempty"`
	StateDir  string   `json:"state_dir"`
}

// clusterLoadFlags are the flags of clusterLoad and of clusterFlags. How a cluster is
// reached may differ from one run of a load to the next; see given.
var clusterLoadFlags = []string{
	"cluster", "sasl-user", "sasl-password-file", "remote-dir", "region", "endpoint", "path-style",
	"zookeeper", "zookeeper-root", "zookeeper-auth-file", "state-dir",
}

func (c *clusterLoad) add(fs *pflag.FlagSet) {
	c.clusterFlags.add(fs, "load into")
	c.addStore(fs)
	fs.StringSliceVar(&c.ZooKeeper, "zookeeper", nil, "host:port of the cluster's ZooKeeper (repeatable; default: what the cluster says)")
	fs.StringVar(&c.Root, "zookeeper-root", "", "the cluster's zookeeper.path.root (default: what the cluster says, else /fluss)")
	fs.StringVar(&c.AuthFile, "zookeeper-auth-file", "", "file with user:password for ZooKeeper, where it wants one")
	fs.StringVar(&c.StateDir, "state-dir", "", "where a load into a cluster keeps what a repeated command goes on with (env "+envStateDir+"; default: sluice in the user's state directory)")
}

// check completes the flags; false means that there is no cluster among them.
func (c *clusterLoad) check(g *globals, fs *pflag.FlagSet) (bool, error) {
	if len(c.Bootstrap) == 0 {
		for _, name := range clusterLoadFlags {
			if fs.Changed(name) {
				return false, &usageError{fmt.Errorf("--%s is for a cluster: name it in --cluster", name)}
			}
		}
		return false, nil
	}
	if fs.Changed("credentials") && fs.Lookup("credentials").Value.String() != string(builder.Gateway) {
		return false, &usageError{errors.New("--credentials is for loads through a server: with --cluster this process stores the files itself")}
	}
	if (c.User == "") != (c.PasswordFile == "") {
		return false, &usageError{errors.New("--sasl-user and --sasl-password-file belong together")}
	}
	if c.StateDir == "" {
		c.StateDir = g.getenv(envStateDir)
	}
	if c.StateDir == "" {
		dir, err := serve.StateDir(g.getenv)
		if err != nil {
			return false, &usageError{fmt.Errorf("%w: name a directory in --state-dir", err)}
		}
		c.StateDir = dir
	}
	return true, c.absolute()
}

// absolute makes file names good for a run that starts elsewhere.
func (c *clusterLoad) absolute() error {
	for _, name := range []*string{&c.PasswordFile, &c.AuthFile, &c.StateDir, &c.RemoteDir} {
		if *name == "" || strings.HasPrefix(*name, "s3://") {
			continue
		}
		abs, err := filepath.Abs(*name)
		if err != nil {
			return err
		}
		*name = abs
	}
	return nil
}

// The settings of a cluster that a load needs.
const (
	remoteSetting = "remote.data.dir"
	nodesSetting  = "zookeeper.address"
	rootSetting   = "zookeeper.path.root"
)

// resolve completes what the flags say with what the cluster says of itself.
func (c *clusterLoad) resolve(ctx context.Context, j *job) (serve.Load, error) {
	l := serve.Load{
		Database: j.Target.Database, Table: j.Target.Table, Bootstrap: c.Bootstrap, User: c.User, PasswordFile: c.PasswordFile,
		ZooKeeper: c.ZooKeeper, ZooKeeperRoot: c.Root, AuthFile: c.AuthFile, Remote: c.RemoteDir,
		Region: c.Region, Endpoint: c.Endpoint, PathStyle: c.PathStyle,
		MayCreate: j.Options.Missing != "" || j.Options.ReplaceEmpty, MayDrop: j.Options.ReplaceEmpty || j.Options.RemoveCreated,
	}
	conns, err := c.dial(ctx)
	if err != nil {
		return l, err
	}
	defer conns.Close()
	told, err := conns.Settings(ctx, remoteSetting, nodesSetting, rootSetting)
	silent := "it does not"
	switch {
	case err == nil:
	case errors.Is(err, fluss.ErrUnsupported), fluss.CodeOf(err) == fluss.CodeAuthorization:
		silent = err.Error()
	default:
		return l, &clusterError{err}
	}
	if err := findRemote(&l, told, silent); err != nil {
		return l, err
	}
	return l, findNodes(&l, told, silent)
}

// findRemote fills in where the cluster keeps its files.
func findRemote(l *serve.Load, told map[string]string, silent string) (err error) {
	l.RemoteURI = told[remoteSetting]
	switch {
	case l.RemoteURI == "" && l.Remote == "":
		return &usageError{fmt.Errorf("where is the cluster's remote directory (%s)? It should say so itself, but: %s. Name it in --remote-dir", remoteSetting, silent)}
	case l.RemoteURI == "" && strings.HasPrefix(l.Remote, "s3://"):
		l.RemoteURI = l.Remote
	case l.RemoteURI == "":
		l.RemoteURI = "file://" + filepath.ToSlash(l.Remote)
	case l.Remote == "":
		if l.Remote, err = serve.RemoteHere(l.RemoteURI); err != nil {
			return &usageError{fmt.Errorf("%w in --remote-dir", err)}
		}
	}
	return nil
}

// findNodes fills in where the cluster's ZooKeeper is. Its address may end in a root of
// its own, below which the cluster's is.
func findNodes(l *serve.Load, told map[string]string, silent string) error {
	if len(l.ZooKeeper) > 0 {
		return nil
	}
	servers, chroot, _ := strings.Cut(told[nodesSetting], "/")
	if servers == "" {
		return &usageError{fmt.Errorf("where is the cluster's ZooKeeper? It should say so itself, but: %s. Name host:port in --zookeeper; a load reads epochs and draws snapshot ids there", silent)}
	}
	for s := range strings.SplitSeq(servers, ",") {
		l.ZooKeeper = append(l.ZooKeeper, strings.TrimSpace(s))
	}
	if l.ZooKeeperRoot == "" {
		l.ZooKeeperRoot = told[rootSetting]
	}
	if chroot != "" {
		l.ZooKeeperRoot = "/" + chroot + "/" + strings.TrimPrefix(cmp.Or(l.ZooKeeperRoot, "/fluss"), "/")
	}
	return nil
}

// localService is the service of a load, in this process. Its data are in a directory
// that belongs to the cluster's remote directory and the target, whatever the cluster is
// called:
//
//	loads/{digest}.lock       held while a process loads there
//	loads/{digest}/data       sessions and keys: until the load is over
//	loads/{digest}/gone       what was data, while it is being removed
//	loads/{digest}/log.jsonl  what the service says: until a load succeeds
type localService struct {
	*serve.Local
	dir  string
	lock *os.File
}

func (l *localService) logFile() string { return filepath.Join(l.dir, "log.jsonl") }
func (l *localService) dataDir() string { return filepath.Join(l.dir, "data") }
func (l *localService) goneDir() string { return filepath.Join(l.dir, "gone") }

// discard removes the data, of which a crash leaves all or nothing: half a store is
// none that opens.
func (l *localService) discard() error {
	if err := durable.Rename(l.dataDir(), l.goneDir()); err != nil {
		return err
	}
	durable.Point("load.discarded")
	return os.RemoveAll(l.goneDir())
}

// startLocal starts the service of a job; giveUp is for a run that ends it.
func startLocal(ctx context.Context, j *job, giveUp bool) (_ *localService, err error) {
	load, err := j.Cluster.resolve(ctx, j)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(strings.TrimSuffix(load.RemoteURI, "/") + "\n" + j.Target.String()))
	s := &localService{dir: filepath.Join(j.Cluster.StateDir, "loads", hex.EncodeToString(sum[:16]))}
	if err := s.acquire(j.Target); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(s.goneDir()); err != nil {
		return nil, errors.Join(fmt.Errorf("state directory: %w", err), s.lock.Close())
	}
	load.DataDir, load.LogFile, load.MayGiveUp = s.dataDir(), s.logFile(), giveUp
	if s.Local, err = serve.Start(ctx, load); err != nil {
		err = errors.Join(&clusterError{err}, s.lock.Close())
		if errors.Is(err, serve.ErrLoad) {
			err = &usageError{err}
		}
		return nil, err
	}
	return s, nil
}

// acquire locks the directory.
func (l *localService) acquire(target v1.Target) (err error) {
	if err := durable.MkdirAll(l.dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if l.lock, err = os.OpenFile(l.dir+".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if err := syscall.Flock(int(l.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(&conflictError{fmt.Errorf("another process on this machine loads %s: wait for it", target)}, l.lock.Close())
	}
	return nil
}

// conflictError is something that is in the way of a load.
type conflictError struct{ err error }

func (e *conflictError) Error() string { return e.err.Error() }
func (e *conflictError) Unwrap() error { return e.err }

// ExitCode is the exit code of the process.
func (e *conflictError) ExitCode() int { return exitConflict }

// connectLocal makes the client of a load into a cluster.
func (b *build) connectLocal(ctx context.Context, j *job) (err error) {
	if b.local, err = startLocal(ctx, j, b.endsStuck); err != nil {
		return err
	}
	// It checks the configuration only, which is ours.
	b.client, err = builder.Connect(builder.Config{
		URL: b.local.URL(), Identity: client.TokenFunc(b.local.Token), UserAgent: userAgent(), Events: b.g.commitEvents(), Credentials: builder.Gateway,
	})
	return err
}

// endLocalTimeout bounds the look at what is left when a load ends.
const endLocalTimeout = 15 * time.Second

// endLocal stops the service, and removes its data unless a load is under way that a
// repeated command finishes.
func (b *build) endLocal(failed error) error {
	l := b.local
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endLocalTimeout)
	defer cancel()
	sessions, err := b.sessions(ctx)
	over := err == nil
	for _, s := range sessions {
		over = over && s.Phase == phaseDone
	}
	err = l.Close()
	switch {
	case over && failed == nil:
		err = errors.Join(err, l.discard(), os.RemoveAll(l.dir))
	case over:
		err = errors.Join(err, l.discard())
	}
	return errors.Join(err, l.lock.Close())
}

// Of sessions, as the service names them.
const (
	phaseFrozen     = "frozen"
	phasePublishing = "publishing"
	phaseDone       = "done"
	stateBegun      = "BEGUN"
	stateCommitted  = "COMMITTED"
)

// sessions are those that this machine began for the target.
func (b *build) sessions(ctx context.Context) ([]v1.Session, error) {
	return listSessions(ctx, b.client.API(), client.SessionFilter{Target: &b.job.Target}, 0)
}

// settle ends what an earlier run began and cannot be resumed, because its work
// directory is gone: what is not decided is given up, what is decided gets finished. It
// returns the session if this very command was done already.
func (b *build) settle(ctx context.Context) (*v1.Session, error) {
	sessions, err := b.sessions(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sessions {
		before := s.Phase
		if s.Phase == phasePublishing && b.endsStuck {
			return nil, b.endStuck(ctx, s)
		}
		if s.Phase != phaseDone {
			if s, err = b.settleOne(ctx, s); err != nil {
				return nil, err
			}
		}
		if s.State == stateCommitted && b.job.began(s.SubmissionID) {
			return &s, nil
		}
		if before != phaseDone {
			b.g.remark("an earlier load of %s, which was cut off, is over now: %s", s.Target, s.State)
		}
	}
	if b.endsStuck {
		return nil, nothingStuck(b.job.Target)
	}
	return nil, nil
}

func nothingStuck(target v1.Target) error {
	return &conflictError{fmt.Errorf("--give-up: no load of %s is stuck, and none was ended: repeat the command without it", target)}
}

// endStuck ends a decided session as it is. The answer is an error all the same: the
// load is not what it should have become.
func (b *build) endStuck(ctx context.Context, s v1.Session) error {
	ended, err := b.client.API().GiveUp(ctx, s.ID, s.Epoch)
	if err != nil {
		return err
	}
	over := &conflictError{fmt.Errorf("session %s of %s was given up: %s", s.ID, s.Target, ended.AbortMessage)}
	return &hinted{over, "to load it anew, drop the table or partition, create it again, and repeat the command without --give-up"}
}

// decided looks at the session of a job that is gone on with. One that is being
// published is waited for; when it is over, so is the job.
func (b *build) decided(ctx context.Context) (*v1.Session, error) {
	id := b.job.Context.Handle.BulkLoadID
	s, err := b.client.API().Session(ctx, id)
	if err != nil && problemCode(err) == v1.CodeNotFound {
		return nil, &usageError{fmt.Errorf("the state directory %s knows nothing of the load in %s: name the --state-dir of the first run, or delete %s and begin anew", b.job.Cluster.StateDir, b.dir.path, b.dir.file(jobFile))}
	}
	if err != nil {
		return nil, err
	}
	if b.endsStuck {
		if s.Phase != phasePublishing {
			return nil, nothingStuck(b.job.Target)
		}
		err := b.endStuck(ctx, *s)
		if over := (*conflictError)(nil); errors.As(err, &over) {
			err = errors.Join(err, b.clear())
		}
		return nil, err
	}
	if s.Phase == phaseFrozen && s.ValidationError == "" || s.Phase == phasePublishing {
		p := b.g.newProgress("committing")
		*s, err = b.await(ctx, *s)
		p.close()
		if err != nil {
			return nil, err
		}
	}
	switch {
	case s.Phase != phaseDone:
		return nil, nil
	case s.State == stateCommitted:
		return s, nil
	}
	ended := &conflictError{fmt.Errorf("the load that an earlier run began is over: session %s was aborted: %s %s", id, s.AbortReason, s.AbortMessage)}
	return nil, errors.Join(&hinted{ended, "repeat the command, and it begins anew"}, b.clear())
}

// settlePause is the time between two looks at a session that is being finished.
const settlePause = 200 * time.Millisecond

func (b *build) settleOne(ctx context.Context, s v1.Session) (v1.Session, error) {
	if s.State == stateBegun {
		// Refused when it is being committed; what becomes of it is seen below.
		if _, err := b.client.API().Abort(ctx, s.ID, s.Epoch); client.Unanswered(err) {
			return s, err
		}
	}
	return b.await(ctx, s)
}

// await waits until a session is over, or needs somebody to commit it again. One that is
// being published is committed again, which tells why it does not end.
func (b *build) await(ctx context.Context, s v1.Session) (v1.Session, error) {
	for {
		now, err := b.client.API().Session(ctx, s.ID)
		if err != nil {
			return s, err
		}
		if now.Phase == phaseDone || now.ValidationError != "" && now.Phase == phaseFrozen {
			return *now, nil
		}
		if now.Phase == phasePublishing {
			now, err := b.client.API().Commit(ctx, now.ID, v1.CommitRequest{Epoch: now.Epoch, Manifest: now.Manifest})
			switch {
			case err == nil:
				return *now, nil
			case problemCode(err) != v1.CodeSessionEnded: // its end is what is looked at next
				return s, err
			}
		}
		select {
		case <-time.After(settlePause):
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// submission is an id for a load that names the command: began finds it again.
func (j *job) submission() string { return j.digest() + "." + uuid.NewString() }

// began says whether a session was begun by the same command.
func (j *job) began(submission string) bool {
	digest, _, _ := strings.Cut(submission, ".")
	return submission == j.SubmissionID || digest == j.digest()
}

// digest is of what the command line says, and where.
func (j *job) digest() string {
	b, err := json.Marshal([]any{j.Dir, j.Args, j.Flags})
	if err != nil {
		panic(err) // strings only
	}
	return checksum(b)[:32]
}

// ofCluster replaces hints that speak of a server. The session may be held from another
// state directory, whose fence nobody else may take away.
func (b *build) ofCluster(err error) error {
	f := describe(err)
	hint := ""
	switch f.Code {
	case v1.CodeTargetOwned:
		hint = "another load holds the target, from another machine or state directory: repeat that command, with its --state-dir, and it is finished or given up"
	case v1.CodeNotFound:
		hint = "is the name right? Tables are created by the cluster's own clients; --missing creates a partition"
	case v1.CodePublicationStuck:
		hint = "mend what stands above and repeat the command. A bucket that others wrote to is never loaded, even if they delete their rows: end the load as it is with the same command and --give-up, drop the table or partition, and load it anew"
	case v1.CodeInvalidManifest:
		// The session stays frozen; a repeated command that finds no work gives it up.
		hint = "the files do not fit the load; what is wrong stands above: delete " + b.dir.path + " and repeat the command, which gives this load up and begins anew; --resume finds the same files"
	case v1.CodeInternal, v1.CodeClusterUnavailable, v1.CodeTimeout:
		hint = "what happened stands in " + b.local.logFile()
	case v1.CodeTargetRefused: // the reason is the message's, and it may be one of many
	default:
		return err
	}
	return &hinted{err, hint}
}
