// Package apiserver starts a kube-apiserver with an etcd of its own, for tests that need no sandbox.
package apiserver

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/slots"
)

// Start waits for a test slot and starts them, with what is configured, until the test ends. The result's
// Config is an admin's.
func Start(t testing.TB, configure ...func(*envtest.Environment)) *envtest.Environment {
	t.Helper()
	slots.Take(t)
	env := &envtest.Environment{ControlPlaneStartTimeout: 8 * time.Minute}
	env.ControlPlane.Etcd = &envtest.Etcd{Path: binary(t, "etcd")}
	env.ControlPlane.GetAPIServer().Path = binary(t, "kube-apiserver")
	for _, change := range configure {
		change(env)
	}
	_, err := env.Start()
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func binary(t testing.TB, name string) string {
	t.Helper()
	path, err := assets.Path(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// WithCRDs has the API server serve what these files of openshift/api define: package assets names them.
func WithCRDs(t testing.TB, files ...string) func(*envtest.Environment) {
	t.Helper()
	crds, err := assets.CRDs(files...)
	if err != nil {
		t.Fatal(err)
	}
	return func(env *envtest.Environment) { env.CRDs = append(env.CRDs, crds...) }
}
