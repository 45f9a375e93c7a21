package diff

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/policy"
)

func bundle(t *testing.T, files ...string) *policy.Bundle {
	t.Helper()
	var all []policy.BundleFile
	for i := 0; i < len(files); i += 2 {
		all = append(all, policy.BundleFile{Name: files[i], Text: []byte(files[i+1])})
	}
	b, err := policy.NewBundle("test", all)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const authz = `package sluice.authz

# Nobody may, by default.
default decision := {"allow": false}

decision := {"allow": true} if {
	input.action == "read"
	helper
}

helper if input.principal.subject == "a"

helper if input.principal.subject == "b"
`

const data = `{"principals": {"i": {"alice": {"roles": ["reader"], "grants": {"shop.orders": {"write": {"max_ttl": 60}}}}}},
	"roles": {"reader": {"grants": {"*": {"read": {}}}}}, "frozen": {"shop": ["orders"]}, "hours": {"from": 8, "to": 18}}`

func TestDiff(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files []string
		want  []string
	}{
		{"the same", []string{"authz.rego", authz, "data.json", data}, nil},
		{"another layout, order and file", []string{"other/rules.rego", strings.NewReplacer("# Nobody may, by default.\n", "", "\thelper\n", "\n\thelper\n").Replace(
			"package sluice.authz\n\nhelper if input.principal.subject == \"b\"\n" + strings.Replace(strings.TrimPrefix(authz, "package sluice.authz"), "\nhelper if input.principal.subject == \"b\"\n", "", 1)),
			"data.json", strings.Replace(data, `"from": 8, "to": 18`, `"to": 18, "from":   8`, 1)}, nil},
		{"a rule that changed", []string{"authz.rego", strings.Replace(authz, `"read"`, `"begin"`, 1), "data.json", data}, []string{"rules changed data.sluice.authz.decision"}},
		{"a rule that is gone", []string{"authz.rego", strings.Replace(authz, "helper if input.principal.subject == \"b\"\n", "", 1), "data.json", data}, []string{"rules removed data.sluice.authz.helper"}},
		{"a rule that is new, and one more of a name", []string{"authz.rego", authz + "\nhelper if input.principal.subject == \"c\"\n\nmore := 1\n", "data.json", data},
			[]string{"rules added data.sluice.authz.helper", "rules added data.sluice.authz.more"}},
		{"a test", []string{"authz.rego", authz, "data.json", data, "authz_test.rego", "package t\n\ntest_x if true\n"}, []string{"tests added data.t.test_x"}},
		{"an import with another meaning", []string{"authz.rego", strings.Replace(authz, "authz\n", "authz\n\nimport data.hours as helper\n", 1), "data.json", data}, []string{
			"rules changed data.sluice.authz.decision", "rules changed data.sluice.authz.decision", "rules changed data.sluice.authz.helper", "rules changed data.sluice.authz.helper"}},
		{"a grant's limit", []string{"authz.rego", authz, "data.json", strings.Replace(data, "60", "90", 1)}, []string{`grants changed principal alice of i: write on shop.orders {"max_ttl":60} {"max_ttl":90}`}},
		{"a role taken away", []string{"authz.rego", authz, "data.json", strings.Replace(data, `"roles": ["reader"], `, "", 1)}, []string{"grants removed principal alice of i: role reader"}},
		{"a holder that is new", []string{"authz.rego", authz, "data.json", strings.Replace(data, `{"i": {`, `{"i": {"bob": {"grants": {"shop.x": {}}}, `, 1)},
			[]string{"grants added principal bob of i", "grants added principal bob of i: nothing on shop.x"}},
		{"other data", []string{"authz.rego", authz, "data.json", strings.Replace(strings.Replace(data, "18", "20", 1), `["orders"]`, `[]`, 1)},
			[]string{`data changed frozen/shop ["orders"] []`, "data changed hours/to 18 20"}},
		{"a schema", []string{"authz.rego", authz, "data.json", data, "data.schema.json", `{"type": "object"}`}, []string{`schema added data.schema.json/type  "object"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := bundle(t, "authz.rego", authz, "data.json", data)
			r, err := Of(before, bundle(t, tt.files...))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range r.Changes {
				s := fmt.Sprintf("%s %s %s", c.Section, c.Kind, c.What)
				if c.Section != Rules && c.Section != Tests && c.From+c.To != "" {
					s += " " + c.From + " " + c.To
				}
				got = append(got, s)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestDiffShowsRulesAsWritten(t *testing.T) {
	r, err := Of(bundle(t, "authz.rego", authz), bundle(t, "authz.rego", strings.Replace(authz, `"read"`, `"begin"`, 1)))
	if err != nil || len(r.Changes) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	c := r.Changes[0]
	if c.File != "authz.rego" || c.Line != 6 || !strings.Contains(c.From, "\tinput.action == \"read\"\n") || !strings.Contains(c.To, "\tinput.action == \"begin\"\n") {
		t.Errorf("%+v", c)
	}
}

func TestDiffOfWhatDoesNotParse(t *testing.T) {
	if _, err := Of(bundle(t, "authz.rego", authz), bundle(t, "authz.rego", "package sluice.authz\nx := := 1\n")); err == nil {
		t.Error("no error")
	}
}
