package plugin

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// TestScreen: on a terminal words of weight are in colour, and a question shows before its line ends.
func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, columns: func() int { return 60 }, colour: true}
	fmt.Fprint(s, "Type its name: ")
	if out.Len() > 0 {
		t.Errorf("a line that has yet to end shows as %q", out.String())
	}
	if flush(s); out.String() != "Type its name: " {
		t.Errorf("the question is %q", out.String())
	}

	out.Reset()
	fmt.Fprint(s, "voter b is unhealthy, Machine a is held, all is healthy\nall is healthy\n")
	if got, want := out.String(), "voter b is \x1b[31munhealthy\x1b[39m, Machine a is \x1b[33mheld\x1b[39m, all is healthy\nall is \x1b[32mhealthy\x1b[39m\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAgeless: an age that grows is nothing new.
func TestAgeless(t *testing.T) {
	for _, same := range []string{"held for 10m", "held for 2h3m", "seen 30 s ago", "for 3 days"} {
		if strings.ContainsAny(ageless(same), "0123456789") {
			t.Errorf("the age stays in %q: %q", same, ageless(same))
		}
	}
	if ageless("2 of 3 voters") != "2 of 3 voters" || ageless("node-3s1") != "node-3s1" {
		t.Error("what is no age goes, too")
	}
}
