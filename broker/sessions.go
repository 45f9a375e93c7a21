package broker

import (
	"context"

	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
)

// pageSize is the default page of List.
const pageSize = 100

// Get returns a session the caller may read.
func (b *Broker) Get(ctx context.Context, c Caller, id string) (session.Session, error) {
	leave, err := b.enter()
	if err != nil {
		return session.Session{}, err
	}
	defer leave()
	return b.onSession(ctx, c, id, ask{action: policy.ActionRead, request: policy.Request{Ops: []string{opSession}}})
}

// Heartbeat shows that a builder is alive and tells it whether its epoch still
// counts. It fails with session.ErrEnded once the session has ended.
func (b *Broker) Heartbeat(ctx context.Context, c Caller, id string, epoch int64) (session.Session, error) {
	leave, err := b.enter()
	if err != nil {
		return session.Session{}, err
	}
	defer leave()
	s, err := b.onSession(ctx, c, id, ask{
		action: policy.ActionRead, request: policy.Request{Ops: []string{opHeartbeat}, Epoch: epoch},
	})
	if err != nil {
		return session.Session{}, err
	}
	if err := s.CheckEpoch(epoch); err != nil {
		return session.Session{}, err
	}
	unlock, err := b.locks.lock(ctx, id)
	if err != nil {
		return session.Session{}, err
	}
	defer unlock()
	if s, err = b.c.Store.Get(ctx, id); err != nil {
		return session.Session{}, hidden(id, err)
	}
	return b.update(ctx, s, session.EventHeartbeat{At: b.c.Now()})
}

// List returns a page of the sessions that the caller may read, and the cursor for
// Filter.After of the next page, empty at the end. The cursor is the id of the last
// session shown: one of a session left out would tell of it.
func (b *Broker) List(ctx context.Context, c Caller, f session.Filter) ([]session.Session, string, error) {
	leave, err := b.enter()
	if err != nil {
		return nil, "", err
	}
	defer leave()
	if err := c.identityOnly("list"); err != nil {
		return nil, "", err
	}
	limit := f.Limit
	if limit <= 0 || limit > pageSize {
		limit = pageSize
	}
	f.Limit = pageSize
	readable := []session.Session{}
	for {
		page, err := b.c.Store.List(ctx, f)
		if err != nil {
			return nil, "", err
		}
		for _, s := range page {
			f.After = s.ID
			switch ok, err := b.listed(ctx, c, s); {
			case err != nil:
				return nil, "", err
			case ok:
				readable = append(readable, s)
			}
			if len(readable) == limit {
				return readable, s.ID, nil
			}
		}
		if len(page) < f.Limit {
			return readable, "", nil
		}
	}
}

// listed reports whether a list shows a session to the caller.
func (b *Broker) listed(ctx context.Context, c Caller, s session.Session) (bool, error) {
	_, err := b.decide(ctx, c, ask{
		action: policy.ActionRead, session: &s, target: s.Target, list: true,
		request: policy.Request{Ops: []string{opSession}},
	})
	if isDenied(err) {
		return false, nil
	}
	return err == nil, err
}
