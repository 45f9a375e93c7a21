package authn

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/broker"
)

// cache remembers verified tokens. It has two generations of at most half its size
// each: entries enter the young one; when that is full, the old one is dropped and
// the young one becomes old. What is used moves up again, so hot entries stay.
type cache struct {
	half int

	mu         sync.Mutex
	young, old map[[sha256.Size]byte]entry
}

type entry struct {
	caller  broker.Caller
	expires time.Time
}

func newCache(size int) *cache {
	return &cache{half: max(1, size/2), young: map[[sha256.Size]byte]entry{}}
}

func (c *cache) get(k [sha256.Size]byte, now time.Time) (broker.Caller, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.young[k]
	if !ok {
		if e, ok = c.old[k]; !ok {
			return broker.Caller{}, false
		}
		delete(c.old, k)
		c.putLocked(k, e)
	}
	if !now.Before(e.expires) {
		delete(c.young, k)
		return broker.Caller{}, false
	}
	return e.caller, true
}

func (c *cache) put(k [sha256.Size]byte, caller broker.Caller, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(k, entry{caller, expires})
}

func (c *cache) putLocked(k [sha256.Size]byte, e entry) {
	if _, there := c.young[k]; !there && len(c.young) >= c.half {
		c.old, c.young = c.young, make(map[[sha256.Size]byte]entry, c.half)
	}
	c.young[k] = e
}

func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old)
}
