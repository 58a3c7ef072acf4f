package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestPhrases: no page, comment or message uses a phrase that sent readers back to the beginning of the sentence. The list grows with each
// reading.
func TestPhrases(t *testing.T) {
	unused := []string{
		"as it is" + " to be", "to be gone" + " by", "to be passed" + " by", "again and again" + " once", "nothing to lose" + " beside it", "must not delay" + " who",
		"told in" + " the log", "has one" + " for both", "is told by the" + " user", "if it is" + " so.",
	}
	dir, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch ext := filepath.Ext(path); {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir() || ext != ".go" && ext != ".md" && ext != ".yaml":
			return nil
		}
		text, err := os.ReadFile(path)
		for i, line := range strings.Split(string(text), "\n") {
			for _, phrase := range unused {
				if strings.Contains(strings.ToLower(line), phrase) {
					t.Errorf("%s:%d: %q: say it in other words", path, i+1, phrase)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
