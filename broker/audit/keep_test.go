package audit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
)

func localStore(t *testing.T, o local.Options) *local.Store {
	t.Helper()
	s, err := local.Open(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// store is a source of the copies in an object store.
type store struct{ objstore.Store }

func (s store) list() (out []entry, err error) {
	for i, err := range s.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		out = append(out, entry{i.Key, i.Size})
	}
	return out, nil
}

func (s store) open(name string) (io.ReadCloser, error) {
	body, _, err := s.Get(ctx, name, 0, -1)
	return body, err
}

func TestRetentionLeavesAnAnchor(t *testing.T) {
	for _, c := range []Config{{Keep: time.Hour}, {KeepBytes: 9000}} {
		d, now := newDisk(), newClock()
		c.MaxSize, c.Now = 4096, now.now
		l := openDisk(t, d, c)
		record(t, l, 0, 40)
		before := whole(t, d)
		now.add(2 * time.Hour)
		for range 2 { // the second has nothing to do
			if err := l.tend(ctx); err != nil {
				t.Fatal(err)
			}
		}
		after := whole(t, d)
		if after.First == 1 || after.Removed != after.First-1 || after.Events >= before.Events || l.Stats().Removed == 0 {
			t.Fatalf("%+v", after)
		}
		// Removing goes on, and the log opens.
		record(t, l, 40, 80)
		now.add(2 * time.Hour)
		if err := l.tend(ctx); err != nil {
			t.Fatal(err)
		}
		record(t, openDisk(t, d, c), 80, 81)
		if last := whole(t, d); last.Removed <= after.Removed {
			t.Errorf("%+v", last)
		}
	}
}

func TestRetentionThatFailsHalfwayLeavesAChain(t *testing.T) {
	for _, done := range []bool{false, true} {
		for at := 1; ; at++ {
			d, now := newDisk(), newClock()
			c := Config{MaxSize: 4096, Keep: time.Hour, Now: now.now}
			l := openDisk(t, d, c)
			record(t, l, 0, 40)
			now.add(2 * time.Hour)
			before, failed := d.steps, false
			d.fail = func(_ string, n int) (error, bool) {
				if n == before+at {
					failed = true
					return errors.New("broken"), done
				}
				return nil, false
			}
			_ = l.tend(ctx)
			whole(t, d)
			if err := l.tend(ctx); err != nil {
				t.Fatal(err)
			}
			whole(t, d)
			record(t, openDisk(t, d.cut(0), c), 50, 51)
			if !failed {
				break
			}
		}
	}
}

func TestEndedSegmentsAreCopiedBeforeTheyGo(t *testing.T) {
	d, now := newDisk(), newClock()
	outage := errors.New("outage")
	failing := true
	copies := localStore(t, local.Options{Fault: func(local.Step, local.When, string) error {
		if failing {
			return outage
		}
		return nil
	}})
	c := Config{MaxSize: 4096, Keep: time.Hour, Now: now.now, Copy: copies}
	l := openDisk(t, d, c)
	record(t, l, 0, 40)
	now.add(2 * time.Hour)
	if err := l.tend(ctx); !errors.Is(err, outage) {
		t.Fatal(err)
	}
	if s := l.Stats(); s.Removed > 0 || s.Uncopied == 0 || s.Failed == 0 {
		t.Fatalf("deleted without a copy: %+v", s)
	}
	failing = false
	for range 2 { // what retention notes may end a segment, which is copied the next time
		if err := l.tend(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if s := l.Stats(); s.Removed == 0 || s.Uncopied > 0 {
		t.Fatalf("%+v", s)
	}
	whole(t, d)
	r := whole(t, store{copies})
	if r.First != 1 || r.Events == 0 {
		t.Errorf("copies: %+v", r)
	}
}

func TestACopyWhoseAnswerWasLostIsFound(t *testing.T) {
	d := newDisk()
	copies := localStore(t, local.Options{})
	l := openDisk(t, d, Config{MaxSize: 4096, Copy: copies})
	record(t, l, 0, 30)
	if err := l.tend(ctx); err != nil {
		t.Fatal(err)
	}
	first := d.names[segmentName(1)].now
	// What was copied is forgotten, so that everything is compared.
	delete(d.names, copiedFile)
	l = openDisk(t, d, Config{MaxSize: 4096, Copy: copies})
	if l.Stats().Uncopied == 0 {
		t.Fatal("nothing was forgotten")
	}
	if err := l.tend(ctx); err != nil || l.Stats().Uncopied != 0 {
		t.Fatalf("%+v, %v", l.Stats(), err)
	}
	// The log of another broker in the same place.
	delete(d.names, copiedFile)
	d.names[segmentName(1)].now = bytes.Replace(first, []byte("alice"), []byte("carol"), 1)
	l = openDisk(t, d, Config{MaxSize: 4096, Copy: copies})
	if err := l.tend(ctx); err == nil || !strings.Contains(err.Error(), "is another") {
		t.Error(err)
	}
}

func TestTheKeeperEndsWithTheLog(t *testing.T) {
	blocked := blockingStore{localStore(t, local.Options{}), make(chan struct{})}
	l, err := Open(t.TempDir(), Config{MaxSize: 4096, Copy: blocked})
	if err != nil {
		t.Fatal(err)
	}
	record(t, l, 0, 30)
	<-blocked.entered
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

type blockingStore struct {
	*local.Store
	entered chan struct{}
}

func (b blockingStore) Put(ctx context.Context, _ string, _ io.Reader, _ objstore.PutOptions) (objstore.Info, error) {
	select {
	case b.entered <- struct{}{}:
	case <-ctx.Done():
	}
	<-ctx.Done()
	return objstore.Info{}, ctx.Err()
}
