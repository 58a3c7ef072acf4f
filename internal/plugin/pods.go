package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// holdfastPods selects the replicas of Holdfast.
const holdfastPods = "app.kubernetes.io/name=holdfast"

// podLogs reads the logs of Holdfast's pods.
type podLogs struct {
	pods      corev1client.PodInterface
	namespace string
	err       io.Writer
}

// logs finds the cluster; it does not connect.
func (o *auditOptions) logs(t terminal) (*podLogs, error) {
	config, err := o.cluster.config()
	if err != nil {
		return nil, err
	}
	api, err := t.dial.pods(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &podLogs{api.Pods(o.cluster.holdfast), o.cluster.holdfast, t.err}, nil
}

// containerLog is one log: of a container, or of the one before it that ended.
type containerLog struct {
	pod, container string
	previous       bool
}

// name is as kubectl logs would have it.
func (p *podLogs) name(l containerLog) string {
	out := "pod " + p.namespace + "/" + l.pod
	if l.previous {
		out += " before its restart"
	}
	return out
}

// list finds the logs that there are. Of a container that has not started there is none.
func (p *podLogs) list(ctx context.Context) (logs []containerLog, waiting []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	found, err := p.pods.List(ctx, metav1.ListOptions{LabelSelector: holdfastPods})
	if err != nil {
		return nil, nil, fmt.Errorf("list the pods of Holdfast in namespace %s: %s", p.namespace, oneLine(err))
	}
	for i := range found.Items {
		pod := &found.Items[i]
		for _, c := range pod.Spec.Containers {
			var state corev1.ContainerStatus // none yet
			if i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }); i >= 0 {
				state = pod.Status.ContainerStatuses[i]
			}
			if state.State.Running == nil && state.State.Terminated == nil && state.RestartCount == 0 {
				waiting = append(waiting, pod.Name)
				continue
			}
			if state.RestartCount > 0 {
				logs = append(logs, containerLog{pod.Name, c.Name, true})
			}
			logs = append(logs, containerLog{pod.Name, c.Name, false})
		}
	}
	if len(found.Items) == 0 {
		return nil, nil, fmt.Errorf("there is no pod of Holdfast (label %s) in namespace %s; name its namespace with --holdfast-namespace, or a FILE", holdfastPods, p.namespace)
	}
	return logs, waiting, nil
}

// read hands the records of one log to each. since is how far back, 0 for all. What is no record is counted.
func (p *podLogs) read(ctx context.Context, l containerLog, since time.Duration, each func(audit.Entry)) (audit.Tally, error) {
	options := &corev1.PodLogOptions{Container: l.container, Previous: l.previous}
	if since > 0 {
		// An age, and not a time: the Node's clock counts. A record is written after what it is about.
		seconds := int64(since/time.Second) + 10
		options.SinceSeconds = &seconds
	}
	stream, err := p.pods.GetLogs(l.pod, options).Stream(ctx)
	if err != nil && l.previous {
		return audit.Tally{}, nil // it may be gone: nobody keeps it for long
	}
	if apierrors.IsNotFound(err) {
		return audit.Tally{}, nil // the pod went meanwhile
	}
	if err != nil {
		return audit.Tally{}, fmt.Errorf("read the log of %s: %s", p.name(l), oneLine(err))
	}
	tally, err := audit.Read(interruptible{ctx, stream}, each, func(int, error) {})
	if err := errors.Join(err, stream.Close()); err != nil {
		return tally, fmt.Errorf("read the log of %s: %s", p.name(l), oneLine(err))
	}
	return tally, nil
}

// all reads the records that there are, of all replicas. Those of the pods that could be read are handed
// over although others could not.
func (p *podLogs) all(ctx context.Context, since time.Duration, each func(audit.Entry)) error {
	logs, waiting, err := p.list(ctx)
	if err != nil {
		return err
	}
	for _, name := range waiting {
		fmt.Fprintf(p.err, "Pod %s/%s has not started: it has no log yet.\n", p.namespace, plain(name))
	}
	var (
		sum    audit.Tally
		failed []error
		pods   = map[string]bool{}
	)
	for _, l := range logs {
		tally, err := p.read(ctx, l, since, each)
		sum.Ours, sum.Foreign, sum.Bad = sum.Ours+tally.Ours, sum.Foreign+tally.Foreign, sum.Bad+tally.Bad
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		pods[l.pod] = true
	}
	fmt.Fprintf(p.err, "Pods read: %d. Records of Holdfast: %d; other lines left out: %d.\n", len(pods), sum.Ours, sum.Foreign+sum.Bad)
	if sum.Ours == 0 && failed == nil && since == 0 {
		fmt.Fprintln(p.err, "Records are there only if Holdfast writes them to its standard output: holdfast run --audit-log-path=-")
	}
	if err := errors.Join(failed...); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; and "))
	}
	return nil
}
