// Package sandboxtest starts sandboxes for tests, no more at a time than this computer can run.
package sandboxtest

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/slots"
)

// startLimit bounds the start of one sandbox.
const startLimit = 3 * time.Minute

// Start waits for a test slot and starts a sandbox in a directory of the test's own. It ends with the
// test, which fails if a part has ended without being asked to. If the test fails, the ends of the
// sandbox's logs are logged.
func Start(t *testing.T, options sandbox.Options) *sandbox.Sandbox {
	t.Helper()
	slots.Take(t)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	options.Dir = filepath.Join(t.TempDir(), "s")
	options.Progress = func(line string) { t.Log(line) }
	s, err := sandbox.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case err := <-s.Failed():
			t.Error(err)
		default:
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			logEnds(t, s)
		}
	})
	return s
}

func logEnds(t *testing.T, s *sandbox.Sandbox) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(s.Logs, "*.log"))
	if err != nil {
		t.Error(err)
	}
	for _, log := range logs {
		t.Logf("the end of %s:\n%s", filepath.Base(log), process.Tail(log, 40))
	}
}
