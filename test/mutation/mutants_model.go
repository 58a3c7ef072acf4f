package main

// model are what test/model sees: not the rules and steps each, which the mutants of the other files hold, but what comes of them.
// A mutant for the set, or for guard mode, is looked for there.
func model() []mutant {
	return []mutant{
		// Traps. A fourth, two leaders, is a configuration.
		{"model: trap: a second voter dies while one waits", "membership/plan.go", "p.removeDead, p.promote", "p.promote"},
		{"model: trap: tolerates no fewer than before", "membership/removevoter.go", "spare < min(now, quorum.Tolerance(s.Desired))", "spare < now"},
		{"model: trap: a learner that never starts blocks", "membership/removelearner.go", "case waits != nil && p.stalled(learner, p.turnLength(host.Machine(), waits)):", "case false:"},

		{"model: a second learner that a voter does not take", "membership/addlearner.go", " && p.takesNoMore() == nil", ""},
		{"model: two learners whose hosts take one", "membership/removelearner.go", "	if p.blockedByOtherLearner(learner) {", "	if false {"},
		{"model: gave way is forgotten", "membership/addlearner.go", "a.GaveWayAt.Compare(b.GaveWayAt),", "0,"},
		{"model: the same address blocks", "membership/removedead.go", "return refused || !otherWay && (", "return refused || false && !otherWay && ("},
		{"model: never hooks", "membership/plan.go", "{p.putHooks, p.releaseIdle, p.finalRelease}", "{p.releaseIdle, p.finalRelease}"},
		{"model: never removes a learner", "membership/plan.go", "p.removeLearner, p.removeVoter,", "p.removeVoter,"},
		{"model: removes below desired", "membership/removevoter.go", "remain < s.Desired || ", "remain < 0 || "},
		{"model: anything that is listed replaces", "membership/removevoter.go", "remain = p.join.Serving(member, s.Limits.StableFor)", ""},
		{"model: always a seat", "membership/promote.go", "!p.seatFree() || p.holdsPromotion() {", "p.holdsPromotion() {"},
		{"model: promotes where no removal follows", "membership/promote.go", " && (!p.join.StaysHealthy(member) || p.join.Serving(member, 0)+1 >= p.s.Desired) {", " {"},
		{"model: releases what hosts a member", "membership/release.go", "if is, _ := p.join.Hosting(m); is != quorum.HostingNothing {", "if is, _ := p.join.Hosting(m); is == 0 {"},
		{"model: never releases", "membership/plan.go", "{p.putHooks, p.releaseIdle, p.finalRelease}", "{p.putHooks}"},
		{"model: keeps no records", "membership/plan.go", "p.plan.Ledger, p.plan.Records = p.ledgerToKeep(), p.recordsToKeep()", "p.plan.Ledger = p.ledgerToKeep()"},
		{"model: keeps a gone Machine's learner", "membership/removelearner.go", "case host.Departed != nil && (len", "case false && (len"},
		{"model: nobody is stale", "quorum/dead.go", " && j.Host(member).Departed != nil", " && false"},
		{"model: the hook returns", "admission/hook.go", "\t\t\td.Repairs.Hook = FixAsOld\n\t\t}\n\t\tif gainsLatch {", "		}\n		if gainsLatch {"},
		{"model: release without counting", "quorum/ledger.go", ">= Size(j.VotersWith(m))", ">= 0"},
		{"model: release that no record shows", "quorum/voters.go", " || j.Released(member) || j.ReleasePending(member) ||", " || j.Released(member) ||"},
		{"model: release on record counts as lost", "quorum/voters.go", "Healthy && !j.Released(m) }", "Healthy && !j.Released(m) && !j.ReleasePending(m) }"},
		{"model: a release does not wait for the budget", "membership/guardbudget.go", "return pod, ready >= quorum.Size(voters) && p.s.QuorumGuard.AtLeast(p.minAvailable())", "return pod, true || ready >= quorum.Size(voters)"},
		{"model: a promotion does not wait for the budget", "membership/guardbudget.go", "return p.s.QuorumGuard.Manageable() && !p.s.QuorumGuard.AtLeast(p.minAvailable())", "return false"},
		{"model: a person takes the latch off", "admission/escape.go", "\tif d.New.Latch != d.Old.Latch {\n\t\td.Repairs.Latch = FixAsOld\n\t}\n\tswitch {", "\tswitch {"},
		{"model: automation releases", "admission/release.go", "d.holdHook(quorum.RuleAutomationRelease, automationRelease(d.Request))", "d.dropLatch()"},
		{"model: deletes what is not protected", "admission/delete.go", "\n\tif voter == nil {", "\n\tif voter == nil || true {"},

		{"model: guard mode: the operator releases early", "admission/release.go", "d.holdHook(quorum.RuleEarlyRelease, d.earlyRelease(quorum.RuleEarlyRelease, is, why))", "_ = why; d.dropLatch()"},
		{"model: guard mode: a learner that goes is promoted", "quorum/voters.go", "			voters++\n", "			_ = voters\n"},

		{"model: set: deletes before others vote", "machineset/shrink.go", "n < p.set.Replicas {", "n < 0 {"},
		{"model: set: deletes what replaced another", "machineset/shrink.go", "		l.Tier = tierOutdated", "		l.Tier = tierUpdated"},
		{"model: set: waits for what does not come up", "machineset/gate.go", "p.outdated(m) != \"\" && !p.set.place(m).Fresh && is ==", "false && is =="},
		{"model: set: does not wait for a learner", "machineset/gate.go", "member.Learner && !p.on(except, member)", "false && !p.on(except, member)"},
		{"model: set: replaces none that is deleted", "machineset/grow.go", "coming >= p.set.Replicas", "coming > 0"},
		{"model: set: replaces none that is outdated", "machineset/rollout.go", "p.outdated(m) != \"\" && (next == nil", "false && (next == nil"},
		{"model: set: moves none", "machineset/rollout.go", "here-there < 2", "here-there < 9"},
		{"model: set: wants no voter more", "machineset/voters.go", "odd(len(s.Ring.Members)+1)", "odd(len(s.Ring.Members))"},
		{"model: set: a surge has no seat", "membership/promote.go", "p.s.Surge && (member", "false && (member"},
	}
}
