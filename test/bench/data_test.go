package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseVolumes(t *testing.T) {
	got, err := parseVolumes("0,0.25,4")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]volume{0, gib / 4, 4 * gib}, got); diff != "" {
		t.Error(diff)
	}
	for _, wrong := range []string{"", "x", "-1", "NaN", "Inf", "1,,2", "7"} {
		if got, err := parseVolumes(wrong); err == nil {
			t.Errorf("%q is read as %v", wrong, got)
		}
	}
}

// TestRoom: what does not fit is refused with the sizes, before anything is written.
func TestRoom(t *testing.T) {
	if err := roomFor(t.TempDir(), []volume{0}); err != nil {
		t.Error(err)
	}
	const much = volume(1) << 60 // an exbibyte
	err := roomFor(t.TempDir(), []volume{0, much})
	if err == nil {
		t.Fatal("there is room for an exbibyte")
	}
	for _, want := range []string{much.String(), much.needs().String(), "TMPDIR"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not tell %s", err, want)
		}
	}
}
