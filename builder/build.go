package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// Built is a finished RocksDB directory on local disk.
type Built struct {
	Rows  int64       `json:"rows"`  // distinct keys
	Files []BuiltFile `json:"files"` // by local path
}

// BuiltFile is one file of it.
type BuiltFile struct {
	LocalPath string `json:"local_path"`
	Size      int64  `json:"size"`
	SHA256    string `json:"sha256"`
}

func (b *Built) bytes() int64 {
	var n int64
	for _, f := range b.Files {
		n += f.Size
	}
	return n
}

func isNoSpace(err error) bool {
	return errors.Is(err, ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// build merges the rows into a RocksDB directory, once.
func (w *BucketWriter) build(ctx context.Context) (*Built, error) {
	select {
	case w.s.builds <- struct{}{}:
		defer func() { <-w.s.builds }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.s.checkOpen(); err != nil {
		return nil, err
	}
	w.sealed = true
	if w.built != nil {
		return w.built, nil
	}
	if err := w.makeDirLocked(); err != nil {
		return nil, err
	}
	w.s.notify.progress(w.id, func(p *Progress) { p.Phase, p.Rows = PhaseMerge, w.rows.Load() })
	built, err := w.writeDirectory(ctx)
	if err != nil {
		return nil, err
	}
	durable.Point("builder.after-build")
	w.built = built
	if s := w.sorter.Swap(nil); s != nil {
		err = s.Close()
	}
	return built, err
}

// writeDirectory writes db from scratch.
func (w *BucketWriter) writeDirectory(ctx context.Context) (*Built, error) {
	dir := filepath.Join(w.path(), dbDir)
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	out, err := rocks.NewWriter(dir, rocks.WriterOptions{Compression: w.s.o.Compression, Parallelism: w.s.tables})
	if err != nil {
		return nil, err
	}
	res, err := w.mergeInto(ctx, out)
	if err != nil {
		return nil, errors.Join(err, out.Abort())
	}
	if err := checkOpens(ctx, dir); err != nil {
		return nil, err
	}
	return builtFrom(res), nil
}

func (w *BucketWriter) mergeInto(ctx context.Context, out *rocks.Writer) (rocks.Result, error) {
	if s := w.sorter.Load(); s != nil {
		if _, err := s.Merge(ctx, out.Add); err != nil {
			return rocks.Result{}, err
		}
	}
	return out.Finish()
}

// checkOpens makes sure that a reader will find what was written.
func checkOpens(ctx context.Context, dir string) error {
	db, err := rocks.Open(ctx, rocks.Dir(dir), rocks.Options{OpenTables: true})
	if err != nil {
		return fmt.Errorf("the finished directory does not open: %w", err)
	}
	return db.Close()
}

func builtFrom(res rocks.Result) *Built {
	b := &Built{Rows: res.Rows}
	for _, f := range res.Files {
		b.Files = append(b.Files, BuiltFile{LocalPath: f.Name, Size: f.Size, SHA256: f.SHA256})
	}
	slices.SortFunc(b.Files, func(x, y BuiltFile) int { return strings.Compare(x.LocalPath, y.LocalPath) })
	return b
}

// deliver stores the files of a directory and then their description, by which the
// bucket counts as finished.
func (w *BucketWriter) deliver(ctx context.Context, b *Built, logOffset int64) (BucketFiles, error) {
	w.s.notify.progress(w.id, func(p *Progress) { p.Phase, p.Bytes, p.Merged = PhaseUpload, b.bytes(), b.Rows })
	if err := w.uploadFiles(ctx, b); err != nil {
		return BucketFiles{}, err
	}
	durable.Point("builder.before-metadata")
	meta := w.s.load.metadata(w.id, b, logOffset)
	ref, err := w.putMetadata(ctx, meta)
	if err != nil {
		return BucketFiles{}, err
	}
	durable.Point("builder.after-metadata")
	return BucketFiles{
		BulkLoadID: w.s.load.bc.Handle.BulkLoadID, BucketID: w.id,
		Metadata: ref, Rows: b.Rows, Bytes: b.bytes(),
	}, nil
}

// uploadFiles stores every file, several at once.
func (w *BucketWriter) uploadFiles(ctx context.Context, b *Built) error {
	g := newGroup(ctx)
	for _, f := range b.Files {
		select {
		case w.s.uploads <- struct{}{}:
		case <-g.ctx.Done():
			g.fail(g.ctx.Err())
			return g.wait()
		}
		g.run(func(ctx context.Context) error {
			defer func() { <-w.s.uploads }()
			if err := w.uploadFile(ctx, f); err != nil {
				return fmt.Errorf("upload %s: %w", f.LocalPath, err)
			}
			return nil
		})
	}
	return g.wait()
}

func (w *BucketWriter) uploadFile(ctx context.Context, f BuiltFile) error {
	start := time.Now()
	uri := w.s.load.uploadDir(w.id) + "/" + layout.PrivateFileName(f.SHA256, f.LocalPath)
	known := w.isUploaded(f.LocalPath, uri)
	if known && w.s.upload.isThere(ctx, uri, f.Size, f.SHA256) {
		w.s.notify.uploaded(Upload{Bucket: w.id, Path: uri, Size: f.Size, Reused: true, Elapsed: time.Since(start)})
		return nil
	}
	file, err := os.Open(filepath.Join(w.path(), dbDir, f.LocalPath))
	if err != nil {
		return err
	}
	defer file.Close()
	reused, err := w.s.upload.put(ctx, content{uri: uri, size: f.Size, sha256: f.SHA256, body: file})
	if err != nil {
		return err
	}
	durable.Point("builder.after-file")
	if !known {
		w.mu.Lock()
		w.uploaded = append(w.uploaded, Uploaded{LocalPath: f.LocalPath, Path: uri, Size: f.Size, SHA256: f.SHA256})
		w.mu.Unlock()
	}
	w.s.notify.uploaded(Upload{Bucket: w.id, Path: uri, Size: f.Size, Reused: reused, Elapsed: time.Since(start)})
	return nil
}

func (w *BucketWriter) isUploaded(local, uri string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.uploaded, func(u Uploaded) bool { return u.LocalPath == local && u.Path == uri })
}

// putMetadata creates _METADATA, or adopts one that says the same.
func (w *BucketWriter) putMetadata(ctx context.Context, m *snapshot.Metadata) (v1.ObjectRef, error) {
	start := time.Now()
	body := m.AppendJSON(nil)
	sum := sha256.Sum256(body)
	ref := v1.ObjectRef{
		Path:   layout.MetadataPath(w.s.load.bc.Plan.UploadRoot, w.id, w.s.load.bc.SnapshotIDs[w.id]),
		Length: int64(len(body)), SHA256: hex.EncodeToString(sum[:]),
	}
	reused, err := w.s.upload.put(ctx, content{uri: ref.Path, size: ref.Length, sha256: ref.SHA256, body: bytes.NewReader(body)})
	if errors.Is(err, ErrConflict) {
		ref, err = w.adopt(ctx, m, ref.Path, err)
	}
	if err != nil {
		return v1.ObjectRef{}, fmt.Errorf("store _METADATA: %w", err)
	}
	w.s.notify.uploaded(Upload{Bucket: w.id, Path: ref.Path, Size: ref.Length, Reused: reused, Elapsed: time.Since(start)})
	return ref, nil
}
