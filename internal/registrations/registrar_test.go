package registrations

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"golang.org/x/time/rate"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/test/pki"
)

// TestKeeping has the registrations kept in a real API server.
func TestKeeping(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for name, test := range map[string]func(*testing.T, *cluster){
		"kept": testKept, "at rest": testRest, "injector": testInjector, "proof": testProof, "only looking": testLooking, "new CA": testNewCA,
		"unwritable": testUnwritable, "moved": testMoved, "another injector": testOtherInjector, "entry removed": testEntryRemoved, "reached": testReached, "followed": testFollow,
		"standby": testStandby, "scale-in": testScaleIn, "full mode is reported": testFullModeReported, "versions": testVersions, "apart": testApart,
	} {
		t.Run(name, func(t *testing.T) {
			c.clear(t)
			test(t, c)
		})
	}
}

// trusted is a trust in an authority of its own.
func trusted(t *testing.T) *Trust {
	t.Helper()
	ca, err := pki.NewAuthority("webhooks")
	must(t, err)
	trust := NewTrust(clock.RealClock{})
	must(t, trust.Set(ca.CertPEM()))
	return trust
}

// testKept: what is deleted or edited comes back, while it runs, and is told of.
func testKept(t *testing.T, c *cluster) {
	k := c.keeper(t, nobodyURL, trusted(t))
	k.again = time.Hour // the watch alone
	run(t, k.Start)
	want := map[string]any{}
	for _, o := range k.objects() {
		eventually(t, func() bool { return c.get(t, o) }).Should(gomega.BeTrue(), o.key())
		want[o.key()] = k.Writing.contents(o.live)
	}
	for _, o := range k.objects() {
		restored := func() float64 { return k.value(t, "holdfast_registration_restored_total", o.kind, o.name) }
		right := func() string {
			if !c.get(t, o) {
				return "it is gone"
			}
			return cmp.Diff(want[o.key()], k.Writing.contents(o.live))
		}
		o.live.SetName(o.name)
		must(t, c.api.Delete(t.Context(), o.live))
		eventually(t, right).Should(gomega.BeEmpty(), o.key())
		eventually(t, restored).Should(gomega.Equal(1.0), o.key())

		// Other people's labels and annotations are theirs.
		patch := client.MergeFrom(o.live.DeepCopyObject().(client.Object))
		o.live.SetAnnotations(map[string]string{"somebody": "else"})
		o.live.SetLabels(map[string]string{"some": "label"})
		must(t, c.api.Patch(t.Context(), o.live, patch))
		c.narrow(t, &o)
		eventually(t, right).Should(gomega.BeEmpty(), o.key())
		eventually(t, restored).Should(gomega.Equal(2.0), o.key())
		if o.live.GetAnnotations()["somebody"] != "else" || o.live.GetLabels()["some"] != "label" {
			t.Errorf("%s: what others put on it is gone: %v %v", o.key(), o.live.GetAnnotations(), o.live.GetLabels())
		}
	}
	told := map[string]int{}
	for len(k.events.Events) > 0 {
		told[strings.Join(strings.Fields(<-k.events.Events)[:2], " ")]++
	}
	if diff := cmp.Diff(map[string]int{"Normal RegistrationCreated": 10, "Warning RegistrationRestored": 20}, told); diff != "" {
		t.Error(diff)
	}
}

// testRest: nothing is written where nothing differs, whatever defaults the API server fills in.
func testRest(t *testing.T, c *cluster) {
	k := c.keeper(t, nobodyURL, trusted(t))
	versions := func() map[string]string {
		out := map[string]string{}
		for _, o := range k.objects() {
			if c.get(t, o) {
				out[o.key()] = o.live.GetResourceVersion()
			}
		}
		return out
	}
	k.round(t.Context())
	before := versions()
	if len(before) != 10 {
		t.Fatalf("there are %v, want all ten", before)
	}
	other := c.keeper(t, nobodyURL, k.Writing.Trust) // elected after it
	for range 3 {
		k.round(t.Context())
		other.round(t.Context())
	}
	if diff := cmp.Diff(before, versions()); diff != "" {
		t.Error(diff)
	}
	// The comparison itself holds, and not only the memory of what was written.
	for _, o := range other.objects() {
		c.get(t, o)
		other.mergeLive(&o, true)
		if diff := cmp.Diff(other.Writing.contents(o.want), other.Writing.contents(o.live)); diff != "" {
			t.Errorf("%s is stored otherwise than it is wanted:\n%s", o.key(), diff)
		}
	}
	if n := other.value(t, "holdfast_registration_restored_total") + k.value(t, "holdfast_registration_restored_total"); n != 0 {
		t.Errorf("%v registrations were put back", n)
	}
}

// testInjector: caBundle is the injector's, and the annotations that ask for it are kept.
func testInjector(t *testing.T, c *cluster) {
	k := c.keeper(t, nobodyURL, nil)
	k.Writing.Annotations = map[string]string{"service.beta.openshift.io/inject-cabundle": "true"}
	k.round(t.Context())
	var config admissionregistrationv1.ValidatingWebhookConfiguration
	get := func() { must(t, c.api.Get(t.Context(), client.ObjectKey{Name: Name}, &config)) }
	if get(); config.Annotations["service.beta.openshift.io/inject-cabundle"] != "true" || config.Webhooks[0].ClientConfig.CABundle != nil {
		t.Fatalf("made with annotations %v and caBundle %q", config.Annotations, config.Webhooks[0].ClientConfig.CABundle)
	}
	bundle, err := pki.NewAuthority("injector")
	must(t, err)
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = bundle.CertPEM()
	}
	must(t, c.api.Update(t.Context(), &config))
	injected := config.ResourceVersion
	k.round(t.Context())
	if get(); config.ResourceVersion != injected {
		t.Error("it was written after the injector had filled it in")
	}
	config.Annotations = map[string]string{"somebody": "else"}
	config.Webhooks[1].Rules[0].Operations = config.Webhooks[1].Rules[0].Operations[:1]
	must(t, c.api.Update(t.Context(), &config))
	k.round(t.Context())
	get()
	if config.Annotations["service.beta.openshift.io/inject-cabundle"] != "true" || config.Annotations["somebody"] != "else" || len(config.Webhooks[1].Rules[0].Operations) != 3 {
		t.Errorf("not put back as it was: %v, %v", config.Annotations, config.Webhooks[1].Rules)
	}
	for _, w := range config.Webhooks {
		if string(w.ClientConfig.CABundle) != string(bundle.CertPEM()) {
			t.Errorf("the caBundle of %s is not the injector's any more", w.Name)
		}
	}
	// Deleted, it is made anew without a caBundle: nothing may be refused for that.
	k.Writing.Proof = func(context.Context) error { return nil }
	k.round(t.Context())
	if got := failing(t, c); got[0] != admissionregistrationv1.Fail {
		t.Errorf("proven, it is %s", got)
	}
	k.Writing.Proof = func(context.Context) error { return errNoMachine }
	must(t, c.api.Delete(t.Context(), &config))
	k.round(t.Context())
	if got := failing(t, c); got[0] != admissionregistrationv1.Ignore || got[1] != admissionregistrationv1.Ignore {
		t.Errorf("made anew without a caBundle it is %s", got)
	}
	if n := k.value(t, "holdfast_registration_restored_total", "ValidatingWebhookConfiguration"); n != 2 {
		t.Errorf("%v were put back, want 2", n)
	}
}

// failing are the failure policies of what must not pass unseen.
func failing(t *testing.T, c *cluster) (out []admissionregistrationv1.FailurePolicyType) {
	t.Helper()
	var config admissionregistrationv1.ValidatingWebhookConfiguration
	must(t, client.IgnoreNotFound(c.api.Get(t.Context(), client.ObjectKey{Name: Name}, &config)))
	for _, w := range config.Webhooks {
		if w.Name == ClosedWebhook || w.Name == HomeWebhook {
			out = append(out, *w.FailurePolicy)
		}
	}
	return out
}

// testProof: what must not pass without the webhooks is refused while they are down only after they were
// reached through the API server, and from then on.
func testProof(t *testing.T, c *cluster) {
	open := []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Ignore, admissionregistrationv1.Ignore}
	closed := []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Fail}
	dir := t.TempDir()
	ca := authorityFiles(t, dir)
	trust := NewTrust(clock.RealClock{})
	must(t, trust.Set(ca.CertPEM()))
	_, source := served(t, dir, nil)
	at := serve(t, "127.0.0.1:0", source)

	k := c.keeper(t, nobodyURL, trust)
	k.round(t.Context())
	if err := k.Writing.Proof(t.Context()); !errors.Is(err, errNoMachine) {
		t.Errorf("without a Machine: %v", err)
	}
	c.machine(t)
	for range 5 {
		k.round(t.Context())
		if diff := cmp.Diff(open, failing(t, c)); diff != "" {
			t.Fatal(diff)
		}
	}
	if k.value(t, "holdfast_registration_enforced") != 0 {
		t.Error("it is told that they are enforced")
	}

	// Another version finds the webhooks where they are.
	k = c.keeper(t, "https://"+at, trust)
	run(t, k.Start)
	eventually(t, func() []admissionregistrationv1.FailurePolicyType { return failing(t, c) }).Should(gomega.Equal(closed))
	eventually(t, func() float64 { return k.value(t, "holdfast_registration_enforced") }).Should(gomega.Equal(2.0))
	if n := k.value(t, "holdfast_registration_restored_total"); n != 0 {
		t.Errorf("it is told that %v registrations were put back", n)
	}
	lower := []byte(`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`)
	must(t, c.api.Patch(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: Name}}, client.RawPatch(types.JSONPatchType, lower)))
	eventually(t, func() []admissionregistrationv1.FailurePolicyType { return failing(t, c) }).Should(gomega.Equal(closed))
	eventually(t, func() float64 { return k.value(t, "holdfast_registration_restored_total") }).Should(gomega.Equal(1.0))

	// One that is elected now and reaches nothing lowers nothing.
	next := c.keeper(t, "https://"+at, trust)
	next.Writing.Proof = func(context.Context) error { return errNoMachine }
	next.round(t.Context())
	if diff := cmp.Diff(closed, failing(t, c)); diff != "" {
		t.Error(diff)
	}
	// An answer that anybody may cause is no proof.
	refusing := interceptor.NewClient(c.api, interceptor.Funcs{Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: "machine.openshift.io", Resource: "machines"}, o.GetName(), errors.New("by somebody"))
	}})
	if err := SelfCall(refusing, namespace)(t.Context()); err == nil {
		t.Error("a refusal by another webhook counts as an answer")
	}
}

// testLooking: without being told where the webhooks are it writes nothing, and tells what is there.
func testLooking(t *testing.T, c *cluster) {
	c.keeper(t, nobodyURL, trusted(t)).round(t.Context())
	k := c.keeper(t, "", nil)
	k.Writing = nil
	missing := func() (out []string) {
		t.Helper()
		k.round(t.Context())
		families, err := k.meters.Gather()
		must(t, err)
		n := 0
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() != "holdfast_registration_present" {
					continue
				}
				if n++; m.GetGauge().GetValue() == 0 {
					out = append(out, m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue())
				}
			}
		}
		if n != 13 {
			t.Errorf("%d registrations are told of, want 13", n)
		}
		slices.Sort(out)
		return out
	}
	if got := missing(); len(got) > 0 {
		t.Errorf("missing: %q", got)
	}
	// What may not be read any more is not known to be there.
	api := k.API
	k.API = interceptor.NewClient(c.api, interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "webhooks"}, key.Name, errors.New("no role"))
	}})
	if got := missing(); len(got) != 13 {
		t.Errorf("missing while none may be read: %q", got)
	}
	k.API = api
	for _, o := range k.objects() {
		c.get(t, o)
		switch config := o.live.(type) {
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			config.Webhooks = slices.DeleteFunc(config.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == OpenWebhook })
			must(t, c.api.Update(t.Context(), config))
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			must(t, c.api.Delete(t.Context(), config))
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			if config.Name == StatusPolicy {
				must(t, c.api.Delete(t.Context(), config))
			}
		}
	}
	if diff := cmp.Diff([]string{"binding " + StatusPolicy, "webhook " + OpenWebhook, "webhook " + RepairWebhook}, missing()); diff != "" {
		t.Error(diff)
	}
}

// testNewCA: a new CA comes beside the one before, which goes when its time is over, whoever is elected.
func testNewCA(t *testing.T, c *cluster) {
	authorities := make([][]byte, 2)
	for i := range authorities {
		ca, err := pki.NewAuthority(caName)
		must(t, err)
		authorities[i] = ca.CertPEM()
	}
	later := &testClock{}
	later.set(time.Now())
	trust := NewTrust(later)
	must(t, trust.Set(authorities[0]))
	k := c.keeper(t, nobodyURL, trust)
	must(t, client.IgnoreNotFound(c.api.Delete(t.Context(), sharedSecret())))
	k.Writing.Shared = c.shared(trust, later)
	held := func() []byte {
		t.Helper()
		var config admissionregistrationv1.MutatingWebhookConfiguration
		must(t, c.api.Get(t.Context(), client.ObjectKey{Name: Name}, &config))
		return config.Webhooks[0].ClientConfig.CABundle
	}
	both := slices.Concat(authorities[1], authorities[0])
	k.round(t.Context())
	if diff := cmp.Diff(authorities[0], held()); diff != "" {
		t.Error(diff)
	}
	must(t, trust.Set(authorities[1]))
	k.round(t.Context())
	if diff := cmp.Diff(both, held()); diff != "" {
		t.Error(diff)
	}
	if n := k.value(t, "holdfast_registration_restored_total"); n != 0 {
		t.Error("a new CA counts as a change by somebody else")
	}
	fresh := NewTrust(later) // a replica that has not seen the old one
	must(t, fresh.Set(authorities[1]))
	next := c.keeper(t, nobodyURL, fresh)
	next.Writing.Shared = c.shared(fresh, later)
	next.round(t.Context())
	if diff := cmp.Diff(both, held()); diff != "" {
		t.Error(diff)
	}
	later.set(time.Now().Add(overlap + time.Hour))
	next.round(t.Context())
	if diff := cmp.Diff(authorities[1], held()); diff != "" {
		t.Error(diff)
	}
}

// standby is a replica that is not elected, of a version that wants another thing of each object if other is set.
func (c *cluster) standby(t *testing.T, trust *Trust, ledAgo *atomic.Int64, other bool) keeper {
	t.Helper()
	k := c.keeper(t, nobodyURL, trust)
	k.elected.Store(false)
	k.Writing.LedAgo = func() time.Duration { return time.Duration(ledAgo.Load()) }
	for _, m := range k.kept {
		m.limiter.SetLimit(rate.Inf)
	}
	if other {
		k.Writing.Options.Identities.MachineAPI = append(k.Writing.Options.Identities.MachineAPI, "system:serviceaccount:other:version")
		k.Writing.Options.URL = "https://127.0.0.1:2"
	}
	return k
}

// narrow edits a registration as somebody would who wants to get by it.
func (c *cluster) narrow(t *testing.T, o *object) {
	t.Helper()
	patch := client.MergeFrom(o.live.DeepCopyObject().(client.Object))
	switch o := o.live.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		o.Webhooks[0].MatchConditions = append(o.Webhooks[0].MatchConditions, admissionregistrationv1.MatchCondition{Name: "never", Expression: "false"})
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		o.Webhooks = o.Webhooks[1:]
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		o.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "where"}}
		o.Spec.MatchConditions = append(o.Spec.MatchConditions, admissionregistrationv1.MatchCondition{Name: "never", Expression: "false"})
		o.Spec.MatchConstraints.ExcludeResourceRules = o.Spec.MatchConstraints.ResourceRules
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		o.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}
		o.Spec.MatchResources = &admissionregistrationv1.MatchResources{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"no": "thing"}}}
	}
	must(t, c.api.Patch(t.Context(), o.live, patch))
}

// versions are those of all that is registered.
func (c *cluster) versions(t *testing.T, k keeper) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, o := range k.objects() {
		if c.get(t, o) {
			out[o.key()] = o.live.GetResourceVersion()
		}
	}
	return out
}

// testStandby: what a replica does that is not elected.
func testStandby(t *testing.T, c *cluster) {
	var ledAgo atomic.Int64
	trust := trusted(t)
	k := c.standby(t, trust, &ledAgo, false)
	k.round(t.Context())
	made := c.versions(t, k)
	if len(made) != 10 {
		t.Fatalf("it makes %v", made)
	}
	k.round(t.Context()) // right, as somebody left it who was elected

	// Deleted, it comes back at once.
	for _, o := range k.objects() {
		c.get(t, o)
		must(t, c.api.Delete(t.Context(), o.live))
		k.round(t.Context())
		if !c.get(t, o) {
			t.Errorf("%s is not made anew", o.key())
		}
		if n := k.value(t, "holdfast_registration_restored_total", o.kind, o.name); n != 1 {
			t.Errorf("%s: %v are told to be put back", o.key(), n)
		}
	}
	// Edited while nobody is elected, it is put back.
	ledAgo.Store(int64(time.Hour))
	for _, o := range k.objects() {
		c.get(t, o)
		right := k.Writing.contents(o.live)
		c.narrow(t, &o)
		k.round(t.Context())
		c.get(t, o)
		if diff := cmp.Diff(right, k.Writing.contents(o.live)); diff != "" {
			t.Errorf("%s: %s", o.key(), diff)
		}
	}
	// Edited while somebody may be elected, it is that one's to put back, also later.
	ledAgo.Store(0)
	k.round(t.Context())
	for _, o := range k.objects() {
		c.get(t, o)
		c.narrow(t, &o)
	}
	edited := c.versions(t, k)
	k.round(t.Context())
	ledAgo.Store(int64(time.Hour))
	k.round(t.Context())
	if diff := cmp.Diff(edited, c.versions(t, k)); diff != "" {
		t.Errorf("it changed what another may have changed: %s", diff)
	}
	if n := k.value(t, "holdfast_registration_present", "webhook", ClosedWebhook); n != 0 {
		t.Error("it does not tell what is missing")
	}
	if n := k.value(t, "holdfast_registration_present", "policy", MachinePolicy); n != 1 {
		t.Error("it reports what an elected replica of another version may have written")
	}
	// Elected, it puts all right.
	k.elected.Store(true)
	k.round(t.Context())
	for _, o := range k.objects() {
		c.get(t, o)
		k.mergeLive(&o, true)
		if diff := cmp.Diff(k.Writing.contents(o.want), k.Writing.contents(o.live)); diff != "" {
			t.Errorf("%s: %s", o.key(), diff)
		}
	}
}

// testVersions: replicas of two versions do not fight, whoever was elected, whatever is edited or deleted.
func testVersions(t *testing.T, c *cluster) {
	var ledAgo atomic.Int64
	trust := trusted(t)
	ours, theirs := c.standby(t, trust, &ledAgo, false), c.standby(t, trust, &ledAgo, true)
	both := func() {
		for range 2 {
			ours.round(t.Context())
			theirs.round(t.Context())
		}
	}
	rest := func(when string) {
		t.Helper()
		both()
		before := c.versions(t, ours)
		both()
		if diff := cmp.Diff(before, c.versions(t, ours)); diff != "" || len(before) != 10 {
			t.Errorf("%s: they fight: %s", when, diff)
		}
	}
	each := func(do func(*object)) {
		for _, o := range ours.objects() {
			c.get(t, o)
			o.live.SetName(o.name)
			do(&o)
		}
	}
	rest("at the start")
	for _, elected := range []keeper{ours, theirs} {
		ledAgo.Store(0)
		elected.elected.Store(true)
		rest("one is elected")
		elected.elected.Store(false)
		for _, ago := range []time.Duration{0, 10 * time.Second, time.Hour} {
			ledAgo.Store(int64(ago))
			rest("nobody is elected")
			each(func(o *object) { c.narrow(t, o) })
			rest("edited")
			each(func(o *object) { must(t, client.IgnoreNotFound(c.api.Delete(t.Context(), o.live))) })
			rest("deleted")
			each(func(o *object) { must(t, client.IgnoreNotFound(c.api.Delete(t.Context(), o.live))) })
			theirs.round(t.Context())
			rest("deleted, and made by the other")
		}
	}
}

// testApart: one that somebody keeps changing, and one that the API server does not tell of, delay no other.
func testApart(t *testing.T, c *cluster) {
	k := c.keeper(t, nobodyURL, trusted(t))
	k.again = time.Hour // the watch alone
	k.API = interceptor.NewClient(c.api, interceptor.Funcs{Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, ok := o.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
			<-ctx.Done()
			return ctx.Err()
		}
		return api.Get(ctx, key, o, opts...)
	}})
	run(t, k.Start)
	objects := k.objects()
	fought, gone := objects[0], objects[len(objects)-1]
	eventually(t, func() bool { return c.get(t, fought) && c.get(t, gone) }).WithTimeout(3 * time.Minute).Should(gomega.BeTrue())
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = c.api.Patch(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: Name}},
				client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":29}]`)))
		}
	}()
	defer func() { end(); <-ended }()
	eventually(t, func() float64 { return k.value(t, "holdfast_registration_restored_total", fought.kind) }).WithTimeout(3 * time.Minute).Should(gomega.BeNumerically(">", 16))
	for range 3 {
		must(t, c.api.Delete(t.Context(), gone.live))
		eventually(t, func() bool { return c.get(t, gone) }).WithTimeout(1500 * time.Millisecond).Should(gomega.BeTrue())
	}
}
