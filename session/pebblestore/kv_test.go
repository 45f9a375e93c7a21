package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/session/kv"
	"github.com/fluss-sluice/sluice/session/kv/kvtest"
)

func TestKV(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kv.Store {
		s, err := openOn(vfs.NewMem())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(s.Verify(context.Background()), s.Close()); err != nil {
				t.Error(err)
			}
		})
		return s.KV("policy")
	})
}

func TestKVsOfOtherNamesAreOthers(t *testing.T) {
	s, err := openOn(vfs.NewMem())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range []string{"a", "a\x00", "ab", ""} {
		if err := s.KV(name).Apply(t.Context(), kv.Op{Key: "b", Value: []byte(name)}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "a\x00", "ab", ""} {
		n := 0
		err := s.KV(name).Scan(t.Context(), "", "", func(e kv.Entry) (bool, error) {
			n++
			if string(e.Value) != name {
				t.Errorf("%q holds %q", name, e.Value)
			}
			return true, nil
		})
		if n != 1 || err != nil {
			t.Errorf("%q: %d values, %v", name, n, err)
		}
	}
}

// kvSteps are what revisions and their state write. A repeat after a restart finds a
// conflict if the step had been stored.
func kvSteps() []step {
	put := func(what string, ops ...kv.Op) step {
		return step{what, func(s *Store) error { return s.KV("policy").Apply(context.Background(), ops...) }, kv.ErrConflict}
	}
	value := func(key string, expect uint64) kv.Op {
		return kv.Op{Key: key, Value: []byte(fmt.Sprint(key, " after ", expect)), Expect: expect}
	}
	return []step{
		put("a revision with its parts", value("rules/1", 0), value("data/1", 0), value("rev/1", 0)),
		put("the first state", value("state", 0)),
		put("another revision", value("data/2", 0), value("rev/2", 0)),
		{"flush", flush, nil},
		put("the next state", value("state", 1)),
		put("a deletion beside a change", kv.Op{Key: "rev/1", Delete: true, Expect: 1}, value("state", 2)),
	}
}

// TestKVPowerCutAtEverySync cuts the power at every sync of every step, which was
// stored or was not: a batch is there whole or not at all, and going on from there
// ends where an undisturbed run ends.
func TestKVPowerCutAtEverySync(t *testing.T) {
	steps := kvSteps()
	dumps := reference(t, steps)
	for _, stored := range []bool{false, true} {
		for i := range steps {
			n := 0
			for cutStep(t, steps, dumps, i, n+1, stored) {
				n++
			}
			if n == 0 {
				t.Errorf("%s is acknowledged without a sync", steps[i].name)
			}
		}
	}
}

func TestKVValueThatWasDamagedIsNoticed(t *testing.T) {
	key := kvPrefix("policy")
	good := encodeValue(key, 7, []byte("value"))
	if v, n, err := decodeValue(key, good); string(v) != "value" || n != 7 || err != nil {
		t.Fatalf("%q %d %v", v, n, err)
	}
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 0x10
		if _, _, err := decodeValue(key, bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	if _, _, err := decodeValue(kvPrefix("other"), good); !errors.Is(err, ErrCorrupt) {
		t.Errorf("under another key: %v", err)
	}
	if _, _, err := decodeValue(key, good[:valueHeader-1]); !errors.Is(err, ErrCorrupt) {
		t.Errorf("cut: %v", err)
	}
}

func TestKVEndsWithItsStore(t *testing.T) {
	s, err := openOn(vfs.NewMem())
	if err != nil {
		t.Fatal(err)
	}
	k := s.KV("policy")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, getErr := k.Get(t.Context(), "k")
	for _, err := range []error{getErr, k.Apply(t.Context(), kv.Op{Key: "k"}), k.Scan(t.Context(), "", "", nil)} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
}
