package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

func TestProgressLines(t *testing.T) {
	for _, c := range []struct {
		name    string
		s       status
		elapsed time.Duration
		want    string
	}{
		{"nothing yet", status{what: "reading"}, 0, "reading"},
		{"rows only", status{what: "reading", rows: 1234567, total: -1}, 2 * time.Second, "reading  1,234,567 rows  617,283 rows/s"},
		{"bytes of a known total", status{what: "reading", rows: 10, bytes: 512 << 10, total: 2 << 20, rejected: 3}, 10 * time.Second,
			"reading  10 rows  1 rows/s  512.0 KiB of 2.0 MiB (25 %)  ETA 0:30  3 rejected"},
		{"bytes of an unknown total", status{what: "reading", bytes: 100, total: -1}, 10 * time.Second, "reading  100 B"},
		{"the end", status{what: "reading", bytes: 100, total: 100}, 10 * time.Second, "reading  100 B of 100 B (100 %)"},
		{"too early to guess", status{what: "reading", bytes: 1, total: 100}, time.Millisecond, "reading  1 B of 100 B (1 %)"},
		{"a detail", status{what: "writing", detail: "1 of 2 buckets done"}, 0, "writing  1 of 2 buckets done"},
	} {
		if got := c.s.line(c.elapsed); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestProgressOnATerminalRedrawsOneLine(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	p := &progress{w: &out, width: func() int { return 12 }, now: func() time.Time { return now }, stop: make(chan struct{})}
	p.phase("reading", func(s *status) { s.rows += 1000 })
	p.show()
	p.show()
	p.above("remark")
	p.show()
	p.close()
	if want := "\r\x1b[Kreading  1,\r\x1b[Kreading  2,\r\x1b[Kremark\n\r\x1b[Kreading  3,\r\x1b[K"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestProgressElsewhereIsPlainLines(t *testing.T) {
	var out strings.Builder
	p := &progress{w: &out, width: func() int { return 0 }, now: time.Now, stop: make(chan struct{})}
	p.phase("committing", nil)
	p.show()
	p.close()
	if out.String() != "committing\n" {
		t.Errorf("%q", out.String())
	}
}

func TestParseBuckets(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]", "0": "[0]", "0-2": "[0 1 2]", "3,0-1": "[3 0 1]", " 1 , 2 ": "[1 2]",
		"2-1": "!", "-1": "!", "a": "!", "1,": "!", "0-99999999": "!",
	} {
		got, err := parseBuckets(text)
		if s := fmt.Sprint(got); (err != nil) != (want == "!") || err == nil && s != want {
			t.Errorf("%q: %s, %v; want %s", text, s, err, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1000": 1000, "512MiB": 512 << 20, "1.5 GiB": 3 << 29, "2gb": 2e9, "7B": 7, "1kib": 1024,
		"": -1, "x": -1, "-1": -1, "1e30GiB": -1, "NaN": -1, "MiB": -1,
	} {
		got, err := parseSize(text)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestShellQuote(t *testing.T) {
	for text, want := range map[string]string{"a/b-c_1.d": "a/b-c_1.d", "a b": "'a b'", "db.t/eu$1": "'db.t/eu$1'", "it's": `'it'\''s'`, "": "''"} {
		if got := shellQuote(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 20: "1.5 GiB"} {
		if got := sizeText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0:00", 61 * time.Second: "1:01", 3661 * time.Second: "1:01:01"} {
		if got := clock(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestASessionTellsOfKeysAndVerification(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { x := now.Add(d); return &x }
	for name, row := range map[string]struct {
		s    v1.Session
		want string
		loud bool
	}{
		"keys that live":          {v1.Session{HandOver: "copy", KeysLiveUntil: at(time.Hour)}, "2026-12-01T13:00:00Z (the object store accepts", false},
		"keys that do not":        {v1.Session{HandOver: "copy", KeysLiveUntil: at(-time.Hour)}, "2026-12-01T11:00:00Z (expired)", false},
		"a look that is due":      {v1.Session{Verification: &v1.Verification{Due: now}}, "due 2026-12-01T12:00:00Z", false},
		"files as published":      {v1.Session{Verification: &v1.Verification{Due: now, Done: &now}}, "passed 2026-12-01T12:00:00Z", false},
		"files that were changed": {v1.Session{Verification: &v1.Verification{Due: now, Done: &now, Error: "file x differs"}}, "FAILED: file x differs", true},
	} {
		var out, errs bytes.Buffer
		g := &globals{stdout: &out, stderr: &errs, now: func() time.Time { return now }, output: outputTable, quiet: true}
		if err := g.printSession(&row.s); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), row.want) {
			t.Errorf("%s:\n%s", name, out.String())
		}
		if strings.Contains(errs.String(), "WARNING") != row.loud {
			t.Errorf("%s says aloud %q", name, errs.String())
		}
	}
}
