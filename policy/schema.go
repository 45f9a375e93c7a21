package policy

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// The schemas of Input and of what rules answer, as published in schema/.
var (
	//go:embed schema/input.v1.json
	InputSchema string
	//go:embed schema/decision.v1.json
	DecisionSchema string
)

// ruleSchemas is what the compiler checks references to input against. The schema
// must stand at the root: OPA ignores one at schema.input without a word, and then
// a misspelt input field compiles and is undefined in every request.
var ruleSchemas = sync.OnceValue(func() *ast.SchemaSet {
	var raw any
	if err := json.Unmarshal([]byte(InputSchema), &raw); err != nil {
		panic(err) // embedded, and tested
	}
	set := ast.NewSchemaSet()
	set.Put(ast.SchemaRootRef, raw)
	return set
})

// inputSchema is InputSchema, compiled.
var inputSchema = sync.OnceValue(func() *jsonschema.Schema {
	s, err := compileSchema("input.v1.json", []byte(InputSchema))
	if err != nil {
		panic(err) // embedded, and tested
	}
	return s
})

// validate checks a decoded document and names the first place that is wrong.
func validate(s *jsonschema.Schema, doc any) error { return validateBelow(s, doc, nil) }

// validateBelow is validate of a value that stands at a path.
func validateBelow(s *jsonschema.Schema, v any, path []string) error {
	err := s.Validate(v)
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err
	}
	ve = deepest(ve)
	return fmt.Errorf("at %s: %s", pointer(slices.Concat(path, ve.InstanceLocation)), ve.ErrorKind.LocalizedString(english))
}

// validationCause is what a validation error says, without where.
func validationCause(err error) error {
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err
	}
	return errors.New(deepest(ve).ErrorKind.LocalizedString(english))
}

func deepest(ve *jsonschema.ValidationError) *jsonschema.ValidationError {
	for len(ve.Causes) > 0 {
		ve = ve.Causes[0]
	}
	return ve
}

func pointer(path []string) string { return "/" + strings.Join(path, "/") }

var english = message.NewPrinter(language.English)

// compileSchema compiles a JSON Schema that refers to no other document.
func compileSchema(name string, b []byte) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if err := c.AddResource(name, doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s, err := c.Compile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// noLoader keeps a schema from reading files or the network.
type noLoader struct{}

// Load implements jsonschema.URLLoader.
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: a policy schema must stand alone", url)
}
