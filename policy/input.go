package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
)

// ParseInput reads an Input document strictly: duplicate keys, trailing content and
// whatever InputSchema does not allow are errors.
func ParseInput(b []byte) (Input, error) {
	doc, err := decodeJSON(b)
	if err != nil {
		return Input{}, fmt.Errorf("policy input: %w", err)
	}
	// The schema and not encoding/json, which takes "ACTION" for "action".
	if err := validate(inputSchema(), doc); err != nil {
		return Input{}, fmt.Errorf("policy input: %w", err)
	}
	var in Input
	if err := json.Unmarshal(b, &in); err != nil {
		return Input{}, fmt.Errorf("policy input: %w", err)
	}
	return in, nil
}

// Keys of the input document, made once.
var (
	keyVersion       = ast.StringTerm("version")
	keyAction        = ast.StringTerm("action")
	keyPrincipal     = ast.StringTerm("principal")
	keySession       = ast.StringTerm("session")
	keyTarget        = ast.StringTerm("target")
	keyRequest       = ast.StringTerm("request")
	keyTime          = ast.StringTerm("time")
	keyClient        = ast.StringTerm("client")
	keyIssuer        = ast.StringTerm("issuer")
	keySubject       = ast.StringTerm("subject")
	keyGroups        = ast.StringTerm("groups")
	keyClaims        = ast.StringTerm("claims")
	keyVia           = ast.StringTerm("via")
	keyID            = ast.StringTerm("id")
	keyEpoch         = ast.StringTerm("epoch")
	keyState         = ast.StringTerm("state")
	keyCreator       = ast.StringTerm("creator")
	keyBuckets       = ast.StringTerm("buckets")
	keyBuildDeadline = ast.StringTerm("build_deadline")
	keyDatabase      = ast.StringTerm("database")
	keyTable         = ast.StringTerm("table")
	keyPartition     = ast.StringTerm("partition")
	keyScope         = ast.StringTerm("scope")
	keyOps           = ast.StringTerm("ops")
	keyTTL           = ast.StringTerm("ttl")
	keyPath          = ast.StringTerm("path")
	keyMethod        = ast.StringTerm("method")
	keyHandOver      = ast.StringTerm("hand_over")
	keyPublication   = ast.StringTerm("publication")
	keyVisibility    = ast.StringTerm("visibility")
	keyMissing       = ast.StringTerm("missing")
	keyReplaceEmpty  = ast.StringTerm("replace_empty")
	keyAddress       = ast.StringTerm("address")
	keyUserAgent     = ast.StringTerm("user_agent")
	keyRequestID     = ast.StringTerm("request_id")
	keyPolicy        = ast.StringTerm("policy")
	keyAuthor        = ast.StringTerm("author")
	keyApprovals     = ast.StringTerm("approvals")
)

type pair = [2]*ast.Term

// value converts the input to what OPA evaluates, equal to reading its JSON form
// but without making one.
func (in *Input) value() ast.Value {
	items := make([]pair, 0, 8)
	items = append(items,
		pair{keyVersion, ast.InternedTerm(in.Version)},
		pair{keyAction, stringTerm(string(in.Action))},
		pair{keyPrincipal, in.Principal.term()},
		pair{keyRequest, in.Request.term()},
		pair{keyTime, timeTerm(in.Time)},
		pair{keyClient, in.Client.term()},
	)
	if in.Session != nil {
		items = append(items, pair{keySession, in.Session.term()})
	}
	if in.Target != nil {
		items = append(items, pair{keyTarget, in.Target.term()})
	}
	return ast.NewObject(items...)
}

func (p *Principal) term() *ast.Term {
	items := make([]pair, 0, 5)
	items = append(items,
		pair{keyIssuer, stringTerm(p.Issuer)},
		pair{keySubject, stringTerm(p.Subject)},
		pair{keyVia, stringTerm(p.Via)},
	)
	if len(p.Groups) > 0 {
		items = append(items, pair{keyGroups, stringsTerm(p.Groups)})
	}
	if len(p.Claims) > 0 {
		claims := make([]pair, 0, len(p.Claims))
		for _, k := range slices.Sorted(maps.Keys(p.Claims)) {
			claims = append(claims, pair{stringTerm(k), stringTerm(p.Claims[k])})
		}
		items = append(items, pair{keyClaims, ast.ObjectTerm(claims...)})
	}
	return ast.ObjectTerm(items...)
}

func (s *Session) term() *ast.Term {
	return ast.ObjectTerm(
		pair{keyID, stringTerm(s.ID)},
		pair{keyEpoch, intTerm(s.Epoch)},
		pair{keyState, stringTerm(s.State)},
		pair{keyCreator, ast.ObjectTerm(
			pair{keyIssuer, stringTerm(s.Creator.Issuer)},
			pair{keySubject, stringTerm(s.Creator.Subject)},
		)},
		pair{keyBuckets, ast.InternedTerm(s.Buckets)},
		pair{keyBuildDeadline, timeTerm(s.BuildDeadline)},
	)
}

func (t *Target) term() *ast.Term {
	items := make([]pair, 0, 3)
	items = append(items, pair{keyDatabase, stringTerm(t.Database)}, pair{keyTable, stringTerm(t.Table)})
	items = appendString(items, keyPartition, t.Partition)
	return ast.ObjectTerm(items...)
}

func (r *Request) term() *ast.Term {
	items := make([]pair, 0, 12)
	if len(r.Scope) > 0 {
		items = append(items, pair{keyScope, stringsTerm(r.Scope)})
	}
	if len(r.Ops) > 0 {
		items = append(items, pair{keyOps, stringsTerm(r.Ops)})
	}
	if len(r.Buckets) > 0 {
		terms := make([]*ast.Term, len(r.Buckets))
		for i, b := range r.Buckets {
			terms[i] = ast.InternedTerm(b)
		}
		items = append(items, pair{keyBuckets, ast.ArrayTerm(terms...)})
	}
	if r.TTL != 0 {
		items = append(items, pair{keyTTL, intTerm(r.TTL)})
	}
	items = appendString(items, keyPath, r.Path)
	items = appendString(items, keyMethod, r.Method)
	if r.Epoch != 0 {
		items = append(items, pair{keyEpoch, intTerm(r.Epoch)})
	}
	if r.Policy != nil {
		items = append(items, pair{keyPolicy, r.Policy.term()})
	}
	items = appendString(items, keyHandOver, r.HandOver)
	items = appendString(items, keyPublication, r.Publication)
	items = appendString(items, keyVisibility, r.Visibility)
	items = appendString(items, keyMissing, r.Missing)
	if r.ReplaceEmpty {
		items = append(items, pair{keyReplaceEmpty, ast.InternedTerm(true)})
	}
	return ast.ObjectTerm(items...)
}

func (p *PolicyRevision) term() *ast.Term {
	items := make([]pair, 0, 3)
	items = appendString(items, keyID, p.ID)
	items = appendString(items, keyAuthor, p.Author)
	if len(p.Approvals) > 0 {
		items = append(items, pair{keyApprovals, stringsTerm(p.Approvals)})
	}
	return ast.ObjectTerm(items...)
}

func (c *Client) term() *ast.Term {
	items := make([]pair, 0, 3)
	items = appendString(items, keyAddress, c.Address)
	items = appendString(items, keyUserAgent, c.UserAgent)
	items = appendString(items, keyRequestID, c.RequestID)
	return ast.ObjectTerm(items...)
}

func appendString(items []pair, key *ast.Term, s string) []pair {
	if s == "" {
		return items
	}
	return append(items, pair{key, stringTerm(s)})
}

func stringTerm(s string) *ast.Term { return ast.InternedTerm(s) }

func intTerm(n int64) *ast.Term {
	if n == int64(int(n)) {
		return ast.InternedTerm(int(n))
	}
	return ast.NumberTerm(json.Number(strconv.FormatInt(n, 10)))
}

func stringsTerm(ss []string) *ast.Term {
	terms := make([]*ast.Term, len(ss))
	for i, s := range ss {
		terms[i] = stringTerm(s)
	}
	return ast.ArrayTerm(terms...)
}

// timeTerm spells a time as encoding/json does.
func timeTerm(t time.Time) *ast.Term {
	var buf [len(time.RFC3339Nano)]byte
	return ast.NewTerm(ast.String(t.AppendFormat(buf[:0], time.RFC3339Nano)))
}
