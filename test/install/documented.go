package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// Documented are the scripts under a heading of a page of docs, in order, as a person would type them: what
// stands between ```sh and ```. The page is such as install.md, the heading without its number signs. There is one script at least.
func Documented(page, heading string) ([]string, error) {
	root, err := assets.Root()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		return nil, err
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		return nil, fmt.Errorf("%s has no heading %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var scripts []string
	for _, block := range strings.Split(section, "\n```sh\n")[1:] {
		script, _, _ := strings.Cut(block, "```")
		scripts = append(scripts, script)
	}
	if len(scripts) == 0 {
		return nil, fmt.Errorf("%s has no script under %q", page, heading)
	}
	return scripts, nil
}
