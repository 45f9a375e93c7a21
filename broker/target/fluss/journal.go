package fluss

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/session"
)

// Steps of a bucket's adoption. Each is written before what it names is done, and the
// next when that is known to be done.
const (
	stepNone       = ""           // nothing was done to the bucket
	stepStopping   = "STOPPING"   // it was proved empty; its replica may have been stopped
	stepCommitting = "COMMITTING" // it is stopped; the commit may have been sent
	stepNotifying  = "NOTIFYING"  // the snapshot is registered; the leader may have been told
	stepServed     = "SERVED"     // the leader was seen to serve the rows
	stepMoved      = "MOVED"      // and its log was moved, so that tiering sees it
	stepGivenUp    = "GIVEN_UP"   // an operator gave it up before it served the rows
)

// order lists the steps; a journal only goes forward.
var order = map[string]int{stepNone: 0, stepStopping: 1, stepCommitting: 2, stepNotifying: 3, stepServed: 4, stepMoved: 5, stepGivenUp: 6}

// journal is how far a bucket's adoption is.
//
//	{"version":1,"session_id":uuid,"epoch":n,"bucket":n,"step":…,
//	 "metadata":{_METADATA},"samples":[{"key":base64,"sha256":hex}…]}
//
// The metadata is kept because a commit that is delivered twice deletes the object,
// the samples because a bucket that serves the load may have replaced its files.
type journal struct {
	Version   int             `json:"version"`
	SessionID string          `json:"session_id"`
	Epoch     int64           `json:"epoch"`
	Bucket    int32           `json:"bucket"`
	Step      string          `json:"step"`
	Metadata  json.RawMessage `json:"metadata"`
	Samples   []sample        `json:"samples"`
}

// errPassed says that another broker has taken the bucket further than we know.
var errPassed = errors.New("another broker goes on with the bucket")

func journalKey(s session.Session, bucket int32) string {
	return ownDir + "/journals/" + s.ID + "/" + strconv.Itoa(int(bucket))
}

// journal reads a bucket's journal; one that is missing is at stepNone.
func (d *Driver) journal(ctx context.Context, s session.Session, bucket int32) (*journal, error) {
	k := journalKey(s, bucket)
	b, _, err := d.read(ctx, k)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return &journal{Version: recordVersion, SessionID: s.ID, Epoch: s.Epoch, Bucket: bucket}, nil
	}
	return decodeJournal(k, b, s, bucket)
}

func decodeJournal(k string, b []byte, s session.Session, bucket int32) (*journal, error) {
	var j journal
	if err := document.Decode(b, &j, &j.Version, recordVersion); err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	if _, ok := order[j.Step]; !ok || j.SessionID != s.ID || j.Bucket != bucket {
		return nil, fmt.Errorf("%s: step %q of session %q, bucket %d", k, j.Step, j.SessionID, j.Bucket)
	}
	return &j, nil
}

// advance writes the next step. errPassed when somebody else did it before.
func (d *Driver) advance(ctx context.Context, s session.Session, j *journal, step string) error {
	k := journalKey(s, j.Bucket)
	next := *j
	next.Step = step
	err := d.swap(ctx, k, func(old []byte) ([]byte, error) {
		if old == nil {
			if j.Step != stepNone {
				return nil, fmt.Errorf("%w: somebody deleted the journal %s/%s, which said %s: nobody can tell any more how far the bucket is, give the load up", target.ErrStuck, d.c.RootURI, k, j.Step)
			}
			return document.Encode(next), nil
		}
		have, err := decodeJournal(k, old, s, j.Bucket)
		if err != nil {
			return nil, err
		}
		if have.Step != j.Step {
			return nil, fmt.Errorf("%w: it is at %s, we were at %s", errPassed, have.Step, j.Step)
		}
		return document.Encode(next), nil
	})
	if err == nil {
		*j = next
	}
	return err
}
