package kv

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Memory keeps values in memory: for tests, and for a service that keeps nothing.
// Its zero value is ready.
type Memory struct {
	mu     sync.Mutex
	values map[string]Entry
}

var _ Store = (*Memory)(nil)

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.values[key]
	return slices.Clone(e.Value), e.Version, nil
}

// Apply implements Store.
func (m *Memory) Apply(ctx context.Context, ops ...Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := Check(ops); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		if have := m.values[op.Key].Version; !op.Any && have != op.Expect {
			return Conflict(op, have)
		}
	}
	if m.values == nil {
		m.values = map[string]Entry{}
	}
	for _, op := range ops {
		if op.Delete {
			delete(m.values, op.Key)
			continue
		}
		m.values[op.Key] = Entry{op.Key, append([]byte{}, op.Value...), m.values[op.Key].Version + 1}
	}
	return nil
}

// Scan implements Store.
func (m *Memory) Scan(ctx context.Context, prefix, after string, f func(Entry) (bool, error)) error {
	m.mu.Lock()
	var found []Entry
	for _, k := range slices.Sorted(maps.Keys(m.values)) {
		if strings.HasPrefix(k, prefix) && k > after {
			e := m.values[k]
			e.Value = slices.Clone(e.Value)
			found = append(found, e)
		}
	}
	m.mu.Unlock()
	for _, e := range found {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := f(e); !more || err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Check is what implementations refuse an Apply by, before they look at any value.
func Check(ops []Op) error {
	if len(ops) > MaxOps {
		return fmt.Errorf("%w: %d changes at once, %d are possible", ErrInvalid, len(ops), MaxOps)
	}
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		switch {
		case op.Key == "" || len(op.Key) > MaxKey:
			return fmt.Errorf("%w: a key of %d bytes, 1 to %d are possible", ErrInvalid, len(op.Key), MaxKey)
		case len(op.Value) > MaxValue:
			return fmt.Errorf("%w: key %q: a value of %d bytes, %d are possible", ErrInvalid, op.Key, len(op.Value), MaxValue)
		case seen[op.Key]:
			return fmt.Errorf("%w: key %q twice", ErrInvalid, op.Key)
		}
		seen[op.Key] = true
	}
	return nil
}

// Conflict is the error for an Op whose key has another version.
func Conflict(op Op, have uint64) error {
	return fmt.Errorf("%w: key %q has version %d, not %d", ErrConflict, op.Key, have, op.Expect)
}
