package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/session/scope"
)

// credsFlags say which keys to get and how to print them.
type credsFlags struct {
	file, session, table string
	tokens               tokenFlags
	scopes               []string
	buckets              string
	write, read          bool
	ttl                  time.Duration
	format, out          string
	force                bool
}

func newCredsCommand(g *globals) *cobra.Command {
	var f credsFlags
	c := &cobra.Command{
		Use:   "creds (--session ID | --context FILE | --table TARGET | --token-file FILE) [--bucket 0-1 (--write | --read)] --format FORMAT",
		Short: "Get keys of the object store for other programs",
		Long: `Get keys of the object store for programs that know nothing of Sluice. Your identity
token is exchanged for a Sluice token of just that scope, and that for keys that open
the files it covers and nothing else: no listing, no deleting, no overwriting where
the store keeps conditions. They expire within the hour; nothing renews them but
running this again, or a format that does so by itself (process, aws-config).

Formats:
  json        everything, with every set of keys and what it opens
  process     for credential_process of an AWS profile
  aws-config  a profile for ~/.aws/config that runs this command when keys are needed;
              it holds no secret
  env         AWS_… variables, for eval in a shell
  duckdb      CREATE SECRET statements
  spark       lines of a spark-defaults.conf, for S3A
  rclone      sections of an rclone.conf
  iceberg     storage-credentials, as an Iceberg REST catalog answers

Keys for many buckets may come in several sets. process, env, aws-config and spark
have room for one: narrow the scope. The server can also be asked without this
program, by any AWS SDK, under a Sluice token (sluice token exchange --out):

  AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:8470/v1/aws/credentials?scope=bucket:0-1:write
  AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=worker.token

(The SDKs take http for loopback addresses only; elsewhere it must be https.)

Keys are not printed on a terminal without --force: use --out, a pipe, or eval. Only
process always prints, because its reader is a program.`,
		Example: `  eval "$(sluice creds --session ID --bucket 0-1 --write --format env)"
  sluice creds --table shop.orders --format duckdb | duckdb -init /dev/stdin
  sluice creds --context orders.json --bucket 2 --write --format aws-config >> ~/.aws/config
  sluice creds --table shop.orders --format rclone --out rclone.conf`,
		Args: cobra.NoArgs,
	}
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), g) }
	return c
}

func (f *credsFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.file, "context", "", "build context file of the load")
	fs.StringVar(&f.session, "session", "", "session id of the load")
	fs.StringVar(&f.table, "table", "", "table or partition whose snapshots to read, instead of a load")
	f.tokens.add(fs)
	fs.StringSliceVar(&f.scopes, "scope", nil, "scope (repeatable), for example bucket:0-1:write or manifest:write")
	fs.StringVar(&f.buckets, "bucket", "", "buckets of the load, for example 0-1,3, instead of --scope")
	fs.BoolVar(&f.write, "write", false, "write the buckets, which includes reading them back")
	fs.BoolVar(&f.read, "read", false, "read the buckets")
	fs.DurationVar(&f.ttl, "ttl", 0, "wish for the lifetime of the Sluice token (default: the server's)")
	fs.StringVar(&f.format, "format", "json", strings.Join(credsFormats, ", "))
	fs.StringVar(&f.out, "out", "", "write to this file, readable by you only")
	fs.BoolVar(&f.force, "force", false, "print keys on a terminal")
}

// run gets and prints the keys.
func (f *credsFlags) run(ctx context.Context, g *globals) error {
	printer, ok := credsPrinters[f.format]
	if !ok {
		return &usageError{fmt.Errorf("--format %q: want one of %s", f.format, strings.Join(credsFormats, ", "))}
	}
	if f.out == "" && isTerminal(g.stdout) && printer.secret && f.format != formatProcess && !f.force {
		return &usageError{errors.New("keys are not printed on a terminal: use --out, a pipe, or --force")}
	}
	list, err := f.scope()
	if err != nil {
		return err
	}
	ask, err := f.ask(ctx, g, list)
	if err != nil {
		return err
	}
	c, err := ask()
	if err != nil {
		return fmt.Errorf("keys for %s: %w", scopeText(list), err)
	}
	if err := checkKeys(c); err != nil {
		return err
	}
	if printer.one && len(c.Keys) > 1 {
		return tooManySets(c, f.format)
	}
	var text strings.Builder
	if err := printer.print(&text, c, f.again(g, list)); err != nil {
		return err
	}
	if f.out != "" {
		if err := durable.WriteFile(f.out, []byte(text.String()), 0o600); err != nil {
			return err
		}
		return g.done("wrote "+f.out, map[string]any{"file": f.out, "expires_at": c.ExpiresAt.UTC()})
	}
	_, err = io.WriteString(g.stdout, text.String())
	return err
}

// scope is what the flags ask for; empty means all that a token covers.
func (f *credsFlags) scope() ([]string, error) {
	list := slices.Clone(f.scopes)
	switch {
	case f.write && f.read:
		return nil, &usageError{errors.New("--write includes --read: name one of them")}
	case f.buckets == "" && (f.write || f.read):
		return nil, &usageError{errors.New("which buckets? name them in --bucket")}
	case f.buckets != "" && !f.write && !f.read:
		return nil, &usageError{errors.New("what may be done with the buckets? say --write or --read")}
	case f.buckets != "":
		numbers, err := parseBuckets(f.buckets)
		if err != nil {
			return nil, err
		}
		op := scope.Write
		if f.read {
			op = scope.Read
		}
		for _, n := range numbers {
			list = append(list, scope.Scope{Op: op, First: n, Last: n}.String())
		}
	}
	if len(list) == 0 && f.table != "" {
		return []string{string(scope.SnapshotRead)}, nil
	}
	if len(list) == 0 {
		return nil, nil
	}
	set, err := scope.Parse(strings.Join(list, " "))
	if err != nil {
		return nil, &usageError{err}
	}
	return set.Strings(), nil
}

func scopeText(list []string) string {
	if len(list) == 0 {
		return "all that the token covers"
	}
	return strings.Join(list, " ")
}

// ask prepares the call that gets the keys.
func (f *credsFlags) ask(ctx context.Context, g *globals, list []string) (func() (*client.Credentials, error), error) {
	if f.file == "" && f.session == "" && f.table == "" {
		tok, err := f.tokens.read(g)
		if err != nil {
			return nil, &usageError{fmt.Errorf("keys for what? name a load in --session or --context, a table in --table, or a Sluice token in --token-file or %s", envToken)}
		}
		api, err := g.anonymous()
		if err != nil {
			return nil, err
		}
		return func() (*client.Credentials, error) {
			return api.Credentials(ctx, client.StaticToken(tok), client.CredentialsRequest{Scope: list})
		}, nil
	}
	if f.tokens.file != "" {
		return nil, &usageError{errors.New("--token-file already says what for: it excludes --session, --context and --table")}
	}
	req, err := exchangeRequest(f.file, f.session, f.table, list)
	if err != nil {
		return nil, err
	}
	req.TTL = f.ttl
	api, err := g.api()
	if err != nil {
		return nil, err
	}
	return func() (*client.Credentials, error) {
		tok, err := api.Exchange(ctx, req)
		if err != nil {
			return nil, err
		}
		return api.Credentials(ctx, client.StaticToken(tok.Secret), client.CredentialsRequest{SessionID: req.SessionID})
	}, nil
}

// again is the command line that gets the same keys for credential_process.
func (f *credsFlags) again(g *globals, list []string) string {
	words := []string{"sluice", "creds", "--format", formatProcess, "--url", g.url}
	for _, w := range [][2]string{
		{"--identity-token-file", absolute(g.identityTokenFile)}, {"--dev-subject", g.devSubject}, {"--context", absolute(f.file)},
		{"--session", f.session}, {"--table", f.table}, {"--token-file", absolute(f.tokens.file)}, {"--scope", strings.Join(list, ",")},
	} {
		if w[1] != "" {
			words = append(words, w[0], w[1])
		}
	}
	if f.ttl > 0 {
		words = append(words, "--ttl", f.ttl.String())
	}
	for i, w := range words {
		words[i] = shellQuote(w)
	}
	return strings.Join(words, " ")
}

// absolute is a file's name for programs that run elsewhere.
func absolute(name string) string {
	if abs, err := filepath.Abs(name); err == nil && name != "" {
		return abs
	}
	return name
}

// checkKeys refuses an answer that could say more than keys to the program that
// reads it.
func checkKeys(c *client.Credentials) error {
	if len(c.Keys) == 0 {
		return errors.New("the server answered without keys")
	}
	texts := []string{c.Region, c.Endpoint}
	for _, k := range c.Keys {
		texts = append(texts, k.AccessKeyID, k.SecretAccessKey.Reveal(), k.SessionToken.Reveal())
		for _, l := range k.Locations {
			texts = append(texts, l.URI)
		}
	}
	for _, s := range texts {
		if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || drives(r) }) {
			return errors.New("the server's answer holds blanks or control characters where a key, a region or an address should stand: it is not passed on")
		}
	}
	return nil
}

// tooManySets says how to narrow a scope.
func tooManySets(c *client.Credentials, format string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "this needs %d sets of keys, and format %s has room for one:", len(c.Keys), format)
	for i, k := range c.Keys {
		fmt.Fprintf(&b, "\n  set %d opens %s", i+1, placesText(k.Locations))
	}
	return &hinted{&usageError{errors.New(b.String())}, "ask for fewer buckets at once (--bucket, --scope), or use format json, duckdb, rclone or iceberg"}
}

// placesText names what keys open, in a few words.
func placesText(locations []v1.KeyLocation) string {
	const most = 3
	var parts []string
	for i, l := range locations {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(locations)-most))
			break
		}
		parts = append(parts, l.Access+" "+placeText(l))
	}
	return strings.Join(parts, ", ")
}

// placeText is a location with a slash behind a directory.
func placeText(l v1.KeyLocation) string {
	if l.Object {
		return l.URI
	}
	return l.URI + "/"
}
