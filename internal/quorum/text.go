package quorum

import (
	"fmt"
	"strings"
)

// NVoters is a number of voters, for people: "1 voter", "3 voters".
func NVoters(n int) string {
	if n == 1 {
		return "1 voter"
	}
	return fmt.Sprintf("%d voters", n)
}

// Clip makes a text one line of at most so many bytes and an ellipsis.
func Clip(text string, most int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
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
