package kv_test

import (
	"testing"

	"github.com/fluss-sluice/sluice/session/kv"
	"github.com/fluss-sluice/sluice/session/kv/kvtest"
)

func TestMemory(t *testing.T) {
	kvtest.Run(t, func(*testing.T) kv.Store { return &kv.Memory{} })
}
