package awssts

// equal decides whether, for every string, (some allow matches and some guard
// matches) exactly when some granted one matches.
//
// The sets run side by side as one automaton. Because * stands only at the end of
// a glob, its state after i characters is which globs are still alive, and whether
// one of each set has reached its *; from then on that set accepts every
// continuation. So the walk is as deep as the longest glob and branches only where
// globs differ.
func equal(allow, guard, granted []glob) bool {
	return walk(0, newRunning(allow), newRunning(guard), newRunning(granted))
}

// running is one set of globs after some characters.
type running struct {
	alive   []glob
	settled bool // one has reached its *: everything that follows is accepted
}

func newRunning(globs []glob) running { return running{alive: globs}.settle(0) }

// settle looks for globs that have reached their *.
func (r running) settle(at int) running {
	for _, g := range r.alive {
		if at < len(g) && g[at] == anyTail {
			return running{settled: true}
		}
	}
	return r
}

// accepts reports whether the string may end here.
func (r running) accepts(at int) bool {
	for _, g := range r.alive {
		if len(g) == at {
			return true
		}
	}
	return r.settled
}

// next is the set after one more character.
func (r running) next(at int, c rune) running {
	if r.settled {
		return r
	}
	var out running
	for _, g := range r.alive {
		if at < len(g) && (g[at] == c || g[at] == anyOne) {
			out.alive = append(out.alive, g)
		}
	}
	return out.settle(at + 1)
}

func (r running) dead() bool { return !r.settled && len(r.alive) == 0 }

// otherRune stands for all characters that no glob names at a position.
const otherRune rune = -3

func walk(at int, allow, guard, granted running) bool {
	if closed := allow.dead() || guard.dead(); closed && granted.dead() {
		return true
	}
	if allow.settled && guard.settled && granted.settled {
		return true
	}
	if (allow.accepts(at) && guard.accepts(at)) != granted.accepts(at) {
		return false
	}
	for _, c := range characters(at, allow, guard, granted) {
		if !walk(at+1, allow.next(at, c), guard.next(at, c), granted.next(at, c)) {
			return false
		}
	}
	return true
}

// characters lists one of each kind that the sets tell apart at a position.
func characters(at int, sets ...running) []rune {
	out := []rune{otherRune}
	seen := map[rune]bool{}
	for _, s := range sets {
		for _, g := range s.alive {
			if at < len(g) && g[at] >= 0 && !seen[g[at]] {
				seen[g[at]] = true
				out = append(out, g[at])
			}
		}
	}
	return out
}
