package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/etcdflags"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

// TestSnapshots: what the commands say of snapshot files.
func TestSnapshots(t *testing.T) {
	for name, args := range map[string]string{
		"status-rest":        "status -f rest",
		"status-waiting":     "status -f waiting",
		"status-replacing":   "status -f replacing",
		"status-sick":        "status -f sick",
		"status-unknown":     "status -f unknown",
		"status-released":    "status -f released",
		"status-failing":     "status -f failing",
		"status-alarm":       "status -f alarm",
		"status-yaml":        "status -o yaml -f waiting",
		"explain-live":       "explain master-0 -f rest",
		"explain-json":       "explain master-0 -o json -f sick",
		"explain-yaml":       "explain master-1 -o yaml -f replacing",
		"explain-sick":       "explain master-0 -f sick",
		"explain-one":        "explain master-0 -f waiting",
		"explain-held":       "explain master-1 -f replacing",
		"explain-last":       "explain master-1 -f last",
		"explain-unknown":    "explain master-1 -f unknown",
		"explain-bare":       "explain master-2 -f unknown",
		"explain-failing":    "explain master-2 -f failing",
		"explain-released":   "explain master-1 -f released",
		"simulate-rest":      "simulate -f rest",
		"simulate-replacing": "simulate -f replacing",
		"simulate-sick":      "simulate -f sick",
		"simulate-unknown":   "simulate -f unknown",
		"simulate-failing":   "simulate -o json -f failing",
		"simulate-json":      "simulate -o json -f waiting",
	} {
		t.Run(name, func(t *testing.T) {
			command, file, _ := strings.Cut(args, "-f ")
			command += "-f testdata/snapshots/" + file + ".yaml"
			status, stdout, stderr := typed(t, strings.NewReader(""), strings.Fields(command)...)
			if status != 0 {
				t.Errorf("status %d: %s", status, stderr)
			}
			golden(t, name+".txt", "$ kubectl holdfast "+command+"\n"+stdout+stderr)
		})
	}
}

// TestWrittenIsRead: status -o yaml and -o json of a file are that file again, from standard input as well.
func TestWrittenIsRead(t *testing.T) {
	_, want, _ := typed(t, nil, "status", "-o", "yaml", "-f", "testdata/snapshots/replacing.yaml")
	for _, form := range []string{"json", "yaml"} {
		_, written, _ := typed(t, nil, "status", "-o", form, "-f", "testdata/snapshots/replacing.yaml")
		if status, got, stderr := typed(t, strings.NewReader(written), "status", "-o", "yaml", "-f", "-"); status != 0 || got != want {
			t.Errorf("from %s: status %d, %s", form, status, stderr)
		}
	}
}

// TestEscaped: what users may choose is written so that YAML reads it again and no terminal acts on it.
func TestEscaped(t *testing.T) {
	const bad = "a\x7fb\u0085cde\x1b\"\\\n"
	for _, form := range []string{"json", "yaml"} {
		var out bytes.Buffer
		if err := printData(&out, form, map[string]string{"x": bad}); err != nil {
			t.Fatal(err)
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s: %q holds %q", form, out.String(), r)
			}
		}
		var got map[string]string
		if err := yaml.Unmarshal(out.Bytes(), &got); err != nil || got["x"] != bad {
			t.Errorf("%s: %q is read as %q, %v", form, out.String(), got["x"], err)
		}
	}
}

// fakes are a cluster in memory, and a ring as a snapshot file has it.
type fakes struct {
	client client.Client
	ring   string
}

func (f fakes) api(*rest.Config) (client.Client, error) { return f.client, nil }

func (f fakes) etcd(*etcdflags.Flags) (observe.Ring, func(), error) {
	v, err := readFile(context.Background(), terminal{}, "testdata/snapshots/"+f.ring+".yaml")
	if err != nil {
		return nil, nil, err
	}
	return given(v.Ring), func() {}, nil
}

func (fakes) core(*rest.Config) (corev1client.CoreV1Interface, error) {
	return nil, errors.New("there are no pods here")
}

// noon is when the tests' Machines were deleted.
func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// controlPlane are three Machines with their Nodes, of which number 1 is being deleted.
func controlPlane() []client.Object {
	var out []client.Object
	for n := range 3 {
		m := &machinev1beta1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: defaultNamespace, Name: fmt.Sprintf("master-%d", n), UID: types.UID(fmt.Sprintf("uid-%d", n)),
				Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master", "machine.openshift.io/instance-type": "m5.large"},
				Annotations: map[string]string{
					corev1.LastAppliedConfigAnnotation: "{}", "holdfast.dev/override": "held: x", "metal3.io/BareMetalHost": fmt.Sprintf("a/b-%d", n), "team": "etcd",
				},
				Finalizers: []string{quorum.Finalizer},
			},
			Spec: machinev1beta1.MachineSpec{
				ProviderID: ptr.To(fmt.Sprintf("aws:///i-%d", n)),
				ProviderSpec: machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{
					Raw: []byte(`{"kind":"AWSMachineProviderConfig","instanceType":"m5.large","ami":{"id":"ami-1"},"blockDevices":[{"ebs":{"volumeSize":120}}]}`),
				}},
			},
			Status: machinev1beta1.MachineStatus{
				Phase:     ptr.To("Running"),
				NodeRef:   &corev1.ObjectReference{Name: fmt.Sprintf("node-%d", n)},
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.0.%d", n+1)}},
			},
		}
		machineapi.Put(m, true, true, nil)
		if n == 1 {
			m.DeletionTimestamp = ptr.To(metav1.NewTime(noon()))
		}
		out = append(out, m, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", n), Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	return append(out, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: etcdNamespace, Name: hostenv.Name}})
}

// memory is that cluster, as alice meets it. Holdfast's part is done by the interceptor's functions.
func memory(t *testing.T, user string, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	create := funcs.Create
	funcs.Create = func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if who, ok := o.(*authenticationv1.SelfSubjectReview); ok {
			who.Status.UserInfo.Username = user
			return nil
		}
		if create != nil {
			return create(ctx, c, o, options...)
		}
		return c.Create(ctx, o, options...)
	}
	for _, o := range registered() {
		if !slices.ContainsFunc(objects, func(other client.Object) bool {
			return fmt.Sprintf("%T", o) == fmt.Sprintf("%T", other) && o.GetName() == other.GetName()
		}) {
			objects = append(objects, o)
		}
	}
	return fake.NewClientBuilder().WithScheme(kinds()).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

// registered are Holdfast's registrations and policies, correct.
func registered() []client.Object { return registeredTo(admission.Enforce) }

func registeredTo(e admission.Enforcement) []client.Object {
	o := registrations.Options{Enforcement: e, URL: "https://127.0.0.1:9443", CABundle: caUntil(noon().AddDate(0, 3, 0)), MachineNamespace: defaultNamespace, HoldfastNamespace: "holdfast-system", EtcdNamespace: etcdNamespace, Identities: identities()}
	mutating, validating := registrations.Registrations(o)
	objects := []client.Object{mutating, validating}
	for _, policy := range registrations.Policies(o) {
		objects = append(objects, policy.(client.Object))
	}
	return objects
}

func machine(t *testing.T, c client.Client, name string) *machinev1beta1.Machine {
	t.Helper()
	m := &machinev1beta1.Machine{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: name}, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCluster: what the commands say to a cluster.
func TestCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	denied := func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
		return apierrors.NewForbidden(machinev1beta1.Resource("machines"), "master-0", errors.New(`admission webhook "x" denied the request: Refused (one-too-many): it is one too many.`))
	}
	fails := func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if m, ok := o.(*machinev1beta1.Machine); ok {
			m.Status.Phase, m.Status.ErrorMessage = ptr.To("Failed"), ptr.To("no such\ninstance type")
		}
		return c.Create(ctx, o, options...)
	}
	dropsLatch := func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
		machineapi.Release(o.(*machinev1beta1.Machine), false, true)
		return c.Patch(ctx, o, patch, options...)
	}
	putsBack := func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
		machineapi.Put(o.(*machinev1beta1.Machine), true, true, nil)
		return c.Patch(ctx, o, patch, options...)
	}
	// Another write comes first.
	written := func(change func(*machinev1beta1.Machine)) func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
		done := false
		return func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if !done {
				done = true
				m := machine(t, c, o.GetName())
				change(m)
				if err := c.Update(ctx, m); err != nil {
					t.Error(err)
				}
			}
			return dropsLatch(ctx, c, o, patch, options...)
		}
	}
	conflicts := func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
		return apierrors.NewConflict(machinev1beta1.Resource("machines"), "master-1", errors.New("it changed"))
	}
	const asked = " --endpoints https://10.0.0.1:2379"
	for name, c := range map[string]struct {
		args   string
		in     string
		user   string
		ring   string
		funcs  interceptor.Funcs
		owned  bool
		bare   bool // master-1 has no latch
		warn   bool // Holdfast only reports
		lifted bool // alice lifted escape-hatch for master-1
		spare  bool // there is one more Machine, which has no Node yet
		status int
		then   func(t *testing.T, c client.Client)
	}{
		"cluster-status":     {args: "status" + asked},
		"cluster-elsewhere":  {args: "explain master-0 --context test" + asked},
		"cluster-noreport":   {args: "status"},
		"cluster-explain":    {args: "explain master-1"},
		"cluster-nothing":    {args: "explain master-9", status: 1},
		"release":            {args: "release master-1 --reason ticket" + asked, in: "master-1\n", funcs: interceptor.Funcs{Patch: dropsLatch}, then: released},
		"release-confirmed":  {args: "release master-1 --reason ticket --confirm master-1" + asked, funcs: interceptor.Funcs{Patch: dropsLatch}, then: released},
		"release-latched":    {args: "release master-1 --reason ticket --confirm master-1" + asked, then: latched},
		"release-lifted":     {args: "release master-1 --reason ticket" + asked, ring: "last", lifted: true, in: "master-1\n", then: latched},
		"release-no":         {args: "release master-1 --reason ticket" + asked, in: "yes\n", status: 1, then: held},
		"release-eof":        {args: "release master-1 --reason ticket" + asked, status: 1, then: held},
		"release-live":       {args: "release master-0 --reason ticket --confirm master-0" + asked, status: 1},
		"release-last":       {args: "release master-1 --reason ticket --confirm master-1" + asked, ring: "last", status: 1, then: held},
		"release-automation": {args: "release master-1 --reason ticket --confirm master-1" + asked, user: "system:serviceaccount:ci:robot", funcs: interceptor.Funcs{Patch: putsBack}, status: 1, then: held},
		"release-named":      {args: "release master-1 --reason ticket --confirm master-1" + asked, user: "system:serviceaccount:night:watch", funcs: interceptor.Funcs{Patch: dropsLatch}, then: released},
		"release-noreport":   {args: "release master-1 --reason ticket --confirm master-1", funcs: interceptor.Funcs{Patch: dropsLatch}, then: released},
		"release-put-back":   {args: "release master-1 --reason ticket --confirm master-1", funcs: interceptor.Funcs{Patch: putsBack}, status: 1},
		"release-meanwhile": {args: "release master-1 --reason ticket --confirm master-1" + asked, then: released,
			funcs: interceptor.Funcs{Patch: written(func(m *machinev1beta1.Machine) { m.Status.LastUpdated = ptr.To(metav1.NewTime(noon())) })}},
		"release-changed": {args: "release master-1 --reason ticket --confirm master-1" + asked, status: 1, then: held,
			funcs: interceptor.Funcs{Patch: written(func(m *machinev1beta1.Machine) { m.Annotations[quorum.OverrideAnnotation] = "escape-hatch: other" })}},
		"release-bare":        {args: "release master-1 --reason ticket --confirm master-1" + asked, bare: true, status: 1, then: unsent},
		"release-warn":        {args: "release master-1 --reason ticket --confirm master-1" + asked, warn: true, then: latched},
		"release-warn-bare":   {args: "release master-1 --reason ticket --confirm master-1" + asked, warn: true, bare: true, status: 1, then: unsent},
		"release-conflict":    {args: "release master-1 --reason ticket --confirm master-1", funcs: interceptor.Funcs{Patch: conflicts}, status: 1, then: held},
		"release-dry-run":     {args: "release master-1 --reason ticket --dry-run" + asked, funcs: interceptor.Funcs{Patch: dropsLatch}, then: held},
		"replace-dry-run":     {args: `replace master-0 --instance-type m5.2xlarge --patch [{"op":"replace","path":"/blockDevices/0/ebs/volumeSize","value":200},{"op":"add","path":"/placement","value":{"tenancy":"dedicated"}}] --dry-run`},
		"release-placeholder": {args: "release master-1 --reason ... --confirm master-1", status: 2, then: held},
		"replace-denied":      {args: "replace master-0", funcs: interceptor.Funcs{Delete: denied}, status: 1},
		"replace-failed":      {args: "replace master-0 --name new-0 --yes", funcs: interceptor.Funcs{Create: fails}, status: 1},
		"replace-owned":       {args: "replace master-0", owned: true, status: 1},
		"replace-interrupted": {args: "replace master-0 --name new-0 --yes --timeout 500ms", status: 1},
		"replace-same-name":   {args: "replace master-0 --name master-0", status: 2},
		"replace-bad-name":    {args: "replace master-0 --name Master_0", status: 2},
		"replace-bad-path":    {args: `replace master-0 --patch [{"op":"replace","path":"/blockDevices/1/ebs","value":1}]`, status: 2},
		"replace-bad-patch":   {args: "replace master-0 --patch blockDevices", status: 2},
		"replace-taken":       {args: "replace master-0 --name master-2 --yes", status: 1},
		"replace-no":          {args: "replace master-0 --name new-0", in: "yes\n", status: 1, then: alone},
		"replace-placeholder": {args: "replace master-0 --instance-type ... --yes", status: 2, then: alone},
		"replace-gone":        {args: "replace master-9 --yes --desired-replicas 3" + asked, in: "master-9\n", ring: "rest"},
		"replace-gone-yes":    {args: "replace master-9 --confirm master-9 --desired-replicas 3" + asked, ring: "rest"},
		"replace-gone-other":  {args: "replace master-9 --confirm master-0 --desired-replicas 3" + asked, ring: "rest", status: 2, then: alone},
		"replace-gone-no":     {args: "replace master-9 --desired-replicas 3" + asked, in: "yes\n", ring: "rest", status: 1, then: alone},
		"replace-gone-owned":  {args: "replace master-9 --yes --desired-replicas 3" + asked, ring: "rest", owned: true, status: 1, then: alone},
		"replace-gone-waits":  {args: "replace master-9 --yes --desired-replicas 3" + asked, ring: "rest", spare: true, status: 1},
		"replace-spare":       {args: "replace master-1 --yes --timeout 500ms --desired-replicas 3" + asked, spare: true, status: 1},
		"replace-noreport":    {args: "replace master-9 --yes", status: 1, then: alone},
	} {
		t.Run(name, func(t *testing.T) {
			objects := controlPlane()
			if c.owned {
				objects[0].SetOwnerReferences([]metav1.OwnerReference{{Kind: "MachineSet", Name: "workers", Controller: ptr.To(true)}})
			}
			if c.bare {
				objects[2].(*machinev1beta1.Machine).Spec.LifecycleHooks.PreTerminate = nil
			}
			if c.lifted {
				objects[2].SetAnnotations(map[string]string{quorum.OverrideAnnotation: "escape-hatch: it burns", quorum.OverrideByAnnotation: "alice " + noon().Format(time.RFC3339)})
			}
			if c.warn {
				objects = append(objects, registeredTo(admission.Warn)...)
			}
			if c.spare {
				m := objects[0].DeepCopyObject().(*machinev1beta1.Machine)
				m.Name, m.UID, m.Annotations, m.Spec.ProviderID, m.Status = "master-3", "uid-3", nil, nil, machinev1beta1.MachineStatus{Phase: ptr.To("Provisioning")}
				objects = append(objects, m)
			}
			user, ring := c.user, c.ring
			if user == "" {
				user = "alice"
			}
			if ring == "" {
				ring = "waiting"
			}
			api := memory(t, user, c.funcs, objects...)
			var out, errs bytes.Buffer
			now := func() time.Time { return noon().Add(time.Minute) }
			status := execute(t.Context(), strings.Fields(c.args), terminal{strings.NewReader(c.in), &out, &errs, now, fakes{api, ring}})
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast "+c.args+"\n"+out.String()+errs.String())
			if c.then != nil {
				c.then(t, api)
			}
		})
	}
}

func released(t *testing.T, c client.Client) {
	m := machine(t, c, "master-1")
	if seen := machineapi.Machine(m); seen.Hook != quorum.EntryAbsent || seen.Latch != quorum.EntryAbsent || m.Annotations[audit.ReleaseReasonAnnotation] != "ticket" {
		t.Errorf("it is not released: %+v, %v", m.Spec.LifecycleHooks, m.Annotations)
	}
}

// alone: nothing was created, and nothing deleted.
func alone(t *testing.T, c client.Client) {
	var all machinev1beta1.MachineList
	if err := c.List(t.Context(), &all); err != nil || len(all.Items) != 3 || machine(t, c, "master-0").DeletionTimestamp != nil {
		t.Errorf("%d Machines, %v", len(all.Items), err)
	}
}

func latched(t *testing.T, c client.Client) {
	if m := machineapi.Machine(machine(t, c, "master-1")); m.Hook != quorum.EntryAbsent || m.Latch != quorum.EntryOurs {
		t.Errorf("the patch takes off more or less than the hook: %+v", m)
	}
}

// unsent: the hook is on as it was.
func unsent(t *testing.T, c client.Client) {
	if m := machine(t, c, "master-1"); m.Annotations[audit.ReleaseReasonAnnotation] != "" || machineapi.Machine(m).Hook != quorum.EntryOurs {
		t.Errorf("something was sent: %+v", m)
	}
}

func held(t *testing.T, c client.Client) {
	if m := machine(t, c, "master-1"); m.Annotations[audit.ReleaseReasonAnnotation] != "" || !func() bool { s := machineapi.Machine(m); return s.Protected() }() {
		t.Errorf("something was sent: %+v", m)
	}
}

// TestNextName: the same Machine gets the same name each time, with its index at the end, and a name neither grows nor is too long for a host.
func TestNextName(t *testing.T) {
	long := strings.Repeat("cluster-", 8)
	for name, want := range map[string]string{
		"master-0":                 `^master-[a-z0-9]{5}-0$`,
		"ocp-7x2kd-master-12":      `^ocp-7x2kd-master-[a-z0-9]{5}-12$`,
		"ocp-7x2kd-master-bcd24-1": `^ocp-7x2kd-master-[a-z0-9]{5}-1$`,
		"m-nodes-0":                `^m-nodes-[a-z0-9]{5}-0$`,
		"broken":                   `^broken-[a-z0-9]{5}$`,
		"broken-bcd24":             `^broken-[a-z0-9]{5}$`,
		long + "master-0":          `^(cluster-){6}cluste?r?-[a-z0-9]{5}-0$`,
		long[:54] + ".e-0":         `^(cluster-){6}cluste-[a-z0-9]{5}-0$`,
	} {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "a"}}
		first := nextName(m, "")
		if first != nextName(m, "") || !regexp.MustCompile(want).MatchString(first) || len(first) > 63 {
			t.Errorf("%s becomes %s", name, first)
		}
		if other := nextName(m, "1"); other == first || len(other) != len(first) {
			t.Errorf("%s becomes %s, and then %s", name, first, other)
		}
		m.Name, m.UID = first, "b"
		if second := nextName(m, ""); second == first || len(second) != len(first) {
			t.Errorf("%s becomes %s", first, second)
		}
	}
}

// TestCopy: a copy is nobody's: it has no mark of a GitOps tool, no restart that is under way, and no address of the Machine that it is copied from.
func TestCopy(t *testing.T) {
	kept := map[string]string{"machine.openshift.io/cluster-api-machine-role": "master", "team": "etcd"}
	marks := map[string]string{
		"app.kubernetes.io/instance": "control-plane", "app.kubernetes.io/managed-by": "Helm", "argocd.argoproj.io/instance": "a", "argocd.argoproj.io/tracking-id": "a", "argocd.argoproj.io/sync-wave": "1",
		"kustomize.toolkit.fluxcd.io/name": "a", "helm.toolkit.fluxcd.io/namespace": "a", "meta.helm.sh/release-name": "a", "config.k8s.io/owning-inventory": "a", "objectset.rio.cattle.io/id": "a",
	}
	old := func(spec string) *machinev1beta1.Machine {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "master-0", UID: "a", Labels: maps.Clone(kept), Annotations: maps.Clone(kept)}}
		maps.Copy(m.Labels, marks)
		maps.Copy(m.Annotations, marks)
		m.Annotations[quorum.RemediationAnnotation], m.Annotations["remediation.metal3.io/reboot-in-progress"] = "", ""
		m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(spec)}
		return m
	}
	for name, c := range map[string]struct{ spec, patch, at string }{
		"none":                  {`{"network": {"devices": [{"networkName": "n", "gateway": "10.0.0.1", "nameservers": ["10.0.0.2"]}]}, "publicIP": true}`, "", ""},
		"vSphere":               {`{"network": {"devices": [{"ipAddrs": ["10.0.0.9/24"]}]}}`, "", "/network/devices/0/ipAddrs/0"},
		"vSphere, changed":      {`{"network": {"devices": [{"ipAddrs": ["10.0.0.9/24"]}]}}`, `[{op: replace, path: /network/devices/0/ipAddrs/0, value: 10.0.0.10/24}]`, ""},
		"vSphere, half changed": {`{"network": {"devices": [{"ipAddrs": ["10.0.0.9/24", "fd00::9/64"]}]}}`, `[{op: remove, path: /network/devices/0/ipAddrs/0}]`, "/network/devices/0/ipAddrs/0"},
		"OpenStack":             {`{"ports": [{"fixedIPs": [{"subnetID": "s", "ipAddress": "10.0.0.9"}]}]}`, "", "/ports/0/fixedIPs/0/ipAddress"},
		"OpenStack, of all":     {`{"ports": [{"fixedIPs": [{"subnetID": "s"}], "allowedAddressPairs": [{"ipAddress": "10.0.0.5"}]}]}`, "", ""},
		"OpenStack, by MAC":     {`{"ports": [{"macAddress": "fa:16:3e:00:00:09"}], "floatingIP": ""}`, "", "/ports/0/macAddress"},
	} {
		next, err := (&replaceOptions{patch: c.patch}).manifest(old(c.spec))
		if c.at != "" {
			if err == nil || !strings.Contains(err.Error(), "at "+c.at+",") {
				t.Errorf("%s: %v, want a refusal that names %s", name, err, c.at)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		delete(next.Labels, replacesLabel)
		if !maps.Equal(next.Labels, kept) || !maps.Equal(next.Annotations, kept) {
			t.Errorf("%s: labels %v, annotations %v", name, next.Labels, next.Annotations)
		}
	}
}

// TestWatch: elsewhere than on a terminal only what changed is shown again, and the end is no failure.
func TestWatch(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	ctx, cancel := context.WithCancel(t.Context())
	out := &stopper{stop: cancel}
	status := execute(ctx, []string{"status", "--watch"}, terminal{nil, out, io.Discard, noon, fakes{memory(t, "alice", interceptor.Funcs{}, controlPlane()...), ""}})
	if status != 0 || strings.Count(out.String(), "master-2") != 1 {
		t.Errorf("status %d:\n%s", status, out.String())
	}
}

// stopper is a screen before which somebody presses Ctrl-C once there is something on it.
type stopper struct {
	bytes.Buffer
	stop func()
}

func (s *stopper) Write(p []byte) (int, error) {
	s.stop()
	return s.Buffer.Write(p)
}

// TestNoCluster: an API server that is not there, a context or a file that does not exist.
func TestNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	bad := t.TempDir() + "/bad.yaml"
	if err := os.WriteFile(bad, []byte("apiVersion: holdfast.dev/v1alpha1\nkind: Snapshot\nmode: full\nnow: noon\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]struct {
		status int
		words  string
	}{
		"status":                           {1, "connection refused"},
		"status --context nope":            {2, `"nope"`},
		"status --kubeconfig nope":         {2, "--kubeconfig"},
		"status --mode half":               {2, "--mode"},
		"status --desired-replicas -3":     {2, "--desired-replicas"},
		"explain a -o wide":                {2, "--output"},
		"audit":                            {1, "connection refused"},
		"status --endpoints http://a":      {2, "--endpoints"},
		"status --endpoints https://a:1":   {2, "--cacert is missing"},
		"status -o table -w -f x":          {2, "--watch"},
		"status -o xml":                    {2, "--output"},
		"status -f nope.yaml":              {1, "nope.yaml"},
		"simulate":                         {2, "--filename"},
		"simulate -f " + bad:               {1, "now:"},
		"explain":                          {2, "name of one Machine"},
		"release master-0":                 {2, "--reason"},
		"release a --reason x --confirm b": {2, "--confirm"},
		"replace master-0 --timeout 0s":    {2, "--timeout"},
	} {
		status, stdout, stderr := typed(t, strings.NewReader(""), strings.Fields(args)...)
		if status != want.status || stdout != "" || !strings.Contains(stderr, want.words) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: status %d, %q", args, status, stderr)
		}
	}
}
