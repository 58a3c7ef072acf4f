package decisions_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestMain looks at more cases than rapid's default, which are cheap here, and leaves no files of
// failed ones: the seed is printed. A flag of the command line counts more.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "1000", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

func transcripts(t *testing.T, dir string) string {
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts in %s: %v", dir, err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// packageDoc is the documentation of a package in internal.
func packageDoc(t *testing.T, name string) string {
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", name, "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNames holds the rules' names together: admission/doc.go lists them in their order, each decides something
// in a transcript, and its text says its name. The same for the steps of the plan.
func TestNames(t *testing.T) {
	rules, steps := packageDoc(t, "admission"), packageDoc(t, "membership")
	var listed []q.Rule
	for _, found := range regexp.MustCompile(`(?m)^//\t([a-z-]+) `).FindAllStringSubmatch(rules, -1) {
		listed = append(listed, q.Rule(found[1]))
	}
	if !slices.Equal(listed, q.Rules[:]) {
		t.Errorf("admission/doc.go lists %q, the code has %q", listed, q.Rules)
	}
	told := transcripts(t, "admit")
	for _, rule := range q.Rules {
		if !strings.Contains(told, " by "+string(rule)+"\n") {
			t.Errorf("rule %s decides nothing in testdata/admit", rule)
		}
		if !strings.Contains(told, "("+string(rule)+")") {
			t.Errorf("no text in testdata/admit names rule %s", rule)
		}
	}
	told = transcripts(t, "plan")
	for step := 1; step <= 7; step++ {
		if !strings.Contains(told, fmt.Sprintf("\nstep %d: ", step)) {
			t.Errorf("step %d is not taken in testdata/plan", step)
		}
		if !strings.Contains(steps, fmt.Sprintf("//\tstep %d  ", step)) {
			t.Errorf("membership/doc.go does not tell step %d", step)
		}
	}
	// Of what no plan decides internal/controller tells, and of a violated invariant a property.
	undecided := []string{"MachineCRDUnfit", "RecordsNotKept", "ConditionsNotTold", "ClusterUnreadable", "InvariantViolated"}
	for dir, pkg := range map[string]string{"plan": "membership", "machineset": "machineset"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "internal", pkg, "reason.go"))
		if err != nil {
			t.Fatal(err)
		}
		reasons := regexp.MustCompile(`\bReason = "(\w+)"`).FindAllStringSubmatch(string(text), -1)
		if len(reasons) == 0 {
			t.Errorf("no reason is found in the code of %s", pkg)
		}
		told := transcripts(t, dir)
		for _, reason := range reasons {
			if !slices.Contains(undecided, reason[1]) && !strings.Contains(told, "\n"+reason[1]+": ") {
				t.Errorf("reason %s of %s is said in no transcript in testdata/%s", reason[1], pkg, dir)
			}
		}
	}
}

// TestClaimUnknown: where the Machines could not be read, no Machine takes a provider ID, also if the
// request wanted all of the Snapshot for another rule.
func TestClaimUnknown(t *testing.T) {
	ids := admission.DefaultIdentities("holdfast")
	old := q.Machine{Name: "master-0", UID: "0", Role: "master", Hook: q.EntryOurs, Latch: q.EntryOurs, Finalizer: true}
	next := old
	next.ProviderID, next.Hook, next.Latch = "aws:///1", q.EntryAbsent, q.EntryAbsent
	r := &admission.Request{Operation: admission.OperationUpdate, User: admission.User{Name: "holdfast"}, Namespace: "n", Old: &old, New: &next}
	d := ids.Admit(r, nil)
	if denial := d.Denial(); denial == nil || denial.Rule != q.RuleClaim {
		t.Errorf("it passed: %s", d.Describe())
	}
	if problem := wrongWords(&d); problem != "" {
		t.Error(problem)
	}
	worker := q.Machine{Name: "worker-0", UID: "1", Role: "worker", ProviderID: "aws:///1"}
	d = ids.Admit(&admission.Request{Operation: admission.OperationDelete, User: admission.User{Name: "holdfast"}, Namespace: "n", Old: &worker}, nil)
	if denial := d.Denial(); denial == nil || denial.Rule != q.RuleClaim {
		t.Errorf("the deletion passed: %s", d.Describe())
	}
	if problem := wrongWords(&d); problem != "" {
		t.Error(problem)
	}
}

// TestUnread: where nothing could be read, that is what is said, and not that it was etcd.
func TestUnread(t *testing.T) {
	old := q.Machine{Name: "master-0", UID: "0", Role: "master", Hook: q.EntryOurs, Latch: q.EntryOurs, Finalizer: true, DeletedAt: noon()}
	next := old
	next.Hook = q.EntryAbsent
	d := admission.DefaultIdentities("holdfast").Admit(&admission.Request{Operation: admission.OperationUpdate, User: admission.User{Name: "holdfast"}, Namespace: "n", Old: &old, New: &next}, nil)
	if said := d.Describe(); !strings.Contains(said, string(q.RuleEarlyRelease)) || !strings.Contains(said, "the cluster could not be read in time") {
		t.Errorf("it says %s", said)
	}
	d = admission.DefaultIdentities("holdfast").Admit(&admission.Request{Operation: admission.OperationUpdate, User: admission.User{Name: "holdfast"}, Namespace: "n", Old: &old, New: &next, Unread: "nodes is forbidden"}, nil)
	if said := d.Describe(); !strings.Contains(said, "Reason: the cluster could not be read: nodes is forbidden.") {
		t.Errorf("it says %s", said)
	}
}

func TestClassify(t *testing.T) {
	ids := admission.DefaultIdentities("system:serviceaccount:holdfast-system:holdfast")
	ids.Automation = []string{"ci-*-bot", "robots", "*@tools.example.com"}
	ids.EscapeHatch = append(ids.EscapeHatch, "system:serviceaccount:ops:*")
	for _, c := range []struct {
		name  string
		group string
		want  admission.Class
	}{
		{"alice", "system:masters", admission.ClassPerson},
		{"system:admin", "system:masters", admission.ClassPerson},
		{"system:admin2", "", admission.ClassAutomation},
		{"system:kube-controller-manager", "", admission.ClassAutomation},
		{"system:node:master-0", "system:nodes", admission.ClassAutomation},
		{"system:serviceaccount:argocd:app", "system:serviceaccounts", admission.ClassAutomation},
		{"system:serviceaccount:openshift-backplane-srep:x", "system:serviceaccounts:openshift-backplane-srep", admission.ClassAutomation},
		{"system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client", "system:serviceaccounts", admission.ClassPerson},
		{"system:serviceaccount:ops:jane", "", admission.ClassPerson},
		{"system:serviceaccount:holdfast-system:holdfast", "", admission.ClassCustodian},
		{"system:serviceaccount:openshift-etcd-operator:etcd-operator", "", admission.ClassCustodian},
		{"system:serviceaccount:openshift-etcd-operator:other", "", admission.ClassAutomation},
		{"ci-7-bot", "", admission.ClassAutomation},
		{"ci-bot", "", admission.ClassPerson},
		{"ci-7-bots", "", admission.ClassPerson},
		{"sync@tools.example.com", "", admission.ClassAutomation},
		{"bob", "robots", admission.ClassAutomation},
		{"bob", "robots-2", admission.ClassPerson},
		{"bob", "ci-7-bot", admission.ClassPerson}, // groups are exact, and a name's pattern is no group's
		{"", "", admission.ClassPerson},
	} {
		if got := ids.Classify(admission.User{Name: c.name, Groups: []string{c.group}}); got != c.want {
			t.Errorf("%s of %q is %s, want %s", c.name, c.group, got, c.want)
		}
	}
}

// TestSame holds what a second look must confirm: the same thing done to the same object.
func TestSame(t *testing.T) {
	one, two := membership.Member{ID: 1}, membership.Member{ID: 2}
	a := membership.Action{Machine: "m", UID: "u", Change: membership.RemoveLearner{Member: one, GivesWay: true}, Why: "x"}
	b := a
	b.Why, b.Step = "y", 9
	if !a.Same(b) {
		t.Error("other words are no other action")
	}
	for name, c := range map[string]struct{ is, other membership.Change }{
		"kind":      {membership.RemoveLearner{Member: one}, membership.RemoveVoter{Member: one}},
		"member":    {membership.Promote{Member: one}, membership.Promote{Member: two}},
		"successor": {membership.MoveLeader{From: one, To: one}, membership.MoveLeader{From: one, To: two}},
		"peer URL":  {membership.AddLearner{PeerURL: "p"}, membership.AddLearner{PeerURL: "q"}},
		"way":       {membership.RemoveLearner{Member: one, GivesWay: true}, membership.RemoveLearner{Member: one}},
		"hook":      {membership.ReleaseHook{Hook: true}, membership.ReleaseHook{}},
		"latch":     {membership.AddHook{Latch: true}, membership.AddHook{}},
		"pod":       {membership.DeleteGuardPod{PodUID: "p"}, membership.DeleteGuardPod{PodUID: "q"}},
	} {
		if (membership.Action{UID: "u", Change: c.is}).Same(membership.Action{UID: "u", Change: c.other}) {
			t.Errorf("another %s is another action", name)
		}
	}
	if b.UID = "v"; a.Same(b) {
		t.Error("another Machine is another action")
	}
}

// TestCopies: the join knows the Snapshot's own Machines and members. Of a copy it knows nothing, so nothing is let go for it.
func TestCopies(t *testing.T) {
	s := &q.Snapshot{
		Machines: []q.Machine{{Name: "master-0", UID: "uid-0"}}, // without an instance: it hosts nothing
		Ring:     q.Ring{Known: true, Members: []q.Member{{ID: 1, Healthy: true, PeerURLs: []string{"https://10.0.0.9:2380"}}}},
		Nodes:    []q.Node{{Name: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}},
	}
	s.Now, s.Ledger.Version = noon(), "1"
	j, machine, member := q.NewJoin(s), s.Machines[0], s.Ring.Members[0]
	if is, _ := j.Hosting(&s.Machines[0]); is != q.HostingNothing || !j.MayRelease(&s.Machines[0]) || !j.Host(&s.Ring.Members[0]).Known() {
		t.Error("the Snapshot's own are not known")
	}
	if is, why := j.Hosting(&machine); is != q.HostingUnknown || why == "" || j.MayRelease(&machine) || j.Host(&member).Known() {
		t.Errorf("copies are known: %d, %q", is, why)
	}
}
