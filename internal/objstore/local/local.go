// Package local is an object store in a directory: the key "a/b" is the file a/b
// below the root.
//
// What it promises beyond package objstore, and how:
//
//   - An object appears whole or not at all. Content goes to a file in
//     .sluice-tmp, is synced, and gets its name by link(2), which fails when the
//     name is taken; of any number of concurrent write-once puts, in any number of
//     processes, exactly one wins. File systems without hard links get
//     renameat2(RENAME_NOREPLACE), and those without that a check and a rename
//     under the key's lock.
//   - A nil error means durable: the file, its directory entry and every directory
//     created on the way are synced. So does ErrExists: what is there survives.
//   - Replacement (IfMatch) and Delete hold a lock of the key (flock of a file in
//     .sluice-tmp), so that comparing and swapping is one step across processes.
//     Write-once puts need no lock.
//   - Nothing outside the root is reached (os.Root), and symbolic links inside it
//     are refused: a link would give one object a second name that no scope covers.
//
// ETags. Up to hashLimit bytes an object's ETag is its SHA-256, so it changes with
// the content and never otherwise; Info.SHA256 is set too. Above, it is made of
// inode, modification time and size, because a read must not cost a pass over the
// file. Two versions of one large object could share it only if the second got the
// freed inode of the first and the same size within one tick of the file system's
// clock; what is replaced in practice (fences, pointers) is small.
//
// Limits of the medium: a segment has at most 255 bytes; "a" and "a/b" cannot both
// be objects (ErrInvalidKey, or ErrNotFound when reading); on file systems that
// fold case or normalise Unicode, keys that differ only in that are the same
// object, which write-once turns into ErrExists. List leaves ETag and SHA256 empty.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

const (
	// tempDir holds unfinished objects and lock files; no key begins with it.
	tempDir = ".sluice-tmp"
	// tempAge is how long an unfinished object must have been untouched before Open
	// removes it: longer than any pause of a live upload.
	tempAge = time.Hour
	// maxSegment is NAME_MAX of the usual file systems, in bytes.
	maxSegment = 255

	filePerm fs.FileMode = 0o640
	dirPerm  fs.FileMode = 0o750
)

// ErrSymlink marks keys whose path holds a symbolic link.
var ErrSymlink = errors.New("symbolic link in the path of an object")

// Options of a store; the zero value is fit for production.
type Options struct {
	// Fault, when set, is called before and after each step of a change; an error
	// from it fails the step. Before: the step is not done. After: the step is done
	// and reported as failed, as when an answer is lost. For tests.
	Fault func(step Step, when When, key string) error
	// Now is the clock for the age of leftovers; nil means time.Now.
	Now func() time.Time
}

// Step names one step of a change, for Options.Fault.
type Step string

// The steps of Put in their order; with IfMatch, and for Copy,
// StepReplace takes the place of StepLink. StepRenameNew and, under the lock, StepRename are the ways to link
// where StepLink fails as unsupported. Delete is StepRemove and StepSyncDir.
const (
	StepCreate    Step = "create"     // of the unfinished object
	StepWrite     Step = "write"      // of one piece of its content
	StepSync      Step = "sync"       // of its content
	StepMkdir     Step = "mkdir"      // of one missing directory of the key
	StepSyncDir   Step = "sync-dir"   // of one directory
	StepLink      Step = "link"       // the object becomes visible
	StepRenameNew Step = "rename-new" // the object becomes visible
	StepRename    Step = "rename"     // the object becomes visible
	StepReplace   Step = "replace"    // the object becomes visible
	StepRemove    Step = "remove"     // of an object
)

// When tells the two worlds of a failed step apart.
type When bool

// The worlds.
const (
	Before When = false // nothing happened
	After  When = true  // it happened, and the answer was lost
)

// Store implements objstore.Store. It is safe for concurrent use, also by several
// processes on one root.
type Store struct {
	root  *os.Root
	dir   *os.File // of the root, for system calls that os.Root lacks
	fault func(Step, When, string) error

	// dirs guards the directories below the root against each other: creating and
	// syncing one is a single step for removals, and the reverse.
	dirs struct {
		sync.RWMutex
		durable map[string]bool // directories whose own entry has been synced
	}

	locks [lockStripes]chan struct{} // in-process half of lock
}

var _ objstore.Store = (*Store)(nil)

// Open opens the store in root, creates the directory when it does not exist, and
// removes what crashed uploads have left.
func Open(root string, o Options) (*Store, error) {
	s, err := open(root, o)
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", root, noSpace(err))
	}
	return s, nil
}

func open(root string, o Options) (*Store, error) {
	if err := durable.MkdirAll(root, dirPerm); err != nil {
		return nil, err
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	s := &Store{root: r, fault: o.Fault}
	s.dirs.durable = map[string]bool{}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	if s.dir, err = r.Open("."); err == nil {
		err = s.prepareTemp(now().Add(-tempAge))
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// prepareTemp makes the directory of unfinished objects and removes those last
// written before the time given.
func (s *Store) prepareTemp(before time.Time) error {
	if err := s.root.Mkdir(tempDir, dirPerm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	entries, err := s.readDir(tempDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(tempDir, e.Name())
		fi, err := s.root.Lstat(name)
		if err != nil || !strings.HasSuffix(name, tempSuffix) || !fi.ModTime().Before(before) {
			continue // finished meanwhile, a lock, or perhaps alive
		}
		if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Close releases the directory. The store must not be in use.
func (s *Store) Close() error {
	var err error
	if s.dir != nil {
		err = s.dir.Close()
	}
	return errors.Join(err, s.root.Close())
}

// Get implements objstore.Reader. With ErrRange it returns the Info too, so that
// an answer can name the size. An offset at the end yields an empty body.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	f, info, err := s.openObject(ctx, key)
	if err != nil {
		return nil, objstore.Info{}, fmt.Errorf("get %q: %w", key, err)
	}
	if off < 0 || off > info.Size {
		err := fmt.Errorf("get %q: %w: offset %d of %d bytes", key, objstore.ErrRange, off, info.Size)
		return nil, info, errors.Join(err, f.Close())
	}
	if length < 0 || length > info.Size-off {
		length = info.Size - off
	}
	if _, err := f.Seek(off, io.SeekStart); err != nil {
		return nil, objstore.Info{}, errors.Join(err, f.Close())
	}
	return &body{ctx: ctx, f: f, rest: io.LimitedReader{R: f, N: length}}, info, nil
}

// Head implements objstore.Reader.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	f, info, err := s.openObject(ctx, key)
	if err != nil {
		return objstore.Info{}, fmt.Errorf("head %q: %w", key, err)
	}
	return info, f.Close()
}

// openObject opens a key for reading and describes what it opened: a replacement
// meanwhile changes neither.
func (s *Store) openObject(ctx context.Context, key string) (*os.File, objstore.Info, error) {
	if err := errors.Join(ctx.Err(), checkKey(key)); err != nil {
		return nil, objstore.Info{}, err
	}
	if err := s.refuseSymlinks(key); err != nil {
		return nil, objstore.Info{}, err
	}
	// Without O_NONBLOCK, opening a pipe that somebody put there would wait forever.
	f, err := s.root.OpenFile(key, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, objstore.Info{}, notFound(err)
	}
	info, err := describe(key, f)
	if err != nil {
		return nil, objstore.Info{}, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// body is an open object or a range of it.
type body struct {
	ctx  context.Context
	f    *os.File
	rest io.LimitedReader
}

func (b *body) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.rest.Read(p)
	if err == io.EOF && b.rest.N > 0 {
		err = io.ErrUnexpectedEOF // cut short by somebody outside the store
	}
	return n, err
}

// WriteTo lets io.Copy hand the file itself to the receiver: a TCP connection then
// uses sendfile(2).
func (b *body) WriteTo(w io.Writer) (int64, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := io.Copy(w, &b.rest)
	if err == nil && b.rest.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (b *body) Close() error { return b.f.Close() }

// checkKey is objstore.CheckKey plus what the medium cannot name.
func checkKey(key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	first, _, _ := strings.Cut(key, "/")
	if first == tempDir {
		return fmt.Errorf("%w %q: %s is reserved", objstore.ErrInvalidKey, key, tempDir)
	}
	for seg := range strings.SplitSeq(key, "/") {
		if len(seg) > maxSegment {
			return fmt.Errorf("%w %q: a segment of %d bytes, at most %d", objstore.ErrInvalidKey, key, len(seg), maxSegment)
		}
	}
	return nil
}

// step runs one step of a change between the calls of Options.Fault.
func (s *Store) step(step Step, key string, do func() error) error {
	if s.fault == nil {
		return do()
	}
	if err := s.fault(step, Before, key); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return s.fault(step, After, key)
}

// notFound maps the errors of a path that leads nowhere.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return objstore.ErrNotFound
	}
	return err
}

// noSpace marks the errors of a full disk or an exhausted quota.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", objstore.ErrNoSpace, err)
	}
	return err
}
