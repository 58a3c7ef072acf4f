package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestLinked holds the manager small. Code that calls methods by a name known only when it runs, as text/template does,
// makes the linker keep every exported method of every type, two thirds of the binary again, and most of that is
// resident. Such code comes with a dependency, unasked for.
func TestLinked(t *testing.T) {
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	tags := regexp.MustCompile(`(?m)^TAGS\s*:=\s*(\S+)$`).FindSubmatch(makefile)
	if tags == nil {
		t.Fatal("the Makefile has no TAGS")
	}
	containerfile, err := os.ReadFile(filepath.Join(root, "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if with := " -tags " + string(tags[1]) + " "; !strings.Contains(string(containerfile), with) {
		t.Errorf("Containerfile does not build with%s, the Makefile's TAGS", with)
	}

	// The linker prints what leads to what; <ReflectMethod> marks the functions that call methods by name.
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", string(tags[1]), "-ldflags=-dumpdep", "-o", filepath.Join(t.TempDir(), "holdfast"), "./cmd/holdfast")
	build.Dir, build.Env = root, append(build.Environ(), "CGO_ENABLED=0")
	stderr, err := build.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := build.Start(); err != nil {
		t.Fatal(err)
	}
	lines, last, by := 0, "", map[string]bool{}
	out := bufio.NewScanner(stderr)
	for out.Buffer(nil, 1<<20); out.Scan(); lines++ {
		last = out.Text()
		from, to, _ := strings.Cut(last, " -> ")
		if name, ok := strings.CutSuffix(to, " <ReflectMethod>"); ok && !by[name] {
			by[name] = true
			t.Errorf("%s calls methods by name; %s leads to it", name, from)
		}
	}
	if err := out.Err(); err != nil {
		t.Fatal(err)
	}
	if err := build.Wait(); err != nil {
		t.Fatalf("build holdfast: %v\n%s", err, last)
	}
	if lines < 1000 {
		t.Fatalf("the linker told of %d dependencies only", lines)
	}
}
