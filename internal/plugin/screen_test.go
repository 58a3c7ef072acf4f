package plugin

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// small is a screen of 60 columns and five lines.
func small(out *bytes.Buffer, colour bool) *screen {
	return &screen{out: out, size: func() (int, int) { return 60, 5 }, colour: colour}
}

// TestScreen: a terminal gets its lines broken between words, a command never, and words of weight in colour; a question shows
// before its line ends.
func TestScreen(t *testing.T) {
	long := strings.Repeat("word ", 20)
	command := "  kubectl -n openshift-machine-api annotate machine master-0 --overwrite holdfast.dev/override='x: y'"
	var out bytes.Buffer
	s := small(&out, false)
	fmt.Fprintf(s, "short\n  %s\n%s\n", long, command)
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(line, "kubectl") && len(strings.TrimRight(line, " \n")) > 60 {
			t.Errorf("%q is too long", line)
		}
	}
	if got := strings.Count(out.String(), "word"); got != 20 || !strings.Contains(out.String(), "\n    word") || !strings.Contains(out.String(), command+"\n") {
		t.Errorf("it shows %q", out.String())
	}

	out.Reset()
	fmt.Fprint(s, "Type its name: ")
	if out.Len() > 0 {
		t.Errorf("a line that has yet to end shows as %q", out.String())
	}
	if flush(s); out.String() != "Type its name: " {
		t.Errorf("the question is %q", out.String())
	}

	out.Reset()
	fmt.Fprintln(small(&out, true), "voter b is unhealthy, Machine a is held, all is healthy")
	if got, want := out.String(), "voter b is \x1b[31munhealthy\x1b[39m, Machine a is \x1b[33mheld\x1b[39m, all is healthy\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRedraw: a text takes the place of the one before it, whatever stood there, and what is new in it is bold. An age that grows
// is nothing new.
func TestRedraw(t *testing.T) {
	var out bytes.Buffer
	isNew := news("a for 3s\nb\n")
	if err := small(&out, false).redraw("a for 5s\nc\n", isNew); err != nil || out.String() != "\x1b[Ha for 5s\x1b[K\n\x1b[1mc\x1b[22m\x1b[K\n\x1b[J" {
		t.Errorf("%q, %v", out.String(), err)
	}
	out.Reset()
	if err := small(&out, false).redraw("1\n2\n3\n4\n5\n6\n", nil); err != nil || !strings.Contains(out.String(), "3\x1b[K\n... and 3 lines more") || strings.Contains(out.String(), "\n4") {
		t.Errorf("%q, %v", out.String(), err)
	}
	for _, same := range []string{"held for 10m", "held for 2h3m", "seen 30 s ago", "for 3 days"} {
		if strings.ContainsAny(ageless(same), "0123456789") {
			t.Errorf("the age stays in %q: %q", same, ageless(same))
		}
	}
	if ageless("2 of 3 voters") != "2 of 3 voters" || ageless("node-3s1") != "node-3s1" {
		t.Error("what is no age goes, too")
	}
}
