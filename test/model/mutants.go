package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mutant is one edit of a file of internal/quorum: old stands in it exactly once. test/mutation holds
// that every rule and step has a test; these show what the exploration sees.
type mutant struct{ name, file, old, new string }

func mutants() []mutant {
	return []mutant{
		// The traps that DESIGN.md names; the fourth, two leaders, is a configuration.
		{"trap: a second voter dies while one waits", "plan.go", "p.removeVoter, p.removeDead, p.promote", "p.removeVoter, p.promote"},
		{"trap: tolerates no fewer than before", "plan.go", "spare < min(now, Tolerance(s.Desired))", "spare < now"},
		{"trap: a learner that never starts blocks", "plan.go", "waits >= 0 && p.stalled(member, p.turn(i, waits)):", "false:"},

		{"gave way is forgotten", "plan.go", "one.GaveWayAt.Compare(two.GaveWayAt),", "0,"},
		{"the same address blocks", "plan.go", "if accepts && (otherWay ||", "if accepts && (true || otherWay ||"},
		{"never hooks", "plan.go", "{p.hook, p.release, p.finalRelease}", "{p.release, p.finalRelease}"},
		{"never removes a learner", "plan.go", "p.removeLearner, p.removeVoter,", "p.removeVoter,"},
		{"removes below desired", "plan.go", "remain < s.Desired || ", "remain < 0 || "},
		{"anything that is listed replaces", "plan.go", "remain = p.serving(k)", ""},
		{"always a seat", "plan.go", "!p.seat() || p.holdsPromotion() {", "p.holdsPromotion() {"},
		{"releases what hosts a member", "plan.go", "if is, _ := p.join.Hosting(i); is != HostsNothing {", "if is, _ := p.join.Hosting(i); is == 0 {"},
		{"never releases", "plan.go", "{p.hook, p.release, p.finalRelease}", "{p.hook}"},
		{"keeps no records", "plan.go", "p.plan.Records = p.records()", ""},
		{"keeps a gone Machine's learner", "plan.go", "case host.Departed != nil && (len", "case false && (len"},
		{"nobody is stale", "match.go", "	if host.Departed != nil {\n		return true\n	}\n", ""},
		{"the hook returns", "admit.go", "			d.Repairs.Hook = AsOld\n		}\n		if gainsLatch {", "		}\n		if gainsLatch {"},
		{"release without counting", "release.go", ">= Size(voters)\n", ">= 0*voters\n"},
		{"release that no record shows", "release.go", " || j.Released(k) || j.leaves(k) {", " || j.Released(k) {"},
		{"release on record counts as lost", "plan.go", "Healthy && !p.join.Released(k) }", "Healthy && !p.join.Released(k) && !p.join.leaves(k) }"},
		{"a release does not wait for the budget", "guard.go", "return pod, ready >= Size(voters) && p.s.Guard.MinAvailable >= p.minAvailable()", "return pod, true || ready >= Size(voters)"},
		{"a promotion does not wait for the budget", "guard.go", "return p.s.Guard.kept() && p.s.Guard.MinAvailable < p.minAvailable()", "return false"},
		{"a person takes the latch off", "admit.go", "	if r.New.Latch != r.Old.Latch {\n		d.Repairs.Latch = AsOld\n	}\n	loss", "	loss"},
		{"automation releases", "admit.go", "d.holdHook(r, AutomationRelease, automationRelease(r))", "d.dropLatch(r)"},
		{"deletes what is not protected", "admit.go", "if bare && deny(UnprotectedDelete, unprotected(", "if false && deny(UnprotectedDelete, unprotected("},
	}
}

// mutate explores with each mutant, and says whether all were found.
func mutate(only string) (found bool, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return false, fmt.Errorf("find the module: %w", err)
	}
	root := strings.TrimSpace(string(out))
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	found = true
	for _, m := range mutants() {
		if !strings.Contains(m.name, only) {
			continue
		}
		began := time.Now()
		by, err := m.explore(root, dir)
		if err != nil {
			return false, fmt.Errorf("%s: %w", m.name, err)
		}
		if by == "" {
			found = false
			by = "NOT FOUND"
		}
		fmt.Printf("%-42s %5.1f s  %s\n", m.name, time.Since(began).Seconds(), by)
	}
	return found, nil
}

// edit is the file, and what stands in it with the mutant.
func (m mutant) edit(root string) (path string, mutated []byte, err error) {
	path = filepath.Join(root, "internal", "quorum", m.file)
	source, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	if n := bytes.Count(source, []byte(m.old)); n != 1 {
		return "", nil, fmt.Errorf("%s holds %q %d times, not once", m.file, m.old, n)
	}
	return path, bytes.Replace(source, []byte(m.old), []byte(m.new), 1), nil
}

// explore runs the bounded exploration with the mutant instead of the file, and says what it found.
func (m mutant) explore(root, dir string) (string, error) {
	path, source, err := m.edit(root)
	if err != nil {
		return "", err
	}
	mutated, overlay, binary := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "model")
	if err := os.WriteFile(mutated, source, 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-overlay="+overlay, "-o", binary, "./test/model")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not compile: %s", out)
	}
	out, err := exec.Command(binary, "-first").CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
