// Command image packs Holdfast's binaries into an image for several platforms, as an OCI archive. It needs no
// container runtime, and the same binaries always give the same digest, which it prints.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options say what is packed.
type options struct {
	binaries string // folder with OS-ARCH/holdfast for each platform
	out      string // the archive
	version  string // label
	revision string // label: the commit
	created  int64  // Unix time of the commit: the build's own would change the digest
}

func main() {
	var o options
	flag.StringVar(&o.binaries, "binaries", "", "folder with OS-ARCH/holdfast for each platform, such as linux-amd64/holdfast")
	flag.StringVar(&o.out, "out", "", "file of the OCI archive")
	flag.StringVar(&o.version, "version", "", "version, for a label")
	flag.StringVar(&o.revision, "revision", "", "commit, for a label")
	flag.Int64Var(&o.created, "created", 0, "Unix time that the image says it is from: that of the commit")
	flag.Parse()
	digest, err := build(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// build writes the archive and returns the digest of the image's index.
func build(o options) (digest string, err error) {
	platforms, err := filepath.Glob(filepath.Join(o.binaries, "*-*", "holdfast"))
	if err != nil {
		return "", err
	}
	if len(platforms) == 0 {
		return "", fmt.Errorf("no OS-ARCH/holdfast in %q", o.binaries)
	}
	slices.Sort(platforms)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, binary := range platforms {
		system, arch, _ := strings.Cut(filepath.Base(filepath.Dir(binary)), "-")
		platform := &v1.Platform{OS: system, Architecture: arch}
		image, err := o.image(binary, platform)
		if err != nil {
			return "", fmt.Errorf("%s: %w", platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	hash, err := index.Digest()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "holdfast-image-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return "", err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": o.version}
	if err := path.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return "", err
	}
	return hash.String(), o.archive(dir)
}

// image is that of one platform: the binary, and nothing else.
func (o *options) image(binary string, platform *v1.Platform) (v1.Image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for _, dir := range []string{"usr/", "usr/bin/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: o.time()}); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/holdfast", Mode: 0o755, Size: int64(len(content)), ModTime: o.time()}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: o.time()}, CreatedBy: "deploy/image"}}); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = platform.OS, platform.Architecture, v1.Time{Time: o.time()}
	config.Config = v1.Config{
		User: "65532:65532", Entrypoint: []string{"holdfast"}, Env: []string{"PATH=/usr/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "Holdfast",
			"org.opencontainers.image.source":   "https://github.com/holdfast-dev/holdfast",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.revision,
		},
	}
	return mutate.ConfigFile(image, config)
}

func (o *options) time() time.Time { return time.Unix(o.created, 0).UTC() }

// archive packs the folder, in an order that is always the same.
func (o *options) archive(dir string) (err error) {
	file, err := os.Create(o.out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := tar.NewWriter(file)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: filepath.ToSlash(name) + "/", Mode: 0o755, ModTime: o.time()})
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(content)), ModTime: o.time()}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
