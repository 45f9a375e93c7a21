package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/internal/tabular"
)

// buildFlags are common to build and load.
type buildFlags struct {
	input       inputFlags
	workDir     string
	resume      bool
	memory      string
	parallelism int
	compression string
	checkpoint  time.Duration
	ttl         time.Duration
}

func (f *buildFlags) add(fs *pflag.FlagSet) {
	f.input.addShape(fs)
	f.input.addErrors(fs)
	addWay(fs)
	fs.StringVar(&f.workDir, "work-dir", defaultWorkDir, "directory for sort runs, finished files and checkpoints")
	fs.BoolVar(&f.resume, "resume", false, "go on with what an earlier run left in the work directory")
	fs.StringVar(&f.memory, "memory", "256MiB", "memory for rows that wait to be sorted")
	fs.IntVar(&f.parallelism, "parallelism", 0, "number of cores to use (default: all)")
	fs.StringVar(&f.compression, "compression", "snappy", "of the files built: snappy, zstd or none")
	fs.DurationVar(&f.checkpoint, "checkpoint-interval", 5*time.Minute, "how often to make sure that a crash loses no more than this; 0 for never")
	fs.DurationVar(&f.ttl, "token-ttl", 0, "wish for the lifetime of each token (default: the server's)")
}

// job fills in what build and load share.
func (f *buildFlags) job(g *globals, command string, fs *pflag.FlagSet, inputs []string) (*job, error) {
	if len(inputs) == 0 {
		return nil, &usageError{errors.New("no input: name files, patterns, or - for the standard input")}
	}
	if _, err := f.input.options(g); err != nil {
		return nil, err
	}
	memory, err := parseSize(f.memory)
	if err != nil {
		return nil, err
	}
	way, err := g.way(fs)
	if err != nil {
		return nil, err
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	j := &job{Version: jobVersion, Command: command, Dir: here, Inputs: inputs, Input: f.input, Memory: memory,
		Parallelism: f.parallelism, Compression: f.compression, Checkpoint: f.checkpoint, TTL: f.ttl, Credentials: way}
	if _, err := j.openOptions("", nil, builder.Events{}); err != nil {
		return nil, &usageError{err}
	}
	return j, nil
}

// given lists the flags of a command line that a job cannot do without: those that
// decide what comes out. See retune for the others.
func given(fs *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	fs.Visit(func(fl *pflag.Flag) {
		switch fl.Name {
		case "resume", "work-dir", "url", "give-up", "identity-token-file", "dev-subject", "dev-group", "output", "quiet":
		case "memory", "parallelism", "checkpoint-interval", "token-ttl", "credentials":
		default:
			if !slices.Contains(clusterLoadFlags, fl.Name) {
				out[fl.Name] = fl.Value.String()
			}
		}
	})
	return out
}

// repeats refuses to resume with other inputs or options than the first run's. They
// need not be repeated.
func (j *job) repeats(flags map[string]string, args []string) error {
	if len(args) > 0 && !slices.Equal(args, j.Args) {
		return &usageError{fmt.Errorf("the first run was given %q: resume it with the same, or with --resume alone", j.Args)}
	}
	for name, value := range flags {
		if was, ok := j.Flags[name]; !ok || was != value {
			return &usageError{fmt.Errorf("--%s %s differs from the first run: resume it with the same options, or with --resume alone", name, value)}
		}
	}
	return nil
}

// retune takes over the flags that say how the work is done, which a resumed run may
// give anew: too little memory must not be the end of a job.
func (j *job) retune(g *globals, fs *pflag.FlagSet, f *buildFlags) error {
	if fs.Changed("credentials") || j.Credentials == "" {
		way, err := g.way(fs)
		if err != nil {
			return err
		}
		j.Credentials = way
	}
	if fs.Changed("memory") {
		memory, err := parseSize(f.memory)
		if err != nil {
			return err
		}
		j.Memory = memory
	}
	if fs.Changed("parallelism") {
		j.Parallelism = f.parallelism
	}
	if fs.Changed("checkpoint-interval") {
		j.Checkpoint = f.checkpoint
	}
	if fs.Changed("token-ttl") {
		j.TTL = f.ttl
	}
	return nil
}

func newBuildCommand(g *globals) *cobra.Command {
	var f buildFlags
	var file, session, buckets, result string
	c := &cobra.Command{
		Use:   "build (--context FILE | --session ID) [--buckets LIST] INPUT...",
		Short: "Build buckets of a load, as one of its workers",
		Long: `Build buckets of a load as one of its workers, with a token of your own that covers
exactly these buckets. Rows of other buckets are passed over, so that all workers can
read the same inputs. The result (--result, or the standard output) is a small JSON
document for ` + "`sluice session commit`" + `.

Interrupted (Ctrl-C), crashed, out of disk space? ` + "`sluice build --resume`" + ` goes on.`,
		Example: `  sluice session begin shop.orders --context orders.json
  sluice build --context orders.json --buckets 0-1 --work-dir w0 --result r0.json 'orders/*.parquet'
  sluice build --context orders.json --buckets 2-3 --work-dir w1 --result r1.json 'orders/*.parquet'
  sluice session commit --context orders.json r0.json r1.json`,
	}
	fs := c.Flags()
	f.add(fs)
	fs.StringVar(&file, "context", "", "build context file")
	fs.StringVar(&session, "session", "", "session id, instead of --context")
	fs.StringVar(&buckets, "buckets", "", "buckets to build, for example 0-1,3 (default: all)")
	fs.StringVar(&result, "result", "", "write the result to this file (default: print it)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		b := &build{g: g}
		if f.resume {
			return b.resume(cmd.Context(), &f, "build", fs, args, b.finishBuild)
		}
		j, err := f.job(g, "build", fs, args)
		if err != nil {
			return err
		}
		if j.Buckets, err = parseBuckets(buckets); err != nil {
			return err
		}
		j.Result, j.Args, j.Flags = result, args, given(fs)
		return b.begin(cmd.Context(), f.workDir, j, func(ctx context.Context) error {
			j.Context, err = g.contextOf(ctx, b.client, file, session)
			if err == nil {
				j.Target = j.Context.Handle.Target
			}
			return err
		}, b.finishBuild)
	}
	return c
}

func newLoadCommand(g *globals) *cobra.Command {
	var f loadFlags
	c := &cobra.Command{
		Use:   "load DATABASE.TABLE[/PARTITION] INPUT...",
		Short: "Load files into an empty table or partition: begin, build and commit",
		Long: `Load files into an empty table or partition: begin a session, build all buckets,
commit. Readers see all rows at once or none. The last row of a key wins.

With --cluster the load goes into a live Fluss cluster without a server: this process
runs the service itself, on loopback and for this load only. Readers see the buckets
appear one after the other unless --visibility atomic is asked for. A command that was
killed is repeated as it was: it goes on, or gives up what cannot be gone on with.

Interrupted (Ctrl-C), crashed, out of disk space? ` + "`sluice load --resume`" + ` goes on. Bad
input ends the load and gives the session up, so that it can be begun anew.`,
		Example: `  sluice load shop.orders 'orders/*.parquet'
  zcat dump.csv.gz | sluice load geo.places --format csv --on-error skip -
  sluice load shop.orders/2026-09-01 orders.jsonl --other-partitions skip
  sluice load shop.orders 'orders/*.parquet' --cluster fluss-coordinator:9123`,
	}
	fs := c.Flags()
	f.add(fs)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		b := &build{g: g, endsStuck: f.giveUp}
		cluster, err := f.cluster.check(g, fs)
		if err != nil {
			return err
		}
		if cluster {
			b.cluster = &f.cluster
		}
		if f.giveUp && !cluster && !f.resume {
			return &usageError{errors.New("--give-up ends a load into a cluster: name it in --cluster, or give --resume; through a server it is `sluice session abort --give-up`")}
		}
		if f.resume {
			return b.resume(cmd.Context(), &f.buildFlags, "load", fs, args, b.finishLoad)
		}
		j, err := f.load(g, fs, args)
		if err != nil {
			return err
		}
		j.Cluster = b.cluster
		return b.begin(cmd.Context(), f.workDir, j, b.beginLoad, b.finishLoad)
	}
	return c
}

// loadFlags are those of load.
type loadFlags struct {
	buildFlags
	table, partition     string
	inputs               []string
	submission, handOver string
	timeout              time.Duration
	options              loadOptions
	cluster              clusterLoad
	giveUp               bool
}

func (f *loadFlags) add(fs *pflag.FlagSet) {
	f.buildFlags.add(fs)
	fs.StringVar(&f.table, "table", "", "the target as a flag: DATABASE.TABLE[/PARTITION]; then all arguments are input files")
	fs.StringVar(&f.partition, "partition", "", "the target's partition, instead of /PARTITION")
	fs.StringArrayVar(&f.inputs, "input", nil, "an input file as a flag (repeatable)")
	fs.StringVar(&f.submission, "submission-id", "", "your own id for this load (default: a random one)")
	fs.DurationVar(&f.timeout, "timeout", 0, "how long the build may take (default: the server's, 24h)")
	addHandOver(fs, &f.handOver)
	f.options.add(fs)
	f.cluster.add(fs)
	fs.BoolVar(&f.giveUp, "give-up", false, "with --cluster: end an earlier load of the target whose publication is stuck, and leave what was published as it is")
}

// target reads the target, and what is left of the arguments.
func (f *loadFlags) target(args []string) (v1.Target, []string, error) {
	name := f.table
	if name == "" {
		if len(args) == 0 {
			return v1.Target{}, nil, &usageError{errors.New("load what? name a target and its input files")}
		}
		name, args = args[0], args[1:]
	}
	if f.partition != "" {
		name += "/" + f.partition
	}
	target, err := parseTarget(name)
	return target, args, err
}

// load is the job of a command line.
func (f *loadFlags) load(g *globals, fs *pflag.FlagSet, args []string) (*job, error) {
	target, inputs, err := f.target(args)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkTimeout(f.timeout), checkHandOver(f.handOver)); err != nil {
		return nil, err
	}
	options, err := f.options.read()
	if err != nil {
		return nil, err
	}
	j, err := f.job(g, "load", fs, append(slices.Clone(f.inputs), inputs...))
	if err != nil {
		return nil, err
	}
	j.Target, j.SubmissionID, j.Timeout, j.HandOver, j.Options, j.Args, j.Flags = target, f.submission, f.timeout, f.handOver, options, args, given(fs)
	if j.SubmissionID == "" {
		j.SubmissionID = j.submission()
	}
	return j, nil
}

// build is one run of a job.
type build struct {
	g      *globals
	client *builder.Client
	dir    *workDir
	job    *job

	cluster *clusterLoad  // of this run's flags, nil for none
	local   *localService // nil for a load through a server

	endsStuck bool // this run is to end a load that is stuck, and nothing else

	resumed  bool
	begun    bool // the session began in this run
	session  *builder.Session
	rejects  *tabular.RejectFile // nil unless bad records are skipped
	position jobPosition
	started  time.Time
	read     int64 // records of this run
	progress *progress

	// Counters of the builder's events.
	mu      sync.Mutex
	buckets map[int]builder.Progress
}

// begin starts a new job.
func (b *build) begin(ctx context.Context, dir string, j *job, prepare, finish func(context.Context) error) (err error) {
	if err := b.open(dir); err != nil {
		return err
	}
	defer b.dir.close()
	if b.dir.unfinished() && j.Cluster != nil && b.repeated(j) {
		b.g.remark("an earlier run of this command was cut off: going on with it")
		return b.goOn(ctx, finish)
	}
	if b.dir.unfinished() {
		return &usageError{fmt.Errorf("%s holds an unfinished job: go on with it (--resume), name another directory in --work-dir, or delete it", dir)}
	}
	// Inputs that are not there should fail before anything begins.
	if _, err := tabular.Expand(j.Inputs); err != nil {
		return &badInput{err}
	}
	b.job, j.MadeDir = j, b.dir.made
	if err := b.connect(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.endLocal(err)) }()
	if b.local != nil {
		if done, err := b.settle(ctx); done != nil || err != nil {
			return b.done(done, err)
		}
	}
	if err := b.openRejects(false); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.closeRejects()) }()
	if j.Command == "load" { // so that a lost answer of begin can be asked for again
		if err := b.dir.store(jobFile, j); err != nil {
			return err
		}
	}
	if err := prepare(ctx); err != nil {
		if !unknownOutcome(err) {
			err = errors.Join(err, b.dir.clear())
		}
		return b.explain(err)
	}
	if err := b.dir.store(jobFile, j); err != nil {
		return err
	}
	return b.run(ctx, nil, finish)
}

// resume goes on with a job.
func (b *build) resume(ctx context.Context, f *buildFlags, command string, fs *pflag.FlagSet, args []string, finish func(context.Context) error) (err error) {
	dir := f.workDir
	if err := b.open(dir); err != nil {
		return err
	}
	defer b.dir.close()
	j, cp, err := b.dir.load()
	if err != nil {
		return err
	}
	if err := j.repeats(given(fs), args); err != nil {
		return err
	}
	if j.Command != command {
		return &usageError{fmt.Errorf("%s holds a job of `sluice %s`: resume it with that", dir, j.Command)}
	}
	if err := j.checkPlace(); err != nil {
		return err
	}
	if err := j.retune(b.g, fs, f); err != nil {
		return err
	}
	return b.goOnWith(ctx, j, cp, finish)
}

// repeated reports whether the job in the work directory is of the same command.
func (b *build) repeated(j *job) bool {
	old, _, err := b.dir.load()
	return err == nil && old.Command == j.Command && old.Cluster != nil && old.Dir == j.Dir && slices.Equal(old.Args, j.Args) && maps.Equal(old.Flags, j.Flags)
}

// goOn resumes the job of the work directory.
func (b *build) goOn(ctx context.Context, finish func(context.Context) error) error {
	j, cp, err := b.dir.load()
	if err != nil {
		return err
	}
	return b.goOnWith(ctx, j, cp, finish)
}

func (b *build) goOnWith(ctx context.Context, j *job, cp *builder.Checkpoint, finish func(context.Context) error) (err error) {
	if b.cluster != nil && j.Cluster != nil {
		j.Cluster = b.cluster
	}
	b.job, b.resumed, b.dir.made = j, true, j.MadeDir
	if err := b.connect(ctx); err != nil {
		return b.explain(err)
	}
	defer func() { err = errors.Join(err, b.endLocal(err)) }()
	if b.endsStuck && (b.local == nil || j.Context == nil) {
		return nothingStuck(j.Target)
	}
	if b.local != nil && j.Context != nil {
		if done, err := b.decided(ctx); done != nil || err != nil {
			return b.done(done, err)
		}
	}
	if cp != nil {
		if err := json.Unmarshal(cp.Position, &b.position); err != nil {
			return fmt.Errorf("%s: %w", b.dir.file(checkpointFile), err)
		}
	}
	if err := b.openRejects(true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.closeRejects()) }()
	if j.Context == nil {
		if err := b.beginLoad(ctx); err != nil {
			return b.explain(err)
		}
		if err := b.dir.store(jobFile, j); err != nil {
			return err
		}
	}
	return b.run(ctx, cp, finish)
}

func (b *build) open(dir string) (err error) {
	b.started = b.g.now()
	b.dir, err = openWorkDir(dir)
	return err
}

// connect makes the job's client, and for a load into a cluster its service.
func (b *build) connect(ctx context.Context) (err error) {
	if b.job.Cluster != nil {
		return b.connectLocal(ctx, b.job)
	}
	b.client, err = b.g.connectBy(b.job.Credentials, b.g.commitEvents())
	return err
}

// done prints what an earlier run of the same command has loaded.
func (b *build) done(s *v1.Session, err error) error {
	if err != nil {
		return b.explain(err)
	}
	b.g.remark("an earlier run of this command has loaded %s", s.Target)
	if err := b.clear(); err != nil {
		return err
	}
	res := loadResult{SessionID: s.ID, Target: s.Target, Committed: s.Stats}
	if s.Stats != nil {
		res.Rows = s.Stats.Rows
	}
	return b.printLoaded(res)
}

// beginLoad begins the session of a load.
func (b *build) beginLoad(ctx context.Context) error {
	bc, err := b.client.Begin(ctx, builder.BeginRequest{Target: b.job.Target, SubmissionID: b.job.SubmissionID, BuildTimeout: b.job.Timeout, HandOver: b.job.HandOver, Options: b.job.Options})
	if err != nil {
		return err
	}
	b.job.Context, b.begun = bc, true
	b.g.remark("session %s of %s, %d buckets", bc.Handle.BulkLoadID, bc.Handle.Target, len(bc.SnapshotIDs))
	if bc.Plan.Visibility != "" {
		b.g.remark("publication %s", publicationText(bc.Plan.Publication, bc.Plan.Visibility))
	}
	return nil
}

// run builds the buckets and finishes the job.
func (b *build) run(ctx context.Context, cp *builder.Checkpoint, finish func(context.Context) error) error {
	err := b.work(ctx, cp, finish)
	if err == nil {
		return b.clear()
	}
	return b.explain(err)
}

// clear forgets the job, and removes what runs that were killed have left of it.
func (b *build) clear() error {
	var errs []error
	if c := b.job.Context; c != nil {
		left, _ := filepath.Glob(b.dir.file(builder.WorkDirPattern(c))) // the pattern is good
		for _, dir := range left {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(append(errs, b.dir.clear())...)
}

func (b *build) work(ctx context.Context, cp *builder.Checkpoint, finish func(context.Context) error) (err error) {
	o, err := b.job.openOptions(b.dir.path, cp, builder.Events{Progress: b.observe})
	if err != nil {
		return err
	}
	b.session, err = b.client.Open(ctx, b.job.Context, o)
	if errors.Is(err, builder.ErrRequest) {
		return errors.Join(err, b.dir.clear()) // resuming would ask for the same
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end(err)) }()
	b.progress = b.g.newProgress("reading")
	defer b.progress.close()
	if !b.position.Complete {
		if err := b.readInputs(ctx); err != nil {
			return err
		}
	}
	return finish(ctx)
}

// end closes the session. What a later run can go on with is kept.
func (b *build) end(failed error) error {
	if failed == nil || resumable(failed) {
		return b.session.Close()
	}
	return errors.Join(b.session.Discard(), b.clear())
}

// unknownOutcome reports whether a call may have had its effect although it failed: a
// server that fails in the middle, of a full disk for example, finishes later what it
// has stored.
func unknownOutcome(err error) bool {
	var e *client.Error
	failed := errors.As(err, &e) && (e.Temporary() || e.StatusCode >= http.StatusInternalServerError)
	return client.Unanswered(err) || failed || errors.Is(err, context.Canceled)
}

// resumable reports whether the same job may succeed later: it is not the input
// that is bad, and the session is not over. In doubt the work is kept.
func resumable(err error) bool {
	f := describe(err)
	var ended *builder.EndedError
	switch {
	case f.ExitCode == exitInput, isUsage(err), errors.As(err, &ended), errors.Is(err, builder.ErrConflict):
		return false
	}
	return f.Code != v1.CodeSessionEnded && f.Code != v1.CodeStaleEpoch
}

// badInput is input that cannot be read at all.
type badInput struct{ err error }

func (e *badInput) Error() string { return e.err.Error() }
func (e *badInput) Unwrap() error { return e.err }

// ExitCode is the exit code of the process.
func (e *badInput) ExitCode() int { return exitInput }

// openRejects opens the reject file. A new job must not touch one that exists.
func (b *build) openRejects(resume bool) (err error) {
	if b.job.Input.OnError != "skip" {
		return nil
	}
	name := b.job.Input.Rejects
	if name == "" {
		name = defaultRejects
	}
	if resume {
		b.rejects, err = tabular.ResumeRejects(name, b.position.Rejects)
	} else {
		b.rejects, err = tabular.CreateRejects(name)
	}
	return err
}

func (b *build) closeRejects() error {
	if b.rejects == nil {
		return nil
	}
	return b.rejects.Close()
}

// readInputs adds the rows of all inputs that are not added yet.
func (b *build) readInputs(ctx context.Context) error {
	o, err := b.job.Input.options(b.g)
	if err != nil {
		return err
	}
	o.Table, o.Partition, o.Parallelism = b.session.Table(), b.job.Target.Partition, b.job.Parallelism
	if b.position.Input.Inputs != nil {
		o.Start = &b.position.Input
	}
	r, err := tabular.Open(b.job.Inputs, o)
	if err != nil && !b.resumed {
		return &badInput{err}
	}
	if err != nil {
		return err // the work of the first run stays
	}
	defer r.Close()
	b.progress.phase("reading", func(s *status) {
		p := r.Progress()
		s.bytes, s.total = p.Read, p.Total
	})
	next := b.g.now().Add(b.job.Checkpoint)
	for {
		batch, err := r.Next(ctx)
		if err == io.EOF {
			b.position.Complete = true
			return nil
		}
		if err == nil {
			err = b.add(batch)
		}
		if err != nil {
			return b.save(ctx, err)
		}
		if b.job.Checkpoint > 0 && b.g.now().After(next) {
			if err := b.checkpoint(ctx); err != nil {
				return err
			}
			next = b.g.now().Add(b.job.Checkpoint)
		}
	}
}

// save takes a checkpoint of what was done before a failure that a later run may
// overcome. If that fails too, the checkpoint before it stays good.
func (b *build) save(ctx context.Context, failed error) error {
	if !resumable(failed) {
		return failed
	}
	if err := b.checkpoint(context.WithoutCancel(ctx)); err != nil && ctx.Err() != nil {
		return errors.Join(failed, err)
	}
	return failed
}

// add adds one batch, all or nothing as far as the position is concerned.
func (b *build) add(batch *tabular.Batch) error {
	defer batch.Release()
	for _, x := range batch.Rejects {
		if err := b.rejects.Write(x); err != nil {
			return fmt.Errorf("reject file: %w", err)
		}
	}
	for _, rec := range batch.Records {
		if err := b.session.WriteRecord(rec); err != nil {
			return err
		}
	}
	b.position.Input = batch.Position
	b.position.Others += batch.Others
	b.read += batch.Count
	b.progress.set(func(s *status) {
		s.rows = b.read
		if b.rejects != nil {
			s.rejected = b.rejects.Count()
		}
	})
	return nil
}

// checkpoint makes the work so far survive this process.
func (b *build) checkpoint(ctx context.Context) error {
	if b.rejects != nil {
		mark, err := b.rejects.Sync()
		if err != nil {
			return err
		}
		b.position.Rejects = mark
	}
	position, err := json.Marshal(b.position)
	if err != nil {
		return err
	}
	cp, err := b.session.Checkpoint(ctx, position)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return b.dir.store(checkpointFile, cp)
}

// buildFiles sorts, writes and stores the buckets.
func (b *build) buildFiles(ctx context.Context) ([]v1.BucketFiles, error) {
	b.progress.phase("sorting and writing", b.followBuckets)
	files, err := b.session.Finish(ctx)
	if err != nil {
		return nil, b.save(ctx, err)
	}
	return files, nil
}

// observe keeps the counters of the builder.
func (b *build) observe(p builder.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buckets == nil {
		b.buckets = map[int]builder.Progress{}
	}
	b.buckets[p.Bucket] = p
}

// followBuckets sums up the counters.
func (b *build) followBuckets(s *status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.rows, s.bytes, s.total = 0, 0, -1
	done := 0
	uploading := false
	for _, p := range b.buckets {
		s.rows += p.Merged
		s.bytes += p.Uploaded
		uploading = uploading || p.Phase == builder.PhaseUpload
		if p.Phase == builder.PhaseDone {
			done++
		}
	}
	if uploading {
		s.what = "writing and storing"
	}
	s.detail = fmt.Sprintf("%d of %d buckets done", done, len(b.session.Buckets()))
}

// rejected is the number of records set aside, earlier runs included.
func (b *build) rejected() int64 {
	if b.rejects == nil {
		return 0
	}
	return b.rejects.Count()
}

// finishBuild writes the worker's result.
func (b *build) finishBuild(ctx context.Context) error {
	files, err := b.buildFiles(ctx)
	if err != nil {
		return err
	}
	b.progress.close()
	res := bucketResult{Version: 1, BulkLoadID: b.job.Context.Handle.BulkLoadID, Target: b.job.Target,
		Rows: b.session.Rows(), Rejected: b.rejected(), Buckets: files}
	b.summary("built")
	if b.job.Result == "" {
		return b.g.printJSON(res)
	}
	if err := writeDocument(b.job.Result, res); err != nil {
		return err
	}
	return b.g.done("wrote "+b.job.Result, map[string]any{"result": b.job.Result, "rows": res.Rows, "rejected": res.Rejected})
}

// loadResult is the JSON of `sluice load`.
type loadResult struct {
	SessionID  string    `json:"session_id"`
	Target     v1.Target `json:"target"`
	Rows       int64     `json:"rows"` // read and added, all rows of a key counted
	Rejected   int64     `json:"rejected"`
	RejectFile string    `json:"reject_file,omitempty"`
	Others     int64     `json:"other_partitions"`
	Committed  *v1.Stats `json:"committed,omitempty"`
	Seconds    float64   `json:"seconds"` // of this run
}

// finishLoad commits.
func (b *build) finishLoad(ctx context.Context) error {
	files, err := b.buildFiles(ctx)
	if err != nil {
		return err
	}
	// From here on only the commit is missing, and may be repeated.
	if err := b.checkpoint(ctx); err != nil {
		return err
	}
	b.progress.phase("committing", nil)
	s, err := b.client.Commit(ctx, b.job.Context, files)
	if err != nil {
		return err
	}
	b.progress.close()
	b.summary("loaded")
	res := loadResult{SessionID: s.ID, Target: s.Target, Rows: b.session.Rows(), Rejected: b.rejected(), Others: b.position.Others,
		Committed: s.Stats, Seconds: b.g.now().Sub(b.started).Seconds()}
	if res.Rejected > 0 {
		res.RejectFile = b.rejects.Name()
	}
	return b.printLoaded(res)
}

func (b *build) printLoaded(res loadResult) error {
	if b.g.json() {
		return b.g.printJSON(res)
	}
	text := "committed " + res.SessionID
	if res.Committed != nil {
		text = "committed " + statsText(*res.Committed) + " to " + res.Target.String()
	}
	_, err := fmt.Fprintln(plain{b.g.stdout}, text)
	return err
}

// summary is a remark about what was read.
func (b *build) summary(what string) {
	text := fmt.Sprintf("%s %s rows in %s", what, grouped(b.session.Rows()), clock(b.g.now().Sub(b.started)))
	if n := b.session.Skipped(); n > 0 {
		text += fmt.Sprintf(", passed over %s of other buckets", grouped(n))
	}
	if n := b.position.Others; n > 0 {
		text += fmt.Sprintf(", passed over %s of other partitions", grouped(n))
	}
	if n := b.rejected(); n > 0 {
		text += fmt.Sprintf(", rejected %s into %s", grouped(n), b.rejects.Name())
	}
	b.g.remark("%s", text)
}

// explain says how to go on after a failure, and gives the session of a load up
// when its job cannot succeed.
func (b *build) explain(err error) error {
	if b.local != nil {
		err = b.ofCluster(err)
	}
	f := describe(err)
	if b.refused(f) {
		return b.giveUp(errors.Join(err, b.dir.clear()))
	}
	if resumable(err) {
		switch {
		case b.dir.unfinished() && damaged(err):
			return &hinted{err, b.job.startOverHint(b.dir)}
		case b.local != nil && f.Code == v1.CodeInvalidManifest:
			return err
		case b.dir.unfinished():
			hint := "go on with: " + b.job.resumeCommand(b.dir.path)
			if f.Hint != "" {
				hint = f.Hint + "; " + hint
			}
			return &hinted{err, hint}
		}
		return err
	}
	if b.job.Command != "load" || b.job.Context == nil || f.ExitCode != exitInput {
		return err
	}
	return b.giveUp(err)
}

// refused reports that the session which this run began cannot be built by this
// caller in this way: by policy, say, or because the server vends no keys for it.
// Nothing has been read yet.
func (b *build) refused(f failure) bool {
	if !b.begun || b.session != nil {
		return false
	}
	return f.ExitCode == exitDenied || f.ExitCode == exitConflict || f.ExitCode == exitUsage
}

// giveUp aborts the session of a load that failed for good.
func (b *build) giveUp(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	if _, abortErr := b.client.Abort(ctx, b.job.Context); abortErr != nil {
		how := "sluice session abort " + b.job.Context.Handle.BulkLoadID
		if b.local != nil {
			how = "repeat the command"
		}
		return &hinted{err, fmt.Sprintf("the session is still open (%v); give it up: %s", abortErr, how)}
	}
	b.g.remark("nothing was loaded; session %s is given up", b.job.Context.Handle.BulkLoadID)
	return err
}

// abortTimeout bounds giving a session up at the end of a failed load.
const abortTimeout = 15 * time.Second
