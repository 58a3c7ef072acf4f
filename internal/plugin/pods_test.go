package plugin

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// replicas answers as an API server does when it is asked for the logs of Holdfast's pods.
type replicas struct {
	pods []corev1.Pod
	// logs are files by path of the request, with ?previous=true where that is asked for; one that is
	// missing is refused.
	logs map[string]string
	// hosts are the directories that kubelets serve as /logs, by Node; "" is a host that does not answer, and mayNot one that the user may not
	// ask.
	hosts map[string]string
}

const mayNot = "may not"

func (r *replicas) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	query := req.URL.Query()
	if path, ofNode := strings.CutPrefix(req.URL.Path, "/api/v1/nodes/"); ofNode {
		r.kubelet(w, req, path)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if req.URL.Path == "/api/v1/nodes" && query.Get("labelSelector") == "" {
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
		for _, name := range slices.Sorted(maps.Keys(r.hosts)) {
			list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/master": ""}}})
		}
		list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-0"}}) // which nobody asks
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	name, isLog := strings.CutPrefix(req.URL.Path, "/api/v1/namespaces/holdfast-system/pods/")
	if !isLog {
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		if query.Get("labelSelector") == holdfastPods && req.URL.Path == "/api/v1/namespaces/holdfast-system/pods" {
			list.Items = r.pods
		}
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	name = strings.TrimSuffix(name, "/log")
	if query.Get("previous") == "true" {
		name += "-previous"
	}
	data, err := os.ReadFile(filepath.Join("testdata", "pods", r.logs[name]))
	if r.logs[name] == "" || err != nil {
		fail(w, http.StatusInternalServerError, "", "dial tcp 10.0.0.2:10250: connect: no route to host")
		return
	}
	_, _ = w.Write(data)
}

// kubelet answers as the API server does that asks a Node's kubelet, which serves /var/log.
func (r *replicas) kubelet(w http.ResponseWriter, req *http.Request, path string) {
	node, _, _ := strings.Cut(path, "/")
	switch dir := r.hosts[node]; dir {
	case "":
		fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "error trying to reach service: dial tcp 10.0.0.2:10250: connect: no route to host")
	case mayNot:
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, `nodes "`+node+`" is forbidden: User "bob" cannot get resource "nodes/proxy" in API group "" at the cluster scope`)
	default:
		http.StripPrefix("/api/v1/nodes/"+node+"/proxy/logs/", http.FileServer(http.Dir(dir))).ServeHTTP(w, req)
	}
}

func fail(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	})
}

// kubeconfig is of that server.
func (r *replicas) kubeconfig(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: %q}}]}", server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func pod(name string, restarts int32, started bool) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: name, UID: "uid-x"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "holdfast"}}},
	}
	if started {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "holdfast", RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	}
	return p
}

// TestPods: the records of all replicas, in their logs among other lines.
func TestPods(t *testing.T) {
	both := func() *replicas {
		return &replicas{
			pods: []corev1.Pod{pod("holdfast-a", 1, true), pod("holdfast-b", 0, true), pod("holdfast-c", 0, false)},
			logs: map[string]string{"holdfast-a": "a.log", "holdfast-a-previous": "a-previous.log", "holdfast-b": "b.log"},
		}
	}
	deaf := both()
	delete(deaf.logs, "holdfast-b")
	delete(deaf.logs, "holdfast-a-previous") // which nobody keeps for long
	for name, c := range map[string]struct {
		args   string
		from   *replicas
		status int
	}{
		"pods":          {args: "audit", from: both()},
		"pods-json":     {args: "audit -o json --rule escape-hatch", from: both()},
		"pods-one-deaf": {args: "audit --verdict denied", from: deaf, status: 1},
		"pods-deaf":     {args: "audit", from: &replicas{pods: both().pods}, status: 1},
		"pods-none":     {args: "audit", from: &replicas{}, status: 1},
		"pods-silent":   {args: "audit", from: &replicas{pods: both().pods[1:2], logs: map[string]string{"holdfast-b": "silent.log"}}},
		"pods-report":   {args: "report --events=false", from: both()},
		"pods-no-event": {args: "report", from: deaf}, // of which it says what it lacks
		"pods-away":     {args: "audit --holdfast-namespace elsewhere", from: both(), status: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.from.kubeconfig(t))
			status, stdout, stderr := typed(t, strings.NewReader(""), strings.Fields(c.args)...)
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast "+c.args+"\n"+stdout+stderr)
		})
	}
}

// onHost is a host's directory /var/log with these files of testdata in holdfast/.
func onHost(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "holdfast"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, from := range files {
		text, err := os.ReadFile(filepath.Join("testdata", from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "holdfast", name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestHosts: what replicas wrote on their hosts is read as well, each record once, and no pod has to be left.
func TestHosts(t *testing.T) {
	mounts := pod("holdfast-b", 0, true)
	mounts.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: hostAudit}}}}
	all := func(pods ...corev1.Pod) *replicas {
		return &replicas{pods: pods, logs: map[string]string{"holdfast-b": "b.log"}, hosts: map[string]string{
			// The lock and other people's files are not asked for: of their lines there would be more than are left out.
			"master-0": onHost(t, map[string]string{
				"audit.log": "pods/a.log", "audit-2026-03-01T00-00-00.000.log.gz": "audit-2026-03-01T00-00-00.000.log.gz", ".audit.log.lock": "pods/silent.log", "other.log": "pods/silent.log",
			}),
			"master-1": onHost(t, map[string]string{"audit.log": "pods/b.log", "audit-2.log": "pods/a-previous.log"}),
			"master-2": t.TempDir(), // no replica was here
		}}
	}
	deaf, forbidden := all(mounts), all(mounts)
	deaf.hosts["master-1"] = ""
	for name := range forbidden.hosts {
		forbidden.hosts[name] = mayNot
	}
	for name, c := range map[string]struct {
		args   string
		from   *replicas
		status int
	}{
		"hosts":           {args: "audit", from: all(mounts)},
		"hosts-one-deaf":  {args: "audit", from: deaf, status: 1},
		"hosts-forbidden": {args: "audit", from: forbidden, status: 1},
		"hosts-no-pods":   {args: "audit", from: all(), status: 1},
		"hosts-unused":    {args: "audit", from: all(pod("holdfast-b", 0, true))}, // without the component nobody needs the rights
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.from.kubeconfig(t))
			status, stdout, stderr := typed(t, strings.NewReader(""), strings.Fields(c.args)...)
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast "+c.args+"\n"+stdout+stderr)
		})
	}
}
