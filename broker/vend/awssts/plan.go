package awssts

import (
	"fmt"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// TooLargeError says that a grant does not fit. It matches vend.ErrTooLarge.
type TooLargeError struct {
	Locations   int // asked for, after those inside others were dropped
	Credentials int // needed; 0 = no number of them would do
	Max         int // credentials allowed per answer
	Size        int // characters of the policy for the location that does not fit alone
	Limit       int // characters allowed per policy
	Packed      bool
	Location    vend.Location
}

// Error implements error.
func (e *TooLargeError) Error() string {
	switch {
	case e.Packed:
		return fmt.Sprintf("%v: STS finds the policy for %v alone too large when packed, although it has %d of %d characters; use fewer or shorter session tags", vend.ErrTooLarge, e.Location, e.Size, e.Limit)
	case e.Credentials == 0:
		return fmt.Sprintf("%v: the policy for %v alone has %d characters, at most %d", vend.ErrTooLarge, e.Location, e.Size, e.Limit)
	case e.Locations > maxLocations:
		return fmt.Sprintf("%v: %d locations, at most %d; ask for fewer buckets at once", vend.ErrTooLarge, e.Locations, maxLocations)
	}
	return fmt.Sprintf("%v: %d locations need at least %d credentials of %d characters of policy, at most %d; ask for fewer buckets at once", vend.ErrTooLarge, e.Locations, e.Credentials, e.Limit, e.Max)
}

// Unwrap makes errors.Is(err, vend.ErrTooLarge) true.
func (e *TooLargeError) Unwrap() error { return vend.ErrTooLarge }

const (
	// maxLocations bounds a request; it is far above what fits.
	maxLocations = 4096
	// maxPart bounds the locations looked at for one credential.
	maxPart = 512
)

// part is what one credential is for.
type part struct {
	locations []vend.Location
	policy    string
	packed    bool // STS refused a larger one for its packed size
}

// budget is what policies may take.
type budget struct {
	limit int // characters per policy
	max   int // credentials per answer
}

// plan divides normalised locations among as few policies as it finds.
func (w writer) plan(locs []vend.Location, b budget) ([]part, error) {
	if len(locs) > maxLocations {
		return nil, &TooLargeError{Locations: len(locs), Credentials: len(locs), Max: b.max, Limit: b.limit}
	}
	var parts []part
	for rest := locs; len(rest) > 0; {
		if len(parts) == b.max {
			return nil, &TooLargeError{Locations: len(locs), Credentials: b.max + 1, Max: b.max, Limit: b.limit}
		}
		p, err := w.first(rest, b.limit)
		if err != nil {
			err.Locations = len(locs)
			return nil, err
		}
		parts = append(parts, p)
		rest = rest[len(p.locations):]
	}
	return parts, nil
}

// first is the longest part at the start of locs that fits.
func (w writer) first(locs []vend.Location, limit int) (part, *TooLargeError) {
	// By name: the size grows with every location, so the longest is found by halving.
	fits, over := 0, min(len(locs), maxPart)+1
	policy := ""
	for over-fits > 1 {
		n := (fits + over) / 2
		if s := w.plain(locs[:n]).encode(); len(s) <= limit {
			fits, policy = n, s
		} else {
			over = n
		}
	}
	if fits == 0 {
		s := w.plain(locs[:1]).encode()
		return part{}, &TooLargeError{Size: len(s), Limit: limit, Location: locs[0]}
	}
	// By pattern: only where a decade ends can it be longer.
	// Ten names need one pattern at least, so more than ten times as many cannot fit.
	for n := min(len(locs), maxPart, 10*fits); w.guards && n > fits; n-- {
		if n < len(locs) && !decadeEnds(locs[n-1], locs[n]) {
			continue
		}
		if s, ok := w.compact(locs[:n], limit); ok {
			return part{locations: locs[:n], policy: s}, nil
		}
	}
	return part{locations: locs[:fits], policy: policy}, nil
}

func decadeEnds(a, b vend.Location) bool {
	x, ok := decadeOf(a)
	y, _ := decadeOf(b)
	return ok && x != y
}
