package serve

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fluss-sluice/sluice/broker/audit"
)

// auditConfig is the decision log: docs/audit.md.
type auditConfig struct {
	Dir          string        `yaml:"dir"`
	Sync         bool          `yaml:"sync"`
	SegmentBytes int64         `yaml:"segment_bytes"`
	SegmentAge   time.Duration `yaml:"segment_age"`
	Keep         time.Duration `yaml:"keep"`
	KeepBytes    int64         `yaml:"keep_bytes"`
	OnFull       string        `yaml:"on_full"`
	Redact       []string      `yaml:"redact,omitempty"`
	// Copy is where segments that have ended are copied to.
	Copy auditCopy `yaml:"copy,omitempty"`
}

// auditCopy is a local directory, or a bucket when root begins with s3://.
type auditCopy struct {
	Root string   `yaml:"root,omitempty"`
	S3   s3Config `yaml:"s3,omitempty"`
}

func (a auditCopy) directory() *directoryConfig { return &directoryConfig{Root: a.Root, S3: a.S3} }

func auditDefaults() auditConfig {
	return auditConfig{SegmentBytes: 64 << 20, SegmentAge: 24 * time.Hour, OnFull: string(audit.Stop)}
}

func (a *auditConfig) complete(dataDir string) {
	if a.Dir == "" && dataDir != "" {
		a.Dir = filepath.Join(dataDir, "audit")
	}
}

func (a *auditConfig) check(bad func(key, format string, args ...any)) {
	if a.SegmentBytes < 4096 || a.SegmentAge < time.Second {
		bad("audit", "segment_bytes must be at least 4096 and segment_age 1s")
	}
	if a.Keep < 0 || a.KeepBytes < 0 {
		bad("audit", "keep and keep_bytes must not be negative; 0 keeps for ever")
	}
	if a.OnFull != string(audit.Stop) && a.OnFull != string(audit.Continue) {
		bad("audit.on_full", "%q is neither %s nor %s", a.OnFull, audit.Stop, audit.Continue)
	}
	if err := audit.CheckRedaction(a.Redact); err != nil {
		bad("audit.redact", "%v", err)
	}
	a.Copy.directory().checkAs("audit.copy", bad)
}

// openAudit opens the decision log and what it is copied to.
func (s *service) openAudit(ctx context.Context, c auditConfig, log *slog.Logger) (*audit.Log, error) {
	ac := audit.Config{
		Sync: c.Sync, MaxSize: c.SegmentBytes, MaxAge: c.SegmentAge, Keep: c.Keep, KeepBytes: c.KeepBytes,
		OnFull: audit.OnFull(c.OnFull), Redact: c.Redact, Logger: log.With("part", "audit"),
	}
	if c.Copy.Root != "" {
		store, err := openStore(ctx, *c.Copy.directory())
		if err != nil {
			return nil, fmt.Errorf("audit.copy: %w", err)
		}
		s.onClose(store.Close)
		ac.Copy = store
	}
	l, err := audit.Open(c.Dir, ac)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	s.onClose(l.Close)
	auditMetrics(s.reg, l)
	return l, nil
}

// auditMetrics show the state of the decision log.
func auditMetrics(reg *prometheus.Registry, l *audit.Log) {
	counter := func(name, help string, value func(audit.Stats) uint64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(l.Stats())) }))
	}
	gauge := func(name, help string, value func(audit.Stats) int64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value(l.Stats())) }))
	}
	counter("sluice_audit_events_total", "Events written to the decision log.", func(s audit.Stats) uint64 { return s.Events })
	counter("sluice_audit_refused_total", "Requests refused because the decision log could not be written.", func(s audit.Stats) uint64 { return s.Refused })
	counter("sluice_audit_lost_total", "Events lost while requests went on (audit.on_full: continue).", func(s audit.Stats) uint64 { return s.Lost })
	counter("sluice_audit_copied_total", "Segments copied to the object store.", func(s audit.Stats) uint64 { return s.Copied })
	counter("sluice_audit_removed_total", "Segments deleted by retention.", func(s audit.Stats) uint64 { return s.Removed })
	counter("sluice_audit_keeping_failed_total", "Attempts to copy or to delete segments that failed.", func(s audit.Stats) uint64 { return s.Failed })
	gauge("sluice_audit_seq", "Number of the last line of the decision log: what must be there when somebody verifies it.", func(s audit.Stats) int64 { return int64(s.Seq) })
	gauge("sluice_audit_segments", "Segments of the decision log on disk.", func(s audit.Stats) int64 { return int64(s.Segments) })
	gauge("sluice_audit_bytes", "Their size.", func(s audit.Stats) int64 { return s.Bytes })
	gauge("sluice_audit_uncopied_segments", "Segments that have ended and are not copied yet.", func(s audit.Stats) int64 { return int64(s.Uncopied) })
}
