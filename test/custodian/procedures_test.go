package custodian_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/install"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestProcedures types OpenShift's own procedures for a control plane in trouble, step by step, with Holdfast in guard mode beside the
// stand-in for cluster-etcd-operator. docs/incidents.md has them as a table. Each begins and ends with the control plane at rest.
//
// The sandbox has no static pods as objects, no baremetal-operator and no etcds.operator.openshift.io: their objects are there, and only
// Holdfast sees what is asked of them. What a script does on a host is done to the sandbox's host. The procedures that need the control
// plane machine set operator are in TestPlatformSets.
func TestProcedures(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Mode: "guard"})
	p := &procedure{cluster: c, dir: t.TempDir()}
	p.platform(t)
	for _, part := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"an unhealthy member whose machine is not running", p.notRunning},
		{"an unhealthy member whose pod crashes over and over", p.crashLooping},
		{"a bare metal host is replaced", p.bareMetal},
		{"etcd's operator is degraded after a health check's deletion", p.degraded},
		{"a machine is replaced by one of another size", p.resized},
		{"the control plane machine set is removed", p.withoutSet},
		{"quorum is restored on one host, and two are gone for good", p.quorumRestored},
		{"a previous state is restored, and the hosts come back", p.stateRestored},
	} {
		stop := c.operates(t)
		eventually(t, "a control plane at rest", c.restless)
		stop()
		if !t.Run(part.name, part.run) {
			return // those after it begin with a control plane at rest
		}
	}
	c.operates(t)
	eventually(t, "a control plane at rest", c.restless)
}

// procedure is a person who types what a page says.
type procedure struct {
	*cluster
	dir string
}

// step is one line of a procedure, and what Holdfast says to it: each of these texts and, where there are none, not a word.
type step struct {
	line    string
	says    []string
	refused bool
}

// byHoldfast is how it begins what it says.
var byHoldfast = regexp.MustCompile(`(Holdfast|Refused) \([a-z-]+\)`)

// unanswered is what a person sees who types while etcd elects a leader, and then types it again; already is the answer where the first try was done.
var (
	unanswered = regexp.MustCompile(`etcdserver: |Unable to connect to the server|connection refused|context deadline exceeded|unexpected EOF`)
	already    = regexp.MustCompile(`\((NotFound|AlreadyExists)\)|already exists`)
)

// types does the steps of a procedure, in order.
func (p *procedure) types(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		var out string
		var err error
		tries := 0
		eventually(t, "an answer to "+s.line, func(context.Context) error {
			tries++
			if out, err = p.shell(t, s.line); err != nil && unanswered.MatchString(out) {
				return errors.New(out)
			}
			return nil
		})
		t.Logf("$ %s\n%s", s.line, out)
		if tries > 1 && err != nil && already.MatchString(out) {
			continue
		}
		if (err != nil) != s.refused {
			t.Fatalf("%s: %v, refused: %t\n%s", s.line, err, s.refused, out)
		}
		for _, text := range s.says {
			if !strings.Contains(out, text) {
				t.Errorf("%s: does not say %q:\n%s", s.line, text, out)
			}
		}
		if heard := byHoldfast.FindString(out); len(s.says) == 0 && heard != "" {
			t.Errorf("%s: %s, and it was in nobody's way", s.line, heard)
		}
	}
}

// shell runs a line of a person who has kubectl, the plugin and, as in a pod of an etcd that is well, etcdctl.
func (p *procedure) shell(t *testing.T, line string) (string, error) {
	t.Helper()
	kubectl, err := assets.Path("kubectl")
	must(t, err)
	plugin, err := assets.Path("kubectl-holdfast")
	must(t, err)
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", line)
	cmd.Dir = p.dir
	var well []string
	for _, host := range p.Hosts() {
		if host.Etcd != nil && host.Ready {
			well = append(well, host.ClientURL)
		}
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+p.dir, "KUBECONFIG="+p.Kubeconfig(sandbox.Alice), "PATH="+filepath.Dir(kubectl)+":"+filepath.Dir(plugin)+":"+os.Getenv("PATH"),
		"ETCDCTL_ENDPOINTS="+strings.Join(well, ","), "ETCDCTL_CACERT="+p.EtcdFiles.CA, "ETCDCTL_CERT="+p.EtcdFiles.Cert, "ETCDCTL_KEY="+p.EtcdFiles.Key)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// platform makes what the procedures change and the sandbox has not.
func (p *procedure) platform(t *testing.T) {
	t.Helper()
	crd := func(group, version, plural, kind, scope string) string {
		return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s}
spec:
  group: %[1]s
  scope: %[5]s
  names: {plural: %[3]s, singular: %[6]s, kind: %[4]s}
  versions:
  - name: %[2]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---`, group, version, plural, kind, scope, strings.ToLower(kind))
	}
	p.file(t, "crds.yaml", crd("operator.openshift.io", "v1", "etcds", "Etcd", "Cluster")+crd("metal3.io", "v1alpha1", "baremetalhosts", "BareMetalHost", "Namespaced"))
	p.file(t, "etcd.yaml", "{apiVersion: operator.openshift.io/v1, kind: Etcd, metadata: {name: cluster}, spec: {managementState: Managed}}\n")
	p.types(t, step{line: "kubectl apply -f crds.yaml && kubectl wait --for=condition=Established -f crds.yaml"},
		step{line: "kubectl apply -f etcd.yaml"})
	for _, host := range p.Hosts() {
		for _, kind := range []string{"peer", "serving", "serving-metrics"} {
			p.types(t, step{line: "kubectl create secret generic -n openshift-etcd etcd-" + kind + "-" + host.Name})
		}
	}
}

func (p *procedure) file(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
}

// saved is a Machine's manifest, as the procedures have it edited for the one that takes its place: a new name, no status, no instance.
func (p *procedure) saved(t *testing.T, old, next string) {
	t.Helper()
	p.types(t, step{line: "kubectl get machine " + old + " -n openshift-machine-api -o yaml > new-master-machine.yaml"})
	text, err := os.ReadFile(filepath.Join(p.dir, "new-master-machine.yaml"))
	must(t, err)
	var m map[string]any
	must(t, yaml.Unmarshal(text, &m))
	metadata := m["metadata"].(map[string]any)
	metadata["name"] = next
	delete(m, "status")
	delete(m["spec"].(map[string]any), "providerID")
	text, err = yaml.Marshal(m)
	must(t, err)
	p.file(t, "with-its-host.yaml", string(text))
	delete(metadata["annotations"].(map[string]any), "metal3.io/BareMetalHost") // on bare metal the annotations go, too
	text, err = yaml.Marshal(m)
	must(t, err)
	p.file(t, "new-master-machine.yaml", string(text))
}

// out removes a member from etcd by hand, and its secrets. etcd refuses for the first five seconds after another member came.
func (p *procedure) out(t *testing.T, name string) {
	t.Helper()
	var remove string
	eventually(t, "the ID of "+name, func(ctx context.Context) error {
		members, err := p.members(ctx)
		remove = fmt.Sprintf("etcdctl member remove %x", members[name].GetID())
		return err
	})
	eventually(t, remove, func(context.Context) error {
		if out, err := p.shell(t, remove); err != nil && !strings.Contains(out, "member not found") {
			return errors.New(out)
		}
		return nil
	})
	p.types(t, p.guardOff())
	for _, kind := range []string{"peer", "serving", "serving-metrics"} {
		p.types(t, step{line: "kubectl delete secret -n openshift-etcd etcd-" + kind + "-" + name})
	}
}

// guardOff and guardOn turn the operator's quorum guard off and on, rollOut has it start all static pods of etcd anew.
func (*procedure) guardOff() step {
	return step{line: `kubectl patch etcd/cluster --type=merge -p '{"spec": {"unsupportedConfigOverrides": {"useUnsupportedUnsafeNonHANonProductionUnstableEtcd": true}}}'`}
}

func (*procedure) guardOn() step {
	return step{line: `kubectl patch etcd/cluster --type=merge -p '{"spec": {"unsupportedConfigOverrides": null}}'`}
}

func (*procedure) rollOut() step {
	return step{line: `kubectl patch etcd cluster --type=merge -p='{"spec": {"forceRedeploymentReason": "recovery-'"$(date --rfc-3339=ns | tr ' ' T)"'"}}'`}
}

// edited is a Machine in a person's editor, who takes lines out.
func (p *procedure) edited(t *testing.T, name, awk string) string {
	t.Helper()
	editor := filepath.Join(p.dir, "editor")
	must(t, os.WriteFile(editor, []byte("#!/bin/sh\nawk '"+awk+"' \"$1\" > \"$1.new\" && mv \"$1.new\" \"$1\"\n"), 0o700))
	return "KUBE_EDITOR=" + editor + " kubectl edit machine " + name + " -n openshift-machine-api"
}

// Edits that procedures ask for.
const (
	noHooks     = `/^  lifecycleHooks:/ {print "  lifecycleHooks: {}"; skip = 1; next} skip && /^    / {next} {skip = 0; print}`
	noFinalizer = `/^  finalizers:/ {skip = 1; next} skip && /^  - / {next} {skip = 0; print}`
)

// dies cuts a host's power for good.
func (p *procedure) dies(t *testing.T, name string) {
	t.Helper()
	must(t, p.Power(name, false))
	eventually(t, "no etcd on "+name, func(context.Context) error {
		if host, _ := p.Host(name); host.Etcd != nil {
			return errors.New("it runs")
		}
		return nil
	})
}

// claimed is what Holdfast says to a manifest that was saved of another Machine.
var claimed = []string{"Holdfast (claim) left holdfast.dev/etcd-member out of Machine"}

// notRunning is "Replacing an unhealthy etcd member whose machine is not running or whose node is not ready".
func (p *procedure) notRunning(t *testing.T) {
	p.watch(t, desired-1)
	t.Cleanup(p.operates(t))
	old := p.voters(t)[0]
	p.dies(t, old)
	p.out(t, old)
	p.saved(t, old, "stopped-3")
	p.types(t,
		step{line: "kubectl delete machine -n openshift-machine-api " + old, says: []string{"hosts no etcd member, so it is released next and terminated"}},
		step{line: "kubectl apply -f new-master-machine.yaml", says: claimed},
		p.guardOn(),
		p.rollOut(),
	)
	eventually(t, "three voters, and the control plane at rest", p.restless)
}

// crashLooping is "Replacing an unhealthy etcd member whose etcd pod is crashlooping". The Machine stays.
func (p *procedure) crashLooping(t *testing.T) {
	p.watch(t, desired-1)
	t.Cleanup(p.operates(t))
	old := p.voters(t)[1]
	before, err := p.machine(t.Context(), old)
	must(t, err)
	host, _ := p.Host(old)
	p.dies(t, old)
	must(t, os.Rename(host.DataDir, host.DataDir+"-moved"))
	p.out(t, old)
	must(t, p.Power(old, true))
	p.types(t, p.rollOut(), p.guardOn())
	eventually(t, "three voters, and the control plane at rest", p.restless)
	if now, err := p.machine(t.Context(), old); err != nil || now == nil || now.UID != before.UID {
		t.Errorf("Machine %s is another one, or gone: %v", old, err)
	}
}

// bareMetal is "Replacing a control plane node" on bare metal, which deletes the BareMetalHost first, and of "Replacing an unhealthy bare
// metal etcd member" the finalizer that is edited away.
func (p *procedure) bareMetal(t *testing.T) {
	p.watch(t, desired-1)
	old := p.voters(t)[0]
	metal := func(consumer string) string {
		return fmt.Sprintf(`
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata: {name: control-plane-2, namespace: openshift-machine-api}
spec:
  automatedCleaningMode: disabled
  bmc: {address: "redfish://192.0.2.1", credentialsName: control-plane-2-bmc-secret}
  bootMACAddress: "00:00:5e:00:53:01"
  bootMode: UEFI
  externallyProvisioned: false
  online: true
%s`, consumer)
	}
	p.file(t, "host.yaml", metal(fmt.Sprintf("  consumerRef: {apiVersion: machine.openshift.io/v1beta1, kind: Machine, namespace: openshift-machine-api, name: %s}\n", old)))
	p.types(t, step{line: "kubectl apply -f host.yaml"})
	must(t, p.machineAPI.Patch(t.Context(), named(old), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":"openshift-machine-api/control-plane-2"}}}`))))
	p.dies(t, old)
	p.saved(t, old, "copied-3")

	p.types(t, step{line: "kubectl apply -f with-its-host.yaml", refused: true, says: []string{"Refused (claim)", "Leave annotation metal3.io/BareMetalHost out of the manifest"}})
	// Another order than the procedure's: the Machine is deleted first, and with it the host goes.
	p.types(t,
		step{line: "kubectl delete baremetalhost -n openshift-machine-api control-plane-2", refused: true, says: []string{"Refused (keep-host)", "To replace the Machine, delete it"}},
		step{line: "kubectl delete machine -n openshift-machine-api --wait=false " + old, says: []string{"is held until its unhealthy member has left etcd"}},
	)
	p.seen(t, old)
	p.types(t, step{line: p.edited(t, old, noFinalizer), refused: true, says: []string{"Refused (keep-finalizer)", "The finalizer goes by itself once the Machine may"}})
	t.Cleanup(p.operates(t))
	p.types(t,
		step{line: "kubectl wait --for=delete --timeout=3m machine -n openshift-machine-api " + old},
		step{line: "kubectl delete baremetalhost -n openshift-machine-api control-plane-2"},
		step{line: "kubectl delete node --ignore-not-found " + old},
	)
	p.file(t, "host.yaml", metal(""))
	next := `
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  annotations: {metal3.io/BareMetalHost: openshift-machine-api/control-plane-2}
  labels:
    machine.openshift.io/cluster-api-cluster: sandbox
    machine.openshift.io/cluster-api-machine-role: master
    machine.openshift.io/cluster-api-machine-type: master
  name: control-plane-2
  namespace: openshift-machine-api
spec:
  metadata: {}
  providerSpec: {value: {apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: m5.large}}
`
	p.file(t, "machine.yaml", next)
	p.types(t, step{line: "kubectl apply -f host.yaml"}, step{line: "kubectl apply -f machine.yaml"})
	eventually(t, "three voters, and the control plane at rest", p.restless)
	p.types(t, step{line: "kubectl delete baremetalhost -n openshift-machine-api control-plane-2"}) // the sandbox has nobody to have it consumed
}

// degraded is "Recovering a degraded etcd Operator": a health check has deleted the Machine of a member that does not answer, and the operator,
// which does not run here, removes nobody.
func (p *procedure) degraded(t *testing.T) {
	voters := p.voters(t)
	old, other := voters[0], voters[1]
	p.dies(t, old)
	p.saved(t, old, "after-check-3")
	// While the Machine is not being deleted, the edit comes to nothing.
	p.types(t, step{line: p.edited(t, old, noHooks), says: []string{"Holdfast (keep-hook)"}})
	must(t, p.machineAPI.Delete(t.Context(), named(old)))
	p.seen(t, old)
	p.types(t,
		step{line: "kubectl delete machine -n openshift-machine-api " + other, refused: true, says: []string{"Refused (one-too-many)"}},
		step{line: p.edited(t, old, noHooks), says: []string{"Holdfast (escape-hatch): hook EtcdQuorumOperator of Machine " + old + " is off for good. Holdfast is about to release the Machine", "quorum is 2"}},
		step{line: "kubectl wait --for=delete --timeout=3m machine -n openshift-machine-api " + old},
	)
	t.Cleanup(p.operates(t))
	eventually(t, "the member of "+old+" out of etcd", func(ctx context.Context) error {
		members, err := p.members(ctx)
		if err == nil && members[old] != nil {
			err = errors.New("it is listed")
		}
		return err
	})
	p.types(t, step{line: "kubectl apply -f new-master-machine.yaml", says: claimed})
	eventually(t, "three voters, and the control plane at rest", p.restless)
	for _, name := range voters[1:] {
		must(t, p.votes(t.Context(), name))
	}
}

// resized is the replacement of a Machine by hand, where no set does it. kubectl waits for the deletion's end, which comes after the replacement.
func (p *procedure) resized(t *testing.T) {
	p.watch(t, desired)
	t.Cleanup(p.operates(t))
	old := p.voters(t)[0]
	p.saved(t, old, "larger-3")
	p.types(t,
		step{line: "kubectl delete machine -n openshift-machine-api --wait=false " + old, says: []string{"is held until etcd has the wanted number of voters (3 now) without it", "If there is no replacement yet, create one"}},
		step{line: "sed -i 's/instanceType: .*/instanceType: m5.4xlarge/' new-master-machine.yaml && kubectl apply -f new-master-machine.yaml", says: claimed},
		step{line: "kubectl wait --for=delete --timeout=3m machine -n openshift-machine-api " + old},
	)
	eventually(t, "three voters, and the control plane at rest", p.restless)
}

// withoutSet is "Deleting the control plane machine set". TestPlatformSets does it beside the set's operator.
func (p *procedure) withoutSet(t *testing.T) {
	before := p.voters(t)
	must(t, p.alice.Create(t.Context(), platformSet(t)))
	p.types(t,
		step{line: `kubectl patch controlplanemachineset.machine.openshift.io cluster -n openshift-machine-api --type=merge -p '{"spec":{"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":"m5.8xlarge"}}}}}}}'`},
		step{line: "kubectl delete controlplanemachineset.machine.openshift.io cluster --namespace openshift-machine-api"},
	)
	if now := p.voters(t); !slices.Equal(now, before) {
		t.Errorf("the voters were %q and are %q", before, now)
	}
}

// quorumRestored is "Restoring etcd quorum for high availability clusters": one host is left, and each of the others is deleted and made anew.
func (p *procedure) quorumRestored(t *testing.T) {
	voters := p.voters(t)
	kept, first, second := voters[0], voters[1], voters[2]
	p.dies(t, first)
	p.dies(t, second)
	p.restored(t, kept, first, "")
	t.Cleanup(p.operates(t))
	p.saved(t, first, "restored-1")
	// etcd has one voter of three, and lists neither of the others: a Machine that is deleted now may be of the time before. A person lets the first go.
	p.types(t,
		step{line: "kubectl delete machine -n openshift-machine-api --wait=false " + first, says: []string{"as after a restore", "kubectl holdfast release"}},
		step{line: "kubectl holdfast release " + first + " --reason 'host lost with the quorum' --confirm " + first, says: []string{"is off for good"}},
		step{line: "kubectl wait --for=delete --timeout=3m machine -n openshift-machine-api " + first},
		step{line: "kubectl apply -f new-master-machine.yaml", says: claimed},
	)
	eventually(t, "restored-1 to vote", func(ctx context.Context) error { return p.votes(ctx, "restored-1") })
	p.saved(t, second, "restored-2")
	p.types(t,
		step{line: "kubectl delete machine -n openshift-machine-api " + second, says: []string{"hosts no etcd member, so it is released next and terminated"}},
		step{line: "kubectl apply -f new-master-machine.yaml", says: claimed},
		p.rollOut(),
	)
	eventually(t, "three voters, and the control plane at rest", p.restless)
	must(t, p.votes(t.Context(), kept))
}

// stateRestored is "Restoring to a previous cluster state", from a backup, and the other hosts start again without their data.
func (p *procedure) stateRestored(t *testing.T) {
	voters := p.voters(t)
	p.types(t, step{line: "ETCDCTL_ENDPOINTS=${ETCDCTL_ENDPOINTS%%,*} etcdctl snapshot save backup.db"})
	for _, name := range voters[1:] {
		host, _ := p.Host(name)
		p.dies(t, name)
		must(t, os.Rename(host.DataDir, host.DataDir+"-before-restore"))
	}
	p.restored(t, voters[0], voters[1], filepath.Join(p.dir, "backup.db"))
	t.Cleanup(p.operates(t))
	for _, name := range voters[1:] {
		must(t, p.Power(name, true))
	}
	p.types(t, p.rollOut())
	eventually(t, "three voters, and the control plane at rest", p.restless)
	if now := p.voters(t); !slices.Equal(now, voters) {
		t.Errorf("the voters were %q and are %q", voters, now)
	}
}

// restored makes a ring of one host's member, of a backup or of what the host has, as the platform's scripts do, and waits until the API
// server and Holdfast follow it: that etcd has lost the member of another Machine.
func (p *procedure) restored(t *testing.T, name, other, backup string) {
	t.Helper()
	host, _ := p.Host(name)
	p.dies(t, name)
	aside := fmt.Sprintf("%s-aside-%s", host.DataDir, filepath.Base(t.Name()))
	must(t, os.Rename(host.DataDir, aside))
	if backup == "" {
		backup = filepath.Join(aside, "member", "snap", "db")
	}
	scripts, err := install.Documented("operations.md", "Restore etcd from a snapshot")
	must(t, err)
	environment := filepath.Join(p.dir, "etcd.env")
	line := fmt.Sprintf("name=%s peer=%s data=%s snapshot=%s environment=%s\n%s", name, host.PeerURL, host.DataDir, backup, environment, scripts[1])
	if strings.HasSuffix(backup, "/db") {
		line = strings.Replace(line, "snapshot restore", "snapshot restore --skip-hash-check", 1)
	}
	p.types(t, step{line: line})
	text, err := os.ReadFile(environment)
	must(t, err)
	must(t, p.SetEnvironment(name, string(text)))
	must(t, p.Power(name, true))
	eventually(t, "a ring of "+name, func(ctx context.Context) error {
		members, err := p.members(ctx)
		if now := slices.Collect(maps.Keys(members)); err == nil && !slices.Equal(now, []string{name}) {
			err = fmt.Errorf("the members are %q", now)
		}
		return err
	})
	eventually(t, "Holdfast to follow it", func(context.Context) error {
		out, err := p.shell(t, "kubectl delete machine -n openshift-machine-api --dry-run=server "+other)
		if err == nil && !strings.Contains(out, "as after a restore") {
			err = errors.New(out)
		}
		return err
	})
	must(t, p.SetEnvironment(name, ""))
}
