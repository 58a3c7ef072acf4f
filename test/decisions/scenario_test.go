package decisions_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// The scenarios read as documentation: a cluster in words, a request or a look at it, and what comes
// of that. testdata/README.md has the words. With -rewrite they are written anew.
func TestScenarios(t *testing.T) {
	for _, dir := range [...]string{"match", "plan", "admit", "condition", "machineset"} {
		t.Run(dir, func(t *testing.T) {
			datadriven.Walk(t, filepath.Join("testdata", dir), func(t *testing.T, path string) {
				w := newWorld()
				datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return w.obey(t, d) })
			})
		})
	}
}

// obey does what a scenario says.
func (w *world) obey(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "cluster":
		*w = *newWorld()
		return w.change(t, d)
	case "set":
		return w.change(t, d)
	case "state":
		return w.describe()
	case "tick":
		passed, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.s.Now = w.s.Now.Add(passed)
		return "ok\n"
	case "match":
		return w.match()
	case "conditions":
		return w.conditions(d)
	case "plan":
		return membership.Decide(&w.s).Describe()
	case "cpms":
		return w.planSet()
	case "cpms-status":
		return w.setStatus()
	case "run":
		return w.run(t)
	case "admit":
		return w.admit(t, d)
	case "home":
		return w.home(t, d)
	case "host":
		return w.host(t, d)
	case "machineset", "healthcheck":
		return w.keeper(t, d)
	case "scale":
		return w.scale(t, d)
	case "controlplaneset":
		return w.controlPlaneSet(t, d)
	}
	d.Fatalf(t, "no command %q", d.Cmd)
	return ""
}

func (w *world) change(t *testing.T, d *datadriven.TestData) string {
	for line := range strings.Lines(d.Input) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := w.set(line); err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	w.witness()
	return "ok\n"
}

// conditions looks now and for as long as the argument says, each second, and shows what is told then;
// that which changed with the last look is marked.
func (w *world) conditions(d *datadriven.TestData) string {
	look := func() {
		p := membership.Decide(&w.s)
		w.told = membership.Settle(w.told, membership.Conditions(&p), w.s.Now)
	}
	var lasting time.Duration
	if len(d.CmdArgs) > 0 {
		lasting, _ = time.ParseDuration(d.CmdArgs[0].Key)
	}
	for look(); lasting > 0; lasting -= time.Second {
		w.s.Now = w.s.Now.Add(time.Second)
		look()
	}
	var b strings.Builder
	for _, c := range w.told {
		fmt.Fprintf(&b, "%s ago: %s", w.s.Now.Sub(c.Since), c.Describe())
	}
	return b.String()
}

// match says where each member runs, and what each Machine hosts.
func (w *world) match() string {
	var b strings.Builder
	j := q.NewJoin(&w.s)
	for k := range w.s.Ring.Members {
		member := &w.s.Ring.Members[k]
		h := j.Host(member)
		var at []string
		for _, m := range h.Machines {
			at = append(at, "Machine "+m.Name)
		}
		for _, n := range h.Nodes {
			at = append(at, "Node "+n.Name)
		}
		if h.Bootstrap {
			at = append(at, "the bootstrap host")
		}
		if h.Departed != nil {
			at = append(at, "once Machine "+h.Departed.Machine)
		}
		if len(at) == 0 {
			at = []string{"nobody"}
		}
		more := ""
		if !h.Known() {
			more = ": unknown"
		}
		if j.Stale(member) {
			more += ": stale"
		}
		fmt.Fprintf(&b, "%s -> %s%s\n", member, strings.Join(at, " and "), more)
	}
	for i := range w.s.Machines {
		m := &w.s.Machines[i]
		switch is, why := j.Hosting(m); is {
		case q.HostingMember:
			fmt.Fprintf(&b, "%s hosts a member\n", m.Name)
		case q.HostingNothing:
			fmt.Fprintf(&b, "%s hosts nothing\n", m.Name)
		case q.HostingUnknown:
			fmt.Fprintf(&b, "%s is not known: %s\n", m.Name, why)
		}
	}
	return b.String()
}

// run looks and acts until nothing happens any more.
func (w *world) run(t failing) string {
	var b strings.Builder
	for range 300 {
		notes, rests := w.round(t, &b)
		if !rests {
			continue
		}
		for _, n := range notes {
			fmt.Fprintf(&b, "%s: %s\n", n.Reason, n.Message)
		}
		b.WriteString(w.planSet())
		return b.String() + w.describe()
	}
	t.Errorf("does not come to rest:\n%s", b.String())
	return b.String()
}

// failing is a test, or one draw of a property.
type failing interface {
	Errorf(format string, args ...any)
}

// round looks and acts once, and says whether nothing happened.
func (w *world) round(t failing, b *strings.Builder) (notes []membership.Note, rests bool) {
	w.account()
	b.WriteString(w.actSet(t))
	p := membership.Decide(&w.s)
	w.forget(&p)
	rests = true
	for _, a := range p.Actions {
		if problem := violates(&w.s, a); problem != "" {
			t.Errorf("%s: %s", a.Describe(), problem)
		}
		known, err := w.try(a)
		if known {
			continue
		}
		fmt.Fprintf(b, "step %d: %s\n", a.Step, a.Describe())
		if rests = false; err != nil {
			fmt.Fprintf(b, "  refused: %v\n", err)
		}
		if err != nil && !errors.Is(err, errUnhealthy) {
			return p.Notes, true
		}
	}
	if p.Records != nil {
		w.s.Records = p.Records
	}
	w.keep(p.Ledger)
	news := w.pass()
	for _, n := range news {
		fmt.Fprintf(b, "  %s\n", n)
	}
	return p.Notes, rests && len(news) == 0 && w.setRests()
}

// people are who sends the requests of the scenarios.
func people() map[string]admission.User {
	return map[string]admission.User{
		"alice":         {Name: "alice", Groups: []string{"system:masters", "system:authenticated"}},
		"system-admin":  {Name: "system:admin", Groups: []string{"system:masters"}},
		"gitops":        {Name: "system:serviceaccount:argocd:application-controller", Groups: []string{"system:serviceaccounts"}},
		"machine-api":   {Name: "system:serviceaccount:openshift-machine-api:machine-api-controllers", Groups: []string{"system:serviceaccounts"}},
		"node":          {Name: "system:node:master-0", Groups: []string{"system:nodes"}},
		"etcd-operator": {Name: "system:serviceaccount:openshift-etcd-operator:etcd-operator", Groups: []string{"system:serviceaccounts"}},
		"holdfast":      {Name: "system:serviceaccount:holdfast-system:holdfast", Groups: []string{"system:serviceaccounts"}},
		"recovery":      {Name: "system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client", Groups: []string{"system:serviceaccounts"}},
		"ci-bot":        {Name: "ci-bot-7", Groups: []string{"robots"}},
	}
}

func identities() admission.Identities {
	ids := admission.DefaultIdentities(people()["holdfast"].Name)
	ids.Automation = []string{"ci-*"}
	return ids
}

// admit asks for a change, with no more of the cluster than Needs says, and lets it happen unless it
// is only a trial.
func (w *world) admit(t *testing.T, d *datadriven.TestData) string {
	var as, op string
	d.ScanArgs(t, "as", &as)
	user, ok := people()[as]
	if op = d.CmdArgs[0].Key; !ok {
		d.Fatalf(t, "nobody is called %s", as)
	}
	name := d.CmdArgs[1].Key
	r := &admission.Request{User: user, Namespace: "openshift-machine-api", At: w.s.Now}
	old := w.machine(name)
	switch op {
	case "create":
		r.Operation, r.New = admission.OperationCreate, &q.Machine{Name: name, UID: "uid-" + name, Role: "master", Type: "master", Hook: q.EntryAbsent, Latch: q.EntryAbsent}
	case "update":
		next := *old
		r.Operation, r.Old, r.New = admission.OperationUpdate, old, &next
	case "delete":
		r.Operation, r.Old = admission.OperationDelete, old
	default:
		d.Fatalf(t, "no operation %q", op)
	}
	for line := range strings.Lines(d.Input) {
		alter(t, r.New, strings.TrimSpace(line))
	}
	r.ByWebhook, r.Unenforced = d.HasArg("by-webhook"), d.HasArg("unenforced")
	ids := identities()
	var s *q.Snapshot
	var b strings.Builder
	switch ids.Needs(r) {
	case admission.NeedRing:
		s = &w.s
		b.WriteString("(asks etcd)\n")
	case admission.NeedHosts:
		s = hosts(&w.s, r)
		b.WriteString("(asks for the Machines)\n")
	}
	decision := ids.Admit(r, s)
	if full := ids.Admit(r, &w.s); full.Describe() != decision.Describe() {
		t.Errorf("with all of the Snapshot:\n%s", full.Describe())
	}
	if problem := wrongWords(&decision); problem != "" {
		t.Error(problem)
	}
	b.WriteString(decision.Describe() + claims(&decision))
	if decision.Denial() == nil && !d.HasArg("trial") {
		w.happen(r, &decision)
	}
	return b.String()
}

// home asks to delete or update what the Machines live in.
func (w *world) home(t *testing.T, d *datadriven.TestData) string {
	r := &admission.HomeRequest{What: "namespace openshift-machine-api", Operation: admission.OperationDelete, Prunes: d.HasArg("prunes")}
	if d.HasArg("crd") {
		r.What = "CustomResourceDefinition machines.machine.openshift.io"
	}
	if d.HasArg("update") {
		r.Operation = admission.OperationUpdate
	}
	if d.HasArg("changes") {
		r.Changes = "the schema of version v1beta1 .status.nodeRef"
	}
	if d.HasArg("version-operator") {
		r.User.Name = "system:serviceaccount:openshift-cluster-version:default"
	}
	decision := identities().AdmitHome(r, w.s.Machines, !d.HasArg("unknown"))
	if problem := wrongWords(&decision); problem != "" {
		t.Error(problem)
	}
	return decision.Describe()
}

// host asks for something of the BareMetalHost that a Machine uses.
func (w *world) host(t *testing.T, d *datadriven.TestData) string {
	var as string
	d.ScanArgs(t, "as", &as)
	r := &admission.HostRequest{
		Operation: admission.OperationUpdate, Namespace: "openshift-machine-api", Name: "bmh", Machine: d.CmdArgs[0].Key, What: "annotation reboot.metal3.io",
		MachineNamespace: "openshift-machine-api", User: people()[as], At: w.s.Now,
	}
	if r.Ends = d.HasArg("ends"); r.Ends {
		r.Operation, r.What = admission.OperationDelete, "the deletion"
	}
	s := &w.s
	if d.HasArg("unread") {
		s, r.Unread = nil, "the API server does not answer"
	}
	decision := identities().AdmitHost(r, w.machine(r.Machine), s)
	if problem := wrongWords(&decision); problem != "" {
		t.Error(problem)
	}
	return decision.Describe() + claims(&decision)
}

// claims is what has to be on the ledger first.
func claims(d *admission.Decision) string {
	if d.Claims.Until.IsZero() {
		return ""
	}
	return fmt.Sprintf("on the ledger first: for %s the host of %s may be powered off, by %s\n", d.Claims.Until.Sub(d.Claims.At), d.Claims.Machine, d.Claims.By)
}

// keeper writes a MachineSet or MachineHealthCheck that selects some of the Machines.
func (w *world) keeper(t *testing.T, d *datadriven.TestData) string {
	s := &q.Selection{Desired: w.s.Desired}
	if d.HasArg("selects") {
		for _, arg := range d.CmdArgs {
			for _, name := range arg.Vals {
				if arg.Key == "selects" {
					s.Machines = append(s.Machines, *w.machine(name))
				}
			}
		}
	}
	s.Total = len(s.Machines)
	var workers int
	d.MaybeScanArgs(t, "workers", &workers)
	s.Total += workers
	var decision admission.Decision
	if d.Cmd == "machineset" {
		r := &admission.SetRequest{Namespace: "openshift-machine-api", Name: "adopter"}
		d.MaybeScanArgs(t, "role", &r.Template.Role)
		decision = admission.AdmitSet(r, s)
	} else {
		var most string
		d.ScanArgs(t, "max", &most)
		r := &admission.HealthCheckRequest{Namespace: "openshift-machine-api", Name: "check", External: d.HasArg("external"), Fresh: d.HasArg("fresh")}
		most, r.Percent = strings.CutSuffix(most, "%")
		var err error
		if r.MaxUnhealthy, err = strconv.Atoi(most); err != nil {
			d.Fatalf(t, "%v", err)
		}
		decision = admission.AdmitHealthCheck(r, s)
	}
	if problem := wrongWords(&decision); problem != "" {
		t.Error(problem)
	}
	return decision.Describe()
}

// controlPlaneSet writes the ControlPlaneMachineSet.
func (w *world) controlPlaneSet(t *testing.T, d *datadriven.TestData) string {
	r := &admission.ControlPlaneSetRequest{Namespace: "openshift-machine-api", Name: "cluster", Foreground: d.HasArg("foreground")}
	if d.HasArg("strips") {
		r.Finalizer = "holdfast.dev/control-plane-machine-set"
	}
	if d.HasArg("unusable") {
		r.Why = "spec.replicas is 4; etcd wants 1, 3, 5 or 7"
	}
	if d.HasArg("unknown") {
		r.Unknown = "create a Machine in a dry run: context deadline exceeded"
	}
	decision := admission.AdmitControlPlaneSet(r)
	if problem := wrongWords(&decision); problem != "" {
		t.Error(problem)
	}
	return decision.Describe()
}

// scale changes how many Machines the ControlPlaneMachineSet wants.
func (w *world) scale(t *testing.T, d *datadriven.TestData) string {
	r := &admission.ScaleRequest{Namespace: "openshift-machine-api", Name: "cluster", Starts: d.HasArg("starts"), Deletes: d.HasArg("deletes")}
	d.ScanArgs(t, "by", &r.User.Name)
	d.MaybeScanArgs(t, "to", &r.To)
	d.MaybeScanArgs(t, "from", &r.From)
	if d.HasArg("unknown") {
		r.FromWhy = "list Machines in namespace openshift-machine-api: context deadline exceeded"
	}
	var decision admission.Decision
	admission.DefaultIdentities(people()["holdfast"].Name).AdmitScale(&decision, r)
	if problem := wrongWords(&decision); problem != "" {
		t.Error(problem)
	}
	return decision.Describe()
}

func (w *world) happen(r *admission.Request, d *admission.Decision) {
	if !d.Claims.Until.IsZero() {
		w.s.Ledger.Entries = append(w.s.Ledger.Entries, d.Claims)
	}
	switch r.Operation {
	case admission.OperationDelete:
		if m := w.machine(r.Old.Name); !m.Deleting() {
			m.DeletedAt, m.Phase = w.s.Now, "Deleting"
		}
	case admission.OperationUpdate:
		*w.machine(r.Old.Name) = *repaired(r, d).New
	case admission.OperationCreate:
		if m := *repaired(r, d).New; m.ControlPlane() {
			w.s.Machines = append(w.s.Machines, m)
		} else {
			w.s.Claimants = append(w.s.Claimants, m)
		}
	}
}

// repaired is the request with the repairs made.
func repaired(r *admission.Request, d *admission.Decision) *admission.Request {
	next := *r.New
	old := r.Old
	if old == nil {
		old = &q.Machine{Hook: q.EntryAbsent, Latch: q.EntryAbsent}
	}
	fixEntry := func(f admission.Fix, now, was q.Entry) q.Entry {
		return map[admission.Fix]q.Entry{admission.FixNone: now, admission.FixAsOld: was, admission.FixDrop: q.EntryAbsent, admission.FixPut: q.EntryOurs}[f]
	}
	next.Hook = fixEntry(d.Repairs.Hook, next.Hook, old.Hook)
	next.Latch = fixEntry(d.Repairs.Latch, next.Latch, old.Latch)
	next.Finalizer = next.Finalizer || d.Repairs.Finalizer == admission.FixPut
	fix := func(f admission.Fix, now, was, put string) string {
		return map[admission.Fix]string{admission.FixNone: now, admission.FixAsOld: was, admission.FixDrop: "", admission.FixPut: put}[f]
	}
	if raw := fix(d.Repairs.Evidence, next.EvidenceRaw, old.EvidenceRaw, "?"); raw != next.EvidenceRaw {
		next.EvidenceRaw, next.Evidence = raw, old.Evidence
	}
	next.Override = fix(d.Repairs.Override, next.Override, old.Override, "?")
	next.OverrideBy = fix(d.Repairs.OverrideBy, next.OverrideBy, old.OverrideBy, q.Stamp(r.User.Name, r.At))
	next.ProviderID = fix(d.Repairs.ProviderID, next.ProviderID, old.ProviderID, "?")
	for i, f := range d.Repairs.Instance {
		next.Instance[i] = fix(f, next.Instance[i], old.Instance[i], "?")
	}
	out := *r
	out.New = &next
	return &out
}

func alter(t *testing.T, m *q.Machine, line string) {
	field, value, _ := strings.Cut(line, " ")
	if value == "none" && field != "hook" && field != "latch" {
		value = ""
	}
	switch field {
	case "hook":
		m.Hook = entry(value)
	case "latch":
		m.Latch = entry(value)
	case "finalizer":
		m.Finalizer = value != ""
	case "evidence":
		m.EvidenceRaw, m.Evidence = value, q.Evidence{}
	case "role":
		m.Role = value
	case "type":
		m.Type = value
	case "override":
		m.Override = value
	case "override-by":
		m.OverrideBy = value
	case "provider":
		m.ProviderID = value
	case "node":
		m.NodeName = value
	case "host":
		m.Instance[0] = value
	case "server":
		m.Instance[1] = value
	case "owner": // <kind>.<group> <name> [controller]; the UID is of the name
		words := strings.Fields(value)
		kind, group, _ := strings.Cut(words[0], ".")
		o := q.Owner{Group: group, Kind: kind, Name: words[1], UID: "uid-" + words[1], Controller: len(words) > 2}
		m.Owners = append(slices.Clone(m.Owners), o)
	case "disowned":
		m.Owners = nil
	case "phase":
		m.Phase = value
	case "remediation":
		m.Remediating = value != ""
	default:
		t.Fatalf("no field %q", field)
	}
}

// wrongWords says what a person, or the API server, would not take of a decision's texts.
func wrongWords(d *admission.Decision) string {
	for _, f := range d.Findings {
		if len(f.Lines) == 0 || len(f.Lines) > 4 {
			return fmt.Sprintf("%s says %d lines", f.Rule, len(f.Lines))
		}
		if !strings.Contains(f.Lines[0], "("+string(f.Rule)+")") {
			return fmt.Sprintf("%s is not named in %q", f.Rule, f.Lines[0])
		}
		// At these words GitOps tools that may use force delete the object and create it anew.
		if text := strings.Join(f.Lines, " "); strings.Contains(text, "is immutable") || strings.Contains(text, "immutable field") {
			return fmt.Sprintf("%s talks about immutable fields: %s", f.Rule, text)
		}
		if i := slices.IndexFunc(f.Lines, func(l string) bool {
			return f.Verdict != admission.VerdictDenied && len(l) >= 256 || strings.ContainsAny(l, "\n\r") || strings.TrimSpace(l) != l || l == ""
		}); i >= 0 {
			return fmt.Sprintf("%s: %d bytes in %q", f.Rule, len(f.Lines[i]), f.Lines[i])
		}
	}
	return ""
}
