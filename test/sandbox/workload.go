package sandbox

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/process"
)

// workload is a pod whose container runs: Holdfast's, as a process. It has neither a file system nor a
// network of its own, so its flags are told where its volumes are, and the pod's address to listen on.
// Its service account's token comes in a kubeconfig, since in a pod it would be at a fixed path.
type workload struct {
	host    *host
	pod     *corev1.Pod
	address string // the pod's own, on loopback

	cancel      context.CancelFunc
	terminate   chan struct{} // closed when the pod is deleted
	terminating sync.Once
	done        chan struct{} // closed when nothing of it runs any more

	mu       sync.Mutex
	proc     *process.Process // the last one
	ready    bool
	why      string
	restarts int32
}

// runs says whether the kubelets run that pod: those whose image is Holdfast's.
func runs(pod *corev1.Pod) bool {
	name, _, _ := strings.Cut(path.Base(pod.Spec.Containers[0].Image), "@")
	name, _, _ = strings.Cut(name, ":")
	return name == "holdfast"
}

// startWorkload runs the pod's container until the pod is deleted or the context ends.
func (h *host) startWorkload(ctx context.Context, pod *corev1.Pod) *workload {
	w := &workload{host: h, pod: pod, address: h.cloud.podAddress(), terminate: make(chan struct{}), done: make(chan struct{}), why: "the container is being made"}
	ctx, w.cancel = context.WithCancel(ctx)
	go func() {
		defer close(w.done)
		w.run(ctx)
	}()
	return w
}

// kill ends it at once, and waits.
func (w *workload) kill() {
	w.cancel()
	<-w.done
}

// stop has it end in order. It does not wait.
func (w *workload) stop() { w.terminating.Do(func() { close(w.terminate) }) }

func (w *workload) state() (proc *process.Process, ready bool, why string, restarts int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.proc, w.ready, w.why, w.restarts
}

// set changes the state, and has the kubelet write it.
func (w *workload) set(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	w.host.cloud.pods.wake()
}

// run starts the container again whenever it ends, after a pause.
func (w *workload) run(ctx context.Context) {
	const shortest, longest = 250 * time.Millisecond, 4 * time.Second
	pause := shortest
	for {
		began := time.Now()
		err := w.once(ctx)
		if ctx.Err() != nil || closed(w.terminate) {
			return
		}
		w.host.log.Warn("container ended", "pod", w.pod.Name, "error", err)
		w.set(func() { w.ready, w.why = false, fmt.Sprint(err) })
		if time.Since(began) > longest {
			pause = shortest
		}
		select {
		case <-ctx.Done():
			return
		case <-w.terminate:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// once runs the container until it ends, and says why. What it started does not outlive it.
func (w *workload) once(ctx context.Context) (err error) {
	spec, err := w.spec(ctx)
	if err != nil {
		return err
	}
	proc, err := process.Start(spec)
	if err != nil {
		return err
	}
	defer func() { _ = proc.Stop(0) }()
	w.set(func() {
		if w.proc != nil {
			w.restarts++
		}
		w.proc, w.ready, w.why = proc, false, "the probe has not run yet"
	})
	w.host.log.Info("container runs", "pod", w.pod.Name, "pid", proc.PID())
	beside, leave := context.WithCancel(ctx)
	sick := make(chan error, 1)
	var work sync.WaitGroup
	work.Go(func() { w.host.followVolumes(beside, w.pod) })
	work.Go(func() {
		if err := runProbes(beside, &w.pod.Spec.Containers[0], w.probe, w.is); err != nil {
			sick <- err
		}
	})
	defer work.Wait()
	defer leave()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-proc.Done():
		if err := proc.Err(); err != nil {
			return err
		}
		return fmt.Errorf("%s ended", proc.Log())
	case <-w.terminate:
		return w.end(proc)
	case err := <-sick:
		return err
	}
}

// is keeps whether the container is ready, and why not.
func (w *workload) is(wrong error) {
	if _, was, _, _ := w.state(); was == (wrong == nil) {
		return
	}
	w.set(func() {
		if w.ready, w.why = wrong == nil, ""; wrong != nil {
			w.why = wrong.Error()
		}
	})
}

// end is what a kubelet does with the container of a deleted pod: SIGTERM, and SIGKILL when the pod's grace is
// over.
func (w *workload) end(proc *process.Process) error {
	grace := 30 * time.Second
	if s := w.pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	began := time.Now()
	err := proc.Stop(grace)
	w.host.log.Info("container stopped", "pod", w.pod.Name, "took", time.Since(began))
	return err
}

// probe asks the container: over HTTP, or by a command on its host.
func (w *workload) probe(ctx context.Context, probe *corev1.Probe) error {
	container := &w.pod.Spec.Containers[0]
	switch {
	case probe.Exec != nil:
		return w.host.run(ctx, w.pod, container, probe.Exec.Command, limitOf(probe))
	case probe.HTTPGet == nil:
		return fmt.Errorf("the sandbox's kubelets know no such probe: %v", probe)
	}
	port, err := portOf(w.pod, probe.HTTPGet.Port)
	if err != nil {
		return err
	}
	return probeHTTP(ctx, http.DefaultClient, limitOf(probe), "http://"+joinPort(w.address, port)+probe.HTTPGet.Path)
}

// portOf resolves the name or the number of a port.
func portOf(pod *corev1.Pod, port intstr.IntOrString) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	for _, p := range pod.Spec.Containers[0].Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort), nil
		}
	}
	return 0, fmt.Errorf("pod %s has no port %s", pod.Name, port.StrVal)
}

// spec is how the container's command runs on this host.
func (w *workload) spec(ctx context.Context) (process.Spec, error) {
	if err := w.host.mount(ctx, w.pod); err != nil {
		return process.Spec{}, err
	}
	container := &w.pod.Spec.Containers[0]
	if len(container.Command) == 0 {
		return process.Spec{}, fmt.Errorf("container %s has no command", container.Name)
	}
	binary, err := assets.Path(container.Command[0])
	if err != nil {
		return process.Spec{}, err
	}
	inside := w.host.inside(w.pod, container)
	variables := w.host.variables(w.pod, container, w.address)
	var names, env []string
	for _, v := range variables {
		names = append(names, "$("+v[0]+")", v[1])
		env = append(env, v[0]+"="+inside.Replace(v[1]))
	}
	expand := strings.NewReplacer(names...)
	var args []string
	for _, arg := range slices.Concat(container.Command[1:], container.Args) {
		arg = inside.Replace(expand.Replace(arg))
		if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(value, ":") { // all addresses: the pod's
			arg = flag + "=" + w.address + value
		}
		args = append(args, arg)
	}
	if args[0] == "run" {
		kubeconfig, err := w.token(ctx)
		if err != nil {
			return process.Spec{}, err
		}
		args = append(args, "--webhook-host="+w.address, "--kubeconfig="+kubeconfig)
	}
	return process.Spec{
		Name: "pod " + w.pod.Name, Path: binary, Args: args, Env: env,
		Log: filepath.Join(w.host.cloud.logs, "pod-"+w.pod.Name+".log"),
	}, nil
}

// token asks for a token of the pod's service account, bound to the pod and good for an hour, and writes a
// kubeconfig with it.
func (w *workload) token(ctx context.Context) (kubeconfig string, err error) {
	seconds := int64(3600)
	account := w.pod.Spec.ServiceAccountName
	review, err := w.host.cloud.pods.core.ServiceAccounts(w.pod.Namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: w.pod.Name, UID: w.pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("a token of service account %s/%s: %w", w.pod.Namespace, account, err)
	}
	if err := os.MkdirAll(w.host.podDir(w.pod), 0o700); err != nil {
		return "", fmt.Errorf("the volumes of pod %s: %w", w.pod.Name, err)
	}
	kubeconfig = filepath.Join(w.host.podDir(w.pod), "kubeconfig")
	if err := writeKubeconfig(kubeconfig, w.host.cloud.server, w.host.cloud.ca.CertPEM(), "pod", review.Status.Token, ""); err != nil {
		return "", fmt.Errorf("the kubeconfig of pod %s: %w", w.pod.Name, err)
	}
	return kubeconfig, nil
}

// PodProcess is the process of a pod's container that was started last, if one runs such pods. Killing it
// is a crash: the kubelet starts it again.
func (s *Sandbox) PodProcess(namespace, name string) (*process.Process, error) {
	for _, h := range s.cloud.all() {
		h.mu.Lock()
		all := slices.Collect(maps.Values(h.workloads))
		h.mu.Unlock()
		for _, w := range all {
			if proc, _, _, _ := w.state(); proc != nil && w.pod.Namespace == namespace && w.pod.Name == name {
				return proc, nil
			}
		}
	}
	return nil, fmt.Errorf("no container of pod %s/%s runs", namespace, name)
}
