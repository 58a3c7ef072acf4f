// Package assets finds the binaries that the tests and the sandbox run.
package assets

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if path, ok := strings.CutPrefix(lines.Text(), "module "); ok {
			// Modules below this one, such as test/binaries, are passed by.
			return strings.TrimSpace(path) == module
		}
	}
	return false
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
