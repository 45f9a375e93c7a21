package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/broker/audit"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/policy/gate"
	"github.com/fluss-sluice/sluice/policy/lifecycle"
	"github.com/fluss-sluice/sluice/policy/replay"
	"github.com/fluss-sluice/sluice/policy/revision"
	"github.com/fluss-sluice/sluice/policy/source"
	"github.com/fluss-sluice/sluice/session/credential"
	"github.com/fluss-sluice/sluice/session/pebblestore"
)

// policyConfig says who decides. With Dir a directory does, and it is edited there. Else
// revisions do, which are kept beside the sessions and edited by HTTP and command line.
type policyConfig struct {
	Dir      string        `yaml:"dir"`
	Timeout  time.Duration `yaml:"timeout"`
	MaxStale time.Duration `yaml:"max_stale"`
	Watch    bool          `yaml:"watch"`

	TwoPersons  bool               `yaml:"two_persons,omitempty"`
	Soak        time.Duration      `yaml:"soak,omitempty"`
	MinCoverage float64            `yaml:"min_coverage,omitempty"`
	Band        bandConfig         `yaml:"band,omitempty"`
	Source      policySourceConfig `yaml:"source,omitempty"`
}

// bandConfig is what decisions must stay in after an activation; Window 0 means none.
type bandConfig struct {
	MaxDenyRate  float64       `yaml:"max_deny_rate,omitempty"`
	MaxErrorRate float64       `yaml:"max_error_rate,omitempty"`
	Window       time.Duration `yaml:"window,omitempty"`
}

// policySourceConfig is where candidates come from by themselves; one of Git, File and
// URL at most.
type policySourceConfig struct {
	Git    string        `yaml:"git,omitempty"`    // a checkout on disk
	Folder string        `yaml:"folder,omitempty"` // of the policy in it
	File   string        `yaml:"file,omitempty"`   // an OPA bundle
	URL    string        `yaml:"url,omitempty"`    // of an OPA bundle
	Every  time.Duration `yaml:"every,omitempty"`
	// Keys that must have signed bundles: id to a file with the public key (PEM).
	Keys      map[string]string `yaml:"keys,omitempty"`
	Algorithm string            `yaml:"algorithm,omitempty"` // of the keys; EdDSA by default
	TokenFile string            `yaml:"token_file,omitempty"`
	// Activate asks for the activation of what passes the gate; else it is proposed only.
	Activate bool `yaml:"activate,omitempty"`
}

func (p *policyConfig) check(bad func(key, format string, args ...any)) {
	if p.Timeout <= 0 || p.MaxStale < 0 {
		bad("policy", "timeout must be positive and max_stale not negative")
	}
	if p.Soak < 0 || p.Soak > lifecycle.MaxSoak {
		bad("policy.soak", "want 0 to %v", lifecycle.MaxSoak)
	}
	if p.MinCoverage < 0 || p.MinCoverage > 100 {
		bad("policy.min_coverage", "want 0 to 100, in percent")
	}
	if b := p.Band; b != (bandConfig{}) && (b.Window <= 0 || b.MaxDenyRate < 0 || b.MaxDenyRate > 1 || b.MaxErrorRate < 0 || b.MaxErrorRate > 1) {
		bad("policy.band", "max_deny_rate and max_error_rate are 0 to 1, and window is positive")
	}
	set := 0
	for _, s := range []string{p.Source.Git, p.Source.File, p.Source.URL} {
		if s != "" {
			set++
		}
	}
	if set > 1 {
		bad("policy.source", "one of git, file and url, not several")
	}
	if set == 0 && (p.Source.Folder != "" || len(p.Source.Keys) > 0 || p.Source.Activate || p.Source.Every != 0) {
		bad("policy.source", "it names neither git nor file nor url")
	}
	if p.Source.Every < 0 {
		bad("policy.source.every", "must not be negative")
	}
	managed := p.TwoPersons || p.Soak != 0 || p.MinCoverage != 0 || p.Band != (bandConfig{}) || set > 0
	if p.Dir != "" && managed {
		bad("policy.dir", "with a directory the rules change by editing it: two_persons, soak, min_coverage, band and source are for a server that keeps revisions itself")
	}
}

// gateCommand begins the process that tries candidates. It is not for people.
const gateCommand = "policy-gate"

func newGateCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: gateCommand, Short: "Try a candidate policy (used by sluiced itself)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return gate.Serve(cmd.Context(), os.Stdin, stdout) },
	}
}

// gate is how candidates are tried: in a process of their own where there is a program
// that knows how.
func (c *config) gate() lifecycle.Gate {
	// No cap on lifetimes: a grant without max_ttl leaves them to the server's limits,
	// which cut each one, and those of builds are longer than those of tokens.
	o := gate.Options{Coverage: c.Policy.MinCoverage}
	if len(c.gateProgram) == 0 {
		return func(ctx context.Context, b *policy.Bundle) (gate.Report, error) { return gate.Run(ctx, b, o) }
	}
	child := gate.Child{Command: c.gateProgram}
	return func(ctx context.Context, b *policy.Bundle) (gate.Report, error) {
		return gate.Isolated(ctx, b, o, child)
	}
}

// openLifecycle lets revisions in the store decide, unless a directory does.
func (s *service) openLifecycle(ctx context.Context, c config, store *pebblestore.Store, trail audit.Sink, log *slog.Logger) (*lifecycle.Manager, error) {
	if c.Policy.Dir != "" || c.policyData != nil {
		return nil, nil
	}
	log = log.With("part", "policy")
	mc := lifecycle.Config{
		Engine: s.policy, Store: revision.New(store.KV("policy")), Gate: c.gate(), TwoPersons: c.Policy.TwoPersons, Soak: c.Policy.Soak,
		Record: func(ctx context.Context, change revision.Change) error { return trail.Record(ctx, changeEvent(change)) }, Logger: log,
	}
	if b := c.Policy.Band; b.Window > 0 {
		mc.Band = &revision.Band{MaxDenyRate: b.MaxDenyRate, MaxErrorRate: b.MaxErrorRate, Window: b.Window}
	}
	m, err := lifecycle.Open(ctx, mc)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	s.onClose(m.Close)
	s.lifecycleMetrics(m)
	return m, s.followSource(c.Policy.Source, m, log)
}

// changeEvent is a change of the policy in the decision log.
func changeEvent(c revision.Change) audit.Event {
	detail := fmt.Sprintf("%s of policy %s by %s", c.Action, c.Revision, c.By)
	if c.Previous != "" {
		detail += ", before it " + c.Previous
	}
	if c.Reason != "" {
		detail += ": " + c.Reason
	}
	return audit.Event{Time: c.At, Action: "policy." + c.Action, Outcome: audit.Allow, Revision: c.Revision, Detail: detail}
}

// followSource proposes what a source holds, and activates it where that is wanted.
func (s *service) followSource(c policySourceConfig, m *lifecycle.Manager, log *slog.Logger) error {
	src, err := c.open()
	if err != nil || src == nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	start := time.Now()
	go func() {
		defer close(done)
		_ = source.Follow(ctx, src, c.Every, func(ctx context.Context, snap source.Snapshot, err error) {
			if err == nil {
				err = take(ctx, m, snap, c.Activate, start)
				start = time.Time{} // what comes from now on is new
			}
			if err != nil && ctx.Err() == nil {
				log.Error("the policy source brought nothing that can be used; what is in force stays", "source", src.String(), "error", err)
			}
		})
	}()
	s.onClose(func() error {
		stop()
		<-done
		return nil
	})
	return nil
}

// take proposes what a source holds and has it put in force. What was stored before start
// and is not in force was replaced or rolled back since, or is a candidate: reading it
// once more is no reason to put it in force.
func take(ctx context.Context, m *lifecycle.Manager, snap source.Snapshot, activate bool, start time.Time) error {
	meta, _, err := m.Propose(ctx, lifecycle.Proposal{
		Bundle: snap.Bundle, Author: snap.Meta.Author, Message: snap.Meta.Message, Source: snap.Meta.Source,
	})
	if err != nil || !activate {
		return err
	}
	if s, _ := m.State(); meta.Time.Before(start) && s.Active != meta.ID {
		return fmt.Errorf("policy %s was stored before this start, and %s is in force: change the source, or run `sluice policy activate %.12s --expect any`", meta.ID, s.Active, meta.ID)
	}
	_, err = m.Activate(ctx, lifecycle.Activation{Revision: meta.ID, By: snap.Meta.Author, Reason: snap.Meta.Message, Soak: -1})
	return err
}

func (c *policySourceConfig) open() (source.Source, error) {
	const key = "policy.source"
	v := policy.Verify{Keys: map[string]policy.VerifyKey{}}
	for id, file := range c.Keys {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s.keys: %w", key, err)
		}
		algorithm := c.Algorithm
		if algorithm == "" {
			algorithm = "EdDSA"
		}
		v.Keys[id] = policy.VerifyKey{Algorithm: algorithm, Key: credential.New(string(text))}
	}
	switch {
	case c.Git != "":
		if len(c.Keys) > 0 {
			return nil, errors.New(key + ".keys: are for bundles; a checkout is trusted as it is")
		}
		return source.NewGit(c.Git, c.Folder)
	case c.File != "":
		return source.NewFile(c.File, v, nil), nil
	case c.URL != "":
		o := source.URLOptions{Verify: v}
		if c.TokenFile != "" {
			var err error
			if o.Token, err = secretFile(key+".token_file", c.TokenFile); err != nil {
				return nil, err
			}
		}
		return source.NewURL(c.URL, o)
	}
	return nil, nil
}

// lifecycleMetrics tell what is in force and what a shadow sees.
func (s *service) lifecycleMetrics(m *lifecycle.Manager) {
	s.reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_policy_emergency", Help: "1 while a policy decides that was put in force past approval and soak.",
		}, func() float64 {
			if st, _ := m.State(); st.Emergency {
				return 1
			}
			return 0
		}),
		&shadowCollector{m},
	)
}

// shadowCollector reads the counters of the policy that rides along, which begin anew
// with each one.
type shadowCollector struct{ m *lifecycle.Manager }

var (
	shadowDecided = prometheus.NewDesc("sluice_policy_shadow_decisions_total", "Requests that the shadow policy decided along.", []string{"revision"}, nil)
	shadowDropped = prometheus.NewDesc("sluice_policy_shadow_dropped_total", "Requests of its share that came too fast for it.", []string{"revision"}, nil)
	shadowDiffers = prometheus.NewDesc("sluice_policy_shadow_differences_total", "Differences between the shadow policy and what was decided.", []string{"revision", "kind"}, nil)
)

// Describe implements prometheus.Collector.
func (c *shadowCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{shadowDecided, shadowDropped, shadowDiffers} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *shadowCollector) Collect(ch chan<- prometheus.Metric) {
	r, ok := c.m.Shadow()
	if !ok {
		return
	}
	ch <- prometheus.MustNewConstMetric(shadowDecided, prometheus.CounterValue, float64(r.Decided), r.Revision)
	ch <- prometheus.MustNewConstMetric(shadowDropped, prometheus.CounterValue, float64(r.Dropped), r.Revision)
	for _, kind := range replay.Kinds {
		ch <- prometheus.MustNewConstMetric(shadowDiffers, prometheus.CounterValue, float64(r.Differences[kind]), r.Revision, string(kind))
	}
}
