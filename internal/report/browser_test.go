//go:build browser

package report

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// browser runs headless Chromium (Debian: apt-get install chromium) on the page, and returns what it printed.
func browser(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("this test needs a browser, on Debian: apt-get install chromium: %v", err)
	}
	var out, log bytes.Buffer
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(), "--enable-logging=stderr",
		"--virtual-time-budget=5000", "--window-size=1280,1600", "--hide-scrollbars",
	}, args...)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &log, 10*time.Second
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, log.String())
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("the page complains: %s", line)
		}
	}
	return out.String()
}

// onDisk is the demo's report, with a hostile user, as a file.
func onDisk(t *testing.T) (address string, r *Report) {
	t.Helper()
	r = New(demo(t), Wanted{Missing: []string{"the log of pod holdfast-1"}})
	r.Items = append(r.Items, Item{At: r.To, Source: SourceDecision, Machine: "master-2", User: `</script><script>document.title="broken"</script>`, What: "DELETE", Rule: "held", Verdict: "allowed"})
	path := filepath.Join(t.TempDir(), "report.html")
	var out bytes.Buffer
	if err := r.HTML(&out, "a test"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + path, r
}

// TestFilters: the page's own script filters by what its address says, rows and marks alike.
func TestFilters(t *testing.T) {
	address, r := onDisk(t)
	count := func(of func(*Item) bool) (n int) {
		for i := range r.Items {
			if of(&r.Items[i]) {
				n++
			}
		}
		return n
	}
	visible := regexp.MustCompile(`<tr id="i[0-9]+"[^>]*>`)
	for filter, want := range map[string]int{
		"":                      len(r.Items),
		"#user=alice":           count(func(i *Item) bool { return i.User == "alice" }),
		"#kind=denied":          1,
		"#rule=keep-hook":       count(func(i *Item) bool { return i.Rule == "keep-hook" }),
		"#machine=master-1":     count(func(i *Item) bool { return i.Machine == "master-1" }),
		"#user=alice&rule=held": count(func(i *Item) bool { return i.User == "alice" && i.Rule == "held" }),
		"#user=nobody":          len(r.Items), // no such choice
	} {
		dom := browser(t, "--dump-dom", address+filter)
		shown := 0
		for _, row := range visible.FindAllString(dom, -1) {
			if !strings.Contains(row, "hidden") {
				shown++
			}
		}
		if told := fmt.Sprintf("%d of %d shown", want, len(r.Items)); shown != want || !strings.Contains(dom, told) {
			t.Errorf("%q shows %d rows, want %d and %q", filter, shown, want, told)
		}
		if marks := strings.Count(dom, `<a href="#i`) - strings.Count(dom, `" hidden=""><text`); marks != want {
			t.Errorf("%q shows %d marks, want %d", filter, marks, want)
		}
		if strings.Contains(dom, "<title>broken") {
			t.Error("a user's name was run as a script")
		}
	}
}

// TestLightAndDark: both are drawn, with the lanes in colours that stand out from the page's own.
func TestLightAndDark(t *testing.T) {
	address, _ := onDisk(t)
	dir := os.Getenv("SCREENSHOTS") // to look at them
	if dir == "" {
		dir = t.TempDir()
	}
	shades := map[string]color.Color{}
	for name, flag := range map[string]string{"light": "--blink-settings=preferredColorScheme=1", "dark": "--blink-settings=preferredColorScheme=0"} {
		path := filepath.Join(dir, name+".png")
		browser(t, flag, "--screenshot="+path, address)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.Decode(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		shades[name] = picture.At(2, 2)
		if n := len(colours(picture)); n < 50 {
			t.Errorf("%s has %d colours: it is as good as empty", path, n)
		}
	}
	if shades["light"] == shades["dark"] {
		t.Errorf("light and dark are both on %v", shades["light"])
	}
}

func colours(picture image.Image) map[color.Color]bool {
	seen := map[color.Color]bool{}
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y += 3 {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x += 3 {
			seen[picture.At(x, y)] = true
		}
	}
	return seen
}
