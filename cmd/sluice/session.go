package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/internal/durable"
)

func newSessionCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "session", Short: "Begin, show, commit and abort bulk loads"}
	c.AddCommand(newSessionBegin(g), newSessionList(g), newSessionShow(g), newSessionContext(g), newSessionCommit(g), newSessionAbort(g))
	return c
}

// begun is the JSON of `session begin`.
type begun struct {
	SessionID    string           `json:"session_id"`
	SubmissionID string           `json:"submission_id"`
	Target       v1.Target        `json:"target"`
	Epoch        int64            `json:"epoch"`
	Buckets      int              `json:"buckets"`
	HandOver     string           `json:"hand_over,omitempty"`
	Publication  string           `json:"publication,omitempty"`
	Visibility   string           `json:"visibility,omitempty"`
	ContextFile  string           `json:"context_file,omitempty"`
	Context      *v1.BuildContext `json:"context"`
}

func newSessionBegin(g *globals) *cobra.Command {
	var submission, file, handOver string
	var timeout time.Duration
	var options loadOptions
	c := &cobra.Command{
		Use:   "begin DATABASE.TABLE[/PARTITION]",
		Short: "Begin a bulk load of an empty table or partition",
		Long: `Begin a bulk load of an empty table or partition and get its build context: what
workers need to know. It holds no credential and can be copied to them.

The same --submission-id begins the same load again, so that a lost answer can be
asked for once more.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := parseTarget(args[0])
			if err != nil {
				return err
			}
			if err := errors.Join(checkTimeout(timeout), checkHandOver(handOver)); err != nil {
				return err
			}
			wishes, err := options.read()
			if err != nil {
				return err
			}
			b, err := g.connect(builder.Events{})
			if err != nil {
				return err
			}
			if submission == "" {
				submission = uuid.NewString()
			}
			bc, err := b.Begin(cmd.Context(), builder.BeginRequest{Target: target, SubmissionID: submission, BuildTimeout: timeout, HandOver: handOver, Options: wishes})
			if err != nil && unknownOutcome(err) {
				return &hinted{err, "the load may have begun: repeat the command with --submission-id " + shellQuote(submission)}
			}
			if err != nil {
				return err
			}
			if file != "" {
				if err := writeDocument(file, bc); err != nil {
					return &hinted{err, fmt.Sprintf("the load has begun; get its context again: sluice session context %s --out FILE", bc.Handle.BulkLoadID)}
				}
			}
			return g.printBegun(begun{
				SessionID: bc.Handle.BulkLoadID, SubmissionID: submission, Target: bc.Handle.Target, Epoch: bc.Epoch,
				Buckets: len(bc.SnapshotIDs), HandOver: bc.Plan.HandOver, Publication: bc.Plan.Publication, Visibility: bc.Plan.Visibility, ContextFile: file, Context: bc,
			})
		},
	}
	f := c.Flags()
	f.StringVar(&submission, "submission-id", "", "your own id for this load (default: a random one)")
	f.StringVar(&file, "context", "", "write the build context to this file")
	f.DurationVar(&timeout, "timeout", 0, "how long the build may take (default: the server's, 24h)")
	addHandOver(f, &handOver)
	options.add(f)
	return c
}

func (g *globals) printBegun(b begun) error {
	if g.json() {
		return g.printJSON(b)
	}
	w := g.columns()
	fmt.Fprintf(w, "session\t%s\n", b.SessionID)
	fmt.Fprintf(w, "target\t%s\n", b.Target)
	fmt.Fprintf(w, "buckets\t%d\n", b.Buckets)
	fmt.Fprintf(w, "submission\t%s\n", b.SubmissionID)
	if b.HandOver != "" {
		fmt.Fprintf(w, "hand-over\t%s\n", b.HandOver)
	}
	if text := publicationText(b.Publication, b.Visibility); text != "" {
		fmt.Fprintf(w, "publication\t%s\n", text)
	}
	if b.ContextFile != "" {
		fmt.Fprintf(w, "context\t%s\n", b.ContextFile)
	}
	return w.Flush()
}

// writeDocument writes one of our JSON files. None of them holds a secret.
func writeDocument(file string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(file, append(b, '\n'), 0o644)
}

func newSessionList(g *globals) *cobra.Command {
	var target string
	var states []string
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List bulk loads", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := client.SessionFilter{States: upper(states)}
			if target != "" {
				t, err := parseTarget(target)
				if err != nil {
					return err
				}
				f.Target = &t
			}
			api, err := g.api()
			if err != nil {
				return err
			}
			list, err := listSessions(cmd.Context(), api, f, limit)
			if err != nil {
				return fmt.Errorf("list sessions: %w", err)
			}
			if g.json() {
				return g.printJSON(v1.SessionList{Sessions: list})
			}
			w := g.columns()
			fmt.Fprintln(w, "SESSION\tTARGET\tSTATE\tPHASE\tROWS\tCREATOR\tCREATED")
			for _, s := range list {
				rows := ""
				if s.Stats != nil && s.Stats.Rows >= 0 {
					rows = grouped(s.Stats.Rows)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.ID, s.Target, s.State, s.Phase, rows, s.Creator, s.Created.UTC().Format(time.RFC3339))
			}
			return w.Flush()
		},
	}
	f := c.Flags()
	f.StringVar(&target, "target", "", "only loads of this target")
	f.StringSliceVar(&states, "state", nil, "only these states: BEGUN, COMMITTING, COMMITTED, ABORTED")
	f.IntVar(&limit, "limit", 0, "at most this many (default: all)")
	return c
}

func upper(in []string) []string {
	var out []string
	for _, s := range in {
		out = append(out, strings.ToUpper(s))
	}
	return out
}

// listSessions follows the pages. The result is never nil.
func listSessions(ctx context.Context, api *client.Client, f client.SessionFilter, limit int) ([]v1.Session, error) {
	out := []v1.Session{}
	for {
		if limit > 0 {
			f.Limit = limit - len(out)
		}
		page, err := api.Sessions(ctx, f)
		if err != nil {
			return nil, err
		}
		out = append(out, page.Sessions...)
		if page.Next == "" || len(page.Sessions) == 0 || limit > 0 && len(out) >= limit {
			return out, nil
		}
		f.After = page.Next
	}
}

// sessionOf finds the session that an argument or the context file names.
func sessionOf(file *string) func(args []string) (string, error) {
	return func(args []string) (string, error) {
		switch {
		case len(args) == 1 && *file == "":
			return args[0], nil
		case len(args) == 0 && *file != "":
			bc := new(v1.BuildContext)
			err := readJSON(*file, bc)
			return bc.Handle.BulkLoadID, err
		}
		return "", &usageError{errors.New("which session? name its id, or its build context file in --context")}
	}
}

// asSession makes c do something with a session and show it.
func asSession(g *globals, c *cobra.Command, what string, do func(context.Context, *client.Client, string) (*v1.Session, error)) *cobra.Command {
	var file string
	c.RunE = call(g, sessionOf(&file), func(ctx context.Context, api *client.Client, id string) error {
		s, err := do(ctx, api, id)
		if err != nil {
			return fmt.Errorf("%s %s: %w", what, id, err)
		}
		return g.printSession(s)
	})
	c.Flags().StringVar(&file, "context", "", "build context file")
	return c
}

func newSessionShow(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "show (SESSION | --context FILE)", Short: "Show a bulk load", Args: cobra.MaximumNArgs(1)}
	return asSession(g, c, "session", func(ctx context.Context, api *client.Client, id string) (*v1.Session, error) {
		return api.Session(ctx, id)
	})
}

func (g *globals) printSession(s *v1.Session) error {
	if g.json() {
		return g.printJSON(s)
	}
	w := g.columns()
	fmt.Fprintf(w, "session\t%s\n", s.ID)
	fmt.Fprintf(w, "target\t%s\n", s.Target)
	fmt.Fprintf(w, "state\t%s (%s)\n", s.State, s.Phase)
	fmt.Fprintf(w, "epoch\t%d\n", s.Epoch)
	fmt.Fprintf(w, "buckets\t%d\n", s.Buckets)
	fmt.Fprintf(w, "creator\t%s\n", s.Creator)
	fmt.Fprintf(w, "created\t%s\n", s.Created.UTC().Format(time.RFC3339))
	fmt.Fprintf(w, "updated\t%s\n", s.Updated.UTC().Format(time.RFC3339))
	if s.State == "BEGUN" {
		fmt.Fprintf(w, "build deadline\t%s\n", s.BuildDeadline.UTC().Format(time.RFC3339))
	}
	if s.Manifest != nil {
		fmt.Fprintf(w, "manifest\t%s (%d bytes)\n", s.Manifest.Path, s.Manifest.Length)
	}
	if s.ValidationError != "" {
		fmt.Fprintf(w, "refused\t%s\n", s.ValidationError)
	}
	if s.Stats != nil {
		fmt.Fprintf(w, "committed\t%s\n", statsText(*s.Stats))
	}
	if s.AbortReason != "" {
		fmt.Fprintf(w, "aborted\t%s %s\n", s.AbortReason, s.AbortMessage)
	}
	if s.TokensLiveUntil != nil {
		fmt.Fprintf(w, "tokens verify until\t%s (every use is refused already)\n", s.TokensLiveUntil.UTC().Format(time.RFC3339))
	}
	if s.HandOver != "" {
		fmt.Fprintf(w, "hand-over\t%s\n", s.HandOver)
	}
	if s.KeysLiveUntil != nil {
		fmt.Fprintf(w, "keys live until\t%s\n", keysText(*s.KeysLiveUntil, g.now()))
	}
	if s.Verification != nil {
		fmt.Fprintf(w, "verification\t%s\n", verificationText(*s.Verification))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return g.warnChanged(s)
}

// keysText says whether vended keys still live.
func keysText(until, now time.Time) string {
	if now.Before(until) {
		return until.UTC().Format(time.RFC3339) + " (the object store accepts keys that workers were given until then)"
	}
	return until.UTC().Format(time.RFC3339) + " (expired)"
}

func verificationText(v v1.Verification) string {
	switch {
	case v.Error != "":
		return "FAILED: " + v.Error
	case v.Done != nil:
		return "passed " + v.Done.UTC().Format(time.RFC3339)
	}
	return "due " + v.Due.UTC().Format(time.RFC3339)
}

// warnChanged says aloud that published files are not what was published: --quiet is
// no reason to keep that back.
func (g *globals) warnChanged(s *v1.Session) error {
	if s.Verification == nil || s.Verification.Error == "" {
		return nil
	}
	_, err := fmt.Fprintf(plain{g.stderr}, "WARNING: files of %s were changed after session %s was published: %s\n  → do not trust this table: drop and load it again, and find out who held keys of the session (audit log)\n",
		s.Target, s.ID, s.Verification.Error)
	return err
}

func statsText(s v1.Stats) string {
	text := fmt.Sprintf("%s files, %s", grouped(s.Files), sizeText(s.Bytes))
	if s.Rows >= 0 {
		text = grouped(s.Rows) + " rows, " + text
	}
	return text
}

func newSessionContext(g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "context SESSION", Short: "Get the build context of an unfinished load again", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := g.connect(builder.Events{})
			if err != nil {
				return err
			}
			bc, err := b.BuildContext(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if out == "" {
				return g.printJSON(bc)
			}
			if err := writeDocument(out, bc); err != nil {
				return err
			}
			return g.done("wrote "+out, map[string]any{"context_file": out})
		},
	}
	c.Flags().StringVar(&out, "out", "", "write it to this file (default: print it)")
	return c
}

// bucketResult is what `build` writes and `session commit` reads.
type bucketResult struct {
	Version    int              `json:"version"` // 1
	BulkLoadID string           `json:"bulk_load_id"`
	Target     v1.Target        `json:"target"`
	Rows       int64            `json:"rows"`     // read and added, all rows of a key counted
	Rejected   int64            `json:"rejected"` // set aside by --on-error skip
	Buckets    []v1.BucketFiles `json:"buckets"`
}

func newSessionCommit(g *globals) *cobra.Command {
	var file, session string
	c := &cobra.Command{
		Use:   "commit (--context FILE | --session ID) RESULT...",
		Short: "Publish a load from the results of its workers",
		Long: `Publish a load from the result files of its workers (sluice build --result), which
together hold every bucket once. Readers see all buckets at once or none.

When the outcome is unknown, for example after a lost connection, repeat the same
command: the answer is the same for ever after.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := readResults(args)
			if err != nil {
				return err
			}
			way, err := g.way(cmd.Flags())
			if err != nil {
				return err
			}
			b, err := g.connectBy(way, g.commitEvents())
			if err != nil {
				return err
			}
			bc, err := g.contextOf(cmd.Context(), b, file, session)
			if err != nil {
				return err
			}
			s, err := b.Commit(cmd.Context(), bc, files)
			if err != nil {
				return commitFailed(err, "sluice session commit --context FILE RESULT...")
			}
			return g.printSession(s)
		},
	}
	c.Flags().StringVar(&file, "context", "", "build context file")
	c.Flags().StringVar(&session, "session", "", "session id, instead of --context")
	addWay(c.Flags())
	return c
}

// commitEvents say why a commit takes long.
func (g *globals) commitEvents() builder.Events {
	last := ""
	return builder.Events{CommitWaiting: func(w builder.Waiting) {
		if text := w.String(); text != last {
			last = text
			g.remark("commit goes on: %s", text)
		}
	}}
}

// commitFailed says how to go on when the outcome of a commit is unknown.
func commitFailed(err error, again string) error {
	if client.Unanswered(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &hinted{err, "the outcome is unknown: repeat the same command, do not abort: " + again}
	}
	return err
}

// readResults reads result files, in any order.
func readResults(names []string) ([]v1.BucketFiles, error) {
	var out []v1.BucketFiles
	for _, name := range names {
		var r bucketResult
		if err := readJSON(name, &r); err != nil {
			return nil, err
		}
		if r.Version != 1 || r.BulkLoadID == "" || len(r.Buckets) == 0 {
			return nil, fmt.Errorf("%s is no result of `sluice build`", name)
		}
		out = append(out, r.Buckets...)
	}
	slices.SortStableFunc(out, func(a, b v1.BucketFiles) int { return a.BucketID - b.BucketID })
	return out, nil
}

func newSessionAbort(g *globals) *cobra.Command {
	var giveUp bool
	c := &cobra.Command{
		Use: "abort (SESSION | --context FILE)", Short: "Give a bulk load up", Args: cobra.MaximumNArgs(1),
		Long: `Give a bulk load up that is not decided yet.

With --give-up, end one that is decided and whose publication is stuck, for example
because others wrote into a bucket. What was published stays as it is; the answer says
which buckets serve the load and which do not.`,
	}
	c.Flags().BoolVar(&giveUp, "give-up", false, "end a decided load whose publication is stuck; for operators")
	return asSession(g, c, "abort session", func(ctx context.Context, api *client.Client, id string) (*v1.Session, error) {
		s, err := api.Session(ctx, id)
		if err != nil {
			return nil, err
		}
		if giveUp {
			return api.GiveUp(ctx, id, s.Epoch)
		}
		return api.Abort(ctx, id, s.Epoch)
	})
}
