package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// unclear are phrases that sent readers back to the beginning of the sentence: mostly a pronoun as a noun ("by who sent it"), or a passive
// without its actor ("is to be told"). The list grows with each reading.
var unclear = []string{
	"as it is to be", "as they are to be", "to be gone by", "to be passed by", "to be had", "cannot be had", "is to be done", "is to be told",
	"again and again once", "nothing to lose beside it", "must not delay who",
	"told in the log", "told nothing", "told so", "is told by the user", "in which Holdfast tells it", "what Holdfast told", "bears a time",
	"has one for both", "if it is so.", "it is so already", "Check is nil", "that are such", "such a one", "be it that",
	"by who ", "of who ", "from who ", "with who ", "who lets the last", "who shares a voter",
	"is taken for", "for one that comes back", "counts for nothing", "had its way", "is about nothing", "makes good what", "cannot make good", "not by another's",
}

var (
	leader = regexp.MustCompile(`(?m)^\s*(//|#)+`) // of a comment
	space  = regexp.MustCompile(`\s+`)
)

// TestPhrases: no page, comment, message or transcript uses one of them, not across the end of a line either.
func TestPhrases(t *testing.T) {
	dir, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir() || d.Name() == "phrases_test.go" || !slices.Contains([]string{".go", ".md", ".yaml", ".txt", ".json"}, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		line := strings.ToLower(space.ReplaceAllString(leader.ReplaceAllString(string(text), " "), " "))
		for _, phrase := range unclear {
			if at := strings.Index(line, strings.ToLower(phrase)); at >= 0 {
				t.Errorf("%s: %q: say it in other words: ... %s ...", path, phrase, line[max(0, at-60):min(len(line), at+60)])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
