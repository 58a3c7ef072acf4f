package plugin

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// screen is a terminal that somebody sits at. Lines that are longer than it is wide are broken between words, and words of weight
// are coloured. What is written elsewhere, to a file or another program, is as it was.
type screen struct {
	out    io.Writer
	size   func() (columns, lines int) // 0 where it is not known
	colour bool
	rest   []byte // the beginning of a line that has yet to end
}

// shown is a screen for a file that is a terminal, else the file itself. NO_COLOR turns colours off (no-color.org).
func shown(f *os.File) io.Writer {
	if !isTerminal(f) {
		return f
	}
	size := func() (columns, lines int) {
		columns, lines, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0, 0
		}
		return columns, lines
	}
	return &screen{out: f, size: size, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Write shows the lines that are whole by now.
func (s *screen) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	end := bytes.LastIndexByte(s.rest, '\n') + 1
	if end == 0 {
		return len(p), nil
	}
	text := s.drawn(string(s.rest[:end]), nil)
	s.rest = append([]byte(nil), s.rest[end:]...)
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
	if !ok {
		return false
	}
	columns, _ := s.size()
	return columns > 0 && columns < 130
}

// redraw shows a text in the place of the one before it, as far as it fits, with the lines bold that are new. Nothing is cleared first, so that nothing
// flickers: each line ends with the clearing of its rest, the last one with that of the screen's.
func (s *screen) redraw(text string, isNew func(line string) bool) error {
	shown := strings.Split(strings.TrimSuffix(s.drawn(text, isNew), "\n"), "\n")
	if _, lines := s.size(); lines > 2 && len(shown) >= lines {
		more := len(shown) - (lines - 2)
		shown = append(shown[:lines-2], fmt.Sprintf("... and %d lines more, which kubectl holdfast status shows", more))
	}
	_, err := io.WriteString(s.out, "\x1b[H"+strings.Join(shown, "\x1b[K\n")+"\x1b[K\n\x1b[J")
	return err
}

// drawn is a text of whole lines as the screen shows it.
func (s *screen) drawn(text string, bold func(line string) bool) string {
	var out strings.Builder
	width, _ := s.size()
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		shown := wrapped(line, width)
		if s.colour {
			shown = coloured(shown)
		}
		if bold != nil && bold(line) {
			shown = "\x1b[1m" + shown + "\x1b[22m"
		}
		out.WriteString(shown + "\n")
	}
	return out.String()
}

// command is what stands in a line that somebody copies: broken, it would be two commands.
var command = regexp.MustCompile(`\b(kubectl|oc|etcdctl|etcdutl) `)

// wrapped is a line broken between words, so that each part fits; what follows is indented a little further. A word that is longer
// than that, such as an address, stays whole, and so does a line with a command in it.
func wrapped(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width || command.MatchString(line) {
		return line
	}
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))] + "  "
	var out strings.Builder
	column := 0
	for part := range strings.SplitAfterSeq(line, " ") {
		long := utf8.RuneCountInString(part)
		if column > len(indent) && column+utf8.RuneCountInString(strings.TrimRight(part, " ")) > width {
			out.WriteString("\n" + indent)
			column = len(indent)
		}
		out.WriteString(part)
		column += long
	}
	return out.String()
}

// The words that are coloured: what is wrong, what is under way, what is well.
var (
	wrongWords = regexp.MustCompile(`\b(unhealthy|not ready|quorum is lost|0 more may fail|not in force|WRONG|[Rr]efused|denied|useless|Failed)\b`)
	underWay   = regexp.MustCompile(`\b(learner|Deleting|held|cordoned|repaired|Warning|Provisioning|Provisioned|UNKNOWN)\b`)
	wellWords  = regexp.MustCompile(`\b(healthy|in force|Nothing is to be done|has replaced it)\b`)
)

func coloured(line string) string {
	const red, yellow, green = "31", "33", "32"
	if wrongWords.MatchString(line) {
		return paint(paint(line, wrongWords, red), underWay, yellow)
	}
	return paint(paint(line, underWay, yellow), wellWords, green)
}

func paint(line string, words *regexp.Regexp, colour string) string {
	return words.ReplaceAllString(line, "\x1b["+colour+"m$0\x1b[39m")
}
