package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPage: the tables of docs/proof/model.md have exactly the configurations and the planted bugs.
func TestPage(t *testing.T) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "docs", "proof", "model.md"))
	if err != nil {
		t.Fatal(err)
	}
	var explored, planted []string
	for _, c := range configs() {
		if c.finds == "" { // the others are told in words
			explored = append(explored, c.name)
		}
	}
	for _, m := range mutants() {
		planted = append(planted, m.name)
	}
	for _, table := range []struct {
		header string
		want   []string
	}{{"| configuration |", explored}, {"| planted |", planted}} {
		if diff := cmp.Diff(table.want, firstCells(string(text), table.header)); diff != "" {
			t.Errorf("the table %s of docs/proof/model.md is not that of the code (- the code, + the page):\n%s", table.header, diff)
		}
	}
}

// firstCells are those of the rows below a header.
func firstCells(page, header string) (cells []string) {
	_, below, _ := strings.Cut(page, "\n"+header)
	for i, line := range strings.Split(below, "\n") {
		if i < 2 { // the header's rest, and the rule below it
			continue
		}
		parts := strings.Split(line, "|")
		if len(parts) < 3 {
			return cells
		}
		cells = append(cells, strings.TrimSpace(parts[1]))
	}
	return cells
}
