package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

const (
	leaving     = "master-1"
	second      = "master-2"
	replacement = "master-3"
	larger      = "m5.2xlarge"
	largest     = "m5.4xlarge"
)

type demo struct {
	*narrator
	sandbox *sandbox.Sandbox
	client  client.Client
	etcd    *clientv3.Client
	guards  bool     // in guard mode
	files   string   // the manifests that are applied
	facts   []fact   // at the last sight
	seen    []moment // all along
}

func (d *demo) connect() (err error) {
	d.files = filepath.Join(d.sandbox.Dir, "demo")
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(machinev1beta1.Install(scheme))
	if d.client, err = client.New(d.sandbox.Config(sandbox.Admin), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if d.etcd, err = d.sandbox.EtcdClient(d.sandbox.Endpoints()...); err != nil {
		return err
	}
	return os.MkdirAll(d.files, 0o755)
}

// adopt begins full mode.
func (d *demo) adopt(ctx context.Context) error {
	d.chapter("A control plane without a guard, and Holdfast takes it on",
		"One etcd member on each Machine, three voters: etcd can lose one. Nothing holds a Machine yet.")
	s, err := d.follow(ctx, "three voters", func(s *sight) bool { return s.all(func(*machineSight) bool { return true }) })
	if err != nil {
		return err
	}
	d.table(s)
	return d.start(ctx, func(m *machineSight) bool { return m.Protected() && len(m.OwnEvidence().MemberIDs) == 1 })
}

// start starts Holdfast, and follows until each Machine is as wanted.
func (d *demo) start(ctx context.Context, wanted func(*machineSight) bool) error {
	if err := d.sandbox.StartHoldfast(ctx); err != nil {
		return err
	}
	d.event("Two replicas of Holdfast run, and the API server asks one of them about every change of a control-plane Machine")
	s, err := d.follow(ctx, "hooks on all Machines", func(s *sight) bool { return s.all(wanted) })
	if err != nil {
		return err
	}
	d.table(s)
	return nil
}

// lose is guard mode's attack on the control plane without Holdfast.
func (d *demo) lose(ctx context.Context) error {
	d.chapter("Without Holdfast: cluster-etcd-operator's hook is all that holds a deleted Machine", "Three voters: etcd can lose one.")
	s, err := d.follow(ctx, "hooks on all Machines", func(s *sight) bool {
		return s.all(func(m *machineSight) bool { return m.Hook == quorum.EntryOurs })
	})
	if err != nil {
		return err
	}
	d.table(s)
	d.chapter("Two Machines are deleted, and a GitOps tool writes them as they stand in Git: without hooks",
		"The API server lets both deletions in, and the operator puts no hook on a Machine that is being deleted.")
	var files []string
	for _, name := range [...]string{leaving, second} {
		file, err := d.inGit(ctx, name)
		if err != nil {
			return err
		}
		files = append(files, file)
		if _, err := d.kubectl(ctx, sandbox.Alice, "delete", "machine", name, "--wait=false"); err != nil {
			return fmt.Errorf("delete Machine %s: %w", name, err)
		}
	}
	for _, file := range files {
		if _, err := d.kubectl(ctx, sandbox.GitOps, "replace", "-f", file); err != nil {
			return fmt.Errorf("the GitOps tool: %w", err)
		}
	}
	hosts := d.sandbox.Hosts()
	err = d.poll(ctx, func(ctx context.Context) bool {
		left := d.sandbox.Hosts()
		if s, err := d.look(ctx); err == nil {
			d.tell(s)
		}
		if len(left) >= quorum.Size(len(hosts)) {
			return false
		}
		lost := moment{at: time.Since(d.begun), states: map[string]string{}, voters: len(left)}
		for _, h := range left {
			lost.states[h.Name] = "lost"
		}
		d.seen = append(d.seen, lost)
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := d.etcd.Get(ctx, "any", clientv3.WithCountOnly())
		if err != nil {
			d.event("%d of %d hosts is left. etcd has no quorum: a read ends with: %v", len(left), len(hosts), err)
		}
		return err != nil
	})
	if err != nil {
		return fmt.Errorf("two hosts were to go: %w", err)
	}
	if _, err := d.kubectl(ctx, sandbox.Alice, "get", "machines", "--request-timeout=5s"); err == nil {
		return errors.New("the API server answers, though etcd has no quorum")
	}
	d.say("", "")
	d.say(red, "   The control plane is lost: what is left is a restore from a backup.")
	return nil
}

// guard begins the same attack on a control plane with Holdfast.
func (d *demo) guard(ctx context.Context) error {
	d.chapter("Another control plane, with Holdfast in guard mode",
		"Where the operator has put its hook, Holdfast puts a latch beside it: the hook that only Holdfast takes off.")
	return d.start(ctx, func(m *machineSight) bool { return m.Protected() })
}

// gitops writes Machines without their hooks, as a GitOps tool does; in guard mode after the first was deleted.
func (d *demo) gitops(ctx context.Context) error {
	d.chapter("A GitOps tool writes Machines as they stand in Git: without hooks", "The hooks stay, the tool gets no error, and the Warning says why.")
	names, rules := []string{leaving}, []quorum.Rule{quorum.RuleKeepHook}
	if d.guards {
		names, rules = []string{leaving, second}, []quorum.Rule{quorum.RuleAutomationRelease, quorum.RuleKeepHook}
	}
	for i, name := range names {
		file, err := d.inGit(ctx, name)
		if err != nil {
			return err
		}
		if err := d.expect(ctx, sandbox.GitOps, "pass", rules[i], "replace", "-f", file); err != nil {
			return err
		}
	}
	s, err := d.look(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if m := s.machine(name); m == nil || !m.Protected() {
			return fmt.Errorf("Machine %s lost its hook or latch to the replace", name)
		}
		d.say("", "   Machine %s has its hook and latch still.", name)
	}
	return nil
}

// remove asks for two deletions.
func (d *demo) remove(ctx context.Context) error {
	d.chapter("A Machine is deleted, then a second one",
		"The first is held: neither drained nor terminated before a replacement votes. The second would be one too many.")
	if err := d.expect(ctx, sandbox.Alice, "pass", quorum.RuleHeld, "delete", "machine", leaving, "--wait=false"); err != nil {
		return err
	}
	d.say("", "")
	return d.expect(ctx, sandbox.Alice, "fail", quorum.RuleOneTooMany, "delete", "machine", second, "--wait=false")
}

// replace creates what the deleted Machine waits for.
func (d *demo) replace(ctx context.Context) error {
	who := "Holdfast adds a learner there, promotes it once it caught up, moves leadership if it must,\nremoves the old member, and only then lets the old Machine go."
	if d.guards {
		who = "cluster-etcd-operator adds a learner there, promotes it, removes the old member and releases its hook.\nThen Holdfast takes the latch off, and the old Machine goes."
	}
	d.chapter("A larger replacement is created: copy the Machine, rename it, give it another type, create it", "Its Node comes up, "+who)
	var old machinev1beta1.Machine
	if err := d.client.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: leaving}, &old); err != nil {
		return err
	}
	m, err := sandbox.Replacement(&old, replacement, larger)
	if err != nil {
		return err
	}
	file, err := d.save(replacement+".yaml", m)
	if err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, sandbox.Alice, "create", "-f", file); err != nil {
		return fmt.Errorf("create the replacement: %w", err)
	}
	s, err := d.follow(ctx, "the replacement", func(s *sight) bool {
		return s.machine(leaving) == nil && s.all(func(m *machineSight) bool { return m.Protected() && !m.Deleting() })
	})
	if err != nil {
		return err
	}
	d.table(s)
	if got := s.machine(replacement); got == nil || got.kind != larger {
		return fmt.Errorf("there is no Machine %s of type %s", replacement, larger)
	}
	return nil
}

// setManifest declares the control plane's Machines as they are.
const setManifest = `apiVersion: machine.openshift.io/v1
kind: ControlPlaneMachineSet
metadata: {name: cluster, namespace: openshift-machine-api}
spec:
  state: Active
  replicas: 3
  strategy: {type: OnDelete}
  selector:
    matchLabels: &labels
      machine.openshift.io/cluster-api-cluster: sandbox
      machine.openshift.io/cluster-api-machine-role: master
      machine.openshift.io/cluster-api-machine-type: master
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: *labels}
      spec: {providerSpec: {value: {apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: ` + larger + `}}}
`

// set replaces all Machines by one edit.
func (d *demo) set(ctx context.Context) error {
	d.chapter("The control plane's Machines as one set: one edit, and all three are replaced",
		"A ControlPlaneMachineSet takes the Machines over. With strategy OnDelete it replaces nothing by itself.")
	file := filepath.Join(d.files, "set.yaml")
	if err := os.WriteFile(file, []byte(setManifest), 0o600); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, sandbox.Alice, "create", "-f", file); err != nil {
		return fmt.Errorf("create the set: %w", err)
	}
	before, err := d.follow(ctx, "the set to adopt the Machines", func(s *sight) bool {
		return s.all(func(m *machineSight) bool { c := m.Controller(); return c != nil && c.Kind == "ControlPlaneMachineSet" })
	})
	if err != nil {
		return err
	}
	d.event("The set controls all three Machines")
	if _, err := d.kubectl(ctx, sandbox.Alice, "-n", sandbox.MachineNamespace, "patch", "controlplanemachineset", "cluster", "--type=merge",
		"-p", `{"spec":{"strategy":{"type":"RollingUpdate"},"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":"`+largest+`"}}}}}}}`); err != nil {
		return fmt.Errorf("change the set's template: %w", err)
	}
	s, err := d.follow(ctx, "three replacements", func(s *sight) bool {
		return s.all(func(m *machineSight) bool {
			return m.kind == largest && m.Hook == quorum.EntryOurs && before.machine(m.Name) == nil
		})
	})
	if err != nil {
		return err
	}
	d.table(s)
	return nil
}

// inGit is the file of a Machine as it stands in Git.
func (d *demo) inGit(ctx context.Context, name string) (file string, err error) {
	var m machinev1beta1.Machine
	if err := d.client.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: name}, &m); err != nil {
		return "", err
	}
	m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
	m.Annotations, m.ManagedFields, m.ResourceVersion = nil, nil, ""
	m.Status = machinev1beta1.MachineStatus{}
	return d.save(name+"-from-git.yaml", &m)
}

// save writes a manifest as a person would have it in a file.
func (d *demo) save(name string, m *machinev1beta1.Machine) (file string, err error) {
	m.APIVersion, m.Kind = machinev1beta1.GroupVersion.String(), "Machine"
	text, err := yaml.Marshal(m)
	if err != nil {
		return "", err
	}
	file = filepath.Join(d.files, name)
	return file, os.WriteFile(file, text, 0o600)
}

// expect runs kubectl, which has to pass or fail, and to say the rule.
func (d *demo) expect(ctx context.Context, as sandbox.Identity, end string, rule quorum.Rule, args ...string) error {
	out, err := d.kubectl(ctx, as, args...)
	if (err == nil) != (end == "pass") || !strings.Contains(out, "("+string(rule)+")") {
		return fmt.Errorf("kubectl %s was to %s and to say rule %s", strings.Join(args, " "), end, rule)
	}
	return nil
}

// kubectl shows a command as a person would type it, runs it, and shows what it prints.
func (d *demo) kubectl(ctx context.Context, as sandbox.Identity, args ...string) (out string, err error) {
	path, err := assets.Path("kubectl")
	if err != nil {
		return "", err
	}
	plugin, err := assets.Path("kubectl-holdfast")
	if err != nil {
		return "", err
	}
	shown := "$ kubectl"
	for _, a := range args {
		if filepath.IsAbs(a) {
			a = filepath.Base(a)
		}
		if strings.ContainsAny(a, "{ ") { // so that it can be pasted
			a = "'" + a + "'"
		}
		shown += " " + a
	}
	d.say("", "   %s%s", d.paint(bold, shown), d.paint(dim, "   # as "+string(as)))
	d.since = time.Now()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, path, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+d.sandbox.Kubeconfig(as), "COLUMNS=200", "PATH="+filepath.Dir(plugin)+":"+os.Getenv("PATH"))
	printed, err := command.CombinedOutput()
	d.output(string(printed))
	return string(printed), err
}
