package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// watched is an engine that watches a directory, with every attempt to load in
// order.
type watched struct {
	*Engine
	dir      string
	attempts chan Status
}

func watch(t *testing.T, dir string, more ...func(*Config)) watched {
	t.Helper()
	w := watched{dir: dir, attempts: make(chan Status, 1000)}
	c := Config{Dir: dir, Watch: true, OnReload: func(s Status) { w.attempts <- s }}
	for _, f := range more {
		f(&c)
	}
	var err error
	if w.Engine, err = Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	<-w.attempts
	return w
}

// await waits for an attempt to load that ends as wished. The limit only ends a
// test that hangs.
func (w watched) await(t *testing.T, what string, ok func(Status) bool) Status {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case s := <-w.attempts:
			if ok(s) {
				return s
			}
		case <-limit:
			t.Fatalf("no reload with %s; status %+v", what, w.Status())
		}
	}
}

func (w watched) decides(t *testing.T, subject string, allow bool) {
	t.Helper()
	d, err := w.Decide(t.Context(), begin(subject))
	if err != nil || d.Allow != allow {
		t.Fatalf("%s: %+v, %v", subject, d, err)
	}
}

func accepted(s Status) bool { return s.LastError == "" }
func refused(text string) func(Status) bool {
	return func(s Status) bool { return strings.Contains(s.LastError, text) }
}

func friendsDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "policy")
	write(t, dir, "authz.rego", friends)
	write(t, dir, "data.json", friendsData)
	return dir
}

func TestWatchedDirectory(t *testing.T) {
	w := watch(t, friendsDir(t))
	first := w.Status()
	w.decides(t, "friend", true)

	// Data alone: the rules are not compiled again.
	before := w.cur.Load().rules
	write(t, w.dir, "data.json", `{"friends": ["friend", "newcomer"]}`)
	s := w.await(t, "the newcomer", func(s Status) bool { return s.Revision.Data != first.Revision.Data })
	if s.Revision.Rules != first.Revision.Rules || w.cur.Load().rules != before {
		t.Error("a data edit compiled the rules")
	}
	w.decides(t, "newcomer", true)

	// Formatting of data is not a revision; a test is not what decides.
	write(t, w.dir, "data.json", `{ "friends" : ["friend" , "newcomer"] }`)
	write(t, w.dir, "authz_test.rego", "package sluice.authz_test\n\ntest_x if true\n")
	write(t, w.dir, "readme.md", "nothing")
	if err := w.Reload(t.Context()); err != nil || w.Revision() != s.Revision.ID {
		t.Errorf("revision %s after edits that decide nothing, was %s (%v)", w.Revision(), s.Revision.ID, err)
	}

	// Every kind of broken edit leaves the revision in force and says why.
	for _, broken := range []struct{ name, rego, why string }{
		{"a syntax error", friends + "\nx if {", "authz.rego:"},
		{"an undefined function", friends + "\nx if frobnicate(1)\n", "undefined function frobnicate"},
		{"network access", friends + "\nx if http.send({\"method\": \"get\", \"url\": \"http://x\"})\n", "undefined function http.send"},
		{"an unused variable", friends + "\nx if { y := 1 }\n", "assigned var y unused"},
		{"rules without a decision", "package sluice.authz\n\nx := 1\n", "no rule data.sluice.authz.decision"},
	} {
		write(t, w.dir, "authz.rego", broken.rego)
		got := w.await(t, broken.name, refused(broken.why))
		if got.Revision != s.Revision || got.StaleSince.IsZero() || len(got.Problems) == 0 || w.Ready() != nil {
			t.Errorf("%s: %+v, ready %v", broken.name, got, w.Ready())
		}
		w.decides(t, "newcomer", true)
		w.decides(t, "stranger", false)
	}
	write(t, w.dir, "authz.rego", friends)
	if got := w.await(t, "the repair", accepted); got.Revision != s.Revision || !got.StaleSince.IsZero() || got.Refused < 5 {
		t.Errorf("%+v", got)
	}
}

// TestConfigMap swaps directories as the kubelet does: the files are links to
// ..data/name, and ..data is a link that is renamed into place.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(n int, rego, data string) {
		name := fmt.Sprintf("..2026_%d", n)
		write(t, dir, name+"/authz.rego", rego)
		write(t, dir, name+"/data.json", data)
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version(1, friends, friendsData)
	for _, f := range []string{"authz.rego", "data.json"} {
		if err := os.Symlink("..data/"+f, filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	w := watch(t, dir)
	w.decides(t, "friend", true)
	for n, friend := range []string{"alice", "bob", "carol"} {
		old := w.Revision()
		version(n+2, friends, `{"friends": ["`+friend+`"]}`)
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2026_%d", n+1))); err != nil {
			t.Fatal(err)
		}
		w.await(t, friend, func(s Status) bool { return s.LastError == "" && s.Revision.ID != old })
		w.decides(t, friend, true)
		w.decides(t, "friend", false)
	}
}

// TestDirectoryThatIsALink turns a link from one revision to the next, as deploy
// tools do.
func TestDirectoryThatIsALink(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"alice", "bob", "carol"} {
		write(t, root, name+"/authz.rego", friends)
		write(t, root, name+"/data.json", `{"friends": ["`+name+`"]}`)
	}
	link := filepath.Join(root, "current")
	turn := func(name string) {
		if err := os.Symlink(name, link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
	}
	turn("alice")
	w := watch(t, link)
	for _, name := range []string{"bob", "carol"} {
		turn(name)
		w.await(t, name, func(s Status) bool { d, _ := w.Decide(t.Context(), begin(name)); return d.Allow })
	}
	// The new directory itself is watched too.
	write(t, root, "carol/data.json", `{"friends": ["dave"]}`)
	w.await(t, "dave", func(s Status) bool { d, _ := w.Decide(t.Context(), begin("dave")); return d.Allow })
}

func TestDirectoryRemovedAndBroughtBack(t *testing.T) {
	var clock atomic.Int64
	clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano())
	now := func() time.Time { return time.Unix(0, clock.Load()) }
	w := watch(t, friendsDir(t), func(c *Config) { c.MaxStale, c.Now = time.Hour, now })
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	w.await(t, "the loss", func(s Status) bool { return s.LastError != "" })
	w.decides(t, "friend", true)

	clock.Add(int64(time.Hour))
	w.decides(t, "friend", true)
	clock.Add(1)
	d, err := w.Decide(t.Context(), begin("friend"))
	if !errors.Is(err, ErrNotReady) || d.Allow || d.ID == "" || !errors.Is(w.Ready(), ErrNotReady) ||
		!strings.Contains(err.Error(), "2026-01-02T03:04:05Z") {
		t.Fatalf("an hour later: %+v, %v; ready %v", d, err, w.Ready())
	}
	// The failure is dated from its first sign, not from the newest.
	if err := w.Reload(t.Context()); err == nil || w.Ready() == nil {
		t.Fatalf("reload %v, ready %v", err, w.Ready())
	}

	write(t, w.dir, "data.json", friendsData)
	write(t, w.dir, "authz.rego", friends)
	w.await(t, "the directory", accepted)
	w.decides(t, "friend", true)
	if w.Ready() != nil {
		t.Fatal(w.Ready())
	}
}

func TestFoldersAreWatched(t *testing.T) {
	dir := friendsDir(t)
	write(t, dir, "authz.rego", strings.ReplaceAll(friends, "data.friends", "data.teams.blue.friends"))
	write(t, dir, "teams/blue/data.yaml", "friends: [alice]\n")
	w := watch(t, dir)
	w.decides(t, "alice", true)
	write(t, dir, "teams/blue/data.yaml", "friends: [bob]\n")
	w.await(t, "bob", func(s Status) bool { d, _ := w.Decide(t.Context(), begin("bob")); return d.Allow })
}

// TestPollFindsWhatEventsMiss closes the kernel's side of the watch.
func TestPollFindsWhatEventsMiss(t *testing.T) {
	dir := friendsDir(t)
	w, err := newWatcher(dir, time.Millisecond, discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range w.events.WatchList() {
		if err := w.events.Remove(d); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "data.json", `{"friends": ["alice", "bob"]}`)
	if !w.look() {
		t.Error("a change was not seen")
	}
	if w.look() {
		t.Error("a change was seen twice")
	}
	if len(w.events.WatchList()) != 2 {
		t.Errorf("watching %v again", w.events.WatchList())
	}
	w.close()
}

// TestReloadStorm decides and reloads at once while the directory flips between two
// good revisions and a broken one. Each decision must be by one whole revision: the
// rules of a revision allow exactly the subject of its data.
func TestReloadStorm(t *testing.T) {
	dir := friendsDir(t)
	w := watch(t, dir)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]string{} // revision → who is allowed
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				for _, subject := range []string{"alice", "bob"} {
					d, err := w.Decide(t.Context(), begin(subject))
					if err != nil {
						t.Errorf("%v", err)
						return
					}
					if !d.Allow {
						continue
					}
					mu.Lock()
					if who, ok := answers[d.Revision]; ok && who != subject {
						t.Errorf("revision %s allows %s and %s", d.Revision, who, subject)
					}
					answers[d.Revision] = subject
					mu.Unlock()
				}
			}
		})
	}
	for i := range 60 {
		subject := []string{"alice", "bob"}[i%2]
		if i%3 == 2 {
			write(t, dir, "authz.rego", "package sluice.authz\n\nbroken if {")
			_ = w.Reload(t.Context()) // refused
			write(t, dir, "authz.rego", friends)
		}
		write(t, dir, "data.json", `{"friends": ["`+subject+`"]}`)
		if err := w.Reload(t.Context()); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if d, err := w.Decide(t.Context(), begin(subject)); err != nil || !d.Allow {
			t.Errorf("%d: %+v, %v", i, d, err)
		}
	}
	stop.Store(true)
	wg.Wait()
	if len(answers) != 2 {
		t.Errorf("%d revisions seen", len(answers))
	}
}

func TestCloseEndsWatching(t *testing.T) {
	w := watch(t, friendsDir(t))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.decides(t, "friend", true)
}
