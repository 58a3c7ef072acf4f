package main

import (
	"strings"
	"testing"
)

// TestTrace: what a real control plane shows in a replacement the model allows, in both modes; what must never be it does not.
func TestTrace(t *testing.T) {
	const rest = "a: live hook latch voter; b: live hook latch voter; c: live hook latch voter"
	for _, c := range []struct {
		name  string
		after []string // the moments after rest
		wrong string   // of the error
	}{
		{name: "a replacement", after: []string{
			"a: deleting hook latch voter; b: live hook latch voter; c: live hook latch voter",
			"a: deleting hook latch voter; b: live hook latch voter; c: live hook latch voter; d: live hook latch",
			"a: deleting hook latch voter; b: live hook latch voter; c: live hook latch voter; d: live hook latch learner",
			"a: deleting hook latch voter; b: live hook latch voter; c: live hook latch voter; d: live hook latch voter",
			"a: deleting hook latch; b: live hook latch voter; c: live hook latch voter; d: live hook latch voter",
			"b: live hook latch voter; c: live hook latch voter; d: live hook latch voter",
		}},
		{name: "a hook that goes from a live Machine", after: []string{"a: live latch voter; b: live hook latch voter; c: live hook latch voter"}, wrong: "line 2"},
		{name: "a live Machine's voter that goes", after: []string{"a: live hook latch; b: live hook latch voter; c: live hook latch voter"}, wrong: "line 2"},
		{name: "a voter that nobody added", after: []string{rest + "; d: voter"}, wrong: "line 2"},
		{name: "a new Machine without hooks", after: []string{rest + "; d: live"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, guard := range []bool{false, true} {
				trace, err := readTrace(strings.NewReader(strings.Join(append([]string{rest}, c.after...), "\n")))
				if err != nil {
					t.Fatal(err)
				}
				_, err = traced(guard).follow(trace)
				if err == nil != (c.wrong == "") || err != nil && !strings.HasPrefix(err.Error(), c.wrong+":") {
					t.Errorf("guard mode %v: %v, not %q", guard, err, c.wrong)
				}
			}
		})
	}
	for _, c := range []struct{ text, want string }{
		{rest + "\na live", `line 2: "a live" is not`},
		{"a: alive", `line 1: a is "alive"`},
		{strings.Repeat("a: live; ", slots) + "a: live", "one too many"},
	} {
		if _, err := readTrace(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, not %q", c.text, err, c.want)
		}
	}
}
