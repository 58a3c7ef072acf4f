package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/mutation/overlay"
)

// mutant is one edit of a file in internal: old stands in it exactly once. test/mutation holds
// that every rule and step has a test; these show what the exploration sees. What is planted for the
// set, or for guard mode, is looked for there.
type mutant struct{ name, file, old, new string }

func mutants() []mutant {
	return []mutant{
		// The traps that DESIGN.md names; the fourth, two leaders, is a configuration.
		{"trap: a second voter dies while one waits", "membership/plan.go", "p.removeDead, p.promote", "p.promote"},
		{"trap: tolerates no fewer than before", "membership/removevoter.go", "spare < min(now, quorum.Tolerance(s.Desired))", "spare < now"},
		{"trap: a learner that never starts blocks", "membership/removelearner.go", "case waits != nil && p.stalled(learner, p.turnLength(host.Machine(), waits)):", "case false:"},

		{"a second learner that a voter does not take", "membership/addlearner.go", " && p.takesNoMore() == nil", ""},
		{"two learners whose hosts take one", "membership/removelearner.go", "	if p.blockedByOtherLearner(learner) {", "	if false {"},
		{"gave way is forgotten", "membership/addlearner.go", "a.GaveWayAt.Compare(b.GaveWayAt),", "0,"},
		{"the same address blocks", "membership/removedead.go", "return refused || !otherWay && (", "return refused || false && !otherWay && ("},
		{"never hooks", "membership/plan.go", "{p.putHooks, p.releaseIdle, p.finalRelease}", "{p.releaseIdle, p.finalRelease}"},
		{"never removes a learner", "membership/plan.go", "p.removeLearner, p.removeVoter,", "p.removeVoter,"},
		{"removes below desired", "membership/removevoter.go", "remain < s.Desired || ", "remain < 0 || "},
		{"anything that is listed replaces", "membership/removevoter.go", "remain = p.join.Serving(member, s.Limits.StableFor)", ""},
		{"always a seat", "membership/promote.go", "!p.seatFree() || p.holdsPromotion() {", "p.holdsPromotion() {"},
		{"promotes where no removal follows", "membership/promote.go", " && (!p.join.StaysHealthy(member) || p.join.Serving(member, 0)+1 >= p.s.Desired) {", " {"},
		{"releases what hosts a member", "membership/release.go", "if is, _ := p.join.Hosting(m); is != quorum.HostingNothing {", "if is, _ := p.join.Hosting(m); is == 0 {"},
		{"never releases", "membership/plan.go", "{p.putHooks, p.releaseIdle, p.finalRelease}", "{p.putHooks}"},
		{"keeps no records", "membership/plan.go", "p.plan.Ledger, p.plan.Records = p.ledgerToKeep(), p.recordsToKeep()", "p.plan.Ledger = p.ledgerToKeep()"},
		{"keeps a gone Machine's learner", "membership/removelearner.go", "case host.Departed != nil && (len", "case false && (len"},
		{"nobody is stale", "quorum/dead.go", " && j.Host(member).Departed != nil", " && false"},
		{"the hook returns", "admission/hook.go", "\t\t\td.Repairs.Hook = FixAsOld\n\t\t}\n\t\tif gainsLatch {", "		}\n		if gainsLatch {"},
		{"release without counting", "quorum/ledger.go", ">= Size(j.VotersWith(m))", ">= 0"},
		{"release that no record shows", "quorum/ledger.go", " || j.Released(member) || j.ReleasePending(member) ||", " || j.Released(member) ||"},
		{"release on record counts as lost", "quorum/voters.go", "Healthy && !j.Released(m) }", "Healthy && !j.Released(m) && !j.ReleasePending(m) }"},
		{"a release does not wait for the budget", "membership/budget.go", "return pod, ready >= quorum.Size(voters) && p.s.QuorumGuard.AtLeast(p.minAvailable())", "return pod, true || ready >= quorum.Size(voters)"},
		{"a promotion does not wait for the budget", "membership/budget.go", "return p.s.QuorumGuard.Manageable() && !p.s.QuorumGuard.AtLeast(p.minAvailable())", "return false"},
		{"a person takes the latch off", "admission/escape.go", "\tif d.New.Latch != d.Old.Latch {\n\t\td.Repairs.Latch = FixAsOld\n\t}\n\tswitch {", "\tswitch {"},
		{"automation releases", "admission/release.go", "d.holdHook(quorum.RuleAutomationRelease, automationRelease(d.Request))", "d.dropLatch()"},
		{"deletes what is not protected", "admission/delete.go", "if bare && d.denyUnlessLifted(", "if false && d.denyUnlessLifted("},

		{"guard mode: the operator releases early", "admission/release.go", "d.holdHook(quorum.RuleEarlyRelease, d.earlyRelease(quorum.RuleEarlyRelease, is, why))", "_ = why; d.dropLatch()"},
		{"guard mode: a learner that goes is promoted", "quorum/ledger.go", "			voters++\n", "			_ = voters\n"},

		{"set: deletes before others vote", "machineset/shrink.go", "n < p.set.Replicas {", "n < 0 {"},
		{"set: deletes what replaced another", "machineset/shrink.go", "		l.Tier = tierOutdated", "		l.Tier = tierUpdated"},
		{"set: waits for what does not come up", "machineset/gate.go", "p.outdated(m) != \"\" && !p.set.place(m).Fresh && is ==", "false && is =="},
		{"set: does not wait for a learner", "machineset/gate.go", "member.Learner && !p.on(except, member)", "false && !p.on(except, member)"},
		{"set: replaces none that is deleted", "machineset/grow.go", "coming >= p.set.Replicas", "coming > 0"},
		{"set: replaces none that is outdated", "machineset/rollout.go", "p.outdated(m) != \"\" && (next == nil", "false && (next == nil"},
		{"set: moves none", "machineset/rollout.go", "here-there < 2", "here-there < 9"},
		{"set: wants no voter more", "machineset/voters.go", "odd(len(s.Ring.Members)+1)", "odd(len(s.Ring.Members))"},
		{"set: a surge has no seat", "membership/promote.go", "p.s.Surge && (member", "false && (member"},
	}
}

// mutate explores with each mutant, and says whether all were found.
func mutate(only string) (found bool, err error) {
	root, err := assets.Root()
	if err != nil {
		return false, err
	}
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

// explore runs the bounded exploration with the mutant instead of the file, and says what it found.
func (m mutant) explore(root, dir string) (string, error) {
	edited, err := overlay.Write(root, dir, m.file, m.old, m.new)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "model")
	build := exec.Command("go", "build", "-overlay="+edited, "-o", binary, "./test/model")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not compile: %s", out)
	}
	only := ""
	switch kind, _, _ := strings.Cut(m.name, ":"); kind {
	case "set":
		only = "set,"
	case "guard mode":
		only = kind
	}
	out, err := exec.Command(binary, "-first", "-run", only).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
