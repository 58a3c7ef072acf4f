package plugin

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// widthOf is how many characters a terminal has in a line, 0 for what is no terminal.
func widthOf(out io.Writer) int {
	if f, ok := out.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			return columns
		}
	}
	return 0
}

// narrow prints rows on a terminal where they do not fit beside each other: without the columns that can be done without, in that order, as far as
// needed, and with the last column below each row, in whole words.
func narrow(out io.Writer, rows [][]string, width int, spare ...string) error {
	last := len(rows[0]) - 1
	below := make([]string, len(rows))
	for i := range rows {
		below[i], rows[i] = rows[i][last], slices.Clone(rows[i][:last])
	}
	for _, column := range spare {
		if wide(rows) <= width {
			break
		}
		at := slices.Index(rows[0], column)
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
	}
	var table bytes.Buffer
	if err := align(&table, rows); err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n") {
		fmt.Fprintln(out, strings.TrimRight(line, " "))
		if below[i] != "-" {
			fmt.Fprintln(out, folded(below[i], width, "    "))
		}
	}
	return nil
}

// wide is how many characters rows take beside each other.
func wide(rows [][]string) (total int) {
	for column := range rows[0] {
		most := 0
		for _, row := range rows {
			most = max(most, utf8.RuneCountInString(row[column]))
		}
		total += most + len(gap)
	}
	return total - len(gap)
}

// folded is a text in lines of whole words, as far as they fit.
func folded(text string, width int, indent string) string {
	var lines []string
	line := indent
	for _, word := range strings.Fields(text) {
		if line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}

// fold has a command and those below it print their help in lines of that width.
func fold(cmd *cobra.Command, width int) {
	if width == 0 {
		return
	}
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), "Flags.FlagUsages ", fmt.Sprintf("Flags.FlagUsagesWrapped %d ", width)))
	paragraphs := strings.Split(cmd.Long, "\n\n")
	for i := range paragraphs {
		paragraphs[i] = folded(paragraphs[i], width, "")
	}
	cmd.Long = strings.Join(paragraphs, "\n\n")
	for _, sub := range cmd.Commands() {
		fold(sub, width)
	}
}
