package broker

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/directory"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// willing is a driver that takes every option, and says that its target is missing.
type willing struct {
	*directory.Driver
	defaults session.Options
	missing  bool
	resolved []session.Options
}

func (d *willing) Capabilities() target.Capabilities {
	c := d.Driver.Capabilities()
	c.Defaults = d.defaults
	return c
}

func (d *willing) Resolve(ctx context.Context, t session.Target, o session.Options) (target.Resolved, error) {
	d.resolved = append(d.resolved, o)
	r, err := d.Driver.Resolve(ctx, t, session.Options{})
	r.Missing = d.missing
	return r, err
}

func TestALoadThatMayCreateOrDropAsksForIt(t *testing.T) {
	for _, c := range []struct {
		name     string
		defaults session.Options
		missing  bool
		wish     session.Options
		ops      []string
		kept     session.Options
	}{
		{"an ordinary load", session.Options{Publication: "p"}, false, session.Options{}, nil, session.Options{Publication: "p"}},
		{"create what is missing", session.Options{}, true, session.Options{Missing: session.MissingCreate}, []string{"create"}, session.Options{Missing: session.MissingCreate}},
		{"create what exists, as it may be dropped meanwhile", session.Options{}, false, session.Options{Missing: session.MissingCreate}, []string{"create"}, session.Options{Missing: session.MissingCreate}},
		{"replace", session.Options{}, false, session.Options{ReplaceEmpty: true}, []string{"create", "drop"}, session.Options{ReplaceEmpty: true}},
		{"remove", session.Options{}, false, session.Options{RemoveCreated: true}, []string{"drop"}, session.Options{RemoveCreated: true}},
		{"the server creates, and it is missing", session.Options{Missing: session.MissingBirth}, true, session.Options{}, []string{"create"}, session.Options{Missing: session.MissingBirth}},
		{"the server creates, and it exists", session.Options{Missing: session.MissingBirth}, false, session.Options{}, nil, session.Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			w.table("places")
			d := &willing{Driver: w.driver, defaults: c.defaults, missing: c.missing}
			w.config.Driver = d
			w.reopen()
			w.asked = nil
			s, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", Options: c.wish})
			if err != nil {
				t.Fatal(err)
			}
			if s.Options != c.kept {
				t.Errorf("the record says %+v, want %+v", s.Options, c.kept)
			}
			var ops []string
			for _, in := range w.asked {
				if in.Action == policy.ActionTableWrite {
					ops = append(ops, in.Request.Ops...)
				}
			}
			if !slices.Equal(ops, c.ops) {
				t.Errorf("asked for %v, want %v", ops, c.ops)
			}

			// Whoever may not do it gets no session, and nothing was done.
			w.rules = func(in policy.Input) policy.Decision {
				return policy.Decision{Allow: in.Action != policy.ActionTableWrite, Rule: "no tables"}
			}
			other := session.Target{Database: "geo", Table: "other"}
			if _, err := w.driver.CreateTable(ctx, other.Database, other.Table, descriptor(false, 1, "")); err != nil {
				t.Fatal(err)
			}
			_, _, err = w.Begin(ctx, alice, BeginRequest{Target: other, SubmissionID: "two", Options: c.wish})
			if denied := errors.Is(err, policy.ErrDenied); denied != (c.ops != nil) {
				t.Errorf("without the right: %v", err)
			}
			if _, err := w.store.BySubmission(ctx, alice.Principal, other, "two"); errors.Is(err, session.ErrNotFound) != (c.ops != nil) {
				t.Errorf("the store says %v", err)
			}
		})
	}
}

func TestPolicySeesHowALoadIsPublished(t *testing.T) {
	w := open(t)
	w.table("places")
	d := &willing{Driver: w.driver, defaults: session.Options{Publication: "in_place"}}
	w.config.Driver = d
	w.reopen()
	w.asked = nil
	wish := session.Options{Visibility: session.VisibilityAtomic, ReplaceEmpty: true, Missing: session.MissingBirth}
	if _, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", Options: wish}); err != nil {
		t.Fatal(err)
	}
	if len(w.asked) < 2 {
		t.Fatalf("asked %d times", len(w.asked))
	}
	for _, in := range w.asked[:2] {
		r := in.Request
		if r.HandOver != "same" || r.Publication != "in_place" || r.Visibility != "atomic" || r.Missing != "birth" || !r.ReplaceEmpty {
			t.Errorf("%s sees %+v", in.Action, r)
		}
	}
}

func TestASubmissionStandsForItsOptions(t *testing.T) {
	w := open(t)
	w.table("places")
	w.config.Driver = &willing{Driver: w.driver, defaults: session.Options{Publication: "in_place"}}
	w.reopen()
	first := BeginRequest{Target: places, SubmissionID: "one", Options: session.Options{ReplaceEmpty: true}}
	s, _, err := w.Begin(ctx, alice, first)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o  session.Options
		ok bool
	}{
		"the same":                           {first.Options, true},
		"with what the server chose by name": {session.Options{ReplaceEmpty: true, Publication: "in_place"}, true},
		"another publication":                {session.Options{ReplaceEmpty: true, Publication: "birth"}, false},
		"nothing replaced":                   {session.Options{}, false},
		"an unknown word":                    {session.Options{Missing: "?"}, false},
	} {
		again, created, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: "one", Options: c.o})
		if c.ok && (err != nil || created || again.ID != s.ID) || !c.ok && !errors.Is(err, session.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAWarehouseRefusesWhatOnlyAClusterCanDo(t *testing.T) {
	w := open(t)
	w.table("places")
	for name, c := range map[string]struct {
		o  session.Options
		ok bool
	}{
		"atomic, as always": {session.Options{Visibility: session.VisibilityAtomic}, true},
		"its own way":       {session.Options{Publication: "conditional-write"}, true},
		"in place":          {session.Options{Publication: "in_place"}, false},
		"create":            {session.Options{Missing: session.MissingCreate}, false},
		"replace":           {session.Options{ReplaceEmpty: true}, false},
	} {
		s, _, err := w.Begin(ctx, alice, BeginRequest{Target: places, SubmissionID: name, Options: c.o})
		if c.ok != (err == nil) || err != nil && !errors.Is(err, session.ErrTargetRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if s.Plan.Visibility != session.VisibilityAtomic {
				t.Errorf("%s: the plan says %q", name, s.Plan.Visibility)
			}
			if _, err := w.Abort(ctx, alice, s.ID, s.Epoch); err != nil {
				t.Fatal(err)
			}
		}
	}
}
