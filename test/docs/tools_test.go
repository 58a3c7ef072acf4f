package docs

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// tools are the programs that documentation names, in one folder, and what their help says.
type tools struct {
	root, bin string
	makefile  string
	targets   map[string]bool

	built  map[string]bool       // the externals, if they are built
	record map[string]helpRecord // what testdata has of their help
	used   map[string]helpRecord // what the pages use of it

	mu   sync.Mutex
	help map[string]*help // by the command line
}

// help is what a command says of itself.
type help struct {
	flags    map[string]bool   // with their dashes
	defaults map[string]string // of flags that say one
	commands map[string]bool
	group    bool // it has commands
}

// helpRecord is the part of a command's help that the pages use: with it they are checked where the externals are
// not built.
type helpRecord struct {
	Flags    []string `json:"flags,omitempty"`
	Commands []string `json:"commands,omitempty"`
	Group    bool     `json:"group,omitempty"`
}

// recordFile has the records, by the command line.
const recordFile = "test/docs/testdata/help.json"

// newTools builds holdfast and its plugin from the tree, so that no older ones are asked. The linker is
// quicker where the result of last time is up to date, so that stays in bin/.
func newTools(t *testing.T) *tools {
	t.Helper()
	k := &tools{
		root: root(t), bin: t.TempDir(), makefile: read(t, "Makefile"), targets: map[string]bool{},
		built: map[string]bool{}, used: map[string]helpRecord{}, help: map[string]*help{},
	}
	if err := json.Unmarshal([]byte(read(t, recordFile)), &k.record); err != nil {
		t.Fatalf("%s: %v", recordFile, err)
	}
	built := filepath.Join(k.root, "bin", "docs-check") + string(filepath.Separator)
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-o", built, "./cmd/holdfast", "./cmd/kubectl-holdfast")
	build.Dir = k.root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build holdfast and the plugin: %v\n%s", err, out)
	}
	paths := map[string]string{"holdfast": built + "holdfast", "kubectl-holdfast": built + "kubectl-holdfast"}
	for _, name := range externals {
		path, err := assets.Path(name)
		if err != nil {
			t.Logf("%s is not built: blocks that run it are not run, and its flags and commands are those in %s. "+
				"For one that is new to the pages: make binaries, then go test ./test/docs -update", name, recordFile)
			continue
		}
		paths[name], k.built[name] = path, true
	}
	if !k.built["kubectl"] { // kubectl's part of `kubectl holdfast`
		shim := "#!/bin/sh\nshift\nexec kubectl-holdfast \"$@\"\n"
		if err := os.WriteFile(filepath.Join(k.bin, "kubectl"), []byte(shim), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	for name, path := range paths {
		if err := os.Symlink(path, filepath.Join(k.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, found := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(k.makefile, -1) {
		k.targets[found[1]] = true
	}
	return k
}

// environment has these tools first in the path, and no cluster.
func (k *tools) environment(home string) []string {
	return []string{"PATH=" + k.bin + ":/usr/bin:/bin", "HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none"), "LC_ALL=C"}
}

var (
	helpFlag    = regexp.MustCompile(`(?m)^ +(?:(-[a-zA-Z]), )?(--[a-z0-9][a-z0-9-]*)`)
	helpDefault = regexp.MustCompile(`(?m)^ +(?:-[a-zA-Z], )?(--[a-z0-9-]+) .*\(default (.*)\)$`)
	helpCommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]+) +\S`)
	helpSection = regexp.MustCompile(`(?ms)^[A-Z][A-Za-z -]*[cC]ommands(?: \([A-Za-z -]+\)| [A-Za-z ]+)?:?\n(.*?)(?:\n\n|\z)`)
)

// ask is a command's own help, nil if it has none.
func (k *tools) ask(ctx context.Context, name string, command ...string) *help {
	key := strings.Join(append([]string{name}, command...), " ")
	k.mu.Lock()
	defer k.mu.Unlock()
	if h, ok := k.help[key]; ok {
		return h
	}
	run := func(args ...string) string {
		cmd := exec.CommandContext(ctx, filepath.Join(k.bin, name), args...)
		cmd.Env = k.environment(k.bin)
		out, err := cmd.Output()
		if err != nil {
			return ""
		}
		return string(out)
	}
	if external(name) && !k.built[name] {
		k.help[key] = k.record[key].help()
		return k.help[key]
	}
	text := run(append(slices.Clone(command), "--help")...)
	if text == "" {
		k.help[key] = nil
		return nil
	}
	h := &help{flags: map[string]bool{}, defaults: map[string]string{}, commands: map[string]bool{}}
	for _, section := range helpSection.FindAllStringSubmatch(text, -1) {
		for _, found := range helpCommand.FindAllStringSubmatch(section[1]+"\n", -1) {
			h.commands[found[1]] = true
		}
	}
	h.group = len(h.commands) > 0
	if external(name) {
		text += run("options")
	}
	for _, found := range helpFlag.FindAllStringSubmatch(text, -1) {
		h.flags[found[1]], h.flags[found[2]] = true, true
	}
	delete(h.flags, "")
	for _, found := range helpDefault.FindAllStringSubmatch(text, -1) {
		h.defaults[found[1]] = strings.Trim(found[2], `"`)
	}
	k.help[key] = h
	return h
}

// externals are the programs that are not Holdfast's and are asked for their help.
var externals = []string{"kubectl", "etcdctl", "etcdutl"}

func external(name string) bool { return slices.Contains(externals, name) }

// help is the record as the command's help.
func (r helpRecord) help() *help {
	h := &help{flags: map[string]bool{}, commands: map[string]bool{}, group: r.Group}
	for _, flag := range r.Flags {
		h.flags[flag] = true
	}
	for _, command := range r.Commands {
		h.commands[command] = true
	}
	return h
}

// uses notes that the pages use a flag or a command, one of which is "".
func (k *tools) uses(program string, path []string, flag, command string) {
	if !external(program) {
		return
	}
	key := strings.Join(append([]string{program}, path...), " ")
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.used[key]
	r.Group = k.help[key].group
	if flag != "" && !slices.Contains(r.Flags, flag) {
		r.Flags = append(r.Flags, flag)
		slices.Sort(r.Flags)
	}
	if command != "" && !slices.Contains(r.Commands, command) {
		r.Commands = append(r.Commands, command)
		slices.Sort(r.Commands)
	}
	k.used[key] = r
}

// recorded holds the records against what the pages use, and that against the programs if they are built.
func (k *tools) recorded(t *testing.T) {
	t.Helper()
	text, err := json.MarshalIndent(k.used, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if flag.Lookup("update").Value.String() == "true" {
		if len(k.built) < len(externals) {
			t.Fatalf("not all of %q are built: run `make binaries`", externals)
		}
		if err := os.WriteFile(filepath.Join(k.root, recordFile), append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, recordFile), string(text)+"\n"); diff != "" {
		t.Errorf("%s is not what the pages use (go test ./test/docs -update, with what `make binaries` builds, writes it):\n%s", recordFile, diff)
	}
}

// all are the flags of every command of a program.
func (k *tools) all(ctx context.Context, name string, command ...string) map[string]bool {
	out := map[string]bool{}
	h := k.ask(ctx, name, command...)
	if h == nil {
		return out
	}
	maps.Copy(out, h.flags)
	for sub := range h.commands {
		maps.Copy(out, k.all(ctx, name, append(slices.Clone(command), sub)...))
	}
	return out
}

// plainly are programs and words of the shell whose arguments are not looked at.
var plainly = []string{
	".", "cat", "cd", "cmctl", "cosign", "curl", "base64", "diff", "echo", "grep", "jq", "oc", "openssl", "operator-sdk", "podman", "sed", "set", "sha256sum", "skopeo", "sleep", "tar", "test",
	"for", "do", "done", "if", "then", "fi",
}

// check says what is wrong with a command line, "" if nothing is. Words that stand for others end it: ..., <name>, NAME.
func (k *tools) check(ctx context.Context, command []string) string {
	name, args := program(command)
	switch name {
	case "":
		return ""
	case "make":
		return k.checkMake(args)
	case "go":
		return k.checkGo(args)
	case "holdfast", "kubectl-holdfast", "kubectl", "etcdctl", "etcdutl":
	default:
		if slices.Contains(plainly, name) {
			return ""
		}
		return fmt.Sprintf("%q is no command that documentation uses", name)
	}
	var path []string
	h := k.ask(ctx, name)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return ""
		case strings.HasPrefix(arg, "-") && arg != "-":
			flag, _, _ := strings.Cut(arg, "=")
			if !h.flags[flag] && h.group && external(name) && len(path) == 0 {
				if flag == "-n" { // kubectl -n NAMESPACE VERB
					i++
				}
				continue
			}
			if len(flag) > 2 && flag[1] != '-' && h.flags[flag[:2]] {
				flag = flag[:2] // -ojson
			}
			if !h.flags[flag] {
				return fmt.Sprintf("%s has no flag %s", strings.Join(append([]string{name}, path...), " "), flag)
			}
			k.uses(name, path, flag, "")
			if name == "kubectl" && (flag == "-n" || flag == "--namespace") && !strings.Contains(arg, "=") {
				i++
			}
		case h.group && regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(arg):
			if !h.commands[arg] && (name != "kubectl" || arg != "holdfast") {
				return fmt.Sprintf("%s has no command %s", strings.Join(append([]string{name}, path...), " "), arg)
			}
			k.uses(name, path, "", arg)
			path = append(path, arg)
			if h = k.ask(ctx, name, path...); h == nil {
				return fmt.Sprintf("%s %s says no help", name, strings.Join(path, " "))
			}
		}
	}
	return ""
}

func (k *tools) checkMake(args []string) string {
	for _, arg := range args {
		variable, _, isVariable := strings.Cut(arg, "=")
		switch {
		case isVariable && !regexp.MustCompile(`(?m)^`+variable+` *\??:?=`).MatchString(k.makefile):
			return "the Makefile has no variable " + variable
		case !isVariable && regexp.MustCompile(`^[a-z-]+$`).MatchString(arg) && !k.targets[arg]:
			return "the Makefile has no target " + arg
		}
	}
	return ""
}

// checkGo wants the packages of go test, go run and go build to exist.
func (k *tools) checkGo(args []string) string {
	for _, arg := range args {
		if dir, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimSuffix(arg, "..."), "/"), "./"); ok {
			if info, err := os.Stat(filepath.Join(k.root, dir)); err != nil || !info.IsDir() {
				return "there is no package " + arg
			}
		}
	}
	return ""
}
