package session

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

func TestStatesAndReasonsHaveUpstreamCodesAndNames(t *testing.T) {
	for code, name := range []string{"BEGUN", "COMMITTING", "COMMITTED", "ABORTED"} {
		var s State
		b, err := json.Marshal(State(code))
		if err != nil || string(b) != `"`+name+`"` {
			t.Errorf("state %d marshals as %s, %v", code, b, err)
		}
		if err := json.Unmarshal(b, &s); err != nil || int(s) != code || s.String() != name {
			t.Errorf("state %s reads as %v, %v", b, s, err)
		}
	}
	for code, name := range []string{"TARGET_NOT_EMPTY", "BUILD_DEADLINE_EXCEEDED", "COMMIT_DECISION_DEADLINE_EXCEEDED", "ABORTED_BY_CALLER", "FENCE_LOST", "TARGET_GONE", "GIVEN_UP"} {
		var r AbortReason
		b, err := json.Marshal(AbortReason(code))
		if err != nil || string(b) != `"`+name+`"` {
			t.Errorf("reason %d marshals as %s, %v", code, b, err)
		}
		if err := json.Unmarshal(b, &r); err != nil || int(r) != code || r.String() != name {
			t.Errorf("reason %s reads as %v, %v", b, r, err)
		}
	}
}

func TestUnknownStatesAndReasonsAreErrors(t *testing.T) {
	if _, err := json.Marshal(State(4)); err == nil {
		t.Error("state 4 marshals")
	}
	if _, err := json.Marshal(AbortReason(len(reasonNames))); err == nil {
		t.Error("an unknown reason marshals")
	}
	for _, in := range []string{`"begun"`, `""`, `0`, `"BEGUN "`} {
		var s State
		var r AbortReason
		if json.Unmarshal([]byte(in), &s) == nil || json.Unmarshal([]byte(in), &r) == nil {
			t.Errorf("%s is read", in)
		}
	}
	if State(9).String() != "State(9)" || AbortReason(9).String() != "AbortReason(9)" {
		t.Error("unknown codes lose their number")
	}
}

func TestLimits(t *testing.T) {
	if err := DefaultLimits().Check(); err != nil {
		t.Error(err)
	}
	if err := (Limits{}).Check(); !errors.Is(err, ErrInvalid) {
		t.Errorf("zero limits: %v", err)
	}
	for name, edit := range map[string]func(l *Limits){
		"no active sessions":       func(l *Limits) { l.MaxActive = 0 },
		"a default over the max":   func(l *Limits) { l.BuildTimeoutDefault = l.BuildTimeoutMax + 1 },
		"a token default over max": func(l *Limits) { l.TokenTTLMax = l.TokenTTLDefault - 1 },
		"negative retention":       func(l *Limits) { l.ResultRetention = -1 },
	} {
		l := DefaultLimits()
		edit(&l)
		if err := l.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBuildTimeoutIsGivenOrRefused(t *testing.T) {
	l := DefaultLimits()
	if d, err := l.BuildTimeout(0); err != nil || d != 24*time.Hour {
		t.Errorf("default: %v, %v", d, err)
	}
	if d, err := l.BuildTimeout(l.BuildTimeoutMax); err != nil || d != l.BuildTimeoutMax {
		t.Errorf("maximum: %v, %v", d, err)
	}
	for _, asked := range []time.Duration{-1, l.BuildTimeoutMax + 1} {
		if _, err := l.BuildTimeout(asked); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", asked, err)
		}
	}
}

func TestTokenTTLIsTheSmallest(t *testing.T) {
	l := DefaultLimits()
	for _, row := range []struct {
		name     string
		wish     time.Duration
		deadline time.Time
		want     time.Duration
	}{
		{"no wish", 0, time.Time{}, 15 * time.Minute},
		{"a negative wish", -time.Hour, time.Time{}, 15 * time.Minute},
		{"a short wish", time.Minute, time.Time{}, time.Minute},
		{"a long wish", time.Hour, time.Time{}, 15 * time.Minute},
		{"a near deadline", time.Hour, t0.Add(time.Second), time.Second},
		{"a passed deadline", time.Hour, t0.Add(-time.Second), 0},
	} {
		if got := l.TokenTTL(row.wish, t0, row.deadline); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}

func TestRights(t *testing.T) {
	for _, row := range []struct {
		name   string
		rights Rights
		want   map[Verb]bool
	}{
		{"a stranger", Rights{}, map[Verb]bool{}},
		{"a writer", Rights{Write: true}, map[Verb]bool{VerbBegin: true, VerbCommit: true}},
		{"the creator", Rights{Write: true, Creator: true}, map[Verb]bool{VerbBegin: true, VerbCommit: true, VerbAbort: true, VerbRead: true}},
		{"the creator without WRITE any more", Rights{Creator: true}, map[Verb]bool{VerbAbort: true}},
		{"an administrator", Rights{Write: true, Alter: true}, map[Verb]bool{VerbBegin: true, VerbCommit: true, VerbAbort: true, VerbRead: true}},
		{"ALTER alone", Rights{Alter: true}, map[Verb]bool{VerbAbort: true}},
	} {
		for v := VerbBegin; v <= VerbRead+1; v++ {
			if got := row.rights.Permits(v); got != row.want[v] {
				t.Errorf("%s, verb %d: %v", row.name, v, got)
			}
		}
	}
}
