package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// rule is an alert of the PrometheusRule.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type group struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

// rules is the file that Prometheus reads: the spec of the PrometheusRule.
type rules struct {
	Groups []group `json:"groups"`
}

func (r *rules) all() (out []rule) {
	for _, g := range r.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

// query is one of the dashboard's.
type query struct{ panel, expr string }

// root is the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != filepath.Dir(dir) {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(text), "module github.com/holdfast-dev/holdfast\n") {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("Holdfast's repository was not found: run this inside its checkout")
	return ""
}

// binary is one of bin/, or of $KUBEBUILDER_ASSETS.
func binary(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{os.Getenv("KUBEBUILDER_ASSETS"), filepath.Join(root(t), "bin")} {
		if path := filepath.Join(dir, name); dir != "" {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	t.Fatalf("%s is not built yet: run `make monitoring`", name)
	return ""
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func alerts(t *testing.T) *rules {
	t.Helper()
	r := &rules{}
	if err := yaml.UnmarshalStrict(spec(t), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// spec is the PrometheusRule's, as YAML.
func spec(t *testing.T) []byte {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal(read(t, root(t), "deploy/monitoring/prometheusrule.yaml"), &object); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// dashboard lists its queries, with what Grafana would put for its variables.
func dashboard(t *testing.T) (out []query) {
	t.Helper()
	var object struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, root(t), "deploy/monitoring/dashboard.json"), &object); err != nil {
		t.Fatal(err)
	}
	for _, panel := range object.Panels {
		if len(panel.Targets) == 0 && panel.Type != "row" {
			t.Errorf("panel %s asks nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			out = append(out, query{panel.Title, strings.NewReplacer("$__rate_interval", "10s", "$__range", "2m").Replace(target.Expr)})
		}
	}
	return out
}

// metrics are the names that an expression selects.
func metrics(t *testing.T, expr string) (names []string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v", expr, err)
		return nil
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	return names
}

// promtool runs it in a folder.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	command := exec.Command(binary(t, "promtool"), args...)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestAlerts: Prometheus takes the rules, each fires in a case of alerts.yaml and is silent in another,
// and says what to do, with a section of docs/alerts.md behind it.
func TestAlerts(t *testing.T) {
	dir := t.TempDir()
	cases := read(t, "alerts.yaml")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "rules.yaml"), spec(t), 0o600), os.WriteFile(filepath.Join(dir, "alerts.yaml"), cases, 0o600)); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
	promtool(t, dir, "test", "rules", "alerts.yaml")

	var file struct {
		Tests []struct {
			Name string `json:"name"`
			Expr []struct {
				Expr    string `json:"expr"`
				Samples []any  `json:"exp_samples"`
			} `json:"promql_expr_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(cases, &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, c := range file.Tests {
		alert, _, _ := strings.Cut(c.Name, ":")
		for _, e := range c.Expr {
			if !strings.Contains(e.Expr, fmt.Sprintf("alertname=%q", alert)) {
				t.Errorf("case %q asks for %s", c.Name, e.Expr)
			}
			fires[alert] = fires[alert] || len(e.Samples) > 0
			silent[alert] = silent[alert] || len(e.Samples) == 0
		}
	}
	told := string(read(t, root(t), "docs/alerts.md"))
	all := alerts(t).all()
	for _, r := range all {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s fires in a case: %t, is silent in one: %t", r.Alert, fires[r.Alert], silent[r.Alert])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] != "critical" && r.Labels["severity"] != "warning" {
			t.Errorf("%s does not say what, how bad and what to do", r.Alert)
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/alerts.md#"+strings.ToLower(r.Alert)) || !strings.Contains(told, "\n## "+r.Alert+"\n") {
			t.Errorf("docs/alerts.md has no section for %s, or its runbook_url is another: %s", r.Alert, r.Annotations["runbook_url"])
		}
	}
	if n := strings.Count(told, "\n## Holdfast"); n != len(all) {
		t.Errorf("docs/alerts.md tells of %d alerts, there are %d", n, len(all))
	}
}

// TestReasons: the alerts that ask for a person fire for each reason in their table in docs/alerts.md, with that reason as a label. That the
// table has every reason of the code a test of internal/controller sees to.
func TestReasons(t *testing.T) {
	docs := string(read(t, root(t), "docs/alerts.md"))
	dir := t.TempDir()
	cases := "rule_files: [rules.yaml]\nevaluation_interval: 5s\ntests:\n"
	for alert, metric := range map[string]string{"HoldfastNeedsAttention": "holdfast_condition", "HoldfastSetNeedsAttention": "holdfast_machineset_note"} {
		_, section, _ := strings.Cut(docs, "\n## "+alert+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		reasons := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(section, -1)
		if len(reasons) == 0 {
			t.Fatalf("docs/alerts.md has no table of reasons for %s", alert)
		}
		var series, samples strings.Builder
		for _, reason := range reasons {
			fmt.Fprintf(&series, "  - {series: '%s{reason=%q}', values: '1x100'}\n", metric, reason[1])
			fmt.Fprintf(&samples, "    - {labels: '{reason=%q}', value: 1}\n", reason[1])
		}
		cases += fmt.Sprintf("- name: %q\n  interval: 5s\n  input_series:\n%s  promql_expr_test:\n  - expr: count by (reason) (ALERTS{alertname=%q, alertstate=\"firing\"})\n    eval_time: 6m\n    exp_samples:\n%s",
			alert+": each reason", series.String(), alert, samples.String())
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "rules.yaml"), spec(t), 0o600), os.WriteFile(filepath.Join(dir, "reasons.yaml"), []byte(cases), 0o600)); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "test", "rules", "reasons.yaml")
}
