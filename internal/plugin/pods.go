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
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// holdfastPods selects the replicas of Holdfast.
const holdfastPods = "app.kubernetes.io/name=holdfast"

// ofPods hands the records in the logs of Holdfast's pods and in the files on their hosts to each. Those that could be read are handed over
// although others could not.
func (o *auditOptions) ofPods(ctx context.Context, t terminal, each func(audit.Entry)) error {
	config, err := o.cluster.config()
	if err != nil {
		return err
	}
	api, err := t.dial.core(config)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	pods := api.Pods(o.cluster.holdfast)
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	found, err := pods.List(limited, metav1.ListOptions{LabelSelector: holdfastPods})
	if err != nil {
		return fmt.Errorf("list the pods of Holdfast in namespace %s: %s", o.cluster.holdfast, oneLine(err))
	}
	var (
		sum    audit.Tally
		failed []string
		oldest time.Time
	)
	hand := each
	each = func(e audit.Entry) {
		if oldest.IsZero() || e.First().Before(oldest) {
			oldest = e.First()
		}
		hand(e)
	}
	if len(found.Items) == 0 {
		failed = append(failed, fmt.Sprintf("there is no pod of Holdfast (label %s) in namespace %s: it is switched off, or --holdfast-namespace names another; or name a FILE", holdfastPods, o.cluster.holdfast))
	}
	for i := range found.Items {
		pod := &found.Items[i]
		for k := range pod.Status.ContainerStatuses {
			c := &pod.Status.ContainerStatuses[k]
			if c.State.Waiting != nil && c.RestartCount == 0 {
				continue // it has no log yet
			}
			if c.RestartCount > 0 { // the log before the restart, which nobody keeps for long
				_ = readLog(ctx, pods.GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name, Previous: true}), each, &sum)
			}
			err := readLog(ctx, pods.GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name}), each, &sum)
			if err != nil {
				failed = append(failed, fmt.Sprintf("read the log of pod %s/%s: %s", pod.Namespace, pod.Name, oneLine(err)))
			}
		}
	}
	hosts := ""
	if len(found.Items) == 0 || slices.ContainsFunc(found.Items, writesOnHost) {
		asked, without := ofHosts(ctx, api, each, &sum)
		hosts, failed = fmt.Sprintf(", hosts asked: %d", asked), append(failed, without...)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	since := ""
	if !oldest.IsZero() && hosts == "" {
		since = ", the oldest of " + at(oldest) + " (those of earlier pods went with them)"
	}
	fmt.Fprintf(t.err, "Pods found: %d%s. Records of Holdfast: %d%s; other lines left out: %d.\n", len(found.Items), hosts, sum.Ours, since, sum.Foreign+sum.Bad)
	if failed != nil {
		return errors.New(strings.Join(failed, "; and "))
	}
	if sum.Ours == 0 {
		fmt.Fprintln(t.err, "Records are there only if Holdfast writes them to its standard output: holdfast run --audit-log-path=-")
	}
	return nil
}

// readLog hands the records of one log to each, and adds them to the sum.
func readLog(ctx context.Context, log *rest.Request, each func(audit.Entry), sum *audit.Tally) error {
	stream, err := log.Stream(ctx)
	if apierrors.IsNotFound(err) {
		return nil // the pod went meanwhile, or the file was rotated away
	}
	if err != nil {
		return err
	}
	return errors.Join(readRecords(stream, each, sum), stream.Close())
}

// readRecords hands the records in a log to each, and adds what became of its lines to the sum.
func readRecords(in io.Reader, each func(audit.Entry), sum *audit.Tally) error {
	tally, err := audit.Read(in, each, func(int, error) {})
	sum.Ours, sum.Foreign, sum.Bad = sum.Ours+tally.Ours, sum.Foreign+tally.Foreign, sum.Bad+tally.Bad
	return err
}
