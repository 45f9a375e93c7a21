package builder

import (
	"fmt"
	"sync"
	"time"
)

// Events are optional callbacks; nil ones cost nothing. They run on the library's
// goroutines, one at a time per session, and must not call the session.
type Events struct {
	// Progress reports the counters of one bucket, now and then.
	Progress func(Progress)
	// Uploaded reports one object that is now stored, ours or found equal.
	Uploaded func(Upload)
	// BucketFinished reports a finished bucket.
	BucketFinished func(BucketFiles)
	// CommitWaiting reports that Commit will be repeated, and why.
	CommitWaiting func(Waiting)
}

func (e Events) any() bool {
	return e.Progress != nil || e.Uploaded != nil || e.BucketFinished != nil || e.CommitWaiting != nil
}

// Waiting says why a Commit has to be repeated.
type Waiting struct {
	Cause error
	// KeysLiveUntil is set while a load with hand-over "wait" is frozen, and not yet
	// published because the object store may accept a worker's keys until then.
	KeysLiveUntil time.Time
}

// String says it for people.
func (w Waiting) String() string {
	if w.KeysLiveUntil.IsZero() {
		return w.Cause.Error()
	}
	return fmt.Sprintf("the load is frozen; it is published when the last key that a worker was given has expired, at %s", w.KeysLiveUntil.UTC().Format(time.RFC3339))
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
	Spilled  int64 // bytes written to sort runs
	Bytes    int64 // bytes of the finished files
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

// notifier calls events one at a time and keeps the counters they report.
type notifier struct {
	events Events

	mu       sync.Mutex
	counters map[int]*Progress
}

func newNotifier(e Events) *notifier { return &notifier{events: e, counters: map[int]*Progress{}} }

// progress changes a bucket's counters and reports them.
func (n *notifier) progress(bucket int, change func(p *Progress)) {
	if n.events.Progress == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.counters[bucket]
	if p == nil {
		p = &Progress{Bucket: bucket, Phase: PhaseRows}
		n.counters[bucket] = p
	}
	change(p)
	n.events.Progress(*p)
}

func (n *notifier) uploaded(u Upload) {
	n.progress(u.Bucket, func(p *Progress) { p.Uploaded += u.Size })
	if n.events.Uploaded == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events.Uploaded(u)
}

func (n *notifier) finished(f BucketFiles) {
	n.progress(f.BucketID, func(p *Progress) { p.Phase = PhaseDone })
	if n.events.BucketFinished == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events.BucketFinished(f)
}
