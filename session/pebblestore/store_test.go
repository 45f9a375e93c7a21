package pebblestore

import (
	"testing"

	"github.com/cockroachdb/pebble/vfs"

	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/sessiontest"
)

func TestSuite(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) session.Store {
		s, err := Open("db", Options{FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
