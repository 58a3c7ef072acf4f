package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
)

// printEntries prints entries: as rows, or as the EventList that they are.
func printEntries(out io.Writer, format string, entries []audit.Entry) error {
	if format == "json" || format == "yaml" {
		list := auditv1.EventList{
			TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: auditv1.SchemeGroupVersion.String()},
			Items:    make([]auditv1.Event, 0, len(entries)),
		}
		for i := range entries {
			list.Items = append(list.Items, entries[i].Event)
		}
		return printData(out, format, list)
	}
	if len(entries) == 0 {
		_, err := fmt.Fprintln(out, "No records.")
		return err
	}
	rows := [][]string{{"TIME", "VERDICT", "RULE", "OPERATION", "MACHINE", "USER", "REASON"}}
	for i := range entries {
		rows = append(rows, entryRow(&entries[i]))
	}
	return printRows(out, widthOf(out), rows, "OPERATION", "RULE")
}

// entryRow is a record in cells.
func entryRow(e *audit.Entry) []string {
	verdict := e.Annotations[audit.VerdictAnnotation]
	if _, repeated := e.Annotations[audit.RepeatedAnnotation]; repeated {
		verdict += fmt.Sprintf(" x%d", e.Count())
	}
	said, enforcement := reason(e), e.Annotations[audit.EnforcementAnnotation]
	if enforcement != "" {
		verdict += " (" + enforcement + ")"
	}
	if e.Abandoned() {
		verdict += " (abandoned)"
	}
	if v := e.Annotations[audit.VerdictAnnotation]; enforcement != "" && (strings.Contains(v, admission.VerdictDenied.String()) || strings.Contains(v, admission.VerdictRepaired.String())) {
		said = "it passed as it was, and would have been answered: " + said
	}
	switch given := e.Annotations[audit.ReleaseReasonAnnotation]; { // what a person said comes first: it is nowhere else
	case e.Abandoned():
		said = "the API server gave up on this answer: " + said
	case given != "":
		said = "\"" + given + "\": " + said
	}
	return []string{at(e.Last()), verdict, e.Annotations[audit.RuleAnnotation], strings.ToUpper(e.Verb), e.Name(), e.User.Username, said}
}

// reason is the first line of what Holdfast answered, without "Refused (rule):", which other columns say.
func reason(e *audit.Entry) string {
	said := e.Said()
	if len(said) == 0 {
		return ""
	}
	if _, rest, ok := strings.Cut(said[0], "("+e.Rules()[0]+")"); ok {
		return strings.TrimLeft(rest, ": ")
	}
	return said[0]
}

// gap is between two columns.
const gap = "   "

// printRows aligns rows, the head first. Nothing in them is trusted: users choose names. width is the terminal's, 0 for none; spare are the columns that can be
// done without there.
func printRows(out io.Writer, width int, rows [][]string, spare ...string) error {
	for _, row := range rows {
		for i := range row {
			row[i] = cmp.Or(plain(row[i]), "-")
		}
	}
	if width > 0 && wide(rows) > width {
		return narrow(out, rows, width, spare...)
	}
	return align(out, rows)
}

func align(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, len(gap), ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

func printData(out io.Writer, format string, data any) error {
	var written bytes.Buffer
	e := json.NewEncoder(&written)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(data); err != nil {
		return err
	}
	raw := escaped(written.Bytes())
	if format == "yaml" {
		var err error
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return err
		}
	}
	_, err := out.Write(raw)
	return err
}

// escaped is JSON with what a terminal would act on, or YAML does not take, as escapes: such runes stand
// in strings alone, and users choose those.
func escaped(raw []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(raw) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r > 0xffff: // YAML takes no pairs of escapes
			out.WriteRune(r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes()
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// plain is a text without what a terminal would act on.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// serverMessage is the text of a refusal as the webhook wrote it, without what the API server puts before it. Other errors stay whole.
func serverMessage(err error) string {
	text := err.Error()
	if _, rest, ok := strings.Cut(text, "denied the request: "); ok {
		return rest
	}
	return text
}

// shorten cuts a text at a number of characters.
func shorten(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return strings.TrimSpace(string(runes[:most-1])) + "…"
}
