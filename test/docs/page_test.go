package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// needsCluster is the comment above a block that is not executed.
const needsCluster = "<!-- needs a cluster -->"

// block is what stands between two fences.
type block struct {
	page    string // path of its page from the repository's root
	line    int    // of its first fence, from 1
	tag     string
	cluster bool     // needsCluster stands above it
	lines   []string // without the fences
}

// span is code in running text.
type span struct {
	at, text  string
	before    string // what stands before it in its line
	paragraph string // the lines around it up to empty ones
}

// page is a Markdown file.
type page struct {
	path    string
	lines   []string // what stands in fences is empty here
	blocks  []block
	anchors map[string]bool
}

func (p *page) at(line int) string { return fmt.Sprintf("%s:%d", p.path, line) }
func (b *block) at() string        { return fmt.Sprintf("%s:%d", b.page, b.line) }

// parse reads a page. The path is only its name.
func parse(path, text string) *page {
	p := &page{path: path, anchors: map[string]bool{}}
	var open *block
	previous := ""
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimLeft(line, " "), "```")
		switch {
		case isFence && open == nil:
			open = &block{page: path, line: i + 1, tag: strings.TrimSpace(fence), cluster: strings.TrimSpace(previous) == needsCluster}
			line = ""
		case isFence:
			p.blocks = append(p.blocks, *open)
			open, line = nil, ""
		case open != nil:
			open.lines = append(open.lines, line)
			line = ""
		case strings.HasPrefix(line, "#"):
			p.anchor(strings.TrimSpace(strings.TrimLeft(line, "#")))
		}
		p.lines = append(p.lines, line)
		previous = line
	}
	if open != nil {
		p.blocks = append(p.blocks, *open)
	}
	return p
}

// anchor adds a heading's, as GitHub makes it.
func (p *page) anchor(heading string) {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r == ' ' || r == '-':
			return '-'
		case r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
	name := slug
	for n := 1; p.anchors[name]; n++ {
		name = fmt.Sprintf("%s-%d", slug, n)
	}
	p.anchors[name] = true
}

var codeSpan = regexp.MustCompile("(`+)([^`]+)(`+)")

// spans are all code in running text. One that is broken over two lines is found as well.
func (p *page) spans() []span {
	var out []span
	for start := 0; start < len(p.lines); {
		if strings.TrimSpace(p.lines[start]) == "" {
			start++
			continue
		}
		end := start
		for end < len(p.lines) && strings.TrimSpace(p.lines[end]) != "" {
			end++
		}
		paragraph := strings.Join(p.lines[start:end], "\n")
		for _, found := range codeSpan.FindAllStringSubmatchIndex(paragraph, -1) {
			line := start + 1 + strings.Count(paragraph[:found[0]], "\n")
			begin := strings.LastIndex(paragraph[:found[0]], "\n") + 1
			out = append(out, span{
				at: p.at(line), text: strings.Join(strings.Fields(paragraph[found[4]:found[5]]), " "),
				before: paragraph[begin:found[0]], paragraph: paragraph,
			})
		}
		start = end
	}
	return out
}

// root is the repository's.
func root(t *testing.T) string {
	t.Helper()
	dir, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// read is a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages are README.md, CONTRIBUTING.md and all pages of docs.
func pages(t *testing.T) []*page {
	t.Helper()
	paths := []string{"README.md", "CONTRIBUTING.md"}
	err := filepath.WalkDir(filepath.Join(root(t), "docs"), func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			path, err = filepath.Rel(root(t), path)
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	var out []*page
	for _, path := range paths {
		out = append(out, parse(path, read(t, path)))
	}
	return out
}

// say fails the test with each problem.
func say(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}
