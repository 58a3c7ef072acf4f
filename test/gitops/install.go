package gitops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// Installer installs Holdfast out of Git.
type Installer struct {
	// Path is the directory of the repository that the tool's example names, and Image what it sets the image to.
	Path, Image string
	// Sync brings the objects into the cluster; Drifted are the names of those that the tool would sync again.
	Sync    func(context.Context, []*unstructured.Unstructured) error
	Drifted func(context.Context, []*unstructured.Unstructured) ([]string, error)
}

// Example reads the objects of a file of deploy/examples, by their kinds.
func Example(t *testing.T, file string) map[string]*unstructured.Unstructured {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(bin), "deploy", "examples", file))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*unstructured.Unstructured{}
	for _, o := range parse(t, text) {
		out[o.GetKind()] = o
	}
	return out
}

// Field is a string in an object.
func Field(t *testing.T, o *unstructured.Unstructured, path ...string) string {
	t.Helper()
	value, found, err := unstructured.NestedString(o.Object, path...)
	if err != nil || !found {
		t.Fatalf("%s has no %s: %v", o.GetKind(), strings.Join(path, "."), err)
	}
	return value
}

func parse(t *testing.T, text []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		switch {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		case len(o.Object) > 0:
			objects = append(objects, o)
		}
	}
}

// Install has a tool install Holdfast on a sandbox without one, and looks whether tool and Holdfast leave each other's things alone:
// nothing is out of sync once it runs, further syncs change nothing, and the tool does not mind what Holdfast makes and puts back.
func Install(t *testing.T, c *Cluster, tool Installer) {
	t.Helper()
	ctx := t.Context()
	objects := parse(t, c.render(t, tool))
	sync := func() {
		t.Helper()
		if err := tool.Sync(ctx, objects); err != nil {
			t.Fatal(err)
		}
	}
	sync()
	out, err := c.run(ctx, "kubectl-holdfast", "check", "--wait", "--timeout=2m")
	if err != nil {
		t.Fatalf("kubectl holdfast check: %v\n%s", err, out)
	}
	inSync := func(when string) {
		t.Helper()
		drifted, err := tool.Drifted(ctx, objects)
		if err != nil || len(drifted) > 0 {
			t.Errorf("%s these are out of sync: %q, %v", when, drifted, err)
		}
	}
	inSync("after the installation")

	versions := c.versions(t, objects)
	for range 3 {
		sync()
	}
	if now := c.versions(t, objects); !slices.Equal(now, versions) {
		t.Errorf("syncs of the same changed something:\n%q\n%q", versions, now)
	}

	// Holdfast puts back what is its own, which the tool does not know.
	registration := c.dynamic(t).Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"})
	before, err := registration.Get(ctx, "holdfast", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := registration.Delete(ctx, "holdfast", metav1.DeleteOptions{}); err != nil && !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	eventually(ctx, t, "the registration is back", func(ctx context.Context) error {
		now, err := registration.Get(ctx, "holdfast", metav1.GetOptions{})
		if err == nil && now.GetUID() == before.GetUID() {
			err = errors.New("it is the one of before")
		}
		return err
	})
	inSync("after Holdfast put a registration back")
	sync()

	// It guards: the first deletion is held, the second is refused.
	if out, err := c.run(ctx, "kubectl", "-n", namespace, "delete", "machine", "master-0", "--wait=false"); err != nil || !strings.Contains(out, "Holdfast (held)") {
		t.Errorf("the first deletion: %v\n%s", err, out)
	}
	if out, err := c.run(ctx, "kubectl", "-n", namespace, "delete", "machine", "master-1", "--wait=false"); err == nil || !strings.Contains(out, "one-too-many") {
		t.Errorf("the second deletion: %v\n%s", err, out)
	}
}

// render is what the tools' kustomize makes of the example's path. The sandbox's etcds have no Service, so where they are is given.
func (c *Cluster) render(t *testing.T, tool Installer) []byte {
	t.Helper()
	dir := t.TempDir()
	at, err := filepath.Rel(dir, filepath.Join(filepath.Dir(c.bin), filepath.FromSlash(tool.Path)))
	if err != nil {
		t.Fatal(err)
	}
	name, tag, ok := strings.Cut(tool.Image[strings.LastIndex(tool.Image, "/")+1:], ":")
	if !ok || name != "holdfast" {
		t.Fatalf("the example's image is %q", tool.Image)
	}
	text := fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
images: [{name: holdfast, newName: %s, newTag: %s}]
patches:
- patch: |-
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: holdfast, namespace: holdfast-system}
    spec:
      template:
        spec:
          containers:
          - name: manager
            env:
            - {name: ETCD_ENDPOINTS, value: "%s"}
`, at, strings.TrimSuffix(tool.Image, ":"+tag), tag, c.endpoints(t))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := c.run(t.Context(), "kubectl", "kustomize", dir)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return []byte(out)
}

// endpoints are etcd's client URLs, as the sandbox gives them to a shell.
func (c *Cluster) endpoints(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `. "$0" && printf %s "$ETCDCTL_ENDPOINTS"`, filepath.Join(c.dir, "env")).Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("etcd's endpoints: %q, %v", out, err)
	}
	return string(out)
}

// run runs a command as the administrator, and returns what it printed, both ways.
func (c *Cluster) run(ctx context.Context, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, c.Binary(name), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(admin))
	out, err := command.CombinedOutput()
	return string(out), err
}

func (c *Cluster) dynamic(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Config(t, admin))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// versions are the generations of the objects, and their labels, annotations and managers.
func (c *Cluster) versions(t *testing.T, objects []*unstructured.Unstructured) (out []string) {
	t.Helper()
	for _, o := range objects {
		text, err := c.run(t.Context(), "kubectl", "get", strings.TrimSuffix(o.GetKind()+"."+o.GroupVersionKind().Group, "."), o.GetName(), "-n", o.GetNamespace(),
			"-o", `jsonpath={.metadata.uid} {.metadata.generation} {.metadata.labels} {.metadata.annotations}`)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		out = append(out, o.GetKind()+" "+o.GetName()+" "+text)
	}
	return out
}
