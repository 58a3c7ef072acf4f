package install_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// TestInstall goes through the life of an installation on one sandbox.
func TestInstall(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.hook()
	guard := f.render("self-signed", "")
	part := f.parts(t)
	part("guard mode", func() { f.install(guard); f.guards() })
	part("taints and labels that Machines hand to their Nodes", f.tainted)
	part("rights of guard mode", func() {
		f.upset()
		f.exact(guard, 0, spareGuard())
	})
	part("uninstall from guard mode", func() {
		out, err := f.command("kubectl-holdfast", nil, "uninstall", "--yes")
		f.Expect(err).To(gomega.HaveOccurred())
		f.Expect(out).To(gomega.ContainSubstring("there is no Deployment openshift-etcd-operator/etcd-operator"))
		remove := f.etcdOperator()
		f.uninstall()
		remove()
		for _, name := range []string{"master-0", "master-1", "master-2"} {
			f.Expect(machineapi.Machine(f.machine(name)).Hook).To(gomega.Equal(quorum.EntryOurs), "the hook of %s is cluster-etcd-operator's", name)
		}
	})
	full := f.render("self-signed", "", "full-mode")
	since := f.logged()
	part("full mode", func() {
		f.install(full)
		f.mode("full")
		out, err := f.command("kubectl-holdfast", nil, "uninstall", "--yes")
		f.Expect(err).To(gomega.HaveOccurred())
		f.Expect(out).To(gomega.ContainSubstring("Machine master-0 is being deleted and held"))
		f.replace("master-0", "master-3")
	})
	part("rights of full mode", func() {
		f.upset()
		f.Expect(f.sandbox.StartBootstrap(f.t.Context())).To(gomega.Succeed())
		f.Eventually(func() (string, error) { return f.command("kubectl-holdfast", nil, "status") }).Should(gomega.ContainSubstring("BootstrapMemberWaits"))
		f.must("kubectl", nil, "-n", "kube-system", "create", "configmap", "bootstrap", "--from-literal=status=complete")
		f.Eventually(func() (string, error) { return f.command("kubectl-holdfast", nil, "status") }).ShouldNot(gomega.ContainSubstring(quorum.BootstrapName))
		f.exact(full, since, spareFull())
	})
	part("uninstall from full mode", func() {
		f.keptSet()
		f.uninstall()
		for _, name := range []string{"master-1", "master-2", "master-3"} {
			f.Expect(machineapi.Machine(f.machine(name)).Hook).To(gomega.Equal(quorum.EntryAbsent), name)
		}
	})
}

// keptSet makes a set that leaves the Machines as they are, and waits until Holdfast keeps it, and its MachineHealthCheck.
func (f *fixture) keptSet() {
	const labels = `{machine.openshift.io/cluster-api-cluster: sandbox, machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}`
	f.must("kubectl", []byte(`apiVersion: machine.openshift.io/v1
kind: ControlPlaneMachineSet
metadata: {name: cluster, namespace: openshift-machine-api}
spec:
  state: Active
  replicas: 3
  strategy: {type: OnDelete}
  selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: `+labels+`}
      spec: {providerSpec: {value: {apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: m5.large}}}
`), "create", "-f", "-")
	f.Eventually(func() error {
		return f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.HealthCheckName}, &machinev1beta1.MachineHealthCheck{})
	}).Should(gomega.Succeed())
	f.Eventually(func(g gomega.Gomega) {
		g.Expect(f.machine("master-2").OwnerReferences).To(gomega.HaveLen(1))
	}).Should(gomega.Succeed())
}

// etcdOperator makes cluster-etcd-operator's Deployment, which is all that says that it is here, and returns what
// removes it.
func (f *fixture) etcdOperator() (remove func()) {
	d := custodian.Deployment()
	f.Expect(f.admin.Create(f.t.Context(), d)).To(gomega.Succeed())
	return func() { f.Expect(f.admin.Delete(f.t.Context(), d)).To(gomega.Succeed()) }
}

// loss kills a replica under load, as a crash would. Until its Node has noticed, requests are still led to it:
// these are answered as if Holdfast were down, and none after that.
func (f *fixture) loss() {
	const noticed = 2 * time.Second
	pod := f.pods()[0]
	proc, err := f.sandbox.PodProcess(pod.Namespace, pod.Name)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	var killed time.Time
	l := f.load(f.requests("master-0"), func() {
		killed = time.Now()
		f.Expect(proc.Signal(syscall.SIGKILL)).To(gomega.Succeed())
		f.Eventually(func(g gomega.Gomega) {
			again, err := f.sandbox.PodProcess(pod.Namespace, pod.Name)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(again.PID()).NotTo(gomega.Equal(proc.PID()))
		}).Should(gomega.Succeed())
		f.complete()
	})
	for _, w := range l.wrong {
		f.Expect(w.at.Sub(killed)).To(gomega.BeNumerically("<", noticed), w.what)
	}
}

// uninstall takes Holdfast off: first as a trial, which leaves all as it is.
func (f *fixture) uninstall() {
	out := f.must("kubectl-holdfast", nil, "uninstall", "--dry-run")
	f.t.Log(out)
	f.Expect(out).To(gomega.ContainSubstring("A trial: nothing was changed."))
	f.complete()
	f.guarded("master-1", "master-2")

	out, err := f.command("kubectl-holdfast", nil, "uninstall")
	f.Expect(err).To(gomega.HaveOccurred(), "nobody was asked: %s", out)
	f.Expect(out).To(gomega.ContainSubstring("--yes"))

	out = f.must("kubectl-holdfast", nil, "uninstall", "--yes")
	f.t.Log(out)
	f.Expect(out).To(gomega.ContainSubstring("Nothing of Holdfast is left."))
	f.nothingLeft("master-1", "master-2")
	f.Expect(f.must("kubectl-holdfast", nil, "uninstall", "--yes")).To(gomega.ContainSubstring("Nothing of Holdfast is on this cluster."))
}

// nothingLeft looks at all objects of all kinds for Holdfast's name, which is not how uninstall looks, and at Machines for the latch.
func (f *fixture) nothingLeft(machines ...string) {
	var kinds []string
	for kind := range strings.FieldsSeq(f.must("kubectl", nil, "api-resources", "--verbs=list", "-o", "name")) {
		if kind != "events" && !strings.HasPrefix(kind, "events.") { // they end by themselves
			kinds = append(kinds, kind)
		}
	}
	out := f.must("kubectl", nil, "get", strings.Join(kinds, ","), "-A", "-o", `jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.annotations} {.metadata.finalizers}{"\n"}{end}`)
	var left []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "holdfast") {
			left = append(left, line)
		}
	}
	f.Expect(left).To(gomega.BeEmpty())
	for _, name := range machines {
		f.Expect(machineapi.Machine(f.machine(name)).Latch).To(gomega.Equal(quorum.EntryAbsent), name)
	}
}

// replace follows the documented procedure for a Machine that is being deleted already.
func (f *fixture) replace(old, name string) {
	next, err := sandbox.Replacement(f.machine(old), name, sandbox.InstanceType)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.Eventually(func() error { return client.IgnoreAlreadyExists(f.alice.Create(f.t.Context(), next)) }).Should(gomega.Succeed())
	f.Eventually(func() error {
		return f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: old}, &machinev1beta1.Machine{})
	}).WithTimeout(3 * time.Minute).Should(gomega.Satisfy(apierrors.IsNotFound))
	f.guarded(name)
}

// guards looks whether what was installed works: two replicas apart, registrations, latches, and a second
// deletion refused.
func (f *fixture) guards() {
	ctx := f.t.Context()
	nodes := map[string]bool{}
	for _, pod := range f.pods() {
		nodes[pod.Spec.NodeName] = true
	}
	f.Expect(nodes).To(gomega.HaveLen(2))
	f.guarded("master-0", "master-1", "master-2")
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	f.Expect(f.admin.Get(ctx, client.ObjectKey{Name: registrations.Name}, &validating)).To(gomega.Succeed())
	for _, w := range validating.Webhooks {
		f.Expect(w.ClientConfig.Service).NotTo(gomega.BeNil())
		f.Expect(w.ClientConfig.CABundle).NotTo(gomega.BeEmpty())
	}
	out := f.must("kubectl", nil, "delete", "machine", "master-0", "--wait=false", "-n", sandbox.MachineNamespace)
	f.Expect(out).To(gomega.ContainSubstring("Holdfast (held)"))
	out, err := f.command("kubectl", nil, "delete", "machine", "master-1", "--wait=false", "-n", sandbox.MachineNamespace)
	f.Expect(err).To(gomega.HaveOccurred())
	f.Expect(out).To(gomega.ContainSubstring("Refused (one-too-many)"))
	f.Expect(f.must("kubectl-holdfast", nil, "status")).To(gomega.ContainSubstring("master-0"))
	f.t.Log(f.must("kubectl-holdfast", nil, "status"))
}

// tainted has Machines hand a taint and a label to their Nodes, as whoever may write Machines can. A pod that does not tolerate the taint is evicted;
// Holdfast's stay, and a new one finds a Node.
func (f *fixture) tainted() {
	const (
		role  = "node-role.kubernetes.io/control-plane"
		patch = `{"spec":{"taints":%s,"metadata":{"labels":{"` + role + `":%s}}}}`
	)
	pods, nodes := map[types.UID]bool{}, []string(nil)
	for _, pod := range f.pods() {
		pods[pod.UID] = true
	}
	hand := func(taints, value string) {
		for _, name := range []string{"master-0", "master-1", "master-2"} {
			f.must("kubectl", nil, "patch", "machine", name, "-n", sandbox.MachineNamespace, "--type=merge", "-p", fmt.Sprintf(patch, taints, value))
		}
	}
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		node := f.machine(name).Status.NodeRef.Name
		nodes = append(nodes, node)
		f.Expect(f.admin.Create(f.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "canary-" + node},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "canary", Image: "none"}}},
		})).To(gomega.Succeed())
	}
	hand(`[{"key":"evil","effect":"NoExecute"}]`, `"x"`)
	f.Eventually(func(g gomega.Gomega) {
		for _, node := range nodes {
			pod := &corev1.Pod{}
			if err := f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "canary-" + node}, pod); !apierrors.IsNotFound(err) {
				g.Expect(err).NotTo(gomega.HaveOccurred())
				g.Expect(pod.DeletionTimestamp).NotTo(gomega.BeNil(), "the taint evicts pods from %s", node)
			}
			var n corev1.Node
			g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Name: node}, &n)).To(gomega.Succeed())
			g.Expect(n.Labels).To(gomega.HaveKeyWithValue(role, "x"))
		}
	}).Should(gomega.Succeed())
	f.Expect(f.pods()).To(gomega.HaveLen(len(pods)))
	for _, pod := range f.pods() {
		f.Expect(pods).To(gomega.HaveKey(pod.UID))
		f.Expect(pod.DeletionTimestamp).To(gomega.BeNil())
	}
	f.must("kubectl", nil, "delete", "pod", f.pods()[0].Name, "-n", namespace)
	f.complete()
	hand("null", "null")
	for _, node := range nodes {
		f.must("kubectl", nil, "taint", "node", node, "evil-")
		f.must("kubectl", nil, "label", "node", node, "--overwrite", role+"=")
		f.must("kubectl", nil, "delete", "pod", "canary-"+node, "-n", metav1.NamespaceDefault, "--ignore-not-found", "--force", "--grace-period=0")
	}
}

// others has the API server check the other overlays, as far as it knows the kinds, and looks that guard mode
// has no right that full mode alone needs.
func (f *fixture) others() {
	for _, overlay := range []string{"openshift", "cert-manager", "self-signed"} {
		manifests := f.render(overlay, "")
		var known []byte
		for _, u := range objects(f.t, manifests) {
			group := u.GroupVersionKind().Group
			if group == "cert-manager.io" || group == "monitoring.coreos.com" || u.GetNamespace() == "openshift-config-managed" {
				continue // not in this cluster
			}
			text, err := yaml.Marshal(u.Object)
			f.Expect(err).NotTo(gomega.HaveOccurred())
			known = append(append(known, "---\n"...), text...)
		}
		out := f.must("kubectl", known, "apply", "--dry-run=server", "-f", "-")
		f.Expect(out).NotTo(gomega.ContainSubstring("Warning"), overlay)
		f.Expect(out).To(gomega.ContainSubstring("deployment.apps/holdfast "))

		more := grants(f.t, f.render(overlay, "", "full-mode", "single-node"))
		for _, right := range []string{"patch nodes", "update configmaps/etcd-membership in openshift-etcd", "create pods in openshift-etcd", "delete pods in openshift-etcd"} {
			has := func(g grant) bool { return g.String() == right }
			f.Expect(slices.ContainsFunc(more, has)).To(gomega.BeTrue(), right)
			f.Expect(slices.ContainsFunc(grants(f.t, manifests), has)).To(gomega.BeFalse(), right)
		}
	}
}

// upset has others touch what Holdfast keeps, so that it puts that right.
func (f *fixture) upset() {
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		f.must("kubectl", nil, "delete", kind, registrations.Name)
		f.Eventually(func() error { _, err := f.command("kubectl", nil, "get", kind, registrations.Name); return err }).Should(gomega.Succeed())
		f.must("kubectl", nil, "patch", kind, registrations.Name, "--type=json", `-p=[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":29}]`)
	}
	const garbage = "e30="
	shared := []string{"-n", namespace, "get", "secret", "holdfast-webhook-shared", "-o", `jsonpath={.metadata.uid} {.data.shared\.json}`}
	for _, patch := range []string{`{"data":{"shared.json":"` + garbage + `"}}`, `{"immutable":true,"data":{"shared.json":"` + garbage + `"}}`} {
		uid, _, _ := strings.Cut(f.must("kubectl", nil, shared...), " ")
		f.must("kubectl", nil, "-n", namespace, "patch", "secret", "holdfast-webhook-shared", "--type=merge", "-p="+patch)
		f.Eventually(func(g gomega.Gomega) {
			now, err := f.command("kubectl", nil, shared...)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(now).NotTo(gomega.HaveSuffix(garbage))
			g.Expect(strings.HasPrefix(now, uid)).To(gomega.Equal(!strings.Contains(patch, "immutable")), "an immutable Secret is made anew, and no other: %s", now)
		}).Should(gomega.Succeed())
	}
	const ledger = `jsonpath={.metadata.uid} {.data}`
	was := f.must("kubectl", nil, "-n", sandbox.MachineNamespace, "get", "configmap", machineapi.LedgerName, "-o", ledger)
	garble := []string{"-n", sandbox.MachineNamespace, "patch", "configmap", machineapi.LedgerName, "--type=merge", `-p={"data":{"uid":"no JSON"}}`}
	out, err := f.command("kubectl", nil, garble...)
	f.Expect(err).To(gomega.HaveOccurred())
	f.Expect(out).To(gomega.ContainSubstring("(own-records)"))
	const garbled = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + machineapi.LedgerName + `"},"data":{"uid":"no JSON"}}`
	f.must("kubectl", []byte(garbled), "-n", sandbox.MachineNamespace, "replace", "-f", "-", "--as=system:serviceaccount:holdfast-system:holdfast")
	f.Eventually(func(g gomega.Gomega) {
		now, err := f.command("kubectl", nil, "-n", sandbox.MachineNamespace, "get", "configmap", machineapi.LedgerName, "-o", ledger)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(now).NotTo(gomega.Or(gomega.Equal(was), gomega.ContainSubstring("no JSON")))
	}).Should(gomega.Succeed())
	for _, policy := range registrations.PolicyNames() {
		for kind, patch := range map[string]string{
			"validatingadmissionpolicy":        `[{"op":"replace","path":"/spec/failurePolicy","value":"Ignore"}]`,
			"validatingadmissionpolicybinding": `[{"op":"replace","path":"/spec/validationActions","value":["Audit"]}]`,
		} {
			f.must("kubectl", nil, "delete", kind, policy)
			f.Eventually(func() error { _, err := f.command("kubectl", nil, "get", kind, policy); return err }).Should(gomega.Succeed())
			f.must("kubectl", nil, "patch", kind, policy, "--type=json", "-p="+patch)
		}
	}
}

// spareGuard are the rights that guard mode has and may not have used here, and why it has them.
func spareGuard() map[string]string {
	const (
		streams = "client-go streams what it watches, and lists where the API server cannot stream"
		repeats = "an Event that is repeated for minutes"
	)
	spare := map[string]string{
		"list machinesets.machine.openshift.io in openshift-machine-api":             "when a control-plane Machine is given a controller",
		"list controlplanemachinesets.machine.openshift.io in openshift-machine-api": "when a control-plane Machine is given a controller",
		"patch events.events.k8s.io in default":                                      repeats,
		"patch events in holdfast-system":                                            repeats,
		"patch events.events.k8s.io in openshift-machine-api":                        repeats,
		"list secrets/holdfast-webhook-ca in holdfast-system":                        streams,
		"update configmaps/holdfast-releases in openshift-machine-api":               "a final release, which test/scenario has",
		"update configmaps/holdfast-members in openshift-machine-api":                "a change of members, which test/custodian has",
		"delete configmaps/holdfast-members in openshift-machine-api":                "one that was made immutable",
		"update secrets/holdfast-webhook-ca in holdfast-system":                      "the CA is renewed long before it ends, in years",
		"delete secrets/holdfast-webhook-ca in holdfast-system":                      "a CA that cannot be used when a replica starts, and cannot be changed",
	}
	for _, kind := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		spare["list "+kind+".admissionregistration.k8s.io/"+registrations.Name] = streams
	}
	for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		for _, name := range registrations.PolicyNames() {
			spare["list "+kind+".admissionregistration.k8s.io/"+name] = streams
		}
	}
	return spare
}

// spareFull are those of full mode.
func spareFull() map[string]string {
	const (
		slices  = "EndpointSlices hold no loopback addresses, which is all that there is here"
		streams = "as in guard mode"
		set     = "a ControlPlaneMachineSet, which test/scenario has"
	)
	spare := spareGuard()
	for right, why := range map[string]string{
		"create endpointslices.discovery.k8s.io in openshift-etcd":                                        slices,
		"update endpointslices.discovery.k8s.io/etcd-ipv4 in openshift-etcd":                              slices,
		"update endpointslices.discovery.k8s.io/etcd-ipv6 in openshift-etcd":                              slices,
		"get poddisruptionbudgets.policy/etcd-guard-pdb in openshift-etcd":                                "guard mode's, which the component adds to",
		"list poddisruptionbudgets.policy/holdfast-quorum-guard in openshift-etcd":                        streams,
		"delete pods in openshift-etcd":                                                                   "the guard pod of a cordoned Node, when several Machines are deleted",
		"delete configmaps/etcd-membership in openshift-etcd":                                             "one that was made immutable",
		"delete configmaps/etcd-endpoints in openshift-etcd":                                              "one that was made immutable",
		"get kubeapiservers.operator.openshift.io/cluster":                                                "there is no such API here; TestNeeded of internal/observe has one",
		"patch controlplanemachinesets.machine.openshift.io in openshift-machine-api":                     set,
		"patch controlplanemachinesets/status.machine.openshift.io in openshift-machine-api":              set,
		"update controlplanemachinesets/finalizers.machine.openshift.io in openshift-machine-api":         set,
		"list controlplanemachinesets.machine.openshift.io in openshift-machine-api":                      streams,
		"create machines.machine.openshift.io in openshift-machine-api":                                   set,
		"delete machines.machine.openshift.io in openshift-machine-api":                                   set,
		"create machinehealthchecks.machine.openshift.io in openshift-machine-api":                        set,
		"get machinehealthchecks.machine.openshift.io/holdfast-control-plane in openshift-machine-api":    set,
		"update machinehealthchecks.machine.openshift.io/holdfast-control-plane in openshift-machine-api": set,
		"delete machinehealthchecks.machine.openshift.io/holdfast-control-plane in openshift-machine-api": set,
		"get infrastructures.config.openshift.io/cluster":                                                 set,
		"get deployments.apps/control-plane-machine-set-operator in openshift-machine-api":                set,
		"get clusteroperators.config.openshift.io/control-plane-machine-set":                              set,
		"patch nodes": "a Node whose learner made no progress for minutes",
		"get configmaps/etcd-ca-bundle in openshift-etcd": "guard mode's; there is none without cluster-etcd-operator",
	} {
		spare[right] = why
	}
	return spare
}
