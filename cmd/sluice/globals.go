package main

import (
	"io"
	"time"
)

// globals are the streams and flags every command shares. Commands read and write
// through them only, so that tests can run the whole command line in process.
type globals struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time

	url               string // --url, SLUICE_URL
	identityTokenFile string // --identity-token-file, SLUICE_IDENTITY_TOKEN_FILE
	devSubject        string // --dev-subject: ask a development server for an identity token
	output            string // --output: "table" or "json"
	quiet             bool   // --quiet: no progress
}

// json says whether results and errors are printed as JSON.
func (g *globals) json() bool { return g.output == outputJSON }

// The values of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
)
