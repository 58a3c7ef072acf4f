// Command plugin packs the kubectl plugin's binaries into an archive for each platform, and writes what tools install it
// by: a manifest for krew, and a ConsoleCLIDownload for OpenShift's console. The same binaries always give the same archives.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	consolev1 "github.com/openshift/api/console/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/krew/pkg/constants"
	"sigs.k8s.io/krew/pkg/index"
	"sigs.k8s.io/yaml"
)

const (
	home  = "https://github.com/holdfast-dev/holdfast"
	short = "See and replace the guarded Machines of a control plane"
	long  = `Holdfast stops the deletion of a control-plane Machine from costing etcd its quorum. This plugin says whether the guard is in
force, why a Machine is held and what comes next, replaces and releases Machines, and shows what was refused and what was done.
It needs Holdfast in the cluster: see ` + home + `/blob/main/docs/install.md
`
)

// options say what is packed.
type options struct {
	binaries string // folder with OS-ARCH/kubectl-holdfast for each platform
	license  string // file
	out      string // folder
	version  string
	url      string // of the folder that the archives will be downloaded from
	created  int64  // Unix time of the commit
}

func main() {
	var o options
	flag.StringVar(&o.binaries, "binaries", "", "folder with OS-ARCH/kubectl-holdfast for each platform, such as linux-amd64/kubectl-holdfast")
	flag.StringVar(&o.license, "license", "", "file of the license")
	flag.StringVar(&o.out, "out", "", "folder of the archives and manifests")
	flag.StringVar(&o.version, "version", "", "version, such as v0.1.0")
	flag.StringVar(&o.url, "url", "", "URL that the archives will be below")
	flag.Int64Var(&o.created, "created", 0, "Unix time that the files in the archives are from: that of the commit")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

// packed is the archive of one platform.
type packed struct {
	system, arch, binary string
	file, sum            string
}

func (o *options) run() error {
	found, err := filepath.Glob(filepath.Join(o.binaries, "*-*", "kubectl-holdfast*"))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("no OS-ARCH/kubectl-holdfast in %q", o.binaries)
	}
	slices.Sort(found)
	var all []packed
	for _, binary := range found {
		p, err := o.pack(binary)
		if err != nil {
			return fmt.Errorf("%s: %w", binary, err)
		}
		all = append(all, p)
	}
	return errors.Join(o.write("holdfast-krew.yaml", o.krew(all)), o.write("holdfast-console-download.yaml", o.console(all)))
}

// pack makes the archive of one binary, with the license, as krew wants it.
func (o *options) pack(binary string) (packed, error) {
	system, arch, _ := strings.Cut(filepath.Base(filepath.Dir(binary)), "-")
	p := packed{system: system, arch: arch, binary: filepath.Base(binary)}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, file := range []struct {
		path string
		mode int64
	}{{binary, 0o755}, {o.license, 0o644}} {
		content, err := os.ReadFile(file.path)
		if err != nil {
			return p, err
		}
		head := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(file.path), Mode: file.mode, Size: int64(len(content)), ModTime: time.Unix(o.created, 0).UTC()}
		if err := w.WriteHeader(head); err != nil {
			return p, err
		}
		if _, err := w.Write(content); err != nil {
			return p, err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return p, err
	}
	sum := sha256.Sum256(out.Bytes())
	p.file, p.sum = fmt.Sprintf("kubectl-holdfast-%s-%s.tar.gz", system, arch), hex.EncodeToString(sum[:])
	return p, os.WriteFile(filepath.Join(o.out, p.file), out.Bytes(), 0o644)
}

// krew is the manifest that kubectl krew installs by.
func (o *options) krew(all []packed) *index.Plugin {
	plugin := &index.Plugin{
		TypeMeta:   metav1.TypeMeta{APIVersion: constants.CurrentAPIVersion, Kind: constants.PluginKind},
		ObjectMeta: metav1.ObjectMeta{Name: "holdfast"},
		Spec:       index.PluginSpec{Version: o.version, ShortDescription: short, Description: long, Homepage: home},
	}
	for _, p := range all {
		plugin.Spec.Platforms = append(plugin.Spec.Platforms, index.Platform{
			URI: o.url + "/" + p.file, Sha256: p.sum, Bin: p.binary,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"os": p.system, "arch": p.arch}},
		})
	}
	return plugin
}

// console has OpenShift's console offer the downloads.
func (o *options) console(all []packed) *consolev1.ConsoleCLIDownload {
	out := &consolev1.ConsoleCLIDownload{
		TypeMeta:   metav1.TypeMeta{APIVersion: consolev1.GroupVersion.String(), Kind: "ConsoleCLIDownload"},
		ObjectMeta: metav1.ObjectMeta{Name: "holdfast"},
		Spec:       consolev1.ConsoleCLIDownloadSpec{DisplayName: "kubectl holdfast: the control plane's deletion guard", Description: long},
	}
	for _, p := range all {
		out.Spec.Links = append(out.Spec.Links, consolev1.CLIDownloadLink{Href: o.url + "/" + p.file, Text: fmt.Sprintf("Download kubectl-holdfast for %s on %s", p.system, p.arch)})
	}
	return out
}

func (o *options) write(name string, object any) error {
	raw, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, name), raw, 0o644)
}
