package gitops

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The sandbox's identities, by their kubeconfigs.
const (
	admin        = "admin"
	alice        = "alice" // a person
	etcdOperator = "etcd-operator"
	holdfast     = "holdfast"

	// GitOps is the service account that every Tool syncs as.
	GitOps = "argocd-application-controller"
)

// limit bounds each wait.
const limit = 2 * time.Minute

// Cluster is a sandbox with Holdfast in guard mode: of one control-plane Machine, beside an operator that the matrix plays, or of
// three, on which Holdfast is installed.
type Cluster struct {
	bin, dir string
	files    string // kubectl's
	// writes counts the requests that GitOps sent to write a Machine, but for dry runs.
	writes atomic.Int64

	done chan struct{} // closed when the sandbox has ended
	err  error         // set before
}

// Start starts a sandbox of one Machine with Holdfast, and stops it when the test is over.
func Start(t *testing.T) *Cluster {
	t.Helper()
	return start(t, "--replicas=1", "--etcd-operator=false")
}

// StartBare starts one of three Machines on which Holdfast is still to be installed.
func StartBare(t *testing.T) *Cluster {
	t.Helper()
	return start(t, "--replicas=3", "--for-install")
}

func start(t *testing.T, flags ...string) *Cluster {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{bin: bin, dir: filepath.Join(t.TempDir(), "sandbox"), files: t.TempDir(), done: make(chan struct{})}
	command := exec.Command(c.Binary("sandbox"), append([]string{"up", "--mode=guard", "--dir=" + c.dir}, flags...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := os.Create(filepath.Join(c.files, "sandbox.log"))
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = output, output
	said := func() string {
		text, err := os.ReadFile(output.Name())
		return errors.Join(err, errors.New(string(text))).Error()
	}
	started := make(chan error)
	go func() {
		defer close(c.done)
		// The kernel kills the child when the thread that started it ends, so the thread stays for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := errors.Join(command.Start(), output.Close())
		started <- err
		if err == nil {
			c.err = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := command.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		select {
		case <-c.done:
			if c.err != nil {
				t.Errorf("the sandbox: %v\n%s", c.err, said())
			}
		case <-time.After(limit):
			t.Errorf("the sandbox does not stop\n%s", said())
			_ = command.Process.Kill()
			<-c.done
		}
	})
	eventually(t.Context(), t, "the sandbox is ready", func(context.Context) error {
		select {
		case <-c.done:
			t.Fatalf("the sandbox did not start: %v\n%s", c.err, said())
		default:
		}
		_, err := os.Stat(filepath.Join(c.dir, "env")) // which it writes last
		return err
	})
	c.count(t)
	return c
}

// count puts a proxy that counts between the API server and GitOps, whatever it uses for a client.
func (c *Cluster) count(t *testing.T) {
	t.Helper()
	config := c.Config(t, GitOps)
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write := r.Method == http.MethodPut || r.Method == http.MethodPatch || r.Method == http.MethodPost || r.Method == http.MethodDelete
		if write && strings.Contains(r.URL.Path, "/machines") && r.URL.Query().Get("dryRun") == "" {
			c.writes.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["counted"] = &clientcmdapi.Cluster{Server: front.URL}
	kubeconfig.Contexts["counted"] = &clientcmdapi.Context{Cluster: "counted", Namespace: namespace}
	kubeconfig.CurrentContext = "counted"
	if err := clientcmd.WriteToFile(*kubeconfig, c.Kubeconfig(GitOps)); err != nil {
		t.Fatal(err)
	}
}

// binaries is the repository's bin/, the first above that has a sandbox in it.
func binaries() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if bin := filepath.Join(dir, "bin"); exists(filepath.Join(bin, "sandbox")) {
			return bin, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("there is no sandbox: run `make binaries parts` in Holdfast's repository")
		}
	}
	return "", err
}

func binary(bin, name string) string {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	return filepath.Join(bin, name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Binary is the path of one of the binaries that `make binaries parts` builds.
func (c *Cluster) Binary(name string) string { return binary(c.bin, name) }

// Kubeconfig is the file with which kubectl acts as an identity of the sandbox.
func (c *Cluster) Kubeconfig(identity string) string {
	return filepath.Join(c.dir, "kubeconfig", identity)
}

// Config is a client configuration of an identity of the sandbox. Holdfast's Warnings are dropped.
func (c *Cluster) Config(t *testing.T, identity string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(identity))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// eventually waits until check returns nil.
func eventually(ctx context.Context, t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	}); err != nil {
		t.Fatalf("%s: %v: %v", what, err, last)
	}
}
