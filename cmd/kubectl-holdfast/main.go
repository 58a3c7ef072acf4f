// Command kubectl-holdfast is the kubectl plugin: kubectl holdfast.
package main

import (
	"os"

	"github.com/holdfast-dev/holdfast/internal/plugin"
)

func main() { os.Exit(plugin.Main()) }
