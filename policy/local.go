package policy

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// validateAt checks, after an edit of one value in a valid document, whether the
// document is still valid, without looking at the rest of it. It answers only for
// schemas that say something about each property by itself on the way to the value
// (known is false for others, as minProperties, oneOf or if): what it accepts is what
// validating the whole would.
func validateAt(s *jsonschema.Schema, document *object, path []string) (known bool, err error) {
	here := []*jsonschema.Schema{s}
	for i, key := range path {
		all, ok := perProperty(here)
		if !ok {
			return false, nil
		}
		if v, _ := document.at(path[:i]); !isObject(v) {
			return true, nil // replaced by another change, which is checked at its own path
		}
		_, there := document.at(path[:i+1])
		here = nil
		for _, s := range all {
			if !there && slices.Contains(s.Required, key) {
				return true, fmt.Errorf("at %s: missing property %q", pointer(path[:i]), key)
			}
			next, err := property(s, key)
			if there && err != nil {
				return true, fmt.Errorf("at %s: %w", pointer(path[:i]), err)
			}
			here = append(here, next...)
		}
		if !there {
			return true, nil
		}
	}
	v, _ := document.at(path)
	for _, s := range here {
		if err := validateBelow(s, decodedValue(v), path); err != nil {
			return true, err
		}
	}
	return true, nil
}

// isObject tells objects, of the upper levels and of the lower.
func isObject(v any) bool {
	switch v.(type) {
	case *object, map[string]any:
		return true
	}
	return false
}

// perPropertyFields are the fields of a schema that validateAt knows or that say nothing;
// any other one that is set may depend on the whole object.
var perPropertyFields = []string{"DraftVersion", "Location", "ID", "Ref", "Types", "Required", "PropertyNames", "Properties",
	"PatternProperties", "AdditionalProperties", "Title", "Description", "Default", "Comment", "ReadOnly", "WriteOnly", "Examples", "Deprecated"}

// perProperty adds the schemas that the given ones refer to, and reports whether all
// of them look at each property by itself.
func perProperty(schemas []*jsonschema.Schema) (all []*jsonschema.Schema, ok bool) {
	for todo := schemas; len(todo) > 0; {
		s := todo[0]
		todo = todo[1:]
		if slices.Contains(all, s) {
			continue
		}
		all = append(all, s)
		if s.Ref != nil {
			todo = append(slices.Clone(todo), s.Ref)
		}
		v := reflect.ValueOf(s).Elem()
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && !slices.Contains(perPropertyFields, f.Name) && !v.Field(i).IsZero() {
				return nil, false
			}
		}
	}
	return all, true
}

// property returns the schemas for a property; the error is for one that must not be.
func property(s *jsonschema.Schema, key string) (out []*jsonschema.Schema, err error) {
	if s.PropertyNames != nil {
		if err := s.PropertyNames.Validate(key); err != nil {
			return nil, fmt.Errorf("property name %q: %w", key, validationCause(err))
		}
	}
	if p, ok := s.Properties[key]; ok {
		out = append(out, p)
	}
	for re, p := range s.PatternProperties {
		if re.MatchString(key) {
			out = append(out, p)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	switch more := s.AdditionalProperties.(type) {
	case bool:
		if !more {
			return nil, fmt.Errorf("additional property %q is not allowed", key)
		}
	case *jsonschema.Schema:
		return []*jsonschema.Schema{more}, nil
	}
	return nil, nil
}

// dynamic is what makes a schema mean something else as a part than alone.
var dynamic = regexp.MustCompile(`"\$(dynamic|recursive)`)
