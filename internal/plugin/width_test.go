package plugin

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestNarrow: on a terminal a line is no longer than it may be, and no word is cut; elsewhere nothing is left out.
func TestNarrow(t *testing.T) {
	rows := [][]string{
		{"MACHINE", "NODE", "ID", "HEALTH", "WAITS FOR"},
		{"master-0", "node-0", "a0a0a0a0a0a0a0a0", "healthy", ""},
		{"master-1", "node-1 (not ready, cordoned)", "b0b0b0b0b0b0b0b0", "unhealthy for 60m", "until its replacement votes, because etcd would lose its quorum"},
	}
	for _, width := range []int{0, 200, 120, 80, 60, 40} {
		var out bytes.Buffer
		all := make([][]string, len(rows))
		for i := range rows {
			all[i] = slices.Clone(rows[i])
		}
		if err := printRows(&out, width, all, "ID", "NODE"); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); width > 0 && n > width {
				t.Errorf("%d: a line of %d characters:\n%s", width, n, text)
			}
		}
		words := strings.Fields(text)
		for _, word := range strings.Fields("master-1 unhealthy for 60m until its replacement votes, because etcd would lose its quorum") {
			if !slices.Contains(words, word) {
				t.Errorf("%d: %q is cut or missing:\n%s", width, word, text)
			}
		}
		if has := strings.Contains(text, "b0b0b0b0b0b0b0b0"); has != (width == 0 || width >= 80) {
			t.Errorf("%d: the ID is there: %t:\n%s", width, has, text)
		}
	}
}

// TestFold: help fits the terminal.
func TestFold(t *testing.T) {
	long := strings.Repeat("what it does and why and ", 8)
	for _, width := range []int{0, 80} {
		root := &cobra.Command{Use: "a", Long: "first\n\n" + long}
		sub := &cobra.Command{Use: "b", Long: long, Run: func(*cobra.Command, []string) {}}
		sub.Flags().String("flag", "", long)
		root.AddCommand(sub)
		fold(root, width)
		var out bytes.Buffer
		root.SetOut(&out)
		for _, args := range [][]string{{"--help"}, {"b", "--help"}} {
			root.SetArgs(args)
			if err := root.Execute(); err != nil {
				t.Fatal(err)
			}
		}
		most := 0
		for line := range strings.Lines(out.String()) {
			most = max(most, len(strings.TrimSpace(line)))
		}
		if (most <= 80) != (width == 80) {
			t.Errorf("%d: a line has %d characters:\n%s", width, most, out.String())
		}
	}
}
