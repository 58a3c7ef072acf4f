package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// Documented are the scripts under that heading of docs/install.md, in order, as a person would type them: what
// stands between ```sh and ```. The heading is without its number signs. There is one at least.
func Documented(heading string) ([]string, error) {
	root, err := assets.Root()
	if err != nil {
		return nil, err
	}
	const page = "docs/install.md"
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(page)))
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
