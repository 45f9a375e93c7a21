package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const manifestPath = "file:///w/kv/db/t-7/_bulkload/0b1c9a3e-5d2f-4a61-8c77-9e0f1a2b3c4d/manifest"

func reservation() Reservation {
	return Reservation{
		ID:           "0b1c9a3e-5d2f-4a61-8c77-9e0f1a2b3c4d",
		SubmissionID: "nightly 2026-03-01",
		Target:       Target{Database: "db", Table: "t"},
		Epoch:        3,
		Creator:      Principal{Issuer: "https://issuer.example", Subject: "worker"},
		DecisionID:   "d-1", PolicyRevision: "r-1",
		Created: t0, BuildDeadline: t0.Add(24 * time.Hour),
	}
}

func ready() EventReady {
	return EventReady{
		At: t0.Add(time.Second), TableID: 7, SchemaID: 1, TableJSON: json.RawMessage(`{"a": [1, "<&>"]}`),
		TableCreated: 1, TableModified: 2, RemoteDataDir: "file:///w", SnapshotIDs: []int64{0, 4},
		Plan: Plan{UploadRoot: "file:///w/kv/db/t-7", FinalRoot: "file:///w/kv/db/t-7", ManifestPath: manifestPath,
			Publication: "conditional-write", HandOver: HandOverSame, LogOffset: "zero"},
	}
}

func freeze() EventFreeze {
	return EventFreeze{At: t0.Add(time.Hour), DecisionDeadline: t0.Add(25 * time.Hour),
		Manifest: ManifestRef{Path: manifestPath, Length: 10, SHA256: strings.Repeat("0a", 32)}}
}

func decide() EventDecide {
	return EventDecide{At: t0.Add(2 * time.Hour), Stats: Stats{Rows: 5, Files: 2, Bytes: 99}}
}

func abort() EventAbort {
	return EventAbort{At: t0.Add(90 * time.Minute), Reason: AbortByCaller, Message: "changed my mind"}
}

func published() EventPublished {
	return EventPublished{At: t0.Add(3 * time.Hour), ResultExpires: t0.Add(200 * time.Hour)}
}

func aborted() EventAborted {
	return EventAborted{At: t0.Add(3 * time.Hour), ResultExpires: t0.Add(200 * time.Hour)}
}

func lost() EventLost {
	return EventLost{At: t0.Add(3 * time.Hour), Reason: AbortGivenUp, Message: "bucket 1 does not serve the load", ResultExpires: t0.Add(200 * time.Hour)}
}

func invalid() EventInvalid {
	return EventInvalid{At: t0.Add(61 * time.Minute), Message: "bucket 1: no"}
}

// handing returns an event as it is in a session with a hand-over.
func handing(h HandOver, e Event) Event {
	if r, ok := e.(EventReady); ok {
		r.Plan.HandOver = h
		if h == HandOverCopy {
			r.Plan.UploadRoot += "/_bulkload/" + reservation().ID + "/data"
		}
		return r
	}
	return e
}

// beginHanding is begin and the events of a path, with a hand-over.
func beginHanding(t testing.TB, h HandOver, path ...Event) Session {
	t.Helper()
	r := reservation()
	r.HandOver = h
	s, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range path {
		s = apply(t, s, handing(h, e))
	}
	return s
}

// keysEnd is until when the first vended key lives, in the tests.
var keysEnd = t0.Add(5 * time.Hour)

func vended() EventVended {
	return EventVended{At: t0.Add(30 * time.Minute), AliveUntil: keysEnd}
}

func verified() EventVerified {
	return EventVerified{At: keysEnd, Error: "bucket 1: no"}
}

func begin(t testing.TB) Session {
	t.Helper()
	s, err := New(reservation())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func apply(t testing.TB, s Session, events ...Event) Session {
	t.Helper()
	for _, e := range events {
		var err error
		if s, err = Apply(s, e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// phases is the path to each column of the table in machine.go.
var phases = []struct {
	name string
	path []Event
}{
	{"fencing", nil},
	{"building", []Event{ready()}},
	{"frozen", []Event{ready(), freeze()}},
	{"aborting", []Event{ready(), freeze(), abort()}},
	{"publishing", []Event{ready(), freeze(), decide()}},
	{"committed", []Event{ready(), freeze(), decide(), published()}},
	{"aborted", []Event{ready(), freeze(), abort(), aborted()}},
}

func TestADecidedLoadIsLostForTwoReasonsOnly(t *testing.T) {
	s := apply(t, begin(t), ready(), freeze(), decide())
	for r := range AbortReason(len(reasonNames) + 1) {
		e := lost()
		e.Reason = r
		got, err := Apply(s, e)
		if r != AbortTargetGone && r != AbortGivenUp {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%d: %v", r, err)
			}
			continue
		}
		if err != nil || got.State != StateAborted || got.AbortInfo.Reason != r || got.AbortInfo.Message != e.Message || got.Stats != nil || got.Manifest == nil {
			t.Errorf("%v: %+v, %v", r, got, err)
		}
	}
}

// TestTableOfTheComment proves the table in machine.go: every event in every phase.
func TestTableOfTheComment(t *testing.T) {
	want := commentTable(t)
	other := map[string]Event{ // the same event with other facts
		"Ready":  func() Event { e := ready(); e.SnapshotIDs = []int64{0, 5}; return handing(HandOverVerify, e) }(),
		"Freeze": func() Event { e := freeze(); e.Manifest.Length++; return e }(),
	}
	more := vended()
	more.AliveUntil = more.AliveUntil.Add(time.Second)
	for _, e := range []Event{ready(), freeze(), invalid(), decide(), published(), lost(), abort(), aborted(), EventHeartbeat{At: t0.Add(150 * time.Minute)}, more, verified()} {
		for i, p := range phases {
			t.Run(e.name()+" while "+p.name, func(t *testing.T) {
				// With hand-over verify, which has every event, and keys.
				path := slices.Clone(p.path)
				if len(path) > 0 {
					path = slices.Insert(path, 1, Event(vended()))
				}
				s := beginHanding(t, HandOverVerify, path...)
				s.Version = 9
				e := handing(HandOverVerify, e)
				got := outcome(t, s, e)
				if o, ok := other[e.name()]; ok && got == "same" {
					if kind := outcome(t, s, o); kind != "Wrong" {
						t.Errorf("with other facts: %s", kind)
					}
					got = "same="
				}
				if d, ok := e.(EventDecide); ok {
					d.FromFence = true
					if fenced := outcome(t, s, d); fenced != got {
						if got != "Ended" || fenced != "publishing" {
							t.Errorf("from the fence: %s", fenced)
						}
						got += "*"
					}
				}
				if got != want[e.name()][i] {
					t.Errorf("got %s, the table says %s", got, want[e.name()][i])
				}
			})
		}
	}
}

// outcome applies e to s in the words of the table, and proves purity on the way.
func outcome(t *testing.T, s Session, e Event) string {
	t.Helper()
	before := s.Clone()
	next, err := Apply(s, e)
	if diff := cmp.Diff(before, s); diff != "" {
		t.Fatalf("the input changed:\n%s", diff)
	}
	switch {
	case errors.Is(err, ErrWrongState):
		return "Wrong"
	case errors.Is(err, ErrEnded):
		return "Ended"
	case err != nil:
		t.Fatal(err)
	case cmp.Equal(next, s):
		return "same"
	}
	checkKept(t, s, next)
	touched := s.Clone()
	touched.Updated = next.Updated
	if cmp.Equal(next, touched) {
		return "touch"
	}
	return column(next)
}

// column names the column of the table that s is in.
func column(s Session) string {
	if s.Terminal() {
		return strings.ToLower(s.State.String())
	}
	return string(s.Phase())
}

// checkKept proves what no event may change.
func checkKept(t *testing.T, old, next Session) {
	t.Helper()
	kept := func(s Session) Session {
		return Session{Version: s.Version, ID: s.ID, SubmissionID: s.SubmissionID, Target: s.Target, Epoch: s.Epoch, Creator: s.Creator,
			DecisionID: s.DecisionID, PolicyRevision: s.PolicyRevision, Created: s.Created, BuildDeadline: s.BuildDeadline, HandOver: s.HandOver}
	}
	if diff := cmp.Diff(kept(old), kept(next)); diff != "" {
		t.Errorf("reserved fields changed:\n%s", diff)
	}
	if old.Manifest != nil && !reflect.DeepEqual(old.Manifest, next.Manifest) {
		t.Error("a frozen manifest changed")
	}
	if next.Updated.Before(old.Updated) {
		t.Error("Updated ran backwards")
	}
}

// commentTable reads the table out of the comment of machine.go.
func commentTable(t *testing.T) map[string][]string {
	src, err := os.ReadFile("machine.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t([A-Z][a-z]+) +(.*)$`).FindAllSubmatch(src, -1) {
		if cells := strings.Fields(string(m[2])); len(cells) == len(phases) {
			rows[string(m[1])] = cells
		}
	}
	if len(rows) != 11 {
		t.Fatalf("the comment has %d rows", len(rows))
	}
	return rows
}

// TestLifecycles runs the scripts in testdata/lifecycle: whole lives with their
// records after each step.
func TestLifecycles(t *testing.T) {
	datadriven.Walk(t, "testdata/lifecycle", func(t *testing.T, path string) {
		var s Session
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				s = begin(t)
				return show(s)
			}
			next, err := Apply(s, scriptEvent(t, d))
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			s = next
			return show(s)
		})
	})
}

// scriptEvent builds the event a script names; at= is the time since Begin.
func scriptEvent(t *testing.T, d *datadriven.TestData) Event {
	t.Helper()
	at := func(def time.Time) time.Time {
		var after string
		if d.MaybeScanArgs(t, "at", &after); after == "" {
			return def
		}
		dur, err := time.ParseDuration(after)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return t0.Add(dur)
	}
	switch d.Cmd {
	case "ready":
		e := ready()
		e.At = at(e.At)
		if d.HasArg("no-ids") {
			e.SnapshotIDs = nil
		}
		return e
	case "freeze":
		e := freeze()
		e.At = at(e.At)
		d.MaybeScanArgs(t, "path", &e.Manifest.Path)
		d.MaybeScanArgs(t, "sha256", &e.Manifest.SHA256)
		d.MaybeScanArgs(t, "length", &e.Manifest.Length)
		return e
	case "invalid":
		return EventInvalid{At: at(invalid().At), Message: d.Input}
	case "decide":
		e := decide()
		e.At, e.FromFence = at(e.At), d.HasArg("from-fence")
		return e
	case "published":
		e := published()
		e.At = at(e.At)
		return e
	case "abort":
		e := EventAbort{At: at(abort().At), Reason: AbortByCaller, Message: d.Input}
		var name string
		if d.MaybeScanArgs(t, "reason", &name); name != "" {
			if err := e.Reason.UnmarshalText([]byte(name)); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		return e
	case "aborted":
		e := aborted()
		e.At = at(e.At)
		return e
	case "heartbeat":
		return EventHeartbeat{At: at(t0)}
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return nil
}

// show prints what changes in a life.
func show(s Session) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%v (%s) updated +%v", s.State, s.Phase(), s.Updated.Sub(t0))
	if s.SnapshotIDs != nil {
		fmt.Fprintf(&b, "\n  snapshot ids %v, table %s", s.SnapshotIDs, s.TableJSON)
	}
	if s.Manifest != nil {
		fmt.Fprintf(&b, "\n  manifest %d bytes, decision deadline +%v", s.Manifest.Length, s.DecisionDeadline.Sub(t0))
	}
	if s.ValidationError != "" {
		fmt.Fprintf(&b, "\n  validation error: %s", s.ValidationError)
	}
	if s.Stats != nil {
		fmt.Fprintf(&b, "\n  stats %+v", *s.Stats)
	}
	if s.AbortInfo != nil {
		fmt.Fprintf(&b, "\n  abort %v: %s", s.AbortInfo.Reason, s.AbortInfo.Message)
	}
	if s.ResultExpires != nil {
		fmt.Fprintf(&b, "\n  result expires +%v", s.ResultExpires.Sub(t0))
	}
	return b.String() + "\n"
}

func TestApplyRefusesTimelessAndMissingEvents(t *testing.T) {
	s := begin(t)
	if _, err := Apply(s, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("no event: %v", err)
	}
	if _, err := Apply(s, EventHeartbeat{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no time: %v", err)
	}
	if _, err := Apply(Session{}, ready()); !errors.Is(err, ErrBroken) {
		t.Errorf("an empty record: %v", err)
	}
}

func TestApplySharesNoMemory(t *testing.T) {
	e := ready()
	id := int64(12)
	e.PartitionID = &id
	r := reservation()
	r.Target.Partition = "p=1"
	s, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	s = apply(t, s, e)
	want := s.Clone()
	e.SnapshotIDs[0], e.TableJSON[0], id = 77, '!', 78
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("the event's memory is in the record:\n%s", diff)
	}
	next := apply(t, s, freeze())
	next.SnapshotIDs[0], next.TableJSON[0], *next.PartitionID = 77, '!', 78
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("the new record's memory is in the old one:\n%s", diff)
	}
}

func TestTimesLoseZoneAndMonotonicClock(t *testing.T) {
	r := reservation()
	r.Created = time.Now().In(time.FixedZone("X", 3600))
	r.BuildDeadline = r.Created.Add(time.Hour)
	s, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	e := ready()
	e.At = r.Created.Add(time.Minute)
	f := freeze()
	f.At, f.DecisionDeadline = r.Created.Add(2*time.Minute), r.Created.Add(time.Hour)
	s = apply(t, s, e, f)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a store keeps the descriptor's bytes
	if err := enc.Encode(s); err != nil {
		t.Fatal(err)
	}
	var back Session
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, back) {
		t.Errorf("a record is not deeply equal to itself after storage:\n%s", cmp.Diff(s, back))
	}
}

func TestMessagesAreCutBetweenCharacters(t *testing.T) {
	for _, row := range []struct{ name, in, want string }{
		{"a short one stays", "no", "no"},
		{"one that just fits stays", strings.Repeat("x", 4096), strings.Repeat("x", 4096)},
		{"one byte too long", strings.Repeat("x", 4097), strings.Repeat("x", 4096)},
		{"a character over the end is dropped whole", strings.Repeat("x", 4095) + "é", strings.Repeat("x", 4095)},
		{"a character that ends at the end stays", strings.Repeat("x", 4094) + "éé", strings.Repeat("x", 4094) + "é"},
		{"four-byte characters", strings.Repeat("😀", 1025), strings.Repeat("😀", 1024)},
		{"four-byte characters out of step", "abc" + strings.Repeat("😀", 1025), "abc" + strings.Repeat("😀", 1023)},
		{"bytes that are no text are replaced first", "a\xffb", "a\uFFFDb"},
		{"replacement can make it too long", strings.Repeat("a\xff", 2000), strings.Repeat("a\uFFFD", 1024)},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := abort()
			e.Message = row.in
			got := apply(t, begin(t), e).AbortInfo.Message
			if got != row.want || !utf8.ValidString(got) {
				t.Errorf("got %d bytes ending in %q", len(got), got[max(0, len(got)-8):])
			}
			inv := invalid()
			inv.Message = row.in
			if got := apply(t, begin(t), ready(), freeze(), inv).ValidationError; got != row.want {
				t.Errorf("validation error: %d bytes", len(got))
			}
		})
	}
}

// TestCheckRefusesEachBrokenInvariant breaks one thing at a time in a record of
// each phase.
func TestCheckRefusesEachBrokenInvariant(t *testing.T) {
	stats, reason, when := &Stats{}, &Abort{Reason: AbortByCaller}, stampPtr(t0.Add(time.Hour))
	neg := int64(-1)
	for _, row := range []struct {
		name  string
		phase string
		edit  func(s *Session)
	}{
		{"id in capitals", "fencing", func(s *Session) { s.ID = strings.ToUpper(s.ID) }},
		{"id without dashes", "fencing", func(s *Session) { s.ID = strings.Repeat("a", 36) }},
		{"id with a path", "fencing", func(s *Session) { s.ID = "../c9a3e-5d2f-4a61-8c77-9e0f1a2b3c4d" }},
		{"epoch 0", "fencing", func(s *Session) { s.Epoch = 0 }},
		{"no submission id", "fencing", func(s *Session) { s.SubmissionID = "" }},
		{"an over-long submission id", "fencing", func(s *Session) { s.SubmissionID = strings.Repeat("x", 129) }},
		{"a submission id that is not ASCII", "fencing", func(s *Session) { s.SubmissionID = "é" }},
		{"no database", "fencing", func(s *Session) { s.Target.Database = "" }},
		{"no table", "fencing", func(s *Session) { s.Target.Table = "" }},
		{"a table with NUL", "fencing", func(s *Session) { s.Target.Table = "t\x00" }},
		{"no issuer", "fencing", func(s *Session) { s.Creator.Issuer = "" }},
		{"no subject", "fencing", func(s *Session) { s.Creator.Subject = "" }},
		{"no creation time", "fencing", func(s *Session) { s.Created = time.Time{} }},
		{"updated before creation", "fencing", func(s *Session) { s.Updated = t0.Add(-1) }},
		{"no build time", "fencing", func(s *Session) { s.BuildDeadline = t0 }},
		{"an unknown state", "fencing", func(s *Session) { s.State = 4 }},
		{"facts without snapshot ids", "building", func(s *Session) { s.SnapshotIDs = nil }},
		{"a plan without snapshot ids", "fencing", func(s *Session) { s.Plan.UploadRoot = "x" }},
		{"snapshot ids without table", "building", func(s *Session) { s.TableJSON = nil }},
		{"snapshot ids without root", "building", func(s *Session) { s.RemoteDataDir = "" }},
		{"snapshot ids with half a plan", "building", func(s *Session) { s.Plan.LogOffset = "" }},
		{"a negative snapshot id", "building", func(s *Session) { s.SnapshotIDs[1] = -1 }},
		{"a negative table id", "building", func(s *Session) { s.TableID = -1 }},
		{"a partition id without partition", "building", func(s *Session) { s.PartitionID = new(int64) }},
		{"a partition without id", "building", func(s *Session) { s.Target.Partition = "p" }},
		{"a negative partition id", "building", func(s *Session) { s.Target.Partition, s.PartitionID = "p", &neg }},
		{"a manifest without snapshot ids", "fencing", func(s *Session) { m := freeze().Manifest; s.Manifest, s.DecisionDeadline = &m, when }},
		{"a manifest without deadline", "frozen", func(s *Session) { s.DecisionDeadline = nil }},
		{"a deadline without manifest", "frozen", func(s *Session) { s.Manifest = nil }},
		{"a manifest elsewhere", "frozen", func(s *Session) { s.Manifest.Path += "x" }},
		{"an empty manifest", "frozen", func(s *Session) { s.Manifest.Length = 0 }},
		{"a manifest without digest", "frozen", func(s *Session) { s.Manifest.SHA256 = "" }},
		{"a digest in capitals", "frozen", func(s *Session) { s.Manifest.SHA256 = strings.Repeat("0A", 32) }},
		{"a validation error without manifest", "building", func(s *Session) { s.ValidationError = "x" }},
		{"a validation error after the decision", "publishing", func(s *Session) { s.ValidationError = "x" }},
		{"a long validation error", "frozen", func(s *Session) { s.ValidationError = strings.Repeat("x", 4097) }},
		{"stats before the decision", "frozen", func(s *Session) { s.Stats = stats }},
		{"no stats after it", "publishing", func(s *Session) { s.Stats = nil }},
		{"impossible stats", "publishing", func(s *Session) { s.Stats.Files = -1 }},
		{"COMMITTING without manifest", "building", func(s *Session) { s.State, s.Stats = StateCommitting, stats }},
		{"COMMITTED without expiry", "committed", func(s *Session) { s.ResultExpires = nil }},
		{"an expiry before the end", "publishing", func(s *Session) { s.ResultExpires = when }},
		{"an expiry before the beginning", "committed", func(s *Session) { s.ResultExpires = stampPtr(t0) }},
		{"an abort reason after the decision", "publishing", func(s *Session) { s.AbortInfo = reason }},
		{"ABORTED without reason", "aborted", func(s *Session) { s.AbortInfo = nil }},
		{"ABORTED with stats", "aborted", func(s *Session) { s.Stats = stats }},
		{"an unknown reason", "aborting", func(s *Session) { s.AbortInfo.Reason = AbortReason(len(reasonNames)) }},
		{"a long abort message", "aborting", func(s *Session) { s.AbortInfo.Message = strings.Repeat("x", 4097) }},
		{"an unknown hand-over", "fencing", func(s *Session) { s.HandOver = "COPY" }},
		{"a plan with another hand-over", "building", func(s *Session) { s.HandOver = HandOverWait }},
		{"a plan without hand-over", "building", func(s *Session) { s.Plan.HandOver = "" }},
		{"a second place without hand-over copy", "building", func(s *Session) { s.Plan.UploadRoot += "/x" }},
		{"one place with hand-over copy", "building", func(s *Session) { s.HandOver, s.Plan.HandOver = HandOverCopy, HandOverCopy }},
		{"keys that nobody expects", "building", func(s *Session) { s.KeysAliveUntil = when }},
		{"keys before the target is ready", "fencing", func(s *Session) { s.HandOver, s.KeysAliveUntil = HandOverWait, when }},
		{"keys that ended before the beginning", "building", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.KeysAliveUntil = HandOverWait, HandOverWait, stampPtr(t0)
		}},
		{"a verification before publication", "publishing", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.KeysAliveUntil, s.Verification = HandOverVerify, HandOverVerify, when, &Verification{Due: *when}
		}},
		{"a verification without hand-over verify", "committed", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.KeysAliveUntil, s.Verification = HandOverWait, HandOverWait, when, &Verification{Due: *when}
		}},
		{"a verification that is missing", "committed", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.KeysAliveUntil = HandOverVerify, HandOverVerify, when
		}},
		{"a verification without keys", "committed", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.Verification = HandOverVerify, HandOverVerify, &Verification{Due: *when}
		}},
		{"a verification that is due before the keys end", "committed", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.KeysAliveUntil, s.Verification = HandOverVerify, HandOverVerify, when, &Verification{Due: when.Add(-1)}
		}},
		{"a verification that was made before it was due", "committed", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.KeysAliveUntil, s.Verification = HandOverVerify, HandOverVerify, when, &Verification{Due: *when, Done: stampPtr(t0)}
		}},
		{"a verification error without verification", "committed", func(s *Session) {
			s.HandOver, s.Plan.HandOver, s.KeysAliveUntil, s.Verification = HandOverVerify, HandOverVerify, when, &Verification{Due: *when, Error: "x"}
		}},
		{"an abort message that is no text", "aborting", func(s *Session) { s.AbortInfo.Message = "\xff" }},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := inPhase(t, row.phase)
			if err := Check(s); err != nil {
				t.Fatalf("before: %v", err)
			}
			row.edit(&s)
			err := Check(s)
			if !errors.Is(err, ErrBroken) || errors.Is(err, ErrInvalid) {
				t.Errorf("Check: %v", err)
			}
			if _, err := Apply(s, EventHeartbeat{At: t0}); !errors.Is(err, ErrBroken) {
				t.Errorf("Apply: %v", err)
			}
		})
	}
}

func inPhase(t *testing.T, name string) Session {
	t.Helper()
	for _, p := range phases {
		if p.name == name {
			return apply(t, begin(t), p.path...)
		}
	}
	t.Fatalf("no phase %q", name)
	return Session{}
}

func TestNewRefusesBadReservations(t *testing.T) {
	for name, edit := range map[string]func(r *Reservation){
		"submission id":  func(r *Reservation) { r.SubmissionID = "a\nb" },
		"target":         func(r *Reservation) { r.Target = Target{} },
		"creator":        func(r *Reservation) { r.Creator = Principal{} },
		"build deadline": func(r *Reservation) { r.BuildDeadline = r.Created },
		"hand-over":      func(r *Reservation) { r.HandOver = "fast" },
	} {
		r := reservation()
		edit(&r)
		if _, err := New(r); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewAcceptsNamesWithWildcardsAndQuotes(t *testing.T) {
	r := reservation()
	r.Target = Target{Database: `*`, Table: `a"b'c$d`, Partition: `{x}=?`}
	if _, err := New(r); err != nil {
		t.Error(err)
	}
}

func TestDue(t *testing.T) {
	build, decision := t0.Add(24*time.Hour), t0.Add(25*time.Hour)
	for _, row := range []struct {
		name   string
		phase  string
		now    time.Time
		reason AbortReason
		want   bool
	}{
		{"fencing before the build deadline", "fencing", build.Add(-1), 0, false},
		{"fencing at the build deadline", "fencing", build, AbortBuildDeadline, true},
		{"building at the build deadline", "building", build, AbortBuildDeadline, true},
		{"frozen, the build deadline no longer counts", "frozen", build, 0, false},
		{"frozen at the decision deadline", "frozen", decision, AbortDecisionDeadline, true},
		{"aborting has none", "aborting", decision, 0, false},
		{"decided has none", "publishing", decision.Add(1e15), 0, false},
		{"ended has none", "committed", decision, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			reason, due := inPhase(t, row.phase).Due(row.now)
			if due != row.want || due && reason != row.reason {
				t.Errorf("got %v, %v", reason, due)
			}
		})
	}
	if s := inPhase(t, "committed"); s.Expired(s.ResultExpires.Add(-1)) || !s.Expired(*s.ResultExpires) || inPhase(t, "frozen").Expired(decision) {
		t.Error("Expired is wrong")
	}
}

func TestCheckEpoch(t *testing.T) {
	s := begin(t)
	for epoch, ok := range map[int64]bool{3: true, 2: false, 4: false, 0: false} {
		if err := s.CheckEpoch(epoch); ok != (err == nil) || !ok && !errors.Is(err, ErrStaleEpoch) {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
}

func TestCheckGrant(t *testing.T) {
	good := func() Grant {
		return Grant{ID: "g1", SessionID: reservation().ID, Epoch: 1, Target: reservation().Target, Principal: reservation().Creator,
			Scope: []string{"bucket:0:write"}, Audience: "sluice", IssuedAt: t0, ExpiresAt: t0.Add(time.Minute)}
	}
	if err := CheckGrant(good()); err != nil {
		t.Error(err)
	}
	reader := good()
	reader.SessionID, reader.Epoch = "", 0
	if err := CheckGrant(reader); err != nil {
		t.Errorf("a grant without session: %v", err)
	}
	for name, edit := range map[string]func(g *Grant){
		"no id":                   func(g *Grant) { g.ID = "" },
		"an id with control byte": func(g *Grant) { g.ID = "a\x01" },
		"a foreign session id":    func(g *Grant) { g.SessionID = "x" },
		"a session without epoch": func(g *Grant) { g.Epoch = 0 },
		"an epoch without session": func(g *Grant) {
			g.SessionID = ""
		},
		"no scope":      func(g *Grant) { g.Scope = nil },
		"no target":     func(g *Grant) { g.Target = Target{} },
		"no principal":  func(g *Grant) { g.Principal = Principal{} },
		"no issue time": func(g *Grant) { g.IssuedAt = time.Time{} },
		"no lifetime":   func(g *Grant) { g.ExpiresAt = g.IssuedAt },
	} {
		g := good()
		edit(&g)
		if err := CheckGrant(g); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysAreCountedOnceTheyAreVended(t *testing.T) {
	for _, h := range []HandOver{HandOverCopy, HandOverWait, HandOverVerify} {
		s := beginHanding(t, h, ready(), vended())
		if !s.KeysAliveUntil.Equal(keysEnd) || !s.KeysAlive(keysEnd.Add(-1)) || s.KeysAlive(keysEnd) {
			t.Errorf("%s: keys until %v", h, s.KeysAliveUntil)
		}
		earlier := vended()
		earlier.At, earlier.AliveUntil = earlier.At.Add(time.Minute), keysEnd.Add(-time.Hour)
		if got := apply(t, s, earlier); !reflect.DeepEqual(got, s) {
			t.Errorf("%s: keys that end earlier change %v", h, cmp.Diff(s, got))
		}
		late := vended()
		late.At = s.BuildDeadline
		if _, err := Apply(s, late); !errors.Is(err, ErrEnded) {
			t.Errorf("%s: keys at the build deadline: %v", h, err)
		}
		endless := vended()
		endless.AliveUntil = time.Time{}
		if _, err := Apply(s, endless); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: keys without an end: %v", h, err)
		}
		s = apply(t, s, freeze(), decide(), published())
		if !s.KeysAliveUntil.Equal(keysEnd) || (s.Verification != nil) != (h == HandOverVerify) {
			t.Errorf("%s: published with keys until %v and verification %+v", h, s.KeysAliveUntil, s.Verification)
		}
	}
	for _, h := range []HandOver{"", HandOverSame} {
		r := reservation()
		r.HandOver = h
		s, err := New(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Apply(apply(t, s, ready()), vended()); !errors.Is(err, ErrWrongState) {
			t.Errorf("keys with hand-over %q: %v", h, err)
		}
	}
}

func TestAVerificationIsMadeOnceAndNotBeforeItIsDue(t *testing.T) {
	s := beginHanding(t, HandOverVerify, ready(), vended(), freeze(), decide(), published())
	early := verified()
	early.At = keysEnd.Add(-1)
	if _, err := Apply(s, early); !errors.Is(err, ErrWrongState) {
		t.Errorf("before it is due: %v", err)
	}
	if s.Expired(*s.ResultExpires) {
		t.Error("a session is forgotten before it is verified")
	}
	done := apply(t, s, verified())
	if v := done.Verification; !v.Due.Equal(keysEnd) || v.Done == nil || !v.Done.Equal(keysEnd) || v.Error != verified().Error {
		t.Errorf("%+v", v)
	}
	if !done.Expired(*s.ResultExpires) || done.State != StateCommitted {
		t.Error("a verified session is kept for ever")
	}
	other := EventVerified{At: keysEnd.Add(time.Hour)}
	if got := apply(t, done, other); !reflect.DeepEqual(got, done) {
		t.Error("a second verification replaces the first")
	}
	none := beginHanding(t, HandOverVerify, ready(), freeze(), decide(), published())
	if _, err := Apply(none, verified()); !errors.Is(err, ErrWrongState) || none.Verification != nil {
		t.Errorf("without keys: %v, %+v", err, none.Verification)
	}
	*done.Verification.Done = t0
	if s.Verification.Done != nil || apply(t, s, verified()).Verification.Done.Equal(t0) {
		t.Error("records share a verification")
	}
}

func TestASessionIsNotForgottenWhileItsKeysLive(t *testing.T) {
	forever := vended()
	forever.AliveUntil = published().ResultExpires.Add(time.Hour)
	s := beginHanding(t, HandOverCopy, ready(), forever, freeze(), decide(), published())
	if s.Expired(forever.AliveUntil.Add(-1)) || !s.Expired(forever.AliveUntil) {
		t.Error("Expired does not wait for the last key")
	}
}

// FuzzEvents applies arbitrary sequences of events: Apply neither panics nor yields
// a record that Check refuses, and the decision is irreversible.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{0, 1, 3, 4})
	f.Add([]byte{0, 1, 2, 5, 8, 4})
	f.Add([]byte{5, 6, 0})
	f.Add([]byte{0, 91, 1, 3, 4, 93, 8, 9, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		hands := []HandOver{"", HandOverSame, HandOverCopy, HandOverWait, HandOverVerify}
		h := hands[len(ops)%len(hands)].Effective()
		s := beginHanding(t, h)
		for i, op := range ops {
			at := t0.Add(time.Duration(int(op)-64) * 20 * time.Minute)
			events := []Event{handing(h, ready()), freeze(), invalid(), decide(), published(), abort(), aborted(), EventHeartbeat{At: at},
				EventVended{At: at, AliveUntil: at.Add(time.Hour)}, EventVerified{At: at.Add(time.Hour)},
				EventDecide{At: at, FromFence: true}, EventAbort{At: at, Reason: AbortReason(op % 8)},
				EventFreeze{At: at, Manifest: freeze().Manifest, DecisionDeadline: at.Add(time.Hour)}}
			next, err := Apply(s, events[int(op)%len(events)])
			if err != nil {
				continue
			}
			if err := Check(next); err != nil {
				t.Fatalf("after %d events: %v", i, err)
			}
			if s.State != StateBegun && next.State < s.State || s.Terminal() && next.State != s.State {
				t.Fatalf("%v became %v", s.State, next.State)
			}
			checkKept(t, s, next)
			s = next
		}
	})
}
