// Package assets finds the binaries that the tests and the sandbox run.
package assets

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

const module = "github.com/holdfast-dev/holdfast"

// Path finds the binary of that name: in $KUBEBUILDER_ASSETS if it is there,
// else in the repository's bin/. The error names the make target that builds it.
func Path(name string) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		if path := filepath.Join(dir, name); executable(path) {
			return path, nil
		}
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	if path := filepath.Join(root, "bin", name); executable(path) {
		return path, nil
	}
	target := "parts"
	switch name {
	case "etcd", "etcdctl", "etcdutl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl":
		target = "binaries"
	case "control-plane-machine-set-operator":
		target = "set-operator"
	}
	return "", fmt.Errorf("%s is not built yet: run `make %s` in %s", name, target, root)
}

// Before says whether the binary of that name is of an earlier version than the one given, such as 3.6.
func Before(name, version string) (bool, error) {
	path, err := Path(name)
	if err != nil {
		return false, err
	}
	return Older(path, version)
}

// Older says whether the binary there is of an earlier version than the one given, such as 3.6.
func Older(path, version string) (bool, error) {
	is, err := Version(path)
	if err != nil {
		return false, err
	}
	return utilversion.MustParseGeneric(is).LessThan(utilversion.MustParseGeneric(version)), nil
}

// Version is what the binary there says of itself, such as 3.6.16.
func Version(path string) (string, error) {
	out, err := exec.Command(path, "--version").Output() //nolint:gosec,noctx // a part that this repository builds, which prints a line
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	is := number.Find(out)
	if is == nil {
		return "", fmt.Errorf("%s --version says %q", path, out)
	}
	return string(is), nil
}

var number = regexp.MustCompile(`\d+\.\d+\.\d+`)

// Root is the directory of Holdfast's go.mod: the first above the working
// directory, or above this program, which may be run from elsewhere.
func Root() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for {
			if isModule(filepath.Join(dir, "go.mod")) {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", errors.New("Holdfast's repository was not found: run this inside its checkout")
}

func isModule(file string) bool {
	text, err := os.ReadFile(file)
	// Modules below this one, such as test/binaries, are passed by.
	return err == nil && strings.HasPrefix(string(text), "module "+module+"\n")
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
