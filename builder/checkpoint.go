package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/extsort"
)

// checkpointVersion is the version this package writes and reads.
const checkpointVersion = 1

// Checkpoint says where a session stands: the runs that are safe on local disk,
// what is stored already, and where the caller's input stands. It is JSON, may be
// kept anywhere, and holds no credential. It is good for the machine (or volume)
// that holds the session's work directory.
type Checkpoint struct {
	Version    int                `json:"version"` // 1
	BulkLoadID string             `json:"bulk_load_id"`
	Target     Target             `json:"target"`
	Epoch      int64              `json:"epoch"`
	Buckets    []BucketCheckpoint `json:"buckets"`
	// Position is the caller's: every row before it is in this checkpoint.
	Position json.RawMessage `json:"position,omitempty"`
}

// BucketCheckpoint is one bucket of a checkpoint. A bucket goes through three
// stages: runs, a built directory, files.
type BucketCheckpoint struct {
	BucketID int           `json:"bucket_id"`
	Dir      string        `json:"dir,omitempty"` // child of the work directory
	Rows     int64         `json:"rows"`          // rows added
	Runs     []extsort.Run `json:"runs,omitempty"`
	Built    *Built        `json:"built,omitempty"`
	Uploaded []Uploaded    `json:"uploaded,omitempty"`
	Files    *BucketFiles  `json:"files,omitempty"` // set when the bucket is finished
}

// Uploaded is one file that is stored already.
type Uploaded struct {
	LocalPath string `json:"local_path"`
	Path      string `json:"path"` // absolute URI
	Size      int64  `json:"size"`
	SHA256    string `json:"sha256"`
}

// Checkpoint makes everything added so far durable on local disk and says where.
// position is the caller's; no other call may add rows meanwhile that the position
// does not cover. From now on Close keeps the directories until every bucket is
// finished. Store the checkpoint durably before forgetting the one before it.
func (s *Session) Checkpoint(ctx context.Context, position json.RawMessage) (*Checkpoint, error) {
	if err := s.checkOpen(); err != nil {
		return nil, err
	}
	bc := s.load.bc
	cp := &Checkpoint{
		Version: checkpointVersion, BulkLoadID: bc.Handle.BulkLoadID, Target: bc.Handle.Target, Epoch: bc.Epoch,
		Position: slices.Clone(position),
	}
	for _, w := range s.open {
		b, err := w.checkpoint(ctx)
		if err != nil {
			return nil, err
		}
		cp.Buckets = append(cp.Buckets, b)
	}
	if err := durable.SyncDir(s.o.WorkDir); err != nil {
		return nil, fmt.Errorf("make the work directory durable: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkpointed = true
	durable.Point("builder.after-checkpoint")
	return cp, nil
}

func (w *BucketWriter) checkpoint(ctx context.Context) (BucketCheckpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := BucketCheckpoint{BucketID: w.id, Dir: w.dir, Rows: w.rows.Load(), Files: w.files}
	if w.files != nil {
		return b, nil
	}
	b.Built, b.Uploaded = w.built, slices.Clone(w.uploaded)
	if s := w.sorter.Load(); s != nil {
		var err error
		if b.Runs, err = s.Seal(ctx); err != nil {
			return b, w.explain(err)
		}
	}
	if w.dir != "" {
		if err := durable.SyncDir(w.path()); err != nil {
			return b, w.explain(err)
		}
	}
	return b, nil
}

// fits checks that the checkpoint belongs to the load and names those buckets.
func (c *Checkpoint) fits(l *load, buckets []int) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrCheckpoint, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Version != checkpointVersion:
		return bad("it has version %d, this program reads version %d", c.Version, checkpointVersion)
	case c.BulkLoadID != l.bc.Handle.BulkLoadID:
		return bad("it belongs to load %s, not %s", c.BulkLoadID, l.bc.Handle.BulkLoadID)
	case c.Epoch != l.bc.Epoch:
		return bad("it has epoch %d, the load has %d", c.Epoch, l.bc.Epoch)
	}
	var have []int
	for _, b := range c.Buckets {
		have = append(have, b.BucketID)
		if b.Dir != "" && (!strings.HasPrefix(b.Dir, l.dirPattern(b.BucketID)) || b.Dir != filepath.Base(b.Dir)) {
			return bad("bucket %d: %q is not the name of its directory", b.BucketID, b.Dir)
		}
	}
	slices.Sort(have)
	if !slices.Equal(have, buckets) {
		return bad("it holds buckets %s, to be opened are %s", bucketRanges(have), bucketRanges(buckets))
	}
	return nil
}

// restore brings a writer to where a checkpoint stood.
func (w *BucketWriter) restore(b BucketCheckpoint) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dir, w.uploaded = b.Dir, slices.Clone(b.Uploaded)
	w.rows.Store(b.Rows)
	switch {
	case b.Files != nil:
		if b.Files.BulkLoadID != w.s.load.bc.Handle.BulkLoadID || b.Files.BucketID != w.id {
			return errors.New("its files belong to another bucket or load")
		}
		w.files, w.sealed = b.Files, true
		return nil
	case b.Dir == "":
		if b.Rows > 0 || b.Built != nil || len(b.Runs) > 0 {
			return errors.New("it names rows, but no directory")
		}
		return nil
	}
	if _, err := os.Stat(w.path()); err != nil {
		return fmt.Errorf("its work directory is gone, begin again from the input: %w", err)
	}
	if b.Built != nil {
		w.built, w.sealed = b.Built, true
		return w.checkBuilt()
	}
	_, err := w.startSorterLocked(b.Runs)
	return err
}

// checkBuilt checks that a built directory is there. Contents are checked against
// their digests when they are stored.
func (w *BucketWriter) checkBuilt() error {
	for _, f := range w.built.Files {
		if !filepath.IsLocal(f.LocalPath) || f.LocalPath != filepath.Base(f.LocalPath) {
			return fmt.Errorf("%q is not the name of a file", f.LocalPath)
		}
		st, err := os.Stat(filepath.Join(w.path(), dbDir, f.LocalPath))
		if err != nil {
			return err
		}
		if st.Size() != f.Size {
			return fmt.Errorf("%s has %d bytes instead of %d", f.LocalPath, st.Size(), f.Size)
		}
	}
	return nil
}
