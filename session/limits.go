package session

import (
	"errors"
	"fmt"
	"time"
)

// Limits bound sessions and tokens. The defaults are those of the upstream
// bulk-load contract, and 15 minutes for tokens.
type Limits struct {
	BuildTimeoutDefault time.Duration // when Begin asks for none
	BuildTimeoutMax     time.Duration
	DecisionTimeout     time.Duration // from freeze to decision
	ResultRetention     time.Duration // how long a terminal record is kept
	MaxActive           int           // unfinished sessions
	ManifestMaxSize     int64         // bytes, of a manifest and of one _METADATA
	InputMaxSize        int64         // bytes of all files of a session
	TokenTTLDefault     time.Duration
	TokenTTLMax         time.Duration
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		BuildTimeoutDefault: 24 * time.Hour,
		BuildTimeoutMax:     7 * 24 * time.Hour,
		DecisionTimeout:     24 * time.Hour,
		ResultRetention:     7 * 24 * time.Hour,
		MaxActive:           64,
		ManifestMaxSize:     16 << 20,
		InputMaxSize:        1024 << 40,
		TokenTTLDefault:     15 * time.Minute,
		TokenTTLMax:         15 * time.Minute,
	}
}

// Check refuses limits that cannot work: every one must be positive, and a default
// must not exceed its maximum.
func (l Limits) Check() error {
	var errs []error
	positive := func(name string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("%w: limit %s must be positive", ErrInvalid, name))
		}
	}
	positive("build timeout default", int64(l.BuildTimeoutDefault))
	positive("build timeout max", int64(l.BuildTimeoutMax))
	positive("decision timeout", int64(l.DecisionTimeout))
	positive("result retention", int64(l.ResultRetention))
	positive("max active", int64(l.MaxActive))
	positive("manifest max size", l.ManifestMaxSize)
	positive("input max size", l.InputMaxSize)
	positive("token ttl default", int64(l.TokenTTLDefault))
	positive("token ttl max", int64(l.TokenTTLMax))
	if l.BuildTimeoutDefault > l.BuildTimeoutMax {
		errs = append(errs, fmt.Errorf("%w: the default build timeout exceeds the maximum of %v", ErrInvalid, l.BuildTimeoutMax))
	}
	if l.TokenTTLDefault > l.TokenTTLMax {
		errs = append(errs, fmt.Errorf("%w: the default token lifetime exceeds the maximum of %v", ErrInvalid, l.TokenTTLMax))
	}
	return errors.Join(errs...)
}

// BuildTimeout turns the build time-out a caller asks for into the one it gets: 0
// means the default. Negative ones and those over the maximum are ErrInvalid: a
// build that is promised less time than it asked for would fail late.
func (l Limits) BuildTimeout(asked time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return l.BuildTimeoutDefault, nil
	case asked < 0 || asked > l.BuildTimeoutMax:
		return 0, fmt.Errorf("%w: build timeout %v is outside 0–%v", ErrInvalid, asked, l.BuildTimeoutMax)
	}
	return asked, nil
}

// TokenTTL is the lifetime of a token issued now for a wish (0: the default):
// the smallest of wish, maximum and, unless deadline is zero, the time left until
// the session's deadline. It is 0 when no time is left.
func (l Limits) TokenTTL(wish time.Duration, now, deadline time.Time) time.Duration {
	if wish <= 0 {
		wish = l.TokenTTLDefault
	}
	ttl := min(wish, l.TokenTTLMax)
	if !deadline.IsZero() {
		ttl = min(ttl, deadline.Sub(now))
	}
	return max(ttl, 0)
}
