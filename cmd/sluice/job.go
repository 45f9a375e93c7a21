package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/extsort"
	"github.com/fluss-sluice/sluice/internal/rocks"
	"github.com/fluss-sluice/sluice/internal/tabular"
)

// A work directory belongs to one build at a time:
//
//	job.json         what is built from what; written before anything else
//	checkpoint.json  how far it is; absent means not beyond the start
//	lock             held while a process works in it
//	load-…           the builder's own
//
// Both documents stand in their files with a checksum, because a position in which a
// bit has flipped would lose rows without a word. None of it holds a credential.
const (
	jobFile        = "job.json"
	checkpointFile = "checkpoint.json"
	lockFile       = "lock"
	// defaultWorkDir is the work directory when none is named.
	defaultWorkDir = "sluice-work"
)

// jobVersion is the version of job.json.
const jobVersion = 2

// job is what `sluice build` and `sluice load` were asked to do.
type job struct {
	Version int    `json:"version"`
	Command string `json:"command"` // build or load
	// Args and Flags are the command line: a resumed one may repeat it.
	Args  []string          `json:"args"`
	Flags map[string]string `json:"flags"`
	// Dir is where the process ran: relative names are relative to it.
	Dir string `json:"dir"`
	// MadeDir says that the work directory is ours to remove.
	MadeDir bool      `json:"made_dir"`
	Target  v1.Target `json:"target"`
	// SubmissionID and Timeout begin the session of a load.
	SubmissionID string           `json:"submission_id,omitempty"`
	Timeout      time.Duration    `json:"timeout,omitempty"`
	HandOver     string           `json:"hand_over,omitempty"`
	Options      v1.LoadOptions   `json:"options"`
	Context      *v1.BuildContext `json:"context,omitempty"`
	Inputs       []string         `json:"inputs"`
	Input        inputFlags       `json:"input"`
	Buckets      []int            `json:"buckets,omitempty"` // empty = all
	Result       string           `json:"result,omitempty"`
	Memory       int64            `json:"memory"`
	Parallelism  int              `json:"parallelism"`
	Compression  string           `json:"compression"`
	Checkpoint   time.Duration    `json:"checkpoint_interval"`
	TTL          time.Duration    `json:"token_ttl,omitempty"`
	// Credentials is the way to the object store; "" in jobs of older versions.
	Credentials builder.Credentials `json:"credentials,omitempty"`
	// Cluster is set by a load that goes into a cluster without a server.
	Cluster *clusterLoad `json:"cluster,omitempty"`
}

// jobPosition is the position of a checkpoint.
type jobPosition struct {
	Input    tabular.Position   `json:"input"`
	Complete bool               `json:"complete"` // all inputs are read
	Rejects  tabular.RejectMark `json:"rejects"`
	Others   int64              `json:"others"` // rows of other partitions
}

// workDir is a locked work directory.
type workDir struct {
	path string
	made bool // by this job
	lock *os.File
}

// openWorkDir makes and locks a work directory.
func openWorkDir(path string) (*workDir, error) {
	_, err := os.Stat(path)
	d := &workDir{path: path, made: errors.Is(err, fs.ErrNotExist)}
	if err := durable.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	if d.lock, err = os.OpenFile(d.file(lockFile), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	if err := syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("work directory %s is in use by another process: name another one in --work-dir", path), d.lock.Close())
	}
	return d, nil
}

func (d *workDir) file(name string) string { return filepath.Join(d.path, name) }

// unfinished reports whether a job was left here.
func (d *workDir) unfinished() bool {
	_, err := os.Stat(d.file(jobFile))
	return err == nil
}

// sealed is how a document stands in its file.
type sealed struct {
	SHA256   string          `json:"sha256"` // of the document's bytes as they stand here
	Document json.RawMessage `json:"document"`
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// errDamaged marks a document that is not as it was written.
var errDamaged = errors.New("damaged")

// store keeps a job or checkpoint through a crash.
func (d *workDir) store(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if b, err = json.Marshal(sealed{checksum(b), b}); err != nil {
		return err
	}
	return durable.WriteFile(d.file(name), b, 0o600)
}

// read reads what store wrote.
func (d *workDir) read(name string, into any) error {
	b, err := os.ReadFile(d.file(name))
	if err != nil {
		return err
	}
	var s sealed
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is %w: %w", d.file(name), errDamaged, err)
	}
	if checksum(s.Document) != s.SHA256 {
		return fmt.Errorf("%s is %w: its checksum does not fit", d.file(name), errDamaged)
	}
	if err := json.Unmarshal(s.Document, into); err != nil {
		return fmt.Errorf("%s: %w", d.file(name), err)
	}
	return nil
}

// load reads the job and its checkpoint, nil when there is none.
func (d *workDir) load() (*job, *builder.Checkpoint, error) {
	j := new(job)
	switch err := d.read(jobFile, j); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, &usageError{fmt.Errorf("nothing to resume in %s: name the work directory of the first run in --work-dir", d.path)}
	case errors.Is(err, errDamaged):
		return nil, nil, &hinted{err, "this job cannot be gone on with: delete the directory, abort the session (`sluice session list` shows it) and begin anew"}
	case err != nil:
		return nil, nil, err
	case j.Version != jobVersion:
		return nil, nil, fmt.Errorf("%s has version %d, this program reads version %d", d.file(jobFile), j.Version, jobVersion)
	}
	cp := new(builder.Checkpoint)
	switch err := d.read(checkpointFile, cp); {
	case errors.Is(err, fs.ErrNotExist):
		return j, nil, nil
	case errors.Is(err, errDamaged):
		return nil, nil, &hinted{err, j.startOverHint(d)}
	case err != nil:
		return nil, nil, err
	}
	return j, cp, nil
}

// damaged reports whether what a checkpoint speaks of is not there as it was: trying
// again from the same checkpoint cannot help.
func damaged(err error) bool {
	return errors.Is(err, builder.ErrCheckpoint) || errors.Is(err, extsort.ErrCorrupt)
}

// startOverHint is what to do when a checkpoint is of no use: without one, the same
// session is built from the start of the inputs.
func (j *job) startOverHint(d *workDir) string {
	return fmt.Sprintf("delete %s, and `%s` starts over at the beginning of the inputs", d.file(checkpointFile), j.resumeCommand(d.path))
}

// clear forgets the job: it is done, or cannot be gone on with.
func (d *workDir) clear() error {
	var errs []error
	for _, name := range []string{checkpointFile, jobFile} {
		if err := os.Remove(d.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// close unlocks the directory, and removes it if nothing is left in it and it was
// not there before.
func (d *workDir) close() {
	if !d.unfinished() {
		os.Remove(d.file(lockFile))
		if d.made {
			os.Remove(d.path)
		}
	}
	d.lock.Close()
}

// checkPlace refuses to resume where relative names mean other files.
func (j *job) checkPlace() error {
	here, err := os.Getwd()
	if err != nil || here == j.Dir {
		return err
	}
	names := append([]string{j.Result, j.Input.Rejects}, j.Inputs...)
	for _, name := range names {
		if name != "" && name != tabular.Stdin && !filepath.IsAbs(name) {
			return &usageError{fmt.Errorf("%s is relative to %s: change to that directory first", name, j.Dir)}
		}
	}
	return nil
}

// resumeCommand is what to type to go on.
func (j *job) resumeCommand(dir string) string {
	c := "sluice " + j.Command + " --resume"
	if dir != defaultWorkDir {
		c += " --work-dir " + shellQuote(dir)
	}
	if slices.Contains(j.Inputs, tabular.Stdin) {
		c += " (with the same input piped in again)"
	}
	return c
}

// shellQuote writes a word so that a shell leaves it as it is.
func shellQuote(s string) string {
	if s == "" {
		return "''"
	}
	for _, r := range s {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '/' || r == '.' || r == '-' || r == '_'
		if !plain {
			return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return s
}

// openOptions are those of the builder.
func (j *job) openOptions(dir string, cp *builder.Checkpoint, e builder.Events) (builder.OpenOptions, error) {
	c, err := rocks.ParseCompression(j.Compression)
	return builder.OpenOptions{
		Buckets: j.Buckets, SkipForeign: len(j.Buckets) > 0, WorkDir: dir, Memory: j.Memory, Parallelism: j.Parallelism,
		Compression: c, Events: e, Resume: cp, TTL: j.TTL,
	}, err
}
