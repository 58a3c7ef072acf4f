package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

// bindFile adds the flag for a file that status -o yaml wrote.
func bindFile(f *pflag.FlagSet, file *string) {
	f.StringVarP(file, "filename", "f", "", "read this snapshot file instead of a cluster, - for standard input")
}

// view is a Snapshot with the user who looks at it.
type view struct {
	*quorum.Snapshot
	namespace string
	user      admission.User // the zero User for a file: somebody
	plan      membership.Plan
	join      *quorum.Join

	set    *observe.Set // the ControlPlaneMachineSet, nil without one, or where it is not known
	setWhy string       // why it is not known

	guard    string                // whether the guard is in force, as far as can be seen without a trial; "" of a file
	reports  admission.Enforcement // Warn or Audit where Holdfast only reports, and takes no step
	operator string                // what is wrong with cluster-etcd-operator, by its own account; "" where nothing is, or that is not known

	source string // where etcd's part comes from, or what to do for it; "" of a file
	silent bool   // nothing is known of etcd, neither from it nor from Holdfast
	idle   string // why Holdfast seems not to run, and what to do, without a full stop; "" where it published the ring lately, and for a file
}

// unguarded reports whether the guard is seen not to be in force.
func (v *view) unguarded() bool { return strings.HasPrefix(v.guard, notInForce) }

// decide fills in what follows from a Snapshot.
func (v *view) decide(s *quorum.Snapshot) {
	v.Snapshot, v.plan = s, membership.Decide(s)
	v.join = v.plan.Join
}

// take reads the file, or without one looks at the cluster once.
func (c *clusterFlags) take(ctx context.Context, t terminal, file string) (*view, error) {
	if file != "" {
		return readFile(ctx, t, file)
	}
	at, err := c.open(ctx, t)
	if err != nil {
		return nil, err
	}
	return at.look(ctx)
}

func readFile(ctx context.Context, t terminal, path string) (*view, error) {
	in, name, err := t.open(ctx, path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(in)
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, err
	}
	f, err := snapshotfile.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	v := &view{namespace: cmp.Or(f.Namespace, defaultNamespace)}
	v.decide(&f.Snapshot)
	return v, nil
}

// machine finds a Machine, or fails with which there are.
func (v *view) machine(name string) (*quorum.Machine, error) {
	if m := v.Machine(name); m != nil {
		return m, nil
	}
	var names []string
	for i := range v.Machines {
		names = append(names, v.Machines[i].Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no control-plane Machine in namespace %s", v.namespace)
	}
	return nil, fmt.Errorf("there is no control-plane Machine %s in namespace %s; there are %s. What became of one that is gone: kubectl holdfast audit --machine %s", name, v.namespace, strings.Join(names, ", "), name)
}

// deletion is what Holdfast would say to a DELETE of the Machine by the view's user.
func (v *view) deletion(m *quorum.Machine) admission.Decision {
	return v.admit(admission.OperationDelete, *m, nil, v.reports != admission.Enforce)
}

// release is what Holdfast would say if the view's user took the Machine's hook off, and Holdfast enforced its rules: while it only reports, it adds no latches.
func (v *view) release(m *quorum.Machine) admission.Decision {
	next := *m
	next.Hook = quorum.EntryAbsent
	return v.admit(admission.OperationUpdate, *m, &next, false)
}

func (v *view) admit(operation admission.Operation, old quorum.Machine, next *quorum.Machine, unenforced bool) admission.Decision {
	return identities().Admit(&admission.Request{Operation: operation, User: v.user, Namespace: v.namespace, At: v.Now, Old: &old, New: next, Unenforced: unenforced}, v.Snapshot)
}

// role is what a member is in the ring.
func (v *view) role(m *quorum.Member) string {
	switch {
	case m.Learner:
		return "learner"
	case m.ID == v.Ring.Leader:
		return "leader"
	}
	return "voter"
}

// age is for how long something has been so.
func (v *view) age(since time.Time) string { return ago(v.Now.Sub(since)) }

// etcdLine is the ring in a line.
func (v *view) etcdLine() string {
	if !v.Ring.Known {
		return "not known: " + cmp.Or(v.Ring.Why, "its members could not be read")
	}
	voters, healthy := v.Ring.Voters()
	wanted := "how many are wanted is not known (" + v.DesiredWhy + ")"
	if v.Desired > 0 {
		wanted = fmt.Sprintf("%d wanted", v.Desired)
		if v.Desired%2 == 0 {
			wanted += fmt.Sprintf(" (as many may fail as of %d)", v.Desired-1)
		}
		if v.DesiredWhy != "" {
			wanted += " (" + v.DesiredWhy + ")"
		}
	}
	line := fmt.Sprintf("%d of %d voters healthy, %s; quorum is %d, ", healthy, voters, wanted, quorum.Size(voters))
	if spare := healthy - quorum.Size(voters); spare >= 0 {
		line += fmt.Sprintf("so %d more may fail", spare)
	} else {
		line += "so quorum is lost"
	}
	if leader := v.Ring.Member(v.Ring.Leader); leader != nil {
		line += fmt.Sprintf("; leader %s", leader)
	} else {
		line += "; no leader"
	}
	if v.Ring.Version != "" {
		line += "; version " + v.Ring.Version
	}
	return line
}

func (v *view) modeLine() string {
	if v.Mode == quorum.ModeFull {
		return "full: Holdfast drives etcd's membership"
	}
	return "guard: Holdfast leaves etcd's membership to others"
}

// waits says in a few words what a Machine waits for, "" for nothing.
func (v *view) waits(m *quorum.Machine) string {
	var out []string
	held := m.Deleting() && (m.Hook != quorum.EntryAbsent || m.Latch == quorum.EntryOurs)
	switch {
	case m.Mirrored:
		out = append(out, "left alone: it is mirrored")
	case v.silent && held:
		return "not known"
	case v.silent:
		return ""
	case held && !v.Ring.Known:
		out = append(out, "etcd to answer")
	case m.Deleting():
		if phase := v.phase(m.Name); phase != 0 {
			out = append(out, phase.WaitsFor(v.Mode))
		}
	}
	for _, a := range v.plan.Actions {
		if a.Machine == m.Name {
			out = append(out, fmt.Sprintf("step %d: %s", a.Step, a.Kind()))
		}
	}
	for _, n := range v.plan.Notes {
		if n.Machine == m.Name && n.Reason != membership.ReasonReplacementWaits && n.Reason != membership.ReasonMachineMirrored {
			out = append(out, string(n.Reason))
		}
	}
	return strings.Join(out, ", ")
}

// phase is how far the replacement of a Machine is, 0 where it is not being replaced.
func (v *view) phase(machine string) membership.Phase {
	for _, r := range membership.Replacements(v.join) {
		if r.Machine == machine {
			return r.Phase
		}
	}
	return 0
}

// next prints what to do and what to know.
func (v *view) next(out io.Writer) {
	if v.silent {
		fmt.Fprintln(out, "What Holdfast does next is not known here, because etcd's members are not.")
		return
	}
	bare := v.bare(func(m *quorum.Machine) bool { return v.join.Voter(m) != nil })
	loose := v.loose()
	switch {
	case v.reports != admission.Enforce:
		fmt.Fprintf(out, "Holdfast only reports (--enforcement=%s), and takes no step.\n", v.reports)
	case v.idle != "":
		fmt.Fprintf(out, "Holdfast seems not to run: %s. Until it does, nobody takes its steps.\n", plain(v.idle))
	case len(v.plan.Actions)+len(v.plan.Notes)+len(bare)+len(loose) > 0 || v.operator != "":
	case v.unguarded():
		fmt.Fprintln(out, "Nothing to do, but the guard is not in force: kubectl holdfast check")
	default:
		fmt.Fprintln(out, "Nothing to do.")
	}
	if v.operator != "" {
		fmt.Fprintln(out, plain(v.operator))
	}
	if len(loose) > 0 {
		fmt.Fprintf(out, "Without a Machine: Node %s. Nothing guards or replaces what runs there. If its Machine is gone and its instance is not, end the instance by the platform's own means, then: kubectl delete node %s\n",
			plain(strings.Join(loose, ", ")), plain(loose[0]))
	}
	if len(bare) > 0 && v.Mode != quorum.ModeGuard { // there a note says it
		fmt.Fprintf(out, "Not protected: %s: hook, latch or finalizer is missing on a voter's Machine, so its deletion may take the member. "+
			"Holdfast puts hook and latch on within seconds; see whether it runs.\n", plain(strings.Join(bare, ", ")))
	}
	for _, a := range v.plan.Actions {
		fmt.Fprintf(out, "Next, step %d: %s: %s\n", a.Step, plain(a.Describe()), plain(a.Why))
		if f := membership.Failing(v.Snapshot, a); f != nil {
			fmt.Fprintf(out, "  This has failed since %s, for %s: %s\n", at(f.Since), v.age(f.Since), plain(f.Why))
		}
	}
	for _, n := range v.plan.Notes {
		fmt.Fprintf(out, "%s: %s\n", n.Reason, plain(n.Message))
	}
}

// bare are the live control-plane Machines, of those that are asked for, without hook, latch or finalizer.
func (v *view) bare(which func(*quorum.Machine) bool) (names []string) {
	for i := range v.Machines {
		if m := &v.Machines[i]; m.ControlPlane() && !m.Mirrored && !m.Deleting() && !m.Protected() && which(m) {
			names = append(names, m.Name)
		}
	}
	return names
}

// loose are the control plane's Nodes without a Machine, where the Machine API makes the others.
func (v *view) loose() (names []string) {
	for i := range v.Nodes {
		if n := &v.Nodes[i]; v.MachineAPIFunctional() && v.join.Owner(n) == nil {
			names = append(names, n.Name)
		}
	}
	return names
}

// verdict prints what Holdfast would answer to a request. Where nothing is known of etcd, which Holdfast asks,
// that is what it would answer if etcd did not.
func (v *view) verdict(out io.Writer, m *quorum.Machine, what string, d *admission.Decision) {
	who := "you"
	if v.user.Name != "" {
		who += " (" + plain(v.user.Name) + ")"
	}
	words := verdictWords(d)
	if m.Deleting() && !refused(d) && v.stays(m) {
		words = "of no use yet, because the latch would stay, and the Machine with it. Holdfast would say:"
	}
	now := "now"
	if v.unguarded() {
		now += " with the guard in force"
	}
	if v.silent {
		fmt.Fprintf(out, "\nIf %s %s it %s, Holdfast would ask etcd, which is not known here. Without etcd's answer it would be %s\n", who, what, now, words)
	} else {
		fmt.Fprintf(out, "\nIf %s %s it %s, it would be %s\n", who, what, now, words)
	}
	indented(out, lines(d)...)
}

// stays reports whether a Machine stays for now that somebody releases: its latch does, because etcd cannot do without what it hosts.
func (v *view) stays(m *quorum.Machine) bool {
	is, _ := v.join.Hosting(m)
	return m.Latch == quorum.EntryOurs && v.Ring.Known && is != quorum.HostingNothing && !v.join.MayRelease(m)
}

// indented prints lines that are not trusted.
func indented(out io.Writer, lines ...string) {
	for _, line := range lines {
		fmt.Fprintf(out, "  %s\n", plain(line))
	}
}
