package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
)

const testIssuer = "https://issuer.example"

func set(value string, path ...string) DataOp { return DataOp{OpSet, path, json.RawMessage(value)} }

func remove(path ...string) DataOp { return DataOp{Op: OpRemove, Path: path} }

func openShipped(t *testing.T, data string) *Engine {
	t.Helper()
	e, err := Open(t.Context(), Config{Data: []byte(data)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestPatchDecides grants, takes away and grants by role, each by an edit.
func TestPatchDecides(t *testing.T) {
	e := openShipped(t, `{"principals":{},"groups":{},"roles":{}}`)
	in := benchInput(7)
	first := e.Revision()
	for _, step := range []struct {
		name  string
		ops   []DataOp
		allow bool
	}{
		{"a grant", []DataOp{set(`{"write":{}}`, "principals", testIssuer, "worker-7", "grants", "demo.t7")}, true},
		{"the grant is gone", []DataOp{remove("principals", testIssuer, "worker-7", "grants", "demo.t7")}, false},
		{"a role that does not exist", []DataOp{set(`["w"]`, "principals", testIssuer, "worker-7", "roles")}, false},
		{"the role", []DataOp{set(`{"grants":{"demo.*":{"write":{}}}}`, "roles", "w")}, true},
		{"the principal is gone, as is the issuer", []DataOp{remove("principals", testIssuer)}, false},
		{"all at once", []DataOp{remove("roles", "w"), set(`{}`, "principals", testIssuer), set(`{"grants":{"*":{"write":{}}}}`, "principals", testIssuer, "worker-7")}, true},
	} {
		if _, err := e.Decide(t.Context(), in); err != nil { // remembered, and to be forgotten
			t.Fatal(err)
		}
		old := e.Status()
		r, err := e.Patch(t.Context(), DataDelta{Base: old.Revision.ID, Ops: step.ops})
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		d, err := e.Decide(t.Context(), in)
		if err != nil || d.Allow != step.allow || d.Revision != r.ID || r.ID == old.Revision.ID || r.Rules != old.Revision.Rules {
			t.Errorf("%s: %+v, %v", step.name, d, err)
		}
		if _, err := e.Patch(t.Context(), DataDelta{Base: first, Ops: step.ops}); !errors.Is(err, ErrBase) {
			t.Errorf("%s: an edit of another revision: %v", step.name, err)
		}
		whole, err := NewBundle("whole", e.Active().Bundle().Files())
		if err != nil || whole.Revision() != r {
			t.Errorf("%s: the files of the revision are another one: %v", step.name, err)
		}
		problems, err := CheckBundle(t.Context(), whole)
		if got := e.Status().Problems; err != nil || !reflect.DeepEqual(append([]Problem{}, got...), append([]Problem{}, problems...)) {
			t.Errorf("%s: warnings %v, of the whole %v (%v)", step.name, got, problems, err)
		}
	}
}

// TestRefusedPatches change nothing and say why.
func TestRefusedPatches(t *testing.T) {
	e := openShipped(t, `{"principals":{"`+testIssuer+`":{"a":{"roles":["r"]}}},"groups":{},"roles":{"r":{"grants":{}}}}`)
	deep := make([]string, maxDepth+1)
	for i := range deep {
		deep[i] = "principals"
	}
	before := e.Status()
	for name, tt := range map[string]struct {
		ops  []DataOp
		kind error // nil: a LoadError
		text string
	}{
		"no change":         {nil, ErrDelta, "0 changes"},
		"nothing to remove": {[]DataOp{remove("roles", "x")}, ErrDelta, "change 1, /roles/x: there is nothing"},
		"nothing to remove below what is no object": {[]DataOp{remove("principals", testIssuer, "a", "roles", "r")}, ErrDelta, "nothing"},
		"the document itself":                       {[]DataOp{set(`{}`)}, ErrDelta, "0 keys"},
		"a path that is too long":                   {[]DataOp{set(`{}`, deep...)}, ErrDelta, "keys"},
		"a value that is too deep":                  {[]DataOp{set(strings.Repeat(`[`, maxDepth)+strings.Repeat(`]`, maxDepth), "roles", "x")}, ErrDelta, "nested"},
		"no JSON":                                   {[]DataOp{set(`{`, "roles", "x")}, ErrDelta, "value"},
		"no value":                                  {[]DataOp{set(``, "roles", "x")}, ErrDelta, "missing"},
		"a key that is no text":                     {[]DataOp{set(`{}`, "roles", "\xff")}, ErrDelta, "UTF-8"},
		"an unknown change":                         {[]DataOp{{Op: "add", Path: []string{"x"}}}, ErrDelta, `"add"`},
		"through an array":                          {[]DataOp{set(`1`, "principals", testIssuer, "a", "roles", "0", "x")}, ErrDelta, "on the way"},
		"a key the schema does not know":            {[]DataOp{set(`{}`, "extra")}, nil, "not allowed"},
		"a permission the schema does not know":     {[]DataOp{set(`{"fly":{}}`, "roles", "r", "grants", "*")}, nil, "/roles/r/grants/*"},
		"a target that is none":                     {[]DataOp{set(`{}`, "roles", "r", "grants", "a.b.c")}, nil, "a.b.c"},
		"a role with a bad name":                    {[]DataOp{set(`{"grants":{}}`, "roles", "no name")}, nil, "no name"},
		"a role without grants":                     {[]DataOp{set(`{}`, "roles", "s")}, nil, "grants"},
		"a lifetime as text":                        {[]DataOp{set(`"600"`, "roles", "r", "grants", "*", "write", "max_ttl")}, nil, "max_ttl"},
		"a new principal, wrong further down":       {[]DataOp{set(`{"fly":{}}`, "principals", "new", "b", "grants", "*")}, nil, "fly"},
		"what must be there is gone":                {[]DataOp{remove("groups")}, nil, "groups"},
		"what a role must have is gone":             {[]DataOp{remove("roles", "r", "grants")}, nil, "grants"},
		"a right change before a wrong one":         {[]DataOp{set(`{"grants":{}}`, "roles", "s"), remove("x")}, ErrDelta, "change 2"},
		"data where rules are":                      {[]DataOp{set(`1`, "sluice", "authz", "decision")}, nil, "sluice"},
	} {
		_, err := e.Patch(t.Context(), DataDelta{Ops: tt.ops})
		var le *LoadError
		if err == nil || tt.kind != nil && !errors.Is(err, tt.kind) || tt.kind == nil && !errors.As(err, &le) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
		if got := e.Status(); !reflect.DeepEqual(got, before) {
			t.Errorf("%s: the status is %+v", name, got)
		}
	}
	many := DataDelta{Ops: make([]DataOp, MaxDeltaOps+1)}
	if _, err := e.Patch(t.Context(), many); !errors.Is(err, ErrDelta) {
		t.Errorf("many changes: %v", err)
	}
}

// TestPatchAcceptsWhatAWholeRevisionWould compares random edits, most of them wrong
// somewhere, with checking the edited document as a whole: by the shipped schema and
// by schemas that look at an object as a whole.
func TestPatchAcceptsWhatAWholeRevisionWould(t *testing.T) {
	s, err := readShipped()
	if err != nil {
		t.Fatal(err)
	}
	schemas := []string{string(s.schema.text),
		`{"properties":{"roles":{"maxProperties":2,"minProperties":1}}}`,
		`{"properties":{"roles":{"oneOf":[{"required":["a"]},{"required":["b"]}]}}}`,
		`{"$ref":"#/$defs/x","required":["roles"],"$defs":{"x":{"properties":{"roles":{"additionalProperties":{"required":["grants"]}}}}}}`,
		`{"patternProperties":{"^r":{"propertyNames":{"maxLength":1}},"s$":{"additionalProperties":{"type":"object"}}}}`,
		`{"properties":{"roles":{"dependentRequired":{"a":["b"]}}}}`,
		`{"properties":{"roles":{"if":{"required":["a"]},"then":{"required":["b"]}}}}`,
		`{"properties":{"roles":{"unevaluatedProperties":false,"properties":{"a":true}}}}`,
		`{"properties":{"roles":{"enum":[{},{"a":{}}]}}}`,
		`{"properties":{"roles":false}}`,
		`{"$dynamicAnchor":"n","properties":{"roles":{"additionalProperties":{"$dynamicRef":"#n"}}},"additionalProperties":true}`,
	}
	start := map[string]any{}
	if err := json.Unmarshal([]byte(`{"principals":{},"groups":{},"roles":{"a":{"grants":{}}}}`), &start); err != nil {
		t.Fatal(err)
	}
	for i, text := range schemas {
		schema, err := compileSchema("data.schema.json", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		rs := &ruleset{schema: schema, dynamic: dynamic.MatchString(text)}
		r := rand.New(rand.NewPCG(uint64(i), 9))
		accepted, refused := 0, 0
		b := &Bundle{src: &source{}, document: newDocument(copyDocument(start))}
		if rs.checkSchema("", b.document) != nil {
			b.document = newDocument(map[string]any{})
		}
		for range 3000 {
			delta := randomDelta(r)
			next, err := b.Patch(delta)
			if err != nil {
				continue
			}
			got, want := rs.checkTouched("", next.document, touchedBy(delta, b.document)), rs.checkSchema("", next.document)
			if (got == nil) != (want == nil) {
				t.Fatalf("schema %d: %s\nafter %s\n%v\nas a whole: %v", i, text, appendCanonical(nil, b.document.decoded()), got, want)
			}
			if want == nil {
				b = next
				accepted++
			} else {
				refused++
			}
		}
		if accepted == 0 || refused == 0 && text != schemas[10] {
			t.Errorf("schema %d: %d accepted, %d refused", i, accepted, refused)
		}
	}
}

func randomDelta(r *rand.Rand) DataDelta {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	var d DataDelta
	for range 1 + r.IntN(3) {
		path := []string{pick("principals", "groups", "roles", "roles", "roles", "other")}
		switch path[0] {
		case "roles":
			path = append(path, pick("a", "b", "c", "no name"), "grants", pick("*", "d.*", "a.b.c"), pick("write", "read", "fly"), "max_ttl")
		case "principals", "groups":
			path = append(path, pick("i", "j", ""), pick("s", "t"), pick("roles", "grants", "comment", "x"))
		}
		op := DataOp{Op: OpSet, Path: path[:1+r.IntN(len(path))]}
		op.Value = json.RawMessage(pick(`{}`, `{"grants":{}}`, `{"a":{"grants":{}}}`, `["a"]`, `{"write":{}}`, `600`, `0`, `"x"`, `{"i":{"s":{}}}`))
		if r.IntN(3) == 0 {
			op.Op, op.Value = OpRemove, nil
		}
		d.Ops = append(d.Ops, op)
	}
	return d
}

// TestPatchWhileDeciding: each decision is by one whole revision.
func TestPatchWhileDeciding(t *testing.T) {
	e := openShipped(t, `{"principals":{},"groups":{},"roles":{}}`)
	in := benchInput(7)
	allowed := map[string]bool{e.Revision(): false}
	var mu sync.Mutex
	var deciding sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		deciding.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				d, err := e.Decide(t.Context(), in)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if was, known := allowed[d.Revision]; known && was != d.Allow {
					t.Errorf("revision %s allows and does not", d.Revision)
				}
				allowed[d.Revision] = d.Allow
				mu.Unlock()
			}
		})
	}
	path := []string{"principals", testIssuer, "worker-7", "grants", "demo.t7"}
	for i := range 60 {
		op := set(fmt.Sprintf(`{"write":{"max_ttl":%d}}`, i+1), path...)
		if i%2 == 1 {
			op = remove(path...)
		}
		r, err := e.Patch(t.Context(), DataDelta{Ops: []DataOp{op, set(fmt.Sprintf(`"%d"`, i), "principals", testIssuer, "x", "comment")}})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if was, known := allowed[r.ID]; known && was != (i%2 == 0) {
			t.Errorf("edit %d: the revision allows %v", i, was)
		}
		allowed[r.ID] = i%2 == 0
		mu.Unlock()
	}
	close(stop)
	deciding.Wait()
}

// TestPatchCostsWhatItTouches counts what an edit allocates at two sizes of data.
func TestPatchCostsWhatItTouches(t *testing.T) {
	allocations := func(n int) float64 {
		e, err := Open(t.Context(), Config{Data: benchData(n)})
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		return testing.AllocsPerRun(20, func() {
			i++
			if _, err := e.Patch(t.Context(), DataDelta{Ops: []DataOp{set(fmt.Sprintf(`{"write":{"max_ttl":%d}}`, i), "principals", testIssuer, "worker-1", "grants", "demo.x")}}); err != nil {
				t.Fatal(err)
			}
		})
	}
	small, large := allocations(100), allocations(20_000)
	if large > 1.5*small {
		t.Errorf("%.0f allocations at 100 grants, %.0f at 20,000", small, large)
	}
}

func TestADirectoryIsNotPatched(t *testing.T) {
	e := mustRules(t, `package sluice.authz

default decision := {"allow": false}
`, `{}`)
	if _, err := e.Patch(t.Context(), DataDelta{Ops: []DataOp{set(`1`, "x")}}); !errors.Is(err, ErrDelta) {
		t.Errorf("%v", err)
	}
}
