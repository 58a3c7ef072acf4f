package custodian_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// TestBeside runs Holdfast in guard mode beside a stand-in for cluster-etcd-operator, on one control
// plane of three. Each part begins and ends with the control plane at rest.
func TestBeside(t *testing.T) {
	c := start(t, sandbox.Options{Mode: "guard"})
	right := c.custodian(t, dial(t, c.Sandbox), custodian.Options{})
	goOn(t, right, "the operator's hook, and latch and evidence with it, on every Machine", c.restless)

	for _, part := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"the leader's Machine is replaced", func(t *testing.T) { c.replacement(t, c.leader(t), "next-leader") }},
		{"a follower's Machine is replaced", func(t *testing.T) {
			leader := c.leader(t)
			followers := slices.DeleteFunc(c.voters(t), func(name string) bool { return name == leader })
			c.replacement(t, followers[0], "next-follower")
		}},
		{"the operator, which looks once a minute, is told that a member has left", c.told},
		{"a Machine without addresses", func(t *testing.T) { c.withoutAddresses(t, right) }},
		{"a learner's Machine is deleted", c.learner},
		{"a removal whose answer is lost is not followed by a second one", c.noSecond},
		{"a removal that was lost is not followed by releases", c.notBelieved},
		{"no webhook sees what is asked of etcd", func(t *testing.T) { c.unseen(t, right) }},
	} {
		if !t.Run(part.name, part.run) {
			return // those after it begin with a control plane at rest
		}
	}
}

// replacement is a person's deletion and creation, and everything else the operator's.
func (c *cluster) replacement(t *testing.T, old, next string) {
	c.watch(t, desired)
	seen := len(c.records(t))
	o := c.custodian(t, dial(t, c.Sandbox), custodian.Options{})
	running, stop := context.WithCancel(t.Context())
	last := make(chan error, 1)
	go func() { last <- o.Run(running, glimpse) }()

	c.remove(t, old)
	c.replace(t, old, next)
	eventually(t, "Machine "+old+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, old), c.restless(ctx)) })
	stop()
	if err := <-last; err != nil {
		t.Errorf("the operator ends with %v", err)
	}

	writes := o.Writes()
	allPassed(t, writes)
	passed := map[string]int{}
	for i := range writes {
		if w := &writes[i]; w.Passed() {
			passed[map[bool]string{true: "release ", false: "hook "}[w.Release]+w.Machine]++
		}
	}
	if len(passed) != 2 || passed["release "+old] != 1 || passed["hook "+next] != 1 {
		t.Errorf("the operator's writes: %v, want one hook and one release", passed)
	}
	unknown := 0
	for i := range writes {
		if undecided(&writes[i]) {
			unknown++
		}
	}
	if records := c.records(t)[seen:]; len(records) > unknown {
		t.Errorf("Holdfast had something to say about what the operator did: %v of Machine %s", records[0].Rules(), records[0].Name())
	}
}

// told: the removal of a member is no change of a Machine, so the operator would release the Machine only when it looks at all of them again.
func (c *cluster) told(t *testing.T) {
	c.watch(t, desired)
	o := c.custodian(t, dial(t, c.Sandbox), custodian.Options{Resync: time.Hour})
	running, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = o.Run(running, glimpse) }() // what it could not do, it does later

	old := c.voters(t)[0]
	c.remove(t, old)
	c.replace(t, old, "next-told")
	eventually(t, "Machine "+old+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, old), c.restless(ctx)) })
}

// withoutAddresses is what the operator does wrong of itself: a Machine whose addresses went hosts nothing for it.
func (c *cluster) withoutAddresses(t *testing.T, right *custodian.Operator) {
	c.watch(t, desired)
	const after = "zz-never" // by name, so the operator comes to it after the other
	old := c.voters(t)[0]
	must(t, c.alice.Create(t.Context(), broken(after)))
	goOn(t, right, "the hook on a Machine that never gets an instance", func(ctx context.Context) error {
		m, err := c.machine(ctx, after)
		if err == nil && (m.Status.Phase == nil || *m.Status.Phase != machinev1beta1.PhaseFailed || !protected(m)) {
			err = errors.New("it is not there yet")
		}
		return err
	})
	c.remove(t, old)
	c.remove(t, after)
	c.seen(t, old, after)

	// That the addresses go is the Machine API's doing alone: others are not let.
	empty := client.RawPatch(types.MergePatchType, []byte(`{"status":{"addresses":null}}`))
	if err := c.operator.Status().Patch(t.Context(), named(old), empty); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("the operator empties the addresses: %v, want keep-status to refuse it", err)
	}
	must(t, c.machineAPI.Status().Patch(t.Context(), named(old), empty))

	writes, err := right.Round(t.Context())
	if err != nil {
		t.Errorf("the operator's round ends with %v: it may have left Machines out", err)
	}
	if len(writes) != 2 || writes[0].Machine != old || writes[1].Machine != after {
		t.Fatalf("the operator's writes: %v, want a release of %s and one of %s", writes, old, after)
	}
	early(t, writes[0])
	c.held(t, old)
	c.recorded(t, old)
	allPassed(t, writes[1:])
	eventually(t, "Machine "+after+" gone", func(ctx context.Context) error { return c.gone(ctx, after) })

	// However often it tries, nothing is stored, so nobody is woken up by it.
	before, err := c.machine(t.Context(), old)
	must(t, err)
	for range 3 {
		writes, err := right.Round(t.Context())
		if err != nil || len(writes) != 1 {
			t.Fatalf("the operator's writes: %v, %v", writes, err)
		}
		early(t, writes[0])
	}
	if now, err := c.machine(t.Context(), old); err != nil || now.ResourceVersion != before.ResourceVersion {
		t.Errorf("a release that was put back is stored, as resource version %s after %s: %v", now.ResourceVersion, before.ResourceVersion, err)
	}

	// The operator cannot tell the member's Machine, so a person removes the member once there is another.
	c.replace(t, old, "next-empty")
	eventually(t, "next-empty to vote", func(ctx context.Context) error {
		_, err := right.Round(ctx) // in which it tries the release again
		return errors.Join(c.votes(ctx, "next-empty"), err)
	})
	eventually(t, "etcd to let the member go", func(ctx context.Context) error {
		members, err := c.members(ctx)
		if err == nil && members[old] != nil {
			_, err = c.etcd.MemberRemove(ctx, members[old].GetID())
		}
		return err
	})
	goOn(t, right, "Machine "+old+" gone", func(ctx context.Context) error { return errors.Join(c.gone(ctx, old), c.restless(ctx)) })
}

// learner is a deletion before the promotion. This operator releases a Machine
// whose learner is listed, as no branch of the real one does up to release-5.1 of June 2026. Holdfast lets the hook go, and the latch once
// that is on record. The learner stays in etcd, since the operator removes those of Machines with its hook alone, and a person removes it.
func (c *cluster) learner(t *testing.T) {
	c.watch(t, desired)
	o := c.custodian(t, unready{dial(t, c.Sandbox)}, custodian.Options{LearnersHoldNothing: true})
	c.replace(t, c.voters(t)[0], "spare")
	goOn(t, o, "a learner on spare", func(ctx context.Context) error {
		members, err := c.members(ctx)
		if err == nil && members["spare"] == nil {
			err = fmt.Errorf("the members are %v", members)
		}
		return err
	})
	c.remove(t, "spare")
	c.seen(t, "spare")
	writes, err := o.Round(t.Context())
	if err != nil || len(writes) != 1 {
		t.Fatalf("the operator's writes: %v, %v, want one release", writes, err)
	}
	if w := writes[0]; w.Err != nil || w.PutBack || len(w.Warnings) != 1 || !strings.Contains(w.Warnings[0], "which has no vote, so its hook may go") {
		t.Errorf("%s: want it to pass, with a Warning", w)
	}
	goOn(t, o, "Machine spare gone", func(ctx context.Context) error { return c.gone(ctx, "spare") })
	members, err := c.members(t.Context())
	must(t, err)
	if members["spare"] == nil {
		t.Fatalf("the members are %v, without the learner", members)
	}
	_, err = c.etcd.MemberRemove(t.Context(), members["spare"].GetID())
	must(t, err)
	goOn(t, o, "the control plane at rest", c.restless)
}

// unready is an etcd that finds no learner ready.
type unready struct{ custodian.Etcd }

func (unready) MemberPromote(context.Context, uint64) (*clientv3.MemberPromoteResponse, error) {
	return nil, rpctypes.ErrMemberLearnerNotReady
}

// noSecond is the operator's second wrong way, as far as it goes beside Holdfast: to a second removal
// it takes a second Machine that is being deleted.
func (c *cluster) noSecond(t *testing.T) {
	c.watch(t, desired)
	names := c.voters(t)
	old, other := names[0], names[1]
	members, err := c.members(t.Context())
	must(t, err)
	c.remove(t, old)
	c.refused(t, c.alice, other, quorum.RuleOneTooMany)
	c.refused(t, c.gitops, other, quorum.RuleOneTooMany)

	deaf := &lossy{Etcd: dial(t, c.Sandbox), arrives: true}
	wrong := c.custodian(t, deaf, custodian.Options{})
	c.replace(t, old, "next-lost")
	goOn(t, wrong, "Machine "+old+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, old), c.restless(ctx)) })
	if !slices.Equal(deaf.asked, []uint64{members[old].GetID()}) {
		t.Errorf("the operator removed members %x, want %s's alone, %x", deaf.asked, old, members[old].GetID())
	}

	// Nor is there a second Machine while the new voter does not answer.
	must(t, c.Power("next-lost", false))
	eventually(t, "Holdfast to see it", func(ctx context.Context) error {
		err := c.alice.Delete(ctx, named(other), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "("+string(quorum.RuleDegradedDelete)+")") {
			return fmt.Errorf("deleting Machine %s: %w", other, err)
		}
		return nil
	})
	c.refused(t, c.gitops, other, quorum.RuleDegradedDelete)
	must(t, c.Power("next-lost", true))
	eventually(t, "Holdfast to see that it is well", func(ctx context.Context) error { return c.alice.Delete(ctx, named(other), client.DryRunAll) })
}

// notBelieved is the operator's second wrong way where a person did lift one-too-many: it takes two
// removals for made that never came to etcd, and releases both Machines. The part after this one
// brings the control plane to rest again.
func (c *cluster) notBelieved(t *testing.T) {
	c.watch(t, desired)
	names := c.voters(t)
	old, other := names[0], names[1]
	c.remove(t, old)
	c.refused(t, c.alice, other, quorum.RuleOneTooMany)
	must(t, c.alice.Patch(t.Context(), named(other), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: both hosts go"}}}`))))
	c.remove(t, other)
	c.replace(t, old, "next-one")

	mute := &lossy{Etcd: dial(t, c.Sandbox)}
	wrong := c.custodian(t, mute, custodian.Options{DoneIfLost: true})
	eventually(t, "two removals that the operator believes in", func(ctx context.Context) error {
		_, err := wrong.Round(ctx)
		if len(mute.asked) < 2 {
			return errors.Join(errors.New("not yet"), err)
		}
		return nil
	})
	writes, err := wrong.Round(t.Context())
	if err != nil || len(writes) != 2 {
		t.Fatalf("the operator's writes: %v, %v, want two releases", writes, err)
	}
	for i, name := range []string{old, other} {
		if !writes[i].Release || writes[i].Machine != name {
			t.Errorf("%s: want a release of Machine %s", writes[i], name)
		}
		early(t, writes[i])
		c.held(t, name)
		c.recorded(t, name)
	}
	if voters := c.voters(t); len(voters) != desired+1 {
		t.Errorf("the voters are %q", voters)
	}
}

// unseen is what Holdfast cannot stop: with two Machines deleting by a person's will, the operator
// removes both members at once, and nobody asks Holdfast. It would then let both Machines go, for they host nothing.
func (c *cluster) unseen(t *testing.T, right *custodian.Operator) {
	c.watch(t, desired-1)
	var going []string
	var machines machinev1beta1.MachineList
	must(t, c.admin.List(t.Context(), &machines, client.InNamespace(sandbox.MachineNamespace)))
	for i := range machines.Items {
		if machines.Items[i].DeletionTimestamp != nil {
			going = append(going, machines.Items[i].Name)
		}
	}
	if len(going) != 2 || len(c.voters(t)) != desired+1 {
		t.Fatalf("Machines %q are being deleted, and the voters are %q", going, c.voters(t))
	}
	deaf := &lossy{Etcd: dial(t, c.Sandbox), arrives: true}
	wrong := c.custodian(t, deaf, custodian.Options{})
	// For a moment after that etcd may not answer, and unknown holds: the operator tries again.
	eventually(t, "both members removed", func(ctx context.Context) error {
		_, err := wrong.Round(ctx)
		members, unread := c.members(ctx)
		if n := len(members); n != desired-1 {
			return errors.Join(fmt.Errorf("%d members", n), unread, err)
		}
		return nil
	})
	if len(deaf.asked) != 2 {
		t.Errorf("removals of %x were asked for, want two", deaf.asked)
	}
	// etcd has lost the members of both, and is one voter short: their releases are put back until another votes.
	eventually(t, "a whole round of the operator", func(ctx context.Context) error {
		_, err := wrong.Round(ctx)
		return err
	})
	for _, name := range going {
		if m, err := c.machine(t.Context(), name); err != nil || m == nil || !protected(m) {
			t.Errorf("Machine %s is not held: %v", name, err)
		}
	}
	c.replace(t, "next-one", "next-two")
	eventually(t, "both gone, and the control plane at rest", func(ctx context.Context) error {
		_, err := right.Round(ctx)
		return errors.Join(c.gone(ctx, going[0]), c.gone(ctx, going[1]), c.restless(ctx), err)
	})
}

// lossy loses what belongs to removals: the request, or the answer if it arrives.
type lossy struct {
	custodian.Etcd
	arrives bool
	asked   []uint64 // the members
}

// MemberRemove asks until the member is out of etcd, if the request arrives: etcd refuses for the first
// five seconds after a member came, and a leader that is removed may not answer.
func (l *lossy) MemberRemove(ctx context.Context, id uint64) (*clientv3.MemberRemoveResponse, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	tick := time.NewTicker(glimpse)
	defer tick.Stop()
	for l.arrives {
		one, cancel := context.WithTimeout(asking, attempt)
		_, err := l.Etcd.MemberRemove(one, id)
		cancel()
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotFound) {
			break
		}
		select {
		case <-asking.Done():
			return nil, fmt.Errorf("etcd keeps member %x: %w", id, err)
		case <-tick.C:
		}
	}
	l.asked = append(l.asked, id)
	return nil, context.DeadlineExceeded
}

func protected(m *machinev1beta1.Machine) bool {
	seen := machineapi.Machine(m)
	return seen.Protected()
}

// broken is a Machine whose provider refuses it, so that it never gets an instance.
func broken(name string) *machinev1beta1.Machine {
	return &machinev1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: sandbox.MachineNamespace, Name: name,
			Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master", "machine.openshift.io/cluster-api-cluster": "sandbox"},
		},
		Spec: machinev1beta1.MachineSpec{ProviderSpec: machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"process.holdfast.dev/v1","kind":"ProcessMachineProviderSpec"}`),
		}}},
	}
}
