// Mutation shows that test/decisions holds every admission rule and every step of the plan, the tests of internal/verify
// whether etcd may start, and test/model what comes of them: it switches them off one at a time and runs the tests, which have to fail.
//
//	go run ./test/mutation             all of them
//	go run ./test/mutation -run dead   those whose name holds "dead"
//	go run ./test/mutation -run model: those that the model has to find
//
// A mutant is compiled with an overlay, so the tree is never changed.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// mutant is one edit of a file in internal, in which old stands exactly once.
type mutant struct {
	name, file, old, new string
}

// tests are what has to fail: a package, and the flags for its tests. Of internal/verify that is what needs no ring of etcd and
// decides on facts that are written down.
func (m mutant) tests() (pkg string, flags []string) {
	if what, ok := strings.CutPrefix(m.name, "model: "); ok {
		configurations := ""
		switch kind, _, _ := strings.Cut(what, ":"); kind {
		case "set":
			configurations = "/^set,"
		case "guard mode":
			configurations = "/^guard_mode"
		}
		// Configurations that are known to break also fail where a mutant only hides that: they show nothing.
		return "./test/model", []string{"-run=^TestModel$" + configurations, "-skip=^TestModel$/^(open|planted):", "-failfast", "-states=150000", "-timeout=1h"}
	}
	if path.Dir(m.file) == "verify" {
		return "./internal/verify", []string{"-run=^TestTranscripts$"}
	}
	// Failing cases of the properties are neither shrunk nor kept.
	return "./test/decisions", []string{"-rapid.shrinktime=1ns", "-rapid.checks=300"}
}

func main() {
	only := flag.String("run", "", "only the mutants whose name holds this")
	flag.Parse()
	survived, err := run(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(2)
	}
	if survived > 0 {
		fmt.Printf("%d survived: no test holds what they switch off\n", survived)
		os.Exit(1)
	}
}

func run(only string) (survived int, err error) {
	root, err := assets.Root()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	start, tried := time.Now(), 0
	var stale []error // mutants that do not fit the code any more
	sound := map[string]bool{}
	for _, m := range mutants() {
		if !strings.Contains(m.name, only) {
			continue
		}
		pkg, flags := m.tests()
		if !sound[pkg] {
			if caught, text := test(root, "", pkg, flags); len(caught) > 0 {
				return 0, fmt.Errorf("the tests of %s fail without any mutant:\n%s", pkg, text)
			}
			sound[pkg] = true
		}
		tried++
		began := time.Now()
		edited, err := m.overlay(root, dir)
		if err != nil {
			stale = append(stale, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		caught, text := test(root, edited, pkg, flags)
		switch {
		case slices.Contains(caught, failedBuild):
			stale = append(stale, fmt.Errorf("%s does not compile:\n%s", m.name, text))
		case len(caught) == 0:
			survived++
			fmt.Printf("%-40s SURVIVED\n", m.name)
		default:
			fmt.Printf("%-40s %4.1f s, caught by %s\n", m.name, time.Since(began).Seconds(), strings.Join(caught, ", "))
		}
	}
	fmt.Printf("%d mutants in %s\n", tried, time.Since(start).Round(time.Second))
	return survived, errors.Join(stale...)
}

// mutated is the name of the edited file in the directory of an overlay.
const mutated = "mutated.go"

// overlay writes an overlay for the go command into a directory, and returns its path.
func (m mutant) overlay(root, dir string) (string, error) {
	file := filepath.Join(root, "internal", filepath.FromSlash(m.file))
	source, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := bytes.Count(source, []byte(m.old)); n != 1 {
		return "", fmt.Errorf("%s holds %q %d times, not once", file, m.old, n)
	}
	edited := filepath.Join(dir, mutated)
	if err := os.WriteFile(edited, bytes.Replace(source, []byte(m.old), []byte(m.new), 1), 0o600); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {file: edited}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

const failedBuild = "the compiler"

// test runs a package's tests and names those that failed: the innermost of each.
func test(root, overlay, pkg string, flags []string) (caught []string, text string) {
	args := []string{"test", "-count=1", "-vet=off", "-timeout=5m"} // at rest they take seconds: only what never ends meets the limit
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	cmd := exec.Command("go", append(append(args, pkg), flags...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil, ""
	}
	text = string(out)
	if strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]") {
		return []string{failedBuild}, text
	}
	for _, found := range regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`).FindAllStringSubmatch(text, -1) {
		caught = slices.DeleteFunc(caught, func(outer string) bool { return strings.HasPrefix(found[1], outer+"/") })
		caught = append(caught, found[1])
	}
	switch {
	case strings.Contains(text, "panic: test timed out"):
		caught = []string{"the time limit"}
	case len(caught) == 0:
		caught = []string{"a crash"}
	}
	return caught, text
}
