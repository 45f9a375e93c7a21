package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/session"
)

func open(t *testing.T, path string, o FileOptions) *File {
	t.Helper()
	f, err := OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		out = append(out, sc.Text())
	}
	return out
}

func TestEventsAreOneJSONLineEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	f := open(t, path, FileOptions{})
	e := Event{
		Time: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), Action: "token", Outcome: Allow, DecisionID: "d",
		Principal: session.Principal{Issuer: "i", Subject: "a\nb"}, Scope: []string{"bucket:0:write"},
		Path: strings.Repeat("ä", maxText), TokenSHA256: "00",
	}
	for range 2 {
		if err := f.Record(context.Background(), e); err != nil {
			t.Fatal(err)
		}
	}
	got := lines(t, path)
	if len(got) != 2 || got[0] != got[1] {
		t.Fatalf("%d lines", len(got))
	}
	var back Event
	if err := json.Unmarshal([]byte(got[0]), &back); err != nil || back.Version != 1 || back.Principal.Subject != "a\nb" {
		t.Errorf("%+v: %v", back, err)
	}
	if len(back.Path) > maxText+len("…") {
		t.Errorf("path of %d bytes", len(back.Path))
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
}

func TestALineCutByACrashLosesNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte("{\"version\":1}\n{\"versi"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, path, FileOptions{})
	if err := f.Record(context.Background(), Event{Action: "begin"}); err != nil {
		t.Fatal(err)
	}
	got := lines(t, path)
	if len(got) != 3 || !json.Valid([]byte(got[0])) || json.Valid([]byte(got[1])) || !json.Valid([]byte(got[2])) {
		t.Errorf("%q", got)
	}
}

func TestConcurrentEventsAllArriveWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	f := open(t, path, FileOptions{Sync: true})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if err := f.Record(context.Background(), Event{Detail: fmt.Sprint(w, i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, l := range lines(t, path) {
		var e Event
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatal(err)
		}
		seen[e.Detail] = true
	}
	if len(seen) != 400 || f.synced != 400 {
		t.Errorf("%d events, %d synced", len(seen), f.synced)
	}
}

func TestASinkThatCannotKeepAnEventSaysSo(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "audit.jsonl"), FileOptions{})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Record(context.Background(), Event{}); err == nil {
		t.Error("closed sink took an event")
	}
	if full, err := OpenFile("/dev/full", FileOptions{}); err == nil {
		defer full.Close()
		if err := full.Record(context.Background(), Event{}); err == nil {
			t.Error("full disk took an event")
		}
	}
}
