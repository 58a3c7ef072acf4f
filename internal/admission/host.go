package admission

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// remediates says whether an update has the Machine API power the Machine's host off and on again.
func (r *Request) remediates() bool {
	return r.Old != nil && r.New != nil && !r.Old.Remediating && r.New.Remediating
}

// remediator says whether a user may ask for that at all: a person, a custodian, or the Machine API's account, which is also the
// MachineHealthCheck's.
func (ids *Identities) remediator(u User) bool {
	return ids.Classify(u) != ClassAutomation || slices.Contains(ids.MachineAPI, u.Name)
}

// admitRemediation is the rule keep-host for a Machine.
func admitRemediation(d *Decision, r *Request, s *quorum.Snapshot, ids *Identities, class Class) {
	if !r.remediates() {
		return
	}
	if !ids.remediator(r.User) {
		d.add(quorum.RuleKeepHost, VerdictDenied, remediationByTool(r)...)
		return
	}
	voter, why := r.hostLoss(s)
	switch {
	case why == "" && voter == "": // etcd has nothing to lose
	case why == "":
		d.add(quorum.RuleKeepHost, VerdictAllowed, remediated(r, voter)...)
	case class == ClassPerson && r.Old.Lifts(quorum.RuleKeepHost, r.At):
		d.add(quorum.RuleKeepHost, VerdictOverridden, overrideUsed(r, quorum.RuleKeepHost)...)
	default:
		d.add(quorum.RuleKeepHost, VerdictDenied, remediationDenied(r, voter, why)...)
	}
}

// hostLoss names the voter on the request's Machine, "" without one, and says why etcd cannot do without the Machine's host for a
// while, "" if it can. No hook holds a host that is powered off. So what a deletion may not do is not enough: without the host, and
// without those that are powered off or released, a quorum must be left, also where the voter does not answer Holdfast: it may still
// vote. Beside the only voter there is none to protect.
func (r *Request) hostLoss(s *quorum.Snapshot) (name, why string) {
	is, why := r.hosting(s)
	if is == quorum.HostingUnknown {
		return "", reasonLine(why)
	}
	j, m := quorum.NewJoin(s), s.Machine(r.Old.Name)
	voter := j.Voter(m)
	voters, healthy := s.Ring.Voters()
	if voter == nil || voters == 1 {
		return "", ""
	}
	if going, limit := deletions(s, j, m); voter.Healthy && limit > 0 && len(going) >= limit {
		return voter.String(), fmt.Sprintf("With %s, at most %d may go at a time, and Machine %s is being deleted already.", quorum.NVoters(voters), limit, going[0].Name)
	}
	if sick := sickBeside(s, j, voter); voter.Healthy && sick != nil {
		return voter.String(), fmt.Sprintf("Voter %s is unhealthy.", sick)
	}
	if !j.QuorumWithout(m) {
		return voter.String(), fmt.Sprintf("Healthy voters: %d of %d now, %d for certain without this host and those that are powered off or let go; quorum is %d.", healthy, voters, j.Remaining(m), quorum.Size(voters))
	}
	return voter.String(), ""
}

func remediationByTool(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): annotation %s has the host of Machine %s powered off, and no hook holds that.", quorum.RuleKeepHost, quorum.RemediationAnnotation, r.name()),
		fmt.Sprintf("%s is automation. Only a MachineHealthCheck or a person restarts the host of a control-plane Machine.", quorum.Clip(r.User.Name, 140)),
		"Leave the annotation out of the change. A manifest without it is fine.",
	}
}

func remediationDenied(r *Request, voter, why string) []string {
	hosts := "whether it hosts an etcd voter is not known"
	if voter != "" {
		hosts = "it hosts etcd voter " + voter
	}
	return []string{
		fmt.Sprintf("Refused (%s): annotation %s has the host of Machine %s powered off, and %s.", quorum.RuleKeepHost, quorum.RemediationAnnotation, r.name(), hosts),
		why + " No hook holds a host that is powered off.",
		"Try again when the others are healthy and none of their Machines is going: etcdctl endpoint health --cluster",
		r.lift(quorum.RuleKeepHost),
	}
}

func remediated(r *Request, voter string) []string {
	return []string{fmt.Sprintf("Holdfast (%s): the host of Machine %s is powered off and on again. etcd keeps quorum without voter %s meanwhile.", quorum.RuleKeepHost, r.name(), voter)}
}
