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
	cmd     *exec.Cmd
	dir     string
	logName string        // in dir
	done    chan struct{} // closed when the process is gone and err is set
	err     *error        // of Wait

	stopOnce sync.Once
	stopErr  error
}

// tempDir makes the directory of one server.
func tempDir(kind Kind) (string, error) { return os.MkdirTemp("", "sluice-"+string(kind)+"-") }

// run starts a program in dir, which it owns from now on, also after an error.
func run(dir string, environ []string, name string, args ...string) (*process, error) {
	p, err := spawn(dir, "log", environ, name, args...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// spawn starts a program in dir, which it does not own: use kill, not stop. What it
// prints is appended to the file logName there. Its environment is only what is given
// and PATH: nobody's credentials, no proxies.
func spawn(dir, logName string, environ []string, name string, args ...string) (*process, error) {
	out, err := os.OpenFile(filepath.Join(dir, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(cleanEnviron(dir), environ...)
	done, waitErr, err := startOwned(cmd)
	_ = out.Close() // the program has its own
	if err != nil {
		return nil, err
	}
	return &process{cmd: cmd, dir: dir, logName: logName, done: done, err: waitErr}, nil
}

// startOwned starts a command that ends with this process. When it has ended, done is
// closed; the result of Wait may be read from then on.
func startOwned(cmd *exec.Cmd) (done chan struct{}, result *error, err error) {
	cmd.SysProcAttr = procAttr()
	done, result = make(chan struct{}), new(error)
	begun := make(chan error)
	go func() {
		// The thread must live as long as the process, or Pdeathsig ends it too early.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			*result = cmd.Wait()
			close(done)
		}
	}()
	return done, result, <-begun
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.done
}

// alive reports whether the process has not ended.
func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
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
			return fmt.Errorf("%w (%v): %s", errExited, *p.err, p.log())
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w\n%s", err, p.log())
		case <-time.After(30 * time.Millisecond):
		}
	}
}

func (p *process) stop() error {
	p.stopOnce.Do(func() {
		// Nothing of its data is needed: asking first would cost seconds.
		p.kill()
		p.stopErr = os.RemoveAll(p.dir)
	})
	return p.stopErr
}

func (p *process) log() string {
	b, err := os.ReadFile(filepath.Join(p.dir, p.logName))
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

func cleanEnviron(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
}
