package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/manifest"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Upstream's client repeats Commit at this pace, and within this budget when the
// caller sets none.
const (
	commitPace   = 200 * time.Millisecond
	commitBudget = 30 * time.Minute
)

// Commit publishes a load from exactly one BucketFiles per bucket, in any order. It
// writes the manifest, commits, and repeats the commit while the broker is still at
// it or cannot be reached, until ctx ends (30 minutes when ctx has no deadline).
//
// A load with hand-over "wait" is published no earlier than the last key of the object
// store expires that was given to a worker. Without a deadline in ctx the 30 minutes
// count from then on; Events.CommitWaiting says until when.
//
// The outcome of an error whose cause is a deadline or the network is unknown:
// repeat Commit with the same files, never Abort.
func (c *Client) Commit(ctx context.Context, bc *BuildContext, files []BucketFiles) (*v1.Session, error) {
	ctx, b := newBudget(ctx)
	defer b.end()
	s, err := c.commit(ctx, b, bc, files)
	return s, wrapLoad("commit", bc, err)
}

// budget bounds a Commit whose caller did not.
type budget struct {
	timer *time.Timer // nil when the caller did
	end   func()
}

func newBudget(ctx context.Context) (context.Context, *budget) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, &budget{end: func() {}}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	t := time.AfterFunc(commitBudget, func() { cancel(context.DeadlineExceeded) })
	return ctx, &budget{t, func() { t.Stop(); cancel(nil) }}
}

// from makes the budget count from an instant. It is called while it lasts.
func (b *budget) from(at time.Time) {
	if b.timer != nil && b.timer.Stop() {
		b.timer.Reset(max(0, time.Until(at)) + commitBudget)
	}
}

func (c *Client) commit(ctx context.Context, b *budget, bc *BuildContext, files []BucketFiles) (*v1.Session, error) {
	body, err := manifestOf(bc, files)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	ref := v1.ObjectRef{Path: bc.Plan.ManifestPath, Length: int64(len(body)), SHA256: hex.EncodeToString(sum[:])}
	durable.Point("builder.before-manifest")
	if err := c.putManifest(ctx, bc, body, ref); err != nil && !ended(err) {
		return nil, err
	}
	durable.Point("builder.after-manifest")
	return c.repeatCommit(ctx, b, bc, ref)
}

// ended reports that no more tokens are given for a session. An earlier Commit may
// have got through, so that is for the commit itself to find out.
func ended(err error) bool {
	return refused(err, v1.CodeSessionEnded, v1.CodeWrongState)
}

// manifestOf checks that there is exactly one result per bucket, and lists them.
func manifestOf(bc *BuildContext, files []BucketFiles) ([]byte, error) {
	n := len(bc.SnapshotIDs)
	m := manifest.Manifest{BulkLoadID: bc.Handle.BulkLoadID, Buckets: make([]manifest.Bucket, n)}
	seen := make([]bool, n)
	for _, f := range files {
		switch {
		case f.BulkLoadID != bc.Handle.BulkLoadID:
			return nil, fmt.Errorf("the files of bucket %d belong to load %s", f.BucketID, f.BulkLoadID)
		case f.BucketID < 0 || f.BucketID >= n:
			return nil, fmt.Errorf("there are files of bucket %d, the load has buckets 0 to %d", f.BucketID, n-1)
		case seen[f.BucketID]:
			return nil, fmt.Errorf("there are files of bucket %d twice", f.BucketID)
		case f.Metadata.Path == "" || f.Metadata.Length <= 0 || len(f.Metadata.SHA256) != 64:
			return nil, fmt.Errorf("the files of bucket %d name no metadata object", f.BucketID)
		}
		seen[f.BucketID] = true
		m.Buckets[f.BucketID] = manifest.Bucket{
			BucketID: f.BucketID, Path: f.Metadata.Path, Length: f.Metadata.Length, SHA256: f.Metadata.SHA256,
		}
	}
	if i := slices.Index(seen, false); i >= 0 {
		return nil, fmt.Errorf("the files of bucket %d are missing: %d of %d buckets are given", i, len(files), n)
	}
	return m.AppendJSON(nil), nil
}

// putManifest creates the manifest, or finds an equal one.
func (c *Client) putManifest(ctx context.Context, bc *BuildContext, body []byte, ref v1.ObjectRef) error {
	tokens := client.NewTokens(c.api, client.ExchangeRequest{
		SessionID: bc.Handle.BulkLoadID, Scope: []string{string(scope.ManifestWrite)},
	})
	defer tokens.Close()
	if _, err := tokens.Token(ctx); err != nil {
		return err
	}
	start := time.Now()
	store, err := c.store(tokens, placeOf(bc))
	if err != nil {
		return err
	}
	defer store.Close()
	u := uploader{objects: store}
	reused, err := u.put(ctx, content{uri: ref.Path, size: ref.Length, sha256: ref.SHA256, body: bytes.NewReader(body)})
	if reused && forbidden(err) {
		// It exists and this token may not read it. The broker compares the digest
		// of what is there with ours in a moment.
		err = nil
	}
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if f := c.events.Uploaded; f != nil {
		f(Upload{Bucket: -1, Path: ref.Path, Size: ref.Length, Reused: reused, Elapsed: time.Since(start)})
	}
	return nil
}

func forbidden(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.StatusCode == http.StatusForbidden
}

// repeatCommit sends the same Commit until it is answered for good.
func (c *Client) repeatCommit(ctx context.Context, b *budget, bc *BuildContext, ref v1.ObjectRef) (*v1.Session, error) {
	var keysLive time.Time // of hand-over wait, once it is known
	for {
		s, err := c.once.Commit(ctx, bc.Handle.BulkLoadID, v1.CommitRequest{Epoch: bc.Epoch, Manifest: &ref})
		durable.Point("builder.after-commit")
		wait := commitPace
		switch {
		case err != nil:
			var again bool
			if again, wait = worthRepeating(err); !again && ctx.Err() == nil {
				return nil, err
			}
		case s.ID != bc.Handle.BulkLoadID:
			return nil, fmt.Errorf("the broker answered for session %s", s.ID)
		case s.State == stateCommitted:
			return s, nil
		case s.State == stateAborted:
			return s, &EndedError{Session: *s}
		default:
			err = fmt.Errorf("the load is %s (%s)", s.State, s.Phase)
		}
		if keysLive.IsZero() && bc.Plan.HandOver == handOverWait {
			if keysLive = c.keysLiveUntil(ctx, bc); !keysLive.IsZero() {
				b.from(keysLive)
			}
		}
		if f := c.events.CommitWaiting; f != nil && ctx.Err() == nil {
			f(waiting(err, keysLive))
		}
		if c.sleep(ctx, wait) != nil {
			return nil, fmt.Errorf("%w; the outcome is unknown: repeat Commit, do not abort: %w", context.Cause(ctx), err)
		}
	}
}

// keysLiveUntil asks until when a frozen load waits for its workers' keys to expire;
// zero when it does not, or cannot be asked.
func (c *Client) keysLiveUntil(ctx context.Context, bc *BuildContext) time.Time {
	s, err := c.once.Session(ctx, bc.Handle.BulkLoadID)
	if err != nil || s.Phase != phaseFrozen || s.KeysLiveUntil == nil {
		return time.Time{}
	}
	return *s.KeysLiveUntil
}

// waiting blames live keys as long as there are any.
func waiting(cause error, keysLive time.Time) Waiting {
	if keysLive.Before(time.Now()) {
		keysLive = time.Time{}
	}
	return Waiting{Cause: cause, KeysLiveUntil: keysLive}
}

// handOverWait is the hand-over under which a commit waits for keys to expire.
const handOverWait = "wait"

// States, and the phase between building and publishing, as the wire spells them.
const (
	stateCommitted = "COMMITTED"
	stateAborted   = "ABORTED"
	phaseFrozen    = "frozen"
)

// worthRepeating says whether the same request may succeed later, and when.
func worthRepeating(err error) (bool, time.Duration) {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Temporary(), max(commitPace, e.RetryAfter)
	}
	return client.Unanswered(err), commitPace
}
