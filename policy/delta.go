package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var (
	// ErrBase is returned for a delta that was made for another revision than the one
	// it meets.
	ErrBase = errors.New("the data edit was made for another revision")
	// ErrDelta is returned for a delta that is malformed, or that edits what is not
	// there.
	ErrDelta = errors.New("invalid data edit")
)

// DataDelta is an edit of the data document: of grants, mostly.
type DataDelta struct {
	// Base is the id of the revision the edit was made for; empty = any.
	Base string `json:"base,omitempty"`
	// Ops are applied in order, all or none.
	Ops []DataOp `json:"ops"`
}

// MaxDeltaOps bounds a DataDelta; a larger edit is a revision of its own.
const MaxDeltaOps = 10_000

// DataOp sets or removes one value.
type DataOp struct {
	Op string `json:"op"` // OpSet or OpRemove
	// Path are the keys of objects that lead to the value. Objects on the way are
	// made when they do not exist; an array is set as a whole.
	Path  []string        `json:"path"`
	Value json.RawMessage `json:"value,omitempty"` // of OpSet
}

// Kinds of DataOp.
const (
	OpSet    = "set"
	OpRemove = "remove" // of a value that is not there is an error
)

// Patch is the bundle with edited data. What it is made of need not be valid; the
// price does not depend on how much data there is.
func (b *Bundle) Patch(d DataDelta) (*Bundle, error) {
	if d.Base != "" && d.Base != b.revision.ID {
		return nil, fmt.Errorf("%w: for %s, but %s is active", ErrBase, d.Base, b.revision.ID)
	}
	if len(d.Ops) == 0 || len(d.Ops) > MaxDeltaOps {
		return nil, fmt.Errorf("%w: it has %d changes, 1 to %d are possible", ErrDelta, len(d.Ops), MaxDeltaOps)
	}
	document := b.document
	for i, op := range d.Ops {
		next, err := op.apply(document)
		if err != nil {
			return nil, fmt.Errorf("%w: change %d, %s: %w", ErrDelta, i+1, pointer(op.Path), err)
		}
		document = next
	}
	if n := document.bytes(); n > maxSize {
		return nil, fmt.Errorf("%w: the data would be %d bytes, %d are possible", ErrDelta, n, maxSize)
	}
	src := *b.slim().src
	src.data = []rawFile{{name: "data.json", kind: KindData}}
	return &Bundle{src: &src, document: document, revision: revisionOf(b.revision.Rules, document)}, nil
}

func (op *DataOp) apply(document *object) (next *object, err error) {
	if len(op.Path) == 0 || len(op.Path) > maxDepth {
		return nil, fmt.Errorf("a path of %d keys, 1 to %d are possible", len(op.Path), maxDepth)
	}
	for _, key := range op.Path {
		if !validKey(key) {
			return nil, fmt.Errorf("key %q is not UTF-8", key)
		}
	}
	ok := false
	switch op.Op {
	case OpSet:
		v, err := decodeJSONAt(op.Value, len(op.Path))
		if err != nil {
			return nil, fmt.Errorf("value: %w", err)
		}
		if next, ok = document.setAt(op.Path, v); !ok {
			return nil, errors.New("something else than an object is on the way")
		}
	case OpRemove:
		if next, ok = document.removeAt(op.Path); !ok {
			return nil, errors.New("there is nothing to remove")
		}
	default:
		return nil, fmt.Errorf("it is %q; set and remove are known", op.Op)
	}
	return next, nil
}

func validKey(key string) bool { return strings.ToValidUTF8(key, "") == key }

// Patch edits the data of the active revision, in memory: whoever calls it keeps the
// edit where the next start finds it. It is checked as a whole revision is, but for
// looking only at what it touches. On failure nothing changes: ErrBase, ErrDelta, or
// a *LoadError for data that the rules do not take.
func (e *Engine) Patch(ctx context.Context, d DataDelta) (Revision, error) {
	if e.conf.Dir != "" {
		return Revision{}, fmt.Errorf("%w: the policy is the directory %s; edit the data there", ErrDelta, e.conf.Dir)
	}
	e.loading.Lock()
	defer e.loading.Unlock()
	g, problems, err := e.cur.Load().patch(ctx, d, e.conf.limits())
	if err != nil {
		return Revision{}, err
	}
	g.memory = newMemory(g.rules, e.conf.Memory)
	return g.revision, e.loaded(g, problems, nil)
}

// PatchCandidate is Prepare of a candidate with edited data, at the price of the
// edit.
func PatchCandidate(ctx context.Context, c *Candidate, d DataDelta) (*Candidate, error) {
	g, problems, err := c.g.patch(ctx, d, c.limits)
	if err != nil {
		return nil, err
	}
	if c.g.memory != nil {
		g.memory = newMemory(g.rules, 2*c.g.memory.half)
	}
	return newCandidate(g, g.bundle, problems, c.limits, c.now), nil
}

// patch is the generation with edited data.
func (g *generation) patch(ctx context.Context, d DataDelta, l limits) (_ *generation, problems []Problem, err error) {
	defer rescue("editing "+g.bundle.Name(), &err)
	b, err := g.bundle.Patch(d)
	if err != nil {
		return nil, nil, err
	}
	next := newGeneration(b, g.rules)
	file := b.src.dataFile()
	touched := touchedBy(d, g.bundle.document)
	problems = slices.Concat(g.rules.warnings, g.rules.checkTouched(file, b.document, touched), g.rules.checkReads(file, b.document))
	if b.src.shipped {
		next.dangling = patchDangling(g.dangling, file, b.document, touched)
		problems = append(problems, problemsIn(next.dangling)...)
	}
	problems, err = next.finish(ctx, problems, l)
	return next, problems, err
}

// touchedBy are the paths at which something is new: those of the changes, cut where
// the old document had no object to hold them.
func touchedBy(d DataDelta, old *object) [][]string {
	var out [][]string
	for _, op := range d.Ops {
		n := 1
		for ; n < len(op.Path); n++ {
			if v, _ := old.at(op.Path[:n]); !isObject(v) {
				break
			}
		}
		out = append(out, op.Path[:n])
	}
	return out
}

// checkTouched compares a document with its schema, where it was touched if the
// schema lets that be enough.
func (rs *ruleset) checkTouched(file string, document *object, touched [][]string) []Problem {
	if rs.schema == nil {
		return nil
	}
	for _, path := range touched {
		known, err := false, error(nil)
		if !rs.dynamic {
			known, err = validateAt(rs.schema, document, path)
		}
		if !known {
			return rs.checkSchema(file, document)
		}
		if err != nil {
			return []Problem{{File: file, Code: CodeDataSchema, Message: err.Error(), Severity: SeverityError}}
		}
	}
	return nil
}

// patchDangling keeps the finding of holders that were not touched. Roles that are
// gone concern all holders, new ones those that lacked them.
func patchDangling(old map[holder][]Problem, file string, document *object, touched [][]string) map[holder][]Problem {
	var again []holder
	for _, path := range touched {
		switch {
		case path[0] == "roles":
			if _, there := document.at(path[:min(len(path), 2)]); !there || len(path) == 1 {
				return danglingRoles(file, document)
			}
			again = slices.AppendSeq(again, maps.Keys(old))
		case !slices.Contains(holderKinds, path[0]):
		case len(path) < 3:
			return danglingRoles(file, document)
		default:
			again = append(again, holder{path[0], path[1], path[2]})
		}
	}
	next := maps.Clone(old)
	for _, h := range again {
		delete(next, h)
		if p := h.dangling(file, document); len(p) > 0 {
			next[h] = p
		}
	}
	return next
}
