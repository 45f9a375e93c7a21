package awssts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/iam/types"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/internal/durable"
)

// RevocationKind is how keys that were vended are ended early.
type RevocationKind string

// The kinds. All but the first put an inline policy with a Deny on the role, which
// the provider needs seconds to minutes to apply.
const (
	// RevokeNone: keys live until they expire.
	RevokeNone RevocationKind = ""
	// RevokeSource denies everything to keys whose source identity is one of the
	// revoked sessions. Needs Config.SourceIdentity.
	RevokeSource RevocationKind = "source_identity"
	// RevokeIssued denies everything to every key of the role that was issued before
	// the last revocation: those of other sessions too, whose workers have to ask
	// again. For providers without source identities.
	RevokeIssued RevocationKind = "token_issue_time"
)

// DefaultRevokedSessions bounds the sessions in one policy: AWS takes 10,240
// characters for all inline policies of a role, and a session takes 39.
const DefaultRevokedSessions = 150

// Revocation configures ending keys early.
type Revocation struct {
	Kind RevocationKind
	// IAM puts the policy; *iam.Client fits. Required for kinds other than RevokeNone.
	// It may do iam:PutRolePolicy and iam:DeleteRolePolicy on the role.
	IAM iamAPI
	// PolicyName of the inline policy, which belongs to this vendor alone; empty =
	// "sluice-revoked". Two vendors of one role need two names.
	PolicyName string
	// Journal is the file that remembers what is revoked across restarts; required.
	Journal string
	// MaxSessions bounds the policy; 0 = DefaultRevokedSessions. Of more, those whose
	// keys live longest are kept, and Observer.Revoked is told.
	MaxSessions int
}

// iamAPI is what the vendor calls; *iam.Client has it.
type iamAPI interface {
	PutRolePolicy(context.Context, *iam.PutRolePolicyInput, ...func(*iam.Options)) (*iam.PutRolePolicyOutput, error)
	DeleteRolePolicy(context.Context, *iam.DeleteRolePolicyInput, ...func(*iam.Options)) (*iam.DeleteRolePolicyOutput, error)
}

// Revoked describes an attempt to put revocations into effect.
type Revoked struct {
	Sessions int   // whose keys are denied now, or all sessions' when Kind is RevokeIssued and it is 1
	Err      error // why they are not; it is tried again until their keys have expired
}

var policyNameFormat = regexp.MustCompile(`^[\w+=,.@-]{1,128}$`)

func (r *Revocation) check(c *Config) error {
	switch {
	case r.Kind == RevokeNone:
		return nil
	case r.Kind != RevokeSource && r.Kind != RevokeIssued:
		return fmt.Errorf("revocation %.50q, want %q or %q", r.Kind, RevokeSource, RevokeIssued)
	case r.IAM == nil || r.Journal == "":
		return errors.New("revocation needs an IAM client and a journal file")
	case r.Kind == RevokeSource && !c.SourceIdentity:
		return errors.New("revocation by source identity needs source identities, which a web identity has not")
	}
	orDefault(&r.PolicyName, "sluice-revoked")
	orDefault(&r.MaxSessions, DefaultRevokedSessions)
	if !policyNameFormat.MatchString(r.PolicyName) || r.MaxSessions < 1 {
		return fmt.Errorf("revocation: policy name %.150q or %d sessions", r.PolicyName, r.MaxSessions)
	}
	return nil
}

// journal is the file, version 1.
type journal struct {
	Version int `json:"version"` // 1
	// Sessions whose keys are denied, until the last of them has expired.
	Sessions map[string]time.Time `json:"sessions,omitempty"`
	// Before is the instant before which issued keys are denied, Until the end of the
	// last of them.
	Before time.Time `json:"before,omitzero"`
	Until  time.Time `json:"until,omitzero"`
}

// live is how many revocations there are.
func (j journal) live() int {
	n := len(j.Sessions)
	if !j.Until.IsZero() {
		n++
	}
	return n
}

// expire forgets what has ended, and reports whether there was any.
func (j *journal) expire(now time.Time) bool {
	before := j.live()
	maps.DeleteFunc(j.Sessions, func(_ string, until time.Time) bool { return !now.Before(until) })
	if !now.Before(j.Until) {
		j.Before, j.Until = time.Time{}, time.Time{}
	}
	return j.live() != before
}

// next is when the first revocation ends; zero = there is none.
func (j journal) next() time.Time {
	next := j.Until
	for _, until := range j.Sessions {
		if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	return next
}

// document is the policy, and how many revocations did not fit.
func (j journal) document(limit int) (text string, left int) {
	type statement struct {
		Sid       string
		Effect    string
		Action    string
		Resource  string
		Condition map[string]map[string]any
	}
	deny := statement{Sid: "SluiceRevoked", Effect: effectDeny, Action: "*", Resource: "*"}
	if !j.Until.IsZero() {
		deny.Condition = map[string]map[string]any{"DateLessThan": {"aws:TokenIssueTime": j.Before.UTC().Format(time.RFC3339)}}
	} else {
		ids := slices.SortedFunc(maps.Keys(j.Sessions), func(a, b string) int {
			if c := j.Sessions[b].Compare(j.Sessions[a]); c != 0 {
				return c
			}
			return compareStrings(a, b)
		})
		left = max(0, len(ids)-limit)
		ids = ids[:len(ids)-left]
		slices.Sort(ids)
		deny.Condition = map[string]map[string]any{"StringEquals": {"aws:SourceIdentity": ids}}
	}
	b, err := json.Marshal(struct {
		Version   string
		Statement []statement
	}{policyVersion, []statement{deny}})
	if err != nil {
		panic(err) // strings and times
	}
	return string(b), left
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// revoker keeps the role's policy equal to the journal. The journal is written before
// a revocation counts as accepted; the policy follows on the revoker's own goroutine,
// so that a freeze never waits for IAM.
type revoker struct {
	c       Revocation
	role    string
	now     func() time.Time
	tell    func(Revoked)
	longest time.Duration // no key outlives its minting by more
	opened  time.Time

	mu     sync.Mutex // owns what follows
	j      journal
	vended map[string]time.Time // sessions with keys minted by this process, until when they live
	dirty  bool                 // the role's policy differs from the journal
	wake   chan struct{}        // of one element
}

// openRevoker reads the journal. What it holds is put again, whether or not that had
// happened; a policy of which the journal knows nothing is removed.
func openRevoker(c Revocation, role string, longest time.Duration, now func() time.Time, tell func(Revoked)) (*revoker, error) {
	r := &revoker{c: c, role: role, now: now, tell: tell, longest: longest, opened: now(), vended: map[string]time.Time{}, wake: make(chan struct{}, 1)}
	b, err := os.ReadFile(c.Journal)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("revocations: %w", err)
	default:
		if err := json.Unmarshal(b, &r.j); err != nil || r.j.Version != 1 {
			return nil, fmt.Errorf("revocations: %s is not a journal of version 1: %v; removing it gives the revocations up that it holds", c.Journal, err)
		}
	}
	r.j.Version = 1
	if r.j.Sessions == nil {
		r.j.Sessions = map[string]time.Time{}
	}
	r.dirty = true
	return r, nil
}

// minted remembers that a session has keys, before they leave.
func (r *revoker) minted(session string, alive time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if alive.After(r.vended[session]) {
		r.vended[session] = alive
	}
}

// revoke accepts a revocation. It returns the instant before which keys of every
// session are denied now; zero for those of this session only.
func (r *revoker) revoke(session string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	maps.DeleteFunc(r.vended, func(_ string, until time.Time) bool { return !now.Before(until) })
	until, known := r.vended[session]
	if earlier := r.opened.Add(r.longest); earlier.After(until) && now.Before(earlier) {
		until = earlier // an earlier process may have vended for it
	}
	if !known && until.IsZero() {
		return time.Time{} // it has no keys
	}
	var before time.Time
	if r.c.Kind == RevokeIssued {
		// Issue times have seconds: a key of this very second must be denied too.
		before = now.Truncate(time.Second).Add(time.Second)
		r.j.Before, r.j.Until = before, later(r.j.Until, before.Add(r.longest))
	} else {
		r.j.Sessions[session] = later(r.j.Sessions[session], until)
	}
	delete(r.vended, session)
	r.dirty = true
	if err := r.writeLocked(); err != nil {
		r.tell(Revoked{Err: fmt.Errorf("the revocation is not kept across a restart: %w", err)})
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return before
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *revoker) writeLocked() error {
	b, err := json.Marshal(r.j)
	if err != nil {
		return err
	}
	return durable.WriteFile(r.c.Journal, append(b, '\n'), 0o600)
}

// Pauses between attempts to put the policy.
const (
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
)

// run puts the policy whenever it differs from the journal, until ctx ends. What is
// not put then is put after the next start.
func (r *revoker) run(ctx context.Context) {
	retry := firstRetry
	for {
		pause := time.Hour
		switch err := r.step(ctx); {
		case err != nil && ctx.Err() == nil:
			r.tell(Revoked{Err: err})
			pause, retry = retry, min(2*retry, lastRetry)
		default:
			retry = firstRetry
			if next := r.next(); !next.IsZero() {
				pause = max(next.Sub(r.now()), time.Second)
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (r *revoker) next() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.j.next()
}

// step makes the role's policy equal to the journal of now.
func (r *revoker) step(ctx context.Context) error {
	r.mu.Lock()
	if r.j.expire(r.now()) {
		r.dirty = true
		if err := r.writeLocked(); err != nil {
			r.tell(Revoked{Err: err})
		}
	}
	dirty, n := r.dirty, r.j.live()
	text, left := r.j.document(r.c.MaxSessions)
	r.dirty = false // a revocation that comes meanwhile sets it again
	r.mu.Unlock()
	if !dirty {
		return nil
	}
	if err := r.put(ctx, text, n); err != nil {
		r.mu.Lock()
		r.dirty = true
		r.mu.Unlock()
		return err
	}
	out := Revoked{Sessions: n - left}
	if left > 0 {
		out.Err = fmt.Errorf("%d revoked sessions do not fit into the role's policy, their keys live until they expire", left)
	}
	r.tell(out)
	return nil
}

// put replaces the policy, or removes it when nothing is revoked any more.
func (r *revoker) put(ctx context.Context, text string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	role := roleName(r.role)
	var err error
	if n > 0 {
		_, err = r.c.IAM.PutRolePolicy(ctx, &iam.PutRolePolicyInput{RoleName: &role, PolicyName: &r.c.PolicyName, PolicyDocument: &text})
	} else {
		_, err = r.c.IAM.DeleteRolePolicy(ctx, &iam.DeleteRolePolicyInput{RoleName: &role, PolicyName: &r.c.PolicyName})
		if gone := (*types.NoSuchEntityException)(nil); errors.As(err, &gone) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("policy %s of role %s: %w: %w", r.c.PolicyName, role, vend.ErrUnavailable, plainly(err))
	}
	return nil
}
