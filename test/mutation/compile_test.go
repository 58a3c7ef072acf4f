package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestFit: every edit still fits the code and compiles, for one that does not shows nothing, and has a name of its own.
func TestFit(t *testing.T) {
	base, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./internal/...")
	list.Dir = base
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[name] = file
	}
	fset := token.NewFileSet()
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	dir, seen := t.TempDir(), map[string]bool{}
	for _, m := range mutants() {
		if seen[m.name] {
			t.Errorf("two mutants are named %s", m.name)
		}
		seen[m.name] = true
		if _, err := m.overlay(base, dir); err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		sources, err := filepath.Glob(filepath.Join(base, "internal", path.Dir(m.file), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var files []*ast.File
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			if filepath.Base(source) == path.Base(m.file) {
				source = filepath.Join(dir, mutated)
			}
			file, err := parser.ParseFile(fset, source, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
				continue
			}
			files = append(files, file)
		}
		if _, err := config.Check(path.Dir(m.file), fset, files, nil); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
