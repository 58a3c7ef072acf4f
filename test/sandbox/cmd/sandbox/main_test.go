package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// asCommand makes this test binary be the command itself, so that a test can
// kill one that runs.
const asCommand = "HOLDFAST_TEST_AS_SANDBOX"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestBadInputIsOneSentence(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"":                         "say `sandbox up`",
		"up --replicas 2":          "replicas must be 1, 3 or 5, not 2",
		"up --replicas 0":          "replicas must be 1, 3 or 5, not 0",
		"up --replicas many":       "many",
		"up --holdfast-replicas 0": "replicas of Holdfast must be 1 to 5, not 0",
		"up --mode strict":         `mode must be full or guard, not "strict"`,
		"up --no-such-flag":        "--no-such-flag",
		"power sideways master-0":  "sandbox power on|off HOST",
	} {
		var stdout, stderr bytes.Buffer
		if code := run(strings.Fields(args+" --dir "+dir), &stdout, &stderr); code != 2 {
			t.Errorf("%q: exit %d", args, code)
		}
		if got := stderr.String(); !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%q: %q, not one line with %q", args, got, want)
		}
	}
}

func TestPowerWithoutSandbox(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{"power", "off", "master-0", "--dir", t.TempDir()}, &stdout, &stderr); code != 1 {
		t.Errorf("exit %d", code)
	}
	if !strings.Contains(stderr.String(), "no sandbox answers in") {
		t.Errorf("got %q", stderr.String())
	}
}

// TestNothingOutlivesTheStarter: whether it is killed or interrupted, no child stays.
func TestNothingOutlivesTheStarter(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), "s")
			var output bytes.Buffer
			command := exec.Command(exe, "up", "--replicas=1", "--without-holdfast", "--dir="+dir)
			command.Env = append(os.Environ(), asCommand+"=1")
			command.Stdout, command.Stderr = &output, &output
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- command.Wait() }()
			t.Cleanup(func() { _ = command.Process.Kill() })

			g := NewWithT(t)
			g.Eventually(func() error {
				select {
				case err := <-ended:
					return StopTrying(fmt.Sprintf("it ended: %v\n%s", err, output.String()))
				default:
				}
				_, err := os.Stat(filepath.Join(dir, "env"))
				return err
			}, 3*time.Minute).Should(Succeed())
			children := childrenOf(t, command.Process.Pid)
			if len(children) != 3 { // etcd, kube-apiserver, machine-api
				t.Fatalf("children: %v", children)
			}
			if err := command.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			err = <-ended
			if end == syscall.SIGINT && err != nil {
				t.Errorf("an interrupt is no failure: %v\n%s", err, output.String())
			}
			for _, child := range children {
				g.Eventually("/proc/"+child, time.Minute).ShouldNot(BeADirectory())
			}
		})
	}
}

// childrenOf are the process ids of a process's children, each with a name.
func childrenOf(t *testing.T, parent int) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid ..., where the name may hold anything
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			children = append(children, filepath.Base(filepath.Dir(stat)))
		}
	}
	return children
}
