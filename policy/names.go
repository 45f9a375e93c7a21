package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Names are the words of a policy, for making requests that its rules know.
type Names struct {
	// Holders are principals and groups under data.principals and data.groups, as
	// the shipped rules have them, issuer first.
	Holders []Holder
	// Compared are the texts that rules compare with a field of the input, by the
	// field: principal.subject, say. A field that stands beside several texts in one
	// expression has them all.
	Compared map[string][]string
	// DataWords are the keys and texts of the data near their root, sorted.
	DataWords []string
	// Words are these and the texts in rules, sorted.
	Words []string
}

// Holder is a principal or a group of an issuer.
type Holder struct {
	Issuer, Name string
	Group        bool
}

// maxWords bounds what NamesOf collects.
const maxWords = 2000

// Names collects the names of a policy whose rules parse.
func (b *Bundle) Names() (Names, error) {
	modules, problems := parse(b.src.rules)
	if err := loadError(b.src.name, problems); err != nil {
		return Names{}, err
	}
	words, compared := map[string]bool{}, map[string][]string{}
	add := func(w string) {
		if len(words) < maxWords && w != "" && len(w) < 200 {
			words[w] = true
		}
	}
	for _, m := range modules {
		for _, r := range m.Rules {
			ast.WalkTerms(r, func(t *ast.Term) bool {
				if w, ok := t.Value.(ast.String); ok {
					add(string(w))
				}
				return false
			})
		}
		ast.WalkExprs(m, func(e *ast.Expr) bool {
			compare(e, compared)
			return false
		})
	}
	inData := map[string]bool{}
	dataWords(b.Document(), 0, func(w string) {
		if add(w); words[w] {
			inData[w] = true
		}
	})
	return Names{Holders: holders(b.Document()), Compared: compared, DataWords: slices.Sorted(maps.Keys(inData)), Words: slices.Sorted(maps.Keys(words))}, nil
}

// compare adds the texts of an expression to the input fields in it.
func compare(e *ast.Expr, compared map[string][]string) {
	if !e.IsCall() && !e.IsEquality() {
		return
	}
	var fields, texts []string
	for _, operand := range e.Operands() {
		if r, ok := operand.Value.(ast.Ref); ok {
			if r.HasPrefix(ast.InputRootRef) && len(r) == 3 && r.IsGround() {
				fields = append(fields, strings.Trim(r[1].String(), `"`)+"."+strings.Trim(r[2].String(), `"`))
			}
			continue
		}
		ast.WalkTerms(operand, func(t *ast.Term) bool {
			if s, ok := t.Value.(ast.String); ok && len(texts) < 100 {
				texts = append(texts, string(s))
			}
			return false
		})
	}
	for _, f := range fields {
		for _, s := range texts {
			if !slices.Contains(compared[f], s) {
				compared[f] = append(compared[f], s)
			}
		}
	}
}

// maxWordDepth is how far below the root of the data words are taken.
const maxWordDepth = 6

func dataWords(v any, depth int, add func(string)) {
	if depth > maxWordDepth {
		return
	}
	switch v := v.(type) {
	case string:
		add(v)
	case []any:
		for _, e := range v[:min(len(v), 100)] {
			dataWords(e, depth+1, add)
		}
	case map[string]any:
		n := 0
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if n++; n > 100 {
				return
			}
			add(k)
			dataWords(v[k], depth+1, add)
		}
	}
}

func holders(document map[string]any) []Holder {
	var out []Holder
	for _, kind := range []string{"principals", "groups"} {
		issuers, _ := document[kind].(map[string]any)
		for issuer, names := range issuers {
			names, _ := names.(map[string]any)
			for name := range names {
				out = append(out, Holder{issuer, name, kind == "groups"})
			}
		}
	}
	slices.SortFunc(out, func(a, b Holder) int {
		return strings.Compare(a.Issuer+"\x00"+a.Name, b.Issuer+"\x00"+b.Name)
	})
	return out
}
