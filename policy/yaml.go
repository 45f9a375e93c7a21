package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// decodeYAML reads one YAML document into the values of decodeJSON. It takes the
// part of YAML that means the same to every reader: anchors, aliases, merge keys,
// tags, keys that are not strings, octal numbers and several documents are errors
// with line and column, as are duplicate keys. An empty document is an empty map.
func decodeYAML(b []byte) (any, error) {
	f, err := parser.ParseBytes(b, 0, parser.AllowDuplicateMapKey()) // duplicates: see yamlMap
	if err != nil {
		var ye yaml.Error
		if errors.As(err, &ye) && ye.GetToken() != nil {
			return nil, yamlError(ye.GetToken(), "%s", ye.GetMessage())
		}
		return nil, err
	}
	if len(f.Docs) > 1 {
		return nil, yamlError(f.Docs[1].GetToken(), "a second document")
	}
	if len(f.Docs) == 0 || f.Docs[0].Body == nil {
		return map[string]any{}, nil
	}
	switch f.Docs[0].Body.(type) {
	case *ast.CommentGroupNode:
		return map[string]any{}, nil
	}
	return yamlValue(f.Docs[0].Body, 0)
}

func yamlError(t *token.Token, format string, args ...any) error {
	e := &positionError{line: 1, column: 1, message: fmt.Sprintf(format, args...)}
	if t != nil && t.Position != nil {
		e.line, e.column = t.Position.Line, t.Position.Column
	}
	return e
}

func yamlValue(n ast.Node, depth int) (any, error) {
	if depth > maxDepth {
		return nil, yamlError(n.GetToken(), "nested deeper than %d", maxDepth)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		return yamlMap(n.Values, depth)
	case *ast.MappingValueNode:
		return yamlMap([]*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		a := make([]any, 0, len(n.Values))
		for _, e := range n.Values {
			v, err := yamlValue(e, depth+1)
			if err != nil {
				return nil, err
			}
			a = append(a, v)
		}
		return a, nil
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.BoolNode:
		return n.Value, nil
	case *ast.NullNode:
		return nil, nil
	case *ast.IntegerNode, *ast.FloatNode:
		return yamlNumber(n)
	}
	return nil, yamlError(n.GetToken(), "%s is not supported in policy data", n.Type())
}

// yamlNumber takes a number that JSON spells the same way.
func yamlNumber(n ast.Node) (any, error) {
	text := strings.TrimSpace(n.GetToken().Value)
	v, err := decodeJSON([]byte(text))
	if _, ok := v.(json.Number); err != nil || !ok {
		return nil, yamlError(n.GetToken(), "write the number %s as JSON does, or put it in quotes", text)
	}
	return v, nil
}

func yamlMap(values []*ast.MappingValueNode, depth int) (any, error) {
	m := make(map[string]any, len(values))
	for _, kv := range values {
		key, ok := kv.Key.(*ast.StringNode)
		if !ok {
			return nil, yamlError(kv.Key.GetToken(), "a key that is not a plain string: put it in quotes")
		}
		if _, twice := m[key.Value]; twice {
			return nil, yamlError(key.GetToken(), "duplicate key %q", key.Value)
		}
		v, err := yamlValue(kv.Value, depth+1)
		if err != nil {
			return nil, err
		}
		m[key.Value] = v
	}
	return m, nil
}
