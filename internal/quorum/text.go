package quorum

import (
	"fmt"
	"strings"
)

// The words of each rule. The first line says what happened, the others why and what to do. A line
// is one Warning, and the API server cuts a Warning at 256 bytes, so lines are short.

// kubectl is a command for the request's Machine that a person can paste.
func (r *Request) kubectl(verb, rest string) string {
	return strings.TrimRight(fmt.Sprintf("kubectl -n %s %s machine %s %s", r.Namespace, verb, r.name(), rest), " ")
}

func (r *Request) name() string {
	switch {
	case r.Old != nil:
		return r.Old.Name
	case r.New.Name == "":
		return "(not named yet)" // generateName
	}
	return r.New.Name
}

// holder is the name of the hook that holds the Machine, whose loss would let it go.
func (r *Request) holder() string {
	if r.Old.Hook == Ours {
		return HookName
	}
	return LatchName
}

// lift is the line that says how to override a rule.
func (r *Request) lift(rule Rule) string {
	return "To go ahead all the same: " + r.override(rule) + ", and try again."
}

// override is the command that lifts a rule.
func (r *Request) override(rule Rule) string {
	return r.kubectl("annotate", fmt.Sprintf("--overwrite %s='%s: <reason>'", OverrideAnnotation, rule))
}

// watch is the command that shows how the replacement gets on.
func (r *Request) watch() string {
	return "kubectl -n " + r.Namespace + " get machines -w"
}

func claimDenied(r *Request, f instanceField, other *Machine) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s may not have %s=%s, which is the instance of Machine %s.", Claim, r.name(), f.name, clip(f.value, 120), other.Name),
		"Both would stand for one host, and deleting one would take the other's etcd member with it.",
		"Leave " + f.name + " out of the manifest: the Machine API writes it once the instance exists.",
	}
}

func claimUnknown(r *Request, f instanceField) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s may not have %s=%s now: it may be another Machine's instance.", Claim, r.name(), f.name, clip(f.value, 120)),
		"The other Machines could not be read. Try again in a few seconds; if it stays so, look into Holdfast's log.",
	}
}

// claimedTwice is told of an instance that somebody claimed before it was the Machine's.
func claimedTwice(r *Request, f instanceField, other *Machine) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s): Machine %s claims the instance of Machine %s: %s.", Claim, clip(other.Name, 70), clip(r.name(), 70), clip(f.value, 60)),
		"It is joined to nothing, and its deletion is refused, as it would take that instance along.",
	}
}

func claimDeleted(r *Request, goes *Machine, by string, ids *Identities) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s stands for the host of control-plane Machine %s as well: both have %s.", Claim, r.name(), goes.Name, clip(by, 120)),
		"The machine controller would drain and delete that Node or terminate that instance, and etcd's member goes with it.",
		"Take it off that host, then try again: " + r.kubectl("patch", r.Old.letGo()) + "; " +
			r.kubectl("patch", fmt.Sprintf(`--subresource=status --as=%s --type=merge -p '{"status":{"nodeRef":null,"addresses":null,"providerStatus":null}}'`, ids.MachineAPI[0])),
		r.lift(Claim),
	}
}

// letGo are the arguments of kubectl patch that take a Machine's instance off it.
func (m *Machine) letGo() string {
	var annotations []string
	for i, value := range m.Instance {
		if value != "" {
			annotations = append(annotations, fmt.Sprintf("%q:null", InstanceAnnotations[i].Key))
		}
	}
	fields := `"spec":{"providerID":null}`
	if annotations != nil {
		fields += `,"metadata":{"annotations":{` + strings.Join(annotations, ",") + `}}`
	}
	return "--type=merge -p '{" + fields + "}'"
}

func claimDeleteUnknown(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): whether Machine %s stands for a control-plane Machine's host is not known: the Machines could not be read.", Claim, r.name()),
		"Its deletion would take that host along. Try again in a few seconds; if it stays so, look into Holdfast's log.",
		r.lift(Claim),
	}
}

func claimKept(r *Request, field string) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put %s of Machine %s back: it says which instance etcd runs on, and stays while hook %s is on.", Claim, field, clip(r.name(), 70), r.holder()),
	}
}

func adoptDenied(r *Request, o *Owner) []string {
	then := "Leave that owner reference out. See which Machines it selects, and narrow that: kubectl -n " + r.Namespace + " get " + o.resource() + " " + clip(o.Name, 80) + " -o jsonpath='{.spec.selector}'"
	if !o.scales() {
		then = "Leave that owner reference out: by its UID " + clip(o.UID, 40) + " it is a MachineSet. See which: kubectl -n " + r.Namespace + " get machinesets -o custom-columns=NAME:.metadata.name,UID:.metadata.uid"
	}
	return []string{
		fmt.Sprintf("Refused (%s): %s %s may not become the controller of control-plane Machine %s.", Adopt, clip(o.Kind, 40), clip(o.Name, 80), r.name()),
		"It would count the Machine among its replicas and delete it, and its etcd member with it, to scale down.",
		then,
	}
}

func adoptUnknown(r *Request, o *Owner) []string {
	return []string{
		fmt.Sprintf("Refused (%s): %s %s may not become the controller of control-plane Machine %s now: by its UID it may be a MachineSet.", Adopt, clip(o.Kind, 40), clip(o.Name, 80), r.name()),
		"The MachineSets could not be read. Try again in a few seconds; if it stays so, look into Holdfast's log.",
	}
}

// resource is what kubectl calls an owner that scales.
func (o *Owner) resource() string { return strings.ToLower(o.Kind) + "." + o.Group }

func ownerAdded(r *Request, o *Owner) []string {
	lines := []string{
		fmt.Sprintf("Holdfast (%s): Machine %s now has an owner, %s %s.", Adopt, clip(r.name(), 80), clip(o.Kind, 40), clip(o.Name, 60)),
		"The garbage collector deletes the Machine when that owner is gone, or does not exist in the first place.",
	}
	return append(lines, "If that is not meant, take the owner reference out again: "+r.kubectl("edit", ""))
}

func setWarned(r *SetRequest, s *Selection) []string {
	first := fmt.Sprintf("Holdfast (%s): the template of MachineSet %s makes control-plane Machines.", Adopt, clip(r.Name, 80))
	if len(s.Machines) > 0 {
		var names []string
		for i := range s.Machines {
			names = append(names, s.Machines[i].Name)
		}
		first = fmt.Sprintf("Holdfast (%s): MachineSet %s selects control-plane Machines: %s.", Adopt, clip(r.Name, 80), clip(strings.Join(names, ", "), 100))
	}
	return []string{
		first,
		"Holdfast does not let it take such a Machine: it would delete it, and its etcd member with it, to scale down.",
		"Narrow its selector and template to workers. Control-plane Machines go with a ControlPlaneMachineSet: kubectl -n " + r.Namespace + " get controlplanemachineset",
	}
}

func healthCheckWarned(r *HealthCheckRequest, voters, most, can int) []string {
	then := fmt.Sprintf("It may delete more control-plane Machines at once than that; Holdfast refuses the deletions that go too far (%s, %s).", OneTooMany, DegradedDelete)
	if r.External {
		then = "Its remediation is no deletion, so Holdfast cannot refuse it: hosts that are rebooted at the same time stop etcd as well."
	}
	return []string{
		fmt.Sprintf("Holdfast (%s): MachineHealthCheck %s acts while up to %d Machines are unhealthy, and etcd with %s can lose %d.", HealthCheck, clip(r.Name, 80), most, nVoters(voters), can),
		then,
		fmt.Sprintf(`Set maxUnhealthy to %d: kubectl -n %s patch machinehealthcheck %s --type=merge -p '{"spec":{"maxUnhealthy":%d}}'`, can, r.Namespace, clip(r.Name, 80), can),
	}
}

func claimStripped(r *Request, took []string) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) left %s out of Machine %s: they come with a manifest that was copied, and say nothing of this Machine.", Claim, strings.Join(took, ", "), r.name()),
	}
}

func keepHookLive(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put the preDrain hook %s back on Machine %s: it holds a later deletion until etcd has a replacement.", KeepHook, HookName, r.name()),
		fmt.Sprintf("A manifest without it is fine. To replace the Machine, delete it: %s", r.kubectl("delete", "")),
	}
}

func keepLatch(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put the preTerminate hook %s back on Machine %s: it stands as long as hook %s does.", KeepHook, LatchName, r.name(), HookName),
	}
}

func keepOwner(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put the owner of hook %s on Machine %s back to %s.", KeepHook, HookName, r.name(), HookOwner),
		"To release the Machine by hand, remove the entry instead of changing it.",
	}
}

func keepEvidence(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put annotation %s of Machine %s back: only Holdfast writes which etcd member a Machine hosts.", KeepHook, EvidenceAnnotation, r.name()),
	}
}

func noRegain(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) took the hook out of the change: Machine %s is being deleted, and a hook that is gone from such a Machine never returns.", NoRegain, r.name()),
		"If this comes from a manifest, remove the Machine from it: its deletion cannot be taken back.",
	}
}

func earlyRelease(r *Request, rule Rule, s *Snapshot, is Hosting, why string) []string {
	lines := []string{fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s:", rule, r.holder(), r.name())}
	if is == HostsMember {
		lines[0] += " etcd still lists " + hosted(s, r.Old) + " on it."
		return append(lines, "Remove the member from etcd first; the hook may go then.")
	}
	lines[0] += " whether it still hosts an etcd member is not known."
	return append(lines, reason(why), "The hook may go once that is known. See how etcd is: etcdctl endpoint status --cluster")
}

func automationRelease(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s, which is being deleted: it holds the Machine until etcd has a replacement.", AutomationRelease, r.holder(), r.name()),
		fmt.Sprintf("%s is automation; a tool does not release the hook, only a person does, by hand.", clip(r.User.Name, 140)),
		"Nothing needs doing: the hook goes by itself once a replacement votes. A manifest without it is fine.",
	}
}

// webhookRelease says that it was not the person who took the hook off.
func webhookRelease(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s, which is being deleted: not you took it off, but a mutating webhook.", AutomationRelease, r.holder(), r.name()),
		"See which webhooks change Machines: kubectl get mutatingwebhookconfigurations",
		fmt.Sprintf("To let the Machine go, take the hook off yourself: kubectl holdfast release %s", r.name()),
	}
}

// escaped says what comes of a hook that a person took off, or of a latch that stood alone.
func escaped(r *Request, s *Snapshot, l *loss) []string {
	what := fmt.Sprintf("Holdfast (%s): hook %s of Machine %s is off for good.", EscapeHatch, HookName, r.name())
	if r.Old.Hook != Ours {
		what = fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s: only Holdfast takes that one off.", EscapeHatch, LatchName, r.name())
	}
	if !l.held || r.Old.Lifts(EscapeHatch, r.At) {
		return append([]string{what + " It is let go in a moment, and terminated."}, loses(s, l)...)
	}
	left := "Whether etcd keeps quorum without it is not known. " + reason(l.why)
	if l.known {
		left = fmt.Sprintf("It hosts etcd voter %s. %s", l.member, l.tally())
	}
	return []string{
		what + " The Machine is not terminated before etcd can do without it.", left,
		"It goes by itself once a replacement votes: " + r.watch(),
		"To let it go all the same: " + r.override(EscapeHatch),
	}
}

// letGo says what goes with a Machine that Holdfast lets go of.
func letGo(r *Request, s *Snapshot, l *loss) []string {
	lines := []string{fmt.Sprintf("Holdfast (%s) let go of Machine %s: a person took its hook off, and it is terminated now.", EscapeHatch, r.name())}
	return append(lines, loses(s, l)...)
}

// loses says what etcd loses with a Machine, and what to do about it.
func loses(s *Snapshot, l *loss) []string {
	switch {
	case l.nothing:
		return []string{"No etcd member runs on it."}
	case !l.known:
		return []string{"Whether an etcd member runs on it is not known.", reason(l.why)}
	case l.learner:
		return []string{fmt.Sprintf("It hosts etcd learner %s, which has no vote.", l.member)}
	}
	out := []string{fmt.Sprintf("It hosts etcd voter %s. %s", l.member, l.tally())}
	if s.Mode == Full {
		return append(out, "Holdfast removes the dead member once a new Node waits for its place. Provide a replacement Machine soon.")
	}
	return append(out, "See that its member leaves etcd (etcdctl member list), and provide a replacement Machine soon.")
}

// tally is what etcd has left, in numbers.
func (l *loss) tally() string {
	return fmt.Sprintf("Healthy voters: %d of %d now, %d without this Machine; quorum is %d.", l.healthy, l.voters, l.remain, Size(l.voters))
}

func keepFinalizer(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): finalizer %s of Machine %s stays while hook %s is on it.", KeepFinalizer, Finalizer, r.name(), r.holder()),
		"Without the finalizer the Machine is gone at once when it is deleted, hook or no hook, and its etcd member is left without a host that anybody knows.",
		"To release a deleting Machine by hand, remove the hook; the finalizer goes by itself: " + r.kubectl("edit", ""),
	}
}

func keepRole(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s keeps %s=%q and %s=%q while hook %s is on it.", KeepRole, r.name(), RoleLabel, r.Old.Role, TypeLabel, r.Old.Type, r.holder()),
		"Without them it would no longer be seen as a control-plane Machine, although etcd runs on it.",
		"Leave both labels as they are. To replace the Machine, delete it: " + r.kubectl("delete", ""),
	}
}

func unprotected(r *Request, mode Mode, member *Member) []string {
	comes := "What is missing is about to be added."
	switch {
	case !r.Old.Finalizer:
		comes = "The machine controller adds the finalizer; see whether it runs."
	case r.Old.Hook != Ours && mode == Guard:
		comes = "cluster-etcd-operator adds the hook, and Holdfast the latch with it; see whether that operator runs."
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s hosts etcd voter %s and lacks %s.", UnprotectedDelete, r.name(), member, r.lacks()),
		"Nothing would hold the deletion until a replacement votes. " + comes,
		"Try again in a few seconds: " + r.kubectl("delete", ""),
		r.lift(UnprotectedDelete),
	}
}

func unseen(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): the machine controller has not seen Machine %s yet: it lacks finalizer %s.", UnprotectedDelete, r.name(), Finalizer),
		"Deleted now, it would be gone at once, and an instance that is being made for it would run on with nobody to know of it.",
		"Try again in a second: " + r.kubectl("delete", ""),
		r.lift(UnprotectedDelete),
	}
}

func unprotectedUnknown(r *Request, why string) []string {
	return []string{
		fmt.Sprintf("Refused (%s): whether Machine %s hosts an etcd voter is not known, and it lacks %s.", UnprotectedDelete, r.name(), r.lacks()),
		reason(why),
		"Try again when etcd answers: etcdctl endpoint status --cluster",
		r.lift(UnprotectedDelete),
	}
}

// lacks names what does not stand of hook, latch and finalizer.
func (r *Request) lacks() string {
	var out []string
	if r.Old.Hook != Ours {
		out = append(out, "preDrain hook "+HookName)
	}
	if r.Old.Latch != Ours {
		out = append(out, "preTerminate hook "+LatchName)
	}
	if !r.Old.Finalizer {
		out = append(out, "finalizer "+Finalizer)
	}
	return strings.Join(out, " and ")
}

func oneTooMany(r *Request, s *Snapshot, j *Join, going []int, limit int) []string {
	voters, _ := s.Ring.Voters()
	var names []string
	for _, i := range going {
		names = append(names, fmt.Sprintf("%s (etcd voter %s)", s.Machines[i].Name, &s.Ring.Members[j.Voter(i)]))
	}
	be, that := "is", "that Machine is"
	if len(names) > 1 {
		be, that = "are", "one of those is"
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s hosts a healthy etcd voter, and %s %s being deleted already.", OneTooMany, r.name(), strings.Join(names, " and "), be),
		fmt.Sprintf("With %s, at most %d may be on the way out at a time.", nVoters(voters), limit),
		"Wait until " + that + " gone, then try again: " + r.watch(),
		r.lift(OneTooMany),
	}
}

func degraded(r *Request, s *Snapshot, sick *Member) []string {
	voters, healthy := s.Ring.Voters()
	why := ""
	if sick.Why != "" {
		why = ": " + clip(sick.Why, 120)
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s hosts a healthy etcd voter, and voter %s is unhealthy%s.", DegradedDelete, r.name(), sick, why),
		fmt.Sprintf("Healthy voters: %d of %d; quorum is %d. A deletion cannot be taken back.", healthy, voters, Size(voters)),
		"Mend that member, or delete its own Machine to have it replaced: etcdctl endpoint health --cluster",
		r.lift(DegradedDelete),
	}
}

func held(r *Request, s *Snapshot, is Hosting, why string) []string {
	switch is {
	case HostsMember:
		if NewJoin(s).Voter(s.find(r.Old.Name)) < 0 {
			return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts etcd learner %s, which never voted: it is removed from etcd, and the Machine is let go.", Held, r.name(), hosted(s, r.Old))}
		}
		until := "a replacement votes in etcd"
		if s.Desired > 0 {
			until = fmt.Sprintf("etcd has as many voters without it as are wanted (%d now)", s.Desired)
		}
		return []string{
			fmt.Sprintf("Holdfast (%s): Machine %s is held until %s; it is neither drained nor terminated before.", Held, r.name(), until),
			"If there is no replacement yet, create one. Follow it: " + r.watch(),
		}
	case HostsNothing:
		return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts no etcd member, so its hook is released next and it goes.", Held, r.name())}
	default:
		return []string{
			fmt.Sprintf("Holdfast (%s): Machine %s is held, because whether it hosts an etcd member is not known.", Held, r.name()),
			reason(why),
		}
	}
}

func homeDenied(r *HomeRequest, hooked []string, known bool) []string {
	verb := "may not be deleted"
	if r.Operation != Delete {
		verb = "must be served, take etcd's hook in spec.lifecycleHooks and keep its status subresource"
		if !r.Prunes {
			verb = "may not change (" + clip(r.Changes, 120) + ") other than in descriptions, printer columns, short names, categories and new optional fields, unless by --crd-custodians,"
		}
	}
	lines := []string{fmt.Sprintf("Refused (%s): %s %s while Machines carry etcd's hook.", Home, r.What, verb)}
	if known {
		lines = append(lines, fmt.Sprintf("Those are %s.", clip(strings.Join(hooked, ", "), 160)))
	} else {
		lines = append(lines, "Which Machines carry it could not be read, so it counts as if one did.")
	}
	return append(lines,
		"The Machines would be gone, or without their hooks, before anything could hold them, and etcd's members with them.",
		"To give up this control plane for good, remove Holdfast's registration first: kubectl delete validatingwebhookconfiguration holdfast")
}

func overrideUsed(r *Request, rule Rule) []string {
	_, reason := ParseOverride(r.Old.Override)
	return []string{fmt.Sprintf("Holdfast (%s): the rule is lifted for Machine %s by %s: %s", rule, r.name(), clip(r.Old.LiftedBy(), 140), clip(reason, 80))}
}

func overrideUnclear(r *Request) []string {
	var names []string
	for _, rule := range overridable {
		names = append(names, string(rule))
	}
	return []string{
		fmt.Sprintf("Holdfast (%s): %s=%q on Machine %s lifts nothing.", OverrideRule, OverrideAnnotation, clip(r.New.Override, 80), r.name()),
		"It has to be '<rule>: <reason>', with a reason of your own, and the rule one of " + strings.Join(names, ", ") + ".",
	}
}

func overrideTaken(r *Request) []string {
	return []string{fmt.Sprintf("Holdfast (%s) put the override annotations of Machine %s back: only a person sets them, and only Holdfast says who did.", OverrideRule, r.name())}
}

// hosted names the members that a Machine hosts.
func hosted(s *Snapshot, m *Machine) string {
	var names []string
	for _, k := range NewJoin(s).Members(s.find(m.Name)) {
		names = append(names, s.Ring.Members[k].String())
	}
	return strings.Join(names, " and ")
}

func nVoters(n int) string {
	if n == 1 {
		return "1 voter"
	}
	return fmt.Sprintf("%d voters", n)
}

// reason is a cause that came as somebody else's text, as a line of its own.
func reason(why string) string {
	if why == "" {
		return "Reason: none was given."
	}
	return "Reason: " + strings.TrimRight(clip(why, 180), ".") + "."
}

// clip makes a text one line of at most so many bytes and an ellipsis.
func clip(text string, most int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " ..."
}
