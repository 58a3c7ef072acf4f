// Package overlay edits a file of internal for one compilation, without a change to the tree.
package overlay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Mutated is the name of the edited file in the directory of an overlay.
const Mutated = "mutated.go"

// Write writes an overlay for the go command into a directory, and returns its path. It has replacement in the place of old,
// which stands exactly once in a file of the module's internal.
func Write(root, dir, file, old, replacement string) (string, error) {
	path := filepath.Join(root, "internal", filepath.FromSlash(file))
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := bytes.Count(source, []byte(old)); n != 1 {
		return "", fmt.Errorf("%s holds %q %d times, not once", file, old, n)
	}
	mutated := filepath.Join(dir, Mutated)
	if err := os.WriteFile(mutated, bytes.Replace(source, []byte(old), []byte(replacement), 1), 0o600); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}
