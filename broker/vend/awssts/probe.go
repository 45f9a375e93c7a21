package awssts

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

// ErrPolicyIgnored marks a store whose keys open more than the session policy says.
// It must not be vended for.
var ErrPolicyIgnored = errors.New("the store does not keep keys to their session policy")

// ProbeConfig says where Probe looks.
type ProbeConfig struct {
	// Objects is the warehouse opened with the broker's own keys: it makes what the
	// vended keys must not reach, and removes everything at the end.
	Objects objstore.Store
	Bucket  string     // of the warehouse
	Prefix  string     // of the warehouse in the bucket; empty = all of it
	Store   vend.Store // as the broker reaches it
	// STSEndpoint is where vended keys try to assume the role again; empty = the
	// provider's own.
	STSEndpoint string
}

// Proof is what Probe found.
type Proof struct {
	Attempts int // made with vended keys
	// CaseBlind: the store compares names in policies without regard to case, so keys
	// open names that equal theirs but for case. No two targets have such names, as
	// both hold the same table id then.
	CaseBlind bool
}

// Probe proves on a few objects below {Prefix}/_sluice that the store keeps vended
// keys to their session policy: they write and read inside their prefix; a sibling,
// a longer name, the parent, another session's prefix, lists, deletes, copies out of
// another prefix and the role itself are refused, and so are session tokens that
// were changed. An attempt that succeeds is ErrPolicyIgnored, and one whose outcome
// is neither success nor refusal is an error as well. Run it before vending: a store
// that ignores the policy shows nowhere else, as everything inside works.
func (v *Vendor) Probe(ctx context.Context, c ProbeConfig) (Proof, error) {
	p := &probe{v: v, c: c, id: strings.ToLower(rand.Text()[:16])}
	p.dir = objstore.ProbeDir + "/k" + p.id
	defer p.removeAll(ctx)
	err := p.run(ctx)
	if err == nil && len(p.opened) > 0 {
		err = fmt.Errorf("%w: keys for %s could %s", ErrPolicyIgnored, p.uri(p.in()), strings.Join(p.opened, "; "))
	}
	if err != nil {
		return p.proof, fmt.Errorf("awssts: probe of role %s: %w", v.c.RoleARN, err)
	}
	return p.proof, nil
}

// probe is one run of Probe. Keys of objects are relative to the warehouse.
type probe struct {
	v      *Vendor
	c      ProbeConfig
	id     string // lower case, of this run
	dir    string
	made   []string // what may exist
	opened []string // what succeeded and must not
	proof  Proof
}

// in is the directory that the vended keys are for.
func (p *probe) in() string { return p.dir + "/a/1" }

func (p *probe) full(key string) string {
	if p.c.Prefix == "" {
		return key
	}
	return p.c.Prefix + "/" + key
}

func (p *probe) uri(key string) string { return "s3://" + p.c.Bucket + "/" + p.full(key) }

func (p *probe) run(ctx context.Context) error {
	for _, key := range []string{p.dir + "/b/1/f", p.dir + "/a/10/f"} {
		if err := p.make(ctx, key); err != nil {
			return err
		}
	}
	writer, err := p.vend(ctx, vend.Write, p.in())
	if err != nil {
		return err
	}
	reader, err := p.vend(ctx, vend.Read, p.in())
	if err != nil {
		return err
	}
	w, r := p.client(writer[0]), p.client(reader[0])
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return p.inside(ctx, w, r) },
		func(ctx context.Context) error { return p.outside(ctx, w, r) },
		func(ctx context.Context) error { return p.again(ctx, writer[0]) },
		func(ctx context.Context) error { return p.tampered(ctx, writer[0]) },
		p.manyBuckets,
		p.untouched,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// make stores an object with the broker's own keys.
func (p *probe) make(ctx context.Context, key string) error {
	p.made = append(p.made, key)
	_, err := p.c.Objects.Put(ctx, key, strings.NewReader(probeContent), objstore.PutOptions{Size: int64(len(probeContent)), HasSize: true})
	return err
}

const probeContent = "sluice"

// vend mints keys for directories below the warehouse.
func (p *probe) vend(ctx context.Context, access vend.Access, dirs ...string) ([]vend.Credential, error) {
	id := "start-" + strings.ToLower(rand.Text())
	r := vend.Request{
		Principal: session.Principal{Issuer: "urn:sluice:broker", Subject: "start"}, Session: id, Epoch: 1, DecisionID: id,
		MaxTTL: p.v.c.MinLifetime, Deadline: p.v.c.Now().Add(p.v.c.MinLifetime + time.Hour),
	}
	for _, dir := range dirs {
		prefix, err := scope.ParsePrefix(p.full(dir))
		if err != nil {
			return nil, err
		}
		r.Locations = append(r.Locations, vend.Location{Bucket: p.c.Bucket, Prefix: prefix, Access: access})
	}
	defer p.v.cache.invalidate(id) // not Invalidate, which would revoke
	a, err := p.v.Vend(ctx, r)
	return a.Credentials, err
}

// client speaks to the store with vended keys. Its logger and log modes stay off:
// they print signatures and tokens.
func (p *probe) client(c vend.Credential) *s3.Client {
	return s3.New(s3.Options{
		Region: p.c.Store.Region, BaseEndpoint: optional(p.c.Store.Endpoint), UsePathStyle: p.c.Store.PathStyle,
		Credentials:                credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey.Reveal(), c.SessionToken.Reveal()),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	})
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (p *probe) put(ctx context.Context, c *s3.Client, key string) error {
	p.made = append(p.made, key)
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &p.c.Bucket, Key: aws.String(p.full(key)), Body: strings.NewReader(probeContent)})
	return err
}

func (p *probe) get(ctx context.Context, c *s3.Client, key string) error {
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &p.c.Bucket, Key: aws.String(p.full(key))})
	if err != nil {
		return err
	}
	return out.Body.Close()
}

// begin begins an upload of parts and gives it up again.
func (p *probe) begin(ctx context.Context, c *s3.Client, key string) error {
	out, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &p.c.Bucket, Key: aws.String(p.full(key))})
	if err != nil {
		return err
	}
	_, err = c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &p.c.Bucket, Key: aws.String(p.full(key)), UploadId: out.UploadId})
	return err
}

// inside does what workers do.
func (p *probe) inside(ctx context.Context, w, r *s3.Client) error {
	key := p.in() + "/f"
	for _, a := range []struct {
		what string
		err  error
	}{
		{"write", p.put(ctx, w, key)},
		{"read", p.get(ctx, w, key)},
		{"read with keys for reading", p.get(ctx, r, key)},
		{"begin and abort a multipart upload", p.begin(ctx, w, key+"-parts")},
	} {
		p.proof.Attempts++
		if a.err != nil {
			return fmt.Errorf("keys for %s cannot %s there: %w", p.uri(p.in()), a.what, plainly(a.err))
		}
	}
	return nil
}

// attempt is something that must be refused.
type attempt struct {
	what string
	do   func() error
}

func (p *probe) outside(ctx context.Context, w, r *s3.Client) error {
	in, sibling, foreign := p.in()+"/f", p.dir+"/a/10/f", p.dir+"/b/1/f"
	bucket, full := &p.c.Bucket, func(key string) *string { return aws.String(p.full(key)) }
	attempts := []attempt{
		{"write beside their prefix, into a longer name", func() error { return p.put(ctx, w, sibling) }},
		{"write beside their prefix", func() error { return p.put(ctx, w, p.dir+"/a/2/f") }},
		{"write into the parent", func() error { return p.put(ctx, w, p.dir+"/a/f") }},
		{"write into another session's prefix", func() error { return p.put(ctx, w, foreign) }},
		{"write at the top of the warehouse", func() error { return p.put(ctx, w, "sluice-probe-"+p.id) }},
		{"read another session's prefix", func() error { return p.get(ctx, w, foreign) }},
		{"read beside their prefix", func() error { return p.get(ctx, r, sibling) }},
		{"write with keys for reading", func() error { return p.put(ctx, r, in) }},
		{"begin a multipart upload beside their prefix", func() error { return p.begin(ctx, w, sibling) }},
		{"list", func() error {
			_, err := w.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: bucket, Prefix: full(p.in() + "/")})
			return err
		}},
		{"delete", func() error {
			_, err := w.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: bucket, Key: full(in)})
			return err
		}},
		{"delete in a batch", func() error { return p.deleteBatch(ctx, w, in) }},
		{"copy out of another session's prefix", func() error {
			p.made = append(p.made, in+"-copy")
			_, err := w.CopyObject(ctx, &s3.CopyObjectInput{Bucket: bucket, Key: full(in + "-copy"), CopySource: aws.String(p.c.Bucket + "/" + p.full(foreign))})
			return err
		}},
	}
	for _, a := range attempts {
		if err := p.refused(a.what, a.do()); err != nil {
			return err
		}
	}
	err := p.put(ctx, w, p.dir+"/A/1/f")
	p.proof.CaseBlind = err == nil
	if err != nil {
		return p.refused("", err)
	}
	return nil
}

// deleteBatch is an error when the store reports one for the key.
func (p *probe) deleteBatch(ctx context.Context, c *s3.Client, key string) error {
	out, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &p.c.Bucket, Delete: &s3types.Delete{Objects: []s3types.ObjectIdentifier{{Key: aws.String(p.full(key))}}}})
	if err == nil && len(out.Errors) > 0 {
		err = &smithy.GenericAPIError{Code: aws.ToString(out.Errors[0].Code)}
	}
	return err
}

// refused counts what succeeded; the error is of attempts that say nothing.
func (p *probe) refused(what string, err error) error {
	p.proof.Attempts++
	var status interface{ HTTPStatusCode() int }
	var api smithy.APIError
	switch {
	case err == nil:
		p.opened = append(p.opened, what)
		return nil
	case errors.As(err, &status):
		if s := status.HTTPStatusCode(); s >= 400 && s < 500 && s != http.StatusNotFound && s != http.StatusTooManyRequests && s != http.StatusRequestTimeout {
			return nil
		}
	case errors.As(err, &api) && api.ErrorCode() == "AccessDenied":
		return nil
	}
	return fmt.Errorf("whether keys could %s is unknown: %w", what, plainly(err))
}

// again tries to get out of the session policy by assuming the role once more.
func (p *probe) again(ctx context.Context, c vend.Credential) error {
	client := sts.New(sts.Options{
		Region: p.c.Store.Region, BaseEndpoint: optional(p.c.STSEndpoint), Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey.Reveal(), c.SessionToken.Reveal()),
	})
	_, err := client.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &p.v.c.RoleARN, RoleSessionName: aws.String(p.v.c.SessionName + "start")})
	return p.refused("assume the role again, without a session policy", err)
}

// flips is how many changed tokens are tried. Ceph 16 takes more than half of them
// and drops the policy of the session.
const flips = 16

// tampered tries session tokens with one character changed.
func (p *probe) tampered(ctx context.Context, c vend.Credential) error {
	token := c.SessionToken.Reveal()
	for i := range min(flips, len(token)) {
		b := []byte(token)
		at := (2*i + 1) * len(b) / (2 * min(flips, len(b)))
		if b[at] == 'A' {
			b[at] = 'B'
		} else {
			b[at] = 'A'
		}
		changed := c
		changed.SessionToken = credential.New(string(b))
		opened := len(p.opened)
		if err := p.refused("write beside their prefix when their token is changed", p.put(ctx, p.client(changed), p.dir+"/a/2/t")); err != nil {
			return err
		}
		if len(p.opened) > opened {
			return nil
		}
	}
	return nil
}

// manyBuckets proves that the Deny which the compact form rests on is honoured.
func (p *probe) manyBuckets(ctx context.Context) error {
	if !p.v.w.guards {
		return nil
	}
	for _, decades := range []int{9, 4, 2} {
		var dirs []string
		for n := range 10 * decades {
			dirs = append(dirs, fmt.Sprintf("%s/m/%d/s", p.dir, n))
		}
		creds, err := p.vend(ctx, vend.Write, dirs...)
		switch {
		case errors.Is(err, vend.ErrTooLarge):
			continue // names as long as these are not compacted that far
		case errors.Is(err, vend.ErrRefused):
			return fmt.Errorf("a policy for many buckets, which has a Deny with NotResource: plain policies do without: %w", err)
		case err != nil:
			return err
		}
		c := p.client(creds[len(creds)-1])
		p.proof.Attempts++
		if err := p.put(ctx, c, dirs[len(dirs)-1]+"/f"); err != nil {
			return fmt.Errorf("keys for many buckets cannot write to one of them: %w", plainly(err))
		}
		between := fmt.Sprintf("%s/m/%dx/s/f", p.dir, decades-1)
		return p.refused("write into a name that only the pattern of many buckets matches", p.put(ctx, c, between))
	}
	return nil
}

// untouched proves that what was refused was not done.
func (p *probe) untouched(ctx context.Context) error {
	if _, err := p.c.Objects.Head(ctx, p.in()+"/f"); errors.Is(err, objstore.ErrNotFound) {
		p.opened = append(p.opened, "delete although the answer was a refusal")
	} else if err != nil {
		return err
	}
	for _, key := range []string{p.dir + "/a/2/f", p.dir + "/a/f", p.dir + "/a/2/t"} {
		if _, err := p.c.Objects.Head(ctx, key); err == nil && len(p.opened) == 0 {
			p.opened = append(p.opened, "write "+p.uri(key)+" although the answer was a refusal")
		} else if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

// cleanUp bounds removing the objects when the caller has given up.
const cleanUp = 30 * time.Second

func (p *probe) removeAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	gone := map[string]bool{}
	for _, key := range p.made {
		if !gone[key] {
			gone[key] = true
			_ = p.c.Objects.Delete(ctx, key) // a few bytes below _sluice; the probe's own outcome matters more
		}
	}
}

// plainly keeps of an SDK error what can be shown: status, code and request id.
func plainly(err error) error {
	var b bytes.Buffer
	var api smithy.APIError
	var status interface{ HTTPStatusCode() int }
	var id interface{ ServiceRequestID() string }
	if errors.As(err, &status) {
		fmt.Fprintf(&b, "HTTP %d ", status.HTTPStatusCode())
	}
	switch {
	case errors.As(err, &api):
		b.WriteString(plain(api.ErrorCode()))
	default:
		b.WriteString(connectionTrouble(err))
	}
	if errors.As(err, &id) && id.ServiceRequestID() != "" {
		fmt.Fprintf(&b, " [request id %s]", plain(id.ServiceRequestID()))
	}
	return errors.New(strings.TrimSpace(b.String()))
}
