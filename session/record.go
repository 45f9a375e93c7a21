package session

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a record.
const (
	// MaxMessage bounds Abort.Message and ValidationError, in bytes of UTF-8.
	MaxMessage = 4096
	// MaxSubmissionID bounds Session.SubmissionID, in bytes of printable ASCII.
	MaxSubmissionID = 128
	// maxName bounds each part of a target and a principal, in bytes.
	maxName = 1024
)

// Reservation is what is known of a session before its target is fenced.
type Reservation struct {
	ID             string // lower-case UUID
	SubmissionID   string // 1–128 bytes of printable ASCII
	Target         Target
	Epoch          int64 // ≥ 1, the target's highest epoch + 1
	Creator        Principal
	DecisionID     string
	PolicyRevision string
	Created        time.Time
	BuildDeadline  time.Time
	HandOver       HandOver // "" = HandOverSame
	Options        Options
}

// New makes the record of a session that begins. A bad reservation is ErrInvalid.
func New(r Reservation) (Session, error) {
	created := stamp(r.Created)
	s := Session{
		ID: r.ID, SubmissionID: r.SubmissionID, Target: r.Target, Epoch: r.Epoch, Creator: r.Creator,
		DecisionID: r.DecisionID, PolicyRevision: r.PolicyRevision,
		Created: created, BuildDeadline: stamp(r.BuildDeadline), Updated: created, HandOver: r.HandOver, Options: r.Options,
	}
	if err := s.reservation(); err != nil {
		return Session{}, fmt.Errorf("%w: %v", ErrInvalid, err)
	}
	return s, nil
}

// Phase refines the state; see the table in machine.go.
func (s Session) Phase() Phase {
	switch {
	case s.Terminal():
		return PhaseDone
	case s.State == StateCommitting:
		return PhasePublishing
	case s.AbortInfo != nil:
		return PhaseAborting
	case s.Manifest != nil:
		return PhaseFrozen
	case len(s.SnapshotIDs) > 0:
		return PhaseBuilding
	}
	return PhaseFencing
}

// Terminal reports whether the session has ended.
func (s Session) Terminal() bool { return s.State == StateCommitted || s.State == StateAborted }

// CheckEpoch returns ErrStaleEpoch unless epoch is the session's.
func (s Session) CheckEpoch(epoch int64) error {
	if epoch == s.Epoch {
		return nil
	}
	return fmt.Errorf("session %s: %w %d, the session has %d", s.ID, ErrStaleEpoch, epoch, s.Epoch)
}

// Due tells which deadline has passed: the build deadline until a manifest is
// frozen, then the decision deadline. A session that is decided or being aborted
// has none.
func (s Session) Due(now time.Time) (AbortReason, bool) {
	if s.State != StateBegun || s.AbortInfo != nil {
		return 0, false
	}
	if s.DecisionDeadline != nil {
		return AbortDecisionDeadline, !now.Before(*s.DecisionDeadline)
	}
	return AbortBuildDeadline, !now.Before(s.BuildDeadline)
}

// Expired reports whether a terminal record may be forgotten: its retention is over,
// no vended key can write any more, and a due verification was made.
func (s Session) Expired(now time.Time) bool {
	return s.ResultExpires != nil && !now.Before(*s.ResultExpires) &&
		!s.KeysAlive(now) && (s.Verification == nil || s.Verification.Done != nil)
}

// KeysAlive reports whether the object store may still accept a vended key that can
// write.
func (s Session) KeysAlive(now time.Time) bool {
	return s.KeysAliveUntil != nil && now.Before(*s.KeysAliveUntil)
}

// isDeadline tells the reasons that only a clock may give.
func (r AbortReason) isDeadline() bool { return r == AbortBuildDeadline || r == AbortDecisionDeadline }

// Clone returns a deep copy.
func (s Session) Clone() Session {
	s.PartitionID = clonePtr(s.PartitionID)
	s.TableJSON = bytes.Clone(s.TableJSON)
	s.SnapshotIDs = slices.Clone(s.SnapshotIDs)
	s.Manifest = clonePtr(s.Manifest)
	s.DecisionDeadline = clonePtr(s.DecisionDeadline)
	s.Stats = clonePtr(s.Stats)
	s.AbortInfo = clonePtr(s.AbortInfo)
	s.ResultExpires = clonePtr(s.ResultExpires)
	s.KeysAliveUntil = clonePtr(s.KeysAliveUntil)
	if s.Verification = clonePtr(s.Verification); s.Verification != nil {
		s.Verification.Done = clonePtr(s.Verification.Done)
	}
	return s
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// Check validates a record, for instance one read from a store. The error wraps
// ErrBroken. The invariants, beyond the form of single fields:
//
//   - The facts of EventReady are all present or all absent; snapshot ids mark
//     them. A partition id is present exactly when the target has a partition.
//   - Manifest and decision deadline come together and need the facts.
//   - A validation error needs a manifest and State BEGUN.
//   - COMMITTING and COMMITTED need a manifest and stats, and exclude an abort
//     reason. Stats exist only then.
//   - ABORTED needs an abort reason; a reason exists only in BEGUN (an abort is
//     pending) and ABORTED.
//   - A result expiry exists exactly when the session is terminal.
//   - The plan's hand-over is the session's. Upload and final root differ with
//     HandOverCopy only.
//   - Keys that can write exist only for a session that is ready and expects them.
//   - A verification exists exactly when the session is COMMITTED with HandOverVerify
//     and such keys exist; it is due when the last of them has expired and is not made
//     before that.
func Check(s Session) error {
	for _, check := range []func() error{s.reservation, s.readiness, s.freeze, s.ending, s.keys} {
		if err := check(); err != nil {
			// %v: the kind of a field's error would read as the caller's mistake.
			return fmt.Errorf("%w: session %q: %v", ErrBroken, s.ID, err)
		}
	}
	return nil
}

func (s *Session) reservation() error {
	switch {
	case !canonicalUUID(s.ID):
		return fmt.Errorf("id %q is not a lower-case UUID", s.ID)
	case s.Epoch < 1:
		return fmt.Errorf("epoch %d is below 1", s.Epoch)
	case s.Created.IsZero() || s.Updated.Before(s.Created):
		return fmt.Errorf("created %v, updated %v", s.Created, s.Updated)
	case !s.HandOver.Effective().Known():
		return fmt.Errorf("hand-over %.64q is unknown", s.HandOver)
	case !s.BuildDeadline.After(s.Created):
		return fmt.Errorf("build deadline %v is not after creation at %v", s.BuildDeadline, s.Created)
	}
	if err := checkSubmissionID(s.SubmissionID); err != nil {
		return err
	}
	if err := s.Target.Check(); err != nil {
		return err
	}
	if err := s.Options.Check(); err != nil {
		return err
	}
	return s.Creator.Check()
}

func (s *Session) readiness() error {
	if len(s.SnapshotIDs) == 0 {
		if s.TableID != 0 || s.PartitionID != nil || s.SchemaID != 0 || len(s.TableJSON) > 0 ||
			s.TableCreated != 0 || s.TableModified != 0 || s.RemoteDataDir != "" || s.Plan != (Plan{}) {
			return fmt.Errorf("facts of the target without snapshot ids")
		}
		return nil
	}
	p := s.Plan
	switch {
	case s.TableID < 0 || s.SchemaID < 0:
		return fmt.Errorf("table id %d, schema id %d", s.TableID, s.SchemaID)
	case (s.PartitionID != nil) != (s.Target.Partition != ""):
		return fmt.Errorf("partition id and partition name do not come together")
	case s.PartitionID != nil && *s.PartitionID < 0:
		return fmt.Errorf("partition id %d", *s.PartitionID)
	case len(s.TableJSON) == 0 || s.RemoteDataDir == "":
		return fmt.Errorf("snapshot ids without table descriptor or remote directory")
	case p.UploadRoot == "" || p.FinalRoot == "" || p.ManifestPath == "" || p.Publication == "" || p.HandOver == "" || p.LogOffset == "":
		return fmt.Errorf("snapshot ids with an incomplete plan")
	case p.HandOver != s.HandOver.Effective():
		return fmt.Errorf("the plan has hand-over %.64q, the session %.64q", p.HandOver, s.HandOver)
	case (p.UploadRoot != p.FinalRoot) != (p.HandOver == HandOverCopy):
		return fmt.Errorf("hand-over %s with upload root %.300q and final root %.300q", p.HandOver, p.UploadRoot, p.FinalRoot)
	}
	for bucket, id := range s.SnapshotIDs {
		if id < 0 {
			return fmt.Errorf("bucket %d has snapshot id %d", bucket, id)
		}
	}
	return nil
}

func (s *Session) freeze() error {
	switch {
	case (s.Manifest != nil) != (s.DecisionDeadline != nil):
		return fmt.Errorf("manifest and decision deadline do not come together")
	case s.ValidationError != "" && (s.Manifest == nil || s.State == StateCommitting || s.State == StateCommitted):
		return fmt.Errorf("validation error without a manifest in question")
	case s.Manifest == nil:
		return nil
	case len(s.SnapshotIDs) == 0:
		return fmt.Errorf("manifest without snapshot ids")
	}
	if err := checkMessage("validation error", s.ValidationError); err != nil {
		return err
	}
	return checkManifest(*s.Manifest, s.Plan)
}

func (s *Session) ending() error {
	decided := s.State == StateCommitting || s.State == StateCommitted
	switch {
	case int(s.State) >= len(stateNames):
		return fmt.Errorf("unknown state %d", s.State)
	case decided && s.Manifest == nil:
		return fmt.Errorf("%v without a manifest", s.State)
	case decided != (s.Stats != nil):
		return fmt.Errorf("%v with stats %v", s.State, s.Stats)
	case decided && s.AbortInfo != nil:
		return fmt.Errorf("%v with an abort reason", s.State)
	case s.State == StateAborted && s.AbortInfo == nil:
		return fmt.Errorf("%v without a reason", s.State)
	case s.Terminal() != (s.ResultExpires != nil):
		return fmt.Errorf("%v and result expiry do not agree", s.State)
	case s.ResultExpires != nil && !s.ResultExpires.After(s.Created):
		return fmt.Errorf("result expires at %v, before the session began", s.ResultExpires)
	case s.Stats != nil && (s.Stats.Rows < -1 || s.Stats.Files < 0 || s.Stats.Bytes < 0):
		return fmt.Errorf("stats %+v", *s.Stats)
	case s.AbortInfo == nil:
		return nil
	case int(s.AbortInfo.Reason) >= len(reasonNames):
		return fmt.Errorf("unknown abort reason %d", s.AbortInfo.Reason)
	}
	return checkMessage("abort message", s.AbortInfo.Message)
}

func (s *Session) keys() error {
	v := s.Verification
	due := s.State == StateCommitted && s.HandOver == HandOverVerify && s.KeysAliveUntil != nil
	switch {
	case s.KeysAliveUntil != nil && (len(s.SnapshotIDs) == 0 || !s.HandOver.ExpectsKeys()):
		return fmt.Errorf("keys with hand-over %q", s.HandOver)
	case s.KeysAliveUntil != nil && !s.KeysAliveUntil.After(s.Created):
		return fmt.Errorf("keys until %v, before the session began", s.KeysAliveUntil)
	case due != (v != nil):
		return fmt.Errorf("%v with hand-over %q, keys %v and verification %v", s.State, s.HandOver, s.KeysAliveUntil, v)
	case v == nil:
		return nil
	case !v.Due.Equal(*s.KeysAliveUntil):
		return fmt.Errorf("verification is due at %v, the last key expires at %v", v.Due, s.KeysAliveUntil)
	case v.Done != nil && v.Done.Before(v.Due), v.Done == nil && v.Error != "":
		return fmt.Errorf("verification due at %v was made at %v", v.Due, v.Done)
	}
	return checkMessage("verification error", v.Error)
}

// CheckGrant validates the record of a grant; the error wraps ErrInvalid.
func CheckGrant(g Grant) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: grant %q: %w", ErrInvalid, g.ID, fmt.Errorf(format, args...))
	}
	switch {
	case g.ID == "" || len(g.ID) > maxName || !plain(g.ID):
		return bad("id is empty, over %d bytes or not printable", maxName)
	case g.SessionID != "" && !canonicalUUID(g.SessionID):
		return bad("session id %q is not a lower-case UUID", g.SessionID)
	case (g.SessionID != "") != (g.Epoch > 0):
		return bad("session and epoch do not come together")
	case len(g.Scope) == 0:
		return bad("no scope")
	case g.IssuedAt.IsZero() || !g.ExpiresAt.After(g.IssuedAt):
		return bad("issued %v, expires %v", g.IssuedAt, g.ExpiresAt)
	}
	if err := g.Target.Check(); err != nil {
		return bad("%v", err)
	}
	if err := g.Principal.Check(); err != nil {
		return bad("%v", err)
	}
	return nil
}

// Check refuses targets without database or table and names that no system has.
// Whether a name is a legal identifier is for the driver to say.
func (t Target) Check() error {
	if t.Database == "" || t.Table == "" {
		return fmt.Errorf("%w: target %q needs a database and a table", ErrInvalid, t)
	}
	for _, name := range []string{t.Database, t.Table, t.Partition} {
		if len(name) > maxName || !plain(name) {
			return fmt.Errorf("%w: name %.64q is over %d bytes or holds control characters", ErrInvalid, name, maxName)
		}
	}
	return nil
}

// Check refuses principals without issuer or subject.
func (p Principal) Check() error {
	for _, name := range []string{p.Issuer, p.Subject} {
		if name == "" || len(name) > maxName || !plain(name) {
			return fmt.Errorf("%w: principal %.64q of issuer %.64q: both are 1–%d bytes without control characters",
				ErrInvalid, p.Subject, p.Issuer, maxName)
		}
	}
	return nil
}

func checkSubmissionID(id string) error {
	ok := id != "" && len(id) <= MaxSubmissionID
	for _, c := range []byte(id) {
		ok = ok && ' ' <= c && c <= '~'
	}
	if !ok {
		return fmt.Errorf("submission id %.64q is not 1–%d bytes of printable ASCII", id, MaxSubmissionID)
	}
	return nil
}

// checkManifest checks the form of a reference and that it names the planned
// object; the content is for validation. The error wraps ErrInvalidManifest.
func checkManifest(m ManifestRef, p Plan) error {
	switch {
	case m.Length <= 0:
		return fmt.Errorf("%w: length %d is not positive", ErrInvalidManifest, m.Length)
	case !canonicalSHA256(m.SHA256):
		return fmt.Errorf("%w: sha256 %.80q is not 64 lower-case hex digits", ErrInvalidManifest, m.SHA256)
	case m.Path != p.ManifestPath:
		return fmt.Errorf("%w: path %.200q is not the planned %q", ErrInvalidManifest, m.Path, p.ManifestPath)
	}
	return nil
}

func checkMessage(what, s string) error {
	if len(s) > MaxMessage || !utf8.ValidString(s) {
		return fmt.Errorf("%s of %d bytes is over %d or not UTF-8", what, len(s), MaxMessage)
	}
	return nil
}

// cutMessage makes s valid UTF-8 of at most MaxMessage bytes without splitting a
// character.
func cutMessage(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxMessage {
		return s
	}
	end := MaxMessage
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// plain reports whether s is UTF-8 without control characters.
func plain(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

func canonicalSHA256(s string) bool { return len(s) == 64 && isLowerHex(s) }

func canonicalUUID(s string) bool {
	return len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' &&
		isLowerHex(s[:8]) && isLowerHex(s[9:13]) && isLowerHex(s[14:18]) && isLowerHex(s[19:23]) && isLowerHex(s[24:])
}

func isLowerHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}
