package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// page is where the tables stand.
const page = "docs/proof/mutation.md"

func root(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestPage: the page's tables have exactly the mutants, with the edits that they are now, and each was caught.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	told, known := rows(text), []row{}
	for i := range told {
		if told[i].caught == "" || told[i].caught == byNothing {
			t.Errorf("%s: by what %q is caught it does not tell: go run ./test/mutation -run %q -table %s", page, told[i].name, told[i].name, page)
		}
		told[i].caught = ""
	}
	for _, m := range mutants() {
		known = append(known, row{name: m.name, edit: m.edit()})
	}
	if diff := cmp.Diff(known, told, cmp.AllowUnexported(row{})); diff != "" {
		t.Errorf("%s is not of these mutants (- the code, + the page): go run ./test/mutation -table %s\n%s", page, page, diff)
	}
}

// TestAll: there is a mutant of every rule, step and invariant.
func TestAll(t *testing.T) {
	var want []string
	for _, rule := range quorum.Rules {
		want = append(want, string(rule))
	}
	for step := 1; step <= 8; step++ {
		want = append(want, fmt.Sprintf("step %d", step))
	}
	for invariant := membership.InvariantQuorum; invariant <= membership.InvariantOneChange; invariant = next(invariant) {
		want = append(want, string(invariant))
	}
	want = append(want, string(membership.InvariantPeerURL))
	for _, name := range want {
		found := false
		for _, m := range mutants() {
			found = found || m.name == name || strings.HasPrefix(m.name, name+":")
		}
		if !found {
			t.Errorf("no mutant switches off %s", name)
		}
	}
}

func next(i membership.Invariant) membership.Invariant {
	return membership.Invariant("I" + string(i[1]+1))
}

func TestEdit(t *testing.T) {
	for _, c := range []struct{ was, is, want string }{
		{"if limit > 0 && len(going) > 1 {", "if len(going) > 1 {", "a.go: without `limit > 0 &&`"},
		{"if s == nil {\n\t\td.add(", "if s == nil {\n\t\treturn\n\t\td.add(", "a.go: with `return`"},
		{"if a || b {", "if a {", "a.go: without `\\|\\| b`"},
		{"max(1, Tolerance(voters))", "1", "a.go: `max(1, Tolerance(voters))` becomes `1`"},
	} {
		if got := (mutant{"name", "a.go", c.was, c.is}).edit(); got != c.want {
			t.Errorf("%q to %q is %s, not %s", c.was, c.is, got, c.want)
		}
	}
}

// TestWrite: a run of some mutants writes their rows, and leaves the others' as they are.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("# Mutants\n\n"+marker+"\nwhat stood there\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := mutants()
	first, last := all[0], all[len(all)-1]
	for _, caught := range []map[string][]string{
		{first.name: {"TestB", "TestA/one|two", "TestE", "TestD", "TestC"}},
		{last.name: {byNothing}},
	} {
		if err := write(path, caught); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := rows(text)
	if len(got) != len(all) {
		t.Fatalf("%d rows of %d mutants", len(got), len(all))
	}
	want := []row{
		{first.name, first.edit(), "`TestA/one\\|two`, `TestB`, `TestC`, `TestD` and 1 more"},
		{all[1].name, all[1].edit(), ""},
		{last.name, last.edit(), byNothing},
	}
	if diff := cmp.Diff(want, []row{got[0], got[1], got[len(got)-1]}, cmp.AllowUnexported(row{})); diff != "" {
		t.Error(diff)
	}
	if err := write(filepath.Join(t.TempDir(), "none.md"), nil); err == nil {
		t.Error("a page that is not there is written")
	}
}
