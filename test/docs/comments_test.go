package docs

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestComments: a name in a comment is one of the code's. One that was renamed is found here.
func TestComments(t *testing.T) {
	name := regexp.MustCompile(`\b[A-Za-z][a-z0-9]+[A-Z]\w*\b|\b[a-z]\w*\.go\b`)
	known := map[string]bool{}
	for _, others := range strings.Fields("allOf anyOf CamelCase CyberArk GitHub IfNeeded OpenStack OutOfSync reinvocationPolicy CertificateRequest ClusterIssuer") {
		known[others] = true
	}
	type mention struct{ at, name string }
	var mentions []mention
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" && filepath.Ext(path) != ".yaml":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(path) == ".yaml" {
			for _, word := range name.FindAllString(string(text), -1) {
				known[word] = true
			}
			return nil
		}
		known[d.Name()] = true
		files := token.NewFileSet()
		var s scanner.Scanner
		s.Init(files.AddFile(path, -1, len(text)), text, nil, scanner.ScanComments)
		for {
			pos, kind, literal := s.Scan()
			switch kind {
			case token.EOF:
				return nil
			case token.COMMENT:
				for _, word := range name.FindAllString(literal, -1) {
					mentions = append(mentions, mention{files.Position(pos).String(), word})
				}
			case token.IDENT, token.STRING:
				for _, word := range name.FindAllString(literal, -1) {
					known[word] = true
				}
			default:
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mentions {
		if !known[m.name] && !known[strings.TrimSuffix(m.name, "s")] && !known[strings.TrimSuffix(m.name, "ies")+"y"] {
			t.Errorf("%s: nothing is called %s", m.at, m.name)
		}
	}
	if len(mentions) < 500 {
		t.Errorf("only %d names are in comments: are they read?", len(mentions))
	}
}
