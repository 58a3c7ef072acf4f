package sandbox

import (
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/test/process"
)

// Component is one of the sandbox's processes: the API server, the Machine API
// controllers, Holdfast. A test stops, restarts and pauses it; when it ends
// without being asked to, the sandbox fails.
type Component struct {
	// Name of the process and, with .log, of its file in the directory of logs.
	Name string

	// spec is made anew for each start: etcd's endpoints change meanwhile.
	spec   func() (process.Spec, error)
	failed func(error)

	mu   sync.Mutex
	proc *process.Process
}

// Start runs the process. It does not wait until it is ready; one that runs is left alone.
func (c *Component) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc != nil {
		select {
		case <-c.proc.Done():
		default:
			return nil
		}
	}
	spec, err := c.spec()
	if err != nil {
		return err
	}
	proc, err := process.Start(spec)
	if err != nil {
		return err
	}
	c.proc = proc
	go func() {
		<-proc.Done()
		if err := proc.Err(); err != nil {
			c.failed(err)
		}
	}()
	return nil
}

// Process is the one that was started last; nil before the first start.
func (c *Component) Process() *process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc
}

// Log is the file that the process writes to.
func (c *Component) Log() (string, error) {
	spec, err := c.spec()
	return spec.Log, err
}

// Err is why the process ended, if it did and nobody asked it to.
func (c *Component) Err() error {
	if proc := c.Process(); proc != nil {
		return proc.Err()
	}
	return nil
}

// Stop ends the process in order; it does nothing if there is none.
func (c *Component) Stop() error { return c.stop(5 * time.Second) }

// Kill ends the process at once.
func (c *Component) Kill() error { return c.stop(0) }

func (c *Component) stop(grace time.Duration) error {
	if proc := c.Process(); proc != nil {
		return proc.Stop(grace)
	}
	return nil
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
