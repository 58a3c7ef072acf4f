package waysin_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestTrust holds the tables of fields in docs/proof/attacks.md against what decisions are made on: each field of a Snapshot and of a Request is in one row,
// and each row names what tries it, which exists.
func TestTrust(t *testing.T) {
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "proof", "attacks.md"))
	if err != nil {
		t.Fatal(err)
	}
	told, quoted := map[string]bool{}, regexp.MustCompile("`([^`]+)`")
	exists := testsIn(t, root)
	for _, w := range ways() {
		exists[w.name] = true
	}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || !strings.Contains(cells[1], "`") {
			continue
		}
		fields := quoted.FindAllStringSubmatch(cells[1], -1)
		for _, f := range fields {
			if told[f[1]] {
				t.Errorf("%s is in two rows", f[1])
			}
			told[f[1]] = true
		}
		tests := quoted.FindAllStringSubmatch(cells[5], -1)
		if falls := strings.TrimSpace(cells[4]); len(tests) == 0 && falls != "" {
			t.Errorf("nothing tries %s", fields[0][1])
		}
		for _, test := range tests {
			if !exists[test[1]] {
				t.Errorf("%s: there is no test %q, nor a way in of that name", fields[0][1], test[1])
			}
		}
	}
	read := map[string]bool{}
	fieldsOf(reflect.TypeFor[quorum.Snapshot](), read)
	fieldsOf(reflect.TypeFor[admission.Request](), read)
	for field := range read {
		if !told[field] {
			t.Errorf("%s is read, and docs/proof/attacks.md does not say who may write it", field)
		}
	}
	for field := range told {
		if !read[field] {
			t.Errorf("docs/proof/attacks.md has %s, which is no field that a decision reads", field)
		}
	}
}

// fieldsOf adds the fields of a struct of package quorum or admission, and of those that it holds.
func fieldsOf(of reflect.Type, into map[string]bool) {
	for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer || of.Kind() == reflect.Array {
		of = of.Elem()
	}
	facts := of.PkgPath() == reflect.TypeFor[quorum.Snapshot]().PkgPath() || of.PkgPath() == reflect.TypeFor[admission.Request]().PkgPath()
	if of.Kind() != reflect.Struct || !facts {
		return
	}
	for f := range of.Fields() {
		if name := of.Name() + "." + f.Name; !into[name] {
			into[name] = true
			fieldsOf(f.Type, into)
		}
	}
}

// testsIn are the names of the module's tests.
func testsIn(t *testing.T, root string) map[string]bool {
	t.Helper()
	out, declared := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bin" || entry.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			out[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
