package conformance

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// AssumeAgain returns Config.AssumeAgain for a role: a call of AssumeRole with the
// vended keys and no session policy. endpoint "" = the provider's own.
func AssumeAgain(endpoint, region, roleARN string) func(context.Context, aws.Credentials) error {
	return func(ctx context.Context, keys aws.Credentials) error {
		o := sts.Options{Region: region, Credentials: static(keys), RetryMaxAttempts: 1, Logger: logging.Nop{}}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		_, err := sts.New(o).AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &roleARN, RoleSessionName: aws.String("sluice-doctor-again")})
		return s3Error(err)
	}
}

func static(keys aws.Credentials) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return keys, nil })
}

// reachChecks prove that the role itself reaches the neighbours, so that the session
// policy is what closes them.
func reachChecks() []check {
	return []check{
		{mode: STS, name: "the role reaches what the session policy leaves out", attempts: "PUT …/10/snap-3/ with keys vended for it", must: mustWork, quick: true, run: roleReaches},
		{mode: STS, name: "keys for reading write nothing", attempts: "PUT inside with keys vended for reading", must: "is refused", quick: true, run: readersWriteNothing},
	}
}

func roleReaches(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Write, s.at("t-7/10/snap-3"))
	if err != nil {
		return failed("vend keys: %v", err)
	}
	key := s.at("t-7/10/snap-3/" + s.fresh("reach"))
	_, err = expect(ctx, k, "put", call{method: "PUT", key: key, body: "reached"})
	if _, harmErr := s.harm(ctx); err == nil { // removes it again
		err = harmErr
	}
	if err != nil {
		return failed("%v; refusals prove nothing about the session policy then: give the role more than one session's reach", err)
	}
	return passed("")
}

func readersWriteNothing(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Read, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	if _, err := expect(ctx, k, "get", call{method: "GET", key: s.in("f")}); err != nil {
		return failed("%v", err)
	}
	return refusedCall(ctx, k, call{method: "PUT", key: s.in(s.fresh("reader")), body: "attempt"})
}

// refusedCall makes an attempt that must be refused; the harm it could do is in the answer.
func refusedCall(ctx context.Context, a actor, c call) finding {
	got, err := a.do(ctx, c)
	switch {
	case err != nil:
		return failed("%v", err)
	case got.refused():
		return passed("%v", got)
	case got.unknown():
		return finding{NotSupported, got.String()}
	}
	return failed("%v", got)
}

// keyChecks are about keys themselves.
func keyChecks() []check {
	const wildcardAdvice = "keys for such names open nothing here: tables with such a name cannot be loaded in mode sts"
	out := []check{
		{mode: STS, name: "keys of one session with the token of another open nothing", attempts: "PUT with an access key and a session token that do not belong together", must: "is refused", run: mixedKeys},
		{mode: STS, name: "keys with another secret open nothing", attempts: "PUT inside, signed with a wrong secret", must: "is refused", run: wrongSecret},
		{mode: STS, name: "keys without their session token open nothing", attempts: "PUT with the token left out", must: "is refused", run: withoutToken},
		{mode: STS, name: "a session token that was changed opens nothing", attempts: fmt.Sprintf("PUT …/10/snap-3/ with %d tokens, one character of each changed", tampered), must: "each is refused", run: tamperedTokens},
		{mode: STS, name: "vended keys cannot assume the role again", attempts: "AssumeRole with vended keys and no session policy", must: "is refused", run: assumedAgain},
		{mode: STS, name: "a URL presigned by vended keys opens what they open", attempts: "GET of a presigned URL inside", must: mustWork, lax: "workers cannot hand on presigned URLs; Sluice needs none", run: presignedInside},
		{mode: STS, name: "a URL presigned by vended keys opens nothing outside", attempts: "GET and PUT of presigned URLs of …/10/snap-3/", must: "is refused", run: presignedOutside},
		{mode: STS, name: "a browser form signed by vended keys writes nothing outside", attempts: "POST of a form with a signed policy for …/10/snap-3/", must: "is refused", run: formOutside},
		{mode: STS, name: "expired keys open nothing", attempts: "PUT inside after keys that live for seconds have expired", must: "is refused", run: expiredKeys},
		{mode: STS, name: "many buckets fit into few keys", attempts: "AssumeRole with a policy that guards patterns by Deny with NotResource", must: mustWork, lax: "set plain_policies: a scope of many buckets then takes more keys", run: guardedPatterns},
	}
	for _, w := range wildcardNames {
		out = append(out,
			check{mode: STS, name: "keys for the name " + w.shown + " open no other name", attempts: "PUT under names that " + w.shown + " could match", must: "is refused", run: func(ctx context.Context, s *site) finding { return wildcard(ctx, s, w.name, false) }},
			check{mode: STS, name: "keys for the name " + w.shown + " open it", attempts: "PUT under that name", must: mustWork, lax: wildcardAdvice, run: func(ctx context.Context, s *site) finding { return wildcard(ctx, s, w.name, true) }})
	}
	return out
}

var wildcardNames = []struct{ name, shown string }{
	{"*", `"*"`}, {"f*", `"f*"`}, {"?", `"?"`}, {"${aws:username}", `"${aws:username}"`}, {"é", `"é"`},
}

// wildcard tries keys for w/{name}/1.
func wildcard(ctx context.Context, s *site, name string, inside bool) finding {
	k, err := s.worker(ctx, vend.Write, s.at("reach/"+name+"/1"))
	if err != nil {
		if inside {
			return failed("vend keys: %v", err)
		}
		return passed("no keys are vended for it")
	}
	if inside {
		if _, err := expect(ctx, k, "put", call{method: "PUT", key: s.at("reach/" + name + "/1/f"), body: "mine"}); err != nil {
			return failed("%v", err)
		}
		return passed("")
	}
	for _, other := range []string{"x/1/f", "fx/1/f", "f/1/f", "vendor/1/f", "f/x/1/f", "e/1/f", "ff/1/f"} {
		key := s.at("reach/" + other)
		got, err := k.do(ctx, call{method: "PUT", key: key, body: "attempt"})
		if err != nil {
			return failed("%v", err)
		}
		if !got.refused() {
			return failed("PUT %s: %v", s.short(key), got)
		}
	}
	return passed("")
}

func mixedKeys(ctx context.Context, s *site) finding {
	a, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	b, err := s.worker(ctx, vend.Write, s.at("t-8/1/snap-3"))
	if err != nil {
		return failed("vend keys: %v", err)
	}
	mixed := a.keys
	mixed.SessionToken = b.keys.SessionToken
	f := refusedCall(ctx, &keyed{s, mixed}, call{method: "PUT", key: s.at(s.fresh("t-8/1/snap-3/new")), body: "attempt"})
	if f.verdict == Pass {
		f = refusedCall(ctx, &keyed{s, mixed}, call{method: "PUT", key: s.in(s.fresh("mixed")), body: "attempt"})
	}
	return s.after(ctx, f)
}

// after adds the harm that an attempt has done.
func (s *site) after(ctx context.Context, f finding) finding {
	harm, err := s.harm(ctx)
	switch {
	case err != nil:
		return failed("what came of it could not be seen: %v", err)
	case harm != "":
		return failed("%s: %s", f.detail, harm)
	}
	return f
}

func wrongSecret(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	keys := k.keys
	keys.SecretAccessKey = rand.Text()
	return refusedCall(ctx, &keyed{s, keys}, call{method: "PUT", key: s.in(s.fresh("secret")), body: "attempt"})
}

func withoutToken(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	bare := k.keys
	bare.SessionToken = ""
	f := refusedCall(ctx, &keyed{s, bare}, call{method: "PUT", key: s.at(s.fresh("t-7/10/snap-3/new")), body: "attempt"})
	return s.after(ctx, f)
}

// tampered is how many changed tokens are tried. A store that encrypts tokens without
// authenticating them (Ceph 16) gave in to more than half of them.
const tampered = 32

func tamperedTokens(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	token, opened, last := k.keys.SessionToken, 0, answer{}
	if token == "" {
		return failed("the keys have no session token: they are long-lived")
	}
	for i := range tampered {
		b := []byte(token)
		at := (2*i + 1) * len(b) / (2 * tampered)
		if b[at] = 'A'; token[at] == 'A' {
			b[at] = 'B'
		}
		keys := k.keys
		keys.SessionToken = string(b)
		if last, err = (&keyed{s, keys}).do(ctx, call{method: "PUT", key: s.at(s.fresh("t-7/10/snap-3/new")), body: "attempt"}); err != nil {
			return failed("%v", err)
		}
		if !last.refused() {
			opened++
		}
	}
	if opened > 0 {
		_, _ = s.harm(ctx) // removes what was written
		return failed("%d of %d changed tokens wrote outside the session policy", opened, tampered)
	}
	return s.after(ctx, passed("%v", last))
}

func assumedAgain(ctx context.Context, s *site) finding {
	if s.c.AssumeAgain == nil {
		return skipped("the role was not named")
	}
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	err = s.c.AssumeAgain(ctx, k.keys)
	var refused *storeError
	switch {
	case err == nil:
		return failed("the whole role was got from keys for one prefix; if the role's trust policy names more than sluiced itself, narrow it")
	case errors.As(err, &refused) && refused.status >= 400 && refused.status < 500:
		return passed("%v", err)
	}
	return failed("%v", err)
}

// presigned returns a call's URL, signed in its query.
func (k *keyed) presigned(ctx context.Context, c call) (*http.Request, error) {
	c.query = "X-Amz-Expires=60"
	r, err := k.s.place.request(ctx, k.s.c.Bucket, c)
	if err != nil {
		return nil, err
	}
	signed, header, err := v4.NewSigner().PresignHTTP(ctx, k.keys, r, "UNSIGNED-PAYLOAD", "s3", k.s.c.Region, time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil {
		return nil, err
	}
	out, err := http.NewRequestWithContext(ctx, c.method, signed, strings.NewReader(c.body))
	if err != nil {
		return nil, errors.New("presigned URL does not parse") // the cause quotes it
	}
	for name, v := range header {
		out.Header[name] = v
	}
	out.Header.Set("User-Agent", r.Header.Get("User-Agent"))
	return out, nil
}

// presigner sends calls as presigned URLs.
type presigner struct{ k *keyed }

// do implements actor.
func (p presigner) do(ctx context.Context, c call) (answer, error) {
	return send(ctx, p.k.s.http, func() (*http.Request, error) { return p.k.presigned(ctx, c) })
}

func presignedInside(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	if _, err := expect(ctx, presigner{k}, "get", call{method: "GET", key: s.in("f")}); err != nil {
		return failed("%v", err)
	}
	return passed("")
}

func presignedOutside(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	f := refusedCall(ctx, presigner{k}, call{method: "GET", key: s.outside()[0]})
	if f.verdict == Pass {
		f = refusedCall(ctx, presigner{k}, call{method: "PUT", key: s.at(s.fresh("t-7/10/snap-3/new")), body: "attempt"})
	}
	return s.after(ctx, f)
}

func formOutside(ctx context.Context, s *site) finding {
	k, err := s.worker(ctx, vend.Write, s.own)
	if err != nil {
		return failed("vend keys: %v", err)
	}
	key := s.at(s.fresh("t-7/10/snap-3/form"))
	got, err := send(ctx, s.http, func() (*http.Request, error) { return k.form(ctx, key, time.Now().UTC()) })
	switch {
	case err != nil:
		return failed("%v", err)
	case got.unknown():
		return s.after(ctx, finding{NotSupported, got.String()})
	case got.refused():
		return s.after(ctx, passed("%v", got))
	}
	return s.after(ctx, failed("%v", got))
}

// form is an upload as browsers make them.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-post-example.html
func (k *keyed) form(ctx context.Context, key string, now time.Time) (*http.Request, error) {
	day := now.Format("20060102")
	scope := day + "/" + k.s.c.Region + "/s3/aws4_request"
	fields := [][2]string{
		{"key", key}, {"x-amz-algorithm", "AWS4-HMAC-SHA256"}, {"x-amz-credential", k.keys.AccessKeyID + "/" + scope},
		{"x-amz-date", now.Format("20060102T150405Z")}, {"x-amz-security-token", k.keys.SessionToken},
	}
	var conditions []string
	for _, f := range append(fields, [2]string{"bucket", k.s.c.Bucket}) {
		conditions = append(conditions, `{"`+f[0]+`":"`+f[1]+`"}`)
	}
	policy := base64.StdEncoding.EncodeToString([]byte(`{"expiration":"` + now.Add(time.Minute).Format("2006-01-02T15:04:05.000Z") + `","conditions":[` + strings.Join(conditions, ",") + `]}`))
	secret := []byte("AWS4" + k.keys.SecretAccessKey)
	for _, step := range []string{day, k.s.c.Region, "s3", "aws4_request"} {
		secret = mac(secret, step)
	}
	fields = append(fields, [2]string{"policy", policy}, [2]string{"x-amz-signature", hex.EncodeToString(mac(secret, policy))})
	var body strings.Builder
	w := multipart.NewWriter(&body)
	for _, f := range fields {
		if err := w.WriteField(f[0], f[1]); err != nil {
			return nil, err
		}
	}
	file, err := w.CreateFormFile("file", "f")
	if err == nil {
		_, err = file.Write([]byte("attempt"))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return k.s.place.request(ctx, k.s.c.Bucket, call{method: "POST", body: body.String(), header: map[string]string{"Content-Type": w.FormDataContentType()}})
}

func mac(key []byte, s string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(s))
	return h.Sum(nil)
}

// pastExpiry is how long after their end keys are tried.
const pastExpiry = 2 * time.Second

func expiredKeys(ctx context.Context, s *site) finding {
	if s.c.ShortKeys == nil {
		return skipped("this STS vends no keys that live for seconds")
	}
	keys, err := s.c.ShortKeys(ctx)
	if err != nil {
		return failed("short-lived keys: %v", err)
	}
	k := &keyed{s, keys}
	if _, err := expect(ctx, k, "put before the end", call{method: "PUT", key: s.in(s.fresh("short")), body: "mine"}); err != nil {
		return failed("%v", err)
	}
	select {
	case <-ctx.Done():
		return failed("%v", ctx.Err())
	case <-time.After(time.Until(keys.Expires) + pastExpiry):
	}
	return refusedCall(ctx, k, call{method: "PUT", key: s.in(s.fresh("short")), body: "attempt"})
}

// guardedPatterns vends for so many buckets that their names do not fit one by one.
func guardedPatterns(ctx context.Context, s *site) finding {
	if s.c.Patterns == nil {
		return skipped("not asked")
	}
	var prefixes []string
	for n := range 90 {
		prefixes = append(prefixes, s.at(fmt.Sprintf("reach/many/%d/snap-0", n)))
	}
	a, err := s.vend(ctx, s.c.Patterns, vend.Write, s.fresh("doctor"), prefixes...)
	if err != nil {
		return failed("%v", err)
	}
	for _, c := range a.Credentials {
		k := &keyed{s, keysOf(c)}
		if _, err := expect(ctx, k, "put", call{method: "PUT", key: c.Locations[0].Prefix.String() + "/f", body: "mine"}); err != nil {
			return failed("%v", err)
		}
	}
	return passed("%d keys for %d buckets", len(a.Credentials), len(prefixes))
}
