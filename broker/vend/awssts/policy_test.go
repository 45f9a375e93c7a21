package awssts

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/session/scope"
)

// iamPolicy is a policy as its reader understands it: JSON, then globs. It shares no code
// with the writer.
type iamPolicy struct {
	Version   string
	Statement []struct {
		Effect                        string
		Action, Resource, NotResource []string
		Condition                     map[string]map[string]string
	}
}

func readIAM(t testing.TB, policy string) iamPolicy {
	t.Helper()
	for _, c := range []byte(policy) {
		if c < 0x20 || c > 0x7e {
			t.Fatalf("byte %#x in the policy: STS takes no such character, or counts it otherwise", c)
		}
	}
	var p iamPolicy
	d := json.NewDecoder(strings.NewReader(policy))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("%v in %s", err, policy)
	}
	if p.Version != "2012-10-17" {
		t.Fatalf("version %q knows no ${*}", p.Version)
	}
	for _, s := range p.Statement {
		if len(s.Resource) > 0 == (len(s.NotResource) > 0) || len(s.Action) == 0 {
			t.Fatalf("statement %+v", s)
		}
	}
	return p
}

// allows evaluates a request as IAM does: an explicit Deny wins, no Allow is a denial.
func (p iamPolicy) allows(action, resource string) bool {
	allowed := false
	for _, s := range p.Statement {
		if !anyGlob(s.Action, action) {
			continue
		}
		hit := anyGlob(s.Resource, resource)
		if len(s.NotResource) > 0 {
			hit = !anyGlob(s.NotResource, resource)
		}
		if hit && s.Effect == "Deny" {
			return false
		}
		allowed = allowed || hit
	}
	return allowed
}

func anyGlob(globs []string, s string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { return globMatch(g, s) })
}

// globMatch is IAM's matching of a resource: * any characters, ? one, ${*} ${?} ${$}
// the characters themselves. Any other variable panics.
func globMatch(g, s string) bool {
	star, from := -1, 0 // where the last * was, and what it has swallowed up to
	i, j := 0, 0
	for j < len(s) {
		r, size := utf8.DecodeRuneInString(s[j:])
		switch {
		case i < len(g) && g[i] == '*':
			star, from = i, j
			i++
			continue
		case i < len(g) && g[i] == '?':
			i, j = i+1, j+size
			continue
		case i < len(g) && g[i] == '$':
			if len(g) < i+4 || g[i+1] != '{' || g[i+3] != '}' || !strings.ContainsRune("*?$", rune(g[i+2])) {
				panic("a policy variable: " + g[i:])
			}
			if rune(g[i+2]) == r {
				i, j = i+4, j+size
				continue
			}
		case i < len(g):
			if p, n := utf8.DecodeRuneInString(g[i:]); p == r {
				i, j = i+n, j+size
				continue
			}
		}
		if star < 0 {
			return false
		}
		_, n := utf8.DecodeRuneInString(s[from:])
		from += n
		i, j = star+1, from
	}
	for i < len(g) && g[i] == '*' {
		i++
	}
	return i == len(g)
}

func TestTheMatcherOfTheTestsIsIAMs(t *testing.T) {
	for _, row := range []struct {
		glob, s string
		want    bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a*", "a", true}, {"a*", "a/b/c", true}, {"*b", "ab/b", true},
		{"a?c", "abc", true}, {"a?c", "a/c", true}, {"a?c", "ac", false}, {"?", "é", true}, {"a*b*c", "a-b-b-c", true},
		{"a*b*c", "a-b-b-d", false}, {"${*}", "*", true}, {"${*}", "x", false}, {"${?}", "?", true}, {"${?}", "x", false},
		{"${$}{aws:userid}", "${aws:userid}", true}, {"*${*}", "ab*", true}, {"*${*}", "ab", false},
	} {
		if got := globMatch(row.glob, row.s); got != row.want {
			t.Errorf("%q matches %q: %v", row.glob, row.s, got)
		}
	}
}

func prefix(t testing.TB, s string) scope.Prefix {
	t.Helper()
	p, err := scope.ParsePrefix(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func at(t testing.TB, a vend.Access, bucket, key string) vend.Location {
	return vend.Location{Bucket: bucket, Prefix: prefix(t, key), Access: a}
}

func normal(t testing.TB, locs ...vend.Location) []vend.Location {
	t.Helper()
	out, err := normalise(locs)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPolicies(t *testing.T) {
	obj := func(l vend.Location) vend.Location { l.Object = true; return l }
	const key = "arn:aws:kms:eu-west-1:111122223333:key/0f0e0d0c-1111-2222-3333-444455556666"
	for _, row := range []struct {
		name string
		w    writer
		locs []vend.Location
		want string
	}{
		{
			"nothing is an explicit Deny", writer{partition: "aws"}, nil,
			`{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":["*"],"Resource":["*"]}]}`,
		},
		{
			"a written bucket", writer{partition: "aws"}, []vend.Location{at(t, vend.Write, "lake", "kv/db/t-7/0/snap-3")},
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:PutObject","s3:GetObject","s3:AbortMultipartUpload","s3:ListMultipartUploadParts"],"Resource":["arn:aws:s3:::lake/kv/db/t-7/0/snap-3/*"]}]}`,
		},
		{
			"a read one", writer{partition: "aws-cn"}, []vend.Location{at(t, vend.Read, "lake", "kv/db/t-7/0/snap-3")},
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject"],"Resource":["arn:aws-cn:s3:::lake/kv/db/t-7/0/snap-3/*"]}]}`,
		},
		{
			"both, and one object", writer{partition: "aws-us-gov"},
			[]vend.Location{at(t, vend.Read, "lake", "b"), obj(at(t, vend.Write, "lake", "a/manifest"))},
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:PutObject","s3:GetObject","s3:AbortMultipartUpload","s3:ListMultipartUploadParts"],"Resource":["arn:aws-us-gov:s3:::lake/a/manifest"]},` +
				`{"Effect":"Allow","Action":["s3:GetObject"],"Resource":["arn:aws-us-gov:s3:::lake/b/*"]}]}`,
		},
		{
			"a KMS key for a reader", writer{partition: "aws", kms: KMS{KeyARN: key}}, []vend.Location{at(t, vend.Read, "lake", "b")},
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::lake/b/*"]},` +
				`{"Effect":"Allow","Action":["kms:Decrypt"],"Resource":["` + key + `"]}]}`,
		},
		{
			"a KMS key for a writer, via S3 only", writer{partition: "aws", kms: KMS{KeyARN: key, ViaService: "s3.eu-west-1.amazonaws.com"}}, []vend.Location{obj(at(t, vend.Write, "lake", "b"))},
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:PutObject","s3:GetObject","s3:AbortMultipartUpload","s3:ListMultipartUploadParts"],"Resource":["arn:aws:s3:::lake/b"]},` +
				`{"Effect":"Allow","Action":["kms:GenerateDataKey","kms:Decrypt"],"Resource":["` + key + `"],"Condition":{"StringEquals":{"kms:ViaService":"s3.eu-west-1.amazonaws.com"}}}]}`,
		},
		{
			"names that are wildcards", writer{partition: "custom"}, []vend.Location{at(t, vend.Write, "lake", `*/?/${aws:userid}/"é𝄞`)},
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:PutObject","s3:GetObject","s3:AbortMultipartUpload","s3:ListMultipartUploadParts"],"Resource":["arn:custom:s3:::lake/${*}/${?}/${$}{aws:userid}/\"\u00e9\ud834\udd1e/*"]}]}`,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := row.w.plain(normal(t, row.locs...)).encode(); got != row.want {
				t.Errorf("policy\n%s\nwant\n%s", got, row.want)
			}
			readIAM(t, row.want)
		})
	}
}

func TestNormaliseKeepsWhatIsNotIncluded(t *testing.T) {
	obj := func(l vend.Location) vend.Location { l.Object = true; return l }
	w, r := func(k string) vend.Location { return at(t, vend.Write, "lake", k) }, func(k string) vend.Location { return at(t, vend.Read, "lake", k) }
	for _, row := range []struct {
		name     string
		in, want []vend.Location
	}{
		{"a child is included", []vend.Location{w("t/1"), w("t/1/x"), obj(w("t/1/y"))}, []vend.Location{w("t/1")}},
		{"a sibling is not", []vend.Location{w("t/1"), w("t/10")}, []vend.Location{w("t/1"), w("t/10")}},
		{"the prefix itself as an object is not", []vend.Location{w("t/1"), obj(w("t/1"))}, []vend.Location{w("t/1"), obj(w("t/1"))}},
		{"writing includes reading", []vend.Location{r("t/1"), w("t/1"), r("t/1/x")}, []vend.Location{w("t/1")}},
		{"reading does not include writing", []vend.Location{r("t"), w("t/1")}, []vend.Location{w("t/1"), r("t")}},
		{"another bucket is another place", []vend.Location{w("t"), at(t, vend.Write, "lake2", "t/1")}, []vend.Location{w("t"), at(t, vend.Write, "lake2", "t/1")}},
		{"repeated", []vend.Location{w("t"), w("t")}, []vend.Location{w("t")}},
		{"buckets follow by number", []vend.Location{w("t/10/s"), w("t/9/s"), w("t/2/s")}, []vend.Location{w("t/2/s"), w("t/9/s"), w("t/10/s")}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := normal(t, row.in...); !slices.Equal(got, row.want) {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
	for _, bad := range []vend.Location{
		{Bucket: "lake", Access: vend.Write}, {Bucket: "lake", Prefix: prefix(t, "a")},
		at(t, vend.Write, "la*ke", "a"), at(t, vend.Write, "", "a"), at(t, 3, "lake", "a"), at(t, vend.Write, "lake/x", "a"),
	} {
		if _, err := normalise([]vend.Location{bad}); !errors.Is(err, vend.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

const everyAction = "s3:PutObject s3:GetObject s3:AbortMultipartUpload s3:ListMultipartUploadParts s3:DeleteObject s3:DeleteObjectVersion " +
	"s3:ListBucket s3:ListBucketMultipartUploads s3:PutObjectAcl s3:PutObjectTagging s3:GetObjectVersion s3:RestoreObject s3:PutBucketPolicy kms:Decrypt sts:AssumeRole"

// checkGrant asks a policy about a key and compares with the locations.
func checkGrant(t testing.TB, p iamPolicy, locs []vend.Location, bucket, key string) {
	t.Helper()
	read, write := false, false
	for _, l := range locs {
		in := key == l.Prefix.String()
		if !l.Object {
			in = strings.HasPrefix(key, l.Prefix.String()+"/")
		}
		if in = in && bucket == l.Bucket; in {
			read, write = true, write || l.Access == vend.Write
		}
	}
	for action := range strings.SplitSeq(everyAction, " ") {
		want := false
		switch action {
		case "s3:GetObject":
			want = read
		case "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts":
			want = write
		}
		if got := p.allows(action, "arn:aws:s3:::"+bucket+"/"+key); got != want {
			t.Fatalf("%s on %q: allowed %v, granted %v by %v", action, key, got, want, locs)
		}
	}
}

// TestPatternsNeverWiden walks through every range of buckets, and asks the policy
// about every string that could stand where the bucket's number stands.
func TestPatternsNeverWiden(t *testing.T) {
	w := writer{partition: "aws", guards: true}
	var words []string
	var grow func(string, int)
	grow = func(s string, n int) {
		words = append(words, s)
		if n > 0 {
			for _, c := range []byte("0123459a/*?$") {
				grow(s+string(c), n-1)
			}
		}
	}
	grow("", 3)
	ranges := [][2]int{{0, 99}, {7, 120}, {90, 110}, {95, 134}, {0, 129}, {100, 139}, {100, 199}, {980, 1020}}
	for first := 0; first < 32; first += 3 {
		for last := first; last < 42; last += 1 + first%2 {
			ranges = append(ranges, [2]int{first, last})
		}
	}
	patterns := 0
	for i, r := range ranges {
		var locs []vend.Location
		for n := r[0]; n <= r[1]; n++ {
			locs = append(locs, at(t, vend.Write, "lake", fmt.Sprintf("r/%d/s-0", n)))
		}
		switch i % 3 { // what else a grant may hold
		case 1:
			m := at(t, vend.Write, "lake", "r/_bulkload/0/manifest")
			m.Object = true
			locs = append(locs, m, at(t, vend.Read, "lake", "r/4/s-1"))
		case 2:
			for n := range 20 {
				locs = append(locs, at(t, vend.Read, "lake", fmt.Sprintf("r/%d/s-1", n)))
			}
		}
		locs = normal(t, locs...)
		policy, ok := w.compact(locs, 1<<20)
		if full := r[1] / 10 * 10; !ok {
			if i%3 != 2 && (full-10 >= max(r[0], 10) || r[1]%10 == 9 && full >= max(r[0], 10)) {
				t.Errorf("range %v holds a decade and has no pattern", r)
			}
			continue
		}
		patterns++
		p := readIAM(t, policy)
		tails := []string{"/s-0/x", "/s-0", "/s-0x/y", "/s-1/x", "/s-0/12/s-0/x", ""}
		if i >= 8 {
			tails = tails[:2]
		}
		for _, word := range words {
			for _, tail := range tails {
				key := "r/" + word + tail
				want := slices.ContainsFunc(locs, func(l vend.Location) bool {
					return l.Access == vend.Write && (l.Object && key == l.Prefix.String() || !l.Object && strings.HasPrefix(key, l.Prefix.String()+"/"))
				})
				if got := p.allows("s3:PutObject", "arn:aws:s3:::lake/"+key); got != want {
					t.Fatalf("range %v: put %q allowed %v, granted %v\n%s", r, key, got, want, policy)
				}
			}
		}
		for _, key := range []string{"r/1/s-0/x", "r/10/s-0/x", "r/1x/s-0/x", "r/11/s-1/x", "r/_bulkload/0/manifest", "r/_bulkload/0/manifest/x", "r", "r/", "q/10/s-0/x", "r/10", "r/1/0/s-0/x"} {
			checkGrant(t, p, locs, "lake", key)
			checkGrant(t, p, locs, "lake2", key)
		}
	}
	if patterns < 50 {
		t.Fatalf("only %d ranges used patterns: the test looks at nothing", patterns)
	}
}

// TestTheAllowSideAloneReachesNoOtherBucket is for providers that ignore a Deny.
func TestTheAllowSideAloneReachesNoOtherBucket(t *testing.T) {
	var locs []vend.Location
	for n := 10; n < 250; n++ {
		if n != 57 && n != 123 {
			locs = append(locs, at(t, vend.Write, "lake", fmt.Sprintf("r/%d/s-0", n)))
		}
	}
	locs = normal(t, locs...)
	policy, ok := writer{partition: "aws", guards: true}.compact(locs, 1<<20)
	if !ok {
		t.Fatal("no patterns")
	}
	p := readIAM(t, policy)
	for i := range p.Statement {
		if p.Statement[i].Effect == "Deny" {
			p.Statement = slices.Delete(p.Statement, i, i+1)
			break
		}
	}
	for n := range 3000 {
		for _, key := range []string{fmt.Sprintf("r/%d/s-0/x", n), fmt.Sprintf("r/%d/%d/s-0/x", n%10, n/10), fmt.Sprintf("r/%d/7/s-0/x", n)} {
			checkGrant(t, p, locs, "lake", key)
		}
	}
}

func TestTheProofAgreesWithCounting(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var words []string
	var grow func(string, int)
	grow = func(s string, n int) {
		words = append(words, s)
		if n > 0 {
			for _, c := range "abc" { // c is in no glob
				grow(s+string(c), n-1)
			}
		}
	}
	grow("", 5)
	randomGlobs := func(wild int) []glob {
		var out []glob
		for range 1 + rnd.IntN(3) {
			var g glob
			for range rnd.IntN(4) {
				g = append(g, []rune{'a', 'b', 'a', 'b', anyOne}[rnd.IntN(4+wild)])
			}
			if rnd.IntN(2) == 0 {
				g = append(g, anyTail)
			}
			out = append(out, g)
		}
		return out
	}
	matches := func(globs []glob, s string) bool {
		return slices.ContainsFunc(globs, func(g glob) bool { return globMatch(string(g.append(nil)), s) })
	}
	same := 0
	for range 20000 {
		allow, guard, granted := randomGlobs(1), randomGlobs(1), randomGlobs(0)
		if rnd.IntN(3) == 0 { // equality by chance is rare
			allow, guard = granted, append(slices.Clone(granted), guard...)
		}
		want := !slices.ContainsFunc(words, func(s string) bool {
			return (matches(allow, s) && matches(guard, s)) != matches(granted, s)
		})
		if got := equal(allow, guard, granted); got != want {
			t.Fatalf("proof %v, counting %v: allow %v guard %v granted %v", got, want, allow, guard, granted)
		}
		if want {
			same++
		}
	}
	if same < 1000 || same > 19000 {
		t.Fatalf("%d of 20000 are equal: one side was hardly tried", same)
	}
}

func TestPlanFitsTheBudgetExactly(t *testing.T) {
	buckets := func(root string, n int) []vend.Location {
		var out []vend.Location
		for i := range n {
			out = append(out, at(t, vend.Write, "lake", fmt.Sprintf("%s/%d/snap-0", root, i)))
		}
		return normal(t, out...)
	}
	w := writer{partition: "aws", guards: true}
	long := "warehouse/kv/db/orders-17/_bulkload/0190b1c2-7d3e-7abc-8def-001122334455"
	for _, row := range []struct {
		name  string
		locs  []vend.Location
		w     writer
		limit int
		parts int
	}{
		{"one", buckets("r", 1), w, 2048, 1},
		{"names while they fit", buckets("r", 50), w, 2048, 1},
		{"patterns when they do not", buckets("r", 100), w, 2048, 1},
		{"several credentials by name", buckets(long, 64), writer{partition: "aws"}, 2048, 4},
		{"fewer by pattern", buckets(long, 100), w, 2048, 3},
		{"more by name", buckets(long, 100), writer{partition: "aws"}, 2048, 6},
		{"a large table", buckets("r", 1000), w, 2048, 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			parts, err := row.w.plan(row.locs, budget{row.limit, 64})
			if err != nil || len(parts) != row.parts {
				t.Fatalf("%d parts, %v; want %d", len(parts), err, row.parts)
			}
			var all []vend.Location
			for _, p := range parts {
				if len(p.policy) > row.limit {
					t.Errorf("%d characters", len(p.policy))
				}
				doc := readIAM(t, p.policy)
				for _, l := range row.locs {
					checkGrant(t, doc, p.locations, "lake", l.Prefix.String()+"/x")
				}
				all = append(all, p.locations...)
			}
			if !slices.Equal(all, row.locs) {
				t.Error("the parts are not the whole")
			}
		})
	}
	t.Run("the limit is exact", func(t *testing.T) {
		locs := buckets("r", 3)
		size := len(w.plain(locs).encode())
		if parts, err := w.plan(locs, budget{size, 1}); err != nil || len(parts) != 1 {
			t.Errorf("%d characters do not fit into %d: %v", size, size, err)
		}
		var e *TooLargeError
		if _, err := w.plan(locs, budget{size - 1, 1}); !errors.As(err, &e) || e.Locations != 3 || e.Max != 1 || e.Limit != size-1 {
			t.Errorf("one character too many: %v", err)
		}
	})
	t.Run("a refusal has the numbers", func(t *testing.T) {
		one := normal(t, at(t, vend.Write, "lake", strings.Repeat("*", 1000)))
		_, err := w.plan(one, budget{2048, 8})
		var e *TooLargeError
		if !errors.As(err, &e) || !errors.Is(err, vend.ErrTooLarge) || e.Size != len(w.plain(one).encode()) || !strings.Contains(err.Error(), "2048") || !strings.Contains(err.Error(), fmt.Sprint(e.Size)) {
			t.Errorf("%v", err)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	var locs []vend.Location
	for i := range 1000 {
		locs = append(locs, at(b, vend.Write, "lake", fmt.Sprintf("warehouse/kv/db/orders-17/%d/snap-0", i)))
	}
	locs = normal(b, locs...)
	for b.Loop() {
		if _, err := (writer{partition: "aws", guards: true}).plan(locs, budget{DefaultPolicyLimit, 64}); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzNamesStayLiteral(f *testing.F) {
	for _, s := range []string{"db/t", "*", "f*.t1", "?", "${aws:username}", "${*}", "$", "{", `a"b`, "é", "𝄞/\u2028", "a$", "${", "$}", "x/*/y", "<&>"} {
		f.Add(s, "a/1", byte(0))
	}
	f.Fuzz(func(t *testing.T, name, probe string, how byte) {
		p, err := scope.ParsePrefix(name)
		if err != nil || !utf8.ValidString(probe) {
			t.Skip()
		}
		l := vend.Location{Bucket: "lake", Prefix: p, Object: how&1 == 1, Access: vend.Write}
		if how&2 == 2 {
			l.Access = vend.Read
		}
		locs := normal(t, l)
		doc := readIAM(t, writer{partition: "aws"}.plain(locs).encode())
		key := p.String()
		for _, k := range []string{
			key, key + "/x", key + "/", key + "x", key + "x/x", probe, key + "/" + probe, key + probe,
			strings.ReplaceAll(key, "*", "x"), strings.ReplaceAll(key, "*", "") + "/x", strings.ReplaceAll(key, "?", "x") + "/x",
			strings.ReplaceAll(key, "$", "") + "/x", strings.ToUpper(key) + "/x", key[:len(key)-1] + "/x",
		} {
			if utf8.ValidString(k) {
				checkGrant(t, doc, locs, "lake", k)
			}
		}
	})
}
