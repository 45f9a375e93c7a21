package policy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
)

// DefaultMemory is how many decisions of one revision are remembered when
// Config.Memory is zero, about 4 MiB of them.
const DefaultMemory = 8192

// memory remembers what the rules of one generation answered. It is exact: rules
// have no clock, no network and no randomness (see Capabilities), so the same rules
// over the same data give the same answer to the same input. What they never read
// of the input, time and client, is left out of the comparison; whatever they read
// is in it. Rules that read the time are asked every time, unless they declare how
// old an answer may be (see rememberKey); inputs of one slot of time then share one
// answer, and only for such rules is a remembered answer not exact. A new generation begins with an empty memory, errors are not
// remembered, and every decision still gets its own id, record and floor.
//
// It has two halves: entries enter the young one; when that is full, the old one is
// dropped and the young one becomes old. What is used moves up again.
type memory struct {
	half         int
	time, client bool          // the rules read them
	slot         time.Duration // for rules that read the time: how old an answer may be; 0 = as exact as they are

	mu         sync.Mutex
	young, old map[[sha256.Size]byte]Decision
}

// newMemory is nil, which remembers nothing, for a negative size.
func newMemory(rs *ruleset, size int) *memory {
	if size < 0 {
		return nil
	}
	if size == 0 {
		size = DefaultMemory
	}
	m := &memory{half: max(1, size/2), young: map[[sha256.Size]byte]Decision{}}
	m.time, m.client, m.slot = rs.reads("time"), rs.reads("client"), rs.remember
	return m
}

// key identifies what the rules can see of an input. Rules that read the time never
// see the same input twice, so there is nothing to remember, ok is false, but within
// the slot of time that they declare.
func (m *memory) key(in *Input) (k [sha256.Size]byte, ok bool) {
	if m == nil || m.time && m.slot == 0 {
		return k, false
	}
	seen := *in
	seen.Time = time.Time{}
	if m.time {
		seen.Time = in.Time.UTC().Truncate(m.slot)
	}
	if !m.client {
		seen.Client = Client{}
	}
	b, err := json.Marshal(&seen)
	// encoding/json writes every byte that is no UTF-8 as \ufffd, so that two inputs
	// would look alike.
	if err != nil || bytes.Contains(b, []byte(`\ufffd`)) {
		return k, false
	}
	return sha256.Sum256(b), true
}

func (m *memory) get(k [sha256.Size]byte) (Decision, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.young[k]
	if !ok {
		if d, ok = m.old[k]; !ok {
			return Decision{}, false
		}
		delete(m.old, k)
		m.putLocked(k, d)
	}
	return d.clone(), true
}

// Rules declare by an annotation of their package how old an answer may be that depends
// on the time, in whole seconds:
//
//	# METADATA
//	# custom:
//	#   remember_seconds: 10
//	package sluice.authz
const (
	rememberKey = "remember_seconds"
	maxRemember = 60 // seconds; a token that rules no longer allow works so long at most
)

// declared is what the package of the entry point declares, 0 for nothing.
func declared(modules map[string]*ast.Module) (time.Duration, []Problem) {
	var slot time.Duration
	var problems []Problem
	for _, m := range modules {
		if !m.Package.Path.Equal(entryRef[:len(entryRef)-1]) {
			continue
		}
		for _, a := range m.Annotations {
			v, ok := a.Custom[rememberKey]
			if !ok {
				continue
			}
			seconds, err := strconv.Atoi(fmt.Sprint(v))
			if err != nil || seconds < 1 || seconds > maxRemember || a.Scope != "package" || slot != 0 {
				problems = append(problems, Problem{File: m.Package.Location.File, Line: a.Location.Row, Column: a.Location.Col, Code: CodeRemember, Severity: SeverityError,
					Message: fmt.Sprintf("%s must stand once, on package sluice.authz, and be 1 to %d", rememberKey, maxRemember)})
				continue
			}
			slot = time.Duration(seconds) * time.Second
		}
	}
	return slot, problems
}

// maxRemembered bounds the lists of one remembered decision, and so all of them.
const maxRemembered = 64

func (m *memory) put(k [sha256.Size]byte, d Decision) {
	if len(d.Constraints.Ops)+len(d.Constraints.Buckets) > maxRemembered {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(k, d.clone())
}

func (m *memory) putLocked(k [sha256.Size]byte, d Decision) {
	if _, there := m.young[k]; !there && len(m.young) >= m.half {
		m.old, m.young = m.young, make(map[[sha256.Size]byte]Decision, m.half)
	}
	m.young[k] = d
}

// clone shares nothing with d: callers extend reasons and narrow constraints.
func (d Decision) clone() Decision {
	d.Reasons = slices.Clone(d.Reasons)
	d.Constraints.Ops, d.Constraints.Buckets = slices.Clone(d.Constraints.Ops), slices.Clone(d.Constraints.Buckets)
	if d.Constraints.MaxTTL != nil {
		ttl := *d.Constraints.MaxTTL
		d.Constraints.MaxTTL = &ttl
	}
	return d
}

// evaluate asks the rules, or the memory of what they answered.
func (g *generation) evaluate(ctx context.Context, in *Input, l limits) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, fmt.Errorf("%w: %w", ErrEvaluation, err)
	}
	k, ok := g.memory.key(in)
	if ok {
		if d, hit := g.memory.get(k); hit {
			return d, nil
		}
	}
	d, err := g.rules.evaluate(ctx, g.store, in, l, g.tracer)
	if err == nil && ok {
		g.memory.put(k, d)
	}
	return d, err
}
