package scenario_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestChaos replaces Machines by a schedule that is made of a seed: in each round a replacement, faults
// somewhere in it, and all along requests of tools that mean no good. Every replacement has to complete
// once its faults are over; the history sees to the invariants, and what etcd's clients saw has to be
// linearizable. Two replicas of Holdfast are elected for real. CHAOS_SEED and CHAOS_ROUNDS say which and how
// many; the same seed makes the same schedule.
func TestChaos(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	chaos(t, sandbox.Options{HoldfastArgs: []string{"--member-dead-timeout=3s"}})
}

// TestChaosGuard is the same beside a stand-in for cluster-etcd-operator.
func TestChaosGuard(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	chaos(t, sandbox.Options{Mode: "guard"})
}

func chaos(t *testing.T, options sandbox.Options) {
	t.Helper()
	cuts := os.Getenv(inNamespace) != ""
	if !cuts && runInNamespace(t) {
		return
	}
	seed, rounds := chaosNumber(t, "CHAOS_SEED", 1), chaosNumber(t, "CHAOS_ROUNDS", 2)
	if cuts {
		upLoopback(t)
	}
	t.Logf("CHAOS_SEED=%d CHAOS_ROUNDS=%d, members cut off among the faults: %v", seed, rounds, cuts)
	options.Replicas, options.HoldfastReplicas = 3, 2
	c := start(t, options)
	c.watch(t, 2)
	if options.Mode == "guard" {
		sandboxtest.Operate(t, c.Sandbox, 3)
	}
	c.registers(t, uint64(seed))
	c.atRest(t)
	c.enacted(t)
	c.hostile(t, uint64(seed))

	made := map[string]int{}
	for n, round := range schedule(uint64(seed), rounds, cuts) {
		t.Run(fmt.Sprintf("%d: %s", n, round), func(t *testing.T) {
			c.round(t, n, round, c.traced(t, cmp.Or(options.Mode, "full")), made)
		})
		if t.Failed() {
			break // what comes after would only tell of the same
		}
	}
	for _, what := range slices.Sorted(maps.Keys(made)) {
		t.Logf("%4d %s", made[what], what)
	}
}

func chaosNumber(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q; it is a number from 1", name, text)
	}
	return n
}

// chaosRound is one replacement, and what goes wrong in it.
type chaosRound struct {
	victim      int  // which of the voters, by name
	createFirst bool // the replacement is created before the deletion
	hatch       bool // a person takes the hook off by hand
	faults      []chaosFault
}

// chaosFault is made when the replacement is as far as that, and lasts.
type chaosFault struct {
	at    stage
	kind  string
	whom  string // which member, for those that are about one
	lasts time.Duration
	skip  int // for one past the lease: how many changes of members pass before
}

func (r chaosRound) String() string {
	parts := []string{map[bool]string{true: "create and delete", false: "delete and create"}[r.createFirst]}
	for _, f := range r.faults {
		parts = append(parts, fmt.Sprintf("when %s %s %s for %s", f.at, f.whom, f.kind, f.lasts))
	}
	if r.hatch {
		parts = append(parts, "escape hatch")
	}
	return strings.Join(parts, ", ")
}

// What may go wrong with a member, and with the rest.
const (
	crash   = "crashes"
	hang    = "hangs"
	outage  = "loses power"
	cut     = "is cut off"
	restart = "is killed"
	pause   = "is paused"
	lapse   = "is paused past its lease" // until another is elected, and then for so long
)

// Which of Holdfast's replicas.
const (
	elected = "the elected Holdfast"
	other   = "the other Holdfast"
	both    = "each Holdfast"
)

// schedule makes the rounds of a seed.
func schedule(seed uint64, rounds int, cuts bool) []chaosRound {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a schedule, no secret
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	stages := []stage{added, started, promoted, removed}
	out := make([]chaosRound, rounds)
	for i := range out {
		r := &out[i]
		r.victim, r.createFirst, r.hatch = random.IntN(3), random.IntN(2) == 0, random.IntN(6) == 0
		at := random.IntN(len(stages))
		for range 1 + random.IntN(2) {
			f := chaosFault{at: stages[at], lasts: time.Duration(1+random.IntN(6)) * time.Second}
			switch random.IntN(6) {
			default:
				f.whom = pick("the leader", "a follower", "the old member", "the new member")
				f.kind = pick(crash, hang, outage)
				if cuts && random.IntN(4) == 0 {
					f.kind = cut
				}
			case 0:
				f.whom = pick("the API server", "the Machine API controllers")
				f.kind = pick(restart, pause)
			case 1, 2:
				f.whom = pick(elected, elected, elected, other, both)
				f.kind = pick(restart, pause)
				if f.whom == elected && random.IntN(2) == 0 {
					f.kind, f.skip = lapse, random.IntN(2)
					f.at = stage(pick(string(begun), string(added))) // two changes are left
				}
			}
			r.faults = append(r.faults, f)
			at = min(at+random.IntN(2), len(stages)-1)
		}
	}
	return out
}

// round replaces a Machine. look is called between its changes.
func (c *cluster) round(t *testing.T, n int, r chaosRound, look func(), made map[string]int) {
	t.Helper()
	next := fmt.Sprintf("chaos-%d", n)
	voters := c.voters(t)
	old := voters[r.victim%len(voters)]
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return c.removeOnce(ctx, old) },
		func(ctx context.Context) error { return client.IgnoreAlreadyExists(c.replacement(ctx, old, next)) }, // an answer may come too late
	}
	if r.createFirst {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		// A member that is slow for a moment has the deletion refused, and whoever asked tries again.
		eventually(t, quickly, "the deletion and the replacement's creation to pass", step)
		look()
	}
	for _, f := range r.faults {
		c.reaches(t, f.at, old, next)
		heal, ok := c.fault(t, f, old, next, made)
		if !ok {
			made["faults whose member was not there any more, or not yet"]++
			continue
		}
		made["faults: "+f.whom+" "+f.kind]++
		select {
		case <-t.Context().Done():
		case <-time.After(f.lasts):
		}
		heal()
	}
	if r.hatch {
		// It may be refused, or too late.
		within, cancel := context.WithTimeout(t.Context(), attempt)
		if err := c.strip(within, sandbox.Alice, old); err == nil {
			made["escape hatches"]++
		}
		cancel()
	}
	c.gone(t, 2*slowly, old)
	c.becomes(t, next, "voter")
	c.atRest(t)
	eventually(t, slowly, "Holdfast to see all members healthy, and to let the next go", func(ctx context.Context) error {
		return c.tryRemove(ctx, next)
	})
	eventually(t, quickly, "all replicas of Holdfast ready again", c.WaitHoldfast)
	made["replacements"]++
}

// voters are the names of etcd's voters.
func (c *cluster) voters(t *testing.T) []string {
	t.Helper()
	var names []string
	eventually(t, quickly, "etcd's members", func(ctx context.Context) error {
		list, err := c.members(ctx)
		names = nil
		for _, m := range list {
			if !m.GetIsLearner() {
				names = append(names, m.GetName())
			}
		}
		return err
	})
	slices.Sort(names)
	return names
}

// fault makes one. ok is whether what it is about was there.
func (c *cluster) fault(t *testing.T, f chaosFault, old, next string, made map[string]int) (heal func(), ok bool) {
	t.Helper()
	if f.whom == elected || f.whom == other || f.whom == both {
		return c.replicaFault(t, f, made), true
	}
	components := map[string]*sandbox.Component{"the API server": c.APIServer, "the Machine API controllers": c.MachineAPI}
	if component := components[f.whom]; component != nil {
		if f.kind == restart {
			must(t, component.Restart())
			return func() {}, true
		}
		must(t, component.Pause())
		return onEnd(t, func() { _ = component.Resume() }), true
	}
	name := map[string]string{"the old member": old, "the new member": next}[f.whom]
	switch f.whom {
	case "the leader":
		name = c.leader(t)
	case "a follower":
		name = c.follower(t, "")
	}
	host, ok := c.Host(name)
	if !ok || host.Etcd == nil {
		return nil, false
	}
	signal := func(p *process.Process, s syscall.Signal) { _ = p.Signal(s) } // it may end meanwhile
	switch f.kind {
	case crash:
		signal(host.Etcd, syscall.SIGKILL)
		return func() {}, true
	case hang:
		signal(host.Etcd, syscall.SIGSTOP)
		return onEnd(t, func() { signal(host.Etcd, syscall.SIGCONT) }), true
	case outage:
		if err := c.Power(name, false); err != nil {
			return nil, false
		}
		return onEnd(t, func() { _ = c.Power(name, true) }), true // its Machine may be gone
	case cut:
		return c.cutOff(t, name), true
	}
	t.Fatalf("there is no fault %+v", f)
	return nil, false
}

// replicaFault makes one of replicas of Holdfast. The sandbox starts one that is killed again.
func (c *cluster) replicaFault(t *testing.T, f chaosFault, made map[string]int) (heal func()) {
	t.Helper()
	replicas := c.Holdfasts()
	if f.whom != both {
		leader := c.elected(t, nil)
		replicas = slices.DeleteFunc(replicas, func(r *sandbox.Component) bool { return (r == leader) != (f.whom == elected) })
	}
	processes := make([]*process.Process, len(replicas))
	for i, r := range replicas {
		processes[i] = r.Process()
	}
	signal := func(s syscall.Signal) {
		for _, p := range processes {
			_ = p.Signal(s) // it may end meanwhile
		}
	}
	switch f.kind {
	case restart:
		signal(syscall.SIGKILL)
		return func() {}
	case lapse:
		c.locksSoon(t, processes[0], f.skip)
	}
	signal(syscall.SIGSTOP)
	heal = onEnd(t, func() { signal(syscall.SIGCONT) })
	if f.kind == lapse {
		if c.holdsLock(t) {
			made["leaders that were paused with the membership lock in hand"]++
		}
		c.elected(t, processes[0])
	}
	return heal
}

// elected waits until a replica is, other than that process.
func (c *cluster) elected(t *testing.T, but *process.Process) (leader *sandbox.Component) {
	t.Helper()
	eventually(t, slowly, "a replica of Holdfast elected", func(ctx context.Context) (err error) {
		if leader, err = c.Elected(ctx); err == nil && leader.Process() == but {
			err = fmt.Errorf("%s still is", leader.Name)
		}
		return err
	})
	return leader
}

// locksSoon waits until a process takes the membership lock, after so many times that it does not count: it is
// between its look and its change then. If it does not in a while, there may be nothing left to change.
func (c *cluster) locksSoon(t *testing.T, p *process.Process, skip int) {
	t.Helper()
	locked, soon := c.locks(t), time.After(2*attempt)
	for taken := 0; taken <= skip; {
		select {
		case <-soon:
			return
		case holder := <-locked:
			if strings.HasSuffix(holder, fmt.Sprintf("/%d", p.PID())) {
				taken++
			}
		}
	}
}

// holdsLock reports whether anybody holds the membership lock.
func (c *cluster) holdsLock(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), attempt)
	defer cancel()
	got, err := c.etcd.Get(ctx, lockPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && got.Count > 0
}

// onEnd sees to it that a fault is over when the test is.
func onEnd(t *testing.T, heal func()) func() {
	t.Helper()
	once := sync.OnceFunc(heal)
	t.Cleanup(once)
	return once
}

// enacted waits until the API server acts by the policies: once a second it gathers those that it has heard of, so one may come a second
// after another.
func (c *cluster) enacted(t *testing.T) {
	t.Helper()
	name, tool := c.voters(t)[0], c.as(sandbox.GitOps)
	merge := func(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
	eventually(t, quickly, "the API server to act by the policies", func(ctx context.Context) error {
		m, err := c.machine(ctx, name)
		if err != nil {
			return err
		}
		for _, err := range []error{
			tool.Status().Patch(ctx, m.DeepCopy(), merge(`{"status":{"nodeRef":null}}`), client.DryRunAll),
			tool.Patch(ctx, m.DeepCopy(), merge(`{"spec":{"providerID":"process:///none"}}`), client.DryRunAll),
		} {
			if !apierrors.IsForbidden(err) {
				return errors.Join(fmt.Errorf("a tool may take Node and instance off Machine %s", name), err)
			}
		}
		return nil
	})
}

// hostile has tools ask, until the test ends, for what must not be. What becomes of the Machines the
// history sees.
func (c *cluster) hostile(t *testing.T, seed uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	passed, refused, failed := map[string]int{}, map[string]int{}, 0
	work.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a schedule, no secret
		for pace := rate.NewLimiter(4, 1); pace.Wait(ctx) == nil; {
			within, cancel := context.WithTimeout(ctx, attempt)
			what, err := c.mischief(within, random)
			cancel()
			switch {
			case what == "" || ctx.Err() != nil:
			case err == nil:
				passed[what]++
			case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
				refused[what]++
			default:
				failed++
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
		for _, counts := range []map[string]int{passed, refused} {
			if len(counts) == 0 {
				t.Errorf("hostile requests: passed (repaired or without effect) %v, refused %v", passed, refused)
			}
		}
		t.Logf("hostile requests: passed (repaired or without effect) %v, refused %v, without an answer %d", passed, refused, failed)
	})
}

// mischief asks for one thing about one hooked Machine.
func (c *cluster) mischief(ctx context.Context, random *rand.Rand) (what string, err error) {
	var list machinev1beta1.MachineList
	if err := c.as(sandbox.Admin).List(ctx, &list, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return "", err
	}
	var hooked []*machinev1beta1.Machine
	for i := range list.Items {
		if m := machineapi.Machine(&list.Items[i]); m.Protected() {
			hooked = append(hooked, &list.Items[i])
		}
	}
	if len(hooked) < 2 {
		return "", errors.New("there is nothing to ask for")
	}
	random.Shuffle(len(hooked), func(i, j int) { hooked[i], hooked[j] = hooked[j], hooked[i] })
	m, other := hooked[0], hooked[1]
	patch := func(text string) error {
		return c.as(sandbox.GitOps).Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(text)))
	}
	all := []struct {
		what string
		ask  func() error
	}{
		{"strip the hooks", func() error { return patch(`{"spec":{"lifecycleHooks":null}}`) }},
		{"strip the preDrain hook", func() error { return patch(`{"spec":{"lifecycleHooks":{"preDrain":[]}}}`) }},
		{"strip the latch", func() error { return patch(`{"spec":{"lifecycleHooks":{"preTerminate":null}}}`) }},
		{"drop the finalizer", func() error { return patch(`{"metadata":{"finalizers":null}}`) }},
		{"make it a worker", func() error {
			return patch(fmt.Sprintf(`{"metadata":{"labels":{%q:"worker",%q:"worker"}}}`, quorum.RoleLabel, quorum.TypeLabel))
		}},
		{"drop the evidence", func() error {
			return patch(fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, quorum.EvidenceAnnotation))
		}},
		{"override", func() error {
			return patch(fmt.Sprintf(`{"metadata":{"annotations":{%q:"one-too-many: I may"}}}`, quorum.OverrideAnnotation))
		}},
		{"take another's instance", func() error { return patch(fmt.Sprintf(`{"spec":{"providerID":%q}}`, *other.Spec.ProviderID)) }},
		{"forget the Node", func() error {
			return c.as(sandbox.GitOps).Status().Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodeRef":null,"addresses":null}}`)))
		}},
		{"release as the operator", func() error { return c.strip(ctx, sandbox.EtcdOperator, m.Name) }},
	}
	one := all[random.IntN(len(all))]
	if other.Spec.ProviderID == nil || m.DeletionTimestamp.IsZero() && one.what == "release as the operator" {
		return "", nil // one has no instance yet, the other is the operator's to unhook where it hosts nothing
	}
	return one.what, one.ask()
}
