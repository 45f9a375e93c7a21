// Package sessiontest is the suite that every session store must pass.
package sessiontest

import (
	"testing"

	"github.com/fluss-sluice/sluice/session"
)

// Run proves the guarantees of session.Store. open returns an empty store; the
// suite closes it.
func Run(t *testing.T, open func(t *testing.T) session.Store) { t.Skip("not built yet") }
