package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/internal/durable"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/scope"
)

// envToken names the token that introspect and revoke are about.
const envToken = "SLUICE_TOKEN"

func newTokenCommand(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Exchange, inspect and revoke tokens",
		Long: `Exchange, inspect and revoke tokens. A token is shown only with --reveal; otherwise it
goes into a file that only you can read (--out), or is not kept.`,
	}
	c.AddCommand(newTokenExchange(g), newTokenIntrospect(g), newTokenRevoke(g), newTokenDev(g))
	return c
}

// keepFlags say what to do with a token that was issued.
type keepFlags struct {
	reveal bool
	out    string
}

func (k *keepFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&k.reveal, "reveal", false, "print the token itself")
	fs.StringVar(&k.out, "out", "", "write the token to this file, readable by you only")
}

// issued is the JSON of an issued token.
type issued struct {
	AccessToken string    `json:"access_token,omitempty"` // with --reveal only
	File        string    `json:"file,omitempty"`
	SHA256      string    `json:"sha256"` // as the audit log names it
	Scope       string    `json:"scope,omitempty"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// show prints or keeps a token.
func (k *keepFlags) show(g *globals, t client.Token) error {
	doc := issued{File: k.out, SHA256: t.Secret.Fingerprint(), Scope: t.Scope, ExpiresAt: t.ExpiresAt.UTC().Truncate(time.Second)}
	if k.out != "" {
		if err := durable.WriteFile(k.out, []byte(t.Secret.Reveal()+"\n"), 0o600); err != nil {
			return err
		}
	}
	if g.json() {
		if k.reveal {
			doc.AccessToken = t.Secret.Reveal()
		}
		return g.printJSON(doc)
	}
	if k.reveal {
		_, err := io.WriteString(g.stdout, t.Secret.Reveal()+"\n")
		return err
	}
	w := g.columns()
	if doc.Scope != "" {
		fmt.Fprintf(w, "scope\t%s\n", doc.Scope)
	}
	fmt.Fprintf(w, "expires\t%s\n", doc.ExpiresAt.Format(time.RFC3339))
	fmt.Fprintf(w, "sha256\t%s\n", doc.SHA256)
	if k.out != "" {
		fmt.Fprintf(w, "file\t%s\n", k.out)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if k.out == "" {
		g.remark("the token itself was not kept: see --out and --reveal")
	}
	return nil
}

func newTokenExchange(g *globals) *cobra.Command {
	var file, session, target string
	var scopes []string
	var ttl time.Duration
	var keep keepFlags
	c := &cobra.Command{
		Use:   "exchange (--context FILE | --session ID | --target TARGET) --scope SCOPE...",
		Short: "Exchange your identity token for a token of one load or target (RFC 8693)",
		Long: `Exchange your identity token for a token of one load or target (RFC 8693). Scopes are
bucket:N[-M]:write, bucket:N[-M]:read, manifest:write, session:commit, snapshot:read.`,
		Example: `  sluice token exchange --context orders.json --scope bucket:0-1:write --out worker.token`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := exchangeRequest(file, session, target, scopes)
			if err != nil {
				return err
			}
			req.TTL = ttl
			api, err := g.api()
			if err != nil {
				return err
			}
			t, err := api.Exchange(cmd.Context(), req)
			if err != nil {
				return fmt.Errorf("token for %s: %w", strings.Join(req.Scope, " "), err)
			}
			return keep.show(g, t)
		},
	}
	fs := c.Flags()
	fs.StringVar(&file, "context", "", "build context file of the load")
	fs.StringVar(&session, "session", "", "session id of the load")
	fs.StringVar(&target, "target", "", "target to read from, instead of a load")
	fs.StringSliceVar(&scopes, "scope", nil, "scope (repeatable)")
	fs.DurationVar(&ttl, "ttl", 0, "wish for its lifetime (default: the server's)")
	keep.add(fs)
	return c
}

func exchangeRequest(file, session, target string, scopes []string) (client.ExchangeRequest, error) {
	var req client.ExchangeRequest
	if len(scopes) == 0 {
		return req, &usageError{errors.New("what for? name at least one --scope, for example bucket:0:write")}
	}
	set, err := scope.Parse(strings.Join(scopes, " "))
	if err != nil {
		return req, &usageError{err}
	}
	req.Scope = strings.Fields(set.String())
	named := 0
	if file != "" {
		named++
		bc := new(v1.BuildContext)
		if err := readJSON(file, bc); err != nil {
			return req, err
		}
		req.SessionID = bc.Handle.BulkLoadID
	}
	if session != "" {
		named++
		req.SessionID = session
	}
	if target != "" {
		named++
		t, err := parseTarget(target)
		if err != nil {
			return req, err
		}
		req.Target = &t
	}
	if named != 1 {
		return req, &usageError{errors.New("name exactly one of --context, --session and --target")}
	}
	return req, nil
}

// tokenFlags name an existing token.
type tokenFlags struct{ file string }

func (t *tokenFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&t.file, "token-file", "", "file with the token, - for the standard input (or the token itself in "+envToken+")")
}

// read finds the token. It is no argument: arguments are seen by everybody on the machine.
func (t *tokenFlags) read(g *globals) (credential.Secret, error) {
	text := g.getenv(envToken)
	if t.file != "" {
		b, err := g.readInput(t.file)
		if err != nil {
			return credential.Secret{}, err
		}
		text = string(b)
	}
	if text = strings.TrimSpace(text); text == "" {
		return credential.Secret{}, &usageError{errors.New("which token? name its file in --token-file, or put it in " + envToken)}
	}
	return credential.New(text), nil
}

// asToken makes c do something with an existing token.
func asToken(g *globals, c *cobra.Command, do func(context.Context, *client.Client, credential.Secret) error) *cobra.Command {
	var which tokenFlags
	which.add(c.Flags())
	c.RunE = call(g, func([]string) (credential.Secret, error) { return which.read(g) }, do)
	return c
}

func newTokenIntrospect(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "introspect", Short: "Say what a token is good for (RFC 7662)", Args: cobra.NoArgs}
	return asToken(g, c, func(ctx context.Context, api *client.Client, tok credential.Secret) error {
		i, err := api.Introspect(ctx, tok)
		if err != nil {
			return fmt.Errorf("introspect: %w", err)
		}
		return g.printIntrospection(i)
	})
}

func (g *globals) printIntrospection(i *v1.Introspection) error {
	if g.json() {
		return g.printJSON(i)
	}
	w := g.columns()
	fmt.Fprintf(w, "active\t%v\n", i.Active)
	if i.Active {
		fmt.Fprintf(w, "subject\t%s\n", i.Subject)
		fmt.Fprintf(w, "scope\t%s\n", i.Scope)
		if i.Target != nil {
			fmt.Fprintf(w, "target\t%s\n", i.Target)
		}
		if i.Session != "" {
			fmt.Fprintf(w, "session\t%s (epoch %d)\n", i.Session, i.Epoch)
		}
		fmt.Fprintf(w, "expires\t%s\n", time.Unix(i.Expires, 0).UTC().Format(time.RFC3339))
		fmt.Fprintf(w, "id\t%s\n", i.ID)
		fmt.Fprintf(w, "policy\t%s\n", i.Policy)
		fmt.Fprintf(w, "decision\t%s\n", i.DecisionID)
	}
	return w.Flush()
}

func newTokenRevoke(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "revoke", Short: "End a token at once (RFC 7009)", Args: cobra.NoArgs}
	return asToken(g, c, func(ctx context.Context, api *client.Client, tok credential.Secret) error {
		if err := api.Revoke(ctx, tok); err != nil {
			return fmt.Errorf("revoke: %w", err)
		}
		return g.done("the token is not active any more", map[string]any{"revoked": tok.Fingerprint()})
	})
}

func newTokenDev(g *globals) *cobra.Command {
	var subject string
	var groups []string
	var ttl time.Duration
	var keep keepFlags
	c := &cobra.Command{
		Use:   "dev --subject NAME",
		Short: "Get an identity token from a server started with --dev",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if subject == "" {
				return &usageError{errors.New("for whom? name it in --subject")}
			}
			c, err := g.anonymous()
			if err != nil {
				return err
			}
			t, err := c.DevToken(cmd.Context(), v1.DevTokenRequest{Subject: subject, Groups: groups, TTLSeconds: int64(ttl / time.Second)})
			if err != nil {
				return fmt.Errorf("identity token for %q: %w", subject, err)
			}
			return keep.show(g, t)
		},
	}
	fs := c.Flags()
	fs.StringVar(&subject, "subject", "", "name to be")
	fs.StringSliceVar(&groups, "group", nil, "group to be in (repeatable)")
	fs.DurationVar(&ttl, "ttl", 0, "lifetime (default: the server's, 12h)")
	keep.add(fs)
	return c
}
