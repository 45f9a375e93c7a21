package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// Report says what a candidate would have changed. Counts are of decisions.
type Report struct {
	Candidate string `json:"candidate"`      // revision
	Base      string `json:"base,omitempty"` // revision compared with; empty = what is recorded
	Source    string `json:"source,omitempty"`
	// Since and Until are the span that was asked for.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// From and To are the times of the first and last entry.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`

	Entries  uint64 `json:"entries"`
	Replayed uint64 `json:"replayed"`
	// NotReplayable counts the entries that were not, by why.
	NotReplayable map[string]uint64 `json:"not_replayable"`
	// Recorded counts the replayed entries by the revision that decided them.
	Recorded map[string]uint64 `json:"recorded_revisions"`
	Same     uint64            `json:"same"`
	// OtherRule are those of Same that another rule decided alike.
	OtherRule uint64 `json:"other_rule"`
	Changed   uint64 `json:"changed"`
	// Lost are allows that became a denial or an error, Gained the reverse.
	Lost   uint64          `json:"lost"`
	Gained uint64          `json:"gained"`
	Kinds  map[Kind]uint64 `json:"kinds"`
	// Groups are the changes by kind, rule, principal and target; the gravest kind and
	// the largest group first.
	Groups []*Group `json:"groups"`
	// Ungrouped counts differences beyond Options.MaxGroups groups.
	Ungrouped uint64 `json:"ungrouped"`

	ByRule      []Total `json:"by_rule"`
	ByPrincipal []Total `json:"by_principal"`
	ByTarget    []Total `json:"by_target"`
}

// Unplayable is how many entries were not replayed.
func (r *Report) Unplayable() uint64 { return r.Entries - r.Replayed }

// Group is one kind of change of one principal on one target by one rule.
type Group struct {
	Kind Kind `json:"kind"`
	// Rule allowed before if an allow was lost, else it decides now.
	Rule      string        `json:"rule"`
	Principal string        `json:"principal"` // issuer, a space, subject
	Target    string        `json:"target"`    // database.table; empty = none
	Action    policy.Action `json:"action"`
	Count     uint64        `json:"count"`
	First     time.Time     `json:"first"`
	Last      time.Time     `json:"last"`
	Samples   []Sample      `json:"samples"`
}

// Sample is one changed decision.
type Sample struct {
	Seq      uint64    `json:"seq"`
	Decision string    `json:"decision_id"`
	Time     time.Time `json:"time"`
	Before   Outcome   `json:"before"`
	After    Outcome   `json:"after"`
}

// Outcome is a decision as reports show it.
type Outcome struct {
	Outcome     string              `json:"outcome"` // allow, deny, error
	Rule        string              `json:"rule,omitempty"`
	Reasons     []string            `json:"reasons,omitempty"`
	Constraints *policy.Constraints `json:"constraints,omitempty"`
	Error       string              `json:"error,omitempty"`
}

// Total sums the changes of one rule, principal or target.
type Total struct {
	Name   string          `json:"name"`
	Lost   uint64          `json:"lost"`
	Gained uint64          `json:"gained"`
	Kinds  map[Kind]uint64 `json:"kinds"`
}

type groupKey struct {
	kind                    Kind
	rule, principal, target string
	action                  policy.Action
}

func keyOf(k Kind, in *policy.Input, a *answer) groupKey {
	key := groupKey{kind: k, rule: a.after.d.Rule, action: in.Action, principal: principalName(&in.Principal)}
	if k.lost() || key.rule == "" {
		key.rule = a.before.d.Rule
	}
	if t := in.Target; t != nil {
		key.target = t.Database
		if t.Table != "" {
			key.target += "." + t.Table
		}
	}
	return key
}

// principalName is issuer and subject; an issuer has no space.
func principalName(p *policy.Principal) string { return p.Issuer + " " + p.Subject }

func newGroup(k groupKey) *Group {
	return &Group{Kind: k.kind, Rule: k.rule, Principal: k.principal, Target: k.target, Action: k.action, Samples: []Sample{}}
}

func (g *Group) key() groupKey { return groupKey{g.Kind, g.Rule, g.Principal, g.Target, g.Action} }

func sampleOf(e *Entry, a *answer) Sample {
	return Sample{Seq: e.Seq, Decision: e.Record.Decision.ID, Time: e.Record.Time, Before: a.before.shown(), After: a.after.shown()}
}

func (o *outcome) shown() Outcome {
	out := Outcome{Outcome: o.name(), Rule: o.d.Rule, Reasons: o.d.Reasons, Error: o.err}
	if out.Outcome == outcomeAllow {
		c := o.d.Constraints
		if c.MaxTTL != nil || c.Ops != nil || c.Buckets != nil {
			out.Constraints = &c
		}
	}
	return out
}

// finish sorts the groups and sums them up.
func (r *Report) finish() {
	if r.Groups == nil {
		r.Groups = []*Group{}
	}
	slices.SortFunc(r.Groups, func(a, b *Group) int {
		return cmp.Or(slices.Index(Kinds, a.Kind)-slices.Index(Kinds, b.Kind), cmp.Compare(b.Count, a.Count),
			strings.Compare(a.Principal, b.Principal), strings.Compare(a.Target, b.Target),
			strings.Compare(a.Rule, b.Rule), strings.Compare(string(a.Action), string(b.Action)))
	})
	r.ByRule = totals(r.Groups, func(g *Group) string { return g.Rule })
	r.ByPrincipal = totals(r.Groups, func(g *Group) string { return g.Principal })
	r.ByTarget = totals(r.Groups, func(g *Group) string { return g.Target })
}

func totals(groups []*Group, name func(*Group) string) []Total {
	by := map[string]*Total{}
	out := []Total{}
	for _, g := range groups {
		t := by[name(g)]
		if t == nil {
			t = &Total{Name: name(g), Kinds: map[Kind]uint64{}}
			by[t.Name] = t
		}
		t.Kinds[g.Kind] += g.Count
		if g.Kind.lost() {
			t.Lost += g.Count
		}
		if g.Kind.gained() {
			t.Gained += g.Count
		}
	}
	for _, t := range by {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b Total) int {
		return cmp.Or(cmp.Compare(b.Lost, a.Lost), cmp.Compare(b.Gained, a.Gained), strings.Compare(a.Name, b.Name))
	})
	return out
}

// ChangeFile is where the list of all changes goes: an *os.File.
type ChangeFile interface {
	io.WriteSeeker
	Truncate(size int64) error
	Sync() error
}

// Change is one line of the list of changes.
type Change struct {
	Kinds  []Kind       `json:"kinds"`
	Input  policy.Input `json:"input"`
	Sample              // flat
}

// cutTo drops what was written after the cursor: those entries are replayed again.
func cutTo(f ChangeFile, size int64) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil && end < size {
		err = fmt.Errorf("it has %d bytes and the cursor says %d: it is another file", end, size)
	}
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		_, err = f.Seek(size, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("replay: list of changes: %w", err)
	}
	return nil
}

func (r *run) write(e *Entry, a *answer, kinds []Kind) error {
	if r.o.Changes == nil {
		return nil
	}
	b, err := json.Marshal(Change{Kinds: kinds, Input: e.Record.Input, Sample: sampleOf(e, a)})
	if err == nil {
		var n int
		n, err = r.o.Changes.Write(append(b, '\n'))
		r.state.ChangesSize += int64(n)
	}
	if err != nil {
		return fmt.Errorf("replay: list of changes: %w", err)
	}
	return nil
}
