// Command bundle makes the bundle by which OLM, the Operator Lifecycle Manager, installs Holdfast, out of what is written
// by hand here and the manifests of an overlay in guard mode.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	csvFile         = "manifests/holdfast.clusterserviceversion.yaml"
	annotationsFile = "metadata/annotations.yaml"
)

type options struct {
	from      string // folder of what is written by hand
	manifests string // file of an overlay's manifests
	out       string // folder of the bundle
	beside    string // file of what OLM does not take
	tag       string // of Holdfast's image, which the version is made of
}

func main() {
	var o options
	flag.StringVar(&o.from, "from", ".", "folder of what is written by hand: manifests and metadata")
	flag.StringVar(&o.manifests, "manifests", "", "file of the manifests that an overlay makes")
	flag.StringVar(&o.out, "out", "", "folder of the bundle; what is in it is replaced")
	flag.StringVar(&o.beside, "beside", "", "file for what OLM does not take, which people apply themselves")
	flag.StringVar(&o.tag, "tag", "", "the image's tag, which the version is made of")
	flag.Parse()
	if err := build(o); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

// build writes the bundle, and what goes beside it.
func build(o options) error {
	objects, err := load(o.manifests)
	if err != nil {
		return err
	}
	p, err := sortOut(objects)
	if err != nil {
		return fmt.Errorf("%s: %w", o.manifests, err)
	}
	written, err := load(filepath.Join(o.from, csvFile))
	if err != nil {
		return err
	}
	if len(written) != 1 {
		return fmt.Errorf("%s: %d objects, not one", csvFile, len(written))
	}
	if err := p.complete(written[0], version(o.tag)); err != nil {
		return fmt.Errorf("%s: %w", csvFile, err)
	}
	annotations, err := os.ReadFile(filepath.Join(o.from, annotationsFile))
	if err != nil {
		return err
	}
	recipe, err := containerfile(annotations)
	if err != nil {
		return fmt.Errorf("%s: %w", annotationsFile, err)
	}
	files := map[string][]byte{annotationsFile: annotations, "Containerfile": recipe}
	for name, object := range p.files(written[0]) {
		if files[name], err = yaml.Marshal(object.Object); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	beside, err := stream(p.beside)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(o.out, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(o.beside, beside, 0o644)
}

// load reads the objects of a file.
func load(path string) ([]*unstructured.Unstructured, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was read only
	var objects []*unstructured.Unstructured
	for d := utilyaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		object := &unstructured.Unstructured{}
		switch err := d.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		objects = append(objects, object)
	}
}

// stream is a file of these objects for kubectl apply.
func stream(objects []*unstructured.Unstructured) ([]byte, error) {
	out := []byte("# What OLM does not take out of a bundle: docs/install.md, \"With OLM\".\n")
	for i, object := range objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, "---\n"...)
		}
		out = append(out, text...)
	}
	return out, nil
}

// containerfile is the recipe of the bundle's image, whose labels say the same as its annotations.
func containerfile(annotations []byte) ([]byte, error) {
	var metadata struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := yaml.UnmarshalStrict(annotations, &metadata); err != nil {
		return nil, err
	}
	var out strings.Builder
	out.WriteString("FROM scratch\n")
	for _, key := range slices.Sorted(maps.Keys(metadata.Annotations)) {
		fmt.Fprintf(&out, "LABEL %s=%q\n", key, metadata.Annotations[key])
	}
	out.WriteString("COPY manifests /manifests/\nCOPY metadata /metadata/\n")
	return []byte(out.String()), nil
}
