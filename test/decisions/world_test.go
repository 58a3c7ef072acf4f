package decisions_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// world is a control plane small enough to be a value: what a Snapshot shows of it, and what etcd,
// the hosts and the machine controller do with it between two looks. It follows etcd's source, not
// this package.
type world struct {
	s      q.Snapshot
	broken map[string]bool     // Nodes whose etcd never starts
	silent map[q.MemberID]bool // members that do not answer Holdfast, and vote
	back   map[q.MemberID]bool // members that are not in raft: an upgrade brought them back
	nextID q.MemberID
	told   []membership.Condition // what was told last

	cpms       *machineset.Set // the ControlPlaneMachineSet, nil without one
	made       int             // Machines that it has created
	noCapacity bool            // the provider gives no new Machine an instance
}

func noon() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

const index = 10000 // the leader's raft index; learners begin at 0

func newWorld() *world {
	w := &world{broken: map[string]bool{}, silent: map[q.MemberID]bool{}, back: map[q.MemberID]bool{}, nextID: 0xb0}
	w.s = q.Snapshot{Mode: q.ModeFull, Now: noon(), Desired: 3, Limits: q.DefaultLimits(), ControlPlaneMachineSets: []string{"uid-cluster"}}
	w.s.Limits.DeadAfter = round
	w.s.Ledger = q.Ledger{Version: "1", CreatedAt: noon().Add(-time.Hour)}
	w.s.Ring = q.Ring{Known: true, Index: index, Version: "3.7.3"}
	return w
}

// round is how long the world takes between two looks: a member that is dead at one is known to be
// dead at the next.
const round = 10 * time.Second

// manyLearners is how many learners a member takes unless told otherwise.
const manyLearners = 9

// apply makes one action happen, or says why etcd or the API server refuses it.
func (w *world) apply(a membership.Action) error {
	ring := &w.s.Ring
	m := w.machine(a.Machine)
	switch a.Change.(type) {
	case membership.AddHook, membership.ReleaseHook, membership.RecordRelease:
		if m == nil || m.UID != a.UID {
			return fmt.Errorf("no Machine %s with UID %s", a.Machine, a.UID)
		}
	}
	member := ring.Member(a.MemberID())
	if a.MemberID() != 0 && member == nil {
		return errors.New("etcdserver: member not found")
	}
	voters, _ := ring.Voters()
	healthy := 0
	for k := range ring.Members {
		if w.votes(&ring.Members[k]) {
			healthy++
		}
	}
	switch c := a.Change.(type) {
	case membership.AddHook:
		if c.Hook {
			m.Hook = q.EntryOurs
		}
		if c.Latch {
			m.Latch = q.EntryOurs
		}
		if len(c.Evidence.MemberIDs) > 0 {
			m.Evidence, m.EvidenceRaw = c.Evidence, "{}"
		}
	case membership.ReleaseHook:
		if c.Pod != "" {
			w.s.QuorumGuard.Pods = slices.DeleteFunc(w.s.QuorumGuard.Pods, func(p q.GuardPod) bool { return p.UID == c.PodUID })
		}
		if c.Hook {
			m.Hook = q.EntryAbsent
		}
		if c.Latch {
			m.Latch = q.EntryAbsent
		}
	case membership.MarkIdle:
		m.Marked = true
	case membership.RecordRelease:
		w.s.Ledger.Entries = append(w.s.Ledger.Entries, c.Release)
	case membership.SizeGuard:
		w.s.QuorumGuard.MinAvailable, w.s.QuorumGuard.Intact = &c.MinAvailable, true
	case membership.CreateGuardPod:
		if slices.ContainsFunc(w.s.QuorumGuard.Pods, func(p q.GuardPod) bool { return p.Name == "guard-"+c.Node }) {
			return fmt.Errorf("pods \"guard-%s\" already exists", c.Node)
		}
		w.s.QuorumGuard.Pods = append(w.s.QuorumGuard.Pods, q.GuardPod{Name: "guard-" + c.Node, UID: "uid-guard-" + c.Node, Node: c.Node, Owner: q.PodOwnerGuard, Address: c.Address})
	case membership.DeleteGuardPod:
		w.s.QuorumGuard.Pods = slices.DeleteFunc(w.s.QuorumGuard.Pods, func(p q.GuardPod) bool { return p.UID == c.PodUID })
	case membership.AddLearner:
		if learners := len(ring.Members) - voters; learners > 0 && slices.ContainsFunc(ring.Members, func(o q.Member) bool {
			return (!o.Learner || o.Healthy) && o.MaxLearners <= learners
		}) {
			return errors.New("etcdserver: too many learner members in cluster")
		}
		if slices.ContainsFunc(ring.Members, func(o q.Member) bool { return slices.Contains(o.PeerURLs, c.PeerURL) }) {
			return errors.New("etcdserver: Peer URLs already exists")
		}
		if strings.HasPrefix(ring.Version, "3.7") && voters > 1 && healthy < (voters+1)/2+1 ||
			!strings.HasPrefix(ring.Version, "3.7") && healthy < voters {
			return errUnhealthy
		}
		ring.Members = append(ring.Members, q.Member{
			ID: w.nextID, PeerURLs: []string{c.PeerURL}, Learner: true, Since: w.s.Now, ProgressAt: w.s.Now, Why: "it has not started",
		})
		w.nextID++
	case membership.RemoveLearner, membership.RemoveVoter:
		if w.back[member.ID] && !strings.HasPrefix(ring.Version, "3.7") {
			return errors.New("each etcd of 3.6 panics as it applies that")
		}
		if w.votes(member) && healthy-1 < (voters-1)/2+1 {
			return errUnhealthy
		}
		if learner, ok := c.(membership.RemoveLearner); ok && learner.GivesWay {
			if n := w.node(learner.Node); n != nil {
				n.GaveWayAt = w.s.Now
			}
		}
		ring.Members = slices.DeleteFunc(ring.Members, func(o q.Member) bool { return o.ID == a.MemberID() })
		w.elect()
	case membership.Promote:
		if !member.Learner {
			return errors.New("etcdserver: can only promote a learner member")
		}
		if member.Applied*10 < ring.Index*9 {
			return errors.New("etcdserver: can only promote a learner member which is in sync with leader")
		}
		member.Learner, member.Since = false, w.s.Now
	case membership.MoveLeader:
		ring.Leader = c.To.ID
	}
	return nil
}

var errUnhealthy = errors.New("etcdserver: unhealthy cluster")

// try applies an action. If etcd refuses it for the health of its members, that is remembered, as the reconciler does while it is
// tried; known says that it was before.
func (w *world) try(a membership.Action) (known bool, err error) {
	known = membership.Failing(&w.s, a) != nil
	if a.Kind().Membership() && !slices.ContainsFunc(membership.Decide(&w.s).Actions, a.Same) { // as under the lock
		return false, errors.New("the plan is out of date")
	}
	if err = w.apply(a); !errors.Is(err, errUnhealthy) {
		return false, err
	}
	if !known {
		w.s.Failures = append(w.s.Failures, q.Failure{Reason: string(membership.ReasonActionFails), What: a.Describe(), Machine: a.Machine, Since: w.s.Now, Why: err.Error(), Refused: true})
	}
	return known, err
}

// forget drops the refusals of what is not tried any more.
func (w *world) forget(p *membership.Plan) {
	w.s.Failures = slices.DeleteFunc(w.s.Failures, func(f q.Failure) bool {
		return f.Refused && !p.Tries(f.What)
	})
}

// keep writes the release ledger as a plan wants it, but for what was recorded since.
func (w *world) keep(entries []q.Release) {
	l := &w.s.Ledger
	if entries == nil {
		return
	}
	if l.Version == "" || l.Why != "" {
		*l = q.Ledger{Version: "1", CreatedAt: w.s.Now}
		l.Entries = entries
		return
	}
	l.Entries = slices.DeleteFunc(l.Entries, func(r q.Release) bool {
		return !r.At.Equal(w.s.Now) && !slices.ContainsFunc(entries, func(e q.Release) bool { return e.UID == r.UID && e.Until.Equal(r.Until) })
	})
}

// pass lets time pass until the next look, and says what the hosts and the machine controller did.
func (w *world) pass() (news []string) {
	w.s.Now = w.s.Now.Add(round)
	for k := range w.s.Ring.Members {
		m := &w.s.Ring.Members[k]
		n := w.nodeAt(m.PeerURLs)
		if !m.Learner || n == nil || w.broken[n.Name] || !n.Ready || m.Healthy && m.Applied == w.s.Ring.Index {
			continue
		}
		m.Name, m.Healthy, m.Since, m.Why, m.MaxLearners = n.Name, true, w.s.Now, "", manyLearners
		m.Applied, m.ProgressAt, m.CaughtUpAt = w.s.Ring.Index, w.s.Now, w.s.Now.Add(-round/2)
		news = append(news, fmt.Sprintf("learner %s starts and catches up", m))
	}
	news = append(news, w.comeUp()...)
	for i := len(w.s.Machines) - 1; i >= 0; i-- {
		m := w.s.Machines[i]
		if !m.Deleting() || m.Hook != q.EntryAbsent && m.Finalizer {
			continue
		}
		n := w.node(m.NodeName)
		cordoned := n != nil && n.Cordoned
		if drained := n == nil || w.drain(n); drained && (m.Latch == q.EntryAbsent || !m.Finalizer) {
			news = append(news, fmt.Sprintf("Machine %s is drained, terminated and gone", m.Name))
			w.terminate(m.Name)
		} else if n != nil && n.Cordoned && !cordoned {
			news = append(news, fmt.Sprintf("Node %s is cordoned, for its Machine is to be drained", n.Name))
		}
	}
	w.probe()
	w.elect()
	w.account()
	return news
}

// drain cordons a Node, unless another one is cordoned, and evicts its guard pod, unless the budget forbids that: a pod that is not
// ready goes if the budget has as many as it keeps.
func (w *world) drain(n *q.Node) bool {
	if !n.Cordoned && slices.ContainsFunc(w.s.Nodes, func(o q.Node) bool { return o.Cordoned }) {
		return false
	}
	n.Cordoned = true
	here := slices.IndexFunc(w.s.QuorumGuard.Pods, func(p q.GuardPod) bool { return p.Node == n.Name })
	if here < 0 {
		return true
	}
	if spare := w.disruptions(); spare < 0 || spare == 0 && w.s.QuorumGuard.Pods[here].Ready {
		return false
	}
	w.s.QuorumGuard.Pods = slices.Delete(w.s.QuorumGuard.Pods, here, here+1)
	return true
}

// account is what etcd's leader knows of the members: it gets nothing to one whose etcd is down.
func (w *world) account() {
	for k := range w.s.Ring.Members {
		m := &w.s.Ring.Members[k]
		m.InRaft = !w.back[m.ID]
		if m.LostSince = m.Since; m.Healthy || w.silent[m.ID] || !m.InRaft {
			m.LostSince = time.Time{}
		}
	}
}

// votes says whether a voter takes part, by etcd's account.
func (w *world) votes(m *q.Member) bool { return !m.Learner && (m.Healthy || w.silent[m.ID]) }

// disruptions is how many ready pods the budget lets go.
func (w *world) disruptions() int {
	if w.s.QuorumGuard.MinAvailable == nil {
		return 0 // as if there were none: nothing is promised
	}
	n := 0
	for i := range w.s.QuorumGuard.Pods {
		if p := &w.s.QuorumGuard.Pods[i]; p.Ready && !p.Deleting {
			n++
		}
	}
	return n - *w.s.QuorumGuard.MinAvailable
}

// probe looks at the members as the kubelets do: a guard pod is ready while a healthy voter is on its Node.
func (w *world) probe() {
	g := &w.s.QuorumGuard
	g.Pods = slices.DeleteFunc(g.Pods, func(p q.GuardPod) bool { return p.Owner != q.PodOwnerOther && w.node(p.Node) == nil })
	for i := range g.Pods {
		if p := &g.Pods[i]; p.Owner != q.PodOwnerOther {
			p.Ready = slices.ContainsFunc(w.s.Ring.Members, func(m q.Member) bool {
				at := w.nodeAt(m.PeerURLs)
				return m.Healthy && !m.Learner && at != nil && at.Name == p.Node
			})
		}
	}
}

// terminate takes a Machine away with its instance, and its Node.
func (w *world) terminate(name string) {
	m := w.machine(name)
	if n := w.node(m.NodeName); n != nil {
		w.kill(n.Addresses)
		w.s.Nodes = slices.DeleteFunc(w.s.Nodes, func(o q.Node) bool { return o.Name == n.Name })
	}
	w.s.Machines = slices.DeleteFunc(w.s.Machines, func(o q.Machine) bool { return o.Name == name })
}

// kill stops the members at the addresses.
func (w *world) kill(addrs []netip.Addr) {
	for k := range w.s.Ring.Members {
		m := &w.s.Ring.Members[k]
		for _, a := range addrs {
			if (m.Healthy || w.silent[m.ID]) && slices.Contains(m.PeerURLs, peerURL(a.String())) {
				m.Healthy, m.Since, m.Why = false, w.s.Now, "connection refused"
				delete(w.silent, m.ID)
			}
		}
	}
}

// elect gives the ring a leader that is healthy, or leaves it without quorum.
func (w *world) elect() {
	ring := &w.s.Ring
	voters, healthy := 0, 0
	var able q.MemberID
	leads := false
	for _, m := range ring.Members {
		if m.Learner {
			continue
		}
		voters++
		if w.votes(&m) {
			healthy++
			able = cmp.Or(able, m.ID)
			leads = leads || m.ID == ring.Leader
		}
	}
	if healthy < voters/2+1 {
		ring.Known, ring.Leader, ring.Why = false, 0, "no quorum"
		return
	}
	ring.Known = true
	if !leads {
		ring.Leader = able
	}
}

func (w *world) machine(name string) *q.Machine {
	for i := range w.s.Machines {
		if w.s.Machines[i].Name == name {
			return &w.s.Machines[i]
		}
	}
	for i := range w.s.Claimants {
		if w.s.Claimants[i].Name == name {
			return &w.s.Claimants[i]
		}
	}
	return nil
}

func (w *world) node(name string) *q.Node {
	for i := range w.s.Nodes {
		if w.s.Nodes[i].Name == name {
			return &w.s.Nodes[i]
		}
	}
	return nil
}

func (w *world) nodeAt(urls []string) *q.Node {
	for i := range w.s.Nodes {
		for _, a := range w.s.Nodes[i].Addresses {
			if slices.Contains(urls, peerURL(a.String())) {
				return &w.s.Nodes[i]
			}
		}
	}
	return nil
}

// addresses are those of a list with commas.
func addresses(list string) (out []netip.Addr) {
	for a := range strings.SplitSeq(list, ",") {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func peerURL(host string) string {
	if strings.Contains(host, "://") {
		return host
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "https://" + host + ":2380"
}

// describe is the control plane as a table.
func (w *world) describe() string {
	var b strings.Builder
	voters, healthy := w.s.Ring.Voters()
	fmt.Fprintf(&b, "voters %d, healthy %d, wanted %d\n", voters, healthy, w.s.Desired)
	for _, m := range w.s.Machines {
		state := "live"
		if m.Deleting() {
			state = "deleting"
		}
		fmt.Fprintf(&b, "  %-10s %-8s %s\n", m.Name, state, cmp.Or(strings.Join(slices.DeleteFunc([]string{
			word(m.Hook, "hook"), word(m.Latch, "latch"),
		}, func(s string) bool { return s == "" }), " "), "not hooked"))
	}
	for _, r := range w.s.Ledger.Entries {
		what := "let go"
		if !r.Until.IsZero() {
			what = "may be powered off"
		}
		fmt.Fprintf(&b, "  %s: %s\n", what, r.Machine)
	}
	for _, m := range w.s.Ring.Members {
		kind, health, lead := "voter", "healthy", ""
		if m.Learner {
			kind = "learner"
		}
		if !m.Healthy {
			health = "unhealthy"
		}
		if m.ID == w.s.Ring.Leader {
			lead = " leader"
		}
		fmt.Fprintf(&b, "  %s %s %s%s\n", kind, &m, health, lead)
	}
	return b.String()
}

func word(e q.Entry, what string) string {
	return map[q.Entry]string{q.EntryOurs: what, q.EntryForeign: "foreign-" + what}[e]
}

// set changes the world as one line of a scenario says.
func (w *world) set(line string) error {
	f := strings.Fields(line)
	rest := strings.TrimSpace(strings.TrimPrefix(line, f[0]))
	switch f[0] {
	case "mode":
		w.s.Mode = map[string]q.Mode{"full": q.ModeFull, "guard": q.ModeGuard}[f[1]]
		w.s.QuorumGuard.Managed = w.s.Mode == q.ModeFull && w.s.QuorumGuard.Stands()
	case "desired":
		n, err := strconv.Atoi(f[1])
		w.s.Desired, w.s.DesiredWhy = n, ""
		if err != nil {
			w.s.DesiredWhy = strings.TrimSpace(strings.TrimPrefix(rest, "unknown:"))
		}
	case "ledger": // missing, new, empty, garbled: <why>, <Machine> <member>..., or <Machine> off=<how long ago>
		switch f[1] {
		case "missing":
			w.s.Ledger = q.Ledger{}
		case "new":
			w.s.Ledger.Version, w.s.Ledger.CreatedAt = "1", w.s.Now
		case "empty":
			w.s.Ledger.Entries = nil
		case "garbled:":
			w.s.Ledger.Version = "1"
			w.s.Ledger.Why = strings.TrimSpace(strings.TrimPrefix(rest, "garbled:"))
		default:
			r := q.Release{Machine: f[1], UID: "uid-" + f[1], At: w.s.Now.Add(-time.Hour)}
			for _, id := range f[2:] {
				if by, ok := strings.CutPrefix(id, "by="); ok { // who lifted the rule for it
					r.By = by
					continue
				}
				if ago, ok := strings.CutPrefix(id, "off="); ok { // how long ago it was allowed to power the host off
					d, err := time.ParseDuration(ago)
					if err != nil {
						return err
					}
					r = q.PowersOff(&q.Machine{Name: r.Machine, UID: r.UID}, w.s.Now.Add(-d), r.By)
					continue
				}
				n, err := strconv.ParseUint(id, 16, 64)
				if err != nil {
					return err
				}
				r.Members = append(r.Members, q.MemberID(n))
			}
			w.s.Ledger.Entries = append(w.s.Ledger.Entries, r)
		}
	case "driver":
		w.s.OtherDriver = rest
	case "alarm": // none, or its kind and the member's ID
		w.s.Ring.Alarms = nil
		if f[1] != "none" {
			w.s.Ring.Alarms = []q.Alarm{{Kind: f[1], Member: hex(f[2])}}
		}
	case "fails": // <for how long> <Machine or -> <what>: <why>, or none
		w.s.Failures = nil
		if f[1] == "none" {
			break
		}
		lasts, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		what, why, _ := strings.Cut(strings.Join(f[3:], " "), ": ")
		w.s.Failures = []q.Failure{{Reason: string(membership.ReasonActionFails), What: what, Machine: strings.Trim(f[2], "-"), Since: w.s.Now.Add(-lasts), Why: why}}
		if strings.HasPrefix(what, "write ") {
			w.s.Failures[0].Reason = string(membership.ReasonMembershipNotPublished)
		}
	case "lock": // none, or <key>, or <key> leased <for how long> <holder>
		switch {
		case f[1] == "none":
			w.s.Lock = q.Lock{}
		case len(f) == 2:
			w.s.Lock = q.Lock{Key: f[1]}
		default:
			held, err := time.ParseDuration(f[3])
			w.s.Lock = q.Lock{Key: f[1], Leased: true, Since: w.s.Now.Add(-held), Holder: f[4]}
			return err
		}
	case "etcd":
		if why, ok := strings.CutPrefix(rest, "unknown:"); ok {
			w.s.Ring.Known, w.s.Ring.Why = false, strings.TrimSpace(why)
		} else {
			w.s.Ring.Known, w.s.Ring.Version = true, f[1]
		}
	case "refused": // etcd refuses the member that is to be added next
		for _, a := range membership.Decide(&w.s).Actions {
			if a.Kind() == membership.KindAddLearner {
				w.s.Failures = append(w.s.Failures, q.Failure{Reason: string(membership.ReasonActionFails), What: a.Describe(), Machine: a.Machine, Since: w.s.Now.Add(-time.Minute), Why: errUnhealthy.Error(), Refused: true})
			}
		}
	case "max-deleting":
		n, err := strconv.Atoi(f[1])
		w.s.Limits.MaxDeleting = n
		return err
	case "stabilization":
		d, err := time.ParseDuration(f[1])
		w.s.Limits.StableFor = d
		return err
	case "max-learners":
		n, err := strconv.Atoi(f[1])
		w.s.Limits.MaxLearners = n
		return err
	case "leader":
		w.s.Ring.Leader = 0
		if f[1] != "none" {
			w.s.Ring.Leader = hex(f[1])
		}
	case "guard": // minAvailable of the quorum guard, or none
		g := q.Guard{Managed: w.s.Mode == q.ModeFull, Intact: true, Pods: w.s.QuorumGuard.Pods}
		if f[1] != "none" {
			n, _ := strconv.Atoi(f[1])
			g.MinAvailable = &n
		}
		for _, opt := range f[1:] {
			key, value, _ := strings.Cut(opt, "=")
			switch key {
			case "edited":
				g.Intact = false
			case "absent":
				g.Absent = value
			}
		}
		w.s.QuorumGuard = g
	case "pod": // of the quorum guard, on a Node
		p := q.GuardPod{Name: "guard-" + f[1], UID: "uid-guard-" + f[1], Node: f[1], Owner: q.PodOwnerGuard}
		if n := w.node(f[1]); n != nil && len(n.Addresses) > 0 {
			p.Address = n.Addresses[0]
		}
		for _, opt := range f[2:] {
			switch opt {
			case "deleting":
				p.Deleting = true
			case "old":
				p.Owner = q.PodOwnerOldGuard
			case "another's":
				p.Owner, p.Ready = q.PodOwnerOther, true
			case "outdated":
				p.Outdated = true
			default:
				return fmt.Errorf("unknown word %q", opt)
			}
		}
		w.s.QuorumGuard.Pods = append(w.s.QuorumGuard.Pods, p)
		w.probe()
	case "surge": // the set has one Machine more than wanted
		w.s.Surge = true
	case "bootstrap":
		w.s.Bootstrap = netip.MustParseAddr(f[1])
	case "bootstrap-waits", "api-servers-wait": // none, or for what
		waits := map[string]*string{"bootstrap-waits": &w.s.BootstrapWaits, "api-servers-wait": &w.s.APIServersWait}[f[0]]
		if *waits = strings.Join(f[1:], " "); f[1] == "none" {
			*waits = ""
		}
	case "records-garbled":
		w.s.RecordsWhy = rest
	case "record":
		w.s.Records = append(w.s.Records, q.Evidence{MemberIDs: []q.MemberID{hex(f[1])}, Machine: f[2], MachineUID: f[3], Voted: slices.Contains(f, "voted")})
	case "broken":
		w.broken[f[1]] = true
	case "mended":
		delete(w.broken, f[1])
	case "gone":
		name := f[len(f)-1]
		switch f[1] {
		case "machine": // the object alone: its instance runs on
			w.s.Machines = slices.DeleteFunc(w.s.Machines, func(m q.Machine) bool { return m.Name == name })
		case "node":
			w.s.Nodes = slices.DeleteFunc(w.s.Nodes, func(n q.Node) bool { return n.Name == name })
		case "member":
			w.s.Ring.Members = slices.DeleteFunc(w.s.Ring.Members, func(m q.Member) bool { return m.ID == hex(name) })
		case "pod": // of the quorum guard
			w.s.QuorumGuard.Pods = slices.DeleteFunc(w.s.QuorumGuard.Pods, func(p q.GuardPod) bool { return p.Node == name })
		case "host": // Machine, Node and instance
			w.terminate(name)
			w.elect()
		default:
			return fmt.Errorf("gone what: %q", line)
		}
	case "machine":
		return w.setMachine(f[1], f[2:])
	case "worker":
		return w.setWorker(f[1], f[2:])
	case "cpms":
		return w.setCPMS(f[1:])
	case "place":
		return w.setPlace(f[1], f[2:])
	case "machinesets": // their names, or unknown: <why>
		if why, ok := strings.CutPrefix(rest, "unknown: "); ok {
			w.s.MachineSetsWhy = why
			break
		}
		for _, name := range f[1:] {
			w.s.MachineSets = append(w.s.MachineSets, "uid-"+name)
		}
	case "claims-unknown":
		w.s.ClaimantsWhy = rest
	case "node":
		return w.setNode(f[1], f[2:])
	case "member":
		return w.setMember(f[1], f[2:])
	default:
		return fmt.Errorf("unknown line %q", line)
	}
	return nil
}

func (w *world) setMachine(name string, opts []string) error {
	if w.machine(name) == nil {
		w.s.Machines = append(w.s.Machines, q.Machine{
			Name: name, UID: "uid-" + name, Role: "master", Type: "master", CreatedAt: noon().Add(-time.Hour + time.Duration(len(w.s.Machines))*time.Minute),
			Hook: q.EntryOurs, Latch: q.EntryOurs, Finalizer: true,
			ProviderID: "cloud:///" + name, Phase: "Running", NodeName: name, InstanceID: true,
		})
		w.s.Nodes = append(w.s.Nodes, q.Node{
			Name: name, ProviderID: "cloud:///" + name, Ready: true,
			CreatedAt: noon().Add(-time.Hour + time.Duration(len(w.s.Nodes))*time.Minute),
		})
	}
	m, n := w.machine(name), w.node(name)
	for _, opt := range opts {
		key, value, _ := strings.Cut(opt, "=")
		switch key {
		case "hook":
			m.Hook = entry(value)
		case "latch":
			m.Latch = entry(value)
		case "bare":
			m.Hook, m.Latch = q.EntryAbsent, q.EntryAbsent
		case "no-finalizer":
			m.Finalizer = false
		case "deleting", "created":
			ago, err := time.ParseDuration(cmp.Or(value, "0s"))
			if err != nil {
				return err
			}
			if key == "created" {
				m.CreatedAt = w.s.Now.Add(-ago)
				continue
			}
			m.DeletedAt, m.Phase = w.s.Now.Add(-ago), "Deleting"
		case "uid":
			m.UID = value
		case "role":
			m.Role = value
		case "type":
			m.Type = value
		case "phase":
			m.Phase = value
		case "node": // the link that the Machine API wrote
			m.NodeName = value
		case "server": // OpenStack's annotation
			m.Instance[1] = value
		case "status": // an ID in status.providerStatus
			m.StatusInstances = append(m.StatusInstances, value)
		case "also": // another's lifecycle hook
			m.OtherHooks = append(m.OtherHooks, value+" of nightly-backup")
		case "garbled": // evidence that cannot be read
			m.Evidence, m.EvidenceRaw = q.Evidence{}, "not even JSON"
		case "zone":
			m.Zone = value
		case "provider":
			m.ProviderID = value
		case "mirrored":
			m.Mirrored = true
		case "evidence": // IDs, then @ and its UID
			ids, uid, _ := strings.Cut(value, "@")
			m.Evidence = q.Evidence{MachineUID: cmp.Or(uid, m.UID), Machine: name}
			m.EvidenceRaw = value
			for id := range strings.SplitSeq(ids, ",") {
				m.Evidence.MemberIDs = append(m.Evidence.MemberIDs, hex(id))
			}
		case "override": // rule/reason/who
			parts := strings.Split(value, "/")
			m.Override, m.OverrideBy = parts[0]+": "+parts[1], parts[2]
			if m.OverrideBy != "" {
				m.OverrideBy = q.Stamp(m.OverrideBy, w.s.Now.Add(-time.Minute))
			}
			if len(parts) > 3 { // so long ago
				ago, err := time.ParseDuration(parts[3])
				if err != nil {
					return err
				}
				m.OverrideBy = q.Stamp(parts[2], w.s.Now.Add(-ago))
			}
		case "misspelled":
			m.Misspelled = value
		case "no-instance": // it never got one
			m.ProviderID, m.NodeName, m.InstanceID, m.Phase, m.Addresses = "", "", false, "Provisioning", nil
			w.s.Nodes = slices.DeleteFunc(w.s.Nodes, func(o q.Node) bool { return o.Name == name })
			n = nil
		case "unread": // only its metadata are known
			*m = q.Machine{Name: m.Name, UID: m.UID, Role: m.Role, Type: m.Type, DeletedAt: m.DeletedAt, Finalizer: m.Finalizer, Evidence: m.Evidence, EvidenceRaw: m.EvidenceRaw,
				Hook: q.EntryAbsent, Latch: q.EntryAbsent, Unread: "exceeded max depth"}
		case "no-addresses": // Machine and Node lost them
			m.Addresses = nil
			if n != nil {
				n.Addresses = nil
			}
		case "no-node":
			m.NodeName = ""
			w.s.Nodes = slices.DeleteFunc(w.s.Nodes, func(o q.Node) bool { return o.Name == name })
			n = nil
		case "no-node-ref": // the Machine API has not linked them yet; the provider ID does
			m.NodeName = ""
		case "node-zone":
			n.Zone = value
		case "cordoned":
			n.Cordoned = true
		case "drained":
			m.Drained = true
		case "moved": // its instance came back at another address
			m.Addresses = addresses(value)
			n.Addresses = m.Addresses
		case "node-at": // what the Node alone says
			n.Addresses = addresses(value)
		case "gave-way": // its learner did, so long ago
			ago, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			n.GaveWayAt = w.s.Now.Add(-ago)
		case "not-ready":
			n.Ready = false
		case "ready":
			n.Ready = true
		case "host-name":
			m.HostNames = append(m.HostNames, value)
		case "node-address": // on the Node alone
			n.Addresses = append(n.Addresses, netip.MustParseAddr(value))
		default:
			addr, err := netip.ParseAddr(opt)
			if err != nil {
				return fmt.Errorf("machine %s: %q", name, opt)
			}
			m.Addresses = append(m.Addresses, addr)
			if n != nil {
				n.Addresses = append(n.Addresses, addr)
			}
		}
	}
	return nil
}

// setWorker adds a worker Machine, or changes it.
func (w *world) setWorker(name string, opts []string) error {
	if w.machine(name) == nil {
		w.s.Claimants = append(w.s.Claimants, q.Machine{
			Name: name, UID: "uid-" + name, Role: "worker", Type: "worker", CreatedAt: noon().Add(-time.Hour), Hook: q.EntryAbsent, Latch: q.EntryAbsent, Finalizer: true, Phase: "Running",
		})
	}
	m := w.machine(name)
	for _, opt := range opts {
		switch key, value, _ := strings.Cut(opt, "="); key {
		case "provider":
			m.ProviderID = value
		case "host":
			m.Instance[0] = value
		case "status":
			m.StatusInstances = append(m.StatusInstances, value)
		case "node":
			m.NodeName = value
		case "mirrored":
			m.Mirrored = true
		case "deleting":
			m.DeletedAt = w.s.Now
		default:
			addr, err := netip.ParseAddr(opt)
			if err != nil {
				return fmt.Errorf("worker %s: %q", name, opt)
			}
			m.Addresses = append(m.Addresses, addr)
		}
	}
	return nil
}

func (w *world) setNode(name string, opts []string) error {
	if w.node(name) == nil {
		w.s.Nodes = append(w.s.Nodes, q.Node{Name: name, ProviderID: "cloud:///" + name, Ready: true, CreatedAt: noon().Add(-time.Hour)})
	}
	n := w.node(name)
	for _, opt := range opts {
		switch key, value, _ := strings.Cut(opt, "="); key {
		case "not-ready":
			n.Ready = false
		case "ready":
			n.Ready = true
		case "host-name":
			n.HostNames = append(n.HostNames, value)
		default:
			addr, err := netip.ParseAddr(opt)
			if err != nil {
				return fmt.Errorf("node %s: %q", name, opt)
			}
			n.Addresses = append(n.Addresses, addr)
		}
	}
	return nil
}

func (w *world) setMember(id string, opts []string) error {
	if w.s.Ring.Member(hex(id)) == nil {
		w.s.Ring.Members = append(w.s.Ring.Members, q.Member{ID: hex(id), Name: "etcd-" + id, Healthy: true, MaxLearners: manyLearners, Since: noon().Add(-time.Hour), Applied: index, CaughtUpAt: noon().Add(-time.Hour)})
		w.s.Ring.Leader = cmp.Or(w.s.Ring.Leader, hex(id))
	}
	m := w.s.Ring.Member(hex(id))
	for _, opt := range opts {
		key, value, _ := strings.Cut(opt, "=")
		ago, err := time.ParseDuration(cmp.Or(value, "1m"))
		switch key {
		case "learner":
			m.Learner, m.ProgressAt = true, w.s.Now
		case "voter":
			m.Learner, m.Since = false, w.s.Now
		case "max-learners":
			m.MaxLearners, err = strconv.Atoi(value)
			if err != nil {
				return err
			}
		case "unstarted":
			m.Name, m.Healthy, m.Since, m.Applied, m.Why = "", false, w.s.Now, 0, "it has not started"
			m.CaughtUpAt = time.Time{}
		case "receiving": // etcd's leader sends it a snapshot
			m.Receiving, m.Applied = true, 0
		case "lag":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return err
			}
			m.Applied = w.s.Ring.Index - n
			m.CaughtUpAt = time.Time{}
			if n <= w.s.Limits.MaxLag {
				m.CaughtUpAt = w.s.Now.Add(-time.Minute)
			}
		case "caught-up":
			if err != nil {
				return err
			}
			m.CaughtUpAt = w.s.Now.Add(-ago)
		case "needs": // so long to catch up
			m.CatchUp = ago
		case "idle":
			if err != nil {
				return err
			}
			m.ProgressAt = w.s.Now.Add(-ago)
		case "dead":
			if err != nil {
				return err
			}
			m.Healthy, m.Since, m.Why = false, w.s.Now.Add(-ago), "connection refused"
			delete(w.silent, m.ID)
		case "silent": // its client port does not answer, and it votes
			if err != nil {
				return err
			}
			m.Healthy, m.Since, m.Why, w.silent[m.ID] = false, w.s.Now.Add(-ago), "no answer in time", true
		case "brought-back": // by an upgrade to etcd 3.6
			m.Healthy, m.Since, m.Why, w.back[m.ID] = false, w.s.Now.Add(-time.Hour), "connection refused", true
		case "client": // the address that clients reach it at
			m.ClientURLs = []string{"https://" + net.JoinHostPort(value, "2379")}
		case "healthy":
			m.Healthy, m.Since, m.Why = true, w.s.Now, ""
			delete(w.silent, m.ID)
		case "name":
			m.Name = value
		case "no-peer-url":
			m.PeerURLs = nil
		default:
			m.PeerURLs = append(m.PeerURLs, peerURL(opt))
			if n := w.nodeAt(m.PeerURLs); n != nil && m.Name == "etcd-"+id {
				m.Name = n.Name
			}
		}
	}
	return nil
}

// witness gives every hooked Machine without evidence what Holdfast would have written there: the
// ring of a scenario is one that was adopted long ago.
func (w *world) witness() {
	for i := range w.s.Machines {
		m := &w.s.Machines[i]
		if m.Hook != q.EntryOurs || m.EvidenceRaw != "" {
			continue
		}
		e := q.Evidence{MachineUID: m.UID, Machine: m.Name}
		for _, member := range w.s.Ring.Members {
			for _, a := range m.Addresses {
				if slices.Contains(member.PeerURLs, peerURL(a.String())) {
					e.MemberIDs = append(e.MemberIDs, member.ID)
					e.Addresses = append(e.Addresses, a)
				}
			}
		}
		if len(e.MemberIDs) > 0 {
			slices.Sort(e.MemberIDs)
			slices.SortFunc(e.Addresses, netip.Addr.Compare)
			m.Evidence, m.EvidenceRaw = e, "{}"
		}
	}
	w.account()
}

func entry(s string) q.Entry {
	return map[string]q.Entry{"ours": q.EntryOurs, "foreign": q.EntryForeign, "none": q.EntryAbsent}[s]
}

func hex(s string) q.MemberID {
	id, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		panic(err)
	}
	return q.MemberID(id)
}
