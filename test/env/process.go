package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// errExited marks a server that ended by itself.
var errExited = errors.New("it ended by itself")

// process is a server's process in its temporary directory.
type process struct {
	cmd  *exec.Cmd
	dir  string
	done chan struct{} // closed when the process is gone and err is set
	err  error         // of Wait

	stopOnce sync.Once
	stopErr  error
}

// tempDir makes the directory of one server.
func tempDir(kind Kind) (string, error) { return os.MkdirTemp("", "sluice-"+string(kind)+"-") }

// run starts a program in dir, which it owns from now on, also after an error. Its
// environment is only what is given and PATH: nobody's credentials, no proxies.
func run(dir string, environ []string, name string, args ...string) (*process, error) {
	out, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, out, out, procAttr()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}, environ...)
	p := &process{cmd: cmd, dir: dir, done: make(chan struct{})}
	begun := make(chan error)
	go func() {
		// The thread must live as long as the process, or Pdeathsig ends it too early.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	err = errors.Join(<-begun, out.Close())
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// await calls ready until it returns nil, the process ends or ctx does.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%w (%v): %s", errExited, p.err, p.log())
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w\n%s", err, p.log())
		case <-time.After(30 * time.Millisecond):
		}
	}
}

func (p *process) stop() error {
	p.stopOnce.Do(func() {
		// Nothing of its data is needed: asking first would cost seconds.
		_ = p.cmd.Process.Kill() // it may be gone
		<-p.done
		p.stopErr = os.RemoveAll(p.dir)
	})
	return p.stopErr
}

func (p *process) log() string {
	b, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(tail(b, 4000))
}

// freePorts returns n different ports of 127.0.0.1 that are free now.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // only at the end, so that all differ
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
