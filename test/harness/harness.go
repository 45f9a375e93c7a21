// Package harness starts the real programs for tests, the demo and benchmarks:
// it builds sluiced and sluice once, runs brokers on loopback ports of their
// choosing, and kills them when asked.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// readyTimeout bounds a broker's start. It is generous: a loaded two-core machine
// running the race detector needs most of a second.
const readyTimeout = 60 * time.Second

// Bins are the built programs.
type Bins struct {
	Sluiced, Sluice string
}

// BinsIn names the programs in a directory that `make build` filled.
func BinsIn(dir string) Bins {
	return Bins{Sluiced: filepath.Join(dir, "sluiced"), Sluice: filepath.Join(dir, "sluice")}
}

// Build builds both programs into dir. With race they carry the race detector
// (and need a C compiler).
func Build(dir string, race bool) (Bins, error) {
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/fluss-sluice/sluice/cmd/...")...)
	if race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return Bins{}, fmt.Errorf("go build ./cmd/...: %w\n%s", err, out)
	}
	return BinsIn(dir), nil
}

// Options start a broker.
type Options struct {
	Bins   Bins
	Data   string   // data directory, kept between starts
	Policy string   // policy directory; empty = the shipped default
	Env    []string // added to the environment
	Args   []string // further flags
	Log    io.Writer
}

// Broker is a running sluiced.
type Broker struct {
	URL string

	opt  Options
	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed when the process has been reaped
	err  error         // its exit error, valid after done
}

// Start runs sluiced with the development issuer on a loopback port and waits
// until it is ready.
func Start(ctx context.Context, o Options) (*Broker, error) {
	ready := filepath.Join(o.Data, "ready")
	if err := os.MkdirAll(o.Data, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	args := []string{"--dev", "--data", filepath.Join(o.Data, "sluiced"), "--listen", "127.0.0.1:0", "--ready-file", ready}
	if o.Policy != "" {
		args = append(args, "--policy", o.Policy)
	}
	b := &Broker{opt: o, log: &tail{also: o.Log}, done: make(chan struct{})}
	b.cmd = exec.Command(o.Bins.Sluiced, append(args, o.Args...)...)
	b.cmd.Env = append(os.Environ(), o.Env...)
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		b.err = b.cmd.Wait()
		close(b.done)
	}()
	if err := b.waitReady(ctx, ready); err != nil {
		b.Kill()
		return nil, err
	}
	return b, nil
}

func (b *Broker) waitReady(ctx context.Context, file string) error {
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if url, err := os.ReadFile(file); err == nil && len(bytes.TrimSpace(url)) > 0 {
			b.URL = strings.TrimSpace(string(url))
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.done:
			return fmt.Errorf("sluiced ended before it was ready: %v\n%s", b.err, b.log)
		case <-deadline.C:
			return fmt.Errorf("sluiced was not ready within %v\n%s", readyTimeout, b.log)
		case <-tick.C:
		}
	}
}

// Kill ends the process without warning and waits for it.
func (b *Broker) Kill() {
	_ = b.cmd.Process.Kill()
	<-b.done
}

// Stop asks the process to drain and returns its exit error.
func (b *Broker) Stop() error {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-b.done:
		return b.err
	case <-time.After(30 * time.Second):
		b.Kill()
		return fmt.Errorf("sluiced did not drain within 30 s\n%s", b.log)
	}
}

// Exited reports whether the process has ended, for brokers that kill themselves
// at a crash point.
func (b *Broker) Exited() <-chan struct{} { return b.done }

// PID is the process id.
func (b *Broker) PID() int { return b.cmd.Process.Pid }

// Log is what the process wrote, its last mebibyte.
func (b *Broker) Log() string { return b.log.String() }

// CLI runs sluice against the broker as a development subject and returns its
// standard output. A failure carries the exit code and standard error.
func (b *Broker) CLI(ctx context.Context, subject string, args ...string) ([]byte, error) {
	return b.opt.Bins.Run(ctx, b.URL, subject, nil, args...)
}

// Run runs sluice against a broker's URL.
func (bins Bins) Run(ctx context.Context, url, subject string, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, bins.Sluice, append([]string{"--url", url, "--dev-subject", subject}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), &CLIError{Args: args, Code: cmd.ProcessState.ExitCode(), Stderr: errs.String(), Err: err}
	}
	return out.Bytes(), nil
}

// CLIError is a failed run of the CLI.
type CLIError struct {
	Args   []string
	Code   int
	Stderr string
	Err    error
}

func (e *CLIError) Error() string {
	return fmt.Sprintf("sluice %s: exit %d: %s", strings.Join(e.Args, " "), e.Code, strings.TrimSpace(e.Stderr))
}

func (e *CLIError) Unwrap() error { return e.Err }

// tail keeps the last mebibyte written to it.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	also io.Writer
}

const tailSize = 1 << 20

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	if t.also != nil {
		return t.also.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
