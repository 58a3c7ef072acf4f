package webhooks_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	members "github.com/holdfast-dev/holdfast/test/ring"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// etcdCase is one request about a Machine, and what must come of it as etcd is: all three members
// answer, one of the others does not, or the member list cannot be read.
type etcdCase struct {
	name    string
	state   state
	nothing bool // the Machine hosts nothing; else it hosts the first member
	second  bool // the second member's Machine is on its way out
	unheld  bool // the Machine has hook and latch and no finalizer
	user    string
	send    request

	answers, one, unknown etcdOutcome
	asksNot               bool // etcd is not read
}

// etcdOutcome is what is stored, and rule and verdict of what is recorded.
type etcdOutcome struct {
	stored   string
	recorded []string
}

func outcome(stored string, recorded ...string) etcdOutcome { return etcdOutcome{stored, recorded} }

// always is for the rules that need only the request: the same outcome, and etcd is not read.
func always(name string, s state, user string, send request, stored string, recorded ...string) etcdCase {
	s.naked = true
	o := outcome(stored, recorded...)
	return etcdCase{name: name, state: s, user: user, send: send, answers: o, one: o, unknown: o, asksNot: true}
}

func etcdCases() []etcdCase {
	naked, bare, leaving := state{naked: true}, state{naked: true, bare: true}, state{naked: true, deleting: true}
	lifted := func(s state, rule quorum.Rule) state {
		s.override, s.naked = string(rule)+": planned", false // its evidence names no member of this ring
		return s
	}
	by := func(rule quorum.Rule) string {
		return fmt.Sprintf(" evidence override %q by %s", string(rule)+": planned", admin)
	}
	const (
		hooked   = "hook latch"
		going    = " deleting"
		heldSaid = "held allowed"
	)
	kept := outcome(hooked, "keep-hook repaired")
	held := outcome(hooked+going, heldSaid)
	early := outcome(hooked+going, "early-release repaired")
	bareStays := outcome("", "unprotected-delete denied")
	bareLifted := outcome(by(quorum.RuleUnprotectedDelete)[1:]+going, "unprotected-delete overridden")
	unheldStays := outcome(hooked, "unprotected-delete denied")

	return []etcdCase{
		{name: "keep-hook: a custodian", state: naked, user: operator, send: put(unhook), answers: kept, one: kept, unknown: kept},
		{name: "keep-hook: a custodian, it hosts nothing", state: naked, nothing: true, user: holdfast, send: put(unhook),
			answers: outcome(""), one: outcome(""), unknown: kept},

		{name: "early-release", state: leaving, user: operator, send: put(unhook), answers: early, one: early, unknown: early},
		{name: "early-release: it hosts nothing", state: leaving, nothing: true, user: holdfast, send: put(unhook),
			answers: outcome("deleting"), one: outcome("deleting"), unknown: early},

		{name: "escape-hatch", state: leaving, user: person, send: put(unhook),
			answers: outcome("latch deleting", "escape-hatch allowed"), one: outcome("latch deleting", "escape-hatch allowed"), unknown: outcome("latch deleting", "escape-hatch allowed")},
		{name: "escape-hatch: overridden", state: lifted(leaving, quorum.RuleEscapeHatch), user: person, send: put(unhook),
			answers: outcome("latch"+by(quorum.RuleEscapeHatch)+going, "escape-hatch allowed"), one: outcome("latch"+by(quorum.RuleEscapeHatch)+going, "escape-hatch overridden"),
			unknown: outcome("latch"+by(quorum.RuleEscapeHatch)+going, "escape-hatch overridden")},

		{name: "keep-host", state: naked, user: person, send: remediate,
			answers: outcome(hooked+" remediating", "keep-host allowed"), one: outcome(hooked, "keep-host denied"), unknown: outcome(hooked, "keep-host denied")},
		{name: "keep-host: overridden", state: lifted(naked, quorum.RuleKeepHost), user: person, send: remediate,
			answers: outcome(hooked+by(quorum.RuleKeepHost)+" remediating", "keep-host allowed"), one: outcome(hooked+by(quorum.RuleKeepHost)+" remediating", "keep-host overridden"),
			unknown: outcome(hooked+by(quorum.RuleKeepHost)+" remediating", "keep-host overridden")},

		{name: "unprotected-delete", state: bare, user: person, send: remove, answers: bareStays, one: bareStays, unknown: bareStays},
		{name: "unprotected-delete: it hosts nothing", state: bare, nothing: true, user: gitops, send: remove,
			answers: outcome("deleting"), one: outcome("deleting"), unknown: bareStays},
		{name: "unprotected-delete: deletecollection", state: bare, user: gitops, send: removeAll, answers: bareStays, one: bareStays, unknown: bareStays},
		{name: "unprotected-delete: overridden", state: lifted(bare, quorum.RuleUnprotectedDelete), user: person, send: remove,
			answers: bareLifted, one: outcome(by(quorum.RuleUnprotectedDelete)[1:], "degraded-delete denied"),
			unknown: outcome(by(quorum.RuleUnprotectedDelete)[1:], "one-too-many denied")},
		{name: "unprotected-delete: without finalizer", state: bare, unheld: true, user: person, send: remove,
			answers: unheldStays, one: unheldStays, unknown: unheldStays},

		{name: "one-too-many", state: naked, second: true, user: person, send: remove,
			answers: outcome(hooked, "one-too-many denied"), one: outcome(hooked, "one-too-many denied"), unknown: held},
		{name: "one-too-many: overridden", state: lifted(naked, quorum.RuleOneTooMany), second: true, user: person, send: remove,
			answers: outcome(hooked+by(quorum.RuleOneTooMany)+going, "one-too-many overridden", heldSaid),
			one:     outcome(hooked+by(quorum.RuleOneTooMany), "degraded-delete denied"),
			unknown: outcome(hooked+by(quorum.RuleOneTooMany)+going, "one-too-many overridden", heldSaid)},

		{name: "held, or degraded-delete", state: naked, user: gitops, send: remove,
			answers: held, one: outcome(hooked, "degraded-delete denied"), unknown: held},
		{name: "degraded-delete: overridden", state: lifted(naked, quorum.RuleDegradedDelete), user: person, send: remove,
			answers: outcome(hooked+by(quorum.RuleDegradedDelete)+going, heldSaid),
			one:     outcome(hooked+by(quorum.RuleDegradedDelete)+going, "degraded-delete overridden", heldSaid),
			unknown: outcome(hooked+by(quorum.RuleDegradedDelete), "one-too-many denied")}, // others are being deleted

		always("keep-hook: automation", state{}, gitops, put(unhook), hooked, "keep-hook repaired"),
		always("keep-hook: a person", state{}, person, put(unhook), hooked, "keep-hook repaired"),
		always("automation-release", state{deleting: true}, gitops, put(unhook), hooked+going, "automation-release repaired"),
		always("no-regain", state{escaped: true}, holdfast, merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`), "latch deleting", "no-regain repaired"),
		always("keep-finalizer", state{deleting: true}, person, merge(`{"metadata":{"finalizers":null}}`), hooked+going, "keep-finalizer denied"),
		always("keep-role", state{}, gitops, merge(`{"metadata":{"labels":null}}`), hooked, "keep-role denied"),
		always("keep-host: automation", state{}, gitops, remediate, hooked, "keep-host denied"),
	}
}

// countedRing counts the reads of etcd.
type countedRing struct {
	*etcd.Client
	reads atomic.Int64
}

func (r *countedRing) Read(ctx context.Context) quorum.Ring {
	r.reads.Add(1)
	return r.Client.Read(ctx)
}

// call is one call of a webhook, as the webhook sees it.
type call struct {
	took   time.Duration
	gaveUp bool // the API server did not wait for the answer
}

// etcdFixture is an API server whose webhooks read a ring that is not the API server's own.
type etcdFixture struct {
	*fixture
	ring     *members.Ring
	etcd     *countedRing
	observer *observe.Observer

	mu    sync.Mutex
	calls []call
}

// TestEtcd has every rule answer while etcd is whole, slow, without a leader and gone.
func TestEtcd(t *testing.T) {
	t.Parallel()
	f := startEtcd(t)
	stop := func(signal syscall.Signal, which ...int) {
		t.Helper()
		for _, k := range which {
			must(t, f.ring.Members[k].Process().Signal(signal))
		}
	}
	t.Run("whole", func(t *testing.T) {
		f.until(t, func(r *quorum.Ring) bool { return r.Known && healthy(r) == 3 })
		f.each(t, "whole", func(c *etcdCase) etcdOutcome { return c.answers })
	})
	t.Run("one slow", func(t *testing.T) {
		stop(syscall.SIGSTOP, 2)
		defer stop(syscall.SIGCONT, 2)
		// It may have been the leader.
		f.until(t, func(r *quorum.Ring) bool { return r.Known && r.Leader != 0 && healthy(r) == 2 })
		f.each(t, "one", func(c *etcdCase) etcdOutcome { return c.one })
	})
	t.Run("all slow", func(t *testing.T) {
		f.prepare(t, "slow")
		stop(syscall.SIGSTOP, 0, 1, 2)
		defer stop(syscall.SIGCONT, 0, 1, 2)
		f.each(t, "slow", func(c *etcdCase) etcdOutcome { return c.unknown })
	})
	t.Run("no leader", func(t *testing.T) {
		f.prepare(t, "lost")
		f.prepare(t, "gone")
		must(t, f.ring.Members[1].Kill())
		must(t, f.ring.Members[2].Kill())
		f.each(t, "lost", func(c *etcdCase) etcdOutcome { return c.unknown })
	})
	t.Run("gone", func(t *testing.T) {
		must(t, f.ring.Members[0].Kill())
		f.each(t, "gone", func(c *etcdCase) etcdOutcome { return c.unknown })
	})
}

func healthy(r *quorum.Ring) (n int) {
	for i := range r.Members {
		if r.Members[i].Healthy {
			n++
		}
	}
	return n
}

func startEtcd(t *testing.T) *etcdFixture {
	t.Helper()
	f := &etcdFixture{fixture: start(t)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	f.ring, err = members.Start(ctx, filepath.Join(t.TempDir(), "ring"), 3)
	must(t, err)
	t.Cleanup(func() {
		if err := f.ring.Stop(); err != nil {
			t.Error(err)
		}
	})
	reader, err := etcd.New(etcd.Config{Endpoints: f.ring.Config.Endpoints, CACert: f.ring.Files.CA, Cert: f.ring.Files.Cert, Key: f.ring.Files.Key})
	must(t, err)
	t.Cleanup(reader.Close)
	f.etcd = &countedRing{Client: reader}
	f.observer = &observe.Observer{
		API: f.direct, Etcd: f.etcd, Namespace: namespace, Mode: quorum.ModeGuard, Desired: 3,
		Limits: quorum.DefaultLimits(), Clock: clock.RealClock{},
	}
	metrics := webhooks.NewMetrics(prometheus.NewRegistry())
	guard := &webhooks.Handlers{
		Identities: identities(), MachineNamespace: namespace,
		Observer: f.observer, Recorder: f.guard, Metrics: metrics,
		Claim: func(ctx context.Context, l *quorum.Ledger, entry quorum.Release) error {
			return observe.Record(ctx, f.direct, namespace, l, entry)
		},
	}
	must(t, f.direct.Create(t.Context(), observe.LedgerOf(namespace, &quorum.Ledger{}, nil)))
	for k, m := range f.ring.Members {
		name := fmt.Sprintf("host-%d", k)
		f.machine(t, name, state{naked: true})
		must(t, f.client(t, holdfast, nil).Patch(t.Context(), f.get(t, name), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"providerID":"process:///`+name+`"}}`))))
		f.place(t, name, m.Spec().Address)
	}
	f.machine(t, "going-1", state{naked: true, deleting: true})
	f.place(t, "going-1", "")

	// No request is under way, and the API server's connections are made anew.
	mux := http.NewServeMux()
	mux.Handle(webhooks.MutatePath, f.timed(webhooks.Handler(guard.Mutating())))
	mux.Handle(webhooks.ValidatePath, f.timed(webhooks.Handler(guard.Validating())))
	f.server.Config.Handler = mux
	f.server.CloseClientConnections()
	return f
}

// timed notes how long each answer took, and whether somebody still waited for it.
func (f *etcdFixture) timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		next.ServeHTTP(w, r)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls = append(f.calls, call{time.Since(began), r.Context().Err() != nil})
	})
}

// place gives a Machine that address, and no other; none for "".
func (f *etcdFixture) place(t *testing.T, name, address string) {
	t.Helper()
	m := f.get(t, name)
	if m == nil {
		return
	}
	m.Status.Addresses = nil
	if address != "" {
		m.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	}
	must(t, f.direct.Status().Update(t.Context(), m))
	f.caughtUp(t, m)
}

// until waits for the ring to be read like that.
func (f *etcdFixture) until(t *testing.T, as func(*quorum.Ring) bool) {
	t.Helper()
	gomega.NewWithT(t).Eventually(t.Context(), func() error {
		r := f.etcd.Read(t.Context())
		if !as(&r) {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}).WithTimeout(2 * time.Minute).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// prepare makes the Machines of all cases beforehand, with etcd whole.
func (f *etcdFixture) prepare(t *testing.T, prefix string) {
	t.Helper()
	f.until(t, func(r *quorum.Ring) bool { return r.Known && healthy(r) == 3 })
	for i, c := range etcdCases() {
		f.make(t, fmt.Sprintf("%s-%d", prefix, i), &c)
	}
}

// make makes a case's Machine, which hosts nothing yet.
func (f *etcdFixture) make(t *testing.T, name string, c *etcdCase) {
	t.Helper()
	if f.get(t, name) != nil {
		return
	}
	f.machine(t, name, c.state)
	if c.unheld {
		must(t, merge(`{"metadata":{"finalizers":null}}`)(t.Context(), f.admin, f.get(t, name), false))
		must(t, merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`)(t.Context(), f.admin, f.get(t, name), false))
	}
}

// each sends every case's request and checks what came of it.
func (f *etcdFixture) each(t *testing.T, prefix string, want func(*etcdCase) etcdOutcome) {
	var longest time.Duration
	for i, c := range etcdCases() {
		t.Run(c.name, func(t *testing.T) {
			name := fmt.Sprintf("%s-%d", prefix, i)
			f.make(t, name, &c)
			if !c.nothing && !c.state.worker {
				f.swap(t, "host-0", name, 0)
				defer f.swap(t, name, "host-0", 0)
			}
			if c.second {
				f.swap(t, "host-1", "going-1", 1)
				defer f.swap(t, "going-1", "host-1", 1)
			}
			longest = max(longest, f.ask(t, &c, name, want(&c)))
		})
	}
	t.Logf("the longest answer took %v", longest)
}

// swap has another Machine host the member.
func (f *etcdFixture) swap(t *testing.T, from, to string, member int) {
	t.Helper()
	f.place(t, from, "")
	f.place(t, to, f.ring.Members[member].Spec().Address)
}

// answerBound leaves of the API server's 3 s what it takes to bring the answer back. etcd has 1 s.
const answerBound = 2500 * time.Millisecond

// ask sends a case's request, and tells how long the longest of its answers took.
func (f *etcdFixture) ask(t *testing.T, c *etcdCase, name string, want etcdOutcome) (longest time.Duration) {
	t.Helper()
	m := f.get(t, name)
	f.caughtUp(t, m)
	f.guard.set(nil)
	f.mu.Lock()
	f.calls = nil
	f.mu.Unlock()
	reads := f.etcd.reads.Load()

	var said warnings
	err := c.send(t.Context(), f.client(t, c.user, &said), m, false)
	f.answered(t, &verdictCase{recorded: want.recorded}, false, err, said.lines)
	if diff := cmp.Diff(want.stored, describe(f.get(t, name))); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	if asked := f.etcd.reads.Load() != reads; asked == c.asksNot {
		t.Errorf("etcd was read: %t", asked)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) == 0 {
		t.Error("the webhooks were not called")
	}
	for _, call := range f.calls {
		longest = max(longest, call.took)
		if call.took > answerBound || call.gaveUp {
			t.Errorf("an answer took %v; the API server gave up: %t", call.took, call.gaveUp)
		}
	}
	return longest
}
