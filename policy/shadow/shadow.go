// Package shadow lets a candidate decide along: a share of live requests is decided by
// it a second time, beside the request, and what would have been different is counted.
// Nothing of it reaches an answer.
//
// # What it may cost
//
// A request pays for a look at its decision id and a send that never blocks. The second
// decisions are made by one goroutine that rests between them so long that it takes
// Config.Load of one core at most; requests that come meanwhile are counted as dropped.
package shadow

import (
	"context"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/explain"
	"github.com/fluss-sluice/sluice/policy/replay"
)

// Defaults of Config.
const (
	DefaultLoad    = 0.1
	DefaultSamples = 20
	queueLength    = 64
)

// Config configures a Rider. Candidate is required.
type Config struct {
	Candidate policy.Decider
	Revision  string  // of the candidate
	Share     float64 // of the requests, 0 to 1
	// Load is the most of one core that the second decisions take, 0 to 1; 0 means
	// DefaultLoad.
	Load float64
	// Samples is how many differing requests are kept of each kind; 0 means
	// DefaultSamples.
	Samples int
	// Explain tells why the candidate decides an input as it does, for the samples; nil
	// leaves that out.
	Explain func(ctx context.Context, in policy.Input) (*explain.Explanation, error)
	Now     func() time.Time // nil = time.Now
}

// Rider decides along. Make it with New, end it with Close. It is safe for concurrent
// use.
type Rider struct {
	c     Config
	queue chan policy.Record
	stop  context.CancelFunc
	done  sync.WaitGroup

	offered, dropped atomic.Uint64

	mu     sync.Mutex
	report Report // but for the counters above; guarded by mu
}

// Report is what was seen so far.
type Report struct {
	Revision string    `json:"revision"`
	Share    float64   `json:"share"`
	Since    time.Time `json:"since"`
	Offered  uint64    `json:"offered"` // requests that were in the share
	Dropped  uint64    `json:"dropped"` // of these, those that came too fast
	Decided  uint64    `json:"decided"`
	// Differing counts decided requests with any difference.
	Differing   uint64                 `json:"differing"`
	Differences map[replay.Kind]uint64 `json:"differences"`
	// Samples are requests with their two decisions, the newest last, some of each kind.
	Samples []Sample `json:"samples"`
}

// Sample is a request that would have been decided differently.
type Sample struct {
	Kinds  []replay.Kind   `json:"kinds"`
	Record policy.Record   `json:"record"` // as it was decided
	After  policy.Decision `json:"after"`  // by the candidate
	Error  string          `json:"error,omitempty"`
	// Why has the lines of the candidate's rules that mattered.
	Why *explain.Explanation `json:"why,omitempty"`
}

// New starts a rider.
func New(c Config) *Rider {
	if c.Load <= 0 || c.Load > 1 {
		c.Load = DefaultLoad
	}
	if c.Samples <= 0 {
		c.Samples = DefaultSamples
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Rider{c: c, queue: make(chan policy.Record, queueLength), stop: stop}
	r.report = Report{Revision: c.Revision, Share: c.Share, Since: c.Now().UTC(), Differences: map[replay.Kind]uint64{}}
	r.done.Go(func() { r.ride(ctx) })
	return r
}

// Close ends the second decisions and waits for the one being made.
func (r *Rider) Close() {
	r.stop()
	r.done.Wait()
}

// Offer shows a decision that was made. It never blocks.
func (r *Rider) Offer(rec policy.Record) {
	if !chosen(rec.Decision.ID, r.c.Share) {
		return
	}
	r.offered.Add(1)
	select {
	case r.queue <- rec:
	default:
		r.dropped.Add(1)
	}
}

// chosen tells whether a decision belongs to the share. It goes by the decision's id, so
// that brokers choose alike and a request is chosen or not whatever is asked before it.
func chosen(id string, share float64) bool {
	if share >= 1 {
		return true
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // cannot fail
	return float64(mix(h.Sum64()))/math.MaxUint64 < share
}

// mix spreads neighbouring hashes over all bits (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

func (r *Rider) ride(ctx context.Context) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case rec := <-r.queue:
			start := time.Now()
			d, err := r.c.Candidate.Decide(ctx, rec.Input)
			if ctx.Err() != nil {
				return // an interrupted decision says nothing about the candidate
			}
			r.compare(ctx, rec, d, err)
			rest.Reset(time.Duration(float64(time.Since(start)) * (1/r.c.Load - 1)))
		}
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
	}
}

func (r *Rider) compare(ctx context.Context, rec policy.Record, d policy.Decision, err error) {
	kinds := replay.Compare(&rec, d, err)
	if !r.count(kinds) {
		return
	}
	s := Sample{Kinds: kinds, Record: rec, After: d}
	if err != nil {
		s.Error = err.Error()
	}
	if r.c.Explain != nil {
		s.Why, _ = r.c.Explain(ctx, rec.Input) // a sample without it is better than none
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Samples = append(r.report.Samples, s)
}

// count counts a second decision and reports whether it is to be kept as a sample.
func (r *Rider) count(kinds []replay.Kind) (wanted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Decided++
	if len(kinds) > 0 {
		r.report.Differing++
	}
	for _, k := range kinds {
		r.report.Differences[k]++
		wanted = wanted || r.report.Differences[k] <= uint64(r.c.Samples)
	}
	return wanted
}

// Report is what was seen so far.
func (r *Rider) Report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.report
	out.Offered, out.Dropped = r.offered.Load(), r.dropped.Load()
	out.Differences = maps.Clone(r.report.Differences)
	out.Samples = slices.Clone(r.report.Samples)
	return out
}
