package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// written is a log of several segments.
func written(t *testing.T) *disk {
	d := newDisk()
	record(t, openDisk(t, d, Config{MaxSize: 4096, Now: newClock().now}), 0, 40)
	return d
}

// rewritten is a line with another payload whose own hash is right, as somebody would
// write who knows the format.
func rewritten(line []byte, old, new string) []byte {
	f, err := parseFrame(line)
	if err != nil {
		panic(err)
	}
	member := lineEvent
	if f.note {
		member = lineNote
	}
	out, _ := appendLine(nil, f.seq, f.prev, member, bytes.Replace(f.payload, []byte(old), []byte(new), 1))
	return bytes.TrimSuffix(out, []byte("\n"))
}

func TestVerifyFindsWhatWasDoneToALog(t *testing.T) {
	rows := []struct {
		name string
		do   func(names []string, files map[string][][]byte)
		file int // index of the segment with the break
		line int
		what string
	}{
		{"a byte of an event is changed", func(n []string, f map[string][][]byte) {
			f[n[1]][2] = bytes.Replace(f[n[1]][2], []byte("alice"), []byte("alicf"), 1)
		}, 1, 3, "was changed after it was written"},
		{"an event is rewritten with a hash of its own", func(n []string, f map[string][][]byte) {
			f[n[1]][2] = rewritten(f[n[1]][2], "alice", "mallory")
		}, 1, 4, "prev is not the hash"},
		{"the last line of a segment is rewritten", func(n []string, f map[string][][]byte) {
			last := len(f[n[0]]) - 1
			f[n[0]][last] = rewritten(f[n[0]][last], "alice", "mallory")
		}, 1, 1, "prev is not the hash"},
		{"a line is taken out", func(n []string, f map[string][][]byte) {
			f[n[0]] = slices.Delete(f[n[0]], 3, 4)
		}, 0, 4, "lines are missing"},
		{"a line is doubled", func(n []string, f map[string][][]byte) {
			f[n[0]] = slices.Insert(f[n[0]], 3, f[n[0]][2])
		}, 0, 4, "was there before"},
		{"two lines are exchanged", func(n []string, f map[string][][]byte) {
			f[n[0]][3], f[n[0]][4] = f[n[0]][4], f[n[0]][3]
		}, 0, 4, "lines are missing"},
		{"a segment in the middle is deleted", func(n []string, f map[string][][]byte) { delete(f, n[1]) }, 2, 1, "lines are missing"},
		{"the first segment is deleted", func(n []string, f map[string][][]byte) { delete(f, n[0]) }, 1, 1, "no line of the log says"},
		{"a segment loses its end", func(n []string, f map[string][][]byte) { f[n[0]] = f[n[0]][:4] }, 1, 1, "lines are missing"},
		{"something else is in the file", func(n []string, f map[string][][]byte) { f[n[0]][2] = []byte("{}") }, 0, 3, "does not end with a hash"},
		{"a segment begins with an event", func(n []string, f map[string][][]byte) { f[n[1]][0] = f[n[1]][1] }, 1, 1, "lines are missing"},
	}
	for _, r := range rows {
		d := written(t)
		list, _ := segments(d)
		files, names := map[string][][]byte{}, []string{}
		for _, e := range list {
			names = append(names, e.name)
			files[e.name] = bytes.Split(bytes.TrimSuffix(d.names[e.name].now, []byte("\n")), []byte("\n"))
		}
		whole(t, d)
		r.do(names, files)
		tampered := newDisk()
		for name, lines := range files {
			tampered.names[name] = &data{now: append(bytes.Join(lines, []byte("\n")), '\n')}
		}
		got, err := verify(ctx, tampered, nil)
		if err != nil || got.Broken == nil {
			t.Errorf("%s: %+v, %v", r.name, got, err)
			continue
		}
		if b := got.Broken; b.File != names[r.file] || b.Line != r.line || !strings.Contains(b.What, r.what) {
			t.Errorf("%s: %v, want line %d of %s", r.name, b, r.line, names[r.file])
		}
	}
}

func TestALogWhoseEndWasDeletedIsFoundByAKnownLine(t *testing.T) {
	d := written(t)
	r := whole(t, d)
	list, _ := segments(d)
	last := list[len(list)-1].name
	delete(d.names, last)
	if r := whole(t, d); r.Events >= 40 {
		t.Fatal("nothing was deleted")
	}
	got, err := verify(ctx, d, &Head{Seq: r.Last, Hash: r.Head})
	if err != nil || got.Broken == nil || !strings.Contains(got.Broken.What, "were deleted") {
		t.Errorf("%+v, %v", got.Broken, err)
	}
	got, err = verify(ctx, d, &Head{Seq: 3, Hash: r.Head})
	if err != nil || got.Broken == nil || got.Broken.Seq != 3 {
		t.Errorf("another line 3: %+v, %v", got.Broken, err)
	}
}

func TestReadingEndsAtALineThatWasChanged(t *testing.T) {
	d := written(t)
	name := segmentName(1)
	d.names[name].now = bytes.Replace(d.names[name].now, []byte(`"d3"`), []byte(`"d9"`), 1)
	n, fault := 0, error(nil)
	for _, err := range lines(d, time.Time{}, time.Time{}, 0, nil) {
		if err != nil {
			fault = err
			break
		}
		n++
	}
	if e, ok := fault.(*LineError); n != 3 || !ok || e.File != name || e.Line != 5 {
		t.Errorf("%d events, %v", n, fault)
	}
}

func TestEventsAreFoundByTimeAndField(t *testing.T) {
	d, now := newDisk(), newClock()
	l := openDisk(t, d, Config{MaxSize: 4096, Now: now.now})
	for n := range 40 {
		now.add(time.Hour)
		e := event(n)
		e.Time = now.now()
		if n%2 == 1 {
			e.Outcome = Deny
		}
		if err := l.Record(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	rows := []struct {
		name string
		q    Query
		want []string
	}{
		{"from a time on", Query{From: start.Add(38 * time.Hour)}, ids(37, 40)},
		{"before a time", Query{To: start.Add(3 * time.Hour)}, ids(0, 2)},
		{"within a span", Query{From: start.Add(20 * time.Hour), To: start.Add(22 * time.Hour)}, ids(19, 21)},
		{"by decision", Query{Decision: "d7"}, ids(7, 8)},
		{"by outcome in a span", Query{Outcome: Deny, From: start.Add(30 * time.Hour), To: start.Add(33 * time.Hour)}, []string{"d29", "d31"}},
		{"by subject", Query{Subject: "bob"}, nil},
		{"by text", Query{Text: `"ttl":12`}, ids(12, 13)},
	}
	for _, r := range rows {
		p, err := l.Find(ctx, r.q, 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range p.Lines {
			got = append(got, l.Event.DecisionID)
		}
		same(t, r.name, got, r.want)
	}
	var got []string
	q := Query{}
	for pages := 0; ; pages++ {
		p, err := find(ctx, d, q, 7, 5000)
		if err != nil || pages > 40 {
			t.Fatal(pages, err)
		}
		for _, l := range p.Lines {
			got = append(got, l.Event.DecisionID)
		}
		if p.Next == 0 {
			break
		}
		q.After = p.Next
	}
	same(t, "page by page", got, ids(0, 40))
}

// FuzzParseFrame: no panic, and what is taken is written again to the same bytes.
func FuzzParseFrame(f *testing.F) {
	d := newDisk()
	l, err := openOn(d, Config{})
	if err != nil {
		f.Fatal(err)
	}
	for n := range 3 {
		if err := l.Record(ctx, event(n)); err != nil {
			f.Fatal(err)
		}
	}
	for line := range bytes.Lines(d.names[segmentName(1)].now) {
		f.Add(bytes.TrimSuffix(line, []byte("\n")))
	}
	f.Add([]byte(`{"seq":1,"prev":"","event":{},"hash":""}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		fr, err := parseFrame(line)
		if err != nil {
			return
		}
		member := lineEvent
		if fr.note {
			member = lineNote
		}
		if again, hash := appendLine(nil, fr.seq, fr.prev, member, fr.payload); hash != fr.hash || string(again) != string(line)+"\n" {
			t.Errorf("%q is written %q", line, again)
		}
		if !json.Valid(line) {
			t.Errorf("%q is no JSON", line)
		}
	})
}

// FuzzReaders reads a file of foreign bytes as a segment, in every way there is.
func FuzzReaders(f *testing.F) {
	d := newDisk()
	l, err := openOn(d, Config{})
	if err != nil {
		f.Fatal(err)
	}
	for n := range 3 {
		if err := l.Record(ctx, event(n)); err != nil {
			f.Fatal(err)
		}
	}
	good := d.names[segmentName(1)].now
	f.Add(good)
	f.Add(good[:len(good)-10])
	f.Add(append(slices.Clone(good), good...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDisk()
		d.names[segmentName(1)] = &data{now: slices.Clone(b)}
		before, err := verify(ctx, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range lines(d, time.Time{}, time.Time{}, 0, nil) {
		}
		l, err := openOn(d, Config{})
		if err != nil {
			return
		}
		if err := l.Record(ctx, event(7)); err != nil {
			t.Fatal(err)
		}
		after, err := verify(ctx, d, nil)
		if err != nil || before.Broken == nil && after.Broken != nil {
			t.Fatal(fmt.Sprint(before.Broken, after.Broken, err))
		}
	})
}
