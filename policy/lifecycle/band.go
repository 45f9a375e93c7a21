package lifecycle

import (
	"fmt"
	"sync"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/revision"
)

// outcomes counts what the active revision decided in this process since it became
// active.
type outcomes struct {
	mu                 sync.Mutex
	revision           string
	all, denied, error uint64
}

func (o *outcomes) reset(revision string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revision, o.all, o.denied, o.error = revision, 0, 0, 0
}

func (o *outcomes) add(r *policy.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Decision.Revision != o.revision {
		return // decided by the one before while the new one was installed
	}
	o.all++
	switch {
	case r.Error != "":
		o.error++
	case !r.Decision.Allow:
		o.denied++
	}
}

// outside says how the outcomes of a revision left a band, "" when they did not or are
// too few to tell.
func (o *outcomes) outside(revision string, b revision.Band, least uint64) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.revision != revision || o.all < least {
		return ""
	}
	if rate := float64(o.error) / float64(o.all); rate > b.MaxErrorRate {
		return fmt.Sprintf("%.1f %% of %d decisions failed, more than %.1f %%", 100*rate, o.all, 100*b.MaxErrorRate)
	}
	if rate := float64(o.denied) / float64(o.all); rate > b.MaxDenyRate {
		return fmt.Sprintf("%.1f %% of %d decisions were denials, more than %.1f %%", 100*rate, o.all, 100*b.MaxDenyRate)
	}
	return ""
}
