package webhooks_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selection "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/webhooks"
)

const namespace = "openshift-machine-api"

// Users, of each class.
const (
	holdfast   = "system:serviceaccount:holdfast-system:holdfast"
	operator   = "system:serviceaccount:openshift-etcd-operator:etcd-operator"
	gitops     = "system:serviceaccount:gitops:argocd"
	robot      = "ci-robot-7" // automation by a pattern
	deployer   = "jane"       // automation by her group, see groups
	emergency  = "system:serviceaccount:openshift-backplane-srep:responder"
	admin      = "system:admin"
	person     = "alice"
	deployers  = "deployers"
	responders = "system:serviceaccounts:openshift-backplane-srep"
)

func identities() admission.Identities {
	ids := admission.DefaultIdentities(holdfast)
	ids.Automation = []string{"ci-robot-*", deployers}
	ids.EscapeHatch = append(ids.EscapeHatch, responders)
	return ids
}

// fixture is one API server with the Machine CRD and Holdfast's webhooks, for all tests of the package.
type fixture struct {
	config *rest.Config
	scheme *runtime.Scheme
	admin  client.Client // system:admin, a person to the rules: makes what the cases start from
	direct client.Client // not impersonating: for what is no Machine
	server *httptest.Server
	ca     []byte // PEM: who signed the server's certificate
	guard  *guard
	audit  string // the API server's own audit log
}

// quiet has controller-runtime log nothing: it prints a stack where nobody says what it is to do. Tests that run
// side by side must not say so at the same time.
var quiet = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) })

func start(t *testing.T) *fixture {
	t.Helper()
	quiet()
	f := &fixture{scheme: runtime.NewScheme(), guard: &guard{calls: map[string]int{}}}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, machinev1beta1.Install, machinev1.Install, configv1.Install} {
		if err := add(f.scheme); err != nil {
			t.Fatal(err)
		}
	}

	f.audit = filepath.Join(t.TempDir(), "audit.log")
	f.config = apiserver.Start(t, apiserver.WithCRDs(t, append(assets.MachineAPI(), assets.ScalableSet)...), func(env *envtest.Environment) {
		env.ControlPlane.GetAPIServer().Configure().Append("audit-log-path", f.audit).Append("audit-policy-file", auditPolicy(t))
	}).Config
	f.admin = f.client(t, admin, nil)

	var err error
	f.direct, err = client.New(f.config, client.Options{Scheme: f.scheme})
	must(t, err)
	everyone := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everyone"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
	}
	for _, object := range []client.Object{
		everyone,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}},
	} {
		must(t, f.direct.Create(t.Context(), object))
	}
	f.serve(t)
	return f
}

// serve starts the webhook server and registers it, and waits until the API server calls it.
func (f *fixture) serve(t *testing.T) {
	t.Helper()
	metrics := webhooks.NewMetrics(prometheus.NewRegistry())
	guard := &webhooks.Handlers{
		Identities: identities(), MachineNamespace: namespace,
		Observer: f.guard, Recorder: f.guard, Metrics: metrics, Claim: f.guard.claim,
	}
	mux := http.NewServeMux()
	mux.Handle(webhooks.MutatePath, f.guard.counted(webhooks.Handler(guard.Mutating())))
	mux.Handle(webhooks.ValidatePath, f.guard.counted(webhooks.Handler(guard.Validating())))
	mux.Handle(webhooks.HomePath, f.guard.counted(webhooks.Handler(guard.Home())))
	mux.Handle(webhooks.KeepersPath, f.guard.counted(&ctrladmission.Webhook{Handler: guard.SetsAndHealthChecks()}))
	mux.Handle(webhooks.ControlPlaneSetPath, f.guard.counted(webhooks.Handler(guard.ControlPlaneSet(f.direct))))
	mux.Handle(stripPath, f.guard.counted(webhooks.Handler(ctrladmission.HandlerFunc(strip))))

	ca, err := pki.NewAuthority("webhooks")
	must(t, err)
	f.ca = ca.CertPEM()
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "webhooks", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	must(t, err)
	f.server = httptest.NewUnstartedServer(mux)
	f.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	f.server.EnableHTTP2 = true
	f.server.StartTLS()
	t.Cleanup(f.server.Close)

	mutating, validating := registrations.Registrations(registrations.Options{
		URL: f.server.URL, CABundle: f.ca, MachineNamespace: namespace, Identities: identities(), EtcdNamespace: "openshift-etcd",
	})
	must(t, f.direct.Create(t.Context(), mutating))
	must(t, f.direct.Create(t.Context(), validating))
	f.guard.set(ring())
	probe := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "probe-", Namespace: namespace, Annotations: map[string]string{quorum.OverrideAnnotation: "probe"},
	}}
	gomega.NewWithT(t).Eventually(func() error {
		dry := probe.DeepCopy()
		if err := f.admin.Create(t.Context(), dry, client.DryRunAll); err != nil {
			return err
		}
		if calls := f.guard.total(); calls < 2 {
			return fmt.Errorf("%d calls", calls)
		}
		return nil
	}).WithTimeout(2 * time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// client is a client of a user, whose warnings are collected, if anywhere.
func (f *fixture) client(t *testing.T, user string, warnings *warnings) client.Client {
	t.Helper()
	config := rest.CopyConfig(f.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups(user)}
	if warnings == nil {
		config.WarningHandler = rest.NoWarnings{}
	} else {
		config.WarningHandler = warnings
	}
	options := client.Options{Scheme: f.scheme}
	if f.admin != nil {
		options.Mapper = f.admin.RESTMapper()
	}
	c, err := client.New(config, options)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func groups(user string) []string {
	switch user {
	case deployer:
		return []string{deployers, "system:authenticated"}
	case emergency:
		return []string{"system:serviceaccounts", responders, "system:authenticated"}
	case person:
		return []string{"system:masters", "system:authenticated"}
	}
	return []string{"system:authenticated"}
}

// warnings collects the Warnings that a client is sent.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Contains(text, "metadata.finalizers:") { // the API server's own, on how finalizers are named
		return
	}
	w.lines = append(w.lines, text)
}

// guard is the webhooks' outside: the Snapshot that they are given, and what they record.
type guard struct {
	mu       sync.Mutex
	snapshot *quorum.Snapshot
	calls    map[string]int
	recorded []record
	claims   []quorum.Release // on the ledger, since the Snapshot was set
	looks    int              // at the cluster
	slow     func(look int)   // nil, or what each of them does after the first glance
}

// record is a finding as it was recorded.
type record struct {
	admission.Finding
	dryRun bool
}

func (g *guard) set(s *quorum.Snapshot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.snapshot, g.recorded, g.claims = s, nil, nil
	clear(g.calls)
}

func (g *guard) records() []record {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.recorded)
}

// findings are what was recorded, rules and verdicts.
func (g *guard) findings() (out []string) {
	for _, r := range g.records() {
		out = append(out, fmt.Sprintf("%s %s", r.Rule, r.Verdict))
	}
	return out
}

func (g *guard) total() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, calls := range g.calls {
		n += calls
	}
	return n
}

func (g *guard) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.calls[r.URL.Path]++
		g.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

func (g *guard) Snapshot(context.Context) (*quorum.Snapshot, error) {
	g.mu.Lock()
	g.looks++
	look, seen, slow := g.looks, g.snapshot, g.slow
	g.mu.Unlock()
	if slow != nil {
		slow(look)
	}
	if seen == nil {
		return nil, errors.New("the cluster cannot be read")
	}
	return seen, nil
}

// claim takes one entry, since the ledger is not the Snapshot's after that.
func (g *guard) claim(_ context.Context, l *quorum.Ledger, entry quorum.Release) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.claims) > 0 || l.Unusable() != "" {
		return errors.New("the ledger was changed")
	}
	g.claims = append(g.claims, entry)
	return nil
}

func (g *guard) Machines(ctx context.Context) ([]quorum.Machine, error) {
	s, err := g.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s.Machines, nil
}

func (g *guard) Hosts(ctx context.Context, _ *quorum.Machine, _, adopts bool) (*quorum.Snapshot, error) {
	s, err := g.Snapshot(ctx)
	if err != nil || adopts {
		return s, err
	}
	without := *s
	without.MachineSets, without.MachineSetsWhy = nil, "nobody asked for them"
	return &without, nil
}

// Selected matches the Machines of the Snapshot by role and type, and counts no other.
func (g *guard) Selected(ctx context.Context, selector selection.Selector) (*quorum.Selection, error) {
	s, err := g.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	found := &quorum.Selection{Desired: s.Desired}
	for _, m := range s.Machines {
		if selector.Matches(selection.Set{quorum.RoleLabel: m.Role, quorum.TypeLabel: m.Type}) {
			found.Machines = append(found.Machines, m)
		}
	}
	found.Total = len(found.Machines)
	return found, nil
}

func (g *guard) Decided(_ context.Context, r webhooks.Record) {
	d, dryRun := r.Decision, r.DryRun()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range d.Findings {
		g.recorded = append(g.recorded, record{f, dryRun})
		met.Store(f.Rule, true)
	}
}

// The cluster of the cases: three healthy voters. The first runs on the case's own Machine, which has
// its address, the other two on cp-2 and cp-3, which are in the Snapshot alone.

const (
	address  = "10.0.0.1"
	provider = "process:///cp-2" // cp-2's provider ID
	member   = 0x8e9e05c52164694d
)

func ring(changes ...func(*quorum.Snapshot)) *quorum.Snapshot {
	s := &quorum.Snapshot{
		Mode: quorum.ModeFull, Now: time.Now(), Desired: 3, Limits: quorum.DefaultLimits(), Ledger: quorum.Ledger{Version: "1"},
		Ring: quorum.Ring{Known: true, Leader: 2, Version: "3.7.3", Members: []quorum.Member{
			{ID: member, Name: "cp-1", PeerURLs: []string{"https://" + address + ":2380"}, Healthy: true},
			{ID: 2, Name: "cp-2", PeerURLs: []string{"https://10.0.0.2:2380"}, Healthy: true},
			{ID: 3, Name: "cp-3", PeerURLs: []string{"https://10.0.0.3:2380"}, Healthy: true},
		}},
		Machines: []quorum.Machine{other("cp-2", "10.0.0.2"), other("cp-3", "10.0.0.3")},
	}
	s.Machines[0].ProviderID, s.Machines[0].Instance[0] = provider, "machines/host-2"
	for _, change := range changes {
		change(s)
	}
	return s
}

func other(name, address string) quorum.Machine {
	return quorum.Machine{
		Name: name, UID: name, Role: "master", Type: "master", Hook: quorum.EntryOurs, Latch: quorum.EntryOurs, Finalizer: true,
		Phase: "Running", NodeName: name, Addresses: []netip.Addr{netip.MustParseAddr(address)},
	}
}

func sick(k int) func(*quorum.Snapshot) {
	return func(s *quorum.Snapshot) {
		s.Ring.Members[k].Healthy, s.Ring.Members[k].Why = false, "its endpoint does not answer"
	}
}

func going(s *quorum.Snapshot) { s.Machines[0].DeletedAt = s.Now }

func restarting(s *quorum.Snapshot) { s.Machines[0].Remediating = true }

func late(s *quorum.Snapshot) { s.Machines[1].ProviderID = "process:///first" } // what a worker has

func elsewhere(s *quorum.Snapshot) { // the case's Machine hosts nothing
	s.Ring.Members = s.Ring.Members[1:]
}

func unknown(s *quorum.Snapshot) {
	s.Ring = quorum.Ring{Why: "etcd did not answer within 1 s"}
}

func installing(s *quorum.Snapshot) { // no Machine was ever Running
	for i := range s.Machines {
		s.Machines[i].Phase, s.Machines[i].NodeName = "Provisioning", ""
	}
}

// state is how a case's Machine is when the request comes. The zero state is a live control-plane
// Machine with hook, latch, finalizer and evidence.
type state struct {
	bare     bool // without hook and latch
	naked    bool // without evidence
	worker   bool
	deleting bool
	escaped  bool // and a person has taken the hook off: the latch stands alone
	freed    bool // and Holdfast has let it go
	override string
	host     string                         // of bare metal, by its annotation
	provider string                         // provider ID
	before   []machinev1beta1.LifecycleHook // entries of others in preDrain, in front of the hook
	after    []machinev1beta1.LifecycleHook // and behind it
}

func hookEntry() machinev1beta1.LifecycleHook {
	return machinev1beta1.LifecycleHook{Name: quorum.HookName, Owner: quorum.HookOwner}
}

func latchEntry() machinev1beta1.LifecycleHook {
	return machinev1beta1.LifecycleHook{Name: quorum.LatchName, Owner: quorum.LatchOwner}
}

// manifest is a control-plane Machine as it stands in Git.
func manifest(name string) *machinev1beta1.Machine {
	return &machinev1beta1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace,
			Labels:     map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master"},
			Finalizers: []string{quorum.Finalizer},
		},
		Spec: machinev1beta1.MachineSpec{ProviderSpec: machinev1beta1.ProviderSpec{
			Value: &runtime.RawExtension{Raw: []byte(`{"instanceType":"m5.large","kept":{"as":"is"}}`)},
		}},
	}
}

// machine makes a case's Machine. What a state asks for and the rules would not let anybody write is
// made in the steps in which it comes about.
func (f *fixture) machine(t *testing.T, name string, s state) *machinev1beta1.Machine {
	t.Helper()
	ctx, custodian := t.Context(), f.client(t, holdfast, nil)
	f.guard.set(ring())
	m := manifest(name)
	if s.worker {
		m.Labels = map[string]string{quorum.RoleLabel: "worker", quorum.TypeLabel: "worker"}
	}
	m.Spec.LifecycleHooks.PreDrain = slices.Concat(s.before, []machinev1beta1.LifecycleHook{hookEntry()}, s.after)
	if s.bare || s.worker {
		m.Spec.LifecycleHooks.PreDrain = slices.Concat(s.before, s.after)
	}
	must(t, custodian.Create(ctx, m))
	m.Status = machinev1beta1.MachineStatus{
		Phase: new("Running"), NodeRef: &corev1.ObjectReference{Kind: "Node", Name: name},
		Addresses: addresses(),
	}
	must(t, custodian.Status().Update(ctx, m))
	if !s.naked && !s.worker {
		m.Annotations = map[string]string{quorum.EvidenceAnnotation: evidenceOf(m)}
		must(t, custodian.Update(ctx, m))
	}
	if s.host != "" {
		patch := client.MergeFrom(m.DeepCopy())
		m.Annotations[quorum.InstanceAnnotations[0].Key] = s.host
		must(t, f.client(t, controllers, nil).Patch(ctx, m, patch))
	}
	if s.provider != "" {
		patch := client.MergeFrom(m.DeepCopy())
		m.Spec.ProviderID = &s.provider
		must(t, f.client(t, controllers, nil).Patch(ctx, m, patch))
	}
	if s.override != "" {
		patch := client.MergeFrom(m.DeepCopy())
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, quorum.OverrideAnnotation, s.override)
		must(t, f.admin.Patch(ctx, m, patch))
	}
	if s.deleting || s.escaped || s.freed {
		must(t, f.admin.Delete(ctx, m))
		must(t, f.admin.Get(ctx, client.ObjectKeyFromObject(m), m))
	}
	if s.escaped || s.freed {
		m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
		must(t, f.admin.Update(ctx, m))
	}
	if s.freed {
		f.guard.set(ring(elsewhere))
		m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
		must(t, custodian.Update(ctx, m))
		f.guard.set(ring())
	}
	must(t, f.admin.Get(ctx, client.ObjectKeyFromObject(m), m))
	return m
}

func addresses() []corev1.NodeAddress {
	return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
}

func evidenceOf(m *machinev1beta1.Machine) string {
	return fmt.Sprintf(`{"machineUID":%q,"machine":%q,"memberIDs":["%x"],"peerAddresses":[%q]}`, m.UID, m.Name, uint64(member), address)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get is the Machine as stored, nil if it is gone.
func (f *fixture) get(t *testing.T, name string) *machinev1beta1.Machine {
	t.Helper()
	var m machinev1beta1.Machine
	err := f.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &m)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(t, err)
	return &m
}

// caughtUp waits until the API server's watch cache has an object as it is. A request starts from what is
// there, and if that was old and the request is refused or in conflict, the API server asks the webhooks
// again, about the object as it is: two records of one request.
func (f *fixture) caughtUp(t *testing.T, o client.Object) {
	t.Helper()
	cached := &client.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}}
	gomega.NewWithT(t).Eventually(t.Context(), func() (string, error) {
		seen := o.DeepCopyObject().(client.Object)
		err := f.direct.Get(t.Context(), client.ObjectKeyFromObject(o), seen, cached)
		return seen.GetResourceVersion(), err
	}).WithTimeout(2 * time.Minute).WithPolling(5 * time.Millisecond).Should(gomega.Equal(o.GetResourceVersion()))
}

// describe is what the guard protects of a Machine, in one line.
func describe(m *machinev1beta1.Machine) string {
	if m == nil {
		return "gone"
	}
	var out []string
	for _, h := range m.Spec.LifecycleHooks.PreDrain {
		switch h {
		case hookEntry():
			out = append(out, "hook")
		default:
			out = append(out, h.Name+"="+h.Owner)
		}
	}
	for _, h := range m.Spec.LifecycleHooks.PreTerminate {
		switch h {
		case latchEntry():
			out = append(out, "latch")
		default:
			out = append(out, h.Name+"="+h.Owner)
		}
	}
	switch m.Annotations[quorum.EvidenceAnnotation] {
	case "":
	case evidenceOf(m):
		out = append(out, "evidence")
	default:
		out = append(out, "other evidence")
	}
	if v := m.Annotations[quorum.OverrideAnnotation]; v != "" {
		by, _ := quorum.ParseStamp(m.Annotations[quorum.OverrideByAnnotation])
		out = append(out, fmt.Sprintf("override %q by %s", v, by))
	}
	if v := m.Annotations[quorum.InstanceAnnotations[0].Key]; v != "" {
		out = append(out, "host "+v)
	}
	if v := m.Spec.ProviderID; v != nil {
		out = append(out, "provider "+*v)
	}
	if _, has := m.Annotations[quorum.RemediationAnnotation]; has {
		out = append(out, "remediating")
	}
	for _, o := range m.OwnerReferences {
		out = append(out, "owned by "+o.Kind)
	}
	if m.DeletionTimestamp != nil {
		out = append(out, "deleting")
	}
	return strings.Join(out, " ")
}
