package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"
	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/broker/vend/awssts"
	"github.com/fluss-sluice/sluice/broker/vend/conformance"
	"github.com/fluss-sluice/sluice/session/credential"
)

// doctor is what `sluice doctor` examines. With --config it is filled from the file
// first; flags that are given stand over it.
type doctor struct {
	config string

	bucket, otherBucket, prefix string
	region, endpoint            string
	pathStyle                   bool
	keys                        keyFiles

	stsEndpoint, stsRegion string
	stsKeys                keyFiles
	identity               string
	webIdentityFile        string
	vendor                 awssts.Config // without a client

	modes          []string
	quick, fails   bool
	providers, all bool // print a table and examine nothing
}

// keyFiles are long-lived keys in two files.
type keyFiles struct{ access, secret string }

func newDoctorCommand(g *globals) *cobra.Command {
	d := &doctor{}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what an object store keeps to, and which kinds of credentials it can be trusted with",
		Long: `Find out what an object store keeps to, and which kinds of credentials it can be
trusted with. It plays a worker that tries to reach what it was not given, with real
vended keys and signed requests, below a random prefix of its own that it removes
again. docs/doctor.md describes the checks.

  sluice doctor --config sluiced.yaml
  sluice doctor --bucket lake --region eu-central-1 --role-arn arn:aws:iam::123456789012:role/Sluice
  sluice doctor --providers

Exit code 0: every mode that was examined can be trusted. 1: one cannot, or something
could not be removed. 4: the store refuses the keys. 7: it does not answer.`,
		Args: cobra.NoArgs,
	}
	d.addFlags(c.Flags())
	c.AddCommand(newDoctorCluster(g))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case d.providers:
			return printProviders(g)
		case d.all:
			return printChecks(g)
		}
		return d.run(cmd.Context(), g, cmd.Flags())
	}
	return c
}

func (d *doctor) addFlags(f *pflag.FlagSet) {
	f.StringVar(&d.config, "config", "", "examine what this configuration file of sluiced names")
	f.StringVar(&d.bucket, "bucket", "", "bucket to examine")
	f.StringVar(&d.prefix, "prefix", "", "examine below this prefix of the bucket")
	f.StringVar(&d.otherBucket, "other-bucket", "", "a second bucket that the keys may write, to try reaching it from the first")
	f.StringVar(&d.region, "region", "", "the bucket's region; stores that have none take us-east-1")
	f.StringVar(&d.endpoint, "endpoint", "", "the store's base URL (default: AWS)")
	f.BoolVar(&d.pathStyle, "path-style", false, "put the bucket into the path instead of the host name")
	f.StringVar(&d.keys.access, "access-key-file", "", "file with the access key id of sluiced's own keys (default: what the AWS SDK finds)")
	f.StringVar(&d.keys.secret, "secret-key-file", "", "file with their secret access key")
	f.StringVar(&d.vendor.RoleARN, "role-arn", "", "role whose keys are vended; without it mode sts is not examined")
	f.StringVar(&d.stsEndpoint, "sts-endpoint", "", "base URL of the STS (default: --endpoint, else AWS)")
	f.StringVar(&d.stsKeys.access, "sts-access-key-file", "", "file with the access key id that calls STS (default: --access-key-file)")
	f.StringVar(&d.stsKeys.secret, "sts-secret-key-file", "", "file with its secret access key")
	f.StringVar(&d.webIdentityFile, "web-identity-token-file", "", "file with the identity token that calls STS instead of keys")
	f.StringVar(&d.identity, "identity", awssts.AnyIdentity, "whom STS must know the caller as: an ARN, any, or unknown for an STS that cannot tell")
	f.BoolVar(&d.vendor.PlainPolicies, "plain-policies", false, "write no session policy with NotResource")
	f.StringSliceVar(&d.modes, "modes", nil, "examine only these of warehouse, sign and sts")
	f.BoolVar(&d.quick, "quick", false, "only the checks that take a second or two")
	f.BoolVar(&d.fails, "findings", false, "do not list the checks that passed")
	f.BoolVar(&d.providers, "providers", false, "print what is known about stores, and examine nothing")
	f.BoolVar(&d.all, "checks", false, "list the checks, and examine nothing")
}

// doctorFinding is an examination that must not exit 0.
type doctorFinding struct {
	err  error
	code int
}

func (e *doctorFinding) Error() string { return e.err.Error() }
func (e *doctorFinding) Unwrap() error { return e.err }

// ExitCode is the exit code of the process.
func (e *doctorFinding) ExitCode() int { return e.code }

func (d *doctor) run(ctx context.Context, g *globals, f *pflag.FlagSet) error {
	if d.config != "" {
		if err := d.fill(f); err != nil {
			return &usageError{err}
		}
	}
	c, closeAll, err := d.examination(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	g.remark("examining s3://%s below %s", c.Bucket, strings.TrimPrefix(c.Prefix+"/", "/")+"sluice-doctor-…")
	r, err := conformance.Run(ctx, c)
	if err == nil {
		if err = d.print(g, r); err != nil {
			return err
		}
	}
	return doctorError(r, err)
}

// doctorError is how a report ends the command.
func doctorError(r conformance.Report, err error) error {
	switch {
	case errors.Is(err, conformance.ErrKeys):
		err = &hinted{&doctorFinding{err, exitDenied}, "sluiced's own keys must put, get, list and delete below the prefix, and list, abort and use multipart uploads"}
	case errors.Is(err, conformance.ErrUnreachable):
		err = &hinted{&doctorFinding{err, exitUnavailable}, "is the endpoint right, and reachable from here? many stores want --path-style"}
	}
	if len(r.Leftover) > 0 {
		return errors.Join(err, fmt.Errorf("could not be removed: %s", strings.Join(r.Leftover, ", ")))
	}
	if err != nil {
		return err
	}
	var bad []string
	for _, t := range r.Modes {
		if !t.Trusted {
			bad = append(bad, string(t.Mode))
		}
	}
	if len(bad) > 0 {
		return &doctorFinding{fmt.Errorf("this store cannot be trusted with mode %s", strings.Join(bad, ", ")), exitFailed}
	}
	return nil
}

// examination is the configuration of the matrix. The function ends the vendors.
func (d *doctor) examination(ctx context.Context) (conformance.Config, func(), error) {
	c := conformance.Config{
		Bucket: d.bucket, Prefix: strings.Trim(d.prefix, "/"), OtherBucket: d.otherBucket, Region: d.region, Endpoint: d.endpoint,
		PathStyle: d.pathStyle, KeyLife: d.vendor.MinLifetime, Quick: d.quick,
	}
	nothing := func() {}
	switch {
	case d.bucket == "" || d.region == "":
		return c, nothing, &usageError{errors.New("which store? name --bucket and --region, or --config")}
	case (d.keys.access == "") != (d.keys.secret == "") || (d.stsKeys.access == "") != (d.stsKeys.secret == ""):
		return c, nothing, &usageError{errors.New("the files of an access key id and of its secret go together")}
	}
	for _, m := range d.modes {
		if !slices.Contains([]string{"warehouse", "sign", "sts"}, m) {
			return c, nothing, &usageError{fmt.Errorf("--modes %q: want warehouse, sign or sts", m)}
		}
		c.Modes = append(c.Modes, conformance.Mode(m))
	}
	if slices.Contains(d.modes, "sts") && d.vendor.RoleARN == "" {
		return c, nothing, &usageError{errors.New("mode sts needs --role-arn")}
	}
	var err error
	if c.Admin, err = d.keys.provider(ctx, d.region); err != nil {
		return c, nothing, err
	}
	if d.vendor.RoleARN == "" || len(d.modes) > 0 && !slices.Contains(d.modes, "sts") {
		return c, nothing, nil
	}
	return d.withVendors(ctx, c)
}

// withVendors adds what mode sts needs.
func (d *doctor) withVendors(ctx context.Context, c conformance.Config) (conformance.Config, func(), error) {
	region, endpoint := d.stsRegion, d.stsEndpoint
	if region == "" {
		region = d.region
	}
	if endpoint == "" {
		endpoint = d.endpoint
	}
	options := sts.Options{Region: region, Logger: logging.Nop{}}
	if endpoint != "" {
		options.BaseEndpoint = &endpoint
	}
	v := d.vendor
	v.Store = vend.Store{Region: d.region, Endpoint: d.endpoint, PathStyle: d.pathStyle}
	var err error
	switch {
	case d.webIdentityFile != "":
		options.Credentials = aws.AnonymousCredentials{}
		v.WebIdentity = func(context.Context) (credential.Secret, error) {
			return readSecret("the identity token", d.webIdentityFile)
		}
	case d.stsKeys.access != "":
		options.Credentials, err = d.stsKeys.provider(ctx, region)
	default:
		options.Credentials = c.Admin
	}
	if err != nil {
		return c, func() {}, err
	}
	if v.WebIdentity == nil {
		v.Identity = d.identity
	}
	v.STS = sts.New(options)
	if err := v.Check(); err != nil {
		return c, func() {}, &usageError{err}
	}
	plain, err := awssts.Open(ctx, v)
	if err != nil {
		return c, func() {}, stsFailure(err)
	}
	v.PlainPolicies = false
	patterns, err := awssts.Open(ctx, v)
	if err != nil {
		_ = plain.Close()
		return c, func() {}, stsFailure(err)
	}
	c.Vendor, c.Patterns, c.AssumeAgain = plain, patterns, conformance.AssumeAgain(endpoint, region, v.RoleARN)
	return c, func() { _ = errors.Join(plain.Close(), patterns.Close()) }, nil
}

// stsFailure is an STS that cannot be called at all.
func stsFailure(err error) error {
	switch {
	case errors.Is(err, vend.ErrRefused):
		return &hinted{&doctorFinding{err, exitDenied}, "an STS that does not say who calls it needs --identity unknown"}
	case errors.Is(err, vend.ErrUnavailable), errors.Is(err, vend.ErrBusy):
		return &doctorFinding{err, exitUnavailable}
	}
	return err
}

// provider are the keys in the files, else what the AWS SDK finds.
func (k keyFiles) provider(ctx context.Context, region string) (aws.CredentialsProvider, error) {
	if k.access != "" {
		keys := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			id, err := readSecret("the access key id", k.access)
			if err != nil {
				return aws.Credentials{}, err
			}
			secret, err := readSecret("the secret access key", k.secret)
			return aws.Credentials{AccessKeyID: id.Reveal(), SecretAccessKey: secret.Reveal(), Source: "files"}, err
		})
		_, err := keys.Retrieve(ctx)
		return keys, err
	}
	c, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(region), awsconfig.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, fmt.Errorf("the AWS SDK's configuration: %w", err)
	}
	if _, err := c.Credentials.Retrieve(ctx); err != nil {
		return nil, &hinted{&doctorFinding{errors.New("no keys in the AWS SDK's usual places"), exitDenied}, "name them in --access-key-file and --secret-key-file"}
	}
	return c.Credentials, nil
}

// readSecret reads a file that holds one word. What it holds never gets into an error.
func readSecret(what, path string) (credential.Secret, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return credential.Secret{}, &usageError{fmt.Errorf("%s: %w", what, err)}
	}
	s := strings.TrimSpace(string(b))
	if s == "" || len(s) > 64<<10 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return credential.Secret{}, &usageError{fmt.Errorf("%s: %s does not hold one word and nothing else", what, path)}
	}
	return credential.New(s), nil
}

// doctorConfig is what doctor reads of sluiced's configuration file; it passes over
// everything else.
type doctorConfig struct {
	Target struct {
		Directory struct {
			Root string `yaml:"root"`
			S3   struct {
				Region        string `yaml:"region"`
				Endpoint      string `yaml:"endpoint"`
				PathStyle     bool   `yaml:"path_style"`
				AccessKeyFile string `yaml:"access_key_file"`
				SecretKeyFile string `yaml:"secret_key_file"`
				KMSKeyID      string `yaml:"kms_key_id"`
			} `yaml:"s3"`
		} `yaml:"directory"`
	} `yaml:"target"`
	Credentials struct {
		STS struct {
			Enabled              bool          `yaml:"enabled"`
			RoleARN              string        `yaml:"role_arn"`
			Region               string        `yaml:"region"`
			Endpoint             string        `yaml:"endpoint"`
			AccessKeyFile        string        `yaml:"access_key_file"`
			SecretKeyFile        string        `yaml:"secret_key_file"`
			Identity             string        `yaml:"identity"`
			WebIdentityTokenFile string        `yaml:"web_identity_token_file"`
			ExternalID           string        `yaml:"external_id"`
			SourceIdentity       bool          `yaml:"source_identity"`
			Tags                 []string      `yaml:"tags"`
			SessionName          string        `yaml:"session_name"`
			Partition            string        `yaml:"partition"`
			KMSKeyARN            string        `yaml:"kms_key_arn"`
			KMSViaService        string        `yaml:"kms_via_service"`
			PlainPolicies        bool          `yaml:"plain_policies"`
			PolicyLimit          int           `yaml:"policy_limit"`
			MaxCredentials       int           `yaml:"max_credentials"`
			RoleMax              time.Duration `yaml:"role_max"`
			MinLifetime          time.Duration `yaml:"min_lifetime"`
			ClockSkew            time.Duration `yaml:"clock_skew"`
		} `yaml:"sts"`
	} `yaml:"credentials"`
}

// fill takes from the configuration file what no flag says.
func (d *doctor) fill(f *pflag.FlagSet) error {
	text, err := os.ReadFile(d.config)
	if err != nil {
		return err
	}
	var c doctorConfig
	if err := yaml.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%s: %w", d.config, err)
	}
	root, ok := strings.CutPrefix(c.Target.Directory.Root, "s3://")
	if !ok && d.bucket == "" {
		return fmt.Errorf("%s: target.directory.root %q is no s3://bucket: there is nothing to examine", d.config, c.Target.Directory.Root)
	}
	bucket, prefix, _ := strings.Cut(root, "/")
	store, s := c.Target.Directory.S3, c.Credentials.STS
	set(f, "bucket", &d.bucket, bucket)
	set(f, "prefix", &d.prefix, prefix)
	set(f, "region", &d.region, store.Region)
	set(f, "endpoint", &d.endpoint, store.Endpoint)
	set(f, "path-style", &d.pathStyle, store.PathStyle)
	set(f, "access-key-file", &d.keys, keyFiles{store.AccessKeyFile, store.SecretKeyFile})
	if !s.Enabled {
		return nil
	}
	role, plain := d.vendor.RoleARN, d.vendor.PlainPolicies
	d.vendor = awssts.Config{
		ExternalID: s.ExternalID, SourceIdentity: s.SourceIdentity, SessionName: s.SessionName, Partition: s.Partition,
		PolicyLimit: s.PolicyLimit, MaxCredentials: s.MaxCredentials, RoleMax: s.RoleMax, MinLifetime: s.MinLifetime, ClockSkew: s.ClockSkew,
		KMS: awssts.KMS{KeyARN: s.KMSKeyARN, ViaService: s.KMSViaService},
	}
	if d.vendor.KMS.KeyARN == "" && strings.Contains(store.KMSKeyID, ":key/") {
		d.vendor.KMS.KeyARN = store.KMSKeyID
	}
	for _, t := range s.Tags {
		d.vendor.Tags = append(d.vendor.Tags, awssts.Tag(t))
	}
	d.vendor.RoleARN, d.vendor.PlainPolicies, d.stsRegion = role, plain, s.Region
	set(f, "role-arn", &d.vendor.RoleARN, s.RoleARN)
	set(f, "plain-policies", &d.vendor.PlainPolicies, s.PlainPolicies)
	set(f, "sts-endpoint", &d.stsEndpoint, s.Endpoint)
	set(f, "identity", &d.identity, s.Identity)
	set(f, "web-identity-token-file", &d.webIdentityFile, s.WebIdentityTokenFile)
	set(f, "sts-access-key-file", &d.stsKeys, keyFiles{s.AccessKeyFile, s.SecretKeyFile})
	return nil
}

// set sets what a flag has not set.
func set[T any](f *pflag.FlagSet, flag string, to *T, value T) {
	if !f.Changed(flag) {
		*to = value
	}
}

// print shows a report.
func (d *doctor) print(g *globals, r conformance.Report) error {
	if d.fails {
		r.Results = slices.DeleteFunc(r.Results, func(res conformance.Result) bool { return res.Verdict == conformance.Pass })
	}
	if g.json() {
		return g.printJSON(r)
	}
	w := g.columns()
	fmt.Fprintln(w, "MODE\tVERDICT\tCHECK\tSEEN\tTHEREFORE")
	for _, res := range r.Results {
		verdict := string(res.Verdict)
		if res.Verdict == conformance.Fail && res.Lax {
			verdict = "lax"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", res.Mode, verdict, res.Check, res.Detail, res.Consequence)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, t := range r.Modes {
		word := "can be trusted"
		if !t.Trusted {
			word = "must not be used"
		}
		fmt.Fprintf(plain{g.stdout}, "\nmode %s %s\n", t.Mode, word)
		for _, reason := range t.Reasons {
			fmt.Fprintf(plain{g.stdout}, "  ✗ %s\n", reason)
		}
		for _, advice := range t.Advice {
			fmt.Fprintf(plain{g.stdout}, "  → %s\n", advice)
		}
	}
	return nil
}

func printProviders(g *globals) error {
	if g.json() {
		return g.printJSON(map[string]any{"providers": conformance.Providers()})
	}
	w := g.columns()
	fmt.Fprintln(w, "STORE\tKNOWN\tWAREHOUSE\tSIGN\tSTS\tNOTES")
	for _, p := range conformance.Providers() {
		known := p.Known
		if p.Version != "" {
			known += " " + p.Version
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, known, p.Warehouse, p.Sign, p.STS, strings.Join(p.Notes, "; "))
	}
	return w.Flush()
}

func printChecks(g *globals) error {
	if g.json() {
		return g.printJSON(map[string]any{"checks": conformance.Checks()})
	}
	w := g.columns()
	fmt.Fprintln(w, "MODE\tCHECK\tATTEMPT\tMUST\tIF NOT")
	for _, c := range conformance.Checks() {
		otherwise := c.Lax
		if otherwise == "" {
			otherwise = "the mode must not be used"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Mode, c.Name, c.Attempts, c.Must, otherwise)
	}
	return w.Flush()
}
