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

// TestBefore reads what parts of each kind print, and says what one prints that it cannot read.
func TestBefore(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	for prints, want := range map[string]bool{"etcd Version: 3.5.21\nGit SHA: x\nGo Version: go1.26.8": true, "Kubernetes v1.30.14": true, "3.6.0": false, "etcd Version: 3.10.1": false} {
		if err := os.WriteFile(filepath.Join(dir, "etcd"), []byte("#!/bin/sh\necho '"+prints+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if got, err := assets.Before("etcd", "3.6"); err != nil || got != want {
			t.Errorf("%q: %t, %v", prints, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "etcd"), []byte("#!/bin/sh\necho unknown\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := assets.Before("etcd", "3.6"); err == nil || !strings.Contains(err.Error(), `says "unknown`) {
		t.Errorf("got %v", err)
	}
}
