package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// pods are those that the scheduler bound, as all hosts' kubelets watch them.
type pods struct {
	core  corev1client.CoreV1Interface
	store cache.Store

	mu      sync.Mutex
	changed chan struct{} // closed when a pod changes, and replaced
}

func newPods(core corev1client.CoreV1Interface) *pods {
	return &pods{core: core, store: cache.NewStore(cache.MetaNamespaceKeyFunc), changed: make(chan struct{})}
}

// start watches until the context ends. The API server may be away meanwhile.
func (p *pods) start(ctx context.Context, work *sync.WaitGroup) {
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "")
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(p.core.RESTClient(), "pods", metav1.NamespaceAll, bound),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { p.wake() },
			UpdateFunc: func(any, any) { p.wake() },
			DeleteFunc: func(any) { p.wake() },
		},
	})
	p.mu.Lock()
	p.store = store
	p.mu.Unlock()
	work.Go(func() { informer.RunWithContext(ctx) })
}

func (p *pods) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// on are the pods of a Node, and a channel that is closed when any pod changes.
func (p *pods) on(node string) ([]*corev1.Pod, <-chan struct{}) {
	all, changed := p.all()
	return slices.DeleteFunc(all, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != node }), changed
}

// all are the pods of all Nodes, with that channel.
func (p *pods) all() ([]*corev1.Pod, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*corev1.Pod
	for _, o := range p.store.List() {
		if pod, ok := o.(*corev1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out, p.changed
}

// evict deletes all pods of a host that is no more, as the garbage collector of
// pods does in time.
func (p *pods) evict(ctx context.Context, node string) error {
	var errs []error
	all, _ := p.on(node)
	for _, pod := range all {
		errs = append(errs, p.remove(ctx, pod))
	}
	return errors.Join(errs...)
}

// remove takes a pod away that has ended.
func (p *pods) remove(ctx context.Context, pod *corev1.Pod) error {
	now := int64(0)
	err := p.core.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // or another of that name
	}
	return err
}

// capacity is what the scheduler may place on a Node.
func capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
}

// probing is what a kubelet remembers of a pod's readiness probe.
type probing struct {
	next   time.Time
	failed int // times in a row
	ready  bool
	why    string

	restarts int32
}

// runPods plays the kubelet for the pods of the Node. Their containers are not
// run: all that one does here is in its readiness probe, which is. Holdfast's
// own are run, where Holdfast is installed by its manifests.
func (h *host) runPods(ctx context.Context) {
	known := map[string]*probing{} // by UID
	defer func() {
		for uid := range known {
			h.killWorkload(uid)
		}
	}()
	said := ""
	for {
		mine, changed := h.cloud.pods.on(h.name)
		on, _, power := h.state()
		wait := time.Minute
		for _, pod := range mine {
			p := known[string(pod.UID)]
			if p == nil {
				p = &probing{why: "the probe has not run yet"}
				known[string(pod.UID)] = p
			}
			again, err := h.syncPod(ctx, pod, p, on)
			if err != nil && ctx.Err() == nil {
				if text := err.Error(); text != said {
					said = text
					h.log.Warn("kubelet", "pod", pod.Name, "error", err)
				}
				again = 500 * time.Millisecond
			}
			wait = min(wait, again)
		}
		for uid := range known {
			if !slices.ContainsFunc(mine, func(pod *corev1.Pod) bool { return string(pod.UID) == uid }) {
				h.killWorkload(uid)
				delete(known, uid)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
		case <-power:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// syncPod brings one pod on, and says when to look again.
func (h *host) syncPod(ctx context.Context, pod *corev1.Pod, p *probing, on bool) (time.Duration, error) {
	const later = time.Minute
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch {
	case !on: // the node lifecycle controller's part
		h.killWorkload(string(pod.UID))
		p.next, p.failed, p.ready, p.why = time.Time{}, 0, false, "the kubelet stopped posting"
		if podReady(pod) {
			return later, h.tell(ctx, pod, p)
		}
		return later, nil
	case pod.DeletionTimestamp != nil:
		if w := h.workload(string(pod.UID)); w != nil {
			w.stop()
			if !closed(w.done) {
				return 100 * time.Millisecond, nil
			}
		}
		if err := os.RemoveAll(h.podDir(pod)); err != nil {
			return 0, fmt.Errorf("the volumes of pod %s: %w", pod.Name, err)
		}
		return later, h.cloud.pods.remove(ctx, pod)
	}
	container := &pod.Spec.Containers[0]
	if h.cloud.runPods && runs(pod) {
		return h.syncWorkload(ctx, pod, p)
	}
	if pod.Status.Phase != corev1.PodRunning {
		if err := h.mount(ctx, pod); err != nil {
			return 0, err
		}
	} else if wait := time.Until(p.next); wait > 0 && podReady(pod) == p.ready {
		return wait, nil
	}
	if time.Until(p.next) <= 0 {
		h.probe(ctx, pod, container, p)
	}
	if pod.Status.Phase == corev1.PodRunning && podReady(pod) == p.ready {
		return time.Until(p.next), nil
	}
	return time.Until(p.next), h.tell(ctx, pod, p)
}

// syncWorkload has the pod's container run, and writes how it does when that changes.
func (h *host) syncWorkload(ctx context.Context, pod *corev1.Pod, p *probing) (time.Duration, error) {
	const later = time.Minute
	w := h.workload(string(pod.UID))
	if w == nil {
		h.mu.Lock()
		w = h.startWorkload(h.ctx, pod)
		h.workloads[string(pod.UID)] = w
		h.mu.Unlock()
	}
	proc, ready, why, restarts := w.state()
	if proc == nil {
		return later, nil // its volumes are not there yet
	}
	if pod.Status.Phase == corev1.PodRunning && podReady(pod) == ready && restarts == p.restarts {
		return later, nil
	}
	p.ready, p.why, p.restarts = ready, why, restarts
	return later, h.tell(ctx, pod, p)
}

func (h *host) workload(uid string) *workload {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.workloads[uid]
}

// killWorkload ends what runs of a pod, if anything does.
func (h *host) killWorkload(uid string) {
	if w := h.workload(uid); w != nil {
		w.kill()
		h.mu.Lock()
		delete(h.workloads, uid)
		h.mu.Unlock()
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// probe runs the container's readiness probe on this host, with its
// environment, and with its volumes where they are here.
func (h *host) probe(ctx context.Context, pod *corev1.Pod, container *corev1.Container, p *probing) {
	probe := container.ReadinessProbe
	if probe == nil || probe.Exec == nil {
		p.next, p.ready = time.Now().Add(time.Hour), true
		return
	}
	p.next = time.Now().Add(time.Duration(max(probe.PeriodSeconds, 1)) * time.Second)
	err := h.run(ctx, pod, container, probe.Exec.Command, limitOf(probe))
	if err == nil {
		p.failed, p.ready, p.why = 0, true, ""
		return
	}
	if p.failed++; p.failed >= int(probe.FailureThreshold) || !p.ready {
		p.ready, p.why = false, err.Error()
	}
}

// run runs a command of a container. Its image is the sandbox's own binaries.
func (h *host) run(ctx context.Context, pod *corev1.Pod, container *corev1.Container, command []string, limit time.Duration) error {
	path, err := assets.Path(command[0])
	if err != nil {
		return err
	}
	inside := h.inside(pod, container)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	for _, arg := range command[1:] {
		cmd.Args = append(cmd.Args, inside.Replace(arg))
	}
	cmd.Env = []string{"GOGC=400"} // a probe that collects no garbage takes a third less
	for _, v := range h.variables(pod, container, h.at()) {
		cmd.Env = append(cmd.Env, v[0]+"="+inside.Replace(v[1]))
	}
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
	}
	return nil
}

// inside puts the directories of volumes where a container would find them mounted.
func (h *host) inside(pod *corev1.Pod, container *corev1.Container) *strings.Replacer {
	var places []string // mount path and directory, one after the other
	for _, mount := range container.VolumeMounts {
		dir := filepath.Join(h.podDir(pod), mount.Name)
		for _, v := range pod.Spec.Volumes {
			if v.Name == mount.Name && v.HostPath != nil {
				dir = h.hostPath(v.HostPath.Path)
			}
		}
		places = append(places, mount.MountPath, dir)
	}
	return strings.NewReplacer(places...)
}

// variables are a container's environment, names and values.
func (h *host) variables(pod *corev1.Pod, container *corev1.Container, podIP string) [][2]string {
	var out [][2]string
	var names []string // $(NAME) and value, one after the other
	for _, e := range container.Env {
		value := strings.NewReplacer(names...).Replace(e.Value)
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			switch e.ValueFrom.FieldRef.FieldPath {
			case "status.hostIP":
				value = h.at()
			case "status.podIP":
				value = podIP
			case "metadata.name":
				value = pod.Name
			case "metadata.namespace":
				value = pod.Namespace
			case "spec.nodeName":
				value = pod.Spec.NodeName
			}
		}
		names = append(names, "$("+e.Name+")", value)
		out = append(out, [2]string{e.Name, value})
	}
	return out
}

func (h *host) podDir(pod *corev1.Pod) string { return filepath.Join(h.dir, "pods", string(pod.UID)) }

// mount writes the pod's Secrets and ConfigMaps where its containers find them, and makes its empty directories and those on the host.
func (h *host) mount(ctx context.Context, pod *corev1.Pod) error {
	for _, volume := range pod.Spec.Volumes {
		files := map[string][]byte{}
		switch {
		case volume.Secret != nil:
			secret, err := h.cloud.pods.core.Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("volume %s: %w", volume.Name, err)
			}
			files = secret.Data
		case volume.ConfigMap != nil:
			cm, err := h.cloud.pods.core.ConfigMaps(pod.Namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("volume %s: %w", volume.Name, err)
			}
			for name, text := range cm.Data {
				files[name] = []byte(text)
			}
		case volume.HostPath != nil:
			if err := os.MkdirAll(h.hostPath(volume.HostPath.Path), 0o755); err != nil {
				return fmt.Errorf("volume %s: %w", volume.Name, err)
			}
			continue
		case volume.EmptyDir == nil:
			continue
		}
		dir := filepath.Join(h.podDir(pod), volume.Name)
		err := os.MkdirAll(dir, 0o700)
		if volume.EmptyDir == nil {
			err = put(dir, files)
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", volume.Name, err)
		}
	}
	return nil
}

// tell writes the pod's status.
func (h *host) tell(ctx context.Context, pod *corev1.Pod, p *probing) error {
	next := pod.DeepCopy()
	now := metav1.Now()
	next.Status.Phase = corev1.PodRunning
	podIP := h.at()
	if w := h.workload(string(pod.UID)); w != nil {
		podIP = w.address
	}
	next.Status.HostIP, next.Status.PodIP = h.at(), podIP
	next.Status.HostIPs, next.Status.PodIPs = []corev1.HostIP{{IP: h.at()}}, []corev1.PodIP{{IP: podIP}}
	if next.Status.StartTime == nil {
		next.Status.StartTime = &now
	}
	ready := corev1.ConditionFalse
	if p.ready {
		ready = corev1.ConditionTrue
	}
	conditions := []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now}}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget {
			conditions = append(conditions, c)
		}
	}
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		conditions = append(conditions, corev1.PodCondition{Type: kind, Status: ready, Message: p.why, LastTransitionTime: now})
	}
	next.Status.Conditions = conditions
	container := &pod.Spec.Containers[0]
	next.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: container.Name, Image: container.Image, Ready: p.ready, Started: &[]bool{true}[0], RestartCount: p.restarts,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *next.Status.StartTime}},
	}}
	_, err := h.cloud.pods.core.Pods(pod.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the watch tells how it is now
	}
	return err
}
