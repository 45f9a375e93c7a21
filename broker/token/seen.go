package token

import (
	"crypto/sha256"
	"sync"
)

// seenSize bounds one generation of the cache, in tokens of about 600 bytes.
const seenSize = 4096

// seen remembers tokens whose signature and claims were found good, by the SHA-256
// of their text. Checking an Ed25519 signature costs about 100 times as much as the
// digest. What may change (the time, the ring) is not remembered but checked again;
// grants and sessions are not this package's.
//
// Two generations: a full one becomes the old one, and what is used again moves
// over. The zero value is ready.
type seen struct {
	mu         sync.Mutex
	young, old map[[sha256.Size]byte]seenToken
}

type seenToken struct {
	claims Claims
	kid    string
}

func (s *seen) get(sum [sha256.Size]byte) (seenToken, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.young[sum]
	if !ok {
		if t, ok = s.old[sum]; ok {
			s.putLocked(sum, t)
		}
	}
	return t, ok
}

func (s *seen) put(sum [sha256.Size]byte, t seenToken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(sum, t)
}

func (s *seen) putLocked(sum [sha256.Size]byte, t seenToken) {
	if s.young == nil || len(s.young) >= seenSize {
		s.young, s.old = make(map[[sha256.Size]byte]seenToken), s.young
	}
	s.young[sum] = t
}
