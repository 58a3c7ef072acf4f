package plugin

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"

	"golang.org/x/term"
)

// screen is a terminal that somebody sits at, where words of weight are coloured. What is written elsewhere, to a file or another program, is
// as it was.
type screen struct {
	out     io.Writer
	columns func() int // 0 where it is not known
	colour  bool
	rest    []byte // the beginning of a line that has yet to end
}

// shown is a screen for a file that is a terminal, else the file itself. NO_COLOR turns colours off (no-color.org).
func shown(f *os.File) io.Writer {
	if !isTerminal(f) {
		return f
	}
	columns := func() int {
		columns, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return columns
	}
	return &screen{out: f, columns: columns, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Write shows the lines that are whole by now.
func (s *screen) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	end := bytes.LastIndexByte(s.rest, '\n') + 1
	text := string(s.rest[:end])
	if s.rest = bytes.Clone(s.rest[end:]); s.colour {
		text = coloured(text)
	}
	_, err := io.WriteString(s.out, text)
	return len(p), err
}

// flush shows a line that has yet to end: a question.
func flush(out io.Writer) {
	if s, ok := out.(*screen); ok {
		_, _ = s.out.Write(s.rest) // what was asked shows by the answer
		s.rest = nil
	}
}

// narrow says whether a table of ten columns has no room.
func narrow(out io.Writer) bool {
	s, ok := out.(*screen)
	return ok && s.columns() > 0 && s.columns() < 130
}

// The words that are coloured: what is wrong, what is under way, what is well.
var (
	wrongWords = regexp.MustCompile(`\b(unhealthy|not ready|quorum is lost|0 more may fail|not in force|WRONG|[Rr]efused|denied|useless|Failed)\b`)
	underWay   = regexp.MustCompile(`\b(learner|Deleting|held|cordoned|repaired|Warning|Provisioning|Provisioned|UNKNOWN)\b`)
	wellWords  = regexp.MustCompile(`\b(healthy|in force|Nothing is to be done|has replaced it)\b`)
)

func coloured(text string) string {
	const red, yellow, green = "31", "33", "32"
	var out strings.Builder
	for line := range strings.Lines(text) {
		if wrongWords.MatchString(line) {
			out.WriteString(paint(paint(line, wrongWords, red), underWay, yellow))
		} else {
			out.WriteString(paint(paint(line, underWay, yellow), wellWords, green))
		}
	}
	return out.String()
}

func paint(line string, words *regexp.Regexp, colour string) string {
	return words.ReplaceAllString(line, "\x1b["+colour+"m$0\x1b[39m")
}
