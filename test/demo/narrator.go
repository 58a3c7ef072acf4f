package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// narrator writes the transcript, in colours on a terminal.
type narrator struct {
	out     *os.File
	colours bool
	begun   time.Time
	told    int       // chapters
	since   time.Time // the last chapter or command began
}

func newNarrator(f *os.File) *narrator {
	return &narrator{out: f, colours: term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "", begun: time.Now()}
}

const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	yellow = "\x1b[33m"
	green  = "\x1b[32m"
	red    = "\x1b[31m"
)

// say writes lines of the transcript, in a style or none.
func (n *narrator) say(style, format string, args ...any) {
	fmt.Fprintln(n.out, n.paint(style, fmt.Sprintf(format, args...)))
}

func (n *narrator) paint(style, text string) string {
	if style == "" || !n.colours {
		return text
	}
	return style + text + "\x1b[0m"
}

// chapter begins a part of the demo.
func (n *narrator) chapter(title, why string) {
	n.told++
	n.since = time.Now()
	n.say("", "")
	n.say(bold, "%d. %s", n.told, title)
	n.say(dim, "   %s", strings.ReplaceAll(why, "\n", "\n   "))
}

// event writes what happened, with the time since the last command.
func (n *narrator) event(format string, args ...any) {
	n.say("", "   %6.1f s  %s", time.Since(n.since).Seconds(), fmt.Sprintf(format, args...))
}

// output writes what a command printed, with the API server's warnings and refusals made visible.
func (n *narrator) output(text string) {
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		style := ""
		switch {
		case strings.HasPrefix(l, "Warning:"):
			style = yellow
		case strings.HasPrefix(l, "Error"):
			style = red
		}
		n.say(style, "   %s", l)
	}
}
