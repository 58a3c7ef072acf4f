package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// narrator writes the transcript. On a terminal a last line shows that time goes by; otherwise every
// line is plain and final.
type narrator struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	begun    time.Time
	told     int    // the last chapter's number
	status   string // the line that stands below the transcript, "" without one
}

func newNarrator(f *os.File) *narrator {
	return &narrator{out: f, terminal: term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "", begun: time.Now()}
}

const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	yellow = "\x1b[33m"
	green  = "\x1b[32m"
	red    = "\x1b[31m"
)

func (n *narrator) paint(style, text string) string {
	if !n.terminal {
		return text
	}
	return style + text + "\x1b[0m"
}

// line writes one line of the transcript.
func (n *narrator) line(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear()
	fmt.Fprintln(n.out, text)
	n.draw()
}

func (n *narrator) clear() {
	if n.status != "" && n.terminal {
		fmt.Fprint(n.out, "\r\x1b[K")
	}
}

func (n *narrator) draw() {
	if n.status != "" && n.terminal {
		fmt.Fprint(n.out, n.status)
	}
}

// wait shows on a terminal what is waited for, until the next one; "" for nothing.
func (n *narrator) wait(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear()
	n.status = ""
	if what != "" {
		n.status = n.paint(dim, fmt.Sprintf("  ... %s (%.0f s)", what, time.Since(n.begun).Seconds()))
	}
	n.draw()
}

// chapter begins a part of the demo.
func (n *narrator) chapter(number int, title, why string) {
	n.wait("")
	n.told = number
	n.line("")
	n.line(n.paint(bold, fmt.Sprintf("%d. %s", number, title)))
	for _, l := range strings.Split(why, "\n") {
		n.line(n.paint(dim, "   "+l))
	}
}

// say writes an indented line.
func (n *narrator) say(format string, args ...any) { n.line("   " + fmt.Sprintf(format, args...)) }

// event writes something that happened, with the seconds since the given time.
func (n *narrator) event(since time.Time, format string, args ...any) {
	n.line(fmt.Sprintf("   %6.1f s  %s", time.Since(since).Seconds(), fmt.Sprintf(format, args...)))
}

// output writes what a command printed, with the API server's warnings and refusals made visible.
func (n *narrator) output(text string) {
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case strings.HasPrefix(l, "Warning:"):
			l = n.paint(yellow, l)
		case strings.HasPrefix(l, "Error"):
			l = n.paint(red, l)
		}
		n.line("   " + l)
	}
}

// command writes a command as a person would type it.
func (n *narrator) command(as, text string) {
	n.line("   " + n.paint(bold, "$ "+text) + n.paint(dim, "   # as "+as))
}
