package broker

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
	"github.com/fluss-sluice/sluice/session"
)

func TestBeginGivesTheHandOverThatIsWishedFor(t *testing.T) {
	w, _ := openKeys(t, session.HandOverCopy, session.HandOverVerify)
	w.table("places")
	for _, wish := range []session.HandOver{session.HandOverSame, session.HandOverWait, "COPY", "x"} {
		_, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", HandOver: wish})
		if !errors.Is(err, session.ErrInvalid) || !strings.Contains(err.Error(), "[copy verify]") {
			t.Errorf("%s: %v", wish, err)
		}
	}
	s, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", HandOver: session.HandOverVerify})
	if err != nil || !created || s.HandOver != session.HandOverVerify || s.Plan.HandOver != session.HandOverVerify || s.Plan.UploadRoot != s.Plan.FinalRoot {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, wish := range []session.HandOver{"", session.HandOverVerify} {
		again, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", HandOver: wish})
		if err != nil || created || again.ID != s.ID {
			t.Errorf("repeated with %q: %v", wish, err)
		}
	}
	_, _, err = w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", HandOver: session.HandOverCopy})
	mustBe(t, err, session.ErrInvalid)

	// A session keeps its hand-over when the configuration changes.
	w.config.HandOvers, w.config.Vendor = nil, nil
	w.reopen()
	again, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", HandOver: session.HandOverVerify})
	if err != nil || again.HandOver != session.HandOverVerify {
		t.Errorf("%s, %v", again.HandOver, err)
	}
	w.table("others")
	s, _, err = w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "others"}, SubmissionID: "two"})
	if err != nil || s.HandOver != session.HandOverSame {
		t.Errorf("%s, %v", s.HandOver, err)
	}
}

// onlySame is a target that plans nothing but same.
type onlySame struct{ *directory.Driver }

func (onlySame) Capabilities() target.Capabilities {
	return target.Capabilities{Name: "only", HandOvers: []session.HandOver{session.HandOverSame}}
}

func TestABrokerOffersOnlyWhatItCanKeep(t *testing.T) {
	w, v := openKeys(t)
	cannotCopy, err := directory.Open(directory.Config{Objects: struct{ objstore.Store }{w.objects}, RootURI: lake})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		name   string
		change func(c *Config)
		ok     bool
	}{
		{"nothing", func(c *Config) { c.Vendor = nil }, true},
		{"same without a vendor", func(c *Config) { c.Vendor, c.HandOvers = nil, []session.HandOver{session.HandOverSame} }, true},
		{"all", func(c *Config) {
			c.HandOvers = []session.HandOver{session.HandOverCopy, session.HandOverWait, session.HandOverVerify, session.HandOverSame}
		}, true},
		{"wait without a vendor", func(c *Config) { c.Vendor, c.HandOvers = nil, []session.HandOver{session.HandOverWait} }, false},
		{"one twice", func(c *Config) { c.HandOvers = []session.HandOver{session.HandOverWait, session.HandOverWait} }, false},
		{"an unknown one", func(c *Config) { c.HandOvers = []session.HandOver{"fast"} }, false},
		{"an empty one", func(c *Config) { c.HandOvers = []session.HandOver{""} }, false},
		{"copy where nothing copies", func(c *Config) { c.Driver, c.HandOvers = cannotCopy, []session.HandOver{session.HandOverCopy} }, false},
		{"wait where nothing copies", func(c *Config) { c.Driver, c.HandOvers = cannotCopy, []session.HandOver{session.HandOverWait} }, true},
		{"what the target does not plan", func(c *Config) { c.Driver, c.HandOvers = onlySame{w.driver}, []session.HandOver{session.HandOverWait} }, false},
	} {
		c := w.config
		c.Vendor, c.HandOvers = v, nil
		r.change(&c)
		if b, err := New(c); (err == nil) != r.ok {
			t.Errorf("%s: %v", r.name, err)
		} else if err == nil {
			_ = b.Close()
		}
	}
}

// spoiled content of the length of the original, so that sizes tell nothing.
func evil(content []byte) []byte {
	out := bytes.Clone(content)
	out[len(out)/2] ^= 1
	return out
}

// attack is a worker with living keys who overwrites what it wrote.
type attack struct {
	name   string
	op     string // the broker's step that it comes before
	suffix func(l *load) string
	uri    func(l *load) string
	body   func(l *load) []byte
}

func (l *load) sstBody() []byte { return l.buckets[1].files[l.sst().LocalPath] }

func base(uri string) string { return uri[strings.LastIndex(uri, "/"):] }

// attacks between the freeze and the publication.
var attacks = []attack{
	{"a file before anything is read", "head", func(*load) string { return "/manifest" },
		func(l *load) string { return l.staged(l.sst().Path) }, (*load).sstBody},
	{"a file before it is looked at", "head", func(l *load) string { return "/data/1/snap-0" + base(l.sst().Path) },
		func(l *load) string { return l.staged(l.sst().Path) }, (*load).sstBody},
	{"a file before it is copied", "copy", func(l *load) string { return base(l.sst().Path) },
		func(l *load) string { return l.staged(l.sst().Path) }, (*load).sstBody},
	{"a file before it is validated", "get", func(l *load) string { return base(l.sst().Path) },
		func(l *load) string { return l.staged(l.sst().Path) }, (*load).sstBody},
	{"metadata before it is copied", "copy", func(*load) string { return "data/1/snap-0/_METADATA" },
		func(l *load) string { return layout.MetadataPath(l.s.Plan.UploadRoot, 1, 0) },
		func(l *load) []byte { return l.buckets[1].meta.AppendJSON(nil) }},
	{"metadata before it is validated", "get", func(*load) string { return "places-1/1/snap-0/_METADATA" },
		func(l *load) string { return layout.MetadataPath(l.s.Plan.UploadRoot, 1, 0) },
		func(l *load) []byte { return l.buckets[1].meta.AppendJSON(nil) }},
	{"the manifest before it is copied", "copy", func(*load) string { return "/manifest" },
		func(l *load) string { return l.s.Plan.ManifestPath },
		func(l *load) []byte { return l.w.content(l.s.Plan.ManifestPath) }},
	{"the manifest before it is read", "get", func(*load) string { return "/manifest.frozen" },
		func(l *load) string { return l.s.Plan.ManifestPath },
		func(l *load) []byte { return l.w.content(l.s.Plan.ManifestPath) }},
}

// TestAMaliciousWorkerWithHandOverCopy: whatever a worker overwrites and whenever,
// nothing is published but what was validated, and the worker's keys never open it.
func TestAMaliciousWorkerWithHandOverCopy(t *testing.T) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			w, _ := openKeys(t, session.HandOverCopy)
			w.table("places")
			s := w.begin("one")
			l := w.build(s, 100)
			ref := l.store()
			k := w.keys(bob, s, "bucket:0-2:write manifest:write")
			reached := w.spy(a.op, a.suffix(l), func() {
				if err := k.put(a.uri(l), evil(a.body(l))); err != nil {
					t.Errorf("the attack fails by itself: %v", err)
				}
			})
			got, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			if !reached.Load() {
				t.Fatal("the broker does not take that step")
			}
			switch {
			case err == nil:
				if got.State != session.StateCommitted {
					t.Fatalf("%v", got.State)
				}
			case !errors.Is(err, session.ErrInvalidManifest):
				t.Fatal(err)
			default: // refused; with the right bytes back it passes, copied anew
				if n := w.visible(places); n != 0 {
					t.Fatalf("%d buckets visible after %v", n, err)
				}
				w.overwrite(a.uri(l), evil(w.content(a.uri(l))))
				if _, err = w.Commit(ctx, alice, s.ID, s.Epoch, nil); err != nil {
					t.Fatalf("repeated with the right content: %v", err)
				}
			}
			l.wantPublished("after the commit")
			for _, f := range l.buckets[1].meta.Private {
				if err := k.put(f.Path, []byte("evil")); err == nil {
					t.Errorf("the keys of a worker open the published %s", f.Path)
				}
			}
			if err := k.put(layout.MetadataPath(s.Plan.FinalRoot, 1, 0), []byte("evil")); err == nil {
				t.Error("the keys of a worker open published metadata")
			}
			if err := k.put(frozenManifest(s), []byte("evil")); err == nil {
				t.Error("the keys of a worker open the broker's manifest")
			}
			// After the publication there is only staging to write to.
			for _, f := range l.buckets[1].meta.Private {
				if err := k.put(l.staged(f.Path), []byte("evil")); err != nil {
					t.Error(err)
				}
			}
			w.reopen()
			w.settle()
			w.clean(ctx)
			l.wantPublished("after the keys were used again")
		})
	}
}

// With hand-over same there would have been nothing between: this proves the attacks.
func TestTheAttacksWorkWhereNothingIsCopied(t *testing.T) {
	w, _ := openKeys(t, session.HandOverVerify)
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 100)
	ref := l.store()
	k := w.keys(bob, s, "bucket:1:write")
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	if err := k.put(l.sst().Path, evil(l.sstBody())); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(w.content(l.sst().Path), l.sstBody()) {
		t.Error("the attack changes nothing")
	}
}

func TestWithHandOverWaitKeysExpireBeforeFilesAreRead(t *testing.T) {
	for _, malicious := range []bool{false, true} {
		w, _ := openKeys(t, session.HandOverWait)
		w.table("places")
		s := w.begin("one")
		l := w.build(s, 100)
		ref := l.store()
		k := w.keys(bob, s, "bucket:1:write")
		until := k.AliveUntil.Sub(start)
		w.pass(time.Minute)
		for _, m := range []*session.ManifestRef{&ref, nil} {
			_, err := w.Commit(ctx, alice, s.ID, s.Epoch, m)
			var busy *BusyError
			if !errors.As(err, &busy) || busy.RetryAfter != until-time.Minute+landing {
				t.Fatalf("%v", err)
			}
		}
		frozen := w.state(s.ID)
		if frozen.Phase() != session.PhaseFrozen || !frozen.DecisionDeadline.Equal(start.Add(until+landing+24*time.Hour)) {
			t.Fatalf("%v until %v", frozen.Phase(), frozen.DecisionDeadline)
		}
		if malicious {
			if err := k.put(l.sst().Path, evil(l.sstBody())); err != nil {
				t.Fatal(err)
			}
		}
		w.pass(until - time.Minute + landing - 1)
		w.reopen()
		w.settle()
		if got := w.state(s.ID); got.Phase() != session.PhaseFrozen || w.visible(places) != 0 {
			t.Fatalf("%v before the keys expired", got.Phase())
		}
		if err := k.put(l.sst().Path, nil); err == nil {
			t.Fatal("keys live longer than they say")
		}
		w.pass(1)
		w.settle() // the caller need not come back
		got := w.state(s.ID)
		if malicious {
			if got.Phase() != session.PhaseFrozen || !strings.Contains(got.ValidationError, "SHA-256") || w.visible(places) != 0 {
				t.Errorf("an overwritten file: %v, %q", got.Phase(), got.ValidationError)
			}
			continue
		}
		if got.State != session.StateCommitted {
			t.Errorf("%v, %s", got.State, got.ValidationError)
		}
		l.wantPublished("after the wait")
	}
}

func TestACommitThatWaitsHoldsNoSlotAndKeepsNobodyBusy(t *testing.T) {
	w, _ := openKeys(t, session.HandOverWait)
	w.config.MaxConcurrentCommits = 1
	w.reopen()
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 10)
	ref := l.store()
	w.keys(bob, s, "bucket:1:write")
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, ErrBusy)
	if !strings.Contains(err.Error(), "frozen") {
		t.Errorf("%v", err)
	}
	var reads atomic.Int64
	w.objects.Store = &spied{Store: w.objects.Store, before: func(string, string) { reads.Add(1) }}
	version := w.state(s.ID).Version
	for range 100 {
		w.sweep(ctx)
		if n := len(w.flights); n > 0 {
			t.Fatalf("%d commits in progress", n)
		}
	}
	w.running.Wait()
	if n := reads.Load(); n > 0 || w.state(s.ID).Version != version {
		t.Errorf("%d reads of the warehouse, version %d became %d", n, version, w.state(s.ID).Version)
	}
	// One without keys goes past it.
	w.table("others")
	o, _, err := w.Begin(ctx, alice, BeginRequest{Target: session.Target{Database: "geo", Table: "others"}, SubmissionID: "two"})
	if err != nil {
		t.Fatal(err)
	}
	other := w.build(o, 10).store()
	if got, err := w.Commit(ctx, alice, o.ID, o.Epoch, &other); err != nil || got.State != session.StateCommitted {
		t.Errorf("%v, %v", got.State, err)
	}
	// A wait can be given up.
	if got, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil || got.State != session.StateAborted {
		t.Errorf("%v, %v", got.State, err)
	}
	_, err = w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, session.ErrEnded)
}

// seen collects what the observer is told.
type seen struct {
	mu            sync.Mutex
	objects       []int64
	good, differs int
}

func (s *seen) observer() Observer {
	return Observer{
		Copied: func(objects, _ int64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.objects = append(s.objects, objects)
		},
		Verified: func(_ session.Session, differs bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if differs {
				s.differs++
			} else {
				s.good++
			}
		},
	}
}

func TestWithHandOverVerifyADifferenceIsLoud(t *testing.T) {
	for _, r := range []struct {
		name  string
		act   func(w *world, l *load, k keys) error
		says  string // "" = nothing
		loud  bool
		event audit.Outcome
	}{
		{"nothing is changed", func(*world, *load, keys) error { return nil }, "", false, audit.Allow},
		{"a file is overwritten", func(_ *world, l *load, k keys) error {
			return k.put(l.sst().Path, evil(l.sstBody()))
		}, "SHA-256", true, audit.Error},
		{"metadata is overwritten", func(_ *world, l *load, k keys) error {
			return k.put(layout.MetadataPath(l.s.Plan.FinalRoot, 1, 0), []byte("{}"))
		}, "_METADATA", true, audit.Error},
		{"a file is added", func(_ *world, l *load, k keys) error {
			return k.put(layout.SnapshotDir(l.s.Plan.FinalRoot, 1, 0)+"/more", []byte("x"))
		}, "", false, audit.Allow},
		{"a file goes missing", func(_ *world, l *load, _ keys) error {
			l.replace(l.sst().Path, nil)
			return nil
		}, "missing", true, audit.Error},
		{"the table is dropped", func(w *world, _ *load, _ keys) error {
			return w.DropTable(ctx, alice, "geo", "places")
		}, "dropped", false, audit.Allow},
		{"the table is dropped and created again", func(w *world, _ *load, _ keys) error {
			err := w.DropTable(ctx, alice, "geo", "places")
			w.table("places")
			return err
		}, "dropped", false, audit.Allow},
	} {
		t.Run(r.name, func(t *testing.T) {
			var log bytes.Buffer
			var told seen
			w, _ := openKeys(t, session.HandOverVerify)
			w.config.Logger, w.config.Observer = slog.New(slog.NewTextHandler(&log, nil)), told.observer()
			w.reopen()
			w.table("places")
			s := w.begin("one")
			l := w.build(s, 100)
			ref := l.store()
			k := w.keys(bob, s, "bucket:1:write")
			done, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			if err != nil || done.Verification == nil || !done.Verification.Due.Equal(*done.KeysAliveUntil) || done.Verification.Done != nil {
				t.Fatalf("%+v, %v", done.Verification, err)
			}
			l.wantPublished("at once")
			if err := r.act(w, l, k); err != nil {
				t.Fatal(err)
			}
			w.pass(k.AliveUntil.Sub(w.clock()) + landing - 1)
			w.clean(ctx)
			w.running.Wait()
			if v := w.state(s.ID).Verification; v.Done != nil {
				t.Fatal("verified while a key lives")
			}
			w.pass(keysGrid)
			w.audit.fail = errors.New("disk full")
			w.clean(ctx)
			w.running.Wait()
			if v := w.state(s.ID).Verification; v.Done != nil {
				t.Fatal("verified without a record")
			}
			w.audit.fail = nil
			w.reopen()
			log.Reset()
			w.clean(ctx)
			w.running.Wait()
			got := w.state(s.ID)
			v := got.Verification
			if v.Done == nil || (v.Error == "") != (r.says == "") || !strings.Contains(v.Error, r.says) || got.State != session.StateCommitted {
				t.Errorf("%+v", v)
			}
			if loud := strings.Contains(log.String(), "level=ERROR"); loud != r.loud {
				t.Errorf("log:\n%s", log.String())
			}
			if want := map[bool][2]int{true: {0, 1}, false: {1, 0}}[r.loud]; [2]int{told.good, told.differs} != want {
				t.Errorf("told of %d good and %d different", told.good, told.differs)
			}
			if e := w.audit.last(); e.Action != "verify" || e.Outcome != r.event || e.SessionID != s.ID {
				t.Errorf("recorded %+v", e)
			}
			w.clean(ctx)
			w.running.Wait()
			if n := told.good + told.differs; n != 1 || w.state(s.ID).Version != got.Version {
				t.Errorf("verified %d times", n)
			}
		})
	}
}

func TestAVerificationThatCannotReadIsRepeatedNotRecorded(t *testing.T) {
	w, _ := openKeys(t, session.HandOverVerify)
	w.table("places")
	s := w.begin("one")
	ref := w.build(s, 10).store()
	k := w.keys(bob, s, "bucket:1:write")
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	w.pass(k.AliveUntil.Sub(w.clock()) + landing + keysGrid)
	works := w.objects.Store
	w.objects.Store = brokenGet{works, errors.New("down")}
	w.clean(ctx)
	w.running.Wait()
	if v := w.state(s.ID).Verification; v.Done != nil {
		t.Fatalf("%+v", v)
	}
	w.pass(30 * 24 * time.Hour)
	w.clean(ctx) // retention is over, and it is kept
	w.running.Wait()
	w.objects.Store = works
	w.clean(ctx)
	w.running.Wait()
	if v := w.state(s.ID).Verification; v.Done == nil || v.Error != "" {
		t.Errorf("%+v", v)
	}
	w.clean(ctx)
	if _, err := w.store.Get(ctx, s.ID); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestAVerifySessionWithoutKeysIsNotVerifiedAgain(t *testing.T) {
	w, _ := openKeys(t, session.HandOverVerify)
	w.table("places")
	if s := w.committed(10); s.Verification != nil || s.KeysAliveUntil != nil {
		t.Errorf("%+v until %v", s.Verification, s.KeysAliveUntil)
	}
}

func TestStagingIsDeletedAfterThePublicationAndWithTheRecord(t *testing.T) {
	w, v := openKeys(t, session.HandOverCopy)
	v.life = 10 * time.Hour
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 30)
	ref := l.store()
	k := w.keys(bob, s, "bucket:0-2:write")
	if len(w.below(s.Plan.UploadRoot)) == 0 {
		t.Fatal("nothing was staged")
	}
	// Deleting fails in the middle: the commit stands all the same.
	const decided, published, deleted = 1, 1, 3
	w.objects.Arm(l.objects()+decided+published+deleted, objstoretest.NothingStored)
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	w.running.Wait()
	w.objects.Arm(0, objstoretest.NothingStored)
	if err := k.put(layout.SnapshotDir(s.Plan.UploadRoot, 1, 0)+"/late/one", []byte("late")); err != nil {
		t.Fatal(err)
	}
	if len(w.below(s.Plan.UploadRoot)) == 0 || w.content(frozenManifest(s)) == nil {
		t.Fatal("nothing is left to forget")
	}
	w.pass(7 * 24 * time.Hour)
	w.objects.Arm(1, objstoretest.NothingStored)
	w.clean(ctx) // cannot delete: keeps the record
	w.state(s.ID)
	w.clean(ctx)
	if _, err := w.store.Get(ctx, s.ID); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if left := w.below(s.Plan.FinalRoot + "/_bulkload/" + s.ID); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	l.wantPublished("when the session is forgotten")
}

func TestStagingIsGoneSoonAfterTheCommit(t *testing.T) {
	w, _ := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.committed(30)
	w.running.Wait()
	if left := w.below(s.Plan.UploadRoot); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAnAbortedStagingIsNoContentForTheNextSession(t *testing.T) {
	w, _ := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 30)
	l.store()
	k := w.keys(bob, s, "bucket:0-2:write")
	if _, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil {
		t.Fatal(err)
	}
	if err := k.put(layout.SnapshotDir(s.Plan.UploadRoot, 1, 0)+"/deep/er", []byte("late")); err != nil {
		t.Fatal(err)
	}
	two := w.begin("two")
	next := w.build(two, 30)
	ref := next.store()
	if _, err := w.Commit(ctx, alice, two.ID, two.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	next.wantPublished("after an aborted session")
	w.pass(7 * 24 * time.Hour)
	w.clean(ctx)
	if left := w.below(s.Plan.UploadRoot); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Somebody put objects where files will be copied to: they are no part of the commit.
func TestForeignObjectsInTheFinalPlaceDoNotMatter(t *testing.T) {
	w, _ := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 30)
	ref := l.store()
	dir := layout.SnapshotDir(s.Plan.FinalRoot, 1, 0)
	w.put(dir+"/private-unknown", []byte("x"))
	w.put(dir+"/deep/er", []byte("x"))
	w.put(l.sst().Path, []byte("of another size"))
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	l.wantPublished("over foreign objects")
}

// An object of the right size lies in the final place and has other content: the first
// attempt trusts it and fails, the second copies anew.
func TestWhatValidationRefusedIsCopiedAnew(t *testing.T) {
	var told seen
	w, _ := openKeys(t, session.HandOverCopy)
	w.config.Observer = told.observer()
	w.reopen()
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 30)
	ref := l.store()
	w.put(l.sst().Path, evil(l.sstBody()))
	_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
	mustBe(t, err, session.ErrInvalidManifest)
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, nil); err != nil {
		t.Fatal(err)
	}
	l.wantPublished("copied anew")
	all := int64(l.objects())
	if !slices.Equal(told.objects, []int64{all - 1, all}) {
		t.Errorf("copied %v objects, there are %d", told.objects, all)
	}
}

// A worker swaps a small file for a huge one, before or after its size is looked at.
func TestNothingLargerIsCopiedThanWasDeclared(t *testing.T) {
	for op, says := range map[string]string{"head": "declared", "copy": "changed after"} {
		w, _ := openKeys(t, session.HandOverCopy)
		w.table("places")
		s := w.begin("one")
		l := w.build(s, 30)
		ref := l.store()
		k := w.keys(bob, s, "bucket:1:write")
		reached := w.spy(op, "/data/1/snap-0"+base(l.sst().Path), func() {
			if err := k.put(l.staged(l.sst().Path), make([]byte, 1<<20)); err != nil {
				t.Error(err)
			}
		})
		_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
		if !reached.Load() || !errors.Is(err, session.ErrInvalidManifest) || !strings.Contains(err.Error(), says) {
			t.Errorf("before %s: %v", op, err)
		}
		if n := len(w.content(l.sst().Path)); n > 0 {
			t.Errorf("before %s: %d bytes were copied", op, n)
		}
	}
}

func TestAnAbortBeatsACopyStillRunning(t *testing.T) {
	for _, by := range []string{"caller", "deadline"} {
		w, _ := openKeys(t, session.HandOverCopy)
		w.table("places")
		s := w.begin("one")
		l := w.build(s, 100)
		ref := l.store()
		reached, goOn := make(chan struct{}), make(chan struct{})
		w.spy("copy", base(l.sst().Path), func() {
			close(reached)
			<-goOn
		})
		committed := make(chan error, 1)
		go func() {
			_, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref)
			committed <- err
		}()
		<-reached
		if by == "caller" {
			if got, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil || got.State != session.StateAborted {
				t.Fatalf("%v, %v", got.State, err)
			}
		} else {
			w.pass(w.c.Limits.DecisionTimeout)
			w.sweep(ctx)
		}
		close(goOn)
		mustBe(t, <-committed, session.ErrEnded)
		got := w.state(s.ID)
		if got.State != session.StateAborted || w.visible(places) != 0 {
			t.Errorf("by %s: %v, %d buckets visible", by, got.State, w.visible(places))
		}
		if content := w.content(l.sst().Path); content != nil {
			t.Errorf("by %s: copied after the abort", by)
		}
		w.running.Wait()
		w.begin("two")
	}
}

func TestGatewayAndSignaturesFollowThePlanOfACopy(t *testing.T) {
	w, _ := openKeys(t, session.HandOverCopy)
	w.table("places")
	s := w.begin("one")
	l := w.build(s, 30)
	one, _ := w.token(bob, s, "bucket:1:write")
	up, _ := w.driver.Key(l.staged(l.sst().Path))
	final, _ := w.driver.Key(l.sst().Path)
	sum := hexSum(l.sstBody())
	if g, err := w.AuthorizeObject(ctx, one, ObjectRequest{Method: "PUT", Key: up, Size: 7}); err != nil || g.SHA256 != sum {
		t.Errorf("%+v, %v", g, err)
	} else {
		g.Done()
	}
	if _, err := w.AuthorizeSign(ctx, one, putOf(up, sum, 7)); err != nil {
		t.Error(err)
	}
	_, err := w.AuthorizeObject(ctx, one, ObjectRequest{Method: "PUT", Key: final, Size: 7})
	mustBe(t, err, ErrScope)
	_, err = w.AuthorizeSign(ctx, one, putOf(final, sum, 7))
	mustBe(t, err, ErrScope)
	ref := l.store()
	scan, _ := w.token(bob, s, "snapshot:read")
	if _, err := w.Commit(ctx, alice, s.ID, s.Epoch, &ref); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{up, final} {
		_, err := w.AuthorizeObject(ctx, scan, ObjectRequest{Method: "GET", Key: key, Size: -1})
		if (err == nil) != (key == final) {
			t.Errorf("reading %s: %v", key, err)
		}
		_, err = w.AuthorizeSign(ctx, one, putOf(key, sum, 7))
		if err == nil {
			t.Errorf("%s can be written after the commit", key)
		}
	}
}

// objects counts what is copied of a load: manifest, metadata and files.
func (l *load) objects() int {
	n := 1
	for _, b := range l.buckets {
		n += 1 + len(b.files)
	}
	return n
}

// vendingClient loads with keys.
type vendingClient struct {
	client
	keys *Credentials // the last ones handed out
}

func (c *vendingClient) load() (session.Session, error) {
	s, err := c.begin()
	if err != nil {
		return s, err
	}
	if s.Phase() == session.PhaseBuilding {
		if err := c.exchange(s); err != nil {
			return s, err
		}
		bearer, err := c.w.TokenCaller(ctx, c.token.Token)
		if err != nil {
			return s, err
		}
		got, err := c.w.Credentials(ctx, bearer, CredentialRequest{})
		if err != nil {
			return s, err
		}
		c.keys = &got
	}
	return c.commit(s)
}

func newVendingClient(w *world) *vendingClient {
	return &vendingClient{client: client{w: w, loads: map[string]*load{}, refs: map[string]session.ManifestRef{}}}
}

// finished checks a load that was repeated after a failure.
func (c *vendingClient) finished(s session.Session, err error, where string) {
	c.w.t.Helper()
	if err != nil || s.State != session.StateCommitted {
		c.w.t.Fatalf("%s: repeated: %v, %v", where, s.State, err)
	}
	c.w.running.Wait()
	c.w.wholeOrNothing(s, where)
	c.loads[s.ID].wantPublished(where)
	if c.keys != nil && (s.KeysAliveUntil == nil || s.KeysAliveUntil.Before(c.keys.AliveUntil)) {
		c.w.t.Fatalf("%s: keys live until %v, the record says %v", where, c.keys.AliveUntil, s.KeysAliveUntil)
	}
}

// TestPowerCutAtEverySyncOfACopy is TestPowerCutAtEverySync for a load with keys that
// is copied.
func TestPowerCutAtEverySyncOfACopy(t *testing.T) {
	for _, stored := range []bool{false, true} {
		for _, sweepFirst := range []bool{false, true} {
			n := 1
			for ; ; n++ {
				where := fmt.Sprintf("cut at sync %d, stored %v, sweep first %v", n, stored, sweepFirst)
				w, _ := openKeys(t, session.HandOverCopy)
				w.table("places")
				mem := vfs.NewStrictMem()
				p := &power{FS: mem, mem: mem, stored: stored}
				w.disk = p
				w.reopen()
				c := newVendingClient(w)
				p.arm(n)
				s, err := c.load()
				if !p.off() {
					c.finished(s, err, where)
					break
				}
				w.running.Wait()
				w.restart(p)
				if c.keys != nil {
					all, err := w.store.List(ctx, session.Filter{})
					if err != nil || len(all) != 1 || all[0].KeysAliveUntil == nil || all[0].KeysAliveUntil.Before(c.keys.AliveUntil) {
						t.Fatalf("%s: keys live uncounted: %+v, %v", where, all, err)
					}
				}
				if sweepFirst {
					w.settle()
				}
				s, err = c.load()
				c.finished(s, err, where)
			}
			if n < 7 { // reservation, ready, grant, keys, freeze, decision, end
				t.Errorf("only %d syncs", n)
			}
		}
	}
}

// TestEveryWriteOfACopyMayFail breaks every write of the warehouse, in both worlds.
func TestEveryWriteOfACopyMayFail(t *testing.T) {
	for _, inWorld := range objstoretest.Worlds {
		n := 1
		for ; ; n++ {
			where := fmt.Sprintf("write %d, %v", n, inWorld)
			w, _ := openKeys(t, session.HandOverCopy)
			w.config.CopyParallelism = 1 + n%4
			w.reopen()
			w.table("places")
			c := newVendingClient(w)
			w.objects.Arm(n, inWorld)
			s, err := c.load()
			w.running.Wait()
			hit := w.objects.Writes() >= n
			if err != nil {
				w.reopen()
				if n%2 == 0 {
					w.settle()
				}
				s, err = c.load()
			}
			c.finished(s, err, where)
			if !hit {
				break
			}
		}
		if n < 20 {
			t.Errorf("only %d writes", n)
		}
	}
}

const crashDir = "SLUICE_TEST_BROKER_DIR"

// openOn opens a world whose store and warehouse are on a disk.
func openOn(t *testing.T, dir string) *world {
	t.Helper()
	objects, err := local.Open(filepath.Join(dir, "warehouse"), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objects.Close() })
	w, _ := openKeys(t, session.HandOverCopy)
	w.close()
	w.objects.Store = objects
	w.disk, w.dir = vfs.Default, filepath.Join(dir, "store")
	w.reopen()
	return w
}

// TestLoadUntilKilled is the process that the next test kills.
func TestLoadUntilKilled(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("started by TestAKillAtEveryPointOfACopy")
	}
	w := openOn(t, dir)
	w.table("places")
	_, _ = newVendingClient(w).load()
	w.running.Wait()
}

func TestAKillAtEveryPointOfACopy(t *testing.T) {
	if os.Getenv(crashDir) != "" {
		t.Skip("is the killed process")
	}
	for _, point := range []string{"credential.recorded", "credential.minted", "credential.counted", "commit.frozen",
		"commit.copying", "commit.copying:2", "commit.copying:6", "commit.copied", "commit.validated", "commit.fence-decided", "commit.decided",
		"commit.published", "commit.recorded", "commit.staged"} {
		t.Run(point, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "warehouse"), 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestLoadUntilKilled$")
			cmd.Env = append(os.Environ(), crashDir+"="+dir, durable.CrashVar+"="+point)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != -1 {
				t.Fatalf("not killed: %v\n%s", err, out)
			}
			w := openOn(t, dir)
			w.settle()
			c := newVendingClient(w)
			s, err := c.begin()
			if err != nil {
				t.Fatal(err)
			}
			l := w.build(s, 30) // the same files: a build is deterministic
			c.loads[s.ID] = l
			if s.Manifest != nil {
				c.refs[s.ID] = *s.Manifest
			} else {
				l.forget()
				c.refs[s.ID] = l.store()
			}
			s, err = c.load()
			c.finished(s, err, point)
			w.pass(8 * 24 * time.Hour)
			w.clean(ctx)
			if left := w.below(s.Plan.FinalRoot + "/_bulkload/" + s.ID); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// forget deletes what a killed worker had stored, so that the load can be stored again.
func (l *load) forget() {
	l.w.t.Helper()
	for _, dir := range []string{l.s.Plan.UploadRoot, l.s.Plan.FinalRoot + "/_bulkload/" + l.s.ID} {
		for _, k := range l.w.below(dir) {
			if err := l.w.objects.Store.Delete(ctx, k); err != nil {
				l.w.t.Fatal(err)
			}
		}
	}
}
