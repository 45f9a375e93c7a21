package revision_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/session/kv"
	"github.com/fluss-sluice/sluice/session/pebblestore"
)

// stores are the places revisions are kept in.
func stores(t *testing.T) map[string]kv.Store {
	t.Helper()
	db, err := pebblestore.Open("db", pebblestore.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(db.Verify(context.Background()), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return map[string]kv.Store{"memory": &kv.Memory{}, "pebble": db.KV("policy")}
}

const rules = `package sluice.authz

default decision := {"allow": false}

decision := {"allow": true} if data.friends[input.principal.subject]
`

func bundle(t *testing.T, rules, data, tests string) *policy.Bundle {
	t.Helper()
	files := []policy.BundleFile{{Name: "authz.rego", Text: []byte(rules)}, {Name: "data.json", Text: []byte(data)}}
	if tests != "" {
		files = append(files, policy.BundleFile{Name: "authz_test.rego", Text: []byte(tests)})
	}
	b, err := policy.NewBundle("test", files)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func befriend(name string) policy.DataDelta {
	return policy.DataDelta{Ops: []policy.DataOp{{Op: policy.OpSet, Path: []string{"friends", name}, Value: json.RawMessage(`true`)}}}
}

var start = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func meta(n int) revision.Meta {
	return revision.Meta{Author: "ann", Message: fmt.Sprint("edit ", n), Time: start.Add(time.Duration(n) * time.Second), Source: revision.Source{Kind: revision.SourcePush}}
}

// same reports whether two bundles are the same, tests included.
func same(a, b *policy.Bundle) bool {
	return a.Revision() == b.Revision() && a.TestsDigest() == b.TestsDigest() && string(a.Data()) == string(b.Data()) &&
		reflect.DeepEqual(a.RuleFiles(), b.RuleFiles())
}

func TestRevisionsComeBack(t *testing.T) {
	for name, kv := range stores(t) {
		s := revision.New(kv)
		if _, _, err := s.Get(t.Context(), strings.Repeat("0", 64)); !errors.Is(err, revision.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		var want []revision.Meta
		var bundles []*policy.Bundle
		for i, data := range []string{`{"friends":{}}`, `{"friends":{"<&>":true}}`} {
			for j, r := range []string{rules, rules + "\n# another\n"} {
				b := bundle(t, r, data, "package sluice.authz_test\n")
				m, err := s.Put(t.Context(), b, meta(2*i+j))
				if err != nil || m.ID != b.Revision().ID || m.Rules != b.Revision().Rules || m.Data != b.Revision().Data {
					t.Fatalf("%s: %+v, %v", name, m, err)
				}
				want, bundles = append([]revision.Meta{m}, want...), append([]*policy.Bundle{b}, bundles...)
			}
		}
		for i, m := range want {
			for _, like := range append(bundles, nil) {
				b, got, err := s.GetLike(t.Context(), m.ID[:10], like)
				if err != nil || got != m || !same(b, bundles[i]) {
					t.Errorf("%s: %+v, %v", name, got, err)
				}
			}
		}
		all, err := s.List(t.Context(), "", 0)
		if err != nil || !reflect.DeepEqual(all, want) {
			t.Errorf("%s: the list is %+v, %v", name, all, err)
		}
		page, err := s.List(t.Context(), want[1].ID, 1)
		if err != nil || len(page) != 1 || page[0] != want[2] {
			t.Errorf("%s: the page is %+v, %v", name, page, err)
		}
		for _, id := range []string{"", "1234567", strings.Repeat("f", 65), "zzzzzzzz", want[0].ID + "0"} {
			if _, err := s.Meta(t.Context(), id); !errors.Is(err, revision.ErrNotFound) {
				t.Errorf("%s: id %q: %v", name, id, err)
			}
		}
	}
}

// TestARevisionStays: storing it again changes nothing but its tests, which do not
// decide.
func TestARevisionStays(t *testing.T) {
	for name, kv := range stores(t) {
		s := revision.New(kv)
		b := bundle(t, rules, `{"friends":{}}`, "package sluice.authz_test\n")
		first, err := s.Put(t.Context(), b, meta(1))
		if err != nil {
			t.Fatal(err)
		}
		again := meta(2)
		again.Author = "eve"
		if got, err := s.Put(t.Context(), b, again); err != nil || got != first {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		tested := bundle(t, rules, `{"friends":{}}`, "package sluice.authz_test\n\ntest_x if true\n")
		again.Summary = &revision.Summary{Passed: 1, Coverage: 50}
		got, err := s.Put(t.Context(), tested, again)
		if err != nil || got.Author != "ann" || got.Tests != tested.TestsDigest() || got.Summary == nil || got.ID != first.ID {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if b, _, err := s.Get(t.Context(), first.ID); err != nil || !same(b, tested) {
			t.Errorf("%s: %v", name, err)
		}
		if all, err := s.List(t.Context(), "", 0); err != nil || len(all) != 1 {
			t.Errorf("%s: %d revisions, %v", name, len(all), err)
		}
	}
}

// TestDeltasComeBack stores more edits than fit between two documents.
func TestDeltasComeBack(t *testing.T) {
	const edits = 1030
	for name, kv := range stores(t) {
		s := revision.New(kv)
		b := bundle(t, rules, `{"friends":{}}`, "")
		m, err := s.Put(t.Context(), b, meta(0))
		if err != nil {
			t.Fatal(err)
		}
		bundles := map[string]*policy.Bundle{m.ID: b}
		for i := range edits {
			d, next := befriend(fmt.Sprint("friend-", i)), meta(i+1)
			next.Parent, next.Source.Kind = m.ID, revision.SourceDelta
			before := b.Revision()
			if b, err = b.Patch(d); err != nil {
				t.Fatal(err)
			}
			if m, err = s.PutDelta(t.Context(), b, d, next); err != nil {
				t.Fatal(err)
			}
			bundles[m.ID] = b
			got, ok, err := s.Delta(t.Context(), before, m.ID)
			if whole := i == 1023; err != nil || ok == whole || ok && (got.Base != before.ID || !reflect.DeepEqual(got.Ops, d.Ops)) {
				t.Errorf("%s: edit %d: %+v %v %v", name, i, got, ok, err)
			}
		}
		i := 0
		for id, want := range bundles {
			got, _, err := s.Get(t.Context(), id)
			if err != nil || !same(got, want) {
				t.Fatalf("%s: %v", name, err)
			}
			if i++; i == 20 {
				break
			}
		}
		like := bundles[m.ID]
		for id, want := range bundles {
			if got, _, err := s.GetLike(t.Context(), id, like); err != nil || !same(got, want) {
				t.Fatalf("%s: %v", name, err)
			}
			if i++; i == 40 {
				break
			}
		}
		// From scratch another rule set does not follow by an edit.
		other := bundle(t, rules+"# other\n", `{"friends":{}}`, "")
		wrong := meta(999)
		wrong.Parent = m.ID
		if _, err := s.PutDelta(t.Context(), other, befriend("x"), wrong); err == nil {
			t.Errorf("%s: an edit of the data changes rules", name)
		}
	}
}

func TestStateChangesByCompareAndSwap(t *testing.T) {
	for name, kv := range stores(t) {
		s := revision.New(kv)
		zero, err := s.State(t.Context())
		if err != nil || !reflect.DeepEqual(zero, revision.State{}) {
			t.Fatalf("%s: %+v, %v", name, zero, err)
		}
		next := zero
		next.Active, next.Since = "a", start
		next.Candidate = &revision.Candidate{Revision: "b", Approvals: []revision.Approval{{By: "bob", At: start}}, State: revision.StateSoaking, Until: start}
		next.Band = &revision.Band{MaxDenyRate: .5, Window: time.Minute}
		next.History = make([]revision.Change, revision.MaxHistory+7)
		first, err := s.Swap(t.Context(), next)
		if err != nil || first.Version != 1 || len(first.History) != revision.MaxHistory {
			t.Fatalf("%s: %+v, %v", name, first, err)
		}
		if got, err := s.State(t.Context()); err != nil || !reflect.DeepEqual(got, first) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if _, err := s.Swap(t.Context(), next); !errors.Is(err, revision.ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
		first.Active, first.Previous = "b", "a"
		if second, err := s.Swap(t.Context(), first); err != nil || second.Version != 2 {
			t.Errorf("%s: %+v, %v", name, second, err)
		}
	}
}

// faulty fails one write, which is stored or not.
type faulty struct {
	kv.Store
	left   int
	stored bool
}

var errFault = errors.New("fault")

func (f *faulty) Apply(ctx context.Context, ops ...kv.Op) error {
	if f.left--; f.left != 0 {
		return f.Store.Apply(ctx, ops...)
	}
	if f.stored {
		if err := f.Store.Apply(ctx, ops...); err != nil {
			return err
		}
	}
	return errFault
}

// TestEachFailedWriteMayBeRepeated fails each write of a short history, stored and
// not, repeats what failed, and ends where an undisturbed history does.
func TestEachFailedWriteMayBeRepeated(t *testing.T) {
	history := func(f *faulty) (faults int) {
		s := revision.New(f)
		try := func(do func() error) {
			err := do()
			if errors.Is(err, errFault) {
				faults++
				err = do()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		b := bundle(t, rules, `{"friends":{}}`, "")
		try(func() error { _, err := s.Put(t.Context(), b, meta(0)); return err })
		m := meta(1)
		m.Parent = b.Revision().ID
		patched, err := b.Patch(befriend("bob"))
		if err != nil {
			t.Fatal(err)
		}
		try(func() error { _, err := s.PutDelta(t.Context(), patched, befriend("bob"), m); return err })
		for _, id := range []string{b.Revision().ID, patched.Revision().ID} {
			try(func() error {
				st, err := s.State(t.Context()) // as whoever repeats does
				if err != nil || st.Active == id {
					return err
				}
				st.Active = id
				_, err = s.Swap(t.Context(), st)
				return err
			})
		}
		return faults
	}
	content := func(s kv.Store) (out []kv.Entry) {
		if err := s.Scan(t.Context(), "", "", func(e kv.Entry) (bool, error) { out = append(out, e); return true, nil }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	clean := &kv.Memory{}
	history(&faulty{Store: clean})
	want := content(clean)
	if len(want) == 0 {
		t.Fatal("nothing was stored")
	}
	for _, stored := range []bool{false, true} {
		n := 1
		for ; ; n++ {
			for name, s := range stores(t) {
				if faults := history(&faulty{Store: s, left: n, stored: stored}); faults == 0 && n < 5 {
					t.Errorf("%s: write %d did not fail", name, n)
				}
				if got := content(s); !reflect.DeepEqual(got, want) {
					t.Errorf("%s: write %d failed, stored %v: %d values, want %d: %.600v", name, n, stored, len(got), len(want), got)
				}
			}
			if n == 5 {
				break
			}
		}
	}
}

// TestDamageIsNoticed takes away or changes each stored object.
func TestDamageIsNoticed(t *testing.T) {
	s := &kv.Memory{}
	b := bundle(t, rules, `{"friends":{}}`, "")
	other := bundle(t, rules+"# other\n", `{"friends":{"eve":true}}`, "package x\n")
	store := revision.New(s)
	for i, b := range []*policy.Bundle{b, other} {
		if _, err := store.Put(t.Context(), b, meta(i)); err != nil {
			t.Fatal(err)
		}
	}
	r, o := b.Revision(), other.Revision()
	for key, instead := range map[string]string{"rules/" + r.Rules: "rules/" + o.Rules, "data/" + r.Data: "data/" + o.Data, "tests/" + b.TestsDigest(): "", "rev/" + r.ID: "rev/" + o.ID} {
		good, _, err := s.Get(t.Context(), key)
		if err != nil || good == nil {
			t.Fatalf("%s: %v", key, err)
		}
		swapped, _, err := s.Get(t.Context(), instead)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range [][]byte{good[:len(good)/2], []byte("{}"), {}, swapped} {
			if err := s.Apply(t.Context(), kv.Op{Key: key, Value: bad, Any: true}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := store.Get(t.Context(), r.ID); !errors.Is(err, revision.ErrCorrupt) {
				t.Errorf("%s is %.20q: %v", key, bad, err)
			}
		}
		if err := s.Apply(t.Context(), kv.Op{Key: key, Value: good, Any: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := store.Get(t.Context(), r.ID); err != nil {
		t.Error(err)
	}
}
