package plugin

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/observe"
)

// hostAudit is where replicas write on their hosts with deploy/components/host-audit. Kubelets serve /var/log as /logs.
const hostAudit = "/var/log/holdfast"

// auditLink is an audit file in the list that a kubelet makes of a directory, rotated or not.
var auditLink = regexp.MustCompile(`href="(audit[\w.-]*)"`)

// writesOnHost reports whether a pod has that directory.
func writesOnHost(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == hostAudit })
}

// ofHosts hands the records in the audit files of control-plane hosts to each. It says how many hosts it asked, and which could not be read.
func ofHosts(ctx context.Context, api corev1client.CoreV1Interface, each func(audit.Entry), sum *audit.Tally) (hosts int, failed []string) {
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	nodes, err := api.Nodes().List(limited, metav1.ListOptions{})
	if err != nil {
		return 0, []string{"list the control-plane Nodes: " + oneLine(err)}
	}
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		if !slices.ContainsFunc(observe.NodeLabels(), func(label string) bool { return metav1.HasLabel(nodes.Items[i].ObjectMeta, label) }) {
			continue
		}
		hosts++
		if err := readHost(ctx, api, name, each, sum); err != nil {
			failed = append(failed, fmt.Sprintf("read the audit files on the host of Node %s: %s", name, oneLine(err)))
		}
	}
	return hosts, failed
}

// readHost reads all audit files of one host, through the API server and the host's kubelet.
func readHost(ctx context.Context, api corev1client.CoreV1Interface, node string, each func(audit.Entry), sum *audit.Tally) error {
	files := "/api/v1/nodes/" + node + "/proxy/logs/holdfast/"
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	answer := api.RESTClient().Get().AbsPath(files).Do(limited)
	list, err := answer.Raw()
	if apierrors.IsNotFound(err) {
		return nil // no replica has been there
	}
	if err != nil {
		return answer.Error() // with the words of the answer, which Raw leaves out
	}
	var failed []error
	for _, link := range auditLink.FindAllSubmatch(list, -1) {
		failed = append(failed, readLog(ctx, api.RESTClient().Get().AbsPath(files+string(link[1])), each, sum))
	}
	return errors.Join(failed...)
}
