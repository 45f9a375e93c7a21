package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// maxDepth bounds how deep a request's JSON may nest.
const maxDepth = 64

// decodeJSON reads a request body strictly: one JSON value of the type into points
// to, UTF-8, no unknown field, no field in another case, no field twice, nothing
// behind it.
func decodeJSON(r *http.Request, into any) error {
	if err := checkMediaType(r, "application/json"); err != nil {
		return err
	}
	if err := strictJSON(received(r), into); err != nil {
		return &httpError{status: http.StatusBadRequest, code: v1.CodeInvalidRequest, detail: "request body: " + err.Error(), cause: err}
	}
	return nil
}

// decodeForm reads a form body; OAuth forbids a parameter that appears twice
// (RFC 6749 section 3.1), so a second one is an error.
func decodeForm(r *http.Request) (url.Values, error) {
	if err := checkMediaType(r, "application/x-www-form-urlencoded"); err != nil {
		return nil, err
	}
	if r.URL.RawQuery != "" {
		return nil, invalid("parameters belong into the body, not into the query")
	}
	form, err := url.ParseQuery(string(received(r)))
	if err != nil {
		return nil, invalid("the body is not a form") // the cause could quote a token
	}
	for name, values := range form {
		if len(values) > 1 {
			return nil, invalid("parameter %q appears twice", clip(name))
		}
		if !utf8.ValidString(values[0]) {
			return nil, invalid("parameter %q is not UTF-8", clip(name))
		}
	}
	return form, nil
}

func checkMediaType(r *http.Request, want string) error {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return &httpError{status: http.StatusUnsupportedMediaType, code: v1.CodeUnsupportedMedia, detail: "encoded bodies are not accepted: send it without Content-Encoding"}
	}
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset := params["charset"]; err != nil || media != want || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return &httpError{status: http.StatusUnsupportedMediaType, code: v1.CodeUnsupportedMedia, detail: "Content-Type must be " + want}
	}
	return nil
}

func bodyError(err error, limit int64) error {
	var big *http.MaxBytesError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &big):
		return tooLarge(limit)
	case errors.As(err, &timeout) && timeout.Timeout():
		return &httpError{status: http.StatusRequestTimeout, code: v1.CodeRequestTimeout, detail: "the request body did not arrive in time", cause: err}
	}
	return &httpError{status: http.StatusBadRequest, code: v1.CodeInvalidRequest, detail: "the request body is incomplete", cause: err}
}

func tooLarge(limit int64) error {
	return &httpError{status: http.StatusRequestEntityTooLarge, code: v1.CodeTooLarge, detail: fmt.Sprintf("the request body is larger than %d bytes", limit)}
}

func strictJSON(body []byte, into any) error {
	if !utf8.Valid(body) {
		return errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := checkValue(d, reflect.TypeOf(into).Elem(), nil); err != nil {
		return jsonError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something after the JSON value")
	}
	return jsonError(json.Unmarshal(body, into))
}

func jsonError(err error) error {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends too early")
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON: %s at byte %d", strings.TrimPrefix(syntax.Error(), "json: "), syntax.Offset)
	case errors.As(err, &typ):
		return fmt.Errorf("field %q: want %s, got %s", typ.Field, jsonKind(typ.Type), typ.Value)
	}
	return err
}

// jsonKind names a Go type in JSON's words.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	}
	return "a number of type " + t.Kind().String()
}

// place is where in a document a value stands. It is spelled out for an error only:
// names are as long as the client likes, and there are as many values.
type place struct {
	in    *place // nil at the top
	name  string // of a field
	index int    // in a list; negative for a field
	depth int
}

func (p *place) field(name string) *place {
	return &place{in: p, name: name, index: -1, depth: p.level() + 1}
}

func (p *place) item(i int) *place { return &place{in: p, index: i, depth: p.level() + 1} }

func (p *place) level() int {
	if p == nil {
		return 0
	}
	return p.depth
}

func (p *place) String() string {
	switch {
	case p == nil:
		return ""
	case p.index >= 0:
		return fmt.Sprintf("%s[%d]", p.in, p.index)
	case p.in == nil:
		return p.name
	}
	return p.in.String() + "." + p.name
}

// checkValue walks one value beside its type. encoding/json would take fields in
// any case and the last of two; both let two readers of one document disagree.
func checkValue(d *json.Decoder, t reflect.Type, at *place) error {
	if at.level() > maxDepth {
		return fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	tok, err := d.Token()
	if err != nil {
		return err
	}
	switch tok {
	case json.Delim('{'):
		return checkObject(d, t, at)
	case json.Delim('['):
		elem := anyType
		if t = indirect(t); t.Kind() == reflect.Slice && !opaque(t) {
			elem = t.Elem()
		}
		for i := 0; d.More(); i++ {
			if err := checkValue(d, elem, at.item(i)); err != nil {
				return err
			}
		}
		_, err = d.Token()
		return err
	}
	return nil
}

func checkObject(d *json.Decoder, t reflect.Type, at *place) error {
	t = indirect(t)
	var fields map[string]reflect.Type
	if t.Kind() == reflect.Struct && !opaque(t) {
		fields = fieldsOf(t)
	}
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return err
		}
		name, ok := tok.(string)
		if !ok {
			return errors.New("object key is not a string")
		}
		member := at.field(name)
		if seen[name] {
			return fmt.Errorf("field %q appears twice", clip(member.String()))
		}
		seen[name] = true
		elem := anyType
		if fields != nil {
			if elem = fields[name]; elem == nil {
				return fmt.Errorf("unknown field %q", clip(member.String()))
			}
		}
		if err := checkValue(d, elem, member); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

var (
	anyType         = reflect.TypeFor[any]()
	rawType         = reflect.TypeFor[json.RawMessage]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
	fieldCache      sync.Map // reflect.Type → map[string]reflect.Type
)

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// opaque types decode themselves; only doubled keys are looked for inside.
func opaque(t reflect.Type) bool {
	return t == rawType || reflect.PointerTo(t).Implements(unmarshalerType)
}

// fieldsOf maps JSON names to types. Wire types have a json tag on every field, and
// embed only structs without one, whose names are then their own.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if f, ok := fieldCache.Load(t); ok {
		return f.(map[string]reflect.Type)
	}
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		if f.Anonymous {
			maps.Copy(fields, fieldsOf(f.Type))
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	fieldCache.Store(t, fields)
	return fields
}

// clip bounds what of a foreign string is repeated in an error.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
