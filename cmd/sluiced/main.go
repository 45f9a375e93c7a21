// Command sluiced is the Sluice service: it owns bulk-load sessions, decides by
// policy, issues tokens and serves the objects of its warehouse. Package serve wires
// the concrete parts together.
//
//	sluiced --config sluiced.yaml
//	sluiced --dev                    everything on embedded defaults, on loopback
//	sluiced config check|print --config sluiced.yaml
//
// SIGTERM and SIGINT drain and stop, a second one stops at once; SIGHUP reloads
// policy and certificates. It logs JSON lines to standard error. The configuration
// is described in docs/configuration.md.
package main

import (
	"os"

	"github.com/fluss-sluice/sluice/cmd/internal/serve"
)

// version is set by the linker (see Makefile).
var version = ""

func main() { os.Exit(serve.Main(os.Args[1:], version, os.Stdout, os.Stderr)) }
