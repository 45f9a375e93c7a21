package conformance

import (
	_ "embed"
	"encoding/json"
	"sync"
)

//go:embed providers.json
var providersJSON []byte

// Answers about a mode.
const (
	Yes     = "yes"
	No      = "no"
	Unknown = "unknown" // not measured, and not found in what was read: run doctor
)

// Ways of knowing.
const (
	Measured = "measured" // by running it
	Read     = "read"     // in documentation or threads, which may be wrong or old
)

// Provider is what is known about an object store before trying one's own.
type Provider struct {
	Name      string   `json:"name"`
	Version   string   `json:"version,omitempty"` // that was measured
	Known     string   `json:"known"`             // Measured or Read
	Warehouse string   `json:"warehouse"`         // Yes, No or Unknown; so are the next two
	Sign      string   `json:"sign"`
	STS       string   `json:"sts"`
	Settings  string   `json:"settings,omitempty"` // of sluiced.yaml that it needs
	Notes     []string `json:"notes"`
	Sources   []string `json:"sources"`
}

// Providers is the table of known stores, which ships with the program. Treat it as
// read-only.
func Providers() []Provider { return providers() }

var providers = sync.OnceValue(func() []Provider {
	var out []Provider
	if err := json.Unmarshal(providersJSON, &out); err != nil {
		panic("conformance: providers.json: " + err.Error()) // part of the program; a test reads it
	}
	return out
})
