package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestAttempts: what fails is tried later and later and is known since when; what passes is tried at once, unless it lasts.
func TestAttempts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var a attempts
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	first := now
	hook := quorum.Failure{Reason: string(membership.ReasonActionFails), What: "hook", Machine: "master-0"}
	refused, busy := errors.New("refused"), errors.New("busy")

	tries := 0
	for ; now.Before(first.Add(time.Minute)); now = now.Add(requeueSoon) {
		if !a.pausing("hook", now) {
			tries++
			a.after(hook, now, refused, false)
		}
	}
	g.Expect(tries).To(And(BeNumerically(">", 8), BeNumerically("<", 14)))
	g.Expect(a.failures()).To(Equal([]quorum.Failure{{Reason: string(membership.ReasonActionFails), What: "hook", Machine: "master-0", Since: first, Why: "refused"}}))
	g.Expect(a.resume(now)).To(And(BeNumerically(">=", requeueSoon), BeNumerically("<=", requeueIdle)))
	a.after(hook, now, nil, false)
	g.Expect(a.failures()).To(BeEmpty())
	g.Expect(a.pausing("hook", now)).To(BeFalse())

	since := now
	for ; now.Before(since.Add(longDelay)); now = now.Add(requeueSoon) {
		a.after(hook, now, busy, true)
		g.Expect(a.failures()).To(BeEmpty())
		g.Expect(a.pausing("hook", now)).To(BeFalse())
	}
	a.after(hook, now, busy, true)
	g.Expect(a.failures()).To(HaveLen(1))
	g.Expect(a.failures()[0].Since).To(Equal(since))
	g.Expect(a.pausing("hook", now)).To(BeTrue())

	a.after(hook, now, errors.New("\x1b[2Jno\nmore\xff"+strings.Repeat("x", 1000)), false)
	g.Expect(a.failures()[0].Why).To(And(HavePrefix("[2Jno more?x"), HaveLen(504)))

	a.forgetExcept(func(what string) bool { return what != "hook" })
	g.Expect(a.failures()).To(BeEmpty())
}

// TestUndone: a change of a Machine that the API server takes, and a webhook of somebody else's undoes, is no success that is repeated at
// once: it is tried later and later, and told.
func TestUndone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...))
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api, err := client.NewWithWatch(env.Config, client.Options{Scheme: scheme})
	must(t, err)
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: where}}))
	machine := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: where, Name: "master-0", Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master"}}}
	must(t, api.Create(t.Context(), machine))
	machine.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}}
	machine.Status.Phase = new("Running")
	must(t, api.Status().Update(t.Context(), machine))

	var patches atomic.Int64
	strips := interceptor.NewClient(api, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			m, is := o.(*machinev1beta1.Machine)
			if !is {
				return c.Patch(ctx, o, p, opts...)
			}
			patches.Add(1)
			if err := c.Patch(ctx, m, p, opts...); err != nil {
				return err
			}
			return c.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`)))
		},
	})
	meters, registry := newMetrics(t)
	ring := &fixedRing{[]quorum.Member{{ID: 2, Name: "master-0", PeerURLs: []string{"https://10.0.0.2:2380"}, ClientURLs: []string{"https://10.0.0.2:2379"}, Healthy: true}}}
	r := &Reconciler{
		Client: strips, Etcd: ring, Log: logr.Discard(), Reports: Reports{Events: events.NewFakeRecorder(1000), Metrics: meters},
		Observer: &observe.Observer{API: api, Etcd: ring, Namespace: where, Mode: quorum.ModeFull, Desired: 1, Limits: quorum.DefaultLimits(), Clock: clock.RealClock{}},
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, api) }()
	defer func() { stop(); <-ended }()
	g.Eventually(func() map[string]float64 { return scrape(t, registry) }, "2m", "50ms").Should(HaveKey("condition{ActionFails}"))
	g.Expect(patches.Load()).To(BeNumerically("<", 20), "patches that were undone, in about ten seconds")
}

// TestRefused: only that etcd refuses to add a member, for voters that it has lost, makes the next plans make way.
func TestRefused(t *testing.T) {
	add, remove := membership.Action{Change: membership.AddLearner{}}, membership.Action{Change: membership.RemoveVoter{}}
	for _, c := range []struct {
		a    membership.Action
		err  error
		want bool
	}{
		{add, fmt.Errorf("add: %w", rpctypes.ErrUnhealthy), true},
		{add, rpctypes.ErrPeerURLExist, false},
		{remove, rpctypes.ErrUnhealthy, false},
	} {
		if got := actionFailure(c.a, c.err); got.Refused != c.want {
			t.Errorf("%s, %v: refused %t", c.a.Describe(), c.err, got.Refused)
		}
	}
}
