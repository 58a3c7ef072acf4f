package registrations

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/test/pki"
)

const (
	fails   = admissionregistrationv1.Fail
	ignores = admissionregistrationv1.Ignore
)

var errUnreached = errors.New("not reached")

func unreached(context.Context) error { return errUnreached }
func reached(context.Context) error   { return nil }

// validating reads the validating webhook configuration.
func (c *cluster) validating(t *testing.T) *admissionregistrationv1.ValidatingWebhookConfiguration {
	t.Helper()
	var config admissionregistrationv1.ValidatingWebhookConfiguration
	must(t, c.api.Get(t.Context(), client.ObjectKey{Name: Name}, &config))
	return &config
}

// fail checks the failure policies of what must not pass unseen.
func (c *cluster) fail(t *testing.T, when string, want ...admissionregistrationv1.FailurePolicyType) {
	t.Helper()
	if diff := cmp.Diff(want, failing(t, c)); diff != "" {
		t.Errorf("%s: %s", when, diff)
	}
}

// reader is a client of a user that may only read the registrations.
func (c *cluster) reader(t *testing.T) client.WithWatch {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reads"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reads"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reads"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "reader"}},
	}
	must(t, c.api.Create(t.Context(), role))
	must(t, c.api.Create(t.Context(), binding))
	config := rest.CopyConfig(c.config)
	config.Impersonate.UserName = "reader"
	api, err := client.NewWithWatch(config, client.Options{Scheme: c.api.Scheme()})
	must(t, err)
	eventually(t, func() error {
		return api.List(t.Context(), &admissionregistrationv1.ValidatingWebhookConfigurationList{})
	}).Should(gomega.Succeed())
	return api
}

// testUnwritable: what could not be written is not told of as if it were there.
func testUnwritable(t *testing.T, c *cluster) {
	trust := trusted(t)
	k := c.keeper(t, nobodyURL, trust)
	k.API = c.reader(t)
	present := func(labels ...string) float64 { return k.value(t, "holdfast_registration_present", labels...) }
	enforced := func(name string) float64 { return k.value(t, "holdfast_registration_enforced", name) }
	k.round(t.Context())
	if n := present(); n != 0 {
		t.Errorf("%v registrations are told of as there, and none could be made", n)
	}
	writer := c.keeper(t, nobodyURL, trust)
	writer.Writing.Proof = reached
	writer.round(t.Context())
	k.round(t.Context())
	if present() != 13 || enforced(ClosedWebhook) != 1 {
		t.Errorf("%v registrations are told of, want all thirteen, enforced: %v", present(), enforced(ClosedWebhook))
	}
	config := c.validating(t)
	config.Webhooks = slices.DeleteFunc(config.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == ClosedWebhook })
	for i := range config.Webhooks {
		config.Webhooks[i].FailurePolicy = new(ignores)
	}
	must(t, c.api.Update(t.Context(), config))
	must(t, c.api.Delete(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: MachinePolicy}}))
	must(t, c.api.Delete(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: Name}}))
	for range 2 {
		k.round(t.Context())
		if present() != 7 || present("webhook", HomeWebhook) != 0 || present("webhook", ClosedWebhook) != 0 || present("webhook", RepairWebhook) != 0 || present("policy", MachinePolicy) != 0 {
			t.Errorf("%v registrations are reported as correct, want seven: the rest of the edited configuration is not, either", present())
		}
		if enforced(ClosedWebhook) != 0 || enforced(HomeWebhook) != 0 {
			t.Error("a webhook that is gone, or passed by, is told of as enforced")
		}
	}
	if n := k.value(t, "holdfast_registration_restored_total"); n != 0 {
		t.Errorf("%v are told of as put back", n)
	}
}

// testMoved: that the webhooks fail closed was shown where they were, and with a CA.
func testMoved(t *testing.T, c *cluster) {
	trust := trusted(t)
	elect := func(url string, proof func(context.Context) error) {
		k := c.keeper(t, url, trust)
		k.Writing.Proof = proof
		k.round(t.Context())
		k.round(t.Context())
	}
	elect(nobodyURL, reached)
	c.fail(t, "reached", fails, fails)
	elect(nobodyURL+"/elsewhere/", unreached)
	c.fail(t, "under another path", fails, fails)
	elect("https://127.0.0.1:2", unreached)
	c.fail(t, "moved", ignores, ignores)
	elect("https://127.0.0.1:2", reached)
	c.fail(t, "reached there", fails, fails)
	config := c.validating(t)
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = nil
	}
	must(t, c.api.Update(t.Context(), config))
	elect("https://127.0.0.1:2", unreached)
	c.fail(t, "without a caBundle", ignores, ignores)

	port := int32(443)
	service := func(s admissionregistrationv1.ServiceReference) string {
		return place(&admissionregistrationv1.WebhookClientConfig{Service: &s})
	}
	if a, b := service(admissionregistrationv1.ServiceReference{Namespace: "a", Name: "b"}), service(admissionregistrationv1.ServiceReference{Namespace: "a", Name: "b", Port: &port, Path: new("/c")}); a != b {
		t.Errorf("%s is not %s", a, b)
	}
	if a, b := service(admissionregistrationv1.ServiceReference{Namespace: "a", Name: "b"}), service(admissionregistrationv1.ServiceReference{Namespace: "b", Name: "b"}); a == b {
		t.Errorf("%s is both", a)
	}
}

// testScaleIn: in full mode what lowers the control plane's number is refused, too, while the webhooks are down. An earlier
// version let it pass.
func testScaleIn(t *testing.T, c *cluster) {
	want := map[string]bool{ClosedWebhook: true, HomeWebhook: true, ScaleWebhook: true}
	for _, when := range []string{"at first", "after an earlier version"} {
		k := c.keeper(t, nobodyURL, trusted(t))
		k.Writing.Options.EtcdNamespace, k.Writing.Proof = "openshift-etcd", reached
		k.round(t.Context())
		config := c.validating(t)
		got := map[string]bool{}
		for i := range config.Webhooks {
			w := &config.Webhooks[i]
			if *w.FailurePolicy == fails {
				got[w.Name] = true
			}
			if w.Name == ScaleWebhook {
				w.FailurePolicy = new(ignores)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
		must(t, c.api.Update(t.Context(), config))
	}
}

// testFullModeReported: the metrics have the webhooks of full mode, too, whether they may fail closed yet or not.
func testFullModeReported(t *testing.T, c *cluster) {
	k := c.keeper(t, nobodyURL, trusted(t))
	k.Writing.Options.EtcdNamespace, k.Writing.Proof = "openshift-etcd", unreached
	enforced := func(when string, closed, home, scale float64) {
		t.Helper()
		k.round(t.Context())
		want := map[string]float64{ClosedWebhook: closed, HomeWebhook: home, ScaleWebhook: scale}
		if diff := cmp.Diff(want, k.byName(t, "holdfast_registration_enforced")); diff != "" {
			t.Errorf("%s: enforced: %s", when, diff)
		}
	}
	enforced("not reached", 0, 0, 0)
	k.Writing.Proof = reached
	enforced("reached", 1, 1, 1)
	if present := k.byName(t, "holdfast_registration_present"); present[SetWebhook] != 1 || present[ScaleWebhook] != 1 {
		t.Errorf("present: %v", present)
	}
	k.API = interceptor.NewClient(c.api, interceptor.Funcs{Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
		return errUnreached
	}})
	config := c.validating(t)
	config.Webhooks = slices.DeleteFunc(config.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == ScaleWebhook })
	must(t, c.api.Update(t.Context(), config))
	enforced("removed, and not put back", 1, 1, 0)
	if present := k.byName(t, "holdfast_registration_present"); present[ScaleWebhook] != 0 {
		t.Errorf("removed, it is present: %v", present)
	}
}

// testOtherInjector: one fills in caBundle, and who did so before is not asked any more.
func testOtherInjector(t *testing.T, c *cluster) {
	certManager := map[string]string{"cert-manager.io/inject-ca-from": "a/b"}
	openshift := map[string]string{"service.beta.openshift.io/inject-cabundle": "true"}
	elect := func(trust *Trust, annotations, want map[string]string) {
		t.Helper()
		k := c.keeper(t, nobodyURL, trust)
		k.Writing.Annotations = annotations
		for range 2 {
			k.round(t.Context())
		}
		for _, o := range k.objects() {
			c.get(t, o)
			want := want
			if o.kind != "MutatingWebhookConfiguration" && o.kind != "ValidatingWebhookConfiguration" {
				want = nil // caBundle is in webhook configurations alone
			}
			if diff := cmp.Diff(want, o.live.GetAnnotations()); diff != "" {
				t.Errorf("%s: %s", o.key(), diff)
			}
		}
		if n := k.value(t, "holdfast_registration_restored_total"); n != 0 {
			t.Errorf("%v are told of as put back", n)
		}
	}
	elect(nil, certManager, certManager)
	elect(nil, openshift, openshift)
	elect(trusted(t), nil, nil)
	elect(nil, certManager, certManager)
}

// testEntryRemoved: what comes back without a caBundle is not to refuse anything until it is filled in.
func testEntryRemoved(t *testing.T, c *cluster) {
	k := c.keeper(t, nobodyURL, nil)
	k.Writing.Annotations = map[string]string{"service.beta.openshift.io/inject-cabundle": "true"}
	ca, err := pki.NewAuthority("injector")
	must(t, err)
	inject := func() {
		config := c.validating(t)
		for i := range config.Webhooks {
			config.Webhooks[i].ClientConfig.CABundle = ca.CertPEM()
		}
		must(t, c.api.Update(t.Context(), config))
	}
	k.Writing.Proof = reached
	k.round(t.Context())
	k.round(t.Context())
	c.fail(t, "not injected", ignores, ignores)
	inject()
	k.round(t.Context())
	c.fail(t, "injected", fails, fails)
	config := c.validating(t)
	config.Webhooks = slices.DeleteFunc(config.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == ClosedWebhook })
	must(t, c.api.Update(t.Context(), config))
	for range 2 {
		k.round(t.Context())
		c.fail(t, "put back", ignores, fails)
	}
	if n := k.value(t, "holdfast_registration_restored_total"); n != 1 {
		t.Errorf("%v are told of as put back, want 1", n)
	}
	inject()
	k.round(t.Context())
	c.fail(t, "injected again", fails, fails)
	if n := k.value(t, "holdfast_registration_restored_total"); n != 1 {
		t.Errorf("%v are told of as put back, want 1", n)
	}
}

// testReached: once a minute it is looked whether the webhooks are still reached, which lowers nothing.
func testReached(t *testing.T, c *cluster) {
	k := c.keeper(t, nobodyURL, trusted(t))
	says := func(when string, proof func(context.Context) error, want ...float64) {
		t.Helper()
		k.Writing.Proof, k.calls.last = proof, time.Now().Add(-askAgain)
		k.round(t.Context())
		families, err := k.meters.Gather()
		must(t, err)
		var got []float64
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "holdfast_registration_reached" {
					got = append(got, m.GetGauge().GetValue())
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	says("no Machine", func(context.Context) error { return errNoMachine })
	says("not yet", unreached, 0)
	says("then", reached, 1)
	asked := false
	k.Writing.Proof = func(context.Context) error { asked = true; return nil }
	k.round(t.Context())
	if asked {
		t.Error("it is looked again within the minute")
	}
	says("not any more", unreached, 0)
	c.fail(t, "not any more", fails, fails)
	says("no Machine any more", func(context.Context) error { return errNoMachine })
	c.fail(t, "no Machine any more", fails, fails)
}

// lastLook is an error that is looked at before its metric is set.
type lastLook struct{ looked func() }

func (lastLook) Error() string { return "not reached" }
func (e lastLook) Is(error) bool {
	e.looked()
	return false
}

// TestReachedByOneAlone: a replica that is not elected any more does not say whether the webhooks are reached, also if it loses the
// election while it sets the metric. The alert takes the greatest value of all replicas.
func TestReachedByOneAlone(t *testing.T) {
	meters := prometheus.NewPedanticRegistry()
	k := &Registrar{Writing: &Writing{Options: Options{MachineNamespace: namespace, Identities: admission.DefaultIdentities(holdfast)}}, Metrics: NewMetrics(meters), Log: logr.Discard()}
	k.begin()
	k.kept[validatingKey].confirmed.Store(true)
	ctx, lose := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- k.Lead(ctx) }()
	eventually(t, k.elected.Load).Should(gomega.BeTrue())
	k.Writing.Proof = func(context.Context) error {
		return lastLook{func() {
			lose()
			if k.calls.mu.TryLock() { // nothing keeps Lead from ending now
				k.calls.mu.Unlock()
				must(t, <-left)
				close(left)
			}
		}}
	}
	k.prove(t.Context())
	must(t, <-left)
	if got := (keeper{k, nil, meters}).byName(t, "holdfast_registration_reached"); len(got) > 0 {
		t.Errorf("it is not elected and says %v", got)
	}
}

// testFollow: the beginning of a watch is told of, also where there is nothing; no watch is said once.
func testFollow(t *testing.T, c *cluster) {
	var lines, changes, watches atomic.Int32
	log := funcr.New(func(string, string) { lines.Add(1) }, funcr.Options{})
	start := func(api client.WithWatch, log logr.Logger) {
		run(t, func(ctx context.Context) error {
			observe.Follow(logr.NewContext(ctx, log), api, admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfigurationList"),
				func() { changes.Add(1) }, client.MatchingFields{"metadata.name": Name})
			return nil
		})
	}
	start(c.api, log)
	eventually(t, changes.Load).Should(gomega.Equal(int32(1)))
	if n := lines.Load(); n != 0 {
		t.Errorf("%d lines about a watch that works", n)
	}
	start(interceptor.NewClient(c.api, interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			watches.Add(1)
			return nil, errUnreached
		},
	}), log)
	eventually(t, watches.Load).Should(gomega.BeNumerically(">=", 2))
	if n := lines.Load(); n != 1 {
		t.Errorf("%d lines about %d watches that failed alike, want one", n, watches.Load())
	}
}
