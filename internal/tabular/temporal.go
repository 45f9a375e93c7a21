package tabular

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
)

const (
	millisPerDay = 24 * 60 * 60 * 1000
	nanosPerDay  = millisPerDay * 1_000_000
)

// daysFromCivil counts days from 1970-01-01 in the proleptic Gregorian calendar
// (H. Hinnant's algorithm: years start in March, eras have 400 years).
func daysFromCivil(y int64, m, d int64) int64 {
	if m <= 2 {
		y--
	}
	era := floorDiv(y, 400)
	yoe := y - era*400
	doy := (153*((m+9)%12)+2)/5 + d - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 719468
}

// civilFromDays is the inverse of daysFromCivil.
func civilFromDays(days int64) (y, m, d int64) {
	days += 719468
	era := floorDiv(days, 146097)
	doe := days - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	y = yoe + era*400
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	d = doy - (153*mp+2)/5 + 1
	m = (mp+2)%12 + 1
	if m <= 2 {
		y++
	}
	return y, m, d
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func daysInMonth(y, m int64) int64 {
	switch m {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if y%4 == 0 && (y%100 != 0 || y%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// digits reads exactly n digits at the start of b.
func digits(b []byte, n int) (int64, []byte, bool) {
	if len(b) < n {
		return 0, nil, false
	}
	var v int64
	for _, c := range b[:n] {
		if !isDigit(c) {
			return 0, nil, false
		}
		v = v*10 + int64(c-'0')
	}
	return v, b[n:], true
}

var errDate = errors.New("want a date such as 2006-01-02")

// scanDate reads a date at the start of b and returns its days and the rest. Years
// beyond four digits carry a sign, as in ISO 8601 and Java.
func scanDate(b []byte) (int64, []byte, error) {
	negative, width := false, 4
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		negative = b[0] == '-'
		b = b[1:]
		width = bytes.IndexByte(b, '-')
		if width < 4 || width > 9 {
			return 0, nil, errDate
		}
	}
	y, b, ok := digits(b, width)
	if !ok || len(b) == 0 || b[0] != '-' {
		return 0, nil, errDate
	}
	if negative {
		y = -y
	}
	m, b, ok := digits(b[1:], 2)
	if !ok || len(b) == 0 || b[0] != '-' {
		return 0, nil, errDate
	}
	d, b, ok := digits(b[1:], 2)
	if !ok {
		return 0, nil, errDate
	}
	if m < 1 || m > 12 || d < 1 || d > daysInMonth(y, m) {
		return 0, nil, errors.New("no such day in the calendar")
	}
	return daysFromCivil(y, m, d), b, nil
}

func parseDate(b []byte) (int32, error) {
	days, rest, err := scanDate(b)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, errDate
	}
	if days < math.MinInt32 || days > math.MaxInt32 {
		return 0, errors.New("outside the days a DATE can count")
	}
	return int32(days), nil
}

func appendDate(dst []byte, days int64) []byte {
	y, m, d := civilFromDays(days)
	switch {
	case y < 0:
		dst = append(dst, '-')
		y = -y
	case y > 9999:
		dst = append(dst, '+')
	}
	dst = appendPadded(dst, uint64(y), 4)
	dst = append(dst, '-')
	dst = appendPadded(dst, uint64(m), 2)
	dst = append(dst, '-')
	return appendPadded(dst, uint64(d), 2)
}

var errTime = errors.New("want a time such as 15:04:05")

// scanTime reads hh:mm[:ss[.fraction]] at the start of b into nanoseconds of the
// day, with at most precision digits of fraction that are not zero.
func scanTime(b []byte, precision int) (int64, []byte, error) {
	h, b, ok := digits(b, 2)
	if !ok || len(b) == 0 || b[0] != ':' {
		return 0, nil, errTime
	}
	m, b, ok := digits(b[1:], 2)
	if !ok {
		return 0, nil, errTime
	}
	var s, nanos int64
	if len(b) > 0 && b[0] == ':' {
		if s, b, ok = digits(b[1:], 2); !ok {
			return 0, nil, errTime
		}
		if len(b) > 0 && b[0] == '.' {
			var err error
			if nanos, b, err = scanFraction(b[1:], precision); err != nil {
				return 0, nil, err
			}
		}
	}
	if h > 23 || m > 59 || s > 59 {
		return 0, nil, errors.New("no such time of day")
	}
	return ((h*60+m)*60+s)*1_000_000_000 + nanos, b, nil
}

// scanFraction reads the digits of a fraction of a second into nanoseconds.
func scanFraction(b []byte, precision int) (int64, []byte, error) {
	var nanos int64
	unit := int64(100_000_000)
	n := 0
	for ; n < len(b) && isDigit(b[n]); n++ {
		if n >= precision && b[n] != '0' {
			return 0, nil, fmt.Errorf("more than %d digits of a second", precision)
		}
		nanos += unit * int64(b[n]-'0')
		unit /= 10
	}
	if n == 0 {
		return 0, nil, errTime
	}
	return nanos, b[n:], nil
}

// parseTime reads a TIME into milliseconds of the day.
func parseTime(b []byte, precision int) (int32, error) {
	nanos, rest, err := scanTime(b, min(precision, 3))
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, errTime
	}
	return int32(nanos / 1_000_000), nil
}

// appendClock prints hh:mm:ss and, when it is not zero, the fraction with trailing
// zeros dropped.
func appendClock(dst []byte, nanosOfDay int64) []byte {
	secs, nanos := nanosOfDay/1_000_000_000, nanosOfDay%1_000_000_000
	dst = appendPadded(dst, uint64(secs/3600), 2)
	dst = append(dst, ':')
	dst = appendPadded(dst, uint64(secs/60%60), 2)
	dst = append(dst, ':')
	dst = appendPadded(dst, uint64(secs%60), 2)
	if nanos == 0 {
		return dst
	}
	dst = append(dst, '.')
	dst = appendPadded(dst, uint64(nanos), 9)
	return bytes.TrimRight(dst, "0")
}

// instant is a TIMESTAMP: milliseconds since 1970 and nanoseconds of that
// millisecond (0–999999).
type instant struct {
	millis int64
	nanos  int32
}

// parseTimestamp reads a TIMESTAMP (zoned false) or TIMESTAMP_LTZ (zoned true).
func parseTimestamp(b []byte, precision int, zoned bool) (instant, error) {
	days, b, err := scanDate(b)
	if err != nil {
		return instant{}, err
	}
	if len(b) == 0 || b[0] != 'T' && b[0] != ' ' {
		return instant{}, errors.New("want a timestamp such as 2006-01-02T15:04:05")
	}
	nanos, b, err := scanTime(b[1:], precision)
	if err != nil {
		return instant{}, err
	}
	offset, err := scanZone(b, zoned)
	if err != nil {
		return instant{}, err
	}
	ms, ok := millisOf(days, nanos/1_000_000-offset*60_000)
	if !ok {
		return instant{}, errors.New("outside the milliseconds a timestamp can count")
	}
	return instant{millis: ms, nanos: int32(nanos % 1_000_000)}, nil
}

// millisOf is days and milliseconds since 1970, false when 64 bits do not hold it.
func millisOf(days, ms int64) (int64, bool) {
	carry := floorDiv(ms, millisPerDay)
	days, ms = days+carry, ms-carry*millisPerDay
	first, last := floorDiv(math.MinInt64, millisPerDay), floorDiv(math.MaxInt64, millisPerDay)
	// Of the first and the last day only a part has a place. The start of the first
	// has none: the product below wraps, and the sum wraps back.
	sum := days*millisPerDay + ms
	return sum, days > first && days < last || days == first && sum < 0 || days == last && sum > 0
}

// scanZone reads what follows the time: nothing, or Z or an offset in minutes.
func scanZone(b []byte, zoned bool) (int64, error) {
	switch {
	case len(b) == 0 && !zoned:
		return 0, nil
	case len(b) == 0:
		return 0, errors.New("a TIMESTAMP_LTZ needs a time zone: add Z or an offset such as +02:00")
	case !zoned:
		return 0, errors.New("a TIMESTAMP has no time zone: drop what follows the time, or make the column TIMESTAMP_LTZ")
	case len(b) == 1 && (b[0] == 'Z' || b[0] == 'z'):
		return 0, nil
	case b[0] != '+' && b[0] != '-':
		return 0, errors.New("want Z or an offset such as +02:00 behind the time")
	}
	h, rest, ok := digits(b[1:], 2)
	if ok && len(rest) > 0 && rest[0] == ':' {
		rest = rest[1:]
	}
	var m int64
	if ok && len(rest) > 0 {
		m, rest, ok = digits(rest, 2)
	}
	if !ok || len(rest) != 0 || h > 18 || m > 59 {
		return 0, errors.New("want Z or an offset such as +02:00 behind the time")
	}
	if b[0] == '-' {
		return -(h*60 + m), nil
	}
	return h*60 + m, nil
}

func appendTimestamp(dst []byte, t instant, zoned bool) []byte {
	days := floorDiv(t.millis, millisPerDay)
	dst = appendDate(dst, days)
	dst = append(dst, 'T')
	dst = appendClock(dst, (t.millis-days*millisPerDay)*1_000_000+int64(t.nanos))
	if zoned {
		dst = append(dst, 'Z')
	}
	return dst
}

// quoteShort quotes a value for an error message, shortened to stay readable.
func quoteShort(b []byte) string {
	const most = 64
	if len(b) <= most {
		return strconv.Quote(string(b))
	}
	return strconv.Quote(string(b[:most])) + "…"
}
