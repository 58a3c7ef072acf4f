package admission

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// remediates reports whether a request has the Machine API power the Machine's host off and on again. For a new Machine it does so once
// that has a host.
func (r *Request) remediates() bool {
	return r.New != nil && r.New.Remediating && (r.Old == nil || !r.Old.Remediating)
}

// remediator reports whether a user may ask for that at all: a person, a custodian, or the Machine API's account, which is also the
// MachineHealthCheck's.
func (ids *Identities) remediator(u User) bool {
	return ids.Classify(u) != ClassAutomation || slices.Contains(ids.MachineAPI, u.Name)
}

// admitRemediation is the rule keep-host for a Machine.
func (d *deciding) admitRemediation() {
	if !d.remediates() {
		return
	}
	if d.Old == nil {
		d.add(quorum.RuleKeepHost, VerdictDenied, remediatedNew(d.Request)...)
		return
	}
	if !d.ids.remediator(d.User) {
		d.add(quorum.RuleKeepHost, VerdictDenied, remediationByTool(d.Request)...)
		return
	}
	voter, why := d.hostLoss()
	switch {
	case why == "" && voter == nil: // etcd has nothing to lose
	case why == "":
		d.powersOff(VerdictAllowed, remediated(d.Request, voter))
	case d.class == ClassPerson && d.Old.Lifts(quorum.RuleKeepHost, d.At):
		d.powersOff(VerdictOverridden, overrideUsed(d.Request, quorum.RuleKeepHost))
	default:
		d.add(quorum.RuleKeepHost, VerdictDenied, d.remediationDenied(voter, why)...)
	}
}

// powersOff lets the host of the request's Machine be powered off. No Machine shows that before the request is stored, so it is
// claimed first: of two such requests at one instant, the later finds the other's claim, or the ledger changed. Where the ledger cannot be
// written, only a person's override is left.
func (d *deciding) powersOff(verdict Verdict, lines []string) {
	d.add(quorum.RuleKeepHost, verdict, lines...)
	if d.s != nil && d.s.Ledger.Unusable() == "" {
		d.Claims = quorum.PowersOff(d.Old, d.At, d.User.Name)
	}
}

// NotClaimed denies a request whose Claims could not be written down, and says why not.
func (d *Decision) NotClaimed(why string) {
	*d = Decision{Findings: []Finding{{quorum.RuleKeepHost, VerdictDenied, []string{
		fmt.Sprintf("Refused (%s): a power-off of the host of Machine %s must be recorded first, so that no two hosts are powered off at the same time.", quorum.RuleKeepHost, d.Claims.Machine),
		reasonLine(quorum.Clip(why, 200)),
		"Try again in a few seconds; if it stays so, look into Holdfast's log.",
	}}}}
}

// hostLoss is the voter on the request's Machine, nil without one, and says why etcd cannot do without the Machine's host for a
// while, "" if it can. A hook does not stop a power-off, so the checks for a deletion are not sufficient: without this host and
// without those that are powered off or released, a quorum must remain, even if the voter does not answer Holdfast, because it may still
// vote. The only voter is exempt.
func (d *deciding) hostLoss() (voter *quorum.Member, why string) {
	is, why := d.hosting()
	if is == quorum.HostingUnknown {
		return nil, reasonLine(why)
	}
	m := d.machine
	voter = d.join.Voter(m)
	voters, healthy := d.s.Ring.Voters()
	if voter == nil || voters == 1 {
		return voter, ""
	}
	if going, limit := d.deletions(m); voter.Healthy && limit > 0 && len(going) >= limit {
		return voter, fmt.Sprintf("With %s, at most %d may go at a time, and Machine %s is being deleted already.", quorum.NVoters(voters), limit, going[0].Name)
	}
	if sick := d.sickBeside(voter); voter.Healthy && sick != nil {
		return voter, fmt.Sprintf("Voter %s is unhealthy.", sick)
	}
	if !d.join.QuorumWithout(m) {
		off := ""
		if names := d.s.PoweredOff(m); names != nil {
			off = fmt.Sprintf(" (powered off, or to be by a request of the last two minutes: %s)", strings.Join(names, ", "))
		}
		if n := d.join.OperatorMayRemove(m); n > 0 {
			off += fmt.Sprintf(", and without %d that cluster-etcd-operator may remove, because their Machines are being deleted", n)
		}
		return voter, fmt.Sprintf("Healthy voters: %d of %d now, %d for certain without this host and those that are powered off or let go%s; quorum is %d.", healthy, voters, d.join.Remaining(m), off, quorum.Size(voters))
	}
	if why := d.s.Ledger.Unusable(); why != "" { // it has to be on record first: see powersOff
		return voter, reasonLine(why)
	}
	return voter, ""
}

func remediatedNew(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): annotation %s would have the host of the new Machine %s powered off once it has one.", quorum.RuleKeepHost, quorum.RemediationAnnotation, r.name()),
		"It is true of another Machine only.",
		"Leave the annotation out of the manifest.",
	}
}

func remediationByTool(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): annotation %s has the host of Machine %s powered off, and no hook holds that.", quorum.RuleKeepHost, quorum.RemediationAnnotation, r.name()),
		fmt.Sprintf("%s is automation. Only a MachineHealthCheck or a person restarts the host of a control-plane Machine.", quorum.Clip(r.User.Name, 140)),
		"Leave the annotation out of the change. A manifest without it is fine.",
	}
}

// hostsVoter says what is known of the voter.
func hostsVoter(voter *quorum.Member) string {
	if voter == nil {
		return "whether it hosts an etcd voter is not known"
	}
	return "it hosts etcd voter " + voter.String()
}

func (d *deciding) remediationDenied(voter *quorum.Member, why string) []string {
	again := "Try again when the others are healthy and none of their Machines is going: etcdctl endpoint health --cluster"
	if voter == nil {
		again = d.untilKnown(again)
	}
	return []string{
		fmt.Sprintf("Refused (%s): annotation %s has the host of Machine %s powered off, and %s.", quorum.RuleKeepHost, quorum.RemediationAnnotation, d.name(), hostsVoter(voter)),
		why + " No hook holds a host that is powered off.",
		again,
		d.lift(quorum.RuleKeepHost),
	}
}

func remediated(r *Request, voter *quorum.Member) []string {
	return []string{fmt.Sprintf("Holdfast (%s): the host of Machine %s is powered off. Its etcd voter %s is away until it is on again.", quorum.RuleKeepHost, r.name(), voter)}
}

// HostRequest changes or deletes a BareMetalHost that a Machine uses.
type HostRequest struct {
	Operation       Operation
	Namespace, Name string // of the BareMetalHost
	Machine         string
	What            string // for people: what of the request powers the host off, or takes it away from the Machine
	Ends            bool   // the latter

	MachineNamespace string
	User             User
	At               time.Time
	Unread           string // why there is no Snapshot
}

// AdmitHost is the rule keep-host for a BareMetalHost. m is the Machine that uses it, if that is a guarded one. What ends the host waits
// until no voter is on it, since no hook holds it. What powers it off goes by way of the Machine's annotation, where one host is
// counted after the other: a request for one BareMetalHost does not show what is asked of another. It passes where that annotation
// stands, or the voter does not answer anyway, and etcd can do without.
func (ids Identities) AdmitHost(r *HostRequest, m *quorum.Machine, s *quorum.Snapshot) Decision {
	d := ids.decide(&Request{Operation: OperationUpdate, User: r.User, Namespace: r.MachineNamespace, At: r.At, Old: m, Unread: r.Unread}, s)
	if m.Mirrored || m.DeletingUnheld() {
		return d.Decision
	}
	voter, why := d.hostLoss()
	if why == "" && voter == nil {
		return d.Decision
	}
	off := !r.Ends
	switch {
	case off && m.Remediating && why == "": // as was judged
	case off && why == "" && !voter.Healthy:
		d.powersOff(VerdictAllowed, remediated(d.Request, voter))
	case d.class == ClassPerson && m.Lifts(quorum.RuleKeepHost, r.At):
		d.powersOff(VerdictOverridden, overrideUsed(d.Request, quorum.RuleKeepHost))
	default:
		d.add(quorum.RuleKeepHost, VerdictDenied, d.hostDenied(r, voter, why)...)
	}
	return d.Decision
}

func (d *deciding) hostDenied(r *HostRequest, voter *quorum.Member, why string) []string {
	does, then := "powers off", "To have it restarted, ask for that on the Machine, where Holdfast counts: "+d.kubectl("annotate", quorum.RemediationAnnotation+"=")
	switch {
	case r.Ends:
		does, then = "takes away", "To replace the Machine, delete it; its host is deprovisioned once another votes: "+d.kubectl("delete", "")
	case d.Old.Remediating:
		then = "It passes once etcd can do without the host. To call the restart off: " + d.kubectl("annotate", quorum.RemediationAnnotation+"-")
	}
	return []string{
		fmt.Sprintf("Refused (%s): %s of BareMetalHost %s/%s %s the host of Machine %s, and %s.", quorum.RuleKeepHost, r.What, r.Namespace, r.Name, does, d.name(), hostsVoter(voter)),
		strings.TrimSpace(why + " No hook holds that."),
		then,
		d.lift(quorum.RuleKeepHost),
	}
}
