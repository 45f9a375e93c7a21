package pebblestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble"

	"github.com/fluss-sluice/sluice/session"
)

// PutGrant implements session.Store.
func (s *Store) PutGrant(ctx context.Context, g session.Grant) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := session.CheckGrant(g); err != nil {
		return err
	}
	k := grantKey(g.ID)
	defer s.lock(k)()
	if v, err := s.get(k); err != nil || v != nil {
		return errors.Join(err, exists(v != nil, "grant %q", g.ID))
	}
	b := s.db.NewBatch()
	if err := putGrant(b, g); err != nil {
		return err
	}
	set(b, expiryKey(g.ExpiresAt, g.ID), []byte(g.SessionID))
	if g.SessionID != "" {
		set(b, holdsKey(g.SessionID, g.ID), expiryBytes(g.ExpiresAt))
	}
	return s.commit(b)
}

func putGrant(b *pebble.Batch, g session.Grant) error {
	k := grantKey(g.ID)
	v, err := encodeRecord(k, g)
	if err != nil {
		return err
	}
	set(b, k, v)
	return nil
}

// Grant implements session.Store.
func (s *Store) Grant(ctx context.Context, id string) (session.Grant, error) {
	if err := s.enter(ctx); err != nil {
		return session.Grant{}, err
	}
	defer s.leave()
	return s.lockedGrant(id)
}

func (s *Store) lockedGrant(id string) (session.Grant, error) {
	defer s.rlock(grantKey(id))()
	return s.grant(id)
}

func (s *Store) grant(id string) (session.Grant, error) {
	k := grantKey(id)
	v, err := s.get(k)
	if err != nil {
		return session.Grant{}, err
	}
	if v == nil {
		return session.Grant{}, fmt.Errorf("%w: %.64q", session.ErrGrantNotFound, id)
	}
	return decodeGrant(k, v)
}

// RevokeGrant implements session.Store.
func (s *Store) RevokeGrant(ctx context.Context, id string, at time.Time) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if at.IsZero() {
		return fmt.Errorf("%w: revocation of grant %q without a time", session.ErrInvalid, id)
	}
	s.grants.RLock()
	defer s.grants.RUnlock()
	defer s.lock(grantKey(id))()
	g, err := s.grant(id)
	if err != nil || g.Revoked != nil {
		return err
	}
	at = at.Round(0).UTC()
	g.Revoked = &at
	b := s.db.NewBatch()
	if err := putGrant(b, g); err != nil {
		return err
	}
	return s.commit(b)
}

// Grants implements session.Store. Damaged records are left out and reported
// together with the rest.
func (s *Store) Grants(ctx context.Context, sessionID string) ([]session.Grant, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	var out []session.Grant
	var damaged []error
	err := s.scanHolds(sessionID, func(id string, _ []byte) error {
		g, err := s.lockedGrant(id)
		switch {
		case errors.Is(err, session.ErrGrantNotFound): // deleted meanwhile
		case err != nil:
			damaged = append(damaged, err)
		default:
			out = append(out, g)
		}
		return ctx.Err()
	})
	return out, errors.Join(append(damaged, err)...)
}

// scanHolds calls f with the id and expiry bytes of each grant of a session.
func (s *Store) scanHolds(sessionID string, f func(id string, expiry []byte) error) error {
	prefix := key(keyHolds, sessionID)
	return s.scanPrefix(prefix, func(k, v []byte) (bool, error) {
		id, _, ok := cutString(k[len(prefix):])
		if !ok || len(v) != 8 {
			return false, corrupt(bytes.Clone(k), "malformed index of grants")
		}
		return true, f(id, bytes.Clone(v))
	})
}

// deleteGrants adds the deletion of a session's grants to a batch.
func (s *Store) deleteGrants(b *pebble.Batch, sessionID string) error {
	return s.scanHolds(sessionID, func(id string, expiry []byte) error {
		del(b, grantKey(id))
		del(b, holdsKey(sessionID, id))
		del(b, appendString(append([]byte{keyExpiry}, expiry...), id))
		return nil
	})
}

// pruneBatch bounds how many grants one change deletes.
const pruneBatch = 1000

// PruneGrants implements session.Store.
func (s *Store) PruneGrants(ctx context.Context, before time.Time) (int, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	for total := 0; ; {
		n, err := s.pruneSome(ctx, before)
		if total += n; err != nil || n < pruneBatch {
			return total, err
		}
	}
}

func (s *Store) pruneSome(ctx context.Context, before time.Time) (int, error) {
	s.grants.Lock()
	defer s.grants.Unlock()
	b, n := s.db.NewBatch(), 0
	upper := append([]byte{keyExpiry}, expiryBytes(before)...)
	err := s.scan([]byte{keyExpiry}, upper, func(k, sessionID []byte) (bool, error) {
		if len(k) < 9 {
			return false, corrupt(bytes.Clone(k), "malformed key")
		}
		id, _, ok := cutString(k[9:])
		if !ok {
			return false, corrupt(bytes.Clone(k), "malformed key")
		}
		del(b, k)
		del(b, grantKey(id))
		if len(sessionID) > 0 {
			del(b, holdsKey(string(sessionID), id))
		}
		n++
		return n < pruneBatch, ctx.Err()
	})
	if err != nil || n == 0 {
		return 0, errors.Join(err, b.Close())
	}
	if err := s.commit(b); err != nil {
		return 0, err
	}
	return n, nil
}
