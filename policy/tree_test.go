package policy

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// randomValue is decoded JSON, of objects mostly.
func randomValue(r *rand.Rand, depth int) any {
	switch n := r.IntN(10); {
	case depth > 0 && n < 6:
		m := map[string]any{}
		for range r.IntN(5) {
			m[randomKey(r)] = randomValue(r, depth-1)
		}
		return m
	case n < 7:
		return []any{randomValue(r, 0), map[string]any{"x": randomKey(r)}}
	case n < 8:
		return json.Number(fmt.Sprint(r.IntN(5)))
	case n < 9:
		return randomKey(r)
	}
	return []any{nil, true, false}[r.IntN(3)]
}

func randomKey(r *rand.Rand) string {
	return []string{"a", "ü\"", "k", "0", "x y"}[r.IntN(5)] + fmt.Sprint(r.IntN(40))
}

func copyValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := map[string]any{}
		for k, e := range v {
			m[k] = copyValue(e)
		}
		return m
	case []any:
		a := []any{}
		for _, e := range v {
			a = append(a, copyValue(e))
		}
		return a
	}
	return v
}

func copyDocument(m map[string]any) map[string]any { return copyValue(m).(map[string]any) }

// setModel and removeModel are what setAt and removeAt should do.
func setModel(m map[string]any, path []string, v any) bool {
	for _, k := range path[:len(path)-1] {
		if _, there := m[k]; !there {
			m[k] = map[string]any{}
		}
		next, ok := m[k].(map[string]any)
		if !ok {
			return false
		}
		m = next
	}
	m[path[len(path)-1]] = v
	return true
}

func removeModel(m map[string]any, path []string) bool {
	for _, k := range path[:len(path)-1] {
		next, ok := m[k].(map[string]any)
		if !ok {
			return false
		}
		m = next
	}
	if _, there := m[path[len(path)-1]]; !there {
		return false
	}
	delete(m, path[len(path)-1])
	return true
}

// TestTreeIsTheDocument edits a document at random, at every depth and across the
// sizes where nodes branch and join, beside a plain map: after each edit both are the
// same document, with the same digest as if it had been read so, and the document
// before the edit is what it was.
func TestTreeIsTheDocument(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		model := map[string]any{}
		tree := newDocument(map[string]any{})
		for step := range 400 {
			path := make([]string, 1+r.IntN(5))
			for i := range path {
				path[i] = randomKey(r)
			}
			if r.IntN(2) == 0 { // a place that fills
				path = []string{"big", fmt.Sprint(r.IntN(200))}
			}
			before, old, edited := tree.digest(), tree, copyDocument(model)
			var next *object
			var ok, want bool
			if step%3 == 2 || step > 300 {
				next, ok = tree.removeAt(path)
				want = removeModel(edited, path)
			} else {
				v := randomValue(r, 3)
				next, ok = tree.setAt(path, v)
				want = setModel(edited, path, copyValue(v))
			}
			if ok != want {
				t.Fatalf("seed %d: edit at %q: %v, want %v", seed, path, ok, want)
			}
			if !ok {
				continue
			}
			if old.digest() != before || (step%50 == 0 && newDocument(copyDocument(old.decoded())).digest() != before) {
				t.Fatalf("seed %d: an edit at %q changed the document before it", seed, path)
			}
			tree, model = next, edited
			if got := tree.decoded(); !reflect.DeepEqual(got, model) {
				t.Fatalf("seed %d: after an edit at %q\n%v\nwant\n%v", seed, path, got, model)
			}
			if tree.digest() != newDocument(copyDocument(model)).digest() {
				t.Fatalf("seed %d: the digest depends on the way to the document", seed)
			}
			if want := len(appendCanonical(nil, model)); tree.bytes() != want {
				t.Fatalf("seed %d: %d bytes, want %d", seed, tree.bytes(), want)
			}
		}
	}
}

// TestDigestsDifferWhereDocumentsDo compares documents that look alike to a careless
// digest.
func TestDigestsDifferWhereDocumentsDo(t *testing.T) {
	docs := []string{`{}`, `{"a":{}}`, `{"a":[]}`, `{"a":null}`, `{"a":""}`, `{"a":"{}"}`, `{"a":{"b":{}}}`, `{"a":{"b":{"c":{}}}}`,
		`{"a":{"b":{"c":{"d":{}}}}}`, `{"a":1,"b":2}`, `{"a":2,"b":1}`, `{"ab":12}`, `{"a":{"b":1},"c":2}`, `{"a":{"b":1,"c":2}}`,
		`{"a":1}`, `{"a":1.0}`, `{"a":"1"}`, `{"a":true}`, `{"a":[1,[2]]}`, `{"a":[[1],2]}`, `{"a":["1,2"]}`}
	for _, n := range []int{31, 32, 33, 500, 5000} {
		m := map[string]any{}
		for i := range n {
			m[fmt.Sprint(i)] = json.Number("1")
		}
		docs = append(docs, string(appendCanonical(nil, m)))
	}
	seen := map[digest]string{}
	for _, text := range docs {
		v, err := decodeJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		d := newDocument(v.(map[string]any)).digest()
		if other, there := seen[d]; there {
			t.Errorf("%.80s and %.80s have one digest", text, other)
		}
		seen[d] = text
	}
}

// TestDigestIsForEver pins the definition, as a program in another language computed it: a digest that changed would make every
// recorded revision unknown.
func TestDigestIsForEver(t *testing.T) {
	small := newDocument(map[string]any{"roles": map[string]any{}, "principals": map[string]any{"i": map[string]any{"s": map[string]any{"grants": map[string]any{}}}}})
	big := map[string]any{}
	for i := range 1000 {
		big[fmt.Sprint(i)] = json.Number(fmt.Sprint(i))
	}
	for name, tt := range map[string]struct {
		document *object
		want     string
	}{
		"empty":    {newDocument(map[string]any{}), "2113cd768ca5429eb82247b7c938e70a4a29787c0bf4dbe8c7e552436ecce8fe"},
		"small":    {small, "ddba98b6bfc3b460154f09cee57cd5b3cb4b983e73e34f03c3ebe93e09bd0032"},
		"branched": {newDocument(map[string]any{"a": big}), "379f0df939e7d0c011da3b7692576110eb17b5907afe56126e786693c2139830"},
	} {
		d := tt.document.digest()
		if got := hex.EncodeToString(d[:]); got != tt.want {
			t.Errorf("%s: %s, was %s", name, got, tt.want)
		}
	}
}

// TestStoreReadsAsOPAs reads random paths of random documents by the store rules read
// and by OPA's own.
func TestStoreReadsAsOPAs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	found := 0
	for range 200 {
		m := map[string]any{"list": []any{json.Number("1"), map[string]any{"x": "y"}, []any{"z"}}}
		for range 20 {
			m[randomKey(r)] = randomValue(r, 4)
		}
		ours, theirs := &treeStore{document: newDocument(copyDocument(m))}, inmem.NewFromObjectWithOpts(m, inmem.OptRoundTripOnWrite(false))
		txn, err := theirs.NewTransaction(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			path := randomPath(r, m)
			want, wantErr := theirs.Read(t.Context(), txn, path)
			got, err := ours.Read(t.Context(), snapshot{}, path)
			if storage.IsNotFound(err) != storage.IsNotFound(wantErr) || (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
				t.Fatalf("%v: %v (%v), want %v (%v)", path, got, err, want, wantErr)
			}
			if err == nil {
				found++
			}
		}
		theirs.Abort(t.Context(), txn)
	}
	if found < 1000 {
		t.Errorf("only %d reads found something", found)
	}
}

// randomPath follows what is there for some steps, and then perhaps astray.
func randomPath(r *rand.Rand, v any) (path storage.Path) {
	path = storage.Path{}
	for range r.IntN(6) {
		key := randomKey(r)
		switch at := v.(type) {
		case map[string]any:
			keys := make([]string, 0, len(at))
			for k := range at {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			if len(keys) > 0 && r.IntN(8) > 0 {
				key = keys[r.IntN(len(keys))]
			}
			v = at[key]
		case []any:
			key = []string{"0", "1", "2", "3", "00", "01", "-1", "+1", "", "1 ", "x"}[r.IntN(11)]
			if len(key) == 1 && key[0] < '3' {
				if i := int(key[0] - '0'); i < len(at) {
					v = at[i]
				}
			}
		}
		path = append(path, key)
		if r.IntN(20) == 0 {
			return append(path, "astray")
		}
	}
	return path
}
