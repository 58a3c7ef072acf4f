package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestImports holds the table of docs/design.md against what the packages import of each other.
func TestImports(t *testing.T) {
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./cmd/...", "./internal/...", "./webhooks")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/holdfast-dev/holdfast/"
	code := map[string]string{}
	for line := range strings.Lines(string(out)) {
		var ours []string
		for _, path := range strings.Fields(line) {
			if rest, ok := strings.CutPrefix(path, module); ok {
				ours = append(ours, strings.TrimPrefix(rest, "internal/"))
			}
		}
		code[ours[0]] = strings.Join(ours[1:], " ")
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	quoted := regexp.MustCompile("`([^`]+)`")
	_, table, _ := strings.Cut(string(page), "| imports |\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 {
			break
		}
		var ours []string
		for _, found := range quoted.FindAllStringSubmatch(cells[1]+cells[2], -1) {
			ours = append(ours, found[1])
		}
		if len(ours) > 0 {
			told[ours[0]] = strings.Join(ours[1:], " ")
		}
	}
	if diff := cmp.Diff(code, told); diff != "" {
		t.Errorf("docs/design.md and the code differ (- the code, + the page):\n%s", diff)
	}
}
