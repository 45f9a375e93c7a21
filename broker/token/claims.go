// Package token mints and verifies Sluice's own tokens.
//
// A token is a JWT (RFC 7519, profile RFC 9068) for one session, or for reading
// one target. It is signed with EdDSA (Ed25519) by default, ES256 by
// configuration:
//
//	header  {"alg":"EdDSA","kid":"<key id>","typ":"at+jwt"}
//	claims  iss, aud, sub, iat, nbf, exp, jti   registered claims
//	        sid    session id, absent on read tokens
//	        epoch  the session's epoch, absent on read tokens
//	        tgt    {"database","table","partition"?}
//	        scope  space-separated scope strings (package session/scope)
//	        pol    policy revision that allowed it
//	        did    decision id, joins the decision log and the grant
//
// Words:
//
//   - A Keyring holds the signing keys. Each key has a time from which it signs;
//     it is published (in the JWKS) before that time and stays published until the
//     last token it signed has expired.
//   - An Issuer mints and verifies with one keyring, for one issuer name and one
//     audience.
//
// Verification trusts nothing of the token before its signature: the key is found
// by kid in the own ring and nowhere else, the key says which algorithm is right,
// and the raw size is bounded before anything is decoded. A valid signature is not
// the end of it: broker.VerifyToken also asks for the grant and the session.
package token

import (
	"errors"
	"time"

	"github.com/fluss-sluice/sluice/session"
)

const (
	// Type is the JOSE typ header, the only one accepted.
	Type = "at+jwt"
	// MaxSize bounds a raw token, in bytes.
	MaxSize = 8 << 10
	// Leeway is the clock difference forgiven between brokers, for exp, nbf and iat.
	Leeway = 5 * time.Second
)

// ErrInvalid marks every token that is refused; the wrapped text says why and
// never contains the token.
var ErrInvalid = errors.New("invalid token")

// Claims are what a token says. Times have second precision on the wire.
type Claims struct {
	Issuer    string
	Audience  string
	Subject   string // the worker, as its identity issuer names it
	IssuedAt  time.Time
	NotBefore time.Time
	Expires   time.Time
	ID        string // jti, the grant's id

	SessionID      string // sid; empty on read tokens
	Epoch          int64
	Target         session.Target
	Scope          string // canonical, see package session/scope
	PolicyRevision string // pol
	DecisionID     string // did
}
