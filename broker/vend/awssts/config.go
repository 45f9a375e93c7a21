package awssts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/session/credential"
)

// Defaults and facts of STS.
const (
	// DefaultPolicyLimit is AWS's (and Aliyun's) limit on an inline session policy,
	// in characters.
	DefaultPolicyLimit = 2048
	// MinLifetime is the shortest life AWS gives to keys.
	MinLifetime = 15 * time.Minute
	// DefaultRoleMax is the maximum session duration of a role that sets none.
	DefaultRoleMax = time.Hour
	// ChainedMax bounds keys for which a role assumed the role.
	ChainedMax = time.Hour
)

// Values of Config.Identity besides an ARN.
const (
	// AnyIdentity asks STS who the broker is, and accepts every answer.
	AnyIdentity = "any"
	// UnknownIdentity does not ask, for providers without GetCallerIdentity (Ceph 16,
	// MiniStack). Whether the role is chained has to be configured then.
	UnknownIdentity = "unknown"
)

// Tag is a session tag the vendor can set. Its value is taken from the request.
type Tag string

// The tags.
const (
	TagSession   Tag = "sluice-session"
	TagEpoch     Tag = "sluice-epoch"
	TagPrincipal Tag = "sluice-principal" // issuer and subject
	TagDecision  Tag = "sluice-decision"
)

// stsAPI is what the vendor calls; *sts.Client has it.
type stsAPI interface {
	AssumeRole(context.Context, *sts.AssumeRoleInput, ...func(*sts.Options)) (*sts.AssumeRoleOutput, error)
	AssumeRoleWithWebIdentity(context.Context, *sts.AssumeRoleWithWebIdentityInput, ...func(*sts.Options)) (*sts.AssumeRoleWithWebIdentityOutput, error)
	GetCallerIdentity(context.Context, *sts.GetCallerIdentityInput, ...func(*sts.Options)) (*sts.GetCallerIdentityOutput, error)
}

// KMS is the key that the bucket's objects are encrypted with.
type KMS struct {
	// KeyARN is the key's own ARN; empty = the objects use no KMS key. An alias
	// cannot stand in a policy.
	KeyARN string
	// ViaService restricts the key's use to one service, e.g.
	// "s3.eu-west-1.amazonaws.com"; empty = no restriction.
	ViaService string
}

// Observer is told what happens, for metrics. Its functions may be nil; they must be
// fast and safe for concurrent use.
type Observer struct {
	// Call is called after every call of STS.
	Call func(Call)
	// Lookup is called once for every request that reached the cache.
	Lookup func(Lookup)
	// Revoked is called after every attempt to put revocations into effect. An error
	// means that keys live which should not: it must be loud.
	Revoked func(Revoked)
}

// Call describes one call of STS.
type Call struct {
	Operation        string // "AssumeRole", "AssumeRoleWithWebIdentity", "GetCallerIdentity"
	Code             string // STS's error code, "" on success, "no_answer" without one
	Took             time.Duration
	PolicySize       int // characters sent
	PackedPolicySize int // percent of STS's packed limit; -1 = not reported
	TokenUtilization int // percent of the limit on session tokens, its successor at AWS; -1 = not reported
}

// Lookup is what the cache answered.
type Lookup string

// The outcomes.
const (
	LookupHit   Lookup = "hit"   // from the cache
	LookupMiss  Lookup = "miss"  // a call was begun
	LookupJoin  Lookup = "join"  // waited for another caller's call
	LookupStale Lookup = "stale" // from the cache, because STS was out of order
)

// Config configures a Vendor. STS, RoleARN and Identity are required.
type Config struct {
	// STS is the client, with the broker's own credentials; *sts.Client fits. Its
	// retries and logging are switched off for every call: retries would pass the
	// rate limit, and its debug log prints bodies with keys.
	STS stsAPI
	// RoleARN is the role whose keys are vended.
	RoleARN string
	// Identity is whom STS must know the broker as: the ARN of a user, or of a role
	// for whichever session of it; AnyIdentity or UnknownIdentity. It is not used
	// with WebIdentity, where the token is the identity.
	Identity string
	// WebIdentity returns the broker's own identity token, and selects
	// AssumeRoleWithWebIdentity. nil = AssumeRole.
	WebIdentity func(context.Context) (credential.Secret, error)
	// ExternalID is the trust policy's external id; AssumeRole only.
	ExternalID string
	// SourceIdentity sets the source identity to the session's id, so that a Deny on
	// it can end a session's keys; AssumeRole only, needs sts:SetSourceIdentity.
	SourceIdentity bool
	// Tags are the session tags set; AssumeRole only, needs sts:TagSession. Each
	// takes from the packed policy budget.
	Tags []Tag
	// SessionName stands before the decision id in session names; empty = "sluice-".
	SessionName string

	Store     vend.Store // copied into answers
	Partition string     // of the ARNs in policies; empty = the role's
	KMS       KMS
	// PlainPolicies makes no use of Deny with NotResource, which SeaweedFS refuses;
	// more credentials are needed for many buckets then.
	PlainPolicies bool

	PolicyLimit    int           // characters; 0 = DefaultPolicyLimit
	MaxCredentials int           // per answer; 0 = 8
	RoleMax        time.Duration // the role's maximum session duration; 0 = DefaultRoleMax
	MaxLife        time.Duration // nothing lives longer, whatever else would let it; 0 = no such bound
	Chained        bool          // the broker runs on a role itself; detected when Identity is asked
	MinLifetime    time.Duration // the provider's minimum; 0 = MinLifetime
	ClockSkew      time.Duration // how far STS's clock may be off; 0 = 10 min

	Rate       float64       // calls of STS per second; 0 = 20
	Burst      int           // calls at once; 0 = 40, at least MaxCredentials
	Timeout    time.Duration // of one call; 0 = 10 s
	MaxEntries int           // cached answers; 0 = 10,000
	// RefreshShare is the share of an answer's life that is left when it is replaced;
	// 0 = 0.2. Jitter varies it by that share of itself, both ways; 0 = 0.25.
	RefreshShare, Jitter float64

	Revocation Revocation // the zero value ends no keys early

	Observer Observer
	Now      func() time.Time // nil = time.Now
	Random   func() float64   // in [0, 1), for jitter; nil = math/rand
}

var (
	nameFormat      = regexp.MustCompile(`^[A-Za-z0-9.@_-]{2,64}$`)
	prefixFormat    = regexp.MustCompile(`^[A-Za-z0-9.@_-]{0,16}$`)
	partitionFormat = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	roleFormat      = regexp.MustCompile(`^arn:([a-z][a-z0-9-]{0,31}):iam::([0-9A-Za-z-]{0,64}):role/([\w+=,.@/-]{1,512})$`)
	keyFormat       = regexp.MustCompile(`^arn:([a-z][a-z0-9-]{0,31}):kms:[a-z0-9-]{1,64}:[0-9A-Za-z-]{0,64}:key/[A-Za-z0-9-]{1,128}$`)
	serviceFormat   = regexp.MustCompile(`^[a-z0-9.-]{0,255}$`)
)

// Check refuses what cannot work, without any call. Open does the same.
func (c Config) Check() error { return c.check() }

// check fills in defaults and refuses what cannot work.
func (c *Config) check() error {
	role := roleFormat.FindStringSubmatch(c.RoleARN)
	if c.STS == nil || role == nil {
		return fmt.Errorf("an STS client and a role ARN are required, role is %.200q", c.RoleARN)
	}
	orDefault(&c.SessionName, "sluice-")
	orDefault(&c.Partition, role[1])
	orDefault(&c.PolicyLimit, DefaultPolicyLimit)
	orDefault(&c.MaxCredentials, 8)
	orDefault(&c.RoleMax, DefaultRoleMax)
	orDefault(&c.MinLifetime, MinLifetime)
	orDefault(&c.ClockSkew, 10*time.Minute)
	orDefault(&c.Rate, 20)
	orDefault(&c.Burst, 40)
	orDefault(&c.Timeout, 10*time.Second)
	orDefault(&c.MaxEntries, 10_000)
	orDefault(&c.RefreshShare, 0.2)
	orDefault(&c.Jitter, 0.25)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	return errors.Join(c.checkProvider(), c.checkLimits(), c.Revocation.check(c))
}

func (c *Config) checkProvider() error {
	if !partitionFormat.MatchString(c.Partition) {
		return fmt.Errorf("partition %.100q, want e.g. aws, aws-cn or aws-us-gov", c.Partition)
	}
	if !prefixFormat.MatchString(c.SessionName) {
		return fmt.Errorf("session name prefix %.100q, want at most 16 of A-Z a-z 0-9 . @ _ -", c.SessionName)
	}
	if k := c.KMS; k != (KMS{}) {
		arn := keyFormat.FindStringSubmatch(k.KeyARN)
		if arn == nil || arn[1] != c.Partition || !serviceFormat.MatchString(k.ViaService) {
			return fmt.Errorf("KMS key %.200q via %.200q: want the ARN of a key (no alias, no wildcard) in partition %s", k.KeyARN, k.ViaService, c.Partition)
		}
	}
	for _, t := range c.Tags {
		if !slices.Contains([]Tag{TagSession, TagEpoch, TagPrincipal, TagDecision}, t) {
			return fmt.Errorf("unknown session tag %.100q", t)
		}
	}
	switch {
	case c.WebIdentity != nil && (c.Identity != "" || c.ExternalID != "" || c.SourceIdentity || len(c.Tags) > 0):
		return errors.New("with a web identity the token decides on identity, external id, source identity and tags")
	case c.WebIdentity == nil && c.Identity == "":
		return fmt.Errorf("the identity STS must know the broker as is required: an ARN, %q or %q", AnyIdentity, UnknownIdentity)
	}
	return nil
}

func (c *Config) checkLimits() error {
	switch {
	case c.PolicyLimit < 128 || c.MaxCredentials < 1 || c.MaxCredentials > 64 || c.MaxEntries < 1 || c.Burst < c.MaxCredentials:
		return errors.New("a policy limit of at least 128 characters, 1 to 64 credentials, one entry, and a burst of at least the credentials of an answer are needed")
	case !(c.Rate > 0) || c.MinLifetime < 0 || c.ClockSkew < 0 || c.Timeout < 0:
		return errors.New("rates and durations must not be negative")
	case c.MaxLife != 0 && c.MaxLife < c.MinLifetime:
		return fmt.Errorf("the longest life allowed, %v, is shorter than the provider's minimum of %v", c.MaxLife, c.MinLifetime)
	case c.RoleMax < c.MinLifetime:
		return fmt.Errorf("the role's maximum of %v is shorter than the provider's minimum of %v", c.RoleMax, c.MinLifetime)
	case !(c.RefreshShare > 0 && c.RefreshShare < 1 && c.Jitter > 0 && c.Jitter < 1 && c.RefreshShare*(1+c.Jitter) < 1):
		return errors.New("refresh share and jitter must lie between 0 and 1, and the share with its jitter below 1")
	}
	return nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// roleName is the last segment of a role's ARN, which is how sessions of it are
// called.
func roleName(arn string) string { return arn[strings.LastIndexByte(arn, '/')+1:] }
