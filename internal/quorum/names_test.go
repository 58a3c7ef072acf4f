package quorum_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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

// TestNames holds the rules' names together: doc.go lists them in their order, each decides something
// in a transcript, and its text says its name. The same for the steps of the plan.
func TestNames(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var listed []q.Rule
	for _, found := range regexp.MustCompile(`(?m)^//\t([a-z-]+) `).FindAllStringSubmatch(string(doc), -1) {
		listed = append(listed, q.Rule(found[1]))
	}
	if !slices.Equal(listed, q.Rules[:]) {
		t.Errorf("doc.go lists %q, the code has %q", listed, q.Rules)
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
		if !strings.Contains(string(doc), fmt.Sprintf(" %d ", step)) {
			t.Errorf("doc.go does not tell step %d", step)
		}
	}
	for _, reason := range []q.Reason{
		q.EtcdUnknown, q.EtcdNoLeader, q.EtcdMembersUnhealthy, q.MachineAPINotFunctional, q.DesiredReplicasUnknown,
		q.MemberHostUnknown, q.LearnerOrphaned, q.MachineMirrored, q.HookOwnerForeign, q.ReplacementWaits, q.InstanceClaimedTwice, q.ClaimsUnknown,
	} {
		if !strings.Contains(told, "\n"+string(reason)+": ") {
			t.Errorf("reason %s is not in testdata/plan", reason)
		}
	}
}

// TestClaimUnknown: where the Machines could not be read, no Machine takes a provider ID, also if the
// request wanted all of the Snapshot for another rule.
func TestClaimUnknown(t *testing.T) {
	ids := q.DefaultIdentities("holdfast")
	old := q.Machine{Name: "master-0", UID: "0", Role: "master", Hook: q.Ours, Latch: q.Ours, Finalizer: true}
	next := old
	next.ProviderID, next.Hook, next.Latch = "aws:///1", q.Absent, q.Absent
	r := &q.Request{Operation: q.Update, User: q.User{Name: "holdfast"}, Namespace: "n", Old: &old, New: &next}
	d := ids.Admit(r, nil)
	if denial := d.Denial(); denial == nil || denial.Rule != q.Claim {
		t.Errorf("it passed: %s", d.Describe())
	}
	if problem := wrongWords(&d); problem != "" {
		t.Error(problem)
	}
	worker := q.Machine{Name: "worker-0", UID: "1", Role: "worker", ProviderID: "aws:///1"}
	d = ids.Admit(&q.Request{Operation: q.Delete, User: q.User{Name: "holdfast"}, Namespace: "n", Old: &worker}, nil)
	if denial := d.Denial(); denial == nil || denial.Rule != q.Claim {
		t.Errorf("the deletion passed: %s", d.Describe())
	}
	if problem := wrongWords(&d); problem != "" {
		t.Error(problem)
	}
}

// TestUnread: where nothing could be read, that is what is said, and not that it was etcd.
func TestUnread(t *testing.T) {
	old := q.Machine{Name: "master-0", UID: "0", Role: "master", Hook: q.Ours, Latch: q.Ours, Finalizer: true, DeletedAt: noon()}
	next := old
	next.Hook = q.Absent
	d := q.DefaultIdentities("holdfast").Admit(&q.Request{Operation: q.Update, User: q.User{Name: "holdfast"}, Namespace: "n", Old: &old, New: &next}, nil)
	if said := d.Describe(); !strings.Contains(said, string(q.EarlyRelease)) || !strings.Contains(said, "the cluster could not be read in time") {
		t.Errorf("it says %s", said)
	}
}

func TestClassify(t *testing.T) {
	ids := q.DefaultIdentities("system:serviceaccount:holdfast-system:holdfast")
	ids.Automation = []string{"ci-*-bot", "robots", "*@tools.example.com"}
	ids.EscapeHatch = append(ids.EscapeHatch, "system:serviceaccount:ops:*")
	for _, c := range []struct {
		name  string
		group string
		want  q.Class
	}{
		{"alice", "system:masters", q.Person},
		{"system:admin", "system:masters", q.Person},
		{"system:admin2", "", q.Automation},
		{"system:kube-controller-manager", "", q.Automation},
		{"system:node:master-0", "system:nodes", q.Automation},
		{"system:serviceaccount:argocd:app", "system:serviceaccounts", q.Automation},
		{"system:serviceaccount:openshift-backplane-srep:x", "system:serviceaccounts:openshift-backplane-srep", q.Person},
		{"system:serviceaccount:ops:jane", "", q.Person},
		{"system:serviceaccount:holdfast-system:holdfast", "", q.Custodian},
		{"system:serviceaccount:openshift-etcd-operator:etcd-operator", "", q.Custodian},
		{"system:serviceaccount:openshift-etcd-operator:other", "", q.Automation},
		{"ci-7-bot", "", q.Automation},
		{"ci-bot", "", q.Person},
		{"ci-7-bots", "", q.Person},
		{"sync@tools.example.com", "", q.Automation},
		{"bob", "robots", q.Automation},
		{"bob", "robots-2", q.Person},
		{"bob", "ci-7-bot", q.Person}, // groups are exact, and a name's pattern is no group's
		{"", "", q.Person},
	} {
		if got := ids.Classify(q.User{Name: c.name, Groups: []string{c.group}}); got != c.want {
			t.Errorf("%s of %q is %s, want %s", c.name, c.group, got, c.want)
		}
	}
}

// TestSame holds what a second look must confirm: the same thing done to the same object.
func TestSame(t *testing.T) {
	a := q.Action{Kind: q.RemoveLearner, Machine: "m", UID: "u", Member: 1, To: 2, PeerURL: "p", GivesWay: true, Why: "x"}
	b := a
	b.Why, b.MemberName, b.Step = "y", "now it has a name", 9
	if !a.Same(b) {
		t.Error("other words are no other action")
	}
	for name, change := range map[string]func(*q.Action){
		"kind": func(o *q.Action) { o.Kind = q.RemoveVoter }, "machine": func(o *q.Action) { o.UID = "v" },
		"member": func(o *q.Action) { o.Member = 3 }, "successor": func(o *q.Action) { o.To = 3 },
		"peer URL": func(o *q.Action) { o.PeerURL = "q" }, "way": func(o *q.Action) { o.GivesWay = false },
		"hook": func(o *q.Action) { o.Hook = true }, "latch": func(o *q.Action) { o.Latch = true },
	} {
		other := a
		if change(&other); a.Same(other) {
			t.Errorf("another %s is another action", name)
		}
	}
}
