package policy

import (
	"slices"
	"time"
)

// ClampTTL is the lifetime to grant: the smallest of what was asked (0 = as long
// as possible), the server's limit and the decision's. It is 0 or less only when
// limit is.
func (d Decision) ClampTTL(asked, limit time.Duration) time.Duration {
	ttl := limit
	if asked > 0 && asked < ttl {
		ttl = asked
	}
	if m := d.Constraints.MaxTTL; m != nil && *m < int64(ttl/time.Second)+1 {
		ttl = min(ttl, time.Duration(max(*m, 0))*time.Second)
	}
	return ttl
}

// ClampOps returns the asked operations that the decision allows, in the order
// asked. It never adds one.
func (d Decision) ClampOps(asked []string) []string {
	return intersect(asked, d.Constraints.Ops)
}

// ClampBuckets returns the asked buckets that the decision allows, in the order
// asked. It never adds one.
func (d Decision) ClampBuckets(asked []int) []int {
	return intersect(asked, d.Constraints.Buckets)
}

// intersect keeps of asked what is in allowed; a nil allowed keeps everything.
func intersect[T comparable](asked, allowed []T) []T {
	if allowed == nil {
		return slices.Clone(asked)
	}
	kept := make([]T, 0, len(asked))
	for _, a := range asked {
		if slices.Contains(allowed, a) {
			kept = append(kept, a)
		}
	}
	return kept
}
