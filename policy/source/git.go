package source

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/revision"
)

// Git is the commit that is checked out (HEAD) in a repository on disk. It reads the
// commit and not the files beside it: what is not committed has no author. It takes
// the git program, which it only lets read objects: no filters, hooks or monitors of
// the repository's configuration run.
type Git struct {
	repository, folder string
	program            string
	last               id
}

// ErrGit: the repository could not be read.
var ErrGit = errors.New("git checkout")

// Bounds of what is read of a repository.
const (
	gitTimeout  = time.Minute
	maxGitFiles = 10_000
	maxGitSize  = 64 << 20
	maxGitInfo  = 4 << 20 // bytes of a listing, or of a commit
)

// NewGit reads the policy in a folder of a repository ("" = its top folder).
func NewGit(repository, folder string) (*Git, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		return nil, fmt.Errorf("%w %s: the git program is needed: %w", ErrGit, repository, err)
	}
	folder = strings.Trim(path.Clean("/"+folder), "/")
	return &Git{repository: repository, folder: folder, program: program}, nil
}

func (g *Git) String() string { return "git checkout " + path.Join(g.repository, g.folder) }

// Read implements Source.
func (g *Git) Read(ctx context.Context) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	commit, err := g.head(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	if commit == g.last.commit {
		return Snapshot{}, ErrUnchanged
	}
	m, err := g.describe(ctx, commit)
	if err != nil {
		return Snapshot{}, err
	}
	files, err := g.files(ctx, commit)
	if err != nil {
		return Snapshot{}, err
	}
	b, err := policy.NewBundle(g.String()+" at "+commit[:12], files)
	if err != nil {
		return Snapshot{}, err
	}
	now, last := idOf(b, commit), g.last
	g.last = now
	if now.revision == last.revision && now.tests == last.tests {
		return Snapshot{}, ErrUnchanged // the commit changed something else
	}
	return Snapshot{b, m}, nil
}

var commitID = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

func (g *Git) head(ctx context.Context) (string, error) {
	out, err := g.run(ctx, maxGitInfo, nil, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(out))
	if !commitID.MatchString(commit) {
		return "", fmt.Errorf("%w %s: HEAD is %.80q, which is no commit", ErrGit, g.repository, commit)
	}
	return commit, nil
}

// describe reads author and message from the commit object itself.
func (g *Git) describe(ctx context.Context, commit string) (revision.Meta, error) {
	out, err := g.run(ctx, maxGitInfo, nil, "cat-file", "commit", commit)
	if err != nil {
		return revision.Meta{}, err
	}
	m := revision.Meta{Source: revision.Source{Kind: revision.SourceGit, Name: path.Join(g.repository, g.folder), Commit: commit}}
	head, message, _ := strings.Cut(string(out), "\n\n")
	m.Message = clean(message, 4096)
	for line := range strings.Lines(head) {
		if who, ok := strings.CutPrefix(line, "author "); ok {
			m.Author, m.Time = author(who)
		}
	}
	if m.Author == "" || m.Time.IsZero() {
		return revision.Meta{}, fmt.Errorf("%w %s: commit %s has no author", ErrGit, g.repository, commit)
	}
	return m, nil
}

// author reads "Name <address> seconds zone".
func author(s string) (string, time.Time) {
	end := strings.LastIndexByte(s, '>')
	fields := strings.Fields(s[end+1:])
	if end < 0 || len(fields) == 0 {
		return "", time.Time{}
	}
	seconds, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || seconds < 0 || seconds > 1<<33 {
		return "", time.Time{}
	}
	return cmp.Or(clean(s[:end+1], 256), "unknown"), time.Unix(seconds, 0).UTC()
}

// clean makes a text that somebody else wrote fit to be shown: valid, bounded, and
// without control characters but line ends.
func clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// files reads the blobs of the folder.
func (g *Git) files(ctx context.Context, commit string) ([]policy.BundleFile, error) {
	listing, err := g.run(ctx, maxGitInfo, nil, "ls-tree", "-r", "-z", "--full-tree", commit+":"+g.folder)
	if err != nil {
		return nil, err
	}
	var files []policy.BundleFile
	var wanted bytes.Buffer
	for line := range strings.SplitSeq(string(listing), "\x00") {
		info, name, ok := strings.Cut(line, "\t")
		fields := strings.Fields(info) // mode, type, object
		if !ok || len(fields) != 3 || hidden(name) {
			continue
		}
		if fields[0] != "100644" && fields[0] != "100755" {
			if ext := path.Ext(name); ext != ".rego" && ext != ".json" && ext != ".yaml" && ext != ".yml" {
				continue
			}
			return nil, fmt.Errorf("%w %s: %s is no regular file in commit %s", ErrGit, g.repository, name, commit)
		}
		if ext := path.Ext(name); ext != ".rego" && ext != ".json" && ext != ".yaml" && ext != ".yml" {
			continue
		}
		if len(files) == maxGitFiles {
			return nil, fmt.Errorf("%w %s: more than %d files", ErrGit, g.repository, maxGitFiles)
		}
		files = append(files, policy.BundleFile{Name: name})
		fmt.Fprintln(&wanted, fields[2])
	}
	blobs, err := g.run(ctx, maxGitSize+int64(len(files))*128, &wanted, "cat-file", "--batch")
	if err != nil {
		return nil, err
	}
	return files, readBlobs(bufio.NewReader(bytes.NewReader(blobs)), files)
}

// hidden files are not read, as those of a directory are not.
func hidden(name string) bool {
	return strings.HasPrefix(name, ".") || strings.Contains(name, "/.")
}

// readBlobs reads what cat-file --batch wrote: "object type size", the bytes, a line
// end, for each file.
func readBlobs(in *bufio.Reader, files []policy.BundleFile) error {
	for i := range files {
		line, err := in.ReadString('\n')
		fields := strings.Fields(line)
		if err != nil || len(fields) != 3 || fields[1] != "blob" {
			return fmt.Errorf("%w: file %s cannot be read: git says %.80q", ErrGit, files[i].Name, line)
		}
		size, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil || size < 0 || size > maxGitSize {
			return fmt.Errorf("%w: file %s has %s bytes", ErrGit, files[i].Name, fields[2])
		}
		var text bytes.Buffer
		if _, err := io.CopyN(&text, in, size); err != nil {
			return fmt.Errorf("%w: file %s is cut off", ErrGit, files[i].Name)
		}
		if c, err := in.ReadByte(); err != nil || c != '\n' {
			return fmt.Errorf("%w: file %s does not end", ErrGit, files[i].Name)
		}
		files[i].Text = text.Bytes()
	}
	return nil
}

// run runs a git command that only reads objects.
func (g *Git) run(ctx context.Context, limit int64, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, g.program, append([]string{"--no-replace-objects", "--literal-pathspecs", "-C", g.repository,
		"-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"}, args...)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "GIT_") }), // they could name another repository
		"GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "LC_ALL=C")
	cmd.Stdin = in
	out, errOut := &limited{left: limit}, &limited{left: 4096}
	cmd.Stdout, cmd.Stderr = out, errOut
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	switch {
	case out.over:
		return nil, fmt.Errorf("%w %s: git %s: more than %d bytes", ErrGit, g.repository, args[0], limit)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w %s: git %s: %w: %s", ErrGit, g.repository, args[0], err, clean(errOut.String(), 500))
	}
	return out.Bytes(), nil
}

// limited is a buffer that takes so much and no more.
type limited struct {
	bytes.Buffer
	left int64
	over bool
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		l.over = true
		return 0, errors.New("too much output")
	}
	return l.Buffer.Write(b)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
