package process_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/test/process"
)

func shell(t *testing.T, script string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Spec{
		Name: "script", Path: "/bin/sh", Args: []string{"-c", script},
		Log: filepath.Join(t.TempDir(), "script.log"), Noise: "chatter",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop(0) })
	return p
}

func TestErrNamesProcessLogAndLastLines(t *testing.T) {
	p := shell(t, "echo first; echo no such quorum >&2; for i in $(seq 100); do echo chatter; done; exit 3")
	<-p.Done()
	err := p.Err()
	if err == nil {
		t.Fatal("an exit nobody asked for is an error")
	}
	for _, want := range []string{"script ended", "exit status 3", p.Log(), "no such quorum"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if code, exited := p.ExitCode(); code != 3 || !exited {
		t.Errorf("exit code %d, exited: %t", code, exited)
	}
}

func TestStop(t *testing.T) {
	for name, script := range map[string]string{
		"heeds the signal":   "exec sleep 60",
		"ignores the signal": "trap '' TERM; while :; do sleep 1; done",
	} {
		t.Run(name, func(t *testing.T) {
			p := shell(t, script)
			for range 2 { // the second does nothing
				if err := p.Stop(100 * time.Millisecond); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-p.Done():
			default:
				t.Fatal("Stop returned before the end")
			}
			if err := p.Err(); err != nil {
				t.Fatalf("an end that was asked for is no error: %v", err)
			}
		})
	}
}

func TestStopEndsAPausedProcess(t *testing.T) {
	p := shell(t, "exec sleep 60")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestStartSaysWhatIsMissing(t *testing.T) {
	_, err := process.Start(process.Spec{Name: "etcd", Path: "/no/such/binary", Log: filepath.Join(t.TempDir(), "x.log")})
	if err == nil || !strings.Contains(err.Error(), "starting etcd") || !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}
