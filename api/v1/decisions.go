package v1

import "encoding/json"

// MaxDecisions is the most events of the decision log in one answer.
const MaxDecisions = 1000

// LogEvent is one event of the decision log.
type LogEvent struct {
	Seq  uint64 `json:"seq"`  // of its line
	Hash string `json:"hash"` // SHA-256 of its line, hex
	// Event is described by docs/audit.md.
	Event json.RawMessage `json:"event"`
}

// Decisions answers GET /v1/decisions.
type Decisions struct {
	Events []LogEvent `json:"events"` // in the order of the log
	// Next is the parameter after for what follows; absent at the end of the log. There
	// can be more although Events has fewer than was asked for.
	Next uint64 `json:"next,omitempty"`
}

// Decision answers GET /v1/decisions/{id}: the decision, then what was done on it.
type Decision struct {
	Events []LogEvent `json:"events"`
}
