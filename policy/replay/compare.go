package replay

import (
	"context"
	"slices"

	"github.com/fluss-sluice/sluice/policy"
)

// Kind is how an outcome changed.
type Kind string

// The kinds, the gravest first. A decision that allows before and after may have
// several of the last six.
const (
	AllowToDeny   Kind = "allow_to_deny"
	AllowToError  Kind = "allow_to_error"
	DenyToAllow   Kind = "deny_to_allow"
	ErrorToAllow  Kind = "error_to_allow"
	DenyToError   Kind = "deny_to_error"
	ErrorToDeny   Kind = "error_to_deny"
	TTLShorter    Kind = "ttl_shorter"
	TTLLonger     Kind = "ttl_longer"
	OpsFewer      Kind = "ops_fewer" // some operation is no longer allowed
	OpsMore       Kind = "ops_more"
	BucketsFewer  Kind = "buckets_fewer" // some bucket is no longer allowed
	BucketsMore   Kind = "buckets_more"
	ReasonChanged Kind = "reasons" // denied before and after, with other reason codes
)

// Kinds are all kinds in the order of reports.
var Kinds = []Kind{AllowToDeny, AllowToError, DenyToAllow, ErrorToAllow, DenyToError, ErrorToDeny,
	TTLShorter, TTLLonger, OpsFewer, OpsMore, BucketsFewer, BucketsMore, ReasonChanged}

func (k Kind) lost() bool   { return k == AllowToDeny || k == AllowToError }
func (k Kind) gained() bool { return k == DenyToAllow || k == ErrorToAllow }

// outcome is what was decided, or that nothing could be.
type outcome struct {
	d   policy.Decision
	err string // not empty: error
}

// recorded is the outcome in the log. A record with an error and an allow is an
// error.
func recorded(r *policy.Record) outcome { return outcome{r.Decision, r.Error} }

func ask(ctx context.Context, by policy.Decider, in *policy.Input) outcome {
	d, err := by.Decide(ctx, *in)
	if err != nil {
		return outcome{d, err.Error()}
	}
	return outcome{d: d}
}

// Outcomes.
const (
	outcomeAllow = "allow"
	outcomeDeny  = "deny"
	outcomeError = "error"
)

func (o *outcome) name() string {
	switch {
	case o.err != "":
		return outcomeError
	case o.d.Allow:
		return outcomeAllow
	}
	return outcomeDeny
}

// outcomeKinds is the change from one outcome to another.
var outcomeKinds = map[[2]string]Kind{
	{outcomeAllow, outcomeDeny}:  AllowToDeny,
	{outcomeAllow, outcomeError}: AllowToError,
	{outcomeDeny, outcomeAllow}:  DenyToAllow,
	{outcomeError, outcomeAllow}: ErrorToAllow,
	{outcomeDeny, outcomeError}:  DenyToError,
	{outcomeError, outcomeDeny}:  ErrorToDeny,
}

// compare lists how the outcome changed, nothing if it is the same for whoever asked.
// Constraints are compared by their effect on this request: a lifetime limit that is
// longer than what was asked for changes nothing.
func compare(in *policy.Input, before, after *outcome) []Kind {
	was, is := before.name(), after.name()
	switch {
	case was != is:
		return []Kind{outcomeKinds[[2]string{was, is}]}
	case was == outcomeDeny:
		if !sameSet(before.d.Reasons, after.d.Reasons) {
			return []Kind{ReasonChanged}
		}
		return nil
	case was == outcomeError:
		return nil
	}
	var kinds []Kind
	switch a, b := ttl(in, &before.d), ttl(in, &after.d); {
	case b < a:
		kinds = append(kinds, TTLShorter)
	case b > a:
		kinds = append(kinds, TTLLonger)
	}
	fewer, more := difference(effective(in.Request.Ops, before.d.Constraints.Ops), effective(in.Request.Ops, after.d.Constraints.Ops))
	kinds = appendIf(kinds, fewer, OpsFewer)
	kinds = appendIf(kinds, more, OpsMore)
	fewer, more = difference(effective(in.Request.Buckets, before.d.Constraints.Buckets), effective(in.Request.Buckets, after.d.Constraints.Buckets))
	kinds = appendIf(kinds, fewer, BucketsFewer)
	return appendIf(kinds, more, BucketsMore)
}

func appendIf(kinds []Kind, yes bool, k Kind) []Kind {
	if yes {
		return append(kinds, k)
	}
	return kinds
}

// unlimited stands for a lifetime that policy does not limit, in seconds.
const unlimited = int64(1) << 62

// ttl is the longest lifetime of the request in seconds, as far as policy has it.
func ttl(in *policy.Input, d *policy.Decision) int64 {
	limit := unlimited
	if d.Constraints.MaxTTL != nil {
		limit = *d.Constraints.MaxTTL
	}
	if in.Request.TTL > 0 {
		limit = min(limit, in.Request.TTL)
	}
	return limit
}

// effective is what of asked is allowed; a nil result means everything (nothing in
// particular was asked for, and nothing constrains it).
func effective[T comparable](asked, allowed []T) []T {
	if len(asked) == 0 {
		return allowed
	}
	if allowed == nil {
		return asked
	}
	kept := make([]T, 0, len(asked))
	for _, a := range asked {
		if slices.Contains(allowed, a) {
			kept = append(kept, a)
		}
	}
	return kept
}

// difference reports whether b lacks something of a, and the other way round.
func difference[T comparable](a, b []T) (fewer, more bool) {
	if a == nil || b == nil {
		return a == nil && b != nil, a != nil && b == nil
	}
	return !containsAll(b, a), !containsAll(a, b)
}

func containsAll[T comparable](all, some []T) bool {
	return !slices.ContainsFunc(some, func(s T) bool { return !slices.Contains(all, s) })
}

func sameSet[T comparable](a, b []T) bool { return containsAll(a, b) && containsAll(b, a) }

// Compare lists how the outcome of a recorded decision differs from what somebody else
// answers to the same input, nothing if it is the same for whoever asked.
func Compare(before *policy.Record, after policy.Decision, err error) []Kind {
	a, b := recorded(before), outcome{d: after}
	if err != nil {
		b.err = err.Error()
	}
	return compare(&before.Input, &a, &b)
}
