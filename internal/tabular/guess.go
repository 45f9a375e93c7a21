package tabular

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// form is a set of readings of a text column that no value has ruled out.
type form uint8

const (
	formBool form = 1 << iota
	formInt
	formDouble
	formDate
	formTimestamp
	formInstant

	formAll = formBool | formInt | formDouble | formDate | formTimestamp | formInstant
)

// jsonKind is a set of JSON kinds that a column has had.
type jsonKind uint8

const (
	jsonBool jsonKind = 1 << iota
	jsonInt
	jsonBig // a whole number beyond 64 bits
	jsonNumber
	jsonString
	jsonArray
	jsonObject
)

// guess collects what is known about one column, or one part of a nested one.
type guess struct {
	// Text: some value was seen, what it ruled out, and the longest fraction of a second.
	seen     bool
	ruledOut form
	fraction int
	// JSON.
	kinds  jsonKind
	elem   *guess
	fields *guesses
}

// text takes a value of a text column into account.
func (g *guess) text(b []byte) {
	g.seen = true
	left := formAll &^ g.ruledOut
	if left&formBool != 0 {
		if _, err := parseBool(b); err != nil {
			g.ruledOut |= formBool
		}
	}
	if left&(formInt|formDouble) != 0 {
		g.number(b)
	}
	if left&formDate != 0 {
		if _, err := parseDate(b); err != nil {
			g.ruledOut |= formDate
		}
	}
	if left&formTimestamp != 0 {
		g.timestamp(b, formTimestamp)
	}
	if left&formInstant != 0 {
		g.timestamp(b, formInstant)
	}
}

func (g *guess) timestamp(b []byte, f form) {
	if _, err := parseTimestamp(b, 9, f == formInstant); err != nil {
		g.ruledOut |= f
		return
	}
	g.fraction = max(g.fraction, fractionDigits(b))
}

// number rules out readings as a number. Digits that a number would lose, such as
// leading zeros or a whole number beyond 64 bits, make a column text.
func (g *guess) number(b []byte) {
	digits := bytes.TrimPrefix(b, []byte{'-'})
	whole := !bytes.ContainsAny(digits, ".eE")
	canonical := len(digits) > 0 && isDigit(digits[0]) && (digits[0] != '0' || len(digits) == 1 || !isDigit(digits[1]))
	if !canonical {
		g.ruledOut |= formInt | formDouble
		return
	}
	if !whole {
		g.ruledOut |= formInt
		if _, err := parseFloat(b, 64); err != nil {
			g.ruledOut |= formDouble
		}
		return
	}
	if _, err := parseInt(b, 1<<63-1); err != nil {
		g.ruledOut |= formInt | formDouble
	}
}

// fractionDigits counts the digits behind the point of a timestamp.
func fractionDigits(b []byte) int {
	i := bytes.IndexByte(b, '.')
	if i < 0 {
		return 0
	}
	n := 0
	for i+1+n < len(b) && isDigit(b[i+1+n]) {
		n++
	}
	return n
}

// result is the type of the column, nullable.
func (g *guess) result() (schema.Type, error) {
	if g.kinds != 0 {
		return g.jsonResult()
	}
	t := schema.Type{Nullable: true, Kind: schema.String}
	if !g.seen {
		return t, nil
	}
	switch left := formAll &^ g.ruledOut; {
	case left&formBool != 0:
		t.Kind = schema.Boolean
	case left&formInt != 0:
		t.Kind = schema.BigInt
	case left&formDouble != 0:
		t.Kind = schema.Double
	case left&formDate != 0:
		t.Kind = schema.Date
	case left&formTimestamp != 0:
		t.Kind, t.Precision = schema.Timestamp, timestampPrecision(g.fraction)
	case left&formInstant != 0:
		t.Kind, t.Precision = schema.TimestampLTZ, timestampPrecision(g.fraction)
	}
	return t, nil
}

// timestampPrecision rounds up to milli-, micro- or nanoseconds.
func timestampPrecision(digits int) int { return max(3, (digits+2)/3*3) }

// json takes the value at the parser's place into account and consumes it.
func (g *guess) json(p *jsonParser, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("JSON nested deeper than %d", maxDepth)
	}
	switch c := p.peek(); {
	case c == '[':
		g.kinds |= jsonArray
		if g.elem == nil {
			g.elem = &guess{}
		}
		return p.array(func(int) error { return g.elem.json(p, depth+1) })
	case c == '{':
		g.kinds |= jsonObject
		if g.fields == nil {
			g.fields = &guesses{byKey: map[string]*guess{}}
		}
		return p.object(func(name []byte) error { return g.fields.get(name).json(p, depth+1) })
	case c == 't' || c == 'f':
		g.kinds |= jsonBool
	case c == '"':
		g.kinds |= jsonString
	case c == '-' || isDigit(c):
		n, err := p.number()
		if err != nil {
			return err
		}
		switch _, err := parseInt(n, 1<<63-1); {
		case err == nil:
			g.kinds |= jsonInt
		case !bytes.ContainsAny(n, ".eE"):
			g.kinds |= jsonBig
		default:
			g.kinds |= jsonNumber
		}
		return nil
	}
	return p.skip(depth)
}

func (g *guess) jsonResult() (schema.Type, error) {
	t := schema.Type{Nullable: true}
	switch g.kinds {
	case jsonBool:
		t.Kind = schema.Boolean
	case jsonInt:
		t.Kind = schema.BigInt
	case jsonBig, jsonBig | jsonInt:
		t.Kind, t.Precision = schema.Decimal, 38
	case jsonNumber, jsonNumber | jsonInt:
		t.Kind = schema.Double
	case jsonString:
		t.Kind = schema.String
	case jsonArray:
		e, err := g.elem.result()
		if err != nil {
			return t, fmt.Errorf("element: %w", err)
		}
		t.Kind, t.Elem = schema.Array, &e
	case jsonObject:
		t.Kind = schema.Row
		for _, name := range g.fields.names {
			f, err := g.fields.byKey[name].result()
			if err != nil {
				return t, fmt.Errorf("field %q: %w", name, err)
			}
			t.Fields = append(t.Fields, schema.Field{Name: name, Type: f})
		}
		if len(t.Fields) == 0 {
			return t, errors.New("only empty objects: their fields cannot be told")
		}
	default:
		return t, errors.New("its values are of different kinds: write the table's JSON by hand")
	}
	return t, nil
}
