package key

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// PartitionName returns the name of the partition a whole row belongs to, "" for
// unpartitioned tables. A value that is no valid name is an error: such a row cannot
// be stored. A Partitioner does the same for many rows.
func PartitionName(t *schema.Table, r []row.Value) (string, error) {
	return NewPartitioner(t).Name(r)
}

// Partitioner names the partitions of rows. It remembers the last row's partition, so
// that runs of rows of one partition cost a comparison each. It belongs to one
// goroutine.
type Partitioner struct {
	table   *schema.Table
	columns []int

	last []row.Value // partition columns of the last row, cloned; nil before the first
	name string
}

// NewPartitioner returns the partitioner of a table.
func NewPartitioner(t *schema.Table) *Partitioner {
	return &Partitioner{table: t, columns: t.PartitionColumns()}
}

// Name is PartitionName.
func (p *Partitioner) Name(r []row.Value) (string, error) {
	if len(p.columns) == 0 || p.same(r) {
		return p.name, nil
	}
	texts := make([]string, len(p.columns))
	values := make([]row.Value, len(p.columns))
	for i, at := range p.columns {
		c := &p.table.Schema.Columns[at]
		if at >= len(r) {
			return "", fmt.Errorf("row has %d values, partition column %q is number %d", len(r), c.Name, at)
		}
		var err error
		if texts[i], err = FormatPartitionValue(c.Type, r[at]); err != nil {
			return "", fmt.Errorf("partition column %q: %w", c.Name, err)
		}
		values[i] = r[at].Clone()
	}
	name, err := schema.PartitionName(p.table, texts)
	if err != nil {
		return "", err
	}
	p.last, p.name = values, name
	return name, nil
}

func (p *Partitioner) same(r []row.Value) bool {
	if p.last == nil {
		return false
	}
	for i, at := range p.columns {
		if at >= len(r) || !row.Equal(r[at], p.last[i]) {
			return false
		}
	}
	return true
}

// FormatPartitionValue prints one partition column's value as Fluss does:
//
//	BOOLEAN               true, false
//	TINYINT … BIGINT      decimal
//	CHAR STRING           as it is
//	BINARY BYTES          lower-case hex
//	DATE                  2006-01-02
//	TIME                  15-04-05_000
//	TIMESTAMP[_LTZ]       2006-01-02-15-04-05_ and the fraction without trailing zeros, in UTC
//	FLOAT DOUBLE          Java's shortest form with '_' for '.', NaN, Inf, -Inf
//
// The result need not be a valid name; schema.PartitionName checks that.
func FormatPartitionValue(t schema.Type, v row.Value) (string, error) {
	t.Nullable = false
	check, err := row.NewChecker(t)
	if err != nil {
		return "", err
	}
	if err := check.Check(v); err != nil {
		return "", fmt.Errorf("%s", err.Reason)
	}
	switch t.Kind {
	case schema.Boolean:
		return strconv.FormatBool(v.Bool()), nil
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt:
		return strconv.FormatInt(v.Int(), 10), nil
	case schema.Char, schema.String:
		return strings.Clone(v.Str()), nil
	case schema.Binary, schema.Bytes:
		return hex.EncodeToString(v.Bytes()), nil
	case schema.Date:
		return formatTime(time.Unix(v.Int()*86400, 0), "2006-01-02")
	case schema.Time:
		ms := v.Int()
		return fmt.Sprintf("%02d-%02d-%02d_%03d", ms/3_600_000, ms/60_000%60, ms/1000%60, ms%1000), nil
	case schema.Timestamp, schema.TimestampLTZ:
		return formatTimestamp(v)
	case schema.Float:
		return javaFloat(float64(v.Float32()), 32), nil
	case schema.Double:
		return javaFloat(v.Float64(), 64), nil
	}
	return "", fmt.Errorf("%s cannot be a partition key", t.Kind)
}

// formatTime refuses years that a partition name has no form for.
func formatTime(t time.Time, layout string) (string, error) {
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return "", fmt.Errorf("year %d is not in 0 to 9999", y)
	}
	return t.Format(layout), nil
}

func formatTimestamp(v row.Value) (string, error) {
	t := time.UnixMilli(v.Millis())
	s, err := formatTime(t, "2006-01-02-15-04-05_")
	if err != nil {
		return "", err
	}
	nanos := fmt.Sprintf("%09d", t.Nanosecond()+int(v.NanoOfMilli()))
	return s + strings.TrimRight(nanos, "0"), nil
}

// javaFloat prints a float as Double.toString or Float.toString of Java 19 and later
// does, with '_' for the point; older Java may print a few values with one digit more.
func javaFloat(f float64, size int) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Inf"
	case math.IsInf(f, -1):
		return "-Inf"
	}
	var s string
	if a := math.Abs(f); a == 0 || a >= 1e-3 && a < 1e7 {
		s = strconv.FormatFloat(f, 'f', -1, size)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
	} else {
		s = javaExponent(strconv.FormatFloat(f, 'e', -1, size))
	}
	return strings.Replace(s, ".", "_", 1)
}

// javaExponent turns Go's d.ddde+01 into Java's d.dddE1, with at least one digit
// after the point.
func javaExponent(s string) string {
	mantissa, exponent, _ := strings.Cut(s, "e")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	n, _ := strconv.Atoi(exponent)
	return mantissa + "E" + strconv.Itoa(n)
}
