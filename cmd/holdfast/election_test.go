package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/holdfast-dev/holdfast/test/apiserver"
)

// cut is a connection to an API server that can be cut.
type cut struct {
	http.RoundTripper
	off atomic.Bool
}

func (c *cut) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.off.Load() {
		return nil, errors.New("the test has cut the connection")
	}
	return c.RoundTripper.RoundTrip(r)
}

// TestTerms: a replica that loses the API server leads no longer before another does, stands again, and gives the
// Lease up when it is told to stop, after its work has ended.
func TestTerms(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := apiserver.Start(t)
	admin, err := client.New(env.Config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "holdfast-system"}})).To(Succeed())

	var leading atomic.Int32
	var overlap atomic.Bool
	type replica struct {
		connection *cut
		leads      atomic.Bool
		began      atomic.Int32
		stop       func()
	}
	times := electionTimes{lease: 8 * time.Second, renew: 5 * time.Second, retry: 2 * time.Second} // the last is also how long giving up may take, on a computer of any speed
	replicas := [2]*replica{}
	for i := range replicas {
		r := &replica{connection: &cut{}}
		replicas[i] = r
		config := rest.CopyConfig(env.Config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			r.connection.RoundTripper = next
			return r.connection
		})
		mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
		g.Expect(err).NotTo(HaveOccurred())
		e := &terms{times: times, log: logr.Discard(), lead: func(ctx context.Context) error {
			if leading.Add(1) > 1 {
				overlap.Store(true)
			}
			r.began.Add(1)
			r.leads.Store(true)
			<-ctx.Done()
			r.leads.Store(false)
			leading.Add(-1)
			return nil
		}}
		e.lock, err = newLease(config, "holdfast-system", times, mgr, logr.Discard())
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		r.stop = func() { cancel(); g.Eventually(ended, "2m").Should(Receive(BeNil())) }
		go func() { ended <- e.Start(ctx) }()
		if i == 0 {
			g.Eventually(r.leads.Load, "2m", "10ms").Should(BeTrue())
		}
	}
	one, two := replicas[0], replicas[1]

	// Its connection is cut: its work ends, and only then does the other lead.
	one.connection.off.Store(true)
	g.Eventually(one.leads.Load, "2m", "10ms").Should(BeFalse())
	g.Expect(two.leads.Load()).To(BeFalse(), "before the Lease has run out")
	g.Eventually(two.leads.Load, "2m", "10ms").Should(BeTrue())
	one.connection.off.Store(false)

	// Who is told to stop gives the Lease up: the other, which stands again, need not wait for its end.
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: "holdfast-system", Name: "holdfast"}
	g.Expect(admin.Get(t.Context(), key, lease)).To(Succeed())
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	g.Expect(holder).NotTo(BeEmpty())
	two.stop()
	g.Expect(two.leads.Load()).To(BeFalse())
	g.Expect(admin.Get(t.Context(), key, lease)).To(Succeed())
	g.Expect(ptr.Deref(lease.Spec.HolderIdentity, "")).NotTo(Equal(holder), "the Lease is not given up")
	g.Eventually(one.leads.Load, "2m", "10ms").Should(BeTrue())
	g.Expect(one.began.Load()).To(BeNumerically("==", 2))

	// An outage that ends before anybody else could lead: it begins anew all the same.
	one.connection.off.Store(true)
	g.Eventually(one.leads.Load, "2m", "10ms").Should(BeFalse())
	one.connection.off.Store(false)
	g.Eventually(one.began.Load, "2m", "10ms").Should(BeNumerically("==", 3))

	one.stop()
	g.Expect(one.leads.Load()).To(BeFalse())
	g.Expect(overlap.Load()).To(BeFalse(), "two led at once")
}

// TestForeignLease: what a stranger writes into the Lease costs Holdfast its leader for one lease duration, not for
// as long as the stranger says.
func TestForeignLease(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := apiserver.Start(t)
	admin, err := client.New(env.Config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "holdfast-system"}})).To(Succeed())
	mgr, err := ctrl.NewManager(env.Config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	times := electionTimes{lease: 5 * time.Second, renew: 3 * time.Second, retry: 100 * time.Millisecond}
	lock, err := newLease(env.Config, "holdfast-system", times, mgr, logr.Discard())
	g.Expect(err).NotTo(HaveOccurred())
	var leads atomic.Bool
	e := &terms{times: times, log: logr.Discard(), lock: lock, lead: func(ctx context.Context) error {
		leads.Store(true)
		<-ctx.Done()
		leads.Store(false)
		return nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Start(ctx) }()
	t.Cleanup(func() { stop(); <-ended })

	for name, edit := range map[string]string{
		"for 68 years":        `{"spec":{"holderIdentity":"stranger","leaseDurationSeconds":2147483647}}`,
		"renewed in a future": `{"spec":{"holderIdentity":"stranger","leaseDurationSeconds":2147483647,"renewTime":"2999-01-01T00:00:00.000000Z"}}`,
		"in no time":          `{"spec":{"holderIdentity":"stranger","leaseDurationSeconds":1}}`,
	} {
		g.Eventually(leads.Load, "2m", "10ms").Should(BeTrue(), name)
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: "holdfast"}}
		g.Expect(admin.Patch(t.Context(), lease, client.RawPatch(types.MergePatchType, []byte(edit)))).To(Succeed())
		g.Eventually(leads.Load, "2m", "10ms").Should(BeFalse(), name)
		g.Expect(lock.ledAgo()).To(BeNumerically("<", times.lease), name)
		g.Eventually(leads.Load, "2m", "10ms").Should(BeTrue(), name)
	}

	// One who keeps renewing it leads, as far as can be seen.
	renew, end := context.WithCancel(t.Context())
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		for n := 0; renew.Err() == nil; n++ {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: "holdfast"}}
			_ = admin.Patch(renew, lease, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"holderIdentity":"stranger","leaseTransitions":%d}}`, n)))
		}
	}()
	g.Eventually(leads.Load, "2m", "10ms").Should(BeFalse())
	g.Consistently(leads.Load, 2*times.lease, "10ms").Should(BeFalse())
	g.Expect(lock.ledAgo()).To(BeNumerically("<", times.lease))
	end()
	<-renewed
	g.Eventually(leads.Load, "2m", "10ms").Should(BeTrue())
}
