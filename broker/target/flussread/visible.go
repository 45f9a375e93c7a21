package flussread

import (
	"context"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/session"
)

// A reader may read the files of every snapshot that the cluster keeps, not only of the
// newest: a lease holds older ones. What an unfinished load has uploaded is no file of
// a snapshot yet.

// fileKey is an object of a target.
type fileKey struct {
	target session.Target
	key    string
}

const (
	// believed is how long a file is known to be a snapshot's without asking again: a
	// scan reads each in many ranges. A snapshot's files never change.
	believed = time.Minute
	maxSeen  = 1 << 16
)

// VisibleKey implements target.Visible.
func (r *Reads) VisibleKey(ctx context.Context, t session.Target, key string) (bool, error) {
	if r.believes(t, key) {
		return true, nil
	}
	err := r.on(ctx, t, func(p place) error {
		if bucket, id, ok := snapshotOf(key); ok && bucket < p.buckets {
			return r.note(ctx, t, p, int32(bucket), id)
		}
		return nil
	})
	switch {
	case errors.Is(err, session.ErrTargetNotFound):
		// The snapshot that the name suggests is none; another may have the file.
	case err != nil:
		return false, err
	case r.believes(t, key):
		return true, nil
	}
	err = r.on(ctx, t, func(p place) error { return r.noteLatest(ctx, t, p) })
	return err == nil && r.believes(t, key), err
}

// believes reports whether a key was found to be a snapshot's file lately.
func (r *Reads) believes(t session.Target, key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.seen[fileKey{t, key}]
	return ok && r.now().Before(until)
}

// snapshotOf reads …/{bucket}/snap-{id}/{name}.
func snapshotOf(key string) (bucket int, id int64, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) < 3 {
		return 0, 0, false
	}
	number, isSnap := strings.CutPrefix(parts[len(parts)-2], "snap-")
	bucket, err1 := strconv.Atoi(parts[len(parts)-3])
	id, err2 := strconv.ParseInt(number, 10, 64)
	return bucket, id, isSnap && err1 == nil && err2 == nil && bucket >= 0 && id >= 0
}

// note remembers the files of one snapshot, and its _METADATA.
func (r *Reads) note(ctx context.Context, t session.Target, p place, bucket int32, id int64) error {
	m, err := r.client.KVSnapshotMetadata(ctx, p.physical.Bucket(bucket), id)
	if err != nil {
		return err
	}
	keys := make([]string, 0, len(m.Files)+1)
	for _, f := range m.Files {
		k, err := r.key(f.RemotePath)
		if err != nil {
			return err
		}
		keys = append(keys, k)
		if f.LocalName == "CURRENT" { // every database has one, and it is never shared
			keys = append(keys, path.Dir(k)+"/"+layout.MetadataName)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen)+len(keys) > maxSeen {
		clear(r.seen)
	}
	until := r.now().Add(believed)
	for _, k := range keys {
		r.seen[fileKey{t, k}] = until
	}
	return nil
}

// noteLatest remembers the files of the newest snapshots.
func (r *Reads) noteLatest(ctx context.Context, t session.Target, p place) error {
	latest, err := r.client.LatestKVSnapshots(ctx, p.physical.Path, p.physical.Partition)
	if err != nil {
		return err
	}
	for _, b := range latest.Buckets {
		if !b.Exists {
			continue
		}
		err := r.note(ctx, t, p, b.Bucket, b.ID)
		if err != nil && client.CodeOf(err) != client.CodeKVSnapshotNotExist {
			return err
		}
	}
	return nil
}

// VisibleDirs implements target.Visible: the directories of the newest snapshots, and
// those of the files they share with others.
func (r *Reads) VisibleDirs(ctx context.Context, t session.Target) (dirs []string, err error) {
	err = r.on(ctx, t, func(p place) error {
		dirs = nil
		latest, err := r.client.LatestKVSnapshots(ctx, p.physical.Path, p.physical.Partition)
		if err != nil {
			return err
		}
		for _, b := range latest.Buckets {
			if !b.Exists {
				continue
			}
			m, err := r.client.KVSnapshotMetadata(ctx, p.physical.Bucket(b.Bucket), b.ID)
			if client.CodeOf(err) == client.CodeKVSnapshotNotExist {
				continue
			}
			if err != nil {
				return err
			}
			for _, f := range m.Files {
				dirs = append(dirs, strings.TrimSuffix(f.RemotePath[:strings.LastIndexByte(f.RemotePath, '/')+1], "/"))
			}
		}
		slices.Sort(dirs)
		dirs = slices.Compact(dirs)
		return nil
	})
	return dirs, err
}
