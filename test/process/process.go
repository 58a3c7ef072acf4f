// Package process runs one child process for a test or the sandbox and makes
// sure that it never outlives its starter: the kernel kills the child when the
// starter dies, however it dies.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Spec says what to run.
type Spec struct {
	// Name is what errors call the process.
	Name string
	// Path is the binary.
	Path string
	Args []string
	// Env is the environment, as os.Environ has it; nil inherits the starter's.
	Env []string
	// Dir is the working directory; empty means the starter's.
	Dir string
	// Log is the file that standard output and error are appended to. It is required.
	Log string
	// Noise marks the lines of the log that tell nothing: those that hold it are
	// left out of errors.
	Noise string
}

// Roomy is the environment for large servers written in Go: it lets them use more memory, and so less of
// the processors for collecting garbage. In a test each runs its goroutines on one processor at a time: tests run
// many servers side by side, and it costs much to wake a thread on the other processor.
func Roomy() []string {
	env := append(os.Environ(), "GOGC=400")
	if testing.Testing() {
		env = append(env, "GOMAXPROCS=1")
	}
	return env
}

// Process is a child that was started. Its methods may be called from several
// goroutines.
type Process struct {
	spec     Spec
	cmd      *exec.Cmd
	stopping atomic.Bool
	done     chan struct{}
	err      error // set before done is closed
}

// Start runs the child in a process group of its own, so that a Ctrl-C in the
// terminal reaches the starter alone and the starter decides the order in
// which things stop.
func Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s: its log: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{spec: spec, cmd: cmd, done: make(chan struct{})}

	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	return p, nil
}

// run starts the child and waits for it on one operating system thread. The
// kernel sends Pdeathsig when the thread that forked ends, not the process, and
// Go ends threads as it likes unless a goroutine is locked to one.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	if !p.stopping.Load() {
		p.err = p.ended(err)
	}
	close(p.done)
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log is the file with the child's output.
func (p *Process) Log() string { return p.spec.Log }

// Done is closed when the child has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says why the child ended and quotes the last lines of its log. It is nil
// while the child runs and after an end that Stop asked for.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// ExitCode is the child's exit code; exited is false while it runs and when a signal ended it.
func (p *Process) ExitCode() (code int, exited bool) {
	select {
	case <-p.done:
		code = p.cmd.ProcessState.ExitCode()
		return code, code >= 0
	default:
		return 0, false
	}
}

// Ended says how the child ended, as "exit status 1" or "signal: killed"; "" while it runs.
func (p *Process) Ended() string {
	select {
	case <-p.done:
		return p.cmd.ProcessState.String()
	default:
		return ""
	}
}

// Signal sends a signal to the child; os.ErrProcessDone if there is none to send it to.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: sending %v: %w", p.spec.Name, s, err)
	}
	return nil
}

// Stop asks the child to end, kills it after the grace and waits for it. A
// grace of zero kills at once. A second Stop, or one of a child that is gone,
// does nothing.
func (p *Process) Stop(grace time.Duration) error {
	p.stopping.Store(true)
	if grace > 0 {
		// SIGCONT, since a child that was paused would not see the SIGTERM.
		if err := errors.Join(p.quiet(syscall.SIGTERM), p.quiet(syscall.SIGCONT)); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
			return nil
		case <-timer.C:
		}
	}
	if err := p.quiet(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

func (p *Process) quiet(s os.Signal) error {
	if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *Process) ended(err error) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended: %w; the end of its log, %s:\n%s", p.spec.Name, err, p.spec.Log, tail(p.spec.Log, 12, p.spec.Noise))
}

// Tail is the last lines of a file, long ones cut, indented for an error text; a file that
// cannot be read yields a line that says so.
func Tail(file string, lines int) string { return tail(file, lines, "") }

func tail(file string, lines int, noise string) string {
	const (
		most    = 1 << 20
		longest = 400 // of a line, in bytes: an audit log's lines are longer, and bury all else
	)
	b, err := readEnd(file, most)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	all := strings.Split(string(bytes.TrimSpace(b)), "\n")
	if noise != "" {
		all = slices.DeleteFunc(all, func(line string) bool { return strings.Contains(line, noise) })
	}
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	for i, line := range all {
		if len(line) > longest {
			all[i] = strings.ToValidUTF8(line[:longest], "") + "..."
		}
	}
	return "  " + strings.Join(all, "\n  ")
}

func readEnd(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, size-most), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}
