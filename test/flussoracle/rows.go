package flussoracle

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// ParseRow returns the values of a row, a column of s each; absent columns are NULL.
//
// A row is an object in which BYTES and BINARY are "0x…", DECIMAL is plain text with all
// digits of its scale, TIMESTAMP and TIMESTAMP_LTZ are "epochMillis+nanoOfMillins", DATE
// is days, TIME is milliseconds of the day, MAP is [[k,v],…] in stored order, ROW an
// object, and a number that JSON does not have is text: "NaN", "Infinity".
func ParseRow(s *schema.Schema, r Row) ([]row.Value, error) {
	var columns map[string]json.RawMessage
	if err := json.Unmarshal(r, &columns); err != nil {
		return nil, fmt.Errorf("row %s: %w", r, err)
	}
	out := make([]row.Value, len(s.Columns))
	for i, c := range s.Columns {
		var err error
		if out[i], err = parse(columns[c.Name], c.Type); err != nil {
			return nil, fmt.Errorf("row %s, column %s: %w", r, c.Name, err)
		}
	}
	return out, nil
}

func parse(raw json.RawMessage, t schema.Type) (row.Value, error) {
	if raw == nil || string(raw) == "null" {
		return row.Value{}, nil
	}
	text := string(raw)
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return row.Value{}, err
		}
	}
	switch t.Kind {
	case schema.Boolean:
		return row.Bool(text == "true"), nil
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt, schema.Date, schema.Time:
		n, err := strconv.ParseInt(text, 10, 64)
		return row.Int64(n), err
	case schema.Float:
		f, err := strconv.ParseFloat(text, 32)
		return row.Float32(float32(f)), err
	case schema.Double:
		f, err := strconv.ParseFloat(text, 64)
		return row.Float64(f), err
	case schema.Char, schema.String:
		return row.String(text), nil
	case schema.Binary, schema.Bytes:
		b, err := hex.DecodeString(strings.TrimPrefix(text, "0x"))
		return row.Bytes(b), err
	case schema.Decimal:
		n, ok := new(big.Int).SetString(strings.Replace(text, ".", "", 1), 10)
		if !ok {
			return row.Value{}, fmt.Errorf("bad decimal %q", text)
		}
		return row.DecimalBig(n), nil
	case schema.Timestamp, schema.TimestampLTZ:
		var ms int64
		var nanos int32
		_, err := fmt.Sscanf(text, "%d+%dns", &ms, &nanos)
		return row.Timestamp(ms, nanos), err
	}
	return parseNested(raw, t)
}

func parseNested(raw json.RawMessage, t schema.Type) (row.Value, error) {
	switch t.Kind {
	case schema.Array:
		list, err := parseList(raw, *t.Elem)
		return row.List(list), err
	case schema.Map:
		var pairs [][2]json.RawMessage
		if err := json.Unmarshal(raw, &pairs); err != nil {
			return row.Value{}, err
		}
		keys, values := make([]row.Value, len(pairs)), make([]row.Value, len(pairs))
		for i, p := range pairs {
			var err error
			if keys[i], err = parse(p[0], *t.Key); err != nil {
				return row.Value{}, err
			}
			if values[i], err = parse(p[1], *t.Value); err != nil {
				return row.Value{}, err
			}
		}
		return row.MapOf(keys, values), nil
	case schema.Row:
		fields, err := ParseRow(rowSchema(t), raw)
		return row.RowOf(fields), err
	}
	return row.Value{}, fmt.Errorf("type %v", t)
}

func parseList(raw json.RawMessage, t schema.Type) ([]row.Value, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	out := make([]row.Value, len(list))
	for i := range list {
		var err error
		if out[i], err = parse(list[i], t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// rowSchema sees the fields of a ROW as columns.
func rowSchema(t schema.Type) *schema.Schema {
	s := &schema.Schema{}
	for _, f := range t.Fields {
		s.Columns = append(s.Columns, schema.Column{Name: f.Name, Type: f.Type})
	}
	return s
}

// FormatRow is the opposite of ParseRow; NULL columns are left out.
func FormatRow(s *schema.Schema, values []row.Value) (Row, error) {
	columns := map[string]any{}
	for i, c := range s.Columns {
		if !values[i].IsNull() {
			columns[c.Name] = format(values[i], c.Type)
		}
	}
	b := new(bytes.Buffer)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(columns); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

func format(v row.Value, t schema.Type) any {
	if v.IsNull() {
		return nil
	}
	switch t.Kind {
	case schema.Date, schema.Time:
		return v.Int()
	case schema.Binary, schema.Bytes:
		return "0x" + hex.EncodeToString(v.Bytes())
	case schema.Timestamp, schema.TimestampLTZ:
		return fmt.Sprintf("%d+%dns", v.Millis(), v.NanoOfMilli())
	case schema.Array:
		return formatList(v.List(), *t.Elem)
	case schema.Map:
		pairs := [][2]any{}
		for i, k := range v.Keys() {
			pairs = append(pairs, [2]any{format(k, *t.Key), format(v.List()[i], *t.Value)})
		}
		return pairs
	case schema.Row:
		fields := map[string]any{}
		for i, f := range t.Fields {
			fields[f.Name] = format(v.Fields()[i], f.Type)
		}
		return fields
	}
	return v.Any(t) // the others are the same there
}

func formatList(list []row.Value, t schema.Type) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = format(v, t)
	}
	return out
}
