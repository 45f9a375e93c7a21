package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Fields that can be redacted. Each names a field of policy.Input; where an event
// repeats it, it is dropped there too.
const (
	redactAddress   = "client.address"
	redactAgent     = "client.user_agent"
	redactRequestID = "client.request_id"
	redactGroups    = "principal.groups"
	redactClaims    = "principal.claims"
	redactPath      = "request.path"
)

var redactable = []string{redactAddress, redactAgent, redactRequestID, redactGroups, redactClaims, redactPath}

// CheckRedaction refuses names of fields that cannot be redacted. They are those of
// policy.Input that say more of a person than who it is: client.address,
// client.user_agent, client.request_id, principal.groups, principal.claims (all) or
// principal.claims.NAME (one), request.path.
func CheckRedaction(fields []string) error {
	_, err := newRedaction(fields)
	return err
}

// redaction is which fields are dropped.
type redaction struct {
	fields map[string]bool
	claims []string // sorted names
}

func newRedaction(fields []string) (redaction, error) {
	r := redaction{fields: map[string]bool{}}
	for _, f := range fields {
		if claim, ok := strings.CutPrefix(f, redactClaims+"."); ok && claim != "" {
			r.claims = append(r.claims, claim)
			continue
		}
		if !slices.Contains(redactable, f) {
			return redaction{}, fmt.Errorf("field %q cannot be redacted, only %s and %s.NAME can", f, strings.Join(redactable, ", "), redactClaims)
		}
		r.fields[f] = true
	}
	slices.Sort(r.claims)
	return r, nil
}

// apply drops fields of an event and names those that were there. It changes nothing
// that the event shares with others.
func (r redaction) apply(e *Event) {
	if len(r.fields) == 0 && len(r.claims) == 0 {
		return
	}
	var dropped []string
	drop := func(field string, values ...*string) {
		if !r.fields[field] {
			return
		}
		there := false
		for _, v := range values {
			there = there || *v != ""
			*v = ""
		}
		if there {
			dropped = append(dropped, field)
		}
	}
	if e.Input == nil {
		drop(redactAddress, &e.Address)
		drop(redactRequestID, &e.RequestID)
		drop(redactPath, &e.Path)
		e.Redacted = dropped
		return
	}
	in := *e.Input
	drop(redactAddress, &e.Address, &in.Client.Address)
	drop(redactAgent, &in.Client.UserAgent)
	drop(redactRequestID, &e.RequestID, &in.Client.RequestID)
	drop(redactPath, &e.Path, &in.Request.Path)
	if r.fields[redactGroups] && len(in.Principal.Groups) > 0 {
		in.Principal.Groups = nil
		dropped = append(dropped, redactGroups)
	}
	if r.fields[redactClaims] && len(in.Principal.Claims) > 0 {
		in.Principal.Claims = nil
		dropped = append(dropped, redactClaims)
	}
	for _, name := range r.claims {
		if _, ok := in.Principal.Claims[name]; ok {
			in.Principal.Claims = maps.Clone(in.Principal.Claims)
			delete(in.Principal.Claims, name)
			dropped = append(dropped, redactClaims+"."+name)
		}
	}
	e.Input, e.Redacted = &in, dropped
}

// maxText bounds free text of a caller in an event, in bytes.
const maxText = 1024

// clip cuts text at a character boundary.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
