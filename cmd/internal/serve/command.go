package serve

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK       = 0
	exitFailed   = 1 // it could not start, or stopped because something broke
	exitBadUsage = 2 // flags or configuration
)

// Main is the command line of sluiced: it runs args and returns the exit code. Of the
// version, "" means what the Go tool knows.
func Main(args []string, version string, stdout, stderr io.Writer) int {
	failed := exitBadUsage // until serving starts, every error is one of usage
	root := newCommand(version, stdout, stderr, &failed)
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "sluiced: %s\n", strings.TrimSpace(err.Error()))
		return failed
	}
	return exitOK
}

// flags override the configuration file.
type flags struct {
	config, data, listen, policy, readyFile string
	tlsCert, tlsKey, logLevel, logFormat    string
	dev                                     bool
}

func newCommand(version string, stdout, stderr io.Writer, failed *int) *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:           "sluiced",
		Short:         "The Sluice service: sessions, policy, tokens and objects of bulk loads",
		Args:          cobra.NoArgs,
		Version:       versionText(version),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			c, err := f.load()
			if err != nil {
				return err
			}
			c.version = version
			if program, err := os.Executable(); err == nil {
				c.gateProgram = []string{program, gateCommand}
			}
			*failed = exitFailed
			return serve(c, stdout, stderr)
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	p := root.PersistentFlags()
	p.StringVar(&f.config, "config", "", "configuration file (YAML)")
	p.BoolVar(&f.dev, "dev", false, "development: embedded defaults, and POST /dev/token gives anybody any identity; loopback only")
	p.StringVar(&f.data, "data", "", "data directory (data_dir); with --dev a temporary one by default")
	p.StringVar(&f.listen, "listen", "", "address to listen on (listen); port 0 picks one")
	p.StringVar(&f.policy, "policy", "", "policy directory (policy.dir)")
	p.StringVar(&f.readyFile, "ready-file", "", "write the URL to this file once requests are served")
	p.StringVar(&f.tlsCert, "tls-cert", "", "certificate chain, PEM (tls.cert_file)")
	p.StringVar(&f.tlsKey, "tls-key", "", "private key, PEM (tls.key_file)")
	p.StringVar(&f.logLevel, "log-level", "", "debug, info, warn or error (log.level)")
	p.StringVar(&f.logFormat, "log-format", "", "json or text (log.format)")
	root.AddCommand(newConfigCommand(&f, stdout), newGateCommand(stdout))
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

func newConfigCommand(f *flags, stdout io.Writer) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check or print the configuration", Args: cobra.NoArgs}
	cmd.AddCommand(&cobra.Command{
		Use: "check", Short: "Check the configuration and exit", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := f.load(); err != nil {
				return err
			}
			fmt.Fprintln(stdout, "configuration is good")
			return nil
		},
	}, &cobra.Command{
		Use: "print", Short: "Print the configuration with its defaults", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := f.load()
			if err != nil {
				return err
			}
			b, err := yaml.Marshal(c)
			if err != nil {
				return err
			}
			_, err = stdout.Write(b)
			return err
		},
	})
	return cmd
}

// load reads, overrides, completes and checks the configuration.
func (f *flags) load() (config, error) {
	c := defaults()
	if f.config != "" {
		var err error
		if c, err = loadConfig(f.config); err != nil {
			return c, err
		}
	} else if !f.dev {
		return c, fmt.Errorf("either --config FILE or --dev is needed; --help explains")
	}
	for _, o := range []struct {
		to   *string
		flag string
	}{
		{&c.DataDir, f.data}, {&c.Listen, f.listen}, {&c.Policy.Dir, f.policy},
		{&c.TLS.CertFile, f.tlsCert}, {&c.TLS.KeyFile, f.tlsKey}, {&c.Log.Level, f.logLevel}, {&c.Log.Format, f.logFormat},
	} {
		if o.flag != "" {
			*o.to = o.flag
		}
	}
	c.dev, c.readyFile = f.dev, f.readyFile
	c.temporary = c.dev && c.DataDir == ""
	c.complete()
	if err := c.check(); err != nil {
		return c, fmt.Errorf("configuration:\n%w", err)
	}
	return c, nil
}

// versionText names the build: the linker's version, else what the Go tool knows.
func versionText(v string) string {
	if v == "" {
		v = "dev"
		if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
			v = b.Main.Version
		}
	}
	return fmt.Sprintf("sluiced %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
