package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fluss-sluice/sluice/broker/vend"
)

// Mode is what a store is examined for.
type Mode string

// The modes.
const (
	Warehouse Mode = "warehouse" // it holds the files; conditions and checksums are its own
	Sign      Mode = "sign"      // requests signed one by one
	STS       Mode = "sts"       // vended keys

	gateway Mode = "gateway" // tests only: no store is involved in its decisions
)

// Verdict is the outcome of a check.
type Verdict string

// The verdicts.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"
	NotSupported Verdict = "not supported" // the store does not have the thing at all
	Skipped      Verdict = "skipped"       // the detail says why
)

// Config says which store is examined, and for what.
type Config struct {
	Bucket string // required
	Prefix string // below which everything happens; "" = the bucket's root
	// OtherBucket is a second bucket that Admin may write; without one nothing is tried
	// across buckets.
	OtherBucket string
	Region      string // required
	Endpoint    string // of the store, scheme and host only; "" = AWS
	PathStyle   bool
	// Admin are the broker's own keys: they make what the attempts must not reach, sign
	// (for Sign), and clean up. Required.
	Admin aws.CredentialsProvider
	// Vendor vends keys, for STS; nil = STS is not examined.
	Vendor vend.Vendor
	// Patterns is the same vendor making use of Deny with NotResource; nil = whether the
	// provider takes that is not asked.
	Patterns vend.Vendor
	// AssumeAgain tries, with vended keys, to assume the vendor's role without a session
	// policy; see AssumeAgain. nil = skipped.
	AssumeAgain func(context.Context, aws.Credentials) error
	// ShortKeys returns keys for the bucket that end within seconds, with their Expires;
	// nil = expiry is not waited for.
	ShortKeys func(context.Context) (aws.Credentials, error)
	// Modes to examine; nil = all that the rest allows.
	Modes []Mode
	// Quick leaves out all but what takes a second or two: the way inside works, and its
	// nearest neighbours are closed.
	Quick bool
	// KeyLife is how long vended keys live, the shortest that the provider gives; 0 = 15
	// min. They open what is gone when Run returns.
	KeyLife time.Duration
	// Timeout of one request; 0 = 20 s.
	Timeout time.Duration
	// Done is told each result as it is found; may be nil.
	Done func(Result)
}

// Result is what a check found.
type Result struct {
	Mode    Mode    `json:"mode"`
	Check   string  `json:"check"` // a sentence, true of a store that passes
	Verdict Verdict `json:"verdict"`
	Lax     bool    `json:"lax,omitempty"`    // failing does not cost the mode its trust
	Detail  string  `json:"detail,omitempty"` // what was seen
	// Consequence is what Sluice will therefore do, or what its operator should.
	Consequence string `json:"consequence,omitempty"`
}

// Trust is the verdict on a mode.
type Trust struct {
	Mode    Mode     `json:"mode"`
	Trusted bool     `json:"trusted"`
	Reasons []string `json:"reasons,omitempty"` // why not
	Advice  []string `json:"advice,omitempty"`  // what to set or to know
}

// Report is what an examination found.
type Report struct {
	Bucket   string    `json:"bucket"`
	Prefix   string    `json:"prefix"` // of the examination itself, gone when Leftover is empty
	Region   string    `json:"region"`
	Endpoint string    `json:"endpoint,omitempty"`
	At       time.Time `json:"at"`
	Results  []Result  `json:"results"`
	Modes    []Trust   `json:"modes"`
	// Leftover names what could not be removed.
	Leftover []string `json:"leftover,omitempty"`
}

// check is one row of the matrix.
type check struct {
	mode     Mode
	name     string
	attempts string // what is tried
	must     string // what must come of it
	lax      string // not empty = failing is no reason for distrust: what is done about it
	quick    bool   // see Config.Quick
	run      func(context.Context, *site) finding
}

// finding is what a check returns.
type finding struct {
	verdict Verdict
	detail  string
}

func passed(format string, a ...any) finding  { return finding{Pass, fmt.Sprintf(format, a...)} }
func failed(format string, a ...any) finding  { return finding{Fail, fmt.Sprintf(format, a...)} }
func skipped(format string, a ...any) finding { return finding{Skipped, fmt.Sprintf(format, a...)} }

// Check describes one row of the matrix.
type Check struct {
	Mode     Mode   `json:"mode"`
	Name     string `json:"name"`
	Attempts string `json:"attempts"`
	Must     string `json:"must"` // come of it
	// Lax is empty for a check whose failure costs its mode the trust; else it is what is
	// done about the failure.
	Lax   string `json:"lax,omitempty"`
	Quick bool   `json:"quick"` // see Config.Quick
}

// Checks lists the matrix in the order in which Run goes through it.
func Checks() []Check {
	var out []Check
	for _, c := range matrix([]Mode{Warehouse, Sign, STS}) {
		out = append(out, Check{c.mode, c.name, c.attempts, c.must, c.lax, c.quick})
	}
	return out
}

func matrix(modes []Mode) []check {
	var out []check
	for _, m := range modes {
		switch m {
		case Warehouse:
			out = append(out, storeChecks()...)
		case Sign:
			out = append(out, insideChecks(m)...)
			out = append(out, outsideChecks(m)...)
			out = append(out, signChecks()...)
		case STS:
			out = append(out, reachChecks()...)
			out = append(out, insideChecks(m)...)
			out = append(out, outsideChecks(m)...)
			out = append(out, keyChecks()...)
		case gateway:
			out = append(out, insideChecks(m)...)
			out = append(out, outsideChecks(m)...)
		}
	}
	return out
}

// Run goes through the matrix. The error is about the examination: what the
// store does wrong is in the report. A report comes with the error when some of it was
// done.
func Run(ctx context.Context, c Config) (Report, error) {
	if err := c.complete(); err != nil {
		return Report{}, fmt.Errorf("conformance: %w", err)
	}
	checks := matrix(c.Modes)
	if c.Quick {
		checks = slices.DeleteFunc(checks, func(c check) bool { return !c.quick })
	}
	return examine(ctx, c, checks, nil)
}

// examine runs checks on a site of its own. extra are actors besides those of the
// configuration.
func examine(ctx context.Context, c Config, checks []check, extra map[Mode]actor) (r Report, err error) {
	s, err := newSite(c, extra)
	if err != nil {
		return Report{}, fmt.Errorf("conformance: %w", err)
	}
	r = Report{Bucket: c.Bucket, Prefix: s.root, Region: c.Region, Endpoint: c.Endpoint, At: time.Now().UTC()}
	defer func() { r.Leftover = s.cleanUp(ctx) }()
	if err := s.setUp(ctx); err != nil {
		return r, fmt.Errorf("conformance: make what must not be reached: %w", err)
	}
	for _, c := range checks {
		f := c.run(ctx, s)
		if err := ctx.Err(); err != nil {
			return r, fmt.Errorf("conformance: %q: %w", c.name, err)
		}
		res := Result{Mode: c.mode, Check: c.name, Verdict: f.verdict, Lax: c.lax != "", Detail: f.detail, Consequence: consequence(c, f.verdict)}
		r.Results = append(r.Results, res)
		if s.c.Done != nil {
			s.c.Done(res)
		}
	}
	r.Modes = judge(c.Modes, r.Results)
	return r, nil
}

// complete fills in defaults and refuses what cannot be examined.
func (c *Config) complete() error {
	switch {
	case c.Bucket == "" || c.Region == "" || c.Admin == nil:
		return errors.New("a bucket, its region and the broker's own keys are required")
	case c.OtherBucket == c.Bucket:
		return fmt.Errorf("the other bucket must be another one than %.100q", c.Bucket)
	case strings.Trim(c.Prefix, "/") != c.Prefix:
		return fmt.Errorf("prefix %.100q: want no slash at its ends", c.Prefix)
	case slices.Contains(c.Modes, STS) && c.Vendor == nil:
		return errors.New("mode sts needs a vendor of keys")
	}
	if c.Modes == nil {
		c.Modes = []Mode{Warehouse, Sign}
		if c.Vendor != nil {
			c.Modes = append(c.Modes, STS)
		}
	}
	for _, m := range c.Modes {
		if m != Warehouse && m != Sign && m != STS {
			return fmt.Errorf("unknown mode %.100q", m)
		}
	}
	if c.Timeout == 0 {
		c.Timeout = 20 * time.Second
	}
	if c.KeyLife == 0 {
		c.KeyLife = 15 * time.Minute
	}
	return nil
}

// newClient follows no redirects: where a request goes is part of what was signed.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Transport: http.DefaultTransport.(*http.Transport).Clone(), Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
