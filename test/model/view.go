package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// act is one action of a plan: what it does, at which slot.
type act struct {
	doing
	slot, to int8
}

func (a *act) flag(f doing, on bool) {
	if on {
		a.doing |= f
	}
}

// plan is what Decide says of a state.
type plan struct {
	acts     []act
	records  [slots]uint8
	writes   bool // records are written
	ledger   [slots]uint8
	cleans   bool // the ledger is written
	violated membership.Invariant
	changes  int // of membership
}

// view is what can be asked about all states that look alike.
type view struct {
	plan  [2]*plan                   // with ties between hosts decided one way and the other
	set   [2]*setPlan                // what the set does, likewise
	asked [2]*[slots][requests]reply // of a Holdfast that answers, and of one that does not
}

// order is how ties are decided: what a Snapshot orders hosts by (age, deletion time,
// name, ID) is no part of a state, so both orders are tried.
func order(i, way int) int {
	if way == 1 {
		return slots - 1 - i
	}
	return i
}

// decide asks Decide, and packs its answer.
func (c *config) decide(s *state, way int) *plan {
	seen := c.snapshot(s, way)
	p := membership.Decide(seen)
	if i := slices.IndexFunc(p.Actions, func(a membership.Action) bool { return a.Kind() == membership.KindAddLearner }); i >= 0 && s.refuses(c) {
		// It was tried, for long enough; what would only be refused again is left out.
		seen.Failures = []quorum.Failure{{Reason: string(membership.ReasonActionFails), What: p.Actions[i].Describe(), Since: longAgo(), Refused: true}}
		p = membership.Decide(seen)
		p.Actions = slices.DeleteFunc(p.Actions, func(a membership.Action) bool { return a.Describe() == seen.Failures[0].What })
	}
	out := &plan{writes: p.Records != nil, cleans: p.Ledger != nil, violated: p.Violated}
	for _, r := range p.Ledger {
		which, k := about(r.UID)
		out.ledger[order(k, way)] = uint8(which)
	}
	for _, r := range p.Records {
		which, _ := about(r.MachineUID)
		out.records[order(int(r.MemberIDs[0]-firstID), way)] = uint8(which)
	}
	for _, a := range p.Actions {
		which, k := about(a.UID)
		if id := a.MemberID(); id != 0 {
			k = int(id - firstID)
		}
		x := act{doing: do(a.Kind(), which, 0)}
		switch c := a.Change.(type) {
		case membership.SizeGuard:
			lock := uint32(recNone)
			if a.Locks(seen) {
				lock = underLock
			}
			out.acts = append(out.acts, act{doing: do(a.Kind(), lock, doing(c.MinAvailable)<<8)})
			continue
		case membership.CreateGuardPod:
			_, k = about(c.Node)
		case membership.DeleteGuardPod:
			_, k = about(c.Node)
		case membership.MoveLeader:
			x.to = int8(order(int(c.To.ID-firstID), way))
		case membership.AddHook:
			x.flag(putHook, c.Hook)
			x.flag(putLatch, c.Latch)
			x.flag(putEvidence, len(c.Evidence.MemberIDs) > 0)
		case membership.ReleaseHook:
			x.flag(putHook, c.Hook)
			x.flag(putLatch, c.Latch)
			x.flag(final, c.Final)
		case membership.RemoveLearner:
			x.flag(givesWay, c.GivesWay)
		case membership.MarkIdle, membership.RecordRelease, membership.RemoveVoter, membership.Promote, membership.AddLearner:
		}
		x.slot = int8(order(k, way))
		if a.Kind().Membership() {
			out.changes++
		}
		out.acts = append(out.acts, x)
	}
	return out
}

// about tells what a UID of a Snapshot says: which Machine of which slot. Without a UID it is recNone, and k means nothing.
func about(uid string) (which uint32, k int) {
	if uid == "" {
		return recNone, 0
	}
	kind, number, _ := strings.Cut(uid, "-")
	k, err := strconv.Atoi(number)
	if err != nil {
		panic("no UID of this model: " + uid)
	}
	if kind == "gone" {
		return recGone, k
	}
	return recHere, k
}
