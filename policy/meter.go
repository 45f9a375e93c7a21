package policy

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
)

// DefaultMaxMemory is by how much the live heap may grow during one evaluation.
const DefaultMaxMemory = 256 << 20

// The heap is looked at from the sampleFrom-th step on, every sampleEvery steps (a
// power of two). A decision of the shipped rules takes some hundred steps and is
// never looked at; what one step can take is bounded by bounds.go and maxTerms.
const (
	sampleFrom  = 1024
	sampleEvery = 64
)

// meter tells when an evaluation takes too much memory. Go cannot say whose an
// object is, so it compares the heap of the process with what it was when the
// evaluation became a long one: several runaway evaluations together stay within
// one limit, and in the worst case a long one ends because others grew. It then
// ends in an error, never in an allow.
type meter struct {
	limit uint64
	base  uint64 // bytes on the heap when first looked at; 0 = not yet
}

// exceeded reports whether the heap grew beyond the limit.
func (m *meter) exceeded() bool {
	now := heapBytes()
	if m.base == 0 {
		m.base = now
		return false
	}
	if now <= m.base+m.limit {
		return false
	}
	// Garbage counts until it is swept. Only what survives a collection is growth.
	collecting.Lock()
	defer collecting.Unlock()
	if heapBytes() > m.base+m.limit {
		runtime.GC()
	}
	return heapBytes() > m.base+m.limit
}

// collecting keeps evaluations from collecting at once, where one would do for all.
var collecting sync.Mutex

// heapBytes is the size of the objects on the heap, those not yet swept included.
func heapBytes() uint64 {
	s := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s[:])
	if s[0].Value.Kind() != metrics.KindUint64 {
		panic("policy: this Go does not know " + s[0].Name)
	}
	return s[0].Value.Uint64()
}

// budget ends an evaluation after a number of steps, when its memory is used up, or
// when it is cancelled. OPA asks Cancelled at every step, which makes the first bound
// independent of how busy the machine is: runaway rules end, and end when replayed,
// at the same place.
type budget struct {
	steps     int // left; used by the evaluating goroutine only, as are the next three
	taken     int
	memory    meter
	full      bool // the memory was used up
	cancelled atomic.Bool
}

// Cancel implements topdown.Cancel.
func (b *budget) Cancel() { b.cancelled.Store(true) }

// Cancelled implements topdown.Cancel.
func (b *budget) Cancelled() bool {
	b.steps--
	b.taken++
	if b.taken >= sampleFrom && b.taken%sampleEvery == 0 && !b.full {
		b.full = b.memory.exceeded()
	}
	return b.steps < 0 || b.full || b.cancelled.Load()
}

// why is the error of an evaluation that the budget ended.
func (b *budget) why(l limits) error {
	switch {
	case b.full:
		return fmt.Errorf("no decision within %d MiB of memory", l.memory>>20)
	case b.steps < 0:
		return fmt.Errorf("no decision within %d steps", l.steps)
	}
	return fmt.Errorf("no decision within %v", l.timeout)
}
