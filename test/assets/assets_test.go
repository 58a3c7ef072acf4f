package assets_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/assets"
)

func TestPathPrefersKubebuilderAssets(t *testing.T) {
	dir := t.TempDir()
	want := filepath.Join(dir, "kube-apiserver")
	if err := os.WriteFile(want, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	got, err := assets.Path("kube-apiserver")
	if err != nil || got != want {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestPathSaysHowToBuild(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	_, err := assets.Path("no-such-binary")
	if err == nil || !strings.Contains(err.Error(), "make parts") {
		t.Fatalf("got %v", err)
	}
}

func TestRootPassesNestedModulesBy(t *testing.T) {
	here, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(here, "test", "binaries"))
	if got, err := assets.Root(); err != nil || got != here {
		t.Fatalf("got %q, %v; want %q", got, err, here)
	}
}
