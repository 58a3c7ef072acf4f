package quorum

import (
	"fmt"
	"strings"
	"unicode"
)

// NVoters is a number of voters, for people: "1 voter", "3 voters".
func NVoters(n int) string {
	if n == 1 {
		return "1 voter"
	}
	return fmt.Sprintf("%d voters", n)
}

// Clip makes a text one printable line of at most so many bytes and an ellipsis: others may have written parts of it.
func Clip(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " ..."
}

// DetachPatch are the arguments of kubectl patch that take a Machine's instance off it.
func (m *Machine) DetachPatch() string {
	var annotations []string
	for i, value := range m.Instance {
		if value != "" {
			annotations = append(annotations, fmt.Sprintf("%q:null", InstanceAnnotations[i].Key))
		}
	}
	fields := `"spec":{"providerID":null}`
	if annotations != nil {
		fields += `,"metadata":{"annotations":{` + strings.Join(annotations, ",") + `}}`
	}
	return "--type=merge -p '{" + fields + "}'"
}
