package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// instruction is one of the Containerfile's, such as COPY, with its arguments.
type instruction struct{ name, args string }

// containerfile are the instructions, each on a line of its own.
func containerfile(t *testing.T) (out []instruction) {
	t.Helper()
	text := strings.ReplaceAll(read(t, "Containerfile"), "\\\n", " ")
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !strings.HasPrefix(line, "#") {
			name, args, _ := strings.Cut(line, " ")
			out = append(out, instruction{name, args})
		}
	}
	return out
}

// read is a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// the is an instruction that is there once.
func the(t *testing.T, all []instruction, name, with string) string {
	t.Helper()
	var found []string
	for _, i := range all {
		if i.name == name && strings.Contains(i.args, with) {
			found = append(found, i.args)
		}
	}
	if len(found) != 1 {
		t.Fatalf("the Containerfile has %d of %s with %q: %q", len(found), name, with, found)
	}
	return found[0]
}

// TestContainerfile holds the Containerfile against what make image does: the same compiler and flags, and the same
// contents and settings of the image. No container engine is needed for that, and none builds it here.
func TestContainerfile(t *testing.T) {
	all := containerfile(t)

	for _, i := range all {
		sources := strings.Fields(i.args)
		if i.name != "COPY" || strings.HasPrefix(sources[0], "--from=") {
			continue
		}
		for _, source := range sources[:len(sources)-1] {
			if _, err := os.Stat(filepath.Join("..", "..", source)); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("COPY %s: there is no %s", i.args, source)
			}
			if slices.Contains(strings.Fields(read(t, ".dockerignore")), source) {
				t.Errorf("COPY %s: .dockerignore leaves out %s", i.args, source)
			}
		}
	}

	// golang:1.26 for go 1.26.0 in go.mod.
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))
	if from := the(t, all, "FROM", " AS build"); len(version) == 0 || !strings.Contains(from, " golang:"+version[1]+" ") {
		t.Errorf("it builds FROM %s, and go.mod is for %q", from, version)
	}

	makefile := read(t, "Makefile")
	build := regexp.MustCompile(`go build .*-o \$\(2\)/\$\(p\)/holdfast (\S+)`).FindStringSubmatch(makefile)
	tags := regexp.MustCompile(`(?m)^TAGS\s*:=\s*(\S+)$`).FindStringSubmatch(makefile)
	if len(build) == 0 || len(tags) == 0 {
		t.Fatalf("the Makefile's build of the image was not found: %q, TAGS %q", build, tags)
	}
	want := strings.NewReplacer("$(TAGS)", tags[1], "$(2)/$(p)/", "/out/").Replace(build[0])
	run := the(t, all, "RUN", "go build")
	if want = "CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH " + want; run != want {
		t.Errorf("it builds by\n%s\nand make image by\n%s", run, want)
	}
	if !regexp.MustCompile(`(?m)^export CGO_ENABLED \?= 0$`).MatchString(makefile) {
		t.Error("the Makefile builds with cgo")
	}

	image, err := (&options{version: "v1", revision: "abc"}).image(filepath.Join("..", "..", "Containerfile"), &v1.Platform{OS: "linux", Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := file.Config
	if got := the(t, all, "FROM", "scratch"); got != "scratch" {
		t.Errorf("the image is FROM %s", got)
	}
	if got := the(t, all, "COPY", "--from="); got != "--from=build /out/holdfast /usr/bin/holdfast" {
		t.Errorf("into the image goes %s", got)
	}
	if got := the(t, all, "USER", ""); got != config.User {
		t.Errorf("USER %s, and make image has %s", got, config.User)
	}
	if got := the(t, all, "ENV", ""); got != strings.Join(config.Env, " ") {
		t.Errorf("ENV %s, and make image has %s", got, config.Env)
	}
	var entrypoint []string
	if err := json.Unmarshal([]byte(the(t, all, "ENTRYPOINT", "")), &entrypoint); err != nil || strings.Join(entrypoint, " ") != strings.Join(config.Entrypoint, " ") {
		t.Errorf("ENTRYPOINT %q, and make image has %q: %v", entrypoint, config.Entrypoint, err)
	}
	// Version and revision are known to make image alone.
	labels := strings.Fields(the(t, all, "LABEL", ""))
	for _, label := range labels {
		if key, value, _ := strings.Cut(label, "="); config.Labels[key] != value {
			t.Errorf("LABEL %s is %q, and make image has %q", key, value, config.Labels[key])
		}
	}
	if len(labels) != len(config.Labels)-2 {
		t.Errorf("labels %q, and make image has %q", labels, config.Labels)
	}
}
