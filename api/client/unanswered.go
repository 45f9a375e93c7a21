package client

import "errors"

// Unanswered reports a failure without an answer of the broker: the connection
// failed or broke, so the outcome of the call is unknown.
func Unanswered(err error) bool {
	var te *transportError
	return errors.As(err, &te)
}
