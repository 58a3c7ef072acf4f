package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// marker stands in the page above the tables, which are made anew below it.
const marker = "<!-- Below: go run ./test/mutation -table docs/proof/mutation.md -->\n"

// row is a mutant in the table. The test holds the first two columns against the mutants.
type row struct{ name, edit, caught string }

const (
	header = "| mutant | what it switches off | caught by |\n|---|---|---|\n"
	most   = 4 // tests that a row names
	// byNothing is who catches a mutant that survives.
	byNothing = "nothing"
)

// edit is what the mutant changes, in one line of Markdown: what is not the same at both ends of the two
// texts, word by word.
func (m mutant) edit() string {
	was, is := strings.Fields(m.old), strings.Fields(m.new)
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	switch {
	case len(is) == 0:
		return fmt.Sprintf("%s: without %s", m.file, code(was))
	case len(was) == 0:
		return fmt.Sprintf("%s: with %s", m.file, code(is))
	}
	return fmt.Sprintf("%s: %s becomes %s", m.file, code(was), code(is))
}

func code(words []string) string { return "`" + escape(strings.Join(words, " ")) + "`" }

func escape(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// caughtBy are the tests that failed, as a cell.
func caughtBy(tests []string) string {
	tests = slices.Sorted(slices.Values(tests))
	more := max(0, len(tests)-most)
	for i := range tests {
		if strings.HasPrefix(tests[i], "Test") || strings.HasPrefix(tests[i], "Fuzz") {
			tests[i] = "`" + escape(tests[i]) + "`"
		}
	}
	text := strings.Join(tests[:len(tests)-more], ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// rows are those of a page's tables.
func rows(page []byte) (out []row) {
	_, tables, _ := bytes.Cut(page, []byte(marker))
	for line := range strings.Lines(string(tables)) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), `\|`, "\x00"), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "\x00", `\|`)
		}
		if r := (row{cells[1], cells[2], cells[3]}); !strings.HasPrefix(header, fmt.Sprintf("| %s | %s | %s |", r.name, r.edit, r.caught)) {
			out = append(out, r)
		}
	}
	return out
}

// write makes the tables of a page anew. Of mutants that were not tried this time it keeps what stands there.
func write(path string, caught map[string][]string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("the table of mutants: %w", err)
	}
	above, _, ok := bytes.Cut(page, []byte(marker))
	if !ok {
		return fmt.Errorf("the table of mutants: %s has no line %q", path, strings.TrimSpace(marker))
	}
	stood := rows(page)
	text := bytes.NewBuffer(append(above, marker...))
	for _, p := range parts() {
		fmt.Fprintf(text, "\n## %s\n\n%s", p.heading, header)
		for _, m := range p.mutants {
			r := row{name: m.name, edit: m.edit()}
			if tests, tried := caught[m.name]; tried {
				r.caught = caughtBy(tests)
			} else if i := slices.IndexFunc(stood, func(old row) bool { return old.name == r.name && old.edit == r.edit }); i >= 0 {
				r.caught = stood[i].caught
			}
			fmt.Fprintf(text, "| %s | %s | %s |\n", r.name, r.edit, r.caught)
		}
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}
