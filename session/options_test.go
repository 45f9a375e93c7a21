package session

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestOptionsCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		ok   bool
	}{
		{"nothing chosen", Options{}, true},
		{"everything chosen", Options{Publication: "birth", Visibility: VisibilityAtomic, Missing: MissingBirth, ReplaceEmpty: true, RemoveCreated: true, TableJSON: `{}`}, true},
		{"a visibility that is no wish", Options{Visibility: VisibilityBuckets}, false},
		{"an unknown missing", Options{Missing: "drop"}, false},
		{"a descriptor of a table that must exist", Options{TableJSON: `{}`}, false},
		{"a descriptor that is not JSON", Options{Missing: MissingBirth, TableJSON: `{`}, false},
		{"a descriptor that is too long", Options{Missing: MissingBirth, TableJSON: `"` + strings.Repeat("a", MaxTableJSON) + `"`}, false},
		{"a publication with a control character", Options{Publication: "in\nplace"}, false},
		{"a publication that is too long", Options{Publication: strings.Repeat("a", maxPublication+1)}, false},
	} {
		if err := c.o.Check(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestOptionsFulfilAWish(t *testing.T) {
	have := Options{Publication: "in_place", Visibility: VisibilityAtomic, Missing: MissingCreate, ReplaceEmpty: true, RemoveCreated: true, TableJSON: `{}`}
	wish := func(change func(*Options)) Options {
		o := have
		change(&o)
		return o
	}
	for _, c := range []struct {
		name string
		wish Options
		ok   bool
	}{
		{"the same", have, true},
		{"words left open", wish(func(o *Options) { o.Publication, o.Visibility, o.Missing, o.RemoveCreated = "", "", "", false }), true},
		{"another publication", wish(func(o *Options) { o.Publication = "birth" }), false},
		{"another missing", wish(func(o *Options) { o.Missing = MissingBirth }), false},
		{"nothing is replaced", wish(func(o *Options) { o.ReplaceEmpty = false }), false},
		{"another table", wish(func(o *Options) { o.TableJSON = `[]` }), false},
	} {
		if got := have.Fulfil(c.wish); got != c.ok {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if (Options{}).Fulfil(Options{RemoveCreated: true}) || (Options{}).Fulfil(Options{Visibility: VisibilityAtomic}) {
		t.Error("a load without options fulfils wishes")
	}
}

func TestOptionsAreKeptAndOldRecordsHaveNone(t *testing.T) {
	created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := Reservation{
		ID: "0f8b3f0e-6f5a-4d6c-9d1b-2b0f8a3c7e11", SubmissionID: "s", Target: Target{Database: "d", Table: "t"}, Epoch: 1,
		Creator: Principal{Issuer: "i", Subject: "s"}, Created: created, BuildDeadline: created.Add(time.Hour),
	}
	plain, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(plain); strings.Contains(string(b), "options") {
		t.Errorf("a record without options says %s", b)
	}
	r.Options = Options{Publication: "birth", Missing: MissingBirth, TableJSON: `{"a":1}`}
	s, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Session
	if err := json.Unmarshal(b, &back); err != nil || back.Options != r.Options {
		t.Errorf("%+v, %v", back.Options, err)
	}
	r.Options.Visibility = "some"
	if _, err := New(r); !errors.Is(err, ErrInvalid) {
		t.Errorf("bad options: %v", err)
	}
}
