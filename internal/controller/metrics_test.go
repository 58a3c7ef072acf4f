package controller

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/internal/setcontroller"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/webhooks"
)

func newMetrics(t *testing.T) (*Metrics, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	return NewMetrics(registry), registry
}

// scrape is what a registry serves, name{labels} and value; of a histogram the count.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			out[strings.TrimPrefix(family.GetName(), "holdfast_")+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return out
}

// TestMetrics: what is served of each look, and what is not any more.
func TestMetrics(t *testing.T) {
	m, registry := newMetrics(t)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	has := func(when string, want map[string]float64) {
		t.Helper()
		got := scrape(t, registry)
		for name, value := range want {
			if is, ok := got[name]; !ok || is != value {
				t.Errorf("%s: %s is %v (%t), want %v", when, name, is, ok, value)
			}
		}
	}
	silent := func(when string) {
		t.Helper()
		for name := range scrape(t, registry) {
			if !strings.HasPrefix(name, "plan_refused_total") && name != "elected{}" { // which every replica tells
				t.Errorf("%s there is %s", when, name)
			}
		}
	}
	silent("before the first look")
	look := func(after time.Duration, change func(*quorum.Snapshot)) {
		s := threeVoters(noon.Add(after))
		if change != nil {
			change(s)
		}
		p := membership.Decide(s)
		m.observe(&p)
	}
	look(0, nil)
	m.forget()
	silent("when this replica is no longer elected")
	look(0, func(s *quorum.Snapshot) {
		s.QuorumGuard = quorum.Guard{Managed: true, MinAvailable: new(2), Intact: true, Pods: []quorum.GuardPod{
			{Name: "a", Owner: quorum.PodOwnerGuard, Ready: true}, {Name: "b", Owner: quorum.PodOwnerGuard}, {Name: "c", Owner: quorum.PodOwnerGuard, Ready: true, Deleting: true},
			{Name: "d", Owner: quorum.PodOwnerOther, Ready: true},
		}}
	})
	has("at rest", map[string]float64{
		"etcd_members{healthy,voter}": 3, "etcd_members{unhealthy,voter}": 0, "etcd_members{healthy,learner}": 0, "etcd_members{unhealthy,learner}": 0,
		"etcd_member_is_leader{1,master-0}": 1, "etcd_member_is_leader{2,master-1}": 0, "etcd_member_is_learner{1,master-0}": 0,
		"etcd_member_healthy{3,master-2}": 1, "etcd_member_has_leader{3,master-2}": 1,
		"desired_voters{}": 3, "etcd_readable{}": 1, "etcd_last_read_timestamp_seconds{}": float64(noon.Unix()),
		"learner_lag_entries{}": 0, "learner_catch_up_seconds{}": 0, "learners_waiting{}": 0, "learners_receiving{}": 0, "etcd_members_unstarted{}": 0,
		"control_plane_machines{member}": 3, "control_plane_machines{nothing}": 0, "control_plane_machines{unknown}": 0,
		"replacements{node}": 0, "replacements{release}": 0,
		"quorum_guard_min_available{}": 2, "quorum_guard_pods{}": 2, "quorum_guard_pods_ready{}": 1,
	})
	look(0, func(s *quorum.Snapshot) { s.QuorumGuard = quorum.Guard{Managed: true} })
	has("without a budget", map[string]float64{"quorum_guard_pods{}": 0})
	if _, ok := scrape(t, registry)["quorum_guard_min_available{}"]; ok {
		t.Error("there is a minAvailable without a budget")
	}
	look(0, func(s *quorum.Snapshot) {
		s.Machines[0].NodeName, s.Nodes = "master-0", []quorum.Node{{Name: "master-0", Ready: true}}
		// That operator leaves a pod on a Node whose member it removed.
		s.Mode, s.QuorumGuard = quorum.ModeGuard, quorum.Guard{MinAvailable: new(1), Pods: []quorum.GuardPod{
			{Name: "a", Node: "master-0", Owner: quorum.PodOwnerGuard, Ready: true}, {Name: "b", Node: "left", Owner: quorum.PodOwnerGuard, Ready: true},
		}}
	})
	has("cluster-etcd-operator's", map[string]float64{"quorum_guard_min_available{}": 1, "quorum_guard_pods{}": 1, "quorum_guard_pods_ready{}": 1, "condition{QuorumGuardTooSmall}": 1})
	deleting := func(s *quorum.Snapshot) { s.Machines[0].DeletedAt = noon }
	learner := func(s *quorum.Snapshot, member quorum.Member) {
		deleting(s)
		member.ID, member.Learner = 9, true
		s.Ring.Index, s.Ring.Members = 2000, append(s.Ring.Members, member)
		s.Machines = append(s.Machines, quorum.Machine{Name: "new", UID: "uid-new", Role: "master", Phase: "Running", Hook: quorum.EntryOurs, Latch: quorum.EntryOurs,
			Evidence: quorum.Evidence{MachineUID: "uid-new", MemberIDs: []quorum.MemberID{9}}, EvidenceRaw: "{}"})
	}
	look(time.Second, deleting)
	has("deleted", map[string]float64{"replacements{node}": 1, "condition{ReplacementWaits}": 1})
	look(3*time.Second, func(s *quorum.Snapshot) { learner(s, quorum.Member{}) })
	has("added", map[string]float64{
		"replacements{start}": 1, "replacements{node}": 0, "replacement_phase_duration_seconds{node}": 1, "etcd_members_unstarted{}": 1, "learners_waiting{}": 1, "learners_receiving{}": 0,
		"etcd_member_is_learner{9,unstarted}": 1, "etcd_member_healthy{9,unstarted}": 0, "etcd_member_has_leader{9,unstarted}": 0, "etcd_members{unhealthy,learner}": 1,
	})
	look(3*time.Second, func(s *quorum.Snapshot) { learner(s, quorum.Member{Receiving: true}) })
	has("sent a snapshot", map[string]float64{"etcd_members_unstarted{}": 0, "learners_waiting{}": 1, "learners_receiving{}": 1})
	look(4*time.Second, func(s *quorum.Snapshot) {
		learner(s, quorum.Member{Name: "new", Healthy: true, Applied: 500, ProgressAt: noon, CatchUp: 3 * time.Second})
	})
	has("started", map[string]float64{
		"replacements{promote}": 1, "replacement_phase_duration_seconds{start}": 1, "etcd_members_unstarted{}": 0, "etcd_member_is_learner{9,new}": 1,
		"learner_lag_entries{}": 1500, "learner_catch_up_seconds{}": 3, "learners_receiving{}": 1, "condition{LearnerBehind}": 1,
	})
	if _, still := scrape(t, registry)["etcd_member_is_learner{9,unstarted}"]; still {
		t.Error("the series of the member without a name stays")
	}
	look(5*time.Second, func(s *quorum.Snapshot) {
		learner(s, quorum.Member{Name: "new", Healthy: true, Applied: 2000, CaughtUpAt: noon})
	})
	has("caught up", map[string]float64{"learners_waiting{}": 1, "learners_receiving{}": 0})
	look(6*time.Second, nil)
	has("over", map[string]float64{"replacement_phase_duration_seconds{promote}": 1, "replacements{promote}": 0, "replacements{remove}": 0})
	for name := range scrape(t, registry) {
		if strings.Contains(name, "{9,") || strings.Contains(name, "ReplacementWaits") || strings.Contains(name, "LearnerBehind") || strings.HasPrefix(name, "quorum_guard") {
			t.Errorf("there is still %s", name)
		}
	}

	// etcd is lost: the members stand as they were known, and their time says how old that is.
	look(10*time.Second, func(s *quorum.Snapshot) { s.Ring = quorum.Ring{Why: "gone"} })
	has("etcd unknown", map[string]float64{
		"etcd_readable{}": 0, "etcd_members{healthy,voter}": 3, "etcd_last_read_timestamp_seconds{}": float64(noon.Unix() + 6), "condition{EtcdUnknown}": 1,
	})
	ring := threeVoters(noon.Add(time.Minute)).Ring
	m.unread(ring, []membership.Note{{Reason: membership.ReasonClusterUnreadable}})
	has("the API server is lost, etcd is not", map[string]float64{"condition{ClusterUnreadable}": 1, "etcd_readable{}": 1, "etcd_last_read_timestamp_seconds{}": float64(noon.Unix() + 60), "desired_voters{}": 3})
	ring.Leader = 0
	m.unread(ring, nil)
	has("no leader", map[string]float64{"etcd_readable{}": 0})

	m.observe(&membership.Plan{Join: quorum.NewJoin(threeVoters(noon)), Violated: membership.InvariantVoterCount})
	has("a plan was refused", map[string]float64{"plan_refused_total{I4}": 1, "plan_refused_total{I1}": 0})
}

// TestRestart: a phase that was under way when this process started is not measured.
func TestRestart(t *testing.T) {
	m, registry := newMetrics(t)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for i, deleting := range []bool{true, false, true, false} {
		s := threeVoters(noon.Add(time.Duration(i) * time.Second))
		if deleting {
			s.Machines[0].DeletedAt = noon
		}
		m.observe(&membership.Plan{Join: quorum.NewJoin(s)})
	}
	if n := scrape(t, registry)["replacement_phase_duration_seconds{node}"]; n != 1 {
		t.Errorf("%v phases are measured, want the one that began while this ran", n)
	}
}

// TestRefusedAtZero: the counter of refused plans has a series for each invariant from the start, because an alert on an increase misses
// the first step of a series that is not there yet.
func TestRefusedAtZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	NewMetrics(registry)
	source, err := os.ReadFile("../membership/invariant.go")
	if err != nil {
		t.Fatal(err)
	}
	series := scrape(t, registry)
	all := regexp.MustCompile(`Invariant = "(I\d+)"`).FindAllSubmatch(source, -1)
	for _, found := range all {
		if _, ok := series["plan_refused_total{"+string(found[1])+"}"]; !ok {
			t.Errorf("there is none for %s", found[1])
		}
	}
	if len(all) < 9 {
		t.Errorf("%d invariants were found", len(all))
	}
}

// TestMonitored: every metric that the alerts and the dashboard name is one that Holdfast serves, so that
// a rename silences no alert.
func TestMonitored(t *testing.T) {
	registry := prometheus.NewRegistry()
	NewMetrics(registry)
	NewAlarms(nil, registry, logr.Discard())
	webhooks.NewMetrics(registry)
	registrations.NewMetrics(registry)
	setcontroller.NewMetrics(registry)
	options := audit.NewOptions()
	options.Registerer, options.LogPaths = registry, []string{filepath.Join(t.TempDir(), "audit")}
	sink, err := audit.New(options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sink.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	descs := make(chan *prometheus.Desc, 200)
	registry.Describe(descs)
	close(descs)
	served := map[string]bool{}
	for d := range descs {
		name := regexp.MustCompile(`fqName: "([a-z_]+)"`).FindStringSubmatch(fmt.Sprint(d))[1]
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			if suffix == "" || strings.HasSuffix(name, "_duration_seconds") { // the histograms
				served[name+suffix] = true
			}
		}
	}
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"deploy/monitoring/prometheusrule.yaml", "deploy/monitoring/dashboard.json"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\bholdfast_[a-z_]+`).FindAllString(string(text), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			if !served[name] {
				t.Errorf("%s names %s, which is not served", file, name)
			}
		}
	}
}

// TestMaintenance: a voter is in maintenance if its Node was cordoned before it became unhealthy, and not if somebody cordons it because
// of that.
func TestMaintenance(t *testing.T) {
	look := func(healthy, cordoned bool) *quorum.Snapshot {
		return &quorum.Snapshot{
			Ring:     quorum.Ring{Known: true, Members: []quorum.Member{{ID: 1, Name: "m", PeerURLs: []string{"https://10.0.0.1:2380"}, Healthy: healthy}}},
			Machines: []quorum.Machine{{Name: "m", UID: "m", Role: "master", Type: "master", NodeName: "m", ProviderID: "p", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
			Nodes:    []quorum.Node{{Name: "m", ProviderID: "p", Cordoned: cordoned, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
		}
	}
	type step struct {
		healthy, cordoned bool
		want              float64
	}
	for name, steps := range map[string][]step{
		"an upgrade":                   {{true, false, 0}, {true, true, 0}, {false, true, 1}, {false, true, 1}, {true, true, 0}, {true, false, 0}},
		"it dies, and is cordoned":     {{true, false, 0}, {false, false, 0}, {false, true, 0}, {true, true, 0}},
		"it is uncordoned, and is ill": {{true, true, 0}, {false, true, 1}, {false, false, 0}, {false, true, 0}},
		"a new leader finds it so":     {{false, true, 1}},
	} {
		m, registry := newMetrics(t)
		for i, s := range steps {
			m.observe(&membership.Plan{Join: quorum.NewJoin(look(s.healthy, s.cordoned))})
			if got := scrape(t, registry)["etcd_voters_in_maintenance{}"]; got != s.want {
				t.Errorf("%s, look %d: %v voters are in maintenance, want %v", name, i+1, got, s.want)
			}
		}
	}
}
