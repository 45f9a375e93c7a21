package revision

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session/kv"
)

// The keys. Values are JSON, large ones gzipped; their meaning never
// changes.
//
//	rev/<id>             Meta
//	log/<order>/<id>     nothing: the revisions, newest first. The order is 16 hex
//	                     digits of 2^63-1 minus the nanoseconds since 1970
//	rules/<digest>       the rule files and the schema of the data
//	tests/<digest>       the test files
//	data/<digest>        a document, or how it follows from another one
//	depth/<digest>       how many edits lie between it and a whole document: what
//	                     an edit needs to know without reading that
//	state                State
//
// Rules, tests and data are found by their digests and shared between revisions.
const (
	keyMeta  = "rev/"
	keyLog   = "log/"
	keyRules = "rules/"
	keyTests = "tests/"
	keyData  = "data/"
	keyDepth = "depth/"
	keyState = "state"
)

// fullEvery is how many data edits follow a whole document, at most, before the next
// whole one. An edit is a few bytes to write and microseconds to replay; a document
// of 100,000 grants half a second to write.
const fullEvery = 1024

// data is what stands under data/: Document, or Ops after Parent.
type data struct {
	Document json.RawMessage `json:"document,omitempty"`

	Parent string          `json:"parent,omitempty"` // digest of another document
	Depth  int             `json:"depth,omitempty"`  // edits since a whole document
	Ops    []policy.DataOp `json:"ops,omitempty"`
}

// Store keeps revisions. It is safe for concurrent use, by several processes too.
type Store struct{ kv KV }

// New makes a store of revisions in a key-value store of its own (see
// pebblestore.Store.KV).
func New(kv KV) *Store { return &Store{kv: kv} }

// Put stores a bundle. ID, Rules, Data, Tests and Signer of m are filled in. A
// revision that is there already stays as it is, but for its tests and what they
// said, which decide nothing; what is stored is returned. Put may be repeated.
func (s *Store) Put(ctx context.Context, b *policy.Bundle, m Meta) (Meta, error) {
	whole := func(context.Context) (data, error) { return data{Document: b.Data()}, nil }
	return s.put(ctx, b, m, whole)
}

// PutDelta stores b, which is revision m.Parent with an edit of its data
// (policy.Bundle.Patch). It costs some bytes, however much data there is, but for
// one edit of fullEvery.
func (s *Store) PutDelta(ctx context.Context, b *policy.Bundle, d policy.DataDelta, m Meta) (Meta, error) {
	parent, err := s.meta(ctx, m.Parent)
	if err != nil {
		return Meta{}, err
	}
	if parent.Rules != b.Revision().Rules {
		return Meta{}, fmt.Errorf("policy revision %s has other rules than its parent %s: no data edit leads there", b.Revision().ID, m.Parent)
	}
	return s.put(ctx, b, m, func(ctx context.Context) (data, error) {
		before, there, err := s.depth(ctx, parent.Data)
		if err != nil {
			return data{}, err
		}
		if !there || before+1 >= fullEvery {
			return data{Document: b.Data()}, nil
		}
		return data{Parent: parent.Data, Depth: before + 1, Ops: d.Ops}, nil
	})
}

func (s *Store) put(ctx context.Context, b *policy.Bundle, m Meta, content func(context.Context) (data, error)) (Meta, error) {
	r := b.Revision()
	m.ID, m.Rules, m.Data, m.Tests, m.Signer = r.ID, r.Rules, r.Data, b.TestsDigest(), b.Signer()
	m.Time = m.Time.UTC()
	if m.Time.IsZero() {
		return Meta{}, errors.New("a policy revision needs a time")
	}
	old, version, err := s.kv.Get(ctx, keyMeta+m.ID)
	if err != nil {
		return Meta{}, err
	}
	if version != 0 {
		have, err := decodeMeta(m.ID, old)
		if err != nil || have.Tests == m.Tests && (m.Summary == nil || have.Summary != nil && *have.Summary == *m.Summary) {
			return have, err
		}
		have.Tests, have.Summary = m.Tests, m.Summary
		m = have
	}
	ops, err := s.objects(ctx, b, m, content)
	if err != nil {
		return Meta{}, err
	}
	meta, err := json.Marshal(m)
	if err != nil {
		return Meta{}, err
	}
	ops = append(ops, kv.Op{Key: keyMeta + m.ID, Value: meta, Expect: version}, kv.Op{Key: logKey(m), Any: true})
	if err := s.kv.Apply(ctx, ops...); err != nil && !errors.Is(err, kv.ErrConflict) {
		return Meta{}, fmt.Errorf("store policy revision %s: %w", m.ID, err)
	} else if err == nil {
		return m, nil
	}
	return s.meta(ctx, m.ID) // somebody else stored it meanwhile
}

// objects are the parts of a revision that are not there yet. All are stored with it
// at once, so that a revision that is there is whole.
func (s *Store) objects(ctx context.Context, b *policy.Bundle, m Meta, content func(context.Context) (data, error)) ([]kv.Op, error) {
	var ops []kv.Op
	add := func(key string, v any) error {
		text, err := pack(v)
		ops = append(ops, kv.Op{Key: key, Value: text, Any: true})
		return err
	}
	for key, files := range map[string]func() []policy.BundleFile{keyRules + m.Rules: b.RuleFiles, keyTests + m.Tests: b.TestFiles} {
		_, version, err := s.kv.Get(ctx, key)
		if err == nil && version == 0 {
			err = add(key, files())
		}
		if err != nil {
			return nil, err
		}
	}
	if _, there, err := s.depth(ctx, m.Data); there || err != nil {
		return ops, err
	}
	d, err := content(ctx)
	if err != nil {
		return nil, err
	}
	ops = append(ops, kv.Op{Key: keyDepth + m.Data, Value: strconv.AppendInt(nil, int64(d.Depth), 10), Any: true})
	return ops, add(keyData+m.Data, d)
}

// depth is how many edits lie between a document and a whole one; there is false for
// one that is not stored.
func (s *Store) depth(ctx context.Context, digest string) (n int, there bool, err error) {
	text, version, err := s.kv.Get(ctx, keyDepth+digest)
	if err != nil || version == 0 {
		return 0, false, err
	}
	if n, err = strconv.Atoi(string(text)); err != nil || n < 0 || n >= fullEvery {
		return 0, false, fmt.Errorf("%w: data %s: depth %.20q", ErrCorrupt, digest, text)
	}
	return n, true, nil
}

func logKey(m Meta) string {
	return fmt.Sprintf("%s%016x/%s", keyLog, uint64(1<<63-1)-uint64(m.Time.UnixNano()), m.ID)
}

// Get returns a revision with its content, or ErrNotFound.
func (s *Store) Get(ctx context.Context, id string) (*policy.Bundle, Meta, error) {
	return s.GetLike(ctx, id, nil)
}

// GetLike is Get for whoever has another revision, the active one say: what the two
// have in common is not read again.
func (s *Store) GetLike(ctx context.Context, id string, like *policy.Bundle) (*policy.Bundle, Meta, error) {
	m, err := s.Meta(ctx, id)
	if err != nil {
		return nil, Meta{}, err
	}
	files, err := s.files(ctx, m)
	if err != nil {
		return nil, Meta{}, err
	}
	base, ops, err := s.document(ctx, m.Data, like)
	if err != nil {
		return nil, Meta{}, err
	}
	name := "revision " + m.ID[:12]
	var b *policy.Bundle
	if base == nil {
		b, err = like.WithRules(name, files)
	} else {
		b, err = policy.NewBundle(name, append(files, policy.BundleFile{Name: "data.json", Text: base}))
	}
	for ; err == nil && len(ops) > 0; ops = ops[:len(ops)-1] {
		b, err = b.Patch(policy.DataDelta{Ops: ops[len(ops)-1]})
	}
	if err != nil {
		return nil, Meta{}, fmt.Errorf("%w %s: %w", ErrCorrupt, m.ID, err)
	}
	if got := b.Revision(); got.ID != m.ID {
		return nil, Meta{}, fmt.Errorf("%w %s: what is stored is revision %s", ErrCorrupt, m.ID, got.ID)
	}
	return b, m, nil
}

// files are the rules and tests of a revision.
func (s *Store) files(ctx context.Context, m Meta) (all []policy.BundleFile, err error) {
	for _, key := range []string{keyRules + m.Rules, keyTests + m.Tests} {
		var files []policy.BundleFile
		if err := s.unpack(ctx, key, &files); err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

// document reads a document and the edits that follow it, the last one first. It is
// nil if it is that of like.
func (s *Store) document(ctx context.Context, digest string, like *policy.Bundle) (base []byte, edits [][]policy.DataOp, err error) {
	for range fullEvery + 1 {
		if like != nil && like.Revision().Data == digest {
			return nil, edits, nil
		}
		d, err := s.data(ctx, digest)
		if err != nil {
			return nil, nil, err
		}
		if d.Parent == "" && len(d.Document) == 0 {
			return nil, nil, fmt.Errorf("%w: data %s: neither a document nor an edit", ErrCorrupt, digest)
		}
		if d.Parent == "" {
			return d.Document, edits, nil
		}
		edits = append(edits, d.Ops)
		digest = d.Parent
	}
	return nil, nil, fmt.Errorf("%w: data %s: more than %d edits without a document", ErrCorrupt, digest, fullEvery)
}

func (s *Store) data(ctx context.Context, digest string) (d data, err error) {
	err = s.unpack(ctx, keyData+digest, &d)
	return d, err
}

// Delta returns the data edit that leads to a revision from another one, for whoever
// has that; ok is false if there is none.
func (s *Store) Delta(ctx context.Context, from policy.Revision, to string) (d policy.DataDelta, ok bool, err error) {
	m, err := s.meta(ctx, to)
	if err != nil || m.Rules != from.Rules || m.Data == from.Data {
		return policy.DataDelta{}, false, err
	}
	if depth, _, err := s.depth(ctx, m.Data); err != nil || depth == 0 {
		return policy.DataDelta{}, false, err
	}
	stored, err := s.data(ctx, m.Data)
	if err != nil || stored.Parent != from.Data {
		return policy.DataDelta{}, false, err
	}
	return policy.DataDelta{Base: from.ID, Ops: stored.Ops}, true, nil
}

// minPrefix is how much of an id names a revision.
const minPrefix = 8

// Meta returns what is known about a revision, or ErrNotFound. A prefix of an id, of
// 8 characters and more, will do if it is the only one.
func (s *Store) Meta(ctx context.Context, id string) (Meta, error) {
	if len(id) >= 64 {
		return s.meta(ctx, id)
	}
	if len(id) < minPrefix {
		return Meta{}, fmt.Errorf("%w: %q: give %d characters of its id at least", ErrNotFound, id, minPrefix)
	}
	var found []string
	err := s.kv.Scan(ctx, keyMeta+id, "", func(e kv.Entry) (bool, error) {
		found = append(found, strings.TrimPrefix(e.Key, keyMeta))
		return len(found) < 2, nil
	})
	switch {
	case err != nil:
		return Meta{}, err
	case len(found) == 0:
		return Meta{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	case len(found) > 1:
		return Meta{}, fmt.Errorf("%w: %q: several begin so", ErrNotFound, id)
	}
	return s.meta(ctx, found[0])
}

func (s *Store) meta(ctx context.Context, id string) (Meta, error) {
	if len(id) > 64 {
		return Meta{}, fmt.Errorf("%w: an id has 64 characters", ErrNotFound)
	}
	text, version, err := s.kv.Get(ctx, keyMeta+id)
	if err != nil {
		return Meta{}, err
	}
	if version == 0 {
		return Meta{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	return decodeMeta(id, text)
}

func decodeMeta(id string, text []byte) (m Meta, err error) {
	if err := json.Unmarshal(text, &m); err != nil || m.ID != id {
		return Meta{}, fmt.Errorf("%w %s: its record names %q (%v)", ErrCorrupt, id, m.ID, err)
	}
	return m, nil
}

// List returns revisions, newest first, after the one of that id ("" = from the
// newest), limit of them at most (0 = 100).
func (s *Store) List(ctx context.Context, after string, limit int) ([]Meta, error) {
	from := ""
	if after != "" {
		m, err := s.Meta(ctx, after)
		if err != nil {
			return nil, err
		}
		from = logKey(m)
	}
	limit = cmp.Or(limit, 100)
	var ids []string
	err := s.kv.Scan(ctx, keyLog, from, func(e kv.Entry) (bool, error) {
		ids = append(ids, e.Key[strings.LastIndexByte(e.Key, '/')+1:])
		return len(ids) < limit, nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]Meta, 0, len(ids))
	for _, id := range ids {
		m, err := s.meta(ctx, id)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// State returns the state.
func (s *Store) State(ctx context.Context) (State, error) {
	text, version, err := s.kv.Get(ctx, keyState)
	if err != nil || version == 0 {
		return State{}, err
	}
	var st State
	if err := json.Unmarshal(text, &st); err != nil {
		return State{}, fmt.Errorf("%w: the state does not decode: %w", ErrCorrupt, err)
	}
	st.Version = version
	return st, nil
}

// Swap stores a state in place of the one whose Version it has, or returns
// ErrConflict. The state it returns has the new version. After another error the
// outcome is open: read the state again.
func (s *Store) Swap(ctx context.Context, next State) (State, error) {
	next.History = slices.Clone(next.History[:min(len(next.History), MaxHistory)])
	text, err := json.Marshal(next)
	if err != nil {
		return State{}, err
	}
	err = s.kv.Apply(ctx, kv.Op{Key: keyState, Value: text, Expect: next.Version})
	if errors.Is(err, kv.ErrConflict) {
		return State{}, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if err != nil {
		return State{}, fmt.Errorf("store policy state: %w", err)
	}
	next.Version++
	return next, nil
}

// packedFrom is the size from which an object is worth compressing. JSON begins with
// a bracket, gzip does not.
const packedFrom = 4 << 10

func pack(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil || len(text) < packedFrom {
		return text, err
	}
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	_, err = zip.Write(text)
	err = errors.Join(err, zip.Close()) // before Bytes: it writes the rest
	return b.Bytes(), err
}

// maxUnpacked bounds a stored object.
const maxUnpacked = 256 << 20

func (s *Store) unpack(ctx context.Context, key string, v any) error {
	text, version, err := s.kv.Get(ctx, key)
	if err != nil {
		return err
	}
	if version == 0 {
		return fmt.Errorf("%w: %s is missing", ErrCorrupt, key)
	}
	if len(text) > 0 && text[0] != '{' && text[0] != '[' {
		var zip *gzip.Reader
		if zip, err = gzip.NewReader(bytes.NewReader(text)); err == nil {
			text, err = io.ReadAll(io.LimitReader(zip, maxUnpacked))
		}
	}
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, key, err)
	}
	return nil
}
