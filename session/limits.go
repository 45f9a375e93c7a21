package session

import (
	"errors"
	"time"
)

// Limits bound sessions and tokens. The defaults are those of the upstream
// bulk-load contract.
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

// Check refuses limits that cannot work.
func (l Limits) Check() error { return errors.New("not built yet") }
