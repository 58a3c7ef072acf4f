package docs

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wrongPage has the checks' mistakes, wrongList what they say of it.
const (
	wrongPage = "test/docs/testdata/wrong.md"
	wrongList = "test/docs/testdata/wrong.txt"
)

// finds holds that each kind of mistake is found.
func finds(t *testing.T, k *tools, v *vocabulary) {
	t.Helper()
	p := parse(wrongPage, read(t, wrongPage))
	problems := slices.Concat(brokenLinks(k.root, []*page{p}), v.wrong(p), k.wrongSpans(t.Context(), p))
	for i := range p.blocks {
		problems = append(problems, k.wrongBlock(t.Context(), &p.blocks[i])...)
	}
	slices.Sort(problems)
	got := strings.Join(problems, "\n") + "\n"
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(filepath.Join(k.root, wrongList), []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, wrongList), got); diff != "" {
		t.Error(diff)
	}
}
