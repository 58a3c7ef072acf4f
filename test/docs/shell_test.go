package docs

import "strings"

// words splits a script into commands of words, as far as documentation needs a shell: quotes, comments,
// continued lines, what is between commands (| || && ; & $( )), redirections. An assignment stays a word.
func words(script string) [][]string {
	var (
		out     [][]string
		command []string
		word    strings.Builder
		begun   bool
		quote   rune
	)
	endWord := func() {
		if begun {
			command = append(command, word.String())
		}
		word.Reset()
		begun = false
	}
	endCommand := func() {
		endWord()
		if len(command) > 0 {
			out = append(out, command)
		}
		command = nil
	}
	runes := []rune(strings.ReplaceAll(script, "\\\n", " "))
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == '#' && !begun:
			for i < len(runes) && runes[i] != '\n' {
				i++
			}
			endCommand()
		case r == '\n' || r == '|' || r == ';' || r == '&' || r == '(' || r == ')':
			endCommand()
		case r == '$' && i+1 < len(runes) && runes[i+1] == '(':
			endCommand()
			i++
		case r == ' ' || r == '\t':
			endWord()
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	endCommand()
	return out
}

// program is the command's name and what follows it: without assignments, what only wraps a command, and the folder.
func program(command []string) (string, []string) {
	for len(command) > 0 && (strings.Contains(command[0], "=") && !strings.HasPrefix(command[0], "-") || command[0] == "export") {
		command = command[1:]
	}
	if len(command) == 0 {
		return "", nil
	}
	name := command[0]
	if inBin, ok := strings.CutPrefix(name, "bin/"); ok {
		name = inBin
	}
	rest := command[1:]
	if name == "kubectl" && len(rest) > 0 && rest[0] == "holdfast" {
		return "kubectl-holdfast", rest[1:]
	}
	return name, rest
}
