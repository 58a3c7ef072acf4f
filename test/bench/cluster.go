package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// cluster is a sandbox and the clients that send requests to it.
type cluster struct {
	*sandbox.Sandbox
	admin client.WithWatch
	http  map[sandbox.Identity]*http.Client
	plain *http.Client // for what is not the API server
}

// start starts a sandbox of three, and waits until the guard has its hooks everywhere.
func (b *bench) start(ctx context.Context, name string, o sandbox.Options) (*cluster, error) {
	log.SetLogger(logr.Discard())
	progress("%s: starting a control plane of three, Holdfast in mode %s", name, o.Mode)
	o.Dir = filepath.Join(b.dir, name)
	s, err := sandbox.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	c := &cluster{Sandbox: s, http: map[sandbox.Identity]*http.Client{}, plain: &http.Client{Timeout: 10 * time.Second}}
	if err := c.connect(ctx, o.Mode); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return c, nil
}

func (c *cluster) connect(ctx context.Context, mode string) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.Install(scheme)); err != nil {
		return err
	}
	config := c.Config(sandbox.Admin)
	config.WarningHandler = rest.NoWarnings{}
	var err error
	if c.admin, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	for _, who := range []sandbox.Identity{sandbox.Admin, sandbox.Alice, sandbox.GitOps, sandbox.MachineAPI, sandbox.EtcdOperator} {
		if c.http[who], err = rest.HTTPClientFor(c.Config(who)); err != nil {
			return err
		}
	}
	if mode == "guard" { // the hook is cluster-etcd-operator's to put
		for _, name := range masters() {
			r := request{as: sandbox.EtcdOperator, method: http.MethodPatch, path: machine(name), body: `{"spec":{"lifecycleHooks":{"preDrain":[{"name":"` + quorum.HookName + `","owner":"` + quorum.HookOwner + `"}]}}}`}
			if err := until(ctx, "the hook on "+name, func(ctx context.Context) error { _, err := c.send(ctx, &r); return err }); err != nil {
				return err
			}
		}
	}
	return until(ctx, "hooks and evidence on all Machines", c.guarded)
}

// guarded says which Machine lacks hook, latch or evidence.
func (c *cluster) guarded(ctx context.Context) error {
	var list machinev1beta1.MachineList
	if err := c.admin.List(ctx, &list, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if m := machineapi.Machine(&list.Items[i]); m.ControlPlane() && (!m.Protected() || len(m.OwnEvidence().MemberIDs) == 0) {
			return fmt.Errorf("Machine %s is not guarded", m.Name)
		}
	}
	return nil
}

// until tries until it works, for as long as a slow computer needs.
func until(ctx context.Context, what string, holds func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		last = holds(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w; last: %w", what, err, last)
	}
	return nil
}

// quiet ends what else acts on Machines, so that all requests meet the guard and the API server alone.
func (c *cluster) quiet(ctx context.Context) error {
	if err := c.MachineAPI.Stop(); err != nil {
		return err
	}
	for _, other := range []*sandbox.Component{c.ControllerManager, c.Scheduler} {
		if err := other.Kill(); err != nil {
			return err
		}
	}
	for _, o := range []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}} {
		o.SetName("machine-api")
		if err := c.admin.Delete(ctx, o); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func masters() []string { return []string{"master-0", "master-1", "master-2"} }

// machine is the path of a Machine in the API.
func machine(name string) string {
	return "/apis/machine.openshift.io/v1beta1/namespaces/" + sandbox.MachineNamespace + "/machines/" + name
}

const dryRun = "?dryRun=All"

// request is one request to the API server, a merge patch if it is a PATCH.
type request struct {
	as           sandbox.Identity
	method, path string
	body         string
	refused      bool                       // is to be refused
	want         func(answer []byte) string // what is wrong with the answer, "" for nothing; nil for no look
}

// errOtherwise is another answer than the one that was to come.
var errOtherwise = errors.New("not the answer that was to come")

// send sends it, and says how long the answer took.
func (c *cluster) send(ctx context.Context, r *request) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.Server()+r.path, strings.NewReader(r.body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if r.method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	began := time.Now()
	resp, err := c.http[r.as].Do(req)
	if err != nil {
		return 0, err
	}
	raw, err := io.ReadAll(resp.Body)
	took := time.Since(began)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return 0, err
	}
	// A policy refuses with 422, a webhook with 403.
	refused := resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusUnprocessableEntity
	if !refused && resp.StatusCode >= 300 || refused != r.refused {
		return took, fmt.Errorf("%w: %s %s as %s was answered %s: %.300s", errOtherwise, r.method, r.path, r.as, resp.Status, raw)
	}
	if r.want != nil {
		if wrong := r.want(raw); wrong != "" {
			return took, fmt.Errorf("%w: %s %s as %s: %s", errOtherwise, r.method, r.path, r.as, wrong)
		}
	}
	return took, nil
}

// burst is what became of many requests.
type burst struct {
	took      []time.Duration
	over      time.Duration // from the first request to the last answer
	otherwise int           // answers that were not those that were to come
}

// many sends n requests from a number of clients. One client alone is to be answered as it has to be; of
// several, the API server gives up on a webhook for some if the computer is too slow, and those are counted.
func (c *cluster) many(ctx context.Context, clients, n int, r *request) (burst, error) {
	var (
		next, wrong atomic.Int64
		work        sync.WaitGroup
		took        = make([]time.Duration, n)
		errs        = make([]error, clients)
	)
	began := time.Now()
	for k := range clients {
		work.Go(func() {
			for i := next.Add(1) - 1; int(i) < n && errs[k] == nil; i = next.Add(1) - 1 {
				if took[i], errs[k] = c.send(ctx, r); clients > 1 && errors.Is(errs[k], errOtherwise) {
					wrong.Add(1)
					errs[k] = nil
				}
			}
		})
	}
	work.Wait()
	return burst{took, time.Since(began), int(wrong.Load())}, errors.Join(errs...)
}

// hooked says whether an answer is a Machine with the hook, as expected or not.
func hooked(with bool) func([]byte) string {
	return func(answer []byte) string {
		if has := bytes.Contains(answer, []byte(`{"name":"`+quorum.HookName+`"`)); has != with {
			return fmt.Sprintf("the Machine has the hook: %t", has)
		}
		return ""
	}
}

// worker is a Machine that is not guarded.
func worker(name string) *machinev1beta1.Machine {
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, name
	m.Labels = map[string]string{
		"machine.openshift.io/cluster-api-cluster": "sandbox", "machine.openshift.io/cluster-api-machine-role": "worker",
		"machine.openshift.io/cluster-api-machine-type": "worker", "machine.openshift.io/cluster-api-machineset": "sandbox-worker-a",
		"machine.openshift.io/instance-type": "m5.large", "machine.openshift.io/region": "region-1", "machine.openshift.io/zone": "zone-a",
	}
	m.Annotations = map[string]string{"machine.openshift.io/instance-state": "running"}
	m.Spec.ProviderID = new("process:///" + name)
	m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: json.RawMessage(`{"apiVersion":"process.holdfast.dev/v1","kind":"ProcessMachineProviderSpec","instanceType":"m5.large","pad":"` + strings.Repeat("x", 1500) + `"}`)}
	return m
}

// node is a Node that is no host of etcd, of the size that one of a large cluster has.
func node(name string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = name
	n.Labels = map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "node-role.kubernetes.io/worker": "", "node.openshift.io/os_id": "rhcos",
		"node.kubernetes.io/instance-type": "m5.large", "topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": "zone-a",
	}
	n.Annotations = map[string]string{
		"machine.openshift.io/machine": sandbox.MachineNamespace + "/" + name, "machineconfiguration.openshift.io/state": "Done",
		"machineconfiguration.openshift.io/currentConfig": "rendered-worker-0123456789abcdef0123456789abcdef", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
	}
	for i := range 20 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("images.example.com/a/b%d@sha256:%064d", i, i)}, SizeBytes: 1 << 28})
	}
	return n
}
