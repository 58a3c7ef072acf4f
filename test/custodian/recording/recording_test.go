package recording_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/holdfast-dev/holdfast/test/custodian/recording"
)

const dir = "../testdata/recordings"

// TestTranscripts: what is compared of each recording, and what is found in writes that are not as recorded.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var name, resync, wait string
			d.MaybeScanArgs(t, "recording", &name)
			d.MaybeScanArgs(t, "resync", &resync)
			d.MaybeScanArgs(t, "wait", &wait)
			writes := parse(t, d.Input)
			switch d.Cmd {
			case "steps":
				return recording.Steps(read(t, name))
			case "differences":
				return said(recording.Differences(read(t, name), writes))
			case "unprompted":
				return said(recording.Unprompted(writes, duration(t, resync)))
			case "hasty":
				return said(recording.Hasty(writes, duration(t, wait)))
			}
			d.Fatalf(t, "no such command")
			return ""
		})
	})
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	out, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func said(lines []string) string {
	if lines == nil {
		return "none\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

func parse(t *testing.T, text string) []recording.Write {
	t.Helper()
	writes, err := recording.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return writes
}

func read(t *testing.T, name string) []recording.Write {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(text))
}

// TestRecordings: each recording is like itself, and unlike itself without any write that is compared.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) != 7 {
		t.Fatalf("recordings %q, %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		writes := read(t, name)
		if d := recording.Differences(writes, writes); d != nil {
			t.Errorf("%s is unlike itself: %q", name, d)
		}
		missed := 0
		for i := range writes {
			less := slices.Delete(slices.Clone(writes), i, i+1)
			if recording.Steps(less) == recording.Steps(writes) {
				continue // one of a run, or not compared
			}
			missed++
			if recording.Differences(writes, less) == nil {
				t.Errorf("%s: nobody misses %s", name, writes[i])
			}
		}
		if missed == 0 {
			t.Errorf("%s: nothing of it is compared alone", name)
		}
	}
}

// TestParse: a line that is none is not passed over.
func TestParse(t *testing.T) {
	for _, line := range []string{"1.0 CEO machine put-hook a", "soon CEO machine put-hook a done", "1.0 CEO pod put-hook a done"} {
		if writes, err := recording.Parse(line); err == nil {
			t.Errorf("%q is read as %v", line, writes)
		}
	}
}
