package tier

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestTiers: each test is in one tier. Long is the first statement of a test or is not called, make scenarios runs the
// tests that call it, and no other test of their packages has the name of one.
func TestTiers(t *testing.T) {
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	var long, packages []string
	first := map[string][]string{} // the names of the other tests, by package
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		calls := 0
		ast.Inspect(file, func(n ast.Node) bool {
			if isLong(n) {
				calls++
			}
			return true
		})
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
				continue
			}
			if statement, ok := f.Body.List[0].(*ast.ExprStmt); ok && isLong(statement.X) {
				long, packages, calls = append(long, f.Name.Name), append(packages, "./"+dir), calls-1
			} else {
				first["./"+dir] = append(first["./"+dir], f.Name.Name)
			}
		}
		if calls != 0 {
			t.Errorf("%s: tier.Long is called where it is not the first statement of a test", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(long)
	slices.Sort(packages)
	long, packages = slices.Compact(long), slices.Compact(packages)
	for _, dir := range packages {
		for _, name := range first[dir] {
			if slices.Contains(long, name) {
				t.Errorf("%s: make scenarios runs %s by its name, though it is of the first tier", dir, name)
			}
		}
	}
	got, err := exec.CommandContext(t.Context(), filepath.Join(root, "test", "tier", "long.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("-run ^("+strings.Join(long, "|")+")$ "+strings.Join(packages, " ")+"\n", string(got)); diff != "" {
		t.Errorf("long.sh prints other tests than those that call Long (-want +got):\n%s", diff)
	}
}

// isLong says whether n is the call tier.Long(t).
func isLong(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := f.X.(*ast.Ident)
	return ok && of.Name == "tier" && f.Sel.Name == "Long"
}
