// Package flussoracle asks Fluss's own Java client: it makes tables, writes rows and
// reads them back with the code that Fluss's users run, so that a test can compare what
// Sluice did or read with what Fluss thinks of it.
//
// The client is a Java program (the directory java) that is compiled once into the
// user's cache and spoken to in lines of JSON. One Oracle makes one call at a time; a
// test that needs a writer in the background starts a second one.
//
// The Java client of 0.9.1 cannot read timestamps before 1970 that have parts of a
// millisecond from a log (FetchException), so neither can FullScan and LogScan.
//
// Rows are JSON objects here; ParseRow and FormatRow translate them to and from
// row.Value with a schema.
package flussoracle

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fluss-sluice/sluice/test/env"
)

//go:embed java/*.java
var sources embed.FS

// Options of an Oracle; the zero value authenticates as the cluster's Admin where it
// has SASL.
type Options struct {
	// User to authenticate as instead.
	User env.FlussUser
	// Heap is a size for java -Xmx; "" means 256m, which Load wants more of.
	Heap string
	// Config are options of the client, such as client.writer.batch-size.
	Config map[string]string
}

// Oracle is a running client. Its methods may be called concurrently and wait for each
// other. A call whose context ends ends the client: all later calls fail.
type Oracle struct {
	dir  string
	cmd  *exec.Cmd
	done <-chan struct{}

	mu     sync.Mutex // held for a call
	in     io.WriteCloser
	out    *bufio.Reader
	broken error
}

// Error is an exception of the client or the cluster.
type Error struct {
	Op      string
	Type    string // simple name of the exception's class, such as TableNotExistException
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %s", e.Op, e.Type, e.Message) }

// IsType reports whether err is an exception of that class.
func IsType(err error, class string) bool {
	var e *Error
	return errors.As(err, &e) && e.Type == class
}

// Start starts a client of a cluster; ctx governs the start only. An error wraps
// env.ErrUnavailable when there is no JDK.
func Start(ctx context.Context, cluster *env.Fluss, o Options) (*Oracle, error) {
	if o.User == (env.FlussUser{}) {
		o.User = cluster.Admin
	}
	if o.Heap == "" {
		o.Heap = "256m"
	}
	java, err := fs.Sub(sources, "java")
	if err != nil {
		return nil, err
	}
	classPath, err := env.CompileWithFluss(ctx, "fluss-oracle", java)
	if err != nil {
		return nil, fmt.Errorf("start oracle: %w", err)
	}
	if more := cluster.ClientClassPath(); more != "" {
		classPath += string(os.PathListSeparator) + more
	}
	oracle, err := launch(classPath, o.Heap)
	if err != nil {
		return nil, fmt.Errorf("start oracle: %w", err)
	}
	if err := oracle.call(ctx, "connect", args{"config": clientConfig(cluster, o)}, nil, nil); err != nil {
		return nil, errors.Join(err, oracle.Stop())
	}
	return oracle, nil
}

func clientConfig(cluster *env.Fluss, o Options) map[string]string {
	config := map[string]string{"bootstrap.servers": cluster.Bootstrap()}
	if o.User.Name != "" {
		maps.Copy(config, map[string]string{
			"client.security.protocol": "sasl", "client.security.sasl.mechanism": "PLAIN",
			"client.security.sasl.username": o.User.Name, "client.security.sasl.password": o.User.Password.Reveal(),
		})
	}
	maps.Copy(config, o.Config)
	return config
}

// launch starts the program without a connection.
func launch(classPath, heap string) (*Oracle, error) {
	dir, err := os.MkdirTemp("", "sluice-fluss-oracle-")
	if err != nil {
		return nil, err
	}
	o := &Oracle{dir: dir}
	if err := o.start(classPath, heap); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return o, nil
}

func (o *Oracle) start(classPath, heap string) error {
	log, err := os.Create(o.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	flags := []string{"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"}
	if o.cmd, err = env.JavaCommand(o.dir, heap, classPath, "Oracle", flags); err != nil {
		return err
	}
	o.cmd.Stderr = log
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		return err
	}
	// A pipe of our own: that of StdoutPipe would be closed by Wait with lines in it.
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer write.Close()
	o.cmd.Stdout, o.out = write, bufio.NewReaderSize(read, 1<<16)
	if o.done, err = env.StartOwned(o.cmd); err != nil {
		return errors.Join(err, read.Close())
	}
	go func() { // ends with the program
		<-o.done
		o.mu.Lock() // a call may still read
		defer o.mu.Unlock()
		_ = read.Close()
	}()
	return nil
}

func (o *Oracle) logFile() string { return filepath.Join(o.dir, "log") }

// Log is the end of what the client has logged, exceptions with their stack traces among
// it.
func (o *Oracle) Log() string {
	b, err := os.ReadFile(o.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-8000):])
}

// Stop ends the client, waits until it is gone, and removes its files.
func (o *Oracle) Stop() error {
	_ = o.cmd.Process.Kill() // it may be gone; a call that waits for it fails
	<-o.done
	return os.RemoveAll(o.dir)
}

// Need starts a client for one test and stops it afterwards, logging its log when the
// test has failed; it skips or fails the test when there is none.
func Need(t testing.TB, cluster *env.Fluss, o Options) *Oracle {
	t.Helper()
	oracle, err := Start(t.Context(), cluster, o)
	if err != nil {
		env.Missing(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(oracle.Log())
		}
		if err := oracle.Stop(); err != nil {
			t.Error(err)
		}
	})
	return oracle
}

// args are the arguments of an operation.
type args = map[string]any

// call runs an operation. Its rows go to each, unless that is nil, and its result into
// result.
func (o *Oracle) call(ctx context.Context, op string, a args, each func(json.RawMessage) error, result any) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken != nil {
		return fmt.Errorf("%s: %w", op, o.broken)
	}
	request := args{"op": op}
	maps.Copy(request, a)
	line, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	// What is left of an abandoned call would be taken for the next one's answer.
	stop := context.AfterFunc(ctx, func() { _ = o.cmd.Process.Kill() })
	defer stop()
	err = o.exchange(append(line, '\n'), op, each, result)
	var refused *Error
	if err != nil && !errors.As(err, &refused) {
		o.broken = fmt.Errorf("the client is gone: %w", errors.Join(context.Cause(ctx), err))
		_ = o.cmd.Process.Kill() // it may be gone
		return fmt.Errorf("%s: %w", op, o.broken)
	}
	return err
}

func (o *Oracle) exchange(request []byte, op string, each func(json.RawMessage) error, result any) error {
	if _, err := o.in.Write(request); err != nil {
		return err
	}
	for {
		line, err := o.out.ReadBytes('\n')
		if err != nil {
			return err
		}
		var answer struct {
			Row    json.RawMessage
			Result json.RawMessage
			Error  *Error
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("answer %q: %w", line, err)
		}
		switch {
		case answer.Error != nil:
			answer.Error.Op = op
			return answer.Error
		case answer.Row != nil && each != nil:
			if err := each(answer.Row); err != nil {
				return err
			}
		case answer.Row == nil:
			return decode(answer.Result, result)
		}
	}
}

// decode keeps numbers in rows as they are.
func decode(b json.RawMessage, into any) error {
	if into == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(into)
}
