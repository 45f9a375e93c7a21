package policy

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Limits on what rules answer, as decision.v1.json states them.
const (
	maxReasons    = 16
	maxReasonLen  = 128
	maxRuleLen    = 256
	maxMaxTTL     = 365 * 24 * 3600 // seconds
	maxConstraint = 1 << 16         // operations or buckets in a constraint
)

// decodeDecision reads the value of the entry point. It takes exactly what
// decision.v1.json describes: a key that is unknown, missing or of another type is
// an error, because a rule that meant to narrow an allow must not fail to.
func decodeDecision(v ast.Value) (Decision, error) {
	o, ok := v.(ast.Object)
	if !ok {
		return Decision{}, fmt.Errorf("the decision is %s, not an object", typeName(v))
	}
	d := Decision{Reasons: []string{}}
	seenAllow := false
	err := eachKey(o, func(key string, v ast.Value) (err error) {
		switch key {
		case "version":
			var n int64
			if n, err = integer(v, Version, Version); err == nil && n != Version {
				err = fmt.Errorf("is %d", n)
			}
		case "allow":
			b, ok := v.(ast.Boolean)
			if !ok {
				return fmt.Errorf("is %s, not a boolean", typeName(v))
			}
			d.Allow, seenAllow = bool(b), true
		case "reasons":
			d.Reasons, err = texts(v, maxReasons, 1, maxReasonLen)
		case "rule":
			d.Rule, err = text(v, 0, maxRuleLen)
		case "constraints":
			d.Constraints, err = decodeConstraints(v)
		default:
			err = errUnknownKey
		}
		return err
	})
	if err != nil {
		return Decision{}, fmt.Errorf("decision%w", err)
	}
	if !seenAllow {
		return Decision{}, errors.New("decision.allow is missing")
	}
	return d, nil
}

var errUnknownKey = errors.New("is not part of a decision")

func decodeConstraints(v ast.Value) (Constraints, error) {
	o, ok := v.(ast.Object)
	if !ok {
		return Constraints{}, fmt.Errorf("is %s, not an object", typeName(v))
	}
	var c Constraints
	err := eachKey(o, func(key string, v ast.Value) (err error) {
		switch key {
		case "max_ttl":
			n, err := integer(v, 1, maxMaxTTL)
			c.MaxTTL = &n
			return err
		case "ops":
			c.Ops, err = texts(v, maxConstraint, 1, maxReasonLen)
		case "buckets":
			c.Buckets, err = buckets(v)
		default:
			err = errUnknownKey
		}
		return err
	})
	return c, err
}

// keyError is an error below a key; nested ones print as .constraints.max_ttl.
type keyError struct {
	key string
	err error
}

func (e *keyError) Error() string {
	if inner, ok := e.err.(*keyError); ok {
		return "." + e.key + inner.Error()
	}
	return "." + e.key + " " + e.err.Error()
}

func eachKey(o ast.Object, f func(key string, v ast.Value) error) error {
	return o.Iter(func(k, v *ast.Term) error {
		key, ok := k.Value.(ast.String)
		if !ok {
			return fmt.Errorf(" has the key %v, which is not a string", k)
		}
		if err := f(string(key), v.Value); err != nil {
			return &keyError{string(key), err}
		}
		return nil
	})
}

// integer reads a whole number between low and high. Numbers that a float64 would
// round never pass: they are compared as written.
func integer(v ast.Value, low, high int64) (int64, error) {
	n, ok := v.(ast.Number)
	if !ok {
		return 0, fmt.Errorf("is %s, not a number", typeName(v))
	}
	i, err := json.Number(n).Int64()
	if err != nil {
		return 0, fmt.Errorf("is %.40s, not a whole number", string(n))
	}
	if i < low || i > high {
		return 0, fmt.Errorf("is %d, not between %d and %d", i, low, high)
	}
	return i, nil
}

// text reads a string of printable ASCII without quotes and backslashes, so that
// it can stand in a header, an OAuth error and a log line as it is.
func text(v ast.Value, shortest, longest int) (string, error) {
	s, ok := v.(ast.String)
	if !ok {
		return "", fmt.Errorf("is %s, not a string", typeName(v))
	}
	if len(s) < shortest || len(s) > longest {
		return "", fmt.Errorf("has %d bytes, not %d to %d", len(s), shortest, longest)
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return "", fmt.Errorf("has the byte %#x, which is not printable ASCII, or a quote or backslash", c)
		}
	}
	return string(s), nil
}

func texts(v ast.Value, most, shortest, longest int) ([]string, error) {
	out := []string{}
	err := elements(v, most, func(v ast.Value) error {
		s, err := text(v, shortest, longest)
		out = append(out, s)
		return err
	})
	return out, err
}

func buckets(v ast.Value) ([]int, error) {
	out := []int{}
	err := elements(v, maxConstraint, func(v ast.Value) error {
		n, err := integer(v, 0, 1<<31-1)
		out = append(out, int(n))
		return err
	})
	return out, err
}

// elements visits an array in order, or a set sorted.
func elements(v ast.Value, most int, f func(ast.Value) error) error {
	var a *ast.Array
	switch v := v.(type) {
	case *ast.Array:
		a = v
	case ast.Set:
		a = v.Sorted()
	default:
		return fmt.Errorf("is %s, not an array or a set", typeName(v))
	}
	if a.Len() > most {
		return fmt.Errorf("has %d elements, at most %d are read", a.Len(), most)
	}
	for i := range a.Len() {
		if err := f(a.Elem(i).Value); err != nil {
			return fmt.Errorf("element %d %w", i, err)
		}
	}
	return nil
}

func typeName(v ast.Value) string {
	switch v.(type) {
	case nil:
		return "nothing"
	case ast.Null:
		return "null"
	case ast.Boolean:
		return "a boolean"
	case ast.Number:
		return "a number"
	case ast.String:
		return "a string"
	case *ast.Array:
		return "an array"
	case ast.Set:
		return "a set"
	case ast.Object:
		return "an object"
	}
	return fmt.Sprintf("%T", v)
}
