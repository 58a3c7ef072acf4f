package observe

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestNeeded: the installer's bootstrap member waits until the installer has finished and every API server knows of the others. So does a
// voter of a Machine that is being deleted, where there is one more than wanted.
func TestNeeded(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	done := func(status string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap"}, Data: map[string]string{"status": status}}
	}
	servers := func(latest int64, revisions []int64, urls ...string) client.Object {
		nodes, list := []any{}, []any{}
		for _, r := range revisions {
			nodes = append(nodes, map[string]any{"nodeName": "master-0", "currentRevision": r})
		}
		for _, u := range urls {
			list = append(list, u)
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "operator.openshift.io/v1", "kind": "KubeAPIServer", "metadata": map[string]any{"name": "cluster"},
			"spec":   map[string]any{"observedConfig": map[string]any{"apiServerArguments": map[string]any{"etcd-servers": list}}},
			"status": map[string]any{"latestAvailableRevision": latest, "nodeStatuses": nodes},
		}}
	}
	for _, c := range []struct {
		name string
		mode quorum.Mode
		have []client.Object
		want string // part of why it waits, "" for nothing
	}{
		{"a deletion, and they know of the old member alone", quorum.ModeFull, []client.Object{servers(7, []int64{7}, "https://10.0.0.11:2379")}, "do not know master-0 (a0)"},
		{"a deletion, and one runs what was before", quorum.ModeFull, []client.Object{servers(7, []int64{6}, "https://10.0.0.10:2379")}, "runs revision 6"},
		{"a deletion, and it is not known what runs", quorum.ModeFull, []client.Object{servers(7, nil, "https://10.0.0.10:2379")}, "does not say yet which revision"},
		{"a deletion, and all know", quorum.ModeFull, []client.Object{servers(7, []int64{7}, "https://10.0.0.10:2379")}, ""},
		{"a deletion, without the platform's API", quorum.ModeFull, nil, ""},
		{"a deletion beside cluster-etcd-operator", quorum.ModeGuard, []client.Object{servers(7, []int64{7}, "https://10.0.0.11:2379")}, ""},
		{"the installer has not begun", quorum.ModeFull, nil, "kubectl -n kube-system create configmap bootstrap --from-literal=status=complete"},
		{"it works", quorum.ModeFull, []client.Object{done("in progress")}, `status "in progress"`},
		{"it has finished, and nobody tells of the API servers", quorum.ModeFull, []client.Object{done("complete")}, ""},
		{"they know of the bootstrap member alone", quorum.ModeFull, []client.Object{done("complete"), servers(7, []int64{7}, "https://10.0.1.1:2379")}, "do not know master-0 (a0)"},
		{"one runs what was before", quorum.ModeFull, []client.Object{done("complete"), servers(7, []int64{7, 6}, "https://10.0.0.10:2379", "https://localhost:2379")}, "runs revision 6"},
		{"all of them know", quorum.ModeFull, []client.Object{done("complete"), servers(7, []int64{7, 7}, "https://10.0.0.10:2379", "https://localhost:2379")}, ""},
		{"beside cluster-etcd-operator", quorum.ModeGuard, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &quorum.Snapshot{Ring: quorum.Ring{Known: true, Members: []quorum.Member{
				{ID: 0xab, Name: quorum.BootstrapName, PeerURLs: []string{"https://10.0.1.1:2380"}, ClientURLs: []string{"https://10.0.1.1:2379"}},
				{ID: 0xa0, Name: "master-0", PeerURLs: []string{"https://10.0.0.10:2380"}, ClientURLs: []string{"https://10.0.0.10:2379"}},
			}}}
			if strings.HasPrefix(c.name, "a deletion") {
				s.Ring.Members[0] = quorum.Member{ID: 0xa1, Name: "master-1", PeerURLs: []string{"https://10.0.0.11:2380"}, ClientURLs: []string{"https://10.0.0.11:2379"}}
				s.Desired, s.Machines = 1, []quorum.Machine{
					{Name: "master-0", UID: "0", Role: "master", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.10")}},
					{Name: "master-1", UID: "1", Role: "master", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.11")}, DeletedAt: time.Unix(1, 0)},
				}
			}
			o := &Observer{API: fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.have...).Build(), Mode: c.mode}
			must(t, o.needed(t.Context(), s))
			if waits := cmp.Or(s.BootstrapWaits, s.APIServersWait); c.want == "" && waits != "" || !strings.Contains(waits, c.want) {
				t.Errorf("it waits for %q, want %q", waits, c.want)
			}
		})
	}
}
