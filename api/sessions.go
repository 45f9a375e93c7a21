package api

import (
	"errors"
	"net/http"
	"time"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/session"
)

func (s *Server) begin(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	var req v1.BeginRequest
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	timeout, err := milliseconds("build_timeout_ms", req.BuildTimeoutMS)
	if err != nil {
		return err
	}
	options, err := optionsOf(req.LoadOptions)
	if err != nil {
		return err
	}
	eventOf(r.Context()).target = req.Target.String()
	got, created, err := s.broker.Begin(r.Context(), c, broker.BeginRequest{
		Target: targetOf(req.Target), SubmissionID: req.SubmissionID, BuildTimeout: timeout,
		HandOver: session.HandOver(req.HandOver), Options: options,
	})
	if errors.Is(err, session.ErrExists) {
		return &httpError{status: http.StatusConflict, code: v1.CodeForeignSubmission, cause: err,
			detail: "this submission id was used for something else"}
	}
	if err != nil {
		return err
	}
	eventOf(r.Context()).noteSession(got)
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		w.Header().Set("Location", "/v1/sessions/"+got.ID)
	}
	writeJSON(w, r, status, v1.BeginResponse{Session: wireSession(got), Context: s.wireContext(got)})
	return nil
}

// milliseconds refuses what would overflow a Duration.
func milliseconds(name string, ms int64) (time.Duration, error) {
	const most = int64(365 * 24 * time.Hour / time.Millisecond)
	if ms < 0 || ms > most {
		return 0, invalid("%s %d is not between 0 and %d", name, ms, most)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	q, err := queryOf(r, "target", "state*", "after", "limit")
	if err != nil {
		return err
	}
	f := session.Filter{After: q.Get("after")}
	if v := q.Get("target"); v != "" {
		t, err := parseTarget(v)
		if err != nil {
			return err
		}
		f.Target = &t
	}
	for _, v := range q["state"] {
		st, err := session.ParseState(v)
		if err != nil {
			return err
		}
		f.States = append(f.States, st)
	}
	if v := q.Get("limit"); v != "" {
		n, err := number("limit", v, 1)
		if err != nil {
			return err
		}
		f.Limit = int(min(n, maxPage))
	}
	found, next, err := s.broker.List(r.Context(), c, f)
	if err != nil {
		return err
	}
	list := v1.SessionList{Sessions: make([]v1.Session, 0, len(found)), Next: next}
	for _, x := range found {
		list.Sessions = append(list.Sessions, wireSession(x))
	}
	writeJSON(w, r, http.StatusOK, list)
	return nil
}

// maxPage is the most sessions a page holds; a larger wish is cut.
const maxPage = 1000

func (s *Server) getSession(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	got, err := s.find(r, c)
	if err != nil {
		return err
	}
	return s.answer(w, r, got)
}

// answer writes a session; of one that has ended it says what of its tokens is left.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, got session.Session) error {
	body := wireSession(got)
	until, err := s.broker.TokensLiveUntil(r.Context(), got)
	if err != nil {
		return err
	}
	if !until.IsZero() {
		body.TokensLiveUntil = &until
	}
	writeJSON(w, r, http.StatusOK, body)
	return nil
}

// getContext hands the build context out again: it holds no secret.
func (s *Server) getContext(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	got, err := s.find(r, c)
	if err != nil {
		return err
	}
	ctx := s.wireContext(got)
	switch {
	case ctx != nil:
		writeJSON(w, r, http.StatusOK, ctx)
		return nil
	case got.Terminal():
		return session.ErrEnded
	}
	return &httpError{status: http.StatusConflict, code: v1.CodeWrongState, detail: "the target is not frozen yet", retryAfter: retrySoon}
}

func (s *Server) find(r *http.Request, c broker.Caller) (session.Session, error) {
	id, err := param(r, "id")
	if err != nil {
		return session.Session{}, err
	}
	eventOf(r.Context()).sessionID = clip(id)
	got, err := s.broker.Get(r.Context(), c, id)
	if err == nil {
		eventOf(r.Context()).noteSession(got)
	}
	return got, err
}

func (s *Server) heartbeat(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	var req v1.HeartbeatRequest
	return s.change(w, r, &req, func(id string) (session.Session, error) {
		return s.broker.Heartbeat(r.Context(), c, id, req.Epoch)
	})
}

func (s *Server) commit(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	var req v1.CommitRequest
	return s.change(w, r, &req, func(id string) (session.Session, error) {
		var m *session.ManifestRef
		if req.Manifest != nil {
			m = &session.ManifestRef{Path: req.Manifest.Path, Length: req.Manifest.Length, SHA256: req.Manifest.SHA256}
		}
		return s.broker.Commit(r.Context(), c, id, req.Epoch, m)
	})
}

func (s *Server) abort(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	var req v1.AbortRequest
	return s.change(w, r, &req, func(id string) (session.Session, error) {
		if req.GiveUp {
			return s.broker.GiveUp(r.Context(), c, id, req.Epoch)
		}
		return s.broker.Abort(r.Context(), c, id, req.Epoch)
	})
}

// change is the shape the write verbs share: a body with an epoch, a use case on
// one session, the session as answer.
func (s *Server) change(w http.ResponseWriter, r *http.Request, req any, do func(id string) (session.Session, error)) error {
	id, err := param(r, "id")
	if err != nil {
		return err
	}
	eventOf(r.Context()).sessionID = clip(id)
	if err := decodeJSON(r, req); err != nil {
		return err
	}
	got, err := do(id)
	if err != nil {
		return err
	}
	eventOf(r.Context()).noteSession(got)
	return s.answer(w, r, got)
}
