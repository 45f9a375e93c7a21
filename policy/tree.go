package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"slices"
	"sync"
)

// The data document in memory, and its digest.
//
// A document is immutable. Editing it makes another one that shares all but the path
// to the edit, so that an edit of one grant among 100,000 neither copies nor hashes
// the others, and whoever still decides by the old one is not disturbed. The digest
// is part of the identity of a revision and never changes its meaning:
//
//	value        SHA-256(00 canonical JSON), or that of the object for an object of
//	             the upper treeDepth levels (the document itself is level 0)
//	object       SHA-256(03 node)
//	node         of at most nodeEntries entries: SHA-256(01 entry…), in byte order of
//	             their keys; an entry is the length of the key (8 bytes, big-endian),
//	             the key, and the digest of the value
//	             of more: SHA-256(02 node × 16), the entries spread over 16 nodes by
//	             the next four bits of SHA-256(key), high bits first; 32 zero bytes
//	             stand for a node without entries
//
// The first byte keeps the four apart. The form of the tree follows from the keys
// alone, not from the order of edits.
const (
	treeDepth   = 3  // levels of objects that are trees: principals → issuer → subject
	nodeEntries = 32 // more entries than these make a node branch
)

const (
	markValue = iota
	markLeaf
	markBranch
	markObject
)

type digest = [sha256.Size]byte

// object is a JSON object of the upper levels.
type object struct {
	root  *node
	level int

	once  sync.Once
	plain map[string]any // set under once; never changed
}

// node is a part of an object's entries: a leaf, or a branch of 16.
type node struct {
	digest  digest
	count   int
	bytes   int // of the entries in canonical JSON
	entries []entry
	branch  *[16]*node
}

type entry struct {
	key    string
	value  any // *object, or a decoded JSON value
	digest digest
	bytes  int // of key, colon and value in canonical JSON
}

// newDocument makes a document, which owns m from then on.
func newDocument(m map[string]any) *object { return newObject(m, 0) }

func newObject(m map[string]any, level int) *object {
	h := newHasher()
	entries := make([]placed, 0, len(m))
	for k, v := range m {
		entries = append(entries, placed{h.entry(k, v, level+1), sha256.Sum256([]byte(k))})
	}
	slices.SortFunc(entries, func(a, b placed) int { return compareStrings(a.key, b.key) })
	o := &object{root: h.node(entries, 0), level: level}
	o.once.Do(func() { o.plain = m })
	return o
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// placed is an entry with the digest of its key, which says where it belongs.
type placed struct {
	entry
	place digest
}

// hasher keeps what hashing needs, so that 100,000 grants do not allocate it anew.
type hasher struct {
	hash hash.Hash
	buf  []byte
}

func newHasher() *hasher { return &hasher{hash: sha256.New()} }

// entry makes an entry whose value stands on a level.
func (h *hasher) entry(key string, value any, level int) entry {
	h.buf = appendCanonicalString(h.buf[:0], key)
	e := entry{key: key, value: value, bytes: len(h.buf) + 1}
	if m, ok := value.(map[string]any); ok && level < treeDepth {
		e.value = newObject(m, level)
	}
	if o, ok := e.value.(*object); ok {
		e.digest = o.digest()
		e.bytes += o.bytes()
		return e
	}
	h.buf = appendCanonical(append(h.buf[:0], markValue), value)
	e.digest = sha256.Sum256(h.buf)
	e.bytes += len(h.buf) - 1
	return e
}

// node makes a node of entries in order of their keys.
func (h *hasher) node(entries []placed, depth int) *node {
	if len(entries) > nodeEntries {
		var parts [16][]placed
		for _, e := range entries {
			i := nibble(&e.place, depth)
			parts[i] = append(parts[i], e)
		}
		n := &node{count: len(entries), branch: new([16]*node)}
		for i, part := range parts {
			if len(part) > 0 {
				n.branch[i] = h.node(part, depth+1)
			}
		}
		return h.sum(n)
	}
	n := &node{count: len(entries), entries: make([]entry, len(entries))}
	for i, e := range entries {
		n.entries[i] = e.entry
	}
	return h.sum(n)
}

// sum sets the digest and bytes of a node that is otherwise complete.
func (h *hasher) sum(n *node) *node {
	b := h.buf[:0]
	n.bytes = 0
	if n.branch != nil {
		b = append(b, markBranch)
		for _, c := range n.branch {
			if c == nil {
				b = append(b, make([]byte, sha256.Size)...)
			} else {
				b = append(b, c.digest[:]...)
				n.bytes += c.bytes
			}
		}
	} else {
		b = append(b, markLeaf)
		for i := range n.entries {
			e := &n.entries[i]
			b = binary.BigEndian.AppendUint64(b, uint64(len(e.key)))
			b = append(append(b, e.key...), e.digest[:]...)
			n.bytes += e.bytes
		}
	}
	h.buf = b
	n.digest = sha256.Sum256(b)
	return n
}

// nibble is four bits of a key's digest; keys that share all 64 of them do not exist.
func nibble(place *digest, depth int) int {
	b := place[depth/2]
	if depth%2 == 0 {
		b >>= 4
	}
	return int(b & 15)
}

func (o *object) digest() digest {
	return sha256.Sum256(append([]byte{markObject}, o.root.digest[:]...))
}

// get returns the value of a key: *object, or a decoded JSON value.
func (o *object) get(key string) (any, bool) {
	n := o.root
	if n.branch != nil {
		place := sha256.Sum256([]byte(key))
		for depth := 0; n.branch != nil; depth++ {
			if n = n.branch[nibble(&place, depth)]; n == nil {
				return nil, false
			}
		}
	}
	i, found := n.find(key)
	if !found {
		return nil, false
	}
	return n.entries[i].value, true
}

func (n *node) find(key string) (int, bool) {
	return slices.BinarySearchFunc(n.entries, key, func(e entry, k string) int { return compareStrings(e.key, k) })
}

// with is the object with one key set, or removed if set is nil.
func (o *object) with(key string, set *entry) *object {
	place := sha256.Sum256([]byte(key))
	root := newHasher().with(o.root, key, &place, set, 0)
	if root == nil {
		root = newHasher().node(nil, 0)
	}
	return &object{root: root, level: o.level}
}

// with is a node with one key set or removed; nil if nothing is left.
func (h *hasher) with(n *node, key string, place *digest, set *entry, depth int) *node {
	if n == nil {
		n = &node{}
	}
	if n.branch == nil {
		return h.leafWith(n, key, set, depth)
	}
	i := nibble(place, depth)
	old := n.branch[i]
	next := &node{branch: new([16]*node), count: n.count}
	*next.branch = *n.branch
	next.branch[i] = h.with(old, key, place, set, depth+1)
	next.count += next.branch[i].size() - old.size()
	if next.count <= nodeEntries {
		return h.node(next.all(nil), depth)
	}
	return h.sum(next)
}

func (h *hasher) leafWith(n *node, key string, set *entry, depth int) *node {
	i, found := n.find(key)
	switch {
	case set == nil && !found:
		return n
	case set == nil && len(n.entries) == 1:
		return nil
	}
	entries := slices.Clone(n.entries)
	switch {
	case set == nil:
		entries = slices.Delete(entries, i, i+1)
	case found:
		entries[i] = *set
	default:
		entries = slices.Insert(entries, i, *set)
	}
	if len(entries) <= nodeEntries {
		return h.sum(&node{count: len(entries), entries: entries})
	}
	return h.node((&node{entries: entries}).all(nil), depth)
}

func (n *node) size() int {
	if n == nil {
		return 0
	}
	return n.count
}

// all are the entries of a node in order of their keys.
func (n *node) all(out []placed) []placed {
	n.each(func(e *entry) { out = append(out, placed{*e, sha256.Sum256([]byte(e.key))}) })
	slices.SortFunc(out, func(a, b placed) int { return compareStrings(a.key, b.key) })
	return out
}

func (n *node) each(f func(e *entry)) {
	for i := range n.entries {
		f(&n.entries[i])
	}
	if n.branch != nil {
		for _, c := range n.branch {
			if c != nil {
				c.each(f)
			}
		}
	}
}

// bytes is the length of the object in canonical JSON.
func (o *object) bytes() int { return 2 + o.root.bytes + max(0, o.root.count-1) }

// len is the number of keys.
func (o *object) len() int { return o.root.count }

// decoded is the object as decoded JSON, made once; nobody may change it.
func (o *object) decoded() map[string]any {
	o.once.Do(func() {
		o.plain = make(map[string]any, o.root.count)
		o.root.each(func(e *entry) { o.plain[e.key] = decodedValue(e.value) })
	})
	return o.plain
}

func decodedValue(v any) any {
	if o, ok := v.(*object); ok {
		return o.decoded()
	}
	return v
}

// at follows keys and reports the value there: *object, or a decoded JSON value.
func (o *object) at(path []string) (any, bool) {
	var v any = o
	for i, key := range path {
		o, ok := v.(*object)
		if !ok {
			return valueAt(v, path[i:])
		}
		if v, ok = o.get(key); !ok {
			return nil, false
		}
	}
	return v, true
}

// valueAt follows keys in decoded JSON.
func valueAt(v any, path []string) (any, bool) {
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = m[key]; !ok {
			return nil, false
		}
	}
	return v, true
}

// setAt is the object with a value at a path below it, whose objects are made when
// they do not exist. ok is false if something else than an object is in the way.
func (o *object) setAt(path []string, value any) (_ *object, ok bool) {
	key, h := path[0], newHasher()
	if len(path) > 1 {
		child, there := o.get(key)
		if !there {
			child = map[string]any{}
			if o.level+1 < treeDepth {
				child = newObject(map[string]any{}, o.level+1)
			}
		}
		switch c := child.(type) {
		case *object:
			if value, ok = c.setAt(path[1:], value); !ok {
				return nil, false
			}
		case map[string]any:
			if value, ok = setIn(c, path[1:], value); !ok {
				return nil, false
			}
		default:
			return nil, false
		}
	}
	e := h.entry(key, value, o.level+1)
	return o.with(key, &e), true
}

// setIn is setAt for decoded JSON.
func setIn(m map[string]any, path []string, value any) (_ map[string]any, ok bool) {
	if len(path) > 1 {
		child, isObject := m[path[0]].(map[string]any)
		if _, there := m[path[0]]; there && !isObject {
			return nil, false
		}
		if value, ok = setIn(child, path[1:], value); !ok {
			return nil, false
		}
	}
	if m = maps.Clone(m); m == nil {
		m = map[string]any{}
	}
	m[path[0]] = value
	return m, true
}

// removeAt is the object without what stands at a path; ok is false if nothing does.
func (o *object) removeAt(path []string) (_ *object, ok bool) {
	child, there := o.get(path[0])
	if !there {
		return nil, false
	}
	if len(path) == 1 {
		return o.with(path[0], nil), true
	}
	var value any
	switch c := child.(type) {
	case *object:
		value, ok = c.removeAt(path[1:])
	case map[string]any:
		value, ok = removeIn(c, path[1:])
	}
	if !ok {
		return nil, false
	}
	e := newHasher().entry(path[0], value, o.level+1)
	return o.with(path[0], &e), true
}

// removeIn is removeAt for decoded JSON.
func removeIn(m map[string]any, path []string) (_ map[string]any, ok bool) {
	child, there := m[path[0]]
	if !there {
		return nil, false
	}
	m = maps.Clone(m)
	if len(path) == 1 {
		delete(m, path[0])
		return m, true
	}
	c, _ := child.(map[string]any)
	if c, ok = removeIn(c, path[1:]); !ok {
		return nil, false
	}
	m[path[0]] = c
	return m, true
}
