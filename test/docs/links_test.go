package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link       = regexp.MustCompile(`\]\(([^()\s]+)\)|^\[[^\]]+\]: *(\S+)`)
	runbook    = regexp.MustCompile(`runbook_url: https://github\.com/holdfast-dev/holdfast/blob/main/(\S+)`)
	repository = "https://github.com/holdfast-dev/holdfast/blob/main/"
)

// TestLinks follows every relative link, and the runbooks of the alerts.
func TestLinks(t *testing.T) {
	all := pages(t)
	say(t, brokenLinks(root(t), all))
	for _, found := range runbook.FindAllStringSubmatch(read(t, "deploy/monitoring/prometheusrule.yaml"), -1) {
		if problem := resolve(root(t), all, ".", found[1]); problem != "" {
			t.Errorf("deploy/monitoring/prometheusrule.yaml: %s", problem)
		}
	}
}

// TestIndex: docs/README.md leads to every page.
func TestIndex(t *testing.T) {
	index := read(t, "docs/README.md")
	for _, p := range pages(t) {
		if name, ok := strings.CutPrefix(p.path, "docs/"); ok && name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md has no link to %s", name)
		}
	}
}

func brokenLinks(root string, all []*page) []string {
	var problems []string
	for _, p := range all {
		for i, line := range p.lines {
			for _, found := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, "``"), -1) {
				to, from := found[1]+found[2], filepath.Dir(p.path)
				if inside, ok := strings.CutPrefix(to, repository); ok {
					to, from = inside, "."
				}
				if strings.Contains(to, "://") {
					continue
				}
				if strings.HasPrefix(to, "#") {
					to, from = p.path+to, "."
				}
				if problem := resolve(root, all, from, to); problem != "" {
					problems = append(problems, p.at(i+1)+": "+problem)
				}
			}
		}
	}
	return problems
}

// resolve follows a link from a folder, "" if it leads somewhere.
func resolve(root string, all []*page, from, to string) string {
	file, anchor, _ := strings.Cut(to, "#")
	file = filepath.Join(from, file)
	for _, p := range all {
		if p.path == file {
			if anchor != "" && !p.anchors[anchor] {
				return fmt.Sprintf("%s has no heading #%s", file, anchor)
			}
			return ""
		}
	}
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return fmt.Sprintf("there is no %s", file)
	}
	if anchor != "" {
		return fmt.Sprintf("%s is no page that could have #%s", file, anchor)
	}
	return ""
}
