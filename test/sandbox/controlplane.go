package sandbox

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/process"
)

// EtcdNamespace is where the quorum guard is, and what etcd's pods are told.
const EtcdNamespace = "openshift-etcd"

// What budgets and, where Holdfast is installed by its manifests, its Deployment are in the hands of.
const (
	controllerManager Identity = "system:kube-controller-manager"
	scheduler         Identity = "system:kube-scheduler"
)

// controllerManagerSpec runs those of kube-controller-manager's controllers that
// the quorum guard is in the hands of. The rest would only take part in the
// hosts' play: what they do for Nodes the cloud does.
func (s *Sandbox) controllerManagerSpec() (process.Spec, error) {
	path, err := assets.Path("kube-controller-manager")
	if err != nil {
		return process.Spec{}, err
	}
	controllers := "disruption-controller,garbage-collector-controller"
	var more []string
	if s.options.ForInstall {
		// What is installed is taken away again, and what a Node is tainted with ends the pods that do not tolerate it: for that controller the
		// one of DaemonSets finds the pods of a Node.
		controllers += ",deployment-controller,replicaset-controller,namespace-controller,taint-eviction-controller,daemonset-controller"
		old, err := assets.Older(path, "1.34")
		if err != nil {
			return process.Spec{}, err
		}
		if old { // It is the one of Nodes that finds them. No kubelet here renews a lease, so it has no say about a Node.
			controllers += ",node-lifecycle-controller"
			more = []string{"--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"}
		}
	}
	return process.Spec{
		Name: "kube-controller-manager", Path: path, Log: s.logFile("kube-controller-manager"),
		Args: append([]string{
			"--kubeconfig=" + s.Kubeconfig(controllerManager),
			"--controllers=" + controllers,
			"--leader-elect=false", "--secure-port=0", "--concurrent-gc-syncs=2",
		}, more...),
	}, nil
}

// schedulerConfig has a pod that fits nowhere tried again within a second of
// the Node that it waited for. Ten, the default, is for clusters that are full.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
clientConnection: {kubeconfig: %q}
`

func (s *Sandbox) schedulerSpec() (process.Spec, error) {
	path, err := assets.Path("kube-scheduler")
	if err != nil {
		return process.Spec{}, err
	}
	config := filepath.Join(s.Dir, "kubeconfig", "kube-scheduler.config")
	if err := os.WriteFile(config, fmt.Appendf(nil, schedulerConfig, s.Kubeconfig(scheduler)), 0o600); err != nil {
		return process.Spec{}, fmt.Errorf("kube-scheduler's configuration: %w", err)
	}
	return process.Spec{
		Name: "kube-scheduler", Path: path, Log: s.logFile("kube-scheduler"),
		Args: []string{"--config=" + config, "--secure-port=0"},
	}, nil
}

// startPods starts what pods and budgets need, and the hosts' part of it, where Holdfast
// keeps a quorum guard, and the garbage collector beside the platform's set operator. Holdfast does not wait for it, and neither does this.
func (s *Sandbox) startPods(ctx context.Context) error {
	if s.options.Mode != "full" && !s.options.ForInstall && !s.options.PlatformSets && !s.options.GuardPods || s.ControllerManager.Process() != nil {
		return nil
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, "apiVersion: v1\nkind: Secret\nmetadata: {name: etcd-client, namespace: %s}\ndata:\n", EtcdNamespace)
	for key, file := range map[string]string{"ca.crt": s.EtcdFiles.CA, "tls.crt": s.EtcdFiles.Cert, "tls.key": s.EtcdFiles.Key} {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("the quorum guard's certificate: %w", err)
		}
		fmt.Fprintf(text, "  %s: %s\n", key, base64.StdEncoding.EncodeToString(content))
	}
	if s.options.ForInstall { // by the name and key of cluster-etcd-operator's
		fmt.Fprintf(text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: etcd-ca-bundle, namespace: %s}\ndata: {ca-bundle.crt: %q}\n", EtcdNamespace, s.ca.CertPEM())
	}
	objects, err := parse("pods", []byte(text.String()))
	if err != nil {
		return err
	}
	if err := s.apply(ctx, objects...); err != nil {
		return err
	}
	s.cloud.pods.start(s.watching, &s.work)
	if s.options.ForInstall {
		s.startProxy()
	}
	if err := s.ControllerManager.Start(); err != nil || !s.options.ForInstall {
		return err // the quorum guard's pods are made for their Nodes
	}
	return s.Scheduler.Start()
}
