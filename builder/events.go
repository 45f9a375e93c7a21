package builder

import "time"

// Events are optional callbacks. They run on the library's goroutines, one at a
// time per session, and must not block or call back into the session.
type Events struct {
	// Progress reports counters, several times a second at most.
	Progress func(Progress)
	// Uploaded reports one object that is now stored, ours or found equal.
	Uploaded func(Upload)
	// BucketFinished reports a finished bucket.
	BucketFinished func(BucketFiles)
	// CommitWaiting reports that Commit will be repeated, and why.
	CommitWaiting func(cause error)
}

// Phase says what a bucket is being put through.
type Phase string

// The phases of a bucket, in order.
const (
	PhaseRows   Phase = "rows"   // rows are being added
	PhaseMerge  Phase = "merge"  // sorted rows are being written as RocksDB files
	PhaseUpload Phase = "upload" // files are being stored
	PhaseDone   Phase = "done"
)

// Progress is a snapshot of one bucket's counters.
type Progress struct {
	Bucket   int
	Phase    Phase
	Rows     int64 // rows added
	Merged   int64 // distinct rows written to files
	Spilled  int64 // bytes written to runs
	Bytes    int64 // bytes of finished files
	Uploaded int64 // bytes stored
}

// Upload describes one stored object.
type Upload struct {
	Bucket  int // -1 for the manifest
	Path    string
	Size    int64
	Reused  bool // an equal object was there
	Elapsed time.Duration
}
