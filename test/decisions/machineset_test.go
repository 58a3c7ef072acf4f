package decisions_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
	"pgregory.net/rapid"
)

// TestSetComesToRest: whatever people and hosts do meanwhile, the set gets to as many updated Machines as wanted, each with a voter, spread
// evenly, once everything works again. Each of its actions is judged on the way.
func TestSetComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.do(t, "cpms replicas="+one(t, "replicas", "1", "3", "5")+" domains="+one(t, "domains", "", "a", "a,b", "a,b,c"))
		for i := range w.cpms.Replicas {
			w.do(t, fmt.Sprintf("machine m-%d 10.0.0.1%d", i, i), fmt.Sprintf("member a%d 10.0.0.1%d", i, i))
			w.settle(w.machine(fmt.Sprintf("m-%d", i)), machineset.Place{Selected: true, Domain: one(t, "domain", "a", "b")})
		}
		w.witness()
		for range rapid.IntRange(1, 6).Draw(t, "events") {
			w.happenToSet(t)
			for range rapid.IntRange(0, 12).Draw(t, "rounds") {
				w.round(t, &strings.Builder{})
			}
		}
		w.do(t, "cpms capacity")
		w.cpms.Strategy = machineset.StrategyRollingUpdate
		w.wakeUp()
		story := ""
		for again := true; again; { // a health check deletes the Machines of dead hosts
			again = false
			w.s.Now = w.s.Now.Add(time.Minute)
			for i := range w.s.Nodes {
				w.s.Nodes[i].Ready = !w.broken[w.s.Nodes[i].Name]
			}
			for i := range w.s.Machines {
				if m := &w.s.Machines[i]; w.broken[m.NodeName] && !m.Deleting() && w.mayDelete("machine-api", m) {
					m.DeletedAt, again = w.s.Now, true
				}
			}
			story += w.run(t)
		}
		if problem := w.unlikeSet(); problem != "" {
			t.Errorf("%s\n%s", problem, story)
		}
	})
}

// do changes the world as lines of a scenario say.
func (w *world) do(t *rapid.T, lines ...string) {
	for _, line := range lines {
		if err := w.set(line); err != nil {
			t.Fatal(err)
		}
	}
}

// happenToSet is something that people, the provider or a host do.
func (w *world) happenToSet(t *rapid.T) {
	switch one(t, "event", "scale", "edit", "delete", "domains", "capacity", "strategy", "not ready", "host dies", "member hangs") {
	case "scale":
		w.do(t, "cpms replicas="+one(t, "replicas", "1", "3", "5", "7"))
	case "edit":
		w.do(t, "cpms edited=small")
	case "domains":
		w.do(t, "cpms domains="+one(t, "domains", "", "a", "a,b", "b,c", "a,b,c,d"))
	case "capacity":
		w.do(t, "cpms "+one(t, "capacity", "capacity", "no-capacity"))
	case "strategy":
		w.cpms.Strategy = one(t, "strategy", machineset.StrategyRollingUpdate, machineset.StrategyOnDelete)
	case "not ready":
		if len(w.s.Nodes) > 0 {
			w.s.Nodes[rapid.IntRange(0, len(w.s.Nodes)-1).Draw(t, "node")].Ready = chance(t, 50, "ready")
		}
	case "delete":
		if len(w.s.Machines) == 0 {
			return
		}
		if m := &w.s.Machines[rapid.IntRange(0, len(w.s.Machines)-1).Draw(t, "machine")]; !m.Deleting() && w.mayDelete("alice", m) {
			m.DeletedAt = w.s.Now
		}
	case "member hangs": // for a moment; one that etcd can do without
		voters, healthy := w.s.Ring.Voters()
		if m := &w.s.Ring.Members[rapid.IntRange(0, len(w.s.Ring.Members)-1).Draw(t, "member")]; m.Healthy && (m.Learner || healthy > voters/2+1) {
			m.Healthy, m.Since, m.Why = false, w.s.Now, "no answer"
			w.elect()
		}
	case "host dies": // one that etcd can do without
		voters, healthy := w.s.Ring.Voters()
		if len(w.s.Nodes) == 0 || healthy <= voters/2+1 {
			return
		}
		n := &w.s.Nodes[rapid.IntRange(0, len(w.s.Nodes)-1).Draw(t, "node")]
		w.broken[n.Name], n.Ready = true, false
		w.kill(n.Addresses)
		w.elect()
	}
}

// wakeUp has the members answer that only hung.
func (w *world) wakeUp() {
	for k := range w.s.Ring.Members {
		if m := &w.s.Ring.Members[k]; m.Why == "no answer" {
			m.Healthy, m.Since, m.Why = true, w.s.Now, ""
		}
	}
}

// mayDelete asks the guard.
func (w *world) mayDelete(who string, m *q.Machine) bool {
	ids := identities()
	d := ids.Admit(&admission.Request{User: people()[who], Namespace: "openshift-machine-api", At: w.s.Now, Operation: admission.OperationDelete, Old: m}, &w.s)
	return d.Denial() == nil
}

// unlikeSet is how the world at rest differs from what its set says, "" if it does not.
func (w *world) unlikeSet() string {
	voters, healthy := w.s.Ring.Voters()
	if n := w.cpms.Replicas; voters != n || healthy != n || len(w.s.Machines) != n {
		return fmt.Sprintf("%d voters, %d healthy, %d Machines for %d replicas", voters, healthy, len(w.s.Machines), n)
	}
	in := map[string]int{}
	for i := range w.s.Machines {
		place := w.cpms.Places[w.s.Machines[i].UID]
		if in[place.Domain]++; place.Outdated != "" {
			return w.s.Machines[i].Name + " is outdated"
		}
	}
	if len(w.cpms.Domains) == 0 {
		return ""
	}
	least, most, all := w.cpms.Replicas, 0, 0
	for _, d := range w.cpms.Domains {
		least, most, all = min(least, in[d]), max(most, in[d]), all+in[d]
	}
	if most-least > 1 || all != w.cpms.Replicas {
		return fmt.Sprintf("uneven: %v", in)
	}
	return ""
}

// setCPMS makes the ControlPlaneMachineSet, or changes it.
func (w *world) setCPMS(opts []string) error {
	if w.cpms == nil {
		w.cpms = &machineset.Set{Name: "cluster", UID: "uid-cpms", Active: true, Taken: true, Strategy: machineset.StrategyRollingUpdate, Places: map[string]machineset.Place{}}
		for i := range w.s.Machines {
			w.settle(&w.s.Machines[i], machineset.Place{Selected: true})
		}
	}
	for _, opt := range opts {
		switch key, value, _ := strings.Cut(opt, "="); key {
		case "replicas":
			n, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			w.cpms.Replicas = n
		case "domains": // a,b,c, or none
			w.cpms.Domains = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		case "on-delete":
			w.cpms.Strategy = machineset.StrategyOnDelete
		case "operator-unknown":
			w.cpms.OperatorWhy = value
		case "auto-repair":
			w.cpms.AutoRepair = true
		case "stranger": // not Holdfast's yet
			w.cpms.Taken = false
		case "platform-finalizer":
			w.cpms.PlatformFinalizer = true
		case "inactive":
			w.cpms.Active = false
		case "deleting":
			w.cpms.Deleting = true
		case "operator":
			w.cpms.OtherOperator = value
		case "unusable":
			w.cpms.Unusable = value
		case "edited": // the template: every Machine is of the one before
			for uid, place := range w.cpms.Places {
				place.Outdated = "instanceType is " + value
				w.cpms.Places[uid] = place
			}
		case "pause": // the last Machine came to nothing
			pause, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			w.cpms.NotBefore, w.cpms.CreationFailure = w.s.Now.Add(pause), "Machine new-0 came to nothing"
		case "no-capacity":
			w.noCapacity = true
		case "capacity":
			w.noCapacity = false
		default:
			return fmt.Errorf("cpms: %q", opt)
		}
	}
	return nil
}

// setPlace changes what the set makes of a Machine.
func (w *world) setPlace(name string, opts []string) error {
	m := w.machine(name)
	place := w.cpms.Places[m.UID]
	for _, opt := range opts {
		switch key, value, _ := strings.Cut(opt, "="); key {
		case "domain":
			place.Domain = value
		case "outdated":
			place.Outdated = "instanceType is " + value
		case "error":
			place.Error = strings.ReplaceAll(value, "_", " ")
		case "unclear":
			place.Unclear = value
		case "fresh":
			place.Fresh = true
		case "unknown":
			delete(w.cpms.Places, m.UID)
			return nil
		case "unselected":
			place.Selected = false
		case "index":
			n, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			place.Index = &n
		case "controller":
			kind, by, _ := strings.Cut(value, "/")
			m.Owners = []q.Owner{{Kind: kind, Name: by, UID: "uid-" + by, Controller: true}}
		default:
			return fmt.Errorf("place %s: %q", name, opt)
		}
	}
	w.cpms.Places[m.UID] = place
	return nil
}

// settle gives a Machine a place with the index at the end of its name.
func (w *world) settle(m *q.Machine, place machineset.Place) {
	if n, err := strconv.Atoi(m.Name[strings.LastIndexByte(m.Name, '-')+1:]); err == nil {
		place.Index = &n
	}
	w.cpms.Places[m.UID] = place
}

// lookSet puts into the Snapshot what the set says of etcd.
func (w *world) lookSet() {
	if w.cpms.Taken && w.cpms.Active && !w.cpms.Deleting {
		machineset.Want(&w.s, w.cpms)
	}
}

func (w *world) planSet() string {
	if w.cpms == nil {
		return ""
	}
	w.lookSet()
	p := machineset.Decide(&w.s, w.cpms)
	return p.Describe()
}

// setStatus is what the set tells of itself, and the health check that it keeps.
func (w *world) setStatus() string {
	w.lookSet()
	var b strings.Builder
	p := machineset.Decide(&w.s, w.cpms)
	c := p.Counts
	fmt.Fprintf(&b, "replicas %d, deleting %d, ready %d, updated %d, unavailable %d, uneven %d\n", c.Replicas, c.Deleting, c.Ready, c.Updated, c.Unavailable, c.Uneven)
	for _, c := range machineset.Conditions(w.cpms, &p) {
		fmt.Fprintf(&b, "%s %t %s: %s\n", c.Type, c.True, c.Reason, strings.ReplaceAll(c.Message, "\n", " | "))
	}
	if n, ok := machineset.MaxUnhealthy(&w.s, w.cpms); ok {
		fmt.Fprintf(&b, "health check with maxUnhealthy %d\n", n)
	}
	return b.String()
}

// setRests says whether the set has nothing to do.
func (w *world) setRests() bool {
	if w.cpms == nil {
		return true
	}
	w.lookSet()
	return len(machineset.Decide(&w.s, w.cpms).Actions) == 0
}

// actSet looks and does what the set plans. The guard judges its deletions.
func (w *world) actSet(t failing) string {
	if w.cpms == nil {
		return ""
	}
	w.lookSet()
	var b strings.Builder
	p := machineset.Decide(&w.s, w.cpms)
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "set: %s\n", a.Describe())
		if problem := w.violatesSet(a); problem != "" {
			t.Errorf("%s: %s", a.Describe(), problem)
		}
		if err := w.applySet(a); err != nil {
			fmt.Fprintf(&b, "  refused: %v\n", err)
		}
	}
	return b.String()
}

// applySet makes one action of the set happen, or says why it is refused.
func (w *world) applySet(a machineset.Action) error {
	m := w.machine(a.Machine)
	switch c := a.Change.(type) {
	case machineset.Adopt:
		m.Owners = append(m.Owners, q.Owner{Kind: "ControlPlaneMachineSet", Name: w.cpms.Name, UID: w.cpms.UID, Controller: true})
	case machineset.Disown:
		m.Owners = slices.DeleteFunc(m.Owners, func(o q.Owner) bool { return o.UID == w.cpms.UID })
	case machineset.Create:
		w.made++
		name := fmt.Sprintf("new%d-%d", w.made, c.Index)
		w.s.Machines = append(w.s.Machines, q.Machine{
			Name: name, UID: "uid-" + name, Role: "master", Type: "master", CreatedAt: w.s.Now, Hook: q.EntryAbsent, Latch: q.EntryAbsent, Finalizer: true, Phase: "Provisioning",
			Owners: []q.Owner{{Kind: "ControlPlaneMachineSet", Name: w.cpms.Name, UID: w.cpms.UID, Controller: true}},
		})
		w.settle(w.machine(name), machineset.Place{Selected: true, Domain: c.Domain})
	case machineset.Delete:
		if !w.mayDelete("holdfast", m) {
			return errors.New("denied")
		}
		m.DeletedAt = w.s.Now
	case machineset.TakeSet:
		w.cpms.Taken, w.cpms.PlatformFinalizer = true, false
	case machineset.LeaveSet:
		w.cpms.Taken, w.cpms.PlatformFinalizer = false, !w.cpms.Deleting
		if w.cpms.Deleting {
			w.cpms = nil
		}
	}
	return nil
}

// comeUp gives each new Machine of the set its instance and a ready Node, unless the provider has no capacity.
func (w *world) comeUp() (news []string) {
	for i := range w.s.Machines {
		m := &w.s.Machines[i]
		if w.noCapacity || m.Phase != "Provisioning" || m.Deleting() {
			continue
		}
		made, _, _ := strings.Cut(strings.TrimPrefix(m.Name, "new"), "-")
		addr := netip.MustParseAddr("10.0.1." + made)
		m.Phase, m.NodeName, m.ProviderID, m.InstanceID, m.Addresses = "Running", m.Name, "cloud:///"+m.Name, true, []netip.Addr{addr}
		w.s.Nodes = append(w.s.Nodes, q.Node{Name: m.Name, ProviderID: m.ProviderID, Ready: true, CreatedAt: w.s.Now, Addresses: m.Addresses})
		news = append(news, fmt.Sprintf("Machine %s has a ready Node", m.Name))
	}
	return news
}

// violatesSet judges an action of the set by counting, without the package that planned it.
func (w *world) violatesSet(a machineset.Action) string {
	live, voting, goes, alive, other, ready := 0, 0, false, false, false, true
	outdated := func(m *q.Machine) bool {
		place := w.cpms.Places[m.UID]
		return place.Outdated != "" || len(w.cpms.Domains) > 0 && !slices.Contains(w.cpms.Domains, place.Domain)
	}
	for i := range w.s.Machines {
		m := &w.s.Machines[i]
		owned := slices.ContainsFunc(m.Owners, func(o q.Owner) bool { return o.Controller && o.UID == w.cpms.UID })
		if !owned || m.Deleting() {
			continue
		}
		live++
		if m.Name != a.Machine {
			other = other || outdated(m)
			n := w.node(m.NodeName)
			ready = ready && (n != nil && n.Ready || outdated(m))
		}
		for k := range w.s.Ring.Members {
			member := &w.s.Ring.Members[k]
			n := w.nodeAt(member.PeerURLs)
			if member.Learner || n == nil || n.Name != m.NodeName {
				continue
			}
			if m.Name == a.Machine {
				goes = true
				alive = member.Healthy || member.LostSince.IsZero() || w.s.Now.Sub(member.LostSince) < w.s.Limits.DeadAfter
			} else if member.Healthy {
				voting++
			}
		}
	}
	switch a.Change.(type) {
	case machineset.Create:
		if live > w.cpms.Replicas {
			return "more than one Machine too many"
		}
		if w.s.Now.Before(w.cpms.NotBefore) {
			return "too early"
		}
	case machineset.Delete:
		switch {
		case live <= w.cpms.Replicas:
			return "fewer Machines than wanted"
		case goes && voting < w.cpms.Replicas:
			return "fewer voters than wanted"
		case alive && other && !outdated(w.machine(a.Machine)):
			return "it votes and is as the template says, and another is outdated"
		case !ready:
			return "another, which is as the template says, has no Node that is ready"
		}
	}
	return ""
}

// TestWantedWithoutEtcd: while etcd cannot be read a set wants its replicas. An alert compares that with the members that were seen last.
func TestWantedWithoutEtcd(t *testing.T) {
	s := &q.Snapshot{Ring: q.Ring{Why: "no answer"}}
	machineset.Want(s, &machineset.Set{Replicas: 3})
	if s.Desired != 3 {
		t.Errorf("%d voters are wanted", s.Desired)
	}
}
