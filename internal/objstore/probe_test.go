package objstore_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/internal/objstore/objstoretest"
)

// lax is a store that breaks one promise; the zero value keeps them all.
type lax struct {
	objstore.Store
	ignoresIfNoneMatch, ignoresIfMatch bool
	answersNoButWrites                 bool
	hides, keeps                       bool
}

func (l *lax) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	_, exists := l.Head(ctx, key)
	if exists == nil && (l.ignoresIfNoneMatch && o.IfMatch == "" || l.ignoresIfMatch && o.IfMatch != "" || l.answersNoButWrites) {
		if err := l.Store.Delete(ctx, key); err != nil {
			return objstore.Info{}, err
		}
		o.IfMatch = ""
	}
	info, err := l.Store.Put(ctx, key, body, o)
	if err == nil && exists == nil && l.answersNoButWrites {
		return info, objstore.ErrExists
	}
	return info, err
}

func (l *lax) List(ctx context.Context, prefix string) iter.Seq2[objstore.Info, error] {
	if l.hides {
		return func(func(objstore.Info, error) bool) {}
	}
	return l.Store.List(ctx, prefix)
}

func (l *lax) Delete(ctx context.Context, key string) error {
	if l.keeps {
		return nil
	}
	return l.Store.Delete(ctx, key)
}

func openLocal(t *testing.T) *local.Store {
	t.Helper()
	s, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func left(t *testing.T, s objstore.Store) (keys []string) {
	t.Helper()
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func TestProbeFindsWhatAStoreDoesNotKeep(t *testing.T) {
	for name, c := range map[string]struct {
		store      lax
		conditions bool // it wraps ErrConditions
		says       string
		leaves     bool
	}{
		"a store that keeps everything":    {},
		"write-once is ignored":            {store: lax{ignoresIfNoneMatch: true}, conditions: true, says: "ignores If-None-Match"},
		"If-Match is ignored":              {store: lax{ignoresIfMatch: true}, conditions: true, says: "ignores If-Match"},
		"a refused write has happened":     {store: lax{answersNoButWrites: true}, conditions: true, says: "unwanted"},
		"what was written is not listed":   {store: lax{hides: true}, says: "not listed"},
		"what was deleted is still there":  {store: lax{keeps: true}, says: "still there", leaves: true},
		"the first fault found is the one": {store: lax{ignoresIfMatch: true, keeps: true}, conditions: true, says: "ignores If-Match", leaves: true},
	} {
		c.store.Store = openLocal(t)
		err := objstore.Probe(t.Context(), &c.store)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || errors.Is(err, objstore.ErrConditions) != c.conditions {
			t.Errorf("%s: %v", name, err)
		}
		if keys := left(t, c.store.Store); (len(keys) > 0) != c.leaves {
			t.Errorf("%s: it left %v", name, keys)
		}
	}
}

// TestABrokenProbeLeavesNothing breaks each write in both worlds, and gives up.
func TestABrokenProbeLeavesNothing(t *testing.T) {
	for _, world := range objstoretest.Worlds {
		for write := 1; write <= 4; write++ {
			s := &objstoretest.Faults{Store: openLocal(t)}
			s.Arm(write, world)
			if err := objstore.Probe(t.Context(), s); !errors.Is(err, objstoretest.ErrInjected) {
				t.Errorf("write %d, %v: %v", write, world, err)
			}
			if keys := left(t, s.Store); len(keys) > 0 {
				t.Errorf("write %d, %v: it left %v", write, world, keys)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &cancelling{openLocal(t), cancel}
	if err := objstore.Probe(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if keys := left(t, s.Store); len(keys) > 0 {
		t.Errorf("cancelled: it left %v", keys)
	}
}

// cancelling is a store whose caller gives up after each write.
type cancelling struct {
	objstore.Store
	cancel func()
}

func (c *cancelling) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	defer c.cancel()
	return c.Store.Put(ctx, key, body, o)
}
