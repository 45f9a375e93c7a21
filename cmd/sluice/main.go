// Command sluice is the command line of Sluice: it creates tables, runs bulk loads
// from files, reads snapshots back and looks after sessions, tokens and policy.
// The manual is docs/cli.md.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	g := &globals{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, now: time.Now}
	code := run(ctx, g, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, g *globals, args []string) int {
	root := newRootCommand(g)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		io.WriteString(g.stderr, "sluice: "+err.Error()+"\n")
		return 1
	}
	return 0
}

// newRootCommand builds the command tree.
func newRootCommand(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "Load whole Apache Fluss primary-key tables from outside the cluster",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(g.stdin)
	root.SetOut(g.stdout)
	root.SetErr(g.stderr)
	f := root.PersistentFlags()
	f.StringVar(&g.url, "url", "", "server (env SLUICE_URL)")
	f.StringVar(&g.identityTokenFile, "identity-token-file", "", "file with your identity token (env SLUICE_IDENTITY_TOKEN_FILE)")
	f.StringVar(&g.devSubject, "dev-subject", "", "get an identity token for this name from a server started with --dev")
	f.StringVarP(&g.output, "output", "o", outputTable, "output: table or json")
	f.BoolVarP(&g.quiet, "quiet", "q", false, "no progress")
	return root
}
