package awssts

import (
	"container/list"
	"encoding/binary"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/session"
)

// key is everything that decides what a credential opens and for whom. It is a
// structure, not a joined string: two requests are never equal by accident.
type key struct {
	principal session.Principal
	session   string
	epoch     int64
	revision  string
	scope     string // scopeOf
}

// keyOf is the key of a request whose locations are normalised.
func keyOf(r vend.Request) key {
	return key{r.Principal, r.Session, r.Epoch, r.PolicyRevision, scopeOf(r.Locations)}
}

// scopeOf spells locations with lengths, so that no two lists have one spelling.
func scopeOf(locs []vend.Location) string {
	var b []byte
	for _, l := range locs {
		kind := byte(l.Access) << 1
		if l.Object {
			kind |= 1
		}
		b = append(b, kind)
		for _, s := range []string{l.Bucket, l.Prefix.String()} {
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	return string(b)
}

// cache holds answers and the calls in progress. Errors are never stored.
type cache struct {
	max int

	mu      sync.Mutex // owns what follows
	entries map[key]*list.Element
	order   *list.List // of *entry, least recently used at the back
	flights map[key]*flight
}

// entry is a cached answer.
type entry struct {
	key     key
	answer  vend.Answer
	refresh time.Time // from then on a new one is made
}

// flight is a call that several callers may wait for.
type flight struct {
	done    chan struct{}
	revoked error // owned by cache.mu: why its answer must not be handed out

	// Written before done is closed.
	answer vend.Answer
	err    error
}

func newCache(n int) *cache {
	return &cache{max: n, entries: map[key]*list.Element{}, order: list.New(), flights: map[key]*flight{}}
}

// begin returns an answer that is good, or a flight to wait for. The caller for
// whom leads is true has to call land.
func (c *cache) begin(k key, good func(*entry) bool) (a vend.Answer, f *flight, leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.entries[k]; el != nil {
		if e := el.Value.(*entry); good(e) {
			c.order.MoveToFront(el)
			a = e.answer
			a.Cached = true
			return a, nil, false
		}
	}
	if f := c.flights[k]; f != nil {
		return vend.Answer{}, f, false
	}
	f = &flight{done: make(chan struct{})}
	c.flights[k] = f
	return vend.Answer{}, f, true
}

// get returns what is cached, good or not.
func (c *cache) get(k key) (vend.Answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.entries[k]
	if el == nil {
		return vend.Answer{}, false
	}
	a := el.Value.(*entry).answer
	a.Cached = true
	return a, true
}

// land ends a flight.
func (c *cache) land(k key, f *flight, a vend.Answer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.revoked != nil {
		a, err = vend.Answer{}, f.revoked
	}
	f.answer, f.err = a, err
	if c.flights[k] == f {
		delete(c.flights, k)
	}
	if err == nil {
		c.storeLocked(&entry{key: k, answer: a, refresh: a.RefreshAt})
	}
	close(f.done)
}

func (c *cache) storeLocked(e *entry) {
	if el := c.entries[e.key]; el != nil {
		el.Value = e
		c.order.MoveToFront(el)
		return
	}
	c.entries[e.key] = c.order.PushFront(e)
	for len(c.entries) > c.max {
		c.removeLocked(c.order.Back())
	}
}

func (c *cache) removeLocked(el *list.Element) {
	c.order.Remove(el)
	delete(c.entries, el.Value.(*entry).key)
}

// invalidate forgets a session. Its flights still land, and then with ErrRevoked; a
// caller that comes later begins a new one.
func (c *cache) invalidate(sessionID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, el := range c.entries {
		if k.session == sessionID {
			c.removeLocked(el)
		}
	}
	for k, f := range c.flights {
		if k.session == sessionID {
			f.revoked = vend.ErrRevoked
			delete(c.flights, k)
		}
	}
}

// clear forgets everything, because all keys were revoked. Flights of sessions that
// go on land with a request to come again.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.order.Init()
	for k, f := range c.flights {
		f.revoked = &vend.BusyError{What: "STS calls (all keys were revoked)", RetryAfter: time.Second}
		delete(c.flights, k)
	}
}
