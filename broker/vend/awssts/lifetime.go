package awssts

import (
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// TooShortError says that keys as short-lived as they must be do not exist. It
// matches vend.ErrTooShort.
type TooShortError struct {
	Have    time.Duration
	Bound   vend.Bound
	Minimum time.Duration // the provider's
}

// Error implements error.
func (e *TooShortError) Error() string {
	return fmt.Sprintf("%v: bound %s leaves %v, the provider issues keys for %v or more", vend.ErrTooShort, e.Bound, e.Have, e.Minimum)
}

// Unwrap makes errors.Is(err, vend.ErrTooShort) true.
func (e *TooShortError) Unwrap() error { return vend.ErrTooShort }

// lifetime is how long keys asked for now may live, in whole seconds, and which
// bound said so. Of equal bounds the first named wins.
func (v *Vendor) lifetime(r vend.Request, now time.Time) (time.Duration, vend.Bound, error) {
	bounds := []struct {
		life  time.Duration
		bound vend.Bound
		set   bool
	}{
		{r.MaxTTL, vend.BoundPolicy, r.MaxTTL > 0},
		{r.Deadline.Sub(now), vend.BoundDeadline, true},
		{v.c.MaxLife, vend.BoundConfigured, v.c.MaxLife > 0},
		{v.c.RoleMax, vend.BoundRole, true},
		{ChainedMax, vend.BoundChaining, v.chained},
	}
	life, bound := time.Duration(-1), vend.Bound("")
	for _, b := range bounds {
		if b.set && (bound == "" || b.life < life) {
			life, bound = b.life, b.bound
		}
	}
	life = life.Truncate(time.Second)
	if life < v.c.MinLifetime {
		return 0, "", &TooShortError{Have: max(life, 0), Bound: bound, Minimum: v.c.MinLifetime}
	}
	return life, bound, nil
}
