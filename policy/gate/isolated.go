package gate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// Limits of a child when Child leaves them zero.
const (
	DefaultChildMemory  = 1 << 30
	DefaultChildTimeout = 2 * time.Minute
)

// maxChildStack ends a child whose rules recurse without end early.
const maxChildStack = 256 << 20

// Child says how to start the process that tries a candidate.
type Child struct {
	// Command is the program and its arguments; the program must call Serve.
	Command []string
	// Memory is the most memory that the child may take, in bytes; 0 =
	// DefaultChildMemory. Where the system cannot enforce it (all but Linux), it is
	// what the Go runtime aims at.
	Memory int64
	// Timeout is the most time it may take; 0 = DefaultChildTimeout.
	Timeout time.Duration
}

// task is what a child reads first; the bundle follows it.
type task struct {
	Options Options `json:"options"`
	Memory  int64   `json:"memory"`
}

// Isolated is Run in a process of its own. Compiling has no bound in OPA, and some
// values make its evaluator overflow the stack, which ends a Go process whatever it
// recovers from; here it ends the child, and the candidate is refused for it. The
// error is for a child that could not be started or a context that ended.
func Isolated(ctx context.Context, b *policy.Bundle, o Options, c Child) (Report, error) {
	if c.Memory == 0 {
		c.Memory = DefaultChildMemory
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultChildTimeout
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var stdin bytes.Buffer
	if err := json.NewEncoder(&stdin).Encode(task{o, c.Memory}); err != nil {
		return Report{}, err
	}
	if _, err := b.WriteTo(&stdin); err != nil {
		return Report{}, fmt.Errorf("policy gate: %w", err)
	}
	cmd := exec.CommandContext(limited, c.Command[0], c.Command[1:]...)
	var stdout bytes.Buffer
	stderr := beginning{most: 64 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &stdin, &stdout, &stderr
	cmd.Env = []string{} // nothing that a policy could learn from
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return Report{}, fmt.Errorf("policy gate: %w", err)
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		return Report{}, ctx.Err()
	}
	var answer answer
	if err == nil {
		if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil {
			return Report{}, fmt.Errorf("policy gate: what the child said: %w", err)
		}
		if answer.Error != "" {
			return Report{}, errors.New(answer.Error)
		}
		return answer.Report, nil
	}
	why := fmt.Sprintf("the policy ended the process that tried it: %v: %s", err, stderr.first())
	if limited.Err() != nil {
		why = fmt.Sprintf("the gate did not end within %v", c.Timeout)
	}
	return Report{Revision: b.Revision(), Problems: []policy.Problem{{Code: CodeLimits, Message: why, Severity: policy.SeverityError}}, Elapsed: time.Since(start)}, nil
}

// answer is what a child writes.
type answer struct {
	Report Report `json:"report"`
	Error  string `json:"error,omitempty"`
}

// Serve is the child of Isolated: it reads what to try, limits its own process and
// writes a report. It is for a process that does nothing else.
func Serve(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var t task
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &t)
	}
	if err != nil {
		return fmt.Errorf("policy gate: what to try: %w", err)
	}
	debug.SetMaxStack(maxChildStack)
	debug.SetMemoryLimit(t.Memory / 4 * 3)
	if err := limitMemory(t.Memory); err != nil {
		return fmt.Errorf("policy gate: limiting memory: %w", err)
	}
	var a answer
	b, err := policy.ReadBundle(in, policy.Verify{})
	if err == nil {
		a.Report, err = Run(ctx, b, t.Options)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return json.NewEncoder(stdout).Encode(a)
}

// beginning keeps the beginning of what is written, up to most bytes.
type beginning struct {
	most int
	kept []byte
}

// Write implements io.Writer; it takes everything.
func (t *beginning) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[:min(len(p), t.most-len(t.kept))]...)
	return len(p), nil
}

// first is the line that says why a Go process ended.
func (t *beginning) first() string {
	lines := strings.Split(string(t.kept), "\n")
	for _, l := range lines {
		if strings.HasPrefix(l, "fatal error:") || strings.HasPrefix(l, "panic:") || strings.Contains(l, "out of memory") {
			return l
		}
	}
	return lines[0]
}
