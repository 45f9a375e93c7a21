package audit

import "time"

// Kinds of Note.
const (
	NoteSegment = "segment" // the first line of every segment
	NoteOpened  = "opened"  // a process goes on with a segment that another left
	NoteGap     = "gap"     // events before this line could not be written
	NoteRemoved = "removed" // segments are about to be deleted by retention
)

// Note is a line of the log on itself.
type Note struct {
	Kind string    `json:"kind"`
	Time time.Time `json:"time"`
	// Format is the version of the line format: 1. NoteSegment.
	Format int `json:"format,omitempty"`

	// NoteOpened and NoteSegment: what a crash had left of a line that was being
	// written, and that was cut off; whoever asked for it was not told that it is kept.
	CutBytes  int64  `json:"cut_bytes,omitempty"`
	CutSHA256 string `json:"cut_sha256,omitempty"`
	// NoteSegment: the segment before ends in something that is no line of this log,
	// which is left as it was found.
	Damaged string `json:"damaged,omitempty"`

	// NoteGap: how many events were refused with their effect, how many were lost while
	// their effects went on (on_full: continue), since when, and the first error.
	Refused uint64     `json:"refused,omitempty"`
	Lost    uint64     `json:"lost,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Error   string     `json:"error,omitempty"`

	// NoteRemoved: what is deleted, the oldest first.
	Segments []Anchor `json:"segments,omitempty"`
}

// Anchor is what stays known of a deleted segment: the segment behind it begins with
// line Last+1, whose prev is Hash.
type Anchor struct {
	File  string `json:"file"`
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	Hash  string `json:"hash"` // of line Last
}
