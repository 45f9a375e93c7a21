// Package source reads policies from where a security team keeps them: a directory,
// a git checkout, a bundle file, a bundle server. What it yields is proposed, not
// activated: that is for whoever follows a source.
package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/revision"
)

// ErrUnchanged is what Read returns when there is nothing new since the last time it
// returned something.
var ErrUnchanged = errors.New("the policy source has not changed")

// Snapshot is what a source held at one moment.
type Snapshot struct {
	Bundle *policy.Bundle
	// Meta has what the source knows: Author, Message, Time, Source.
	Meta revision.Meta
}

// Source is where policies come from. Read is called by one goroutine at a time. An
// error other than ErrUnchanged does not count as read: the next Read tries again.
type Source interface {
	// Read returns what is there now, or ErrUnchanged. A policy that is no policy is a
	// *policy.LoadError.
	Read(ctx context.Context) (Snapshot, error)
	// String names the source to people, without secrets.
	String() string
}

// DefaultInterval is how often Follow looks when it is not told.
const DefaultInterval = 10 * time.Second

// Follow reads a source now and then, until ctx ends, and hands on what is new and
// every failure that differs from the one before. It returns ctx's error.
func Follow(ctx context.Context, s Source, every time.Duration, f func(context.Context, Snapshot, error)) error {
	tick := time.NewTicker(cmp.Or(every, DefaultInterval))
	defer tick.Stop()
	return follow(ctx, s, tick.C, f)
}

func follow(ctx context.Context, s Source, tick <-chan time.Time, f func(context.Context, Snapshot, error)) error {
	last := ""
	for ctx.Err() == nil {
		snap, err := s.Read(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrUnchanged):
			last = ""
		case err == nil:
			last = ""
			f(ctx, snap, nil)
		case err.Error() != last:
			last = err.Error()
			f(ctx, Snapshot{}, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick:
		}
	}
	return ctx.Err()
}

// Directory is a directory of policy files.
type Directory struct {
	dir  string
	now  func() time.Time
	last id
}

// NewDirectory reads a policy directory. now is the clock, nil = time.Now.
func NewDirectory(dir string, now func() time.Time) *Directory {
	return &Directory{dir: dir, now: orNow(now)}
}

func orNow(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now
	}
	return now
}

// id tells whether what was read is new: tests are part of what people edit.
type id struct{ revision, tests, commit string }

func idOf(b *policy.Bundle, commit string) id { return id{b.Revision().ID, b.TestsDigest(), commit} }

func (d *Directory) String() string { return "directory " + d.dir }

// Read implements Source.
func (d *Directory) Read(ctx context.Context) (Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return Snapshot{}, err
	}
	b, err := policy.BundleOf(d.dir)
	if err != nil {
		return Snapshot{}, err
	}
	now := idOf(b, "")
	if now == d.last {
		return Snapshot{}, ErrUnchanged
	}
	d.last = now
	return Snapshot{b, revision.Meta{Author: "directory", Time: d.now().UTC(),
		Source: revision.Source{Kind: revision.SourceDirectory, Name: d.dir}}}, nil
}

// File is a bundle file on disk.
type File struct {
	name   string
	verify policy.Verify
	now    func() time.Time

	seen os.FileInfo // of the file that was read last
	last id
}

// NewFile reads a bundle file. With keys in v only bundles that they signed are read.
func NewFile(name string, v policy.Verify, now func() time.Time) *File {
	v.Name = name
	return &File{name: name, verify: v, now: orNow(now)}
}

func (f *File) String() string { return "bundle file " + f.name }

// Read implements Source.
func (f *File) Read(ctx context.Context) (Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return Snapshot{}, err
	}
	in, err := os.Open(f.name)
	if err != nil {
		return Snapshot{}, fmt.Errorf("policy bundle: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return Snapshot{}, fmt.Errorf("policy bundle: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Snapshot{}, fmt.Errorf("policy bundle: %s is not a regular file", f.name)
	}
	if f.seen != nil && os.SameFile(info, f.seen) && info.Size() == f.seen.Size() && info.ModTime().Equal(f.seen.ModTime()) {
		return Snapshot{}, ErrUnchanged
	}
	b, err := policy.ReadBundle(in, f.verify)
	if err != nil {
		return Snapshot{}, err
	}
	f.seen = info
	if now := idOf(b, ""); now != f.last {
		f.last = now
		return Snapshot{b, bundleMeta(b, revision.SourceFile, f.name, f.now)}, nil
	}
	return Snapshot{}, ErrUnchanged
}

// bundleMeta is what a bundle says about itself: its author is who signed it.
func bundleMeta(b *policy.Bundle, kind, name string, now func() time.Time) revision.Meta {
	return revision.Meta{Author: cmp.Or(b.Signer(), "unsigned bundle"), Time: now().UTC(),
		Source: revision.Source{Kind: kind, Name: name}, Signer: b.Signer()}
}
