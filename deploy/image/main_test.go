package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// pack packs two made-up binaries in a folder of its own.
func pack(t *testing.T, o options, content string) (digest string, archive []byte) {
	t.Helper()
	dir := t.TempDir()
	for _, platform := range []string{"linux-amd64", "linux-arm64"} {
		if err := os.MkdirAll(filepath.Join(dir, platform), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, platform, "holdfast"), []byte(content+platform), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	o.binaries, o.out = dir, filepath.Join(dir, "image.tar")
	digest, err := build(o)
	if err != nil {
		t.Fatal(err)
	}
	if archive, err = os.ReadFile(o.out); err != nil {
		t.Fatal(err)
	}
	return digest, archive
}

// TestSameDigest: the same binaries and commit give the same bytes, and another binary or commit does not.
func TestSameDigest(t *testing.T) {
	o := options{version: "v1", revision: "abc", created: 1700000000}
	digest, archive := pack(t, o, "binary")
	again, archiveAgain := pack(t, o, "binary")
	if digest != again || !bytes.Equal(archive, archiveAgain) {
		t.Errorf("%s and then %s; the archives are the same: %t", digest, again, bytes.Equal(archive, archiveAgain))
	}
	if other, _ := pack(t, o, "another"); other == digest {
		t.Error("another binary has the same digest")
	}
	o.revision = "def"
	if other, _ := pack(t, o, "binary"); other == digest {
		t.Error("another commit has the same digest")
	}
}

// TestConfig: nothing but the binary, run as a numeric user, as Kubernetes wants of runAsNonRoot.
func TestConfig(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "holdfast")
	if err := os.WriteFile(binary, []byte("binary"), 0o700); err != nil {
		t.Fatal(err)
	}
	o := options{version: "v1", revision: "abc"}
	image, err := o.image(binary, &v1.Platform{OS: "linux", Architecture: "arm64"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Architecture != "arm64" || config.Config.Labels["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("config: %+v", config)
	}
}
