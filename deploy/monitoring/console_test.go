// Package monitoring holds the dashboard for OpenShift's console against the one for Grafana, which it is made from.
package monitoring

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write console.json anew")

type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

// grafana is what the console's dashboard is made from.
type grafana struct {
	Title, UID, Refresh string
	Tags                []string
	Time                map[string]string
	Panels              []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ W int }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Targets                  []target
	}
}

// console is a dashboard as OpenShift's console draws it: the form of old versions of Grafana. Of the panels it draws graph, singlestat, gauge, table and
// grafana-piechart-panel, and leaves out all others without a word. A panel is span twelfths wide.
// https://github.com/openshift/monitoring-plugin: web/src/components/dashboards/legacy/legacy-dashboard.tsx.
type console struct {
	Title   string            `json:"title"`
	UID     string            `json:"uid"`
	Tags    []string          `json:"tags"`
	Refresh string            `json:"refresh"`
	Time    map[string]string `json:"time"`
	Rows    []row             `json:"rows"`
}

type row struct {
	Title     string  `json:"title"`
	ShowTitle bool    `json:"showTitle"`
	Collapse  bool    `json:"collapse"`
	Panels    []panel `json:"panels"`
}

type panel struct {
	ID          int             `json:"id"`
	Title       string          `json:"title"`
	Description string          `json:"description,omitempty"`
	Type        string          `json:"type"`
	Span        int             `json:"span"`
	Legend      map[string]bool `json:"legend"`
	Yaxes       []yaxis         `json:"yaxes"`
	Targets     []target        `json:"targets"`
}

type yaxis struct {
	Format string `json:"format"`
	Min    int    `json:"min"`
}

// TestConsole: console.json has what dashboard.json has.
func TestConsole(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var from grafana
	if err := json.Unmarshal(text, &from); err != nil {
		t.Fatal(err)
	}
	to := console{Title: from.Title, UID: from.UID, Tags: from.Tags, Refresh: from.Refresh, Time: from.Time}
	for _, p := range from.Panels {
		switch p.Type {
		case "row":
			to.Rows = append(to.Rows, row{Title: p.Title, ShowTitle: true})
		case "timeseries", "state-timeline":
			unit := map[string]string{"none": "short", "s": "s"}[p.FieldConfig.Defaults.Unit]
			if unit == "" {
				t.Errorf("panel %s: what is unit %q in the console?", p.Title, p.FieldConfig.Defaults.Unit)
			}
			last := &to.Rows[len(to.Rows)-1]
			last.Panels = append(last.Panels, panel{
				ID: p.ID, Title: p.Title, Description: p.Description, Type: "graph", Span: p.GridPos.W / 2,
				Legend: map[string]bool{"show": true}, Yaxes: []yaxis{{Format: unit}}, Targets: p.Targets,
			})
		default:
			t.Errorf("panel %s: what is type %s in the console?", p.Title, p.Type)
		}
	}
	var want bytes.Buffer
	write := json.NewEncoder(&want)
	write.SetEscapeHTML(false)
	write.SetIndent("", " ")
	if err := write.Encode(to); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("console.json", want.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("console.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf("console.json is not made from dashboard.json any more (go test ./deploy/monitoring -update): %s", diff)
	}
}
