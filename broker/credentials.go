package broker

import (
	"context"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// CredentialRequest asks for keys of the object store under a Sluice token.
type CredentialRequest struct {
	// SessionID must be the token's; "" = the token's.
	SessionID string
	// Scope narrows the token's scope, in its own syntax; "" = all of it.
	Scope string
}

// Credentials are keys of the object store.
type Credentials struct {
	vend.Answer
	SessionID  string // "" for reading a target without one
	Scope      string // what they open, canonical
	DecisionID string
}

// Credentials vends keys for what the token's scope names: the planned upload
// directories of its buckets, its manifest, the visible files of its target. It is
// ErrUnsupported when the broker has no vendor or the session's hand-over expects no
// keys. Order: policy, audit, mint, the session's KeysAliveUntil, answer; a session
// that was frozen meanwhile gets none, and the minted ones are dropped.
func (b *Broker) Credentials(ctx context.Context, c Caller, r CredentialRequest) (Credentials, error) {
	return Credentials{}, ErrUnsupported // being built
}
