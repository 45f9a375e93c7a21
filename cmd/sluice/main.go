// Command sluice is the command line of Sluice: it creates tables, runs bulk loads
// from files, reads snapshots back and looks after sessions, tokens and policy.
// The manual is docs/cli.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/builder"
)

// version is set by the linker (see Makefile).
var version = ""

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly end, the second one ends at once.
	context.AfterFunc(ctx, stop)
	g := &globals{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, now: time.Now}
	code := run(ctx, g, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, g *globals, args []string) int {
	root := newRootCommand(g)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if !g.started {
		err = &usageError{err}
		if asksForJSON(args) {
			g.output = outputJSON // flags behind the fault have not been read
		}
	}
	if ctx.Err() != nil && !isUsage(err) {
		err = &interrupted{err}
	}
	f := describe(err)
	g.printFailure(f)
	return f.ExitCode
}

// newRootCommand builds the command tree.
func newRootCommand(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Load whole Apache Fluss primary-key tables from outside the cluster",
		Long: `Load whole Apache Fluss primary-key tables or partitions from files, through a
Sluice server that decides by policy who may write what.

  sluice table create shop.orders --from orders.parquet --primary-key id --buckets 4
  sluice load shop.orders 'orders/*.parquet'
  sluice scan shop.orders --limit 10

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 bad input data, 4 denied, 5 not found,
6 conflict, 7 unavailable, 130 interrupted. The manual is docs/cli.md.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := g.complete(); err != nil {
				return err
			}
			g.started = true
			return nil
		},
	}
	root.SetIn(g.stdin)
	root.SetOut(g.stdout)
	root.SetErr(g.stderr)
	g.addFlags(root.PersistentFlags())
	root.AddCommand(newTableCommand(g), newSessionCommand(g), newLoadCommand(g), newBuildCommand(g), newScanCommand(g),
		newSnapshotsCommand(g), newLakeCommand(g), newLookupCommand(g), newDescribeCommand(g), newTokenCommand(g), newCredsCommand(g), newDoctorCommand(g), newPolicyCommand(g), newAuditCommand(g), newVersionCommand(g))
	for _, c := range root.Commands() {
		refuseUnknown(c)
	}
	completeValues(root)
	return root
}

// words are the values of flags that take one of a few; the shell completes them.
var words = map[string][]string{
	"output": {outputTable, outputJSON}, "compression": {"snappy", "zstd", "none"}, "on-error": {"fail", "skip"},
	"outcome":          {"allow", "deny", "error"},
	"other-partitions": {"fail", "skip"}, "state": {"BEGUN", "COMMITTING", "COMMITTED", "ABORTED"},
	"schema": {"input", "decision", "data", "capabilities"}, "format": {"auto", "csv", "json", "parquet", "arrow"},
	"scan format": {"table", "json", "csv", "arrow", "parquet"}, "lookup format": {"table", "json", "csv", "arrow", "parquet"}, "creds format": credsFormats,
	"credentials": {"gateway", "sign", "sts"}, "hand-over": handOvers,
	"publication": publications, "visibility": visibilities, "missing": missings,
}

func completeValues(c *cobra.Command) {
	for name, values := range words {
		if own := words[c.Name()+" "+name]; own != nil {
			values = own
		}
		if c.LocalFlags().Lookup(name) != nil {
			// It fails for a flag that does not exist only.
			_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	for _, sub := range c.Commands() {
		completeValues(sub)
	}
}

// refuseUnknown makes a command that only has subcommands refuse other words
// instead of printing its help and succeeding.
func refuseUnknown(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil && c.Run == nil {
		c.Args = cobra.NoArgs
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
	}
}

// versionInfo is the JSON of `sluice version`.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			if g.json() {
				return g.printJSON(v)
			}
			commit := ""
			if v.Commit != "" {
				commit = " (" + v.Commit + ")"
			}
			_, err := fmt.Fprintf(g.stdout, "sluice %s%s %s %s/%s\n", v.Version, commit, v.Go, v.OS, v.Arch)
			return err
		},
	}
}

func buildVersion() versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}

// asksForJSON finds --output json in a command line that was not understood.
func asksForJSON(args []string) bool {
	for i, a := range args {
		switch a {
		case "--output=json", "-o=json", "-ojson":
			return true
		case "--output", "-o":
			return i+1 < len(args) && args[i+1] == outputJSON
		}
	}
	return false
}

func isUsage(err error) bool {
	var u *usageError
	return errors.As(err, &u) || errors.Is(err, builder.ErrRequest)
}
