package quorum

import (
	"fmt"
	"strings"
)

// Describe is the action in one line, the same in logs, Events and transcripts.
func (a Action) Describe() string {
	member := (&Member{ID: a.Member, Name: a.MemberName}).String()
	switch a.Kind {
	case AddHook:
		var what []string
		if a.Hook {
			what = append(what, "hook")
		}
		if a.Latch {
			what = append(what, "latch")
		}
		if len(a.Evidence.MemberIDs) > 0 {
			what = append(what, "evidence")
		}
		return fmt.Sprintf("put %s on Machine %s", strings.Join(what, ", "), a.Machine)
	case ReleaseHook:
		if !a.Hook {
			return fmt.Sprintf("release the latch of Machine %s", a.Machine)
		}
		return fmt.Sprintf("release hook and latch of Machine %s", a.Machine)
	case SizeGuard:
		return fmt.Sprintf("size the quorum guard: minAvailable %d", a.MinAvailable)
	case CreateGuardPod:
		return fmt.Sprintf("create the quorum guard's pod on Node %s, for %s", a.Node, a.Address)
	case DeleteGuardPod:
		return fmt.Sprintf("delete pod %s of the quorum guard on Node %s", a.Pod, a.Node)
	case RecordRelease:
		by := ""
		if a.Release.By != "" {
			by = " at the word of " + clip(a.Release.By, 140)
		}
		return fmt.Sprintf("record that Machine %s is let go%s", a.Machine, by)
	case RemoveLearner:
		return fmt.Sprintf("remove learner %s", member)
	case MoveLeader:
		return fmt.Sprintf("move leadership from %s to %s", member, &Member{ID: a.To, Name: a.ToName})
	case RemoveVoter:
		return fmt.Sprintf("remove voter %s", member)
	case Promote:
		return fmt.Sprintf("promote learner %s", member)
	case AddLearner:
		return fmt.Sprintf("add a learner for Machine %s at %s", a.Machine, a.PeerURL)
	}
	return fmt.Sprintf("action %d", a.Kind)
}

// Describe is the plan as a person reads it: a line for each action and note.
func (p Plan) Describe() string {
	var b strings.Builder
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "step %d: %s: %s\n", a.Step, a.Describe(), a.Why)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "%s: %s\n", n.Reason, n.Message)
	}
	if b.Len() == 0 {
		return "at rest\n"
	}
	return b.String()
}

// Describe is the decision as a person reads it: the verdict of each rule, its lines, the repairs.
func (d Decision) Describe() string {
	if len(d.Findings) == 0 && d.Repairs == (Repairs{}) {
		return "allowed\n"
	}
	var b strings.Builder
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "%s by %s\n", f.Verdict, f.Rule)
		for _, line := range f.Lines {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if d.Repairs != (Repairs{}) {
		fmt.Fprintf(&b, "repair: %s\n", d.Repairs.Describe())
	}
	return b.String()
}

// Describe lists the repairs.
func (r Repairs) Describe() string {
	var out []string
	for _, f := range [...]struct {
		name string
		fix  Fix
	}{{"hook", r.Hook}, {"latch", r.Latch}, {"finalizer", r.Finalizer}, {"evidence", r.Evidence}, {"override", r.Override}, {"override-by", r.OverrideBy}, {"provider ID", r.ProviderID}} {
		if word := [...]string{AsOld: "as it was", Dropped: "dropped", Put: "put"}; f.fix != AsRequested {
			out = append(out, f.name+" "+word[f.fix])
		}
	}
	for i, fix := range r.Instance {
		if fix == AsOld { // the only fix that they get
			out = append(out, InstanceAnnotations[i].Key+" as it was")
		}
	}
	return strings.Join(out, ", ")
}
