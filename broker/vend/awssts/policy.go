package awssts

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// Actions, as IAM spells them.
const (
	actionAbort    = "s3:AbortMultipartUpload"
	actionGet      = "s3:GetObject"
	actionParts    = "s3:ListMultipartUploadParts"
	actionPut      = "s3:PutObject"
	actionAllS3    = "s3:*"
	actionDecrypt  = "kms:Decrypt"
	actionDataKey  = "kms:GenerateDataKey"
	policyVersion  = "2012-10-17" // the first that knows ${*}
	effectAllow    = "Allow"
	effectDeny     = "Deny"
	viaServiceName = "kms:ViaService"
)

var (
	writeActions = []string{actionPut, actionGet, actionAbort, actionParts}
	readActions  = []string{actionGet}
	// A multipart upload decrypts its parts when it completes.
	kmsWriteActions = []string{actionDataKey, actionDecrypt}
	kmsReadActions  = []string{actionDecrypt}
)

// glob is a resource pattern before escaping: characters, anyOne and, at the end
// only, anyTail.
type glob []rune

// The wildcards of a glob, outside the range of characters.
const (
	anyOne  rune = -1 // ? in IAM: one character, the slash included
	anyTail rune = -2 // * in IAM: any characters, none and slashes included
)

// append appends g as IAM writes it, inside a JSON string.
func (g glob) append(b []byte) []byte {
	for _, r := range g {
		switch r {
		case anyOne:
			b = append(b, '?')
		case anyTail:
			b = append(b, '*')
		case '*', '?', '$':
			b = append(b, '$', '{', byte(r), '}')
		default:
			b = appendJSONRune(b, r)
		}
	}
	return b
}

const hexDigits = "0123456789abcdef"

// appendJSONRune appends one character of a JSON string in ASCII.
func appendJSONRune(b []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(b, '\\', byte(r))
	case r >= 0x20 && r < 0x7f:
		return append(b, byte(r))
	case r > 0xffff:
		hi, lo := utf16.EncodeRune(r)
		return appendJSONRune(appendJSONRune(b, hi), lo)
	}
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// statement is one statement of a policy. Exactly one of resources and
// notResources is set.
type statement struct {
	effect       string
	actions      []string
	resources    []glob
	notResources []glob
	viaService   string // kms:ViaService must equal it; empty = no condition
}

// document is an IAM policy.
type document []statement

// denyAll is the policy of an empty scope.
func denyAll() document {
	return document{{effect: effectDeny, actions: []string{"*"}, resources: []glob{{anyTail}}}}
}

// encode renders the document without spaces, in ASCII. A document without
// statements is denyAll: STS takes an empty policy for none at all.
func (d document) encode() string {
	if len(d) == 0 {
		d = denyAll()
	}
	b := append(make([]byte, 0, 2048), `{"Version":"`+policyVersion+`","Statement":[`...)
	for i, s := range d {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"Effect":"`+s.effect+`","Action":["`...)
		b = append(b, strings.Join(s.actions, `","`)...) // constants of this file
		b = append(b, '"', ']')
		b = appendGlobs(b, "Resource", s.resources)
		b = appendGlobs(b, "NotResource", s.notResources)
		if s.viaService != "" {
			b = append(b, `,"Condition":{"StringEquals":{"`+viaServiceName+`":"`...)
			b = glob([]rune(s.viaService)).append(b)
			b = append(b, '"', '}', '}')
		}
		b = append(b, '}')
	}
	return string(append(b, ']', '}'))
}

func appendGlobs(b []byte, name string, globs []glob) []byte {
	for i, g := range globs {
		if i == 0 {
			b = append(b, `,"`+name+`":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = g.append(b)
		b = append(b, '"')
	}
	if len(globs) > 0 {
		b = append(b, ']')
	}
	return b
}

// writer turns locations into policies.
type writer struct {
	partition string
	kms       KMS
	guards    bool // the provider knows NotResource
}

// head is the ARN of a bucket's object up to and with the slash before its key.
func (w writer) head(bucket string) glob {
	return glob([]rune("arn:" + w.partition + ":s3:::" + bucket + "/"))
}

// literal is the pattern that matches a location and nothing else.
func (w writer) literal(l vend.Location) glob {
	g := append(w.head(l.Bucket), []rune(l.Prefix.String())...)
	if !l.Object {
		g = append(g, '/', anyTail)
	}
	return g
}

// plain is the policy that lists every location. The locations are normalised.
func (w writer) plain(locs []vend.Location) document {
	var reads, writes []glob
	for _, l := range locs {
		if l.Access == vend.Write {
			writes = append(writes, w.literal(l))
		} else {
			reads = append(reads, w.literal(l))
		}
	}
	return w.document(reads, writes, nil)
}

func (w writer) document(reads, writes, guard []glob) document {
	var d document
	if len(writes) > 0 {
		d = append(d, statement{effect: effectAllow, actions: writeActions, resources: writes})
	}
	if len(reads) > 0 {
		d = append(d, statement{effect: effectAllow, actions: readActions, resources: reads})
	}
	if len(guard) > 0 {
		d = append(d, statement{effect: effectDeny, actions: []string{actionAllS3}, notResources: guard})
	}
	if len(d) > 0 && w.kms.KeyARN != "" {
		actions := kmsReadActions
		if len(writes) > 0 {
			actions = kmsWriteActions
		}
		d = append(d, statement{
			effect: effectAllow, actions: actions,
			resources: []glob{glob([]rune(w.kms.KeyARN))}, viaService: w.kms.ViaService,
		})
	}
	return d
}

// normalise checks locations, drops those that another one includes, and orders the
// rest so that buckets of one table follow each other by number. Equal scopes have
// equal results.
func normalise(locs []vend.Location) ([]vend.Location, error) {
	type name struct{ bucket, prefix string }
	trees, objects := map[name]vend.Access{}, map[name]vend.Access{}
	for _, l := range locs {
		if err := checkLocation(l); err != nil {
			return nil, err
		}
		m, n := trees, name{l.Bucket, l.Prefix.String()}
		if l.Object {
			m = objects
		}
		m[n] = max(m[n], l.Access)
	}
	included := func(n name, a vend.Access) bool {
		for i := strings.LastIndexByte(n.prefix, '/'); i > 0; i = strings.LastIndexByte(n.prefix[:i], '/') {
			if trees[name{n.bucket, n.prefix[:i]}] >= a {
				return true
			}
		}
		return false
	}
	var out []vend.Location
	seen := map[vend.Location]bool{}
	for _, l := range locs {
		n := name{l.Bucket, l.Prefix.String()}
		m := trees
		if l.Object {
			m = objects
		}
		if l.Access = m[n]; seen[l] || included(n, l.Access) {
			continue
		}
		seen[l] = true
		out = append(out, l)
	}
	slices.SortFunc(out, compareLocations)
	return out, nil
}

func checkLocation(l vend.Location) error {
	switch {
	case l.Access != vend.Read && l.Access != vend.Write:
		return fmt.Errorf("%w: location %v", vend.ErrInvalid, l)
	case l.Prefix.String() == "":
		return fmt.Errorf("%w: a location without a prefix would open the whole bucket %.100q", vend.ErrInvalid, l.Bucket)
	case !validBucket(l.Bucket):
		return fmt.Errorf("%w: bucket name %.100q, want 3 to 255 of A-Z a-z 0-9 . _ -", vend.ErrInvalid, l.Bucket)
	}
	return nil
}

func validBucket(s string) bool {
	return len(s) >= 3 && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	})
}
