package controller

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Metrics are the reconciler's. Make them with NewMetrics.
//
// What describes the control plane is made anew at each look, so a member that is gone, or that has a
// name now, leaves no series behind. Before the first look, and so on replicas that are not elected,
// there are none of these: rules take the maximum over replicas and meet no zeros.
type Metrics struct {
	Elected prometheus.Gauge // 1 while this replica is elected: every replica has it

	actions *prometheus.CounterVec
	refused *prometheus.CounterVec
	phases  *prometheus.HistogramVec
	state   map[string]*prometheus.Desc // newGauges

	mu    sync.Mutex
	last  []prometheus.Metric
	known *quorum.Join     // of the last look at which etcd was known
	under map[string]stage // replacements, by the Machine's UID; nil before the first look
	// restarting has all unhealthy voters: true if the voter's Node has been in maintenance all the time that the voter has been unhealthy,
	// false if the Node was cordoned later, because the voter died. nil before the first look.
	restarting map[quorum.MemberID]bool
}

// stage is the phase that a replacement is in.
type stage struct {
	phase membership.Phase
	since time.Time // zero if it began before this process: a restart loses this one measurement
}

// newGauges describes what each look makes anew, by the name without its prefix.
func newGauges() map[string]*prometheus.Desc {
	all := map[string]*prometheus.Desc{}
	desc := func(name, help string, labels ...string) {
		all[name] = prometheus.NewDesc("holdfast_"+name, help, labels, nil)
	}
	desc("etcd_members", "Listed etcd members, by role (voter, learner) and health (healthy, unhealthy).", "role", "health")
	desc("etcd_member_is_leader", "1 for the etcd member that leads, 0 for the others. A member has the name unstarted until it starts.", "member", "id")
	desc("etcd_member_is_learner", "1 for an etcd member that does not vote yet, 0 for a voter.", "member", "id")
	desc("etcd_member_healthy", "1 for an etcd member that answered a read at the last look, a voter a linearizable one; else 0.", "member", "id")
	desc("etcd_member_has_leader", "1 for an etcd member that said at the last look that it has a leader, else 0.", "member", "id")
	desc("desired_voters", "Voters that are wanted, 0 if that is not known.")
	desc("etcd_readable", "1 if etcd answered a linearizable read at the last look and had a leader, else 0.")
	desc("etcd_last_read_timestamp_seconds", "Time of the last linearizable read of etcd's members.")
	desc("learner_lag_entries", "Raft entries that the learner furthest behind is behind the leader, 0 without a learner.")
	desc("learner_catch_up_seconds", "Seconds that the slowest learner still needs at its pace so far, 0 if that is not known or it has caught up.")
	desc("learners_waiting", "Learners for which there is a seat: a voter is missing or leaves. Whatever keeps them from voting.")
	desc("learners_receiving", "Those of them that are being sent data: they grow, or etcd's leader says that it is sending them a snapshot.")
	desc("etcd_members_unstarted", "Listed etcd members that have not started, but for those that are being sent a snapshot.")
	desc("etcd_voters_in_maintenance", "Etcd voters that are unhealthy and whose Node has been cordoned since before that, as when an upgrade restarts it.")
	desc("control_plane_machines", "Control-plane Machines, by what they host (member, nothing, unknown).", "hosts")
	desc("replacements", "Deleting Machines that are held until another votes, by what that waits for (node, add, start, promote, remove, release).", "phase")
	desc("condition", "What is wrong or waited for now, by reason: how many members, Machines or settings it is said of. A reason that is not in force has no series.", "reason")
	desc("quorum_guard_min_available", "minAvailable of the quorum guard's PodDisruptionBudget. No series where there is no budget.")
	desc("quorum_guard_pods", "Pods of the quorum guard that are not being deleted.")
	desc("quorum_guard_pods_wanted", "Pods that the quorum guard is to have: one for each Node that hosts an etcd member; and for each that is to host one, in guard mode once it has its pod.")
	desc("quorum_guard_pods_ready", "Those of them that are ready: the etcd member of their Node is healthy.")
	return all
}

// NewMetrics registers the reconciler's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	register := promauto.With(registry)
	m := &Metrics{
		Elected: register.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_elected", Help: "1 if this replica is elected, or runs without an election, else 0.",
		}),
		actions: register.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_plan_actions_total", Help: "Actions of the plan, by kind and result (done, not-yet, failed).",
		}, []string{"kind", "result"}),
		refused: register.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_plan_refused_total", Help: "Plans that were not carried out because an action would have broken that invariant.",
		}, []string{"invariant"}),
		phases: register.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_replacement_phase_duration_seconds",
			Help:    "How long replacements were in each phase. Measured between looks in memory: a phase that no look met is left out, and so is one during which Holdfast started.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600},
		}, []string{"phase"}),
		state: newGauges(),
	}
	for _, invariant := range membership.Invariants() {
		m.refused.WithLabelValues(string(invariant)) // an alert on a counter that is not there yet misses its first step
	}
	registry.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range m.state {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, metric := range m.last {
		out <- metric
	}
}

// forget drops what only the elected replica reports, when this replica is no longer elected.
func (m *Metrics) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.known, m.under, m.restarting = nil, nil, nil, nil
}

// observe sets the gauges from a look and its plan. While the ring is unknown, the last known members
// stay; the time of the last read says how old they are.
func (m *Metrics) observe(p *membership.Plan) {
	if p.Violated != "" {
		m.refused.WithLabelValues(string(p.Violated)).Inc()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.Join.Snapshot().Ring.Known {
		m.known = p.Join
		m.follow(p.Join)
		m.restarts(p.Join)
	}
	m.last = m.metrics(p.Join, p.Notes)
}

// unread is a look at etcd alone, where the rest of the cluster could not be read: its API server may be
// down because etcd is.
func (m *Metrics) unread(ring quorum.Ring, notes []membership.Note) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s quorum.Snapshot
	if m.known != nil {
		s = *m.known.Snapshot()
	}
	s.Ring = ring
	join := quorum.NewJoin(&s)
	if ring.Known {
		m.known = join
	}
	m.last = m.metrics(join, notes)
}

func (m *Metrics) metrics(join *quorum.Join, notes []membership.Note) []prometheus.Metric {
	s := join.Snapshot()
	var out []prometheus.Metric
	set := func(name string, value float64, labels ...string) {
		out = append(out, prometheus.MustNewConstMetric(m.state[name], prometheus.GaugeValue, value, labels...))
	}
	set("desired_voters", float64(s.Desired))
	set("etcd_readable", one(s.Ring.Known && s.Ring.Leader != 0))
	if m.known != nil {
		m.members(m.known, set)
	}
	reasons := map[membership.Reason]int{}
	for _, n := range notes {
		reasons[n.Reason]++
	}
	for reason, n := range reasons {
		set("condition", float64(n), string(reason))
	}
	if s.QuorumGuard.Stands() {
		pods, ready, wanted := 0, 0, membership.GuardNodes(join)
		for _, pod := range s.QuorumGuard.Pods {
			// cluster-etcd-operator keeps the pod of a Node whose member it has removed, until the Node is gone.
			left := s.Mode == quorum.ModeGuard && s.Ring.Known && !slices.Contains(wanted, pod.Node)
			if !pod.Deleting && pod.Owner == quorum.PodOwnerGuard && !left {
				pods++
				if pod.Ready {
					ready++
				}
			}
		}
		if least := s.QuorumGuard.MinAvailable; least != nil {
			set("quorum_guard_min_available", float64(*least))
		}
		set("quorum_guard_pods", float64(pods))
		set("quorum_guard_pods_ready", float64(ready))
		if s.Ring.Known {
			set("quorum_guard_pods_wanted", float64(len(wanted)))
		}
	}
	return out
}

// members sets what is known of etcd's members and of what is joined to them.
func (m *Metrics) members(join *quorum.Join, set func(string, float64, ...string)) {
	s := join.Snapshot()
	set("etcd_last_read_timestamp_seconds", float64(s.Ring.ReadAt.UnixNano())/1e9)
	counts := map[[2]string]int{{"voter", "healthy"}: 0, {"voter", "unhealthy"}: 0, {"learner", "healthy"}: 0, {"learner", "unhealthy"}: 0}
	var lag uint64
	var catchUp time.Duration
	unstarted := 0
	for k := range s.Ring.Members {
		member, role, health, name := &s.Ring.Members[k], "voter", "unhealthy", "unstarted"
		if member.Learner {
			role = "learner"
			lag, catchUp = max(lag, s.Lag(member)), max(catchUp, member.CatchUp)
		}
		if member.Healthy {
			health = "healthy"
		}
		switch {
		case member.Started():
			name = member.Name
		case !member.Receiving:
			unstarted++
		}
		counts[[2]string{role, health}]++
		id := fmt.Sprintf("%x", member.ID)
		set("etcd_member_is_leader", one(member.ID == s.Ring.Leader), name, id)
		set("etcd_member_is_learner", one(member.Learner), name, id)
		set("etcd_member_healthy", one(member.Healthy), name, id)
		set("etcd_member_has_leader", one(member.Leader != 0), name, id)
	}
	for labels, n := range counts {
		set("etcd_members", float64(n), labels[0], labels[1])
	}
	set("learner_lag_entries", float64(lag))
	set("learner_catch_up_seconds", catchUp.Seconds())
	waiting, receiving := membership.Learners(join)
	set("learners_waiting", float64(waiting))
	set("learners_receiving", float64(receiving))
	set("etcd_members_unstarted", float64(unstarted))
	maintenance := 0
	for k := range s.Ring.Members { // the ring may be read later than the Nodes
		if member := &s.Ring.Members[k]; !member.Learner && !member.Healthy && m.restarting[member.ID] {
			maintenance++
		}
	}
	set("etcd_voters_in_maintenance", float64(maintenance))

	phases := map[membership.Phase]int{}
	for _, r := range membership.Replacements(join) {
		phases[r.Phase]++
	}
	for _, phase := range membership.Phases() {
		set("replacements", float64(phases[phase]), phase.String())
	}
	hosts := map[quorum.Hosting]int{}
	for i := range s.Machines {
		if machine := &s.Machines[i]; machine.ControlPlane() && !machine.Mirrored {
			is, _ := join.Hosting(machine)
			hosts[is]++
		}
	}
	for is, label := range map[quorum.Hosting]string{quorum.HostingMember: "member", quorum.HostingNothing: "nothing", quorum.HostingUnknown: "unknown"} {
		set("control_plane_machines", float64(hosts[is]), label)
	}
}

// follow measures the phases of replacements.
func (m *Metrics) follow(join *quorum.Join) {
	s := join.Snapshot()
	now := map[string]stage{}
	var began time.Time
	if m.under != nil {
		began = s.Now
	}
	for _, r := range membership.Replacements(join) {
		if was, ok := m.under[r.UID]; ok && was.phase == r.Phase {
			now[r.UID] = was
			continue
		}
		now[r.UID] = stage{r.Phase, began}
	}
	for uid, was := range m.under {
		if is, ok := now[uid]; (!ok || is.phase != was.phase) && !was.since.IsZero() {
			m.phases.WithLabelValues(was.phase.String()).Observe(s.Now.Sub(was.since).Seconds())
		}
	}
	m.under = now
}

// restarts follows which unhealthy voters are in maintenance.
func (m *Metrics) restarts(join *quorum.Join) {
	s := join.Snapshot()
	in, now := membership.InMaintenance(join), map[quorum.MemberID]bool{}
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		if member.Learner || member.Healthy {
			continue
		}
		was, known := m.restarting[member.ID]
		now[member.ID] = (was || !known) && slices.Contains(in, member.ID)
	}
	m.restarting = now
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
