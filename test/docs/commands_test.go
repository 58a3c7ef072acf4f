package docs

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the output of console blocks")
	m.Run()
}

// tags are what a block may be, and whether it holds commands.
var tags = map[string]bool{"sh": true, "console": true, "yaml": false, "json": false, "mermaid": false, "text": false, "ini": false}

// run checks the commands of a page, and executes those that need no cluster.
func (k *tools) run(t *testing.T, p *page) {
	t.Helper()
	say(t, k.wrongSpans(t.Context(), p))
	for i := range p.blocks {
		b := &p.blocks[i]
		problems := k.wrongBlock(t.Context(), b)
		say(t, problems)
		if len(problems) > 0 || b.cluster || k.unbuilt(b) {
			continue
		}
		if b.tag == "yaml" {
			k.kustomize(t, b)
		}
		if !tags[b.tag] {
			continue
		}
		got, want := k.execute(t, b), strings.Join(b.lines, "\n")+"\n"
		switch {
		case b.tag == "sh" || got == want:
		case flag.Lookup("update").Value.String() == "true":
			rewrite(t, b, got)
		default:
			t.Errorf("%s: the output is another one (go test ./test/docs -update writes it):\n%s", b.at(), cmp.Diff(want, got))
		}
	}
}

// unbuilt is whether a block runs a program that is not built. `make test` builds them all.
func (k *tools) unbuilt(b *block) bool {
	if b.tag == "yaml" {
		return !k.built["kubectl"]
	}
	if !tags[b.tag] {
		return false
	}
	for _, script := range b.prompts() {
		for _, command := range words(script) {
			if name, _ := program(command); external(name) && !k.built[name] {
				return true
			}
		}
	}
	return false
}

// prompts are the commands of a block with their outputs; of a script, all of it.
func (b *block) prompts() (commands []string) {
	if b.tag == "sh" {
		return []string{strings.Join(b.lines, "\n")}
	}
	for _, line := range b.lines {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			commands = append(commands, command)
		}
	}
	return commands
}

// wrongBlock says what is wrong with a block, without executing it.
func (k *tools) wrongBlock(ctx context.Context, b *block) []string {
	holds, known := tags[b.tag]
	switch {
	case !known:
		return []string{fmt.Sprintf("%s: a block is tagged with one of sh, console, yaml, json, mermaid, text, ini, and this one with %q", b.at(), b.tag)}
	case !holds && b.cluster:
		return []string{b.at() + ": it holds no commands, so it needs no cluster"}
	case b.tag == "yaml":
		for _, document := range strings.Split(strings.Join(b.lines, "\n"), "\n---\n") {
			if err := yaml.Unmarshal([]byte(document), new(any)); err != nil {
				return []string{fmt.Sprintf("%s: %v", b.at(), err)}
			}
		}
		return nil
	case !holds:
		return nil
	}
	var problems []string
	commands := b.prompts()
	if len(commands) == 0 {
		problems = append(problems, b.at()+": it shows no command; a command's line begins with $")
	}
	for _, script := range commands {
		for _, command := range words(script) {
			if problem := k.check(ctx, command); problem != "" {
				problems = append(problems, b.at()+": "+problem)
			}
		}
	}
	return problems
}

// spoken are the programs whose commands in running text are checked.
var spoken = []string{"holdfast", "kubectl-holdfast", "kubectl", "etcdctl", "etcdutl", "make", "go"}

// wrongSpans checks the commands in running text.
func (k *tools) wrongSpans(ctx context.Context, p *page) []string {
	var problems []string
	for _, s := range p.spans() {
		for _, command := range words(strings.ReplaceAll(s.text, "<TAB>", "")) {
			if name, args := program(command); !slices.Contains(spoken, name) || len(args) == 0 {
				continue
			}
			if problem := k.check(ctx, command); problem != "" {
				problems = append(problems, s.at+": "+problem)
			}
		}
	}
	return problems
}

// playground is a folder with copies of what commands read.
func (k *tools) playground(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"deploy", "docs"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(k.root, name))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// kustomize writes the documents of a block that begin with the name of a kustomization, and builds the last. The flags of the block are in what
// comes of it: a patch whose target matches nothing is no error.
func (k *tools) kustomize(t *testing.T, b *block) {
	t.Helper()
	dir, last := "", ""
	for _, document := range strings.Split(strings.Join(b.lines, "\n"), "\n---\n") {
		first, _, _ := strings.Cut(document, "\n")
		name, ok := strings.CutPrefix(first, "# ")
		if !ok || filepath.Base(name) != "kustomization.yaml" {
			continue
		}
		if dir == "" {
			dir = k.playground(t)
		}
		file := filepath.Join(dir, name)
		last = filepath.Dir(file)
		if err := os.MkdirAll(last, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(document), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if dir == "" {
		return
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(k.bin, "kubectl"), "kustomize", last)
	cmd.Env = k.environment(dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", b.at(), err, out)
	}
	for _, flag := range regexp.MustCompile(`--[a-z-]+=[a-z]+`).FindAllString(strings.Join(b.lines, "\n"), -1) {
		if !bytes.Contains(out, []byte("- "+flag+"\n")) {
			t.Errorf("%s: %s is not in what is built", b.at(), flag)
		}
	}
}

// execute runs a block where nothing is that it could harm, and returns what the page is to show. A command that
// fails is an error in a script; in a console block its message is part of the output.
func (k *tools) execute(t *testing.T, b *block) string {
	t.Helper()
	dir := k.playground(t)
	var out strings.Builder
	for _, script := range b.prompts() {
		if b.tag == "console" {
			out.WriteString("$ " + script + "\n")
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", minutes(script))
		cmd.Dir, cmd.Env = dir, k.environment(dir)
		said, err := cmd.CombinedOutput()
		if err != nil && b.tag == "sh" {
			t.Errorf("%s: %v\n%s", b.at(), err, said)
		}
		out.Write(said)
	}
	return out.String()
}

// minutes leaves out the lines of a script that take minutes; what they name was checked.
func minutes(script string) string {
	var out []string
	for _, line := range strings.Split(script, "\n") {
		if !strings.HasPrefix(line, "make ") && !strings.HasPrefix(line, "go ") && !strings.HasPrefix(line, "cd ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// rewrite puts a console block's output into its page.
func rewrite(t *testing.T, b *block, got string) {
	t.Helper()
	path := filepath.Join(root(t), b.page)
	was := "```console\n" + strings.Join(b.lines, "\n") + "\n```"
	text := read(t, b.page)
	if strings.Count(text, was) != 1 {
		t.Errorf("%s: the block is there more than once", b.at())
		return
	}
	if err := os.WriteFile(path, []byte(strings.Replace(text, was, "```console\n"+got+"```", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}
