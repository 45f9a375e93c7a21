package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

var (
	ctx        = context.Background()
	start      = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	errNoSpace = &os.PathError{Op: "write", Path: "audit", Err: syscall.ENOSPC}
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: start} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func openDisk(t *testing.T, d fileSystem, c Config) *Log {
	t.Helper()
	l, err := openOn(d, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// event is the n-th event of a test.
func event(n int) Event {
	return Event{
		Time: start.Add(time.Duration(n) * time.Second), Action: "token", Outcome: Allow, DecisionID: fmt.Sprint("d", n),
		Principal: session.Principal{Issuer: "https://id.test", Subject: "alice"},
		Input:     &policy.Input{Version: 1, Action: policy.ActionToken, Request: policy.Request{TTL: int64(n)}},
	}
}

func record(t *testing.T, l *Log, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := l.Record(ctx, event(n)); err != nil {
			t.Fatalf("event %d: %v", n, err)
		}
	}
}

// recorded are the decision ids of a log, in its order.
func recorded(t *testing.T, s source) []string {
	t.Helper()
	var out []string
	for l, err := range lines(s, time.Time{}, time.Time{}, 0, nil) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, l.Event.DecisionID)
	}
	return out
}

func ids(from, to int) []string {
	var out []string
	for n := from; n < to; n++ {
		out = append(out, fmt.Sprint("d", n))
	}
	return out
}

// whole verifies a log that must be unbroken.
func whole(t *testing.T, s source) Report {
	t.Helper()
	r, err := verify(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Broken != nil {
		t.Fatal(r.Broken)
	}
	return r
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: recorded %v, want %v", what, got, want)
	}
}

func TestTheChainRunsThroughSegmentsAndProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	for run := range 3 {
		l, err := Open(dir, Config{MaxSize: 4096, Sync: run == 1})
		if err != nil {
			t.Fatal(err)
		}
		record(t, l, run*20, run*20+20)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "three runs", recorded(t, dirSource(dir)), ids(0, 60))
	r, err := Verify(ctx, dir, nil)
	if err != nil || r.Broken != nil || r.Segments < 5 || r.Events != 60 || r.First != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if st, err := os.Stat(filepath.Join(dir, segmentName(1))); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if r, err := Verify(ctx, dir, &Head{Seq: r.Last, Hash: r.Head}); err != nil || r.Broken != nil {
		t.Errorf("its own head: %v, %v", r.Broken, err)
	}
}

func TestOneProcessWritesADirectory(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Config{}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second one: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Record(ctx, event(0)); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("a closed log took an event: %v", err)
	}
	l, err = Open(dir, Config{})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestConcurrentEventsAllArriveWhole(t *testing.T) {
	for _, sync := range []bool{false, true} {
		dir := t.TempDir()
		l, err := Open(dir, Config{Sync: sync, MaxSize: 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		concurrently(8, func(w int) {
			for i := range 50 {
				if err := l.Record(ctx, event(w*50+i)); err != nil {
					t.Error(err)
				}
			}
		})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		got := recorded(t, dirSource(dir))
		slices.Sort(got)
		want := ids(0, 400)
		slices.Sort(want)
		same(t, fmt.Sprint("sync ", sync), got, want)
		whole(t, dirSource(dir))
	}
}

func concurrently(n int, do func(int)) {
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() { do(w) })
	}
	wg.Wait()
}

func TestALineThatACrashTearsIsCutAndNoted(t *testing.T) {
	whole0 := newDisk()
	record(t, openDisk(t, whole0, Config{}), 0, 3)
	name := segmentName(1)
	full := whole0.names[name].now
	end := len(full) - 1
	lastLine := strings.LastIndexByte(string(full[:end]), '\n') + 1
	for _, cut := range []int{lastLine + 1, lastLine + 20, end} { // end: but for its line feed
		d := newDisk()
		d.names[name] = &data{now: slices.Clone(full[:cut])}
		if r := whole(t, d); !r.Unfinished {
			t.Errorf("cut at %d: %+v", cut, r)
		}
		same(t, "read while torn", recorded(t, d), ids(0, 2))
		l := openDisk(t, d, Config{})
		record(t, l, 7, 8)
		same(t, "after the cut", recorded(t, d), append(ids(0, 2), "d7"))
		if r := whole(t, d); r.Cuts != 1 || r.Unfinished {
			t.Errorf("cut at %d: %+v", cut, r)
		}
	}
}

func TestASegmentWhoseFirstLineWasTornIsBegunAgain(t *testing.T) {
	for _, left := range []int{0, 10, 200} {
		d := newDisk()
		l := openDisk(t, d, Config{MaxSize: 4096})
		record(t, l, 0, 12)
		list, _ := segments(d)
		if len(list) < 2 {
			t.Fatal("one segment only")
		}
		last := list[len(list)-1].name
		first := recorded(t, d)
		d.names[last].now = d.names[last].now[:min(left, strings.IndexByte(string(d.names[last].now), '\n'))]
		kept := recorded(t, d)
		if len(kept) == len(first) {
			t.Fatal("nothing was lost, so nothing is proved")
		}
		record(t, openDisk(t, d, Config{MaxSize: 4096}), 90, 91)
		same(t, fmt.Sprint(left, " bytes left"), recorded(t, d), append(kept, "d90"))
		whole(t, d)
	}
}

func TestDamageIsLeftAsEvidenceAndTheLogGoesOn(t *testing.T) {
	d := newDisk()
	record(t, openDisk(t, d, Config{}), 0, 5)
	name := segmentName(1)
	text := string(d.names[name].now)
	d.names[name].now = []byte(strings.Replace(text, `"d3"`, `"d9"`, 1))
	damaged := slices.Clone(d.names[name].now)
	record(t, openDisk(t, d, Config{}), 20, 22)
	if string(d.names[name].now) != string(damaged) {
		t.Error("the damaged file was changed")
	}
	r, err := verify(ctx, d, nil)
	if err != nil || r.Broken == nil || r.Broken.File != name || r.Broken.Line != 5 || r.Broken.Seq != 5 {
		t.Fatalf("%+v, %v", r.Broken, err)
	}
	list, _ := segments(d)
	_, n, err := header(d, list[1].name)
	if err != nil || n.Damaged == "" {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestAFullDiskStopsOrIsCounted(t *testing.T) {
	for _, on := range []OnFull{Stop, Continue} {
		for _, sync := range []bool{false, true} {
			d := newDisk()
			l := openDisk(t, d, Config{OnFull: on, Sync: sync, Now: newClock().now})
			record(t, l, 0, 3)
			d.mu.Lock()
			d.room = 300 // less than a line, so that one is torn
			d.mu.Unlock()
			for n := range 4 {
				err := l.Record(ctx, event(10+n))
				if on == Stop && !errors.Is(err, ErrNotRecorded) || on == Continue && err != nil {
					t.Fatalf("%s: full: %v", on, err)
				}
			}
			if err := l.Ready(); (err == nil) != (on == Continue) {
				t.Errorf("%s: ready: %v", on, err)
			}
			same(t, "while full", recorded(t, d), ids(0, 3))
			d.mu.Lock()
			d.room = -1
			d.mu.Unlock()
			if err := l.Ready(); err != nil {
				t.Errorf("%s: ready again: %v", on, err)
			}
			record(t, l, 3, 5)
			same(t, string(on), recorded(t, d), ids(0, 5))
			want := [2]uint64{4, 0}
			if on == Continue {
				want = [2]uint64{0, 4}
			}
			if r := whole(t, d); [2]uint64{r.Refused, r.Lost} != want {
				t.Errorf("%s: the log tells of %d and %d", on, r.Refused, r.Lost)
			}
			if s := l.Stats(); [2]uint64{s.Refused, s.Lost} != want {
				t.Errorf("%s: %+v", on, s)
			}
		}
	}
}

func TestOtherFailuresStopAlsoWithContinue(t *testing.T) {
	d := newDisk()
	l := openDisk(t, d, Config{OnFull: Continue})
	d.fail = func(string, int) (error, bool) { return errors.New("i/o error"), false }
	if err := l.Record(ctx, event(0)); !errors.Is(err, ErrNotRecorded) {
		t.Error(err)
	}
}

// TestEveryFailedStepStopsOneEventAndNoOther fails each change of the disk once, not done
// and done although it failed.
func TestEveryFailedStepStopsOneEventAndNoOther(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for _, done := range []bool{false, true} {
			for at := 1; ; at++ {
				d := newDisk()
				now := newClock()
				l := openDisk(t, d, Config{MaxSize: 4096, Sync: sync, Now: now.now})
				before := d.steps
				failed := ""
				d.fail = func(step string, n int) (error, bool) {
					if n != before+at {
						return nil, false
					}
					failed = step
					return errors.New("broken " + step), done
				}
				var want []string
				for n := range 20 {
					err := l.Record(ctx, event(n))
					if err == nil {
						want = append(want, fmt.Sprint("d", n))
					} else if !errors.Is(err, ErrNotRecorded) {
						t.Fatal(err)
					}
				}
				if err := l.Ready(); err != nil { // the last event may be the one that failed
					t.Fatal(err)
				}
				what := fmt.Sprintf("sync %v, %s at %d, done %v", sync, failed, at, done)
				same(t, what, recorded(t, d), want)
				if r := whole(t, d); r.Unfinished || r.Refused != uint64(20-len(want)) {
					t.Fatalf("%s: %+v, %d events of 20", what, r, len(want))
				}
				if failed == "" {
					if at < 20 {
						t.Fatal("no step failed, so nothing is proved")
					}
					break
				}
				if len(want) == 20 && failed != "truncate" {
					t.Fatalf("%s: every event was recorded", what)
				}
			}
		}
	}
}

// TestPowerIsCutAnywhere cuts the power at each change of the disk, with nothing or part
// of what was not synced on it.
func TestPowerIsCutAnywhere(t *testing.T) {
	for _, some := range []int{0, 1, 100, 1 << 20} {
		for at := 1; ; at++ {
			d := newDisk()
			off := false
			d.fail = func(_ string, n int) (error, bool) {
				off = off || n == at
				if off {
					return errors.New("power is gone"), false
				}
				return nil, false
			}
			var told []string
			l, err := openOn(d, Config{MaxSize: 4096, Sync: true})
			for n := 0; err == nil && n < 20 && !off; n++ {
				if l.Record(ctx, event(n)) == nil {
					told = append(told, fmt.Sprint("d", n))
				}
			}
			if !off {
				break
			}
			d = d.cut(some)
			record(t, openDisk(t, d, Config{MaxSize: 4096, Sync: true}), 50, 52)
			whole(t, d)
			got := recorded(t, d)
			what := fmt.Sprintf("cut at %d with %d bytes", at, some)
			if len(got) < len(told)+2 || len(got) > len(told)+3 {
				t.Fatalf("%s: told of %v, recorded %v", what, told, got)
			}
			same(t, what, got[:len(told)], told)
		}
	}
}

func TestASyncThatFailsTakesBackEveryLineItCovered(t *testing.T) {
	d := newDisk()
	l := openDisk(t, d, Config{Sync: true})
	record(t, l, 0, 2)
	entered, leave := make(chan struct{}), make(chan struct{})
	syncs := 0
	d.fail = func(step string, _ int) (error, bool) {
		if step != "sync" {
			return nil, false
		}
		if syncs++; syncs > 1 {
			return nil, false
		}
		close(entered)
		d.mu.Unlock()
		<-leave
		d.mu.Lock()
		return errors.New("broken"), false
	}
	var wg sync.WaitGroup
	var first, second error
	wg.Go(func() { first = l.Record(ctx, event(2)) })
	<-entered
	// Its line is written behind the one that is being synced, and rests on it.
	wg.Go(func() { second = l.Record(ctx, event(3)) })
	for l.Stats().Seq < 5 { // header, two events, two more
		time.Sleep(time.Millisecond)
	}
	close(leave)
	wg.Wait()
	if first == nil || second == nil {
		t.Fatalf("%v, %v: neither is durable", first, second)
	}
	record(t, l, 4, 6)
	same(t, "after it", recorded(t, d), append(ids(0, 2), ids(4, 6)...))
	whole(t, d)
}

func TestSegmentsEndByAge(t *testing.T) {
	d, now := newDisk(), newClock()
	l := openDisk(t, d, Config{MaxAge: time.Hour, Now: now.now})
	now.add(2 * time.Hour)
	if err := l.tend(ctx); err != nil || l.Stats().Segments != 1 {
		t.Fatalf("a segment without events was ended: %v", err)
	}
	record(t, l, 0, 1)
	now.add(time.Hour)
	if err := l.tend(ctx); err != nil || l.Stats().Segments != 2 {
		t.Fatalf("%+v, %v", l.Stats(), err)
	}
	record(t, l, 1, 2)
	same(t, "two segments", recorded(t, d), ids(0, 2))
	whole(t, d)
}

func TestRedactionDropsFieldsAndSaysSo(t *testing.T) {
	l, err := Open(t.TempDir(), Config{Redact: []string{"client.address", "principal.claims.email", "request.path", "principal.groups"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	in := &policy.Input{
		Principal: policy.Principal{Subject: "s", Claims: map[string]string{"email": "canary@x", "team": "blue"}},
		Client:    policy.Client{Address: "canary-address", UserAgent: "curl"},
	}
	if err := l.Record(ctx, Event{Input: in, Address: "canary-address", Time: start}); err != nil {
		t.Fatal(err)
	}
	p, err := l.Find(ctx, Query{}, 10)
	if err != nil || len(p.Lines) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	e := p.Lines[0].Event
	if got := fmt.Sprintf("%+v %+v", e, e.Input); strings.Contains(got, "canary") || !strings.Contains(got, "blue") {
		t.Error(got)
	}
	same(t, "redacted", e.Redacted, []string{"client.address", "principal.claims.email"})
	if in.Client.Address == "" || in.Principal.Claims["email"] == "" {
		t.Error("the input of the caller was changed")
	}
	if err := CheckRedaction([]string{"principal.subject"}); err == nil {
		t.Error("a field that must stay can be redacted")
	}
}

func TestEventsGiveBackTheirDecisions(t *testing.T) {
	n := int64(60)
	rows := []struct {
		name string
		e    Event
		want policy.Decision
		err  string
		ok   bool
	}{
		{"an allow with what it is narrowed to", Event{Outcome: Allow, Rule: "r", Constraints: &policy.Constraints{MaxTTL: &n}, Input: &policy.Input{}}, policy.Decision{Allow: true, Rule: "r", Reasons: []string{}, Constraints: policy.Constraints{MaxTTL: &n}}, "", true},
		{"a denial", Event{Outcome: Deny, Reasons: []string{"no_grant"}, Input: &policy.Input{}}, policy.Decision{Reasons: []string{"no_grant"}}, "", true},
		{"an allow of which nothing was left", Event{Outcome: Deny, Overruled: true, Reasons: []string{"a", ReasonNothingLeft}, Input: &policy.Input{}}, policy.Decision{Allow: true, Reasons: []string{"a"}}, "", true},
		{"an error", Event{Outcome: Error, Detail: "time-out", Input: &policy.Input{}}, policy.Decision{Reasons: []string{}}, "time-out", true},
		{"an effect", Event{Outcome: Allow}, policy.Decision{}, "", false},
	}
	for _, r := range rows {
		got, ok := r.e.Decision()
		if ok != r.ok || fmt.Sprintf("%+v", got.Decision) != fmt.Sprintf("%+v", r.want) || got.Error != r.err {
			t.Errorf("%s: %+v, %v", r.name, got, ok)
		}
	}
}
