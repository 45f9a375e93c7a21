package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Waiting after a change: an editor or a ConfigMap update makes several events, and
// a reload is due when they pause, but not later than maxQuiet after the first.
const (
	quiet    = 50 * time.Millisecond
	maxQuiet = 500 * time.Millisecond
)

// watcher calls back when a directory may have changed. It watches the directory
// with its folders, and the parent, because a directory that is replaced as a whole
// (a renamed one, or a symbolic link turned to another revision) tells only there.
type watcher struct {
	dir    string
	poll   time.Duration
	logger *slog.Logger
	events *fsnotify.Watcher
	seen   string // fingerprint when last looked at
}

func newWatcher(dir string, poll time.Duration, logger *slog.Logger) (*watcher, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("watch policy directory: %w", err)
	}
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch policy directory %s: %w", dir, err)
	}
	w := &watcher{dir: abs, poll: poll, logger: logger, events: events}
	w.look()
	return w, nil
}

func (w *watcher) close() {
	if w != nil {
		w.events.Close()
	}
}

// run starts watching. The function it returns ends it and waits.
func (w *watcher) run(changed func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { w.loop(ctx, changed) })
	return func() {
		cancel()
		done.Wait()
		w.close()
	}
}

func (w *watcher) loop(ctx context.Context, changed func(context.Context)) {
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	due := time.NewTimer(time.Hour)
	due.Stop()
	defer due.Stop()
	var first time.Time // of the events not yet acted on
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-w.events.Events:
			if !ok {
				return
			}
			if !w.concerns(ev) {
				continue
			}
			if first.IsZero() {
				first = time.Now()
			}
			due.Reset(min(quiet, max(0, maxQuiet-time.Since(first))))
		case err := <-w.events.Errors:
			// Events were lost (the kernel's queue overflowed): look for ourselves.
			w.logger.Warn("watching the policy directory", "dir", w.dir, "error", err)
			due.Reset(quiet)
		case <-due.C:
			first = time.Time{}
			w.look()
			changed(ctx)
		case <-poll.C:
			if w.look() {
				due.Reset(quiet)
			}
		}
	}
}

// concerns filters what the parent tells of our neighbours.
func (w *watcher) concerns(ev fsnotify.Event) bool {
	if ev.Op == fsnotify.Chmod {
		return false
	}
	return ev.Name == w.dir || strings.HasPrefix(ev.Name, w.dir+string(filepath.Separator))
}

// look adds what is to be watched, again if need be, and reports whether the files
// differ from the last look. Failing to watch is not fatal: the poll remains.
func (w *watcher) look() (changed bool) {
	for _, dir := range append([]string{filepath.Dir(w.dir)}, w.folders()...) {
		if err := w.events.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.logger.Warn("policy directory is polled only", "dir", dir, "error", err)
		}
	}
	print, err := fingerprint(os.DirFS(w.dir))
	if err != nil {
		print = "error: " + err.Error()
	}
	changed = print != w.seen
	w.seen = print
	return changed
}

// folders lists the directory and the folders in it that hold files that count.
func (w *watcher) folders() []string {
	dirs := []string{w.dir}
	_ = eachFile(os.DirFS(w.dir), ".", 0, func(name, kind string, _ fs.FileInfo) error {
		if dir := filepath.Join(w.dir, filepath.Dir(name)); kind != "" && dir != dirs[len(dirs)-1] {
			dirs = append(dirs, dir)
		}
		return nil
	}) // what cannot be read now is polled
	return dirs
}
