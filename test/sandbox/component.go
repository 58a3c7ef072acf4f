package sandbox

import (
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/test/process"
)

// restartDelay is how long after its end a process is started again.
const restartDelay = time.Second

// Component is one of the sandbox's processes: the API server, the Machine API
// controllers, a replica of Holdfast. A test stops, restarts and pauses it; when it
// ends without being asked to, the sandbox fails, or starts it again.
type Component struct {
	// Name of the process and, with .log, of its file in the directory of logs.
	Name string

	// spec is made anew for each start: etcd's endpoints change meanwhile.
	spec   func() (process.Spec, error)
	failed func(error)
	// revive says whether a process that has ended without being asked to is started again; nil for never.
	revive func(*process.Process) bool

	mu     sync.Mutex
	proc   *process.Process
	wanted bool // started, and not stopped since
}

// Start runs the process. It does not wait until it is ready; one that runs is left alone.
func (c *Component) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start()
}

func (c *Component) start() error {
	if c.proc != nil && !closed(c.proc.Done()) {
		return nil
	}
	spec, err := c.spec()
	if err != nil {
		return err
	}
	proc, err := process.Start(spec)
	if err != nil {
		return err
	}
	c.proc, c.wanted = proc, true
	go c.watch(proc)
	return nil
}

// watch waits for the end of a process.
func (c *Component) watch(proc *process.Process) {
	<-proc.Done()
	err := proc.Err()
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Somebody else may have stopped or started the component since: before the decision, and before the restart.
	latest := func() bool { return c.wanted && c.proc == proc }
	switch {
	case c.revive != nil && !latest():
	case c.revive == nil || !c.revive(proc):
		c.failed(err)
	default:
		time.AfterFunc(restartDelay, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !latest() {
				return
			}
			if err := c.start(); err != nil {
				c.failed(err)
			}
		})
	}
}

// Process is the one that was started last; nil before the first start.
func (c *Component) Process() *process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc
}

// Stop ends the process in order; it does nothing if there is none.
func (c *Component) Stop() error { return c.stop(5 * time.Second) }

// Kill ends the process at once.
func (c *Component) Kill() error { return c.stop(0) }

func (c *Component) stop(grace time.Duration) error {
	c.mu.Lock()
	proc := c.proc
	c.wanted = false
	c.mu.Unlock()
	if proc == nil {
		return nil
	}
	return proc.Stop(grace)
}

// Restart kills the process, as a crash would, and starts it again.
func (c *Component) Restart() error {
	if err := c.Kill(); err != nil {
		return err
	}
	return c.Start()
}

// Pause stops the process from running, which keeps its connections open and silent.
func (c *Component) Pause() error { return c.Process().Signal(syscall.SIGSTOP) }

// Resume lets a paused process run again.
func (c *Component) Resume() error { return c.Process().Signal(syscall.SIGCONT) }
