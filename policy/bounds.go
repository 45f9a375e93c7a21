package policy

import (
	"fmt"
	"math"
	"regexp/syntax"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// A built-in function is one step however much it makes, so what it would make is
// reckoned from its arguments before it runs. A function that would make more fails,
// and a failing function is an error of the evaluation.
const (
	maxResult    = 16 << 20 // bytes
	maxDigits    = 1024     // of a number; big numbers cost the square of their digits
	maxExponent  = 400      // decimal; a float64 ends at 308
	maxPattern   = 1024     // bytes of a pattern
	maxCompiled  = 20_000   // instructions of a compiled pattern; OPA keeps a hundred patterns
	maxMatchWork = 64 << 20 // length of the text times instructions
	maxCompared  = 1 << 20  // parts of a value that is compared
)

// Bytes that one part of a result takes beside its text.
const partBytes = 64

// boundBuiltins puts a bound before each function that rules may call. OPA finds a
// function in one place per process, and this is how it lets programs replace one.
// Nothing is changed of what a function returns.
func boundBuiltins() {
	for _, b := range Capabilities().Builtins {
		f := topdown.GetBuiltin(b.Name)
		if f == nil {
			continue // a keyword, or compiled away
		}
		topdown.RegisterBuiltinFunc(b.Name, bounded(b.Name, f))
	}
}

func init() { boundBuiltins() }

// bounded is f, which fails on what would cost too much.
func bounded(name string, f topdown.BuiltinFunc) topdown.BuiltinFunc {
	estimate := estimates[name]
	return func(ctx topdown.BuiltinContext, args []*ast.Term, iter func(*ast.Term) error) error {
		size := 0.0
		for _, a := range args {
			switch v := a.Value.(type) {
			case ast.String:
				size += 4 * float64(len(v)) // base64, hex and escapes
			case ast.Number:
				if err := checkNumber(string(v)); err != nil {
					return err
				}
			}
		}
		if estimate != nil {
			var err error
			if size, err = estimate(args); err != nil {
				return err
			}
		}
		if size > maxResult {
			return fmt.Errorf("the result could take more than %d MiB", maxResult>>20)
		}
		return f(ctx, args, iter)
	}
}

// checkNumber refuses numbers that take long to compute with.
func checkNumber(s string) error {
	if len(s) > maxDigits {
		return fmt.Errorf("a number of more than %d digits", maxDigits)
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		if e, err := strconv.Atoi(s[i+1:]); err != nil || e > maxExponent || e < -maxExponent {
			return fmt.Errorf("the number %.40s is out of range", s)
		}
	}
	return nil
}

// estimate is an upper bound, in bytes, of what a function makes of its arguments.
// Arguments of a wrong type are left to the function.
type estimate func(args []*ast.Term) (float64, error)

// estimates are of the functions whose result may be larger than four times the text
// of their arguments, or whose work may be. A test compares it with the capabilities.
var estimates = map[string]estimate{
	"equal": comparison, "neq": comparison, "lt": comparison, "lte": comparison, "gt": comparison, "gte": comparison,
	"internal.member_2": comparison, "internal.member_3": comparison, "object.subset": comparison,

	"sprintf":                  printing,
	"internal.template_string": marshalling,
	"json.marshal":             marshalling,
	"json.marshal_with_options": func(args []*ast.Term) (float64, error) {
		size, err := marshalling(args)
		return size * (1 + optionText(args[1])), err
	},
	"concat": func(args []*ast.Term) (float64, error) {
		size, n := 0.0, 0
		eachElement(args[1], func(t *ast.Term) { size, n = size+textLen(t), n+1 })
		return size + float64(n)*textLen(args[0]), nil
	},
	"replace": func(args []*ast.Term) (float64, error) {
		return textLen(args[0]) + occurrences(args[0], args[1])*textLen(args[2]), nil
	},
	"strings.replace_n": func(args []*ast.Term) (float64, error) {
		size := textLen(args[1])
		if o, ok := args[0].Value.(ast.Object); ok {
			o.Foreach(func(from, to *ast.Term) { size += occurrences(args[1], from) * textLen(to) })
		}
		return size, nil
	},
	"split":           func(args []*ast.Term) (float64, error) { return pieces(args[0], args[1]), nil },
	"strings.split_n": func(args []*ast.Term) (float64, error) { return pieces(args[0], args[1]), nil },
	"indexof_n":       func(args []*ast.Term) (float64, error) { return pieces(args[0], args[1]), nil },

	"json.unmarshal":         parsing,
	"urlquery.decode_object": parsing,
	"urlquery.encode_object": marshalling,
	"uri.parse":              parsing,
	"bits.lsh":               shifting,
	"product":                multiplying,
	"array.concat":           lengths,
	"object.union":           lengths,
	"object.union_n":         elementLengths,
	"union":                  elementLengths,
	"time.format":            parsing,
	"time.parse_ns":          parsing,
	"units.parse":            digits,
	"units.parse_bytes":      digits,
	"to_number":              digits,
	"time.parse_duration_ns": digits,
	"semver.compare":         digits,
	"semver.is_valid":        digits,
	"glob.match":             globbing,
	"glob.quote_meta":        parsing,
	"regex.is_valid":         func(args []*ast.Term) (float64, error) { _, err := patternSize(args[0]); return 0, err },
	"regex.match":            matching(0, 1, 0),
	"regex.find_n":           matching(0, 1, partBytes),
	"regex.split":            matching(0, 1, partBytes),
	"regex.template_match":   matching(0, 1, 0),
	"regex.replace":          replacing,
	"graph.reachable":        nil, // a set of the graph's own nodes
	"walk":                   nil, // one answer at a time, each a step
	"rego.metadata.chain":    nil,
	"rego.metadata.rule":     nil,
	"json.patch":             nil,
	"net.cidr_contains":      nil,
	"net.cidr_merge":         nil,
	"regex.find_all_string_submatch_n": func(args []*ast.Term) (float64, error) {
		size, err := matching(0, 1, partBytes)(args)
		groups := 1 + float64(strings.Count(argText(args[0]), "("))
		return size * groups, err
	},
}

// argText is a string argument, "" for any other.
func argText(t *ast.Term) string {
	s, _ := t.Value.(ast.String)
	return string(s)
}

func textLen(t *ast.Term) float64 { return float64(len(argText(t))) }

func eachElement(t *ast.Term, f func(*ast.Term)) {
	switch v := t.Value.(type) {
	case *ast.Array:
		v.Foreach(f)
	case ast.Set:
		v.Foreach(f)
	}
}

// occurrences of part in a text; an empty part is between all characters.
func occurrences(whole, part *ast.Term) float64 {
	if argText(part) == "" {
		return float64(utf8.RuneCountInString(argText(whole)) + 1)
	}
	return float64(strings.Count(argText(whole), argText(part)))
}

func pieces(whole, part *ast.Term) float64 {
	return textLen(whole) + partBytes*(1+occurrences(whole, part))
}

// parsing makes values of a text, at worst one of each second byte.
func parsing(args []*ast.Term) (float64, error) {
	size := 0.0
	for _, a := range args {
		size += textLen(a)
		eachElement(a, func(t *ast.Term) { size += textLen(t) })
	}
	return size * partBytes / 2, nil
}

// digits are texts read as numbers.
func digits(args []*ast.Term) (float64, error) {
	for _, a := range args {
		if s := argText(a); len(s) > maxDigits {
			return 0, fmt.Errorf("a text of more than %d bytes", maxDigits)
		}
	}
	if s := argText(args[0]); strings.ContainsAny(s, "eE") {
		number := strings.TrimRight(s, "BbKkMmGgTtPpiI ")
		if i := strings.LastIndexAny(number, "eE"); i > 0 && number[i-1] >= '0' && number[i-1] <= '9' {
			if e, err := strconv.Atoi(number[i+1:]); err == nil && (e > maxExponent || e < -maxExponent) {
				return 0, fmt.Errorf("the number %.40s is out of range", s)
			}
		}
	}
	return 0, nil
}

// marshalling prints values with all that is in them.
func marshalling(args []*ast.Term) (float64, error) {
	size := 0.0
	for _, a := range args {
		left := float64(maxResult)
		printed(a.Value, &left)
		size += maxResult - left
	}
	return size + 1, nil
}

// printed takes the printed size of a value from left, and stops when none is left:
// a small value may print large, since parts of it can be shared.
func printed(v ast.Value, left *float64) {
	if *left < 0 {
		return
	}
	*left -= 8
	each := func(t *ast.Term) bool { printed(t.Value, left); return *left < 0 }
	switch v := v.(type) {
	case ast.String:
		*left -= 2 * float64(len(v))
	case ast.Number:
		*left -= float64(len(v))
	case *ast.Array:
		v.Until(each)
	case ast.Set:
		v.Until(each)
	case ast.Object:
		v.Until(func(k, v *ast.Term) bool { return each(k) || each(v) })
	}
}

// printing is sprintf: each number in the format may be a width.
func printing(args []*ast.Term) (float64, error) {
	size, err := marshalling(args)
	run := 0
	for _, c := range argText(args[0]) {
		switch {
		case c == '*':
			return 0, fmt.Errorf("a width given as an argument")
		case c >= '0' && c <= '9':
			run = min(run*10+int(c-'0'), maxResult+1)
		default:
			size, run = size+float64(run), 0
		}
	}
	return size + float64(run), err
}

// optionText is how much indenting may multiply what is marshalled.
func optionText(options *ast.Term) float64 {
	left := float64(maxResult)
	printed(options.Value, &left)
	return maxResult - left
}

// comparison walks both values, side by side: the smaller one is the bound.
func comparison(args []*ast.Term) (float64, error) {
	if len(args) < 2 || scalar(args[0]) || scalar(args[1]) {
		return 0, nil
	}
	for _, a := range args[:2] {
		if parts(a.Value, maxCompared) > 0 {
			return 0, nil
		}
	}
	return 0, fmt.Errorf("both values have more than %d parts", maxCompared)
}

func scalar(t *ast.Term) bool {
	switch t.Value.(type) {
	case *ast.Array, ast.Set, ast.Object:
		return false
	}
	return true
}

// parts is what is left of a number when a value's parts are taken away.
func parts(v ast.Value, left int) int {
	each := func(t *ast.Term) bool { left = parts(t.Value, left); return left <= 0 }
	if left--; left <= 0 {
		return 0
	}
	switch v := v.(type) {
	case *ast.Array:
		v.Until(each)
	case ast.Set:
		v.Until(each)
	case ast.Object:
		v.Until(func(k, v *ast.Term) bool { return each(k) || each(v) })
	}
	return max(left, 0)
}

// lengths joins collections; their elements are shared, not copied.
func lengths(args []*ast.Term) (float64, error) {
	n := 0.0
	for _, a := range args {
		n += length(a)
	}
	return n * partBytes, nil
}

func elementLengths(args []*ast.Term) (float64, error) {
	n := 0.0
	eachElement(args[0], func(t *ast.Term) { n += length(t) })
	return n * partBytes, nil
}

func length(t *ast.Term) float64 {
	switch v := t.Value.(type) {
	case *ast.Array:
		return float64(v.Len())
	case ast.Set:
		return float64(v.Len())
	case ast.Object:
		return float64(v.Len())
	}
	return 0
}

func shifting(args []*ast.Term) (float64, error) {
	n, ok := args[1].Value.(ast.Number)
	if !ok {
		return 0, nil
	}
	if by, ok := n.Int(); !ok || by > maxDigits {
		return 0, fmt.Errorf("a shift by more than %d bits", maxDigits)
	}
	return 0, nil
}

func multiplying(args []*ast.Term) (float64, error) {
	n := 0
	eachElement(args[0], func(t *ast.Term) {
		if v, ok := t.Value.(ast.Number); ok {
			n += len(v)
		}
	})
	if n > 16*maxDigits {
		return 0, fmt.Errorf("factors of more than %d digits together", 16*maxDigits)
	}
	return 0, nil
}

// globbing: a pattern's stars may be tried against each other.
func globbing(args []*ast.Term) (float64, error) {
	pattern, match := argText(args[0]), args[len(args)-1]
	stars := float64(strings.Count(pattern, "*"))
	if len(pattern) > maxPattern || strings.Count(pattern, "{") > 16 || (1+stars)*textLen(match)*float64(1+len(pattern)) > maxMatchWork {
		return 0, fmt.Errorf("the pattern and the text together are too long")
	}
	return 0, nil
}

// matching is a regular expression in one argument against a text in another, with
// so many bytes for each match.
func matching(pattern, value int, perMatch float64) estimate {
	return func(args []*ast.Term) (float64, error) {
		size, err := patternSize(args[pattern])
		if err != nil {
			return 0, err
		}
		n := textLen(args[value])
		if n*float64(size) > maxMatchWork {
			return 0, fmt.Errorf("a text of %.0f bytes is too long for this pattern", n)
		}
		return n + perMatch*(n+1), nil
	}
}

// replacing is regex.replace(text, pattern, value), whose value may name what a
// group matched.
func replacing(args []*ast.Term) (float64, error) {
	if _, err := matching(1, 0, 0)(args); err != nil {
		return 0, err
	}
	n, value := textLen(args[0]), argText(args[2])
	return n + (n+1)*float64(len(value)) + n*float64(strings.Count(value, "$")), nil
}

// patternSize is the number of instructions a pattern compiles to, or more.
func patternSize(t *ast.Term) (int, error) {
	p := argText(t)
	if len(p) > maxPattern {
		return 0, fmt.Errorf("a pattern of more than %d bytes", maxPattern)
	}
	if n, ok := knownPatterns.get(p); ok {
		return n, nil
	}
	re, err := syntax.Parse(p, syntax.Perl)
	if err != nil {
		return len(p), nil // the function refuses it, or reads it in its own way
	}
	n := instructions(re)
	if n > maxCompiled {
		return 0, fmt.Errorf("the pattern %.40s compiles to more than %d instructions", p, maxCompiled)
	}
	knownPatterns.put(p, int(n))
	return int(n), nil
}

func instructions(re *syntax.Regexp) float64 {
	n := 1 + float64(len(re.Rune))
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= math.Max(1, float64(max(re.Min, re.Max)))
	}
	return n
}

// patternSizes remembers the sizes of patterns that passed.
type patternSizes struct {
	mu    sync.Mutex
	sizes map[string]int
}

var knownPatterns = patternSizes{sizes: map[string]int{}}

func (p *patternSizes) get(s string) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.sizes[s]
	return n, ok
}

func (p *patternSizes) put(s string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sizes) >= 256 {
		clear(p.sizes)
	}
	p.sizes[s] = n
}
