package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/s3keys"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/session/credential"
)

// globals are the streams and flags every command shares. Commands read and write
// through them only, so that tests can run the whole command line in process.
type globals struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time

	url               string   // --url, SLUICE_URL
	identityTokenFile string   // --identity-token-file, SLUICE_IDENTITY_TOKEN_FILE
	devSubject        string   // --dev-subject, SLUICE_DEV_SUBJECT
	devGroups         []string // --dev-group
	output            string   // --output: "table" or "json"
	quiet             bool     // --quiet: no progress

	started bool      // the command line was understood
	shown   *progress // what stands on the terminal now, nil for nothing
}

// The values of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// Environment variables.
const (
	envURL               = "SLUICE_URL"
	envIdentityToken     = "SLUICE_IDENTITY_TOKEN"
	envIdentityTokenFile = "SLUICE_IDENTITY_TOKEN_FILE"
	envDevSubject        = "SLUICE_DEV_SUBJECT"
	envCredentials       = "SLUICE_CREDENTIALS"
)

func (g *globals) addFlags(f *pflag.FlagSet) {
	f.StringVar(&g.url, "url", "", "server, for example https://sluice.example:8470 (env "+envURL+")")
	f.StringVar(&g.identityTokenFile, "identity-token-file", "",
		"file with your identity token (env "+envIdentityTokenFile+", or the token itself in "+envIdentityToken+")")
	f.StringVar(&g.devSubject, "dev-subject", "", "be this name on a server started with --dev (env "+envDevSubject+")")
	f.StringSliceVar(&g.devGroups, "dev-group", nil, "group of --dev-subject (repeatable)")
	f.StringVarP(&g.output, "output", "o", outputTable, "how to print results and errors: table or json")
	f.BoolVarP(&g.quiet, "quiet", "q", false, "print no progress and no remarks")
}

// complete checks the flags every command has.
func (g *globals) complete() error {
	if g.output != outputTable && g.output != outputJSON {
		bad := g.output
		g.output = outputTable
		return fmt.Errorf("--output %q: want table or json", bad)
	}
	if g.url == "" {
		g.url = g.getenv(envURL)
	}
	if g.devSubject != "" && g.identityTokenFile != "" {
		return errors.New("--dev-subject and --identity-token-file exclude each other")
	}
	return nil
}

// json says whether results and errors are printed as JSON.
func (g *globals) json() bool { return g.output == outputJSON }

// printJSON prints one document.
func (g *globals) printJSON(v any) error {
	return encodeJSON(g.stdout, v)
}

func encodeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// remark prints a line for people on the error stream.
func (g *globals) remark(format string, args ...any) {
	switch {
	case g.quiet || g.json():
	case g.shown != nil:
		g.shown.above(plainText(fmt.Sprintf(format, args...)))
	default:
		fmt.Fprintf(plain{g.stderr}, format+"\n", args...)
	}
}

// columns starts aligned output; flush it.
func (g *globals) columns() *tabwriter.Writer {
	return tabwriter.NewWriter(plain{g.stdout}, 0, 8, 2, ' ', 0)
}

// terminal is the width of the error stream's terminal, 0 when it is none.
func (g *globals) terminal() int {
	f, ok := g.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return 80
	}
	return width
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// identity finds the caller's own token: flags first, then the environment.
func (g *globals) identity(c *client.Client) (client.TokenSource, error) {
	switch {
	case g.devSubject != "":
		return client.DevIdentity(c, g.devSubject, g.devGroups...), nil
	case g.identityTokenFile != "":
		return client.FileToken(g.identityTokenFile), nil
	case g.getenv(envIdentityTokenFile) != "":
		return client.FileToken(g.getenv(envIdentityTokenFile)), nil
	case g.getenv(envIdentityToken) != "":
		return client.StaticToken(credential.New(strings.TrimSpace(g.getenv(envIdentityToken)))), nil
	case g.getenv(envDevSubject) != "":
		return client.DevIdentity(c, g.getenv(envDevSubject), g.devGroups...), nil
	}
	return nil, &usageError{errors.New("who are you? name a file with your identity token in --identity-token-file or " +
		envIdentityTokenFile + ", or, on a server started with --dev, a name in --dev-subject")}
}

// anonymous is a client without an identity.
func (g *globals) anonymous() (*client.Client, error) {
	if g.url == "" {
		return nil, &usageError{errors.New("no server: name its URL in --url or " + envURL)}
	}
	// Whoever asks for an identity token repeats its own call, and with it this one.
	c, err := client.New(client.Config{BaseURL: g.url, UserAgent: userAgent(), Retry: client.Retry{Attempts: 1}})
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

// connect makes the client of most commands.
func (g *globals) connect(e builder.Events) (*builder.Client, error) {
	return g.connectBy(builder.Gateway, e)
}

// connectBy makes the client of commands that send or read objects.
func (g *globals) connectBy(way builder.Credentials, e builder.Events) (*builder.Client, error) {
	anonymous, err := g.anonymous()
	if err != nil {
		return nil, err
	}
	if u, err := url.Parse(g.url); err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) {
		g.remark("warning: %s is not encrypted: tokens can be read on the way; use https", g.url)
	}
	id, err := g.identity(anonymous)
	if err != nil {
		return nil, err
	}
	return builder.Connect(builder.Config{
		URL: g.url, Identity: id, UserAgent: userAgent(), Events: e, Credentials: way, KeyStore: s3keys.Open,
	})
}

// addWay adds the flag about the way to the object store.
func addWay(fs *pflag.FlagSet) {
	fs.String("credentials", "", "how objects are sent and read: gateway, through the server (default); sign, to the object store, each request signed by the server; sts, to the object store with keys that the server vends (env "+envCredentials+")")
}

// way is the way to the object store that the flag or the environment names.
func (g *globals) way(fs *pflag.FlagSet) (builder.Credentials, error) {
	name, where := fs.Lookup("credentials").Value.String(), "--credentials"
	if name == "" {
		name, where = g.getenv(envCredentials), envCredentials
	}
	if name == "" {
		return builder.Gateway, nil
	}
	way, err := builder.ParseCredentials(name)
	if err != nil {
		return "", &usageError{fmt.Errorf("%s %w", where, err)}
	}
	return way, nil
}

// handOvers are the words of --hand-over.
var handOvers = []string{"same", "copy", "wait", "verify"}

// addHandOver adds the flag about what happens to keys that outlive the freeze.
func addHandOver(fs *pflag.FlagSet, into *string) {
	fs.StringVar(into, "hand-over", "", "what keeps workers' keys that outlive the freeze away from what is published: same (no keys are vended), copy, wait or verify (default: the server's)")
}

func checkHandOver(name string) error {
	if name == "" || slices.Contains(handOvers, name) {
		return nil
	}
	return &usageError{fmt.Errorf("--hand-over %q: want same, copy, wait or verify", name)}
}

// api is the client of commands that need single calls only.
func (g *globals) api() (*client.Client, error) {
	c, err := g.connect(builder.Events{})
	if err != nil {
		return nil, err
	}
	return c.API(), nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func userAgent() string { return "sluice/" + buildVersion().Version }

// parseTarget reads database.table or database.table/partition.
func parseTarget(s string) (v1.Target, error) {
	path, partition, hasPartition := strings.Cut(s, "/")
	db, table, ok := strings.Cut(path, ".")
	if !ok || db == "" || table == "" || strings.Contains(table, ".") || hasPartition && partition == "" || strings.Contains(partition, "/") {
		return v1.Target{}, &usageError{fmt.Errorf("%q is no target: want database.table or database.table/partition", s)}
	}
	err := schema.CheckIdentifier(db)
	if err != nil {
		err = fmt.Errorf("database %w", err)
	} else if err = schema.CheckIdentifier(table); err != nil {
		err = fmt.Errorf("table %w", err)
	} else if hasPartition {
		err = checkPartition(partition)
	}
	if err != nil {
		return v1.Target{}, &usageError{fmt.Errorf("%q is no target: %w", s, err)}
	}
	return v1.Target{Database: db, Table: table, Partition: partition}, nil
}

// checkPartition checks the name of a partition: the values of its columns with $ between.
func checkPartition(name string) error {
	for value := range strings.SplitSeq(name, "$") {
		if err := schema.CheckIdentifier(value); err != nil {
			return fmt.Errorf("partition %w", err)
		}
	}
	return nil
}

// parseTable reads database.table.
func parseTable(s string) (v1.Target, error) {
	t, err := parseTarget(s)
	if err == nil && t.Partition != "" {
		err = &usageError{fmt.Errorf("%q names a partition: want database.table", s)}
	}
	return t, err
}

// parsePartition reads database.table/partition.
func parsePartition(s string) (v1.Target, error) {
	t, err := parseTarget(s)
	if err == nil && t.Partition == "" {
		err = &usageError{fmt.Errorf("%q names no partition: want database.table/partition", s)}
	}
	return t, err
}

// first reads the first argument.
func first(parse func(string) (v1.Target, error)) func([]string) (v1.Target, error) {
	return func(args []string) (v1.Target, error) { return parse(args[0]) }
}

// call makes a command that finds out what it is about before it speaks to the server.
func call[T any](g *globals, find func(args []string) (T, error), do func(context.Context, *client.Client, T) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		about, err := find(args)
		if err != nil {
			return err
		}
		api, err := g.api()
		if err != nil {
			return err
		}
		return do(cmd.Context(), api, about)
	}
}

// checkTimeout checks --timeout; 0 leaves it to the server.
func checkTimeout(d time.Duration) error {
	if d == 0 || d >= time.Millisecond {
		return nil
	}
	return &hinted{&usageError{fmt.Errorf("--timeout %s: a build cannot take less than 1ms", d)},
		"for example --timeout 2h30m; without it the server decides"}
}

// contextOf reads a build context from a file, or fetches it by its session id.
func (g *globals) contextOf(ctx context.Context, c *builder.Client, file, session string) (*v1.BuildContext, error) {
	switch {
	case file != "" && session != "":
		return nil, &usageError{errors.New("--context and --session exclude each other")}
	case session != "":
		return c.BuildContext(ctx, session)
	case file == "":
		return nil, &usageError{errors.New("which load? name its session in --session, or its build context file in --context")}
	}
	bc := new(v1.BuildContext)
	return bc, readJSON(file, bc)
}

// readJSON reads one JSON document of ours.
func readJSON(file string, into any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
