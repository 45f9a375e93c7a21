package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session/scope"
)

// SignRequest asks to sign one request that the caller will send to the object store
// itself.
type SignRequest struct {
	Operation string // of the store's API, for the audit log
	Method    string // of HTTP
	Key       string // canonical, see objstore.CheckKey
	Write     bool   // it creates an object, or works on an upload that will
	Part      bool   // it works on an upload in parts
	Size      int64  // of an object's or a part's content; negative = it carries none
	SHA256    string // of the body, lower-case hex
}

// SignGrant allows one signature.
type SignGrant struct {
	SessionID string    // "" for reading a target without one
	MaxSize   int64     // of the content in bytes; 0 = no limit of its own
	Expires   time.Time // the signature holds no longer
}

// AuthorizeSign decides whether a request to the object store is signed. The key
// must lie within what the token grants, as for AuthorizeObject. There is no Seal:
// a signature made before the freeze can still be used until it expires. What it can
// do then is bounded here and by the signer: it creates what does not exist yet,
// and a file of a bucket with nothing but the content that its name has the digest of.
func (b *Broker) AuthorizeSign(ctx context.Context, c Caller, r SignRequest) (SignGrant, error) {
	leave, err := b.enter()
	if err != nil {
		return SignGrant{}, err
	}
	defer leave()
	cl, err := b.claimOf(ctx, c, r.Key, r.Write)
	if err != nil {
		return SignGrant{}, err
	}
	if err := cl.fits(r); err != nil {
		return SignGrant{}, err
	}
	a := cl.ask(c, policy.ActionSign, r.Method, r.Key)
	a.later = r.Write
	d, err := b.decide(ctx, c, a)
	if err != nil {
		return SignGrant{}, err
	}
	g := SignGrant{MaxSize: cl.maxSize, Expires: c.Token.Expires}
	if cl.session != nil {
		g.SessionID = cl.session.ID
	}
	if r.Write && cl.session.BuildDeadline.Before(g.Expires) {
		g.Expires = cl.session.BuildDeadline
	}
	now := b.c.Now()
	g.Expires = now.Add(d.ClampTTL(0, g.Expires.Sub(now)))
	if !r.Write {
		return g, nil
	}
	e := b.event(c, a, d)
	e.Expires, e.GrantID, e.Detail = &g.Expires, c.Token.ID, r.Operation+" "+r.SHA256
	if err := b.record(ctx, e); err != nil {
		return SignGrant{}, err
	}
	// Deciding and recording take time, in which the session may have been frozen.
	if err := b.stillWritable(ctx, c.Token.ID, g.SessionID); err != nil {
		return SignGrant{}, err
	}
	return g, nil
}

// fits compares a request with what its key allows to be stored there.
func (cl claim) fits(r SignRequest) error {
	switch {
	case !r.Write:
		return nil
	case r.Part && cl.maxSize > 0:
		return fmt.Errorf("%w: %s on an object of at most %d bytes, which is put at once", ErrScope, r.Operation, cl.maxSize)
	case cl.maxSize > 0 && r.Size > cl.maxSize:
		return fmt.Errorf("%w: %d bytes, at most %d", objstore.ErrTooLarge, r.Size, cl.maxSize)
	case !r.Part && cl.content != "" && r.SHA256 != cl.content:
		return fmt.Errorf("%w: the name says %s", objstore.ErrDigest, cl.content)
	case cl.op != scope.Write && cl.op != scope.ManifestWrite:
		return fmt.Errorf("%w: %s with %s", ErrScope, r.Operation, cl.op)
	}
	return nil
}
