package plugin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
}

func (r *replicas) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	query := req.URL.Query()
	w.Header().Set("Content-Type", "application/json")
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
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Message: "dial tcp 10.0.0.2:10250: connect: no route to host",
		})
		return
	}
	_, _ = w.Write(data)
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
			status, stdout, stderr := cli(t, strings.NewReader(""), strings.Fields(c.args)...)
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast "+c.args+"\n"+stdout+stderr)
		})
	}
}
