package sandbox

import (
	"fmt"
	"strconv"

	"github.com/holdfast-dev/holdfast/test/process"
)

// SecondHoldfast starts another replica of Holdfast, which runs the reconciler as well, elected or not:
// what two leaders do for a moment. Its webhooks are registered nowhere. The caller stops it.
func (s *Sandbox) SecondHoldfast() (*process.Process, error) {
	spec, err := s.holdfastSpec()
	if err != nil {
		return nil, err
	}
	ports, err := s.block.FreePorts(1)
	if err != nil {
		return nil, fmt.Errorf("a port for the second Holdfast: %w", err)
	}
	spec.Name, spec.Log = "holdfast-2", s.logFile("holdfast-2")
	spec.Args = append(spec.Args, // of a flag that is repeated the last counts
		"--webhook-port="+strconv.Itoa(ports[0]), "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--audit-log-path="+s.logFile("holdfast-2-audit"))
	return process.Start(spec)
}
