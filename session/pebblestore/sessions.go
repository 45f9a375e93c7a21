package pebblestore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble"

	"github.com/fluss-sluice/sluice/session"
)

// Create implements session.Store.
func (s *Store) Create(ctx context.Context, n session.Session, maxActive int) (session.Session, error) {
	if err := s.enter(ctx); err != nil {
		return session.Session{}, err
	}
	defer s.leave()
	if err := checkNew(n); err != nil {
		return session.Session{}, err
	}
	// The lock of the target covers its submission ids and its epoch too.
	defer s.lock(sessionKey(n.ID), activeKey(n.Target))()
	if err := s.checkFree(n); err != nil {
		return session.Session{}, err
	}
	if err := s.reserve(maxActive); err != nil {
		return session.Session{}, err
	}
	out, err := s.create(n)
	if err != nil {
		s.release()
	}
	return out, err
}

func checkNew(n session.Session) error {
	if err := session.Check(n); err != nil {
		return err
	}
	if n.Version != 0 || n.Terminal() {
		return fmt.Errorf("%w: session %s is no new one: version %d, %v", session.ErrInvalid, n.ID, n.Version, n.State)
	}
	return nil
}

// checkFree refuses what Create must not overwrite. The submission id comes first:
// a repeat of the same Begin is no conflict with a foreign session.
func (s *Store) checkFree(n session.Session) error {
	for _, k := range [][]byte{submissionKey(n.Creator, n.Target, n.SubmissionID), sessionKey(n.ID)} {
		if v, err := s.get(k); err != nil || v != nil {
			return errors.Join(err, exists(v != nil, "session %s or its submission id", n.ID))
		}
	}
	if v, err := s.get(activeKey(n.Target)); err != nil || v != nil {
		if err == nil {
			err = fmt.Errorf("%w: %v", session.ErrTargetOwned, n.Target)
		}
		return err
	}
	last, err := s.lastEpoch(n.Target)
	if err == nil && n.Epoch <= last {
		err = fmt.Errorf("%w: %v is at epoch %d, the new session has %d", session.ErrStaleEpoch, n.Target, last, n.Epoch)
	}
	return err
}

func exists(yes bool, format string, args ...any) error {
	if !yes {
		return nil
	}
	return fmt.Errorf("%w: %s", session.ErrExists, fmt.Sprintf(format, args...))
}

func (s *Store) reserve(maxActive int) error {
	s.activeMu.Lock()
	defer s.activeMu.Unlock()
	if maxActive > 0 && s.active >= maxActive {
		return fmt.Errorf("%w: %d of %d", session.ErrLimit, s.active, maxActive)
	}
	s.active++
	return nil
}

func (s *Store) release() {
	s.activeMu.Lock()
	defer s.activeMu.Unlock()
	s.active--
}

func (s *Store) create(n session.Session) (session.Session, error) {
	n.Version = 1
	id := []byte(n.ID)
	b := s.db.NewBatch()
	out, err := putSession(b, n)
	if err != nil {
		return session.Session{}, err
	}
	set(b, activeKey(n.Target), id)
	set(b, submissionKey(n.Creator, n.Target, n.SubmissionID), id)
	set(b, targetKey(n.Target, n.ID), nil)
	set(b, epochKey(n.Target), binary.BigEndian.AppendUint64(nil, uint64(n.Epoch)))
	return out, s.commit(b)
}

// putSession adds a record to a batch and returns what reading it will give: the
// same as stored, sharing nothing with the caller.
func putSession(b *pebble.Batch, n session.Session) (session.Session, error) {
	k := sessionKey(n.ID)
	v, err := encodeRecord(k, n)
	if err != nil {
		return session.Session{}, err
	}
	out, err := decodeSession(k, v)
	if err != nil {
		return session.Session{}, fmt.Errorf("session %s does not survive storage: %w", n.ID, err)
	}
	set(b, k, v)
	return out, nil
}

// Update implements session.Store.
func (s *Store) Update(ctx context.Context, n session.Session) (session.Session, error) {
	if err := s.enter(ctx); err != nil {
		return session.Session{}, err
	}
	defer s.leave()
	if err := session.Check(n); err != nil {
		return session.Session{}, err
	}
	defer s.lock(sessionKey(n.ID), activeKey(n.Target))()
	old, err := s.session(n.ID)
	if err != nil {
		return session.Session{}, err
	}
	if err := checkUpdate(old, n); err != nil {
		return session.Session{}, err
	}
	n.Version++
	b := s.db.NewBatch()
	out, err := putSession(b, n)
	if err != nil {
		return session.Session{}, err
	}
	ends := n.Terminal() && !old.Terminal()
	if ends {
		del(b, activeKey(n.Target))
	}
	if err := s.commit(b); err != nil {
		return session.Session{}, err
	}
	if ends {
		s.release()
	}
	return out, nil
}

func checkUpdate(old, n session.Session) error {
	reserved := func(s session.Session) session.Reservation {
		return session.Reservation{ID: s.ID, SubmissionID: s.SubmissionID, Target: s.Target, Epoch: s.Epoch, Creator: s.Creator, HandOver: s.HandOver, Options: s.Options}
	}
	switch {
	case old.Version != n.Version:
		return fmt.Errorf("session %s: %w: version %d is stored, not %d", n.ID, session.ErrConflict, old.Version, n.Version)
	case reserved(old) != reserved(n):
		return fmt.Errorf("%w: session %s: id, submission id, target, epoch, creator, hand-over and options cannot change", session.ErrInvalid, n.ID)
	case old.Terminal() && n.State != old.State:
		return fmt.Errorf("session %s: %w: %v is final", n.ID, session.ErrWrongState, old.State)
	}
	return nil
}

// Get implements session.Store.
func (s *Store) Get(ctx context.Context, id string) (session.Session, error) {
	if err := s.enter(ctx); err != nil {
		return session.Session{}, err
	}
	defer s.leave()
	return s.lockedSession(id)
}

// lockedSession reads a session when no change of it is under way.
func (s *Store) lockedSession(id string) (session.Session, error) {
	defer s.rlock(sessionKey(id))()
	return s.session(id)
}

func (s *Store) session(id string) (session.Session, error) {
	k := sessionKey(id)
	v, err := s.get(k)
	if err != nil {
		return session.Session{}, err
	}
	if v == nil {
		return session.Session{}, fmt.Errorf("%w: %.64q", session.ErrNotFound, id)
	}
	return decodeSession(k, v)
}

// Active implements session.Store.
func (s *Store) Active(ctx context.Context, t session.Target) (session.Session, error) {
	if err := s.enter(ctx); err != nil {
		return session.Session{}, err
	}
	defer s.leave()
	return s.indexed(t, activeKey(t))
}

// BySubmission implements session.Store.
func (s *Store) BySubmission(ctx context.Context, p session.Principal, t session.Target, submissionID string) (session.Session, error) {
	if err := s.enter(ctx); err != nil {
		return session.Session{}, err
	}
	defer s.leave()
	return s.indexed(t, submissionKey(p, t, submissionID))
}

// indexed reads the session of t that an index names. Every change of a session
// holds its target's lock, so index and record agree under it.
func (s *Store) indexed(t session.Target, index []byte) (session.Session, error) {
	defer s.rlock(activeKey(t))()
	id, err := s.get(index)
	if err != nil {
		return session.Session{}, err
	}
	if id == nil {
		return session.Session{}, fmt.Errorf("%w for %v", session.ErrNotFound, t)
	}
	out, err := s.session(string(id))
	if errors.Is(err, session.ErrNotFound) {
		return session.Session{}, corrupt(index, "names session %q, which is missing", id)
	}
	if err == nil && (out.Target != t || index[0] == keyActive && out.Terminal()) {
		return session.Session{}, corrupt(index, "names session %s of %v, which is %v", id, out.Target, out.State)
	}
	return out, err
}

// LastEpoch implements session.Store.
func (s *Store) LastEpoch(ctx context.Context, t session.Target) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	defer s.rlock(activeKey(t))()
	return s.lastEpoch(t)
}

func (s *Store) lastEpoch(t session.Target) (int64, error) {
	k := epochKey(t)
	v, err := s.get(k)
	if err != nil {
		return 0, err
	}
	return epochOf(k, v)
}

// defaultPage is how many sessions List returns when the filter sets no limit.
const defaultPage = 100

// List implements session.Store. Damaged records are left out and reported
// together with the rest.
func (s *Store) List(ctx context.Context, f session.Filter) ([]session.Session, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	limit := f.Limit
	switch {
	case limit < 0:
		return nil, fmt.Errorf("%w: limit %d", session.ErrInvalid, limit)
	case limit == 0:
		limit = defaultPage
	}
	prefix := []byte{keySession}
	if f.Target != nil {
		prefix = bytes.TrimSuffix(targetKey(*f.Target, ""), []byte{0, 1})
	}
	lower := prefix
	if f.After != "" {
		lower = prefixEnd(appendString(bytes.Clone(prefix), f.After))
	}
	var out []session.Session
	var damaged []error
	err := s.scan(lower, prefixEnd(prefix), func(k, _ []byte) (bool, error) {
		id, _, ok := cutString(k[len(prefix):])
		if !ok {
			damaged = append(damaged, corrupt(bytes.Clone(k), "malformed key"))
			return true, nil
		}
		one, err := s.lockedSession(id)
		switch {
		case errors.Is(err, session.ErrNotFound): // deleted meanwhile
		case err != nil:
			damaged = append(damaged, err)
		case len(f.States) == 0 || slices.Contains(f.States, one.State):
			out = append(out, one)
		}
		return len(out) < limit, ctx.Err()
	})
	return out, errors.Join(append(damaged, err)...)
}

// Unfinished implements session.Store. Damaged records are left out and reported
// together with the rest.
func (s *Store) Unfinished(ctx context.Context) ([]session.Session, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	var out []session.Session
	var damaged []error
	err := s.scanPrefix([]byte{keyActive}, func(k, id []byte) (bool, error) {
		k, id = bytes.Clone(k), bytes.Clone(id)
		one, err := s.lockedSession(string(id))
		switch {
		case err != nil && !errors.Is(err, session.ErrNotFound):
			damaged = append(damaged, err)
		case err == nil && !one.Terminal() && bytes.Equal(activeKey(one.Target), k):
			out = append(out, one)
		default:
			damaged = append(damaged, s.recheck(k, id))
		}
		return true, ctx.Err()
	})
	slices.SortFunc(out, func(a, b session.Session) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) })
	return out, errors.Join(append(damaged, err)...)
}

// recheck tells an entry of the index of unfinished sessions that is wrong from
// one whose session has ended since it was read.
func (s *Store) recheck(k, id []byte) error {
	now, err := s.get(k)
	if err == nil && bytes.Equal(now, id) {
		return corrupt(k, "names session %q, which is missing, has ended or is of another target", id)
	}
	return err
}

// Delete implements session.Store.
func (s *Store) Delete(ctx context.Context, id string, version uint64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	old, err := s.lockedSession(id) // for its target, which never changes
	if err != nil {
		return err
	}
	s.grants.Lock() // before the record's locks, as everywhere
	defer s.grants.Unlock()
	defer s.lock(sessionKey(id), activeKey(old.Target))()
	if old, err = s.session(id); err != nil {
		return err
	}
	switch {
	case old.Version != version:
		return fmt.Errorf("session %s: %w: version %d is stored, not %d", id, session.ErrConflict, old.Version, version)
	case !old.Terminal():
		return fmt.Errorf("session %s: %w: it is %v", id, session.ErrWrongState, old.State)
	}
	b := s.db.NewBatch()
	del(b, sessionKey(id))
	del(b, targetKey(old.Target, id))
	del(b, submissionKey(old.Creator, old.Target, old.SubmissionID))
	if err := s.deleteGrants(b, id); err != nil {
		return err
	}
	return s.commit(b)
}
