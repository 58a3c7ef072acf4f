package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	consolev1 "github.com/openshift/api/console/v1"
	"sigs.k8s.io/krew/pkg/index"
	"sigs.k8s.io/yaml"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// made packs made-up binaries for six platforms.
func made(t *testing.T) options {
	t.Helper()
	dir := t.TempDir()
	o := options{binaries: filepath.Join(dir, "in"), license: filepath.Join(dir, "LICENSE"), out: dir, version: "v0.1.0", url: "https://example.com/v0.1.0", created: 1700000000}
	must(t, os.WriteFile(o.license, []byte("the license"), 0o600))
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, arch := range []string{"amd64", "arm64"} {
			name := filepath.Join(o.binaries, system+"-"+arch, "kubectl-holdfast")
			if system == "windows" {
				name += ".exe"
			}
			must(t, os.MkdirAll(filepath.Dir(name), 0o700))
			must(t, os.WriteFile(name, []byte("for "+system+" on "+arch), 0o700))
		}
	}
	must(t, o.run())
	return o
}

// manifest reads the manifest as krew does: a field that is not known is an error.
func manifest(t *testing.T, o options) (plugin index.Plugin) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(o.out, "holdfast-krew.yaml"))
	must(t, err)
	must(t, yaml.UnmarshalStrict(raw, &plugin))
	return plugin
}

// TestArchives: what the manifest names is there, with that checksum, the binary and the license.
func TestArchives(t *testing.T) {
	o := made(t)
	plugin := manifest(t, o)
	if plugin.Name != "holdfast" || plugin.Spec.Version != "v0.1.0" || len(plugin.Spec.Platforms) != 6 {
		t.Fatalf("%+v", plugin)
	}
	for _, p := range plugin.Spec.Platforms {
		selector := p.Selector.MatchLabels
		name, ok := strings.CutPrefix(p.URI, o.url+"/")
		raw, err := os.ReadFile(filepath.Join(o.out, name))
		sum := sha256.Sum256(raw)
		if !ok || err != nil || hex.EncodeToString(sum[:]) != p.Sha256 {
			t.Fatalf("%s: %v, sum %x", p.URI, err, sum)
		}
		files := unpack(t, filepath.Join(o.out, name))
		if want := "for " + selector["os"] + " on " + selector["arch"]; files[p.Bin] != want || files["LICENSE"] != "the license" || len(files) != 2 {
			t.Errorf("%s has %s", name, slices.Sorted(maps.Keys(files)))
		}
		if strings.HasSuffix(p.Bin, ".exe") != (selector["os"] == "windows") {
			t.Errorf("on %s the binary is %s", selector["os"], p.Bin)
		}
	}
	var download consolev1.ConsoleCLIDownload
	raw, err := os.ReadFile(filepath.Join(o.out, "holdfast-console-download.yaml"))
	must(t, err)
	must(t, yaml.UnmarshalStrict(raw, &download))
	for k, link := range download.Spec.Links {
		if link.Href != plugin.Spec.Platforms[k].URI {
			t.Errorf("the console offers %s", link.Href)
		}
	}
}

func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		files[head.Name] = string(content)
	}
}

// TestSameArchives: the same binaries and commit give the same archives.
func TestSameArchives(t *testing.T) {
	sums := func() (out []string) {
		for _, platform := range manifest(t, made(t)).Spec.Platforms {
			out = append(out, platform.Sha256)
		}
		return out
	}
	if one, two := sums(), sums(); !slices.Equal(one, two) {
		t.Errorf("%v and then %v", one, two)
	}
}

// TestNothing: an empty folder is an error that names it.
func TestNothing(t *testing.T) {
	o := options{binaries: t.TempDir()}
	if err := o.run(); err == nil || !strings.Contains(err.Error(), o.binaries) {
		t.Error(err)
	}
}
