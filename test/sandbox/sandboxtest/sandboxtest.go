// Package sandboxtest starts sandboxes for tests, no more at a time than this computer can run.
package sandboxtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/ring"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/slots"
)

// startLimit bounds the start of one sandbox.
const startLimit = 8 * time.Minute

// Start waits for a test slot and starts a sandbox in a directory of the test's own. It ends with the
// test, which fails if a part has ended without being asked to. If the test fails, the sandbox's logs
// are kept in bin/logs.
func Start(t *testing.T, options sandbox.Options) *sandbox.Sandbox {
	t.Helper()
	slots.Take(t)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	options.Dir = filepath.Join(t.TempDir(), "s")
	options.EtcdArgs = append(options.EtcdArgs, ring.Unsynced)
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
			keepLogs(t, s)
		}
	})
	return s
}

// keepLogs copies the sandbox's logs to where the next run of this test finds them replaced. It prints
// none of them: their last lines are of the sandbox's stop, and would bury what the test itself says.
func keepLogs(t *testing.T, s *sandbox.Sandbox) {
	t.Helper()
	root, err := assets.Root()
	if err != nil {
		t.Error(err)
		return
	}
	kept := filepath.Join(root, "bin", "logs", strings.ReplaceAll(t.Name(), "/", "-"))
	if err := errors.Join(os.RemoveAll(kept), os.CopyFS(kept, os.DirFS(s.Logs))); err != nil {
		t.Error(err)
	}
	t.Logf("the sandbox's logs are kept in %s", kept)
}
