package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/controller"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/internal/setcontroller"
	"github.com/holdfast-dev/holdfast/internal/webhookserver"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// policyRules are those that the API server alone decides, by policy.
var policyRules = []string{"keep-status", "own-records"}

// others are flags of programs that are not asked for their help here, with the words one of which tells whose they are.
var others = map[string][]string{
	"--cluster":           {"etcdctl"},
	"--bump-revision":     {"etcdutl"},
	"--feature-gates":     {"etcd's own"},
	"--force-new-cluster": {"etcd's flag"},
	"--initial-cluster":   {"etcdutl"},
	"--etcd-servers":      {"kube-apiserver"},
	"--all-containers":    {"kubectl"},
	"--api-servers":       {"sandbox"},
	"--for-install":       {"sandbox"},
	"--force":             {"kubectl"},
	"--force-conflicts":   {"kubectl"},
	"--grace-period":      {"kubectl"},
	"--overwrite":         {"kubectl"},
	"--prefix":            {"kubectl"},
	"--replicas":          {"kubectl", "sandbox"},
	"--server-side":       {"kubectl"},
	"--sync-policy":       {"argocd"},
	"--tail":              {"kubectl"},
}

// auditAnnotation is the end of a key that the API server makes of a webhook's name and "request-uid".
const auditAnnotation = "holdfast.dev/request-uid"

// foreign are words in CamelCase that are none of the code's own.
var foreign = []string{
	"ResponseComplete", "SkippedNoController",
	"NeedsUpdateReplicas", "ExcessReplicas", "OperatorDegraded", "MachinesAlreadyOwned", "UnmanagedNodes", "FailedReplacement", "InvalidStrategy",
	"ExcessIndexes", "ExcessUpdatedReplicas", "NoReadyMachines", // the platform's conditions of its set
}

// vocabulary is what the code knows by name.
type vocabulary struct {
	root    string
	rules   []string
	alerts  []string
	metrics []string        // full names
	strings map[string]bool // every string in the code, and in the manifests' and policies' files every word
	tests   map[string]bool // test functions
	exports map[string]bool // package.Name
	flags   map[string]bool // of holdfast and its plugin
}

// describer takes what is registered, and asks for names alone.
type describer struct{ names []string }

func (d *describer) Register(c prometheus.Collector) error {
	all := make(chan *prometheus.Desc)
	go func() { c.Describe(all); close(all) }()
	for desc := range all {
		d.names = append(d.names, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(desc.String())[1])
	}
	return nil
}
func (d *describer) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = d.Register(c)
	}
}
func (*describer) Unregister(prometheus.Collector) bool { return false }

// metricNames are all that the manager registers.
func metricNames(t *testing.T) []string {
	t.Helper()
	d := &describer{}
	controller.NewMetrics(d)
	controller.NewAlarms(nil, d, logr.Discard())
	setcontroller.NewMetrics(d)
	webhooks.NewMetrics(d)
	registrations.NewMetrics(d)
	webhookserver.New(webhookserver.Options{Registry: d})
	o := audit.NewOptions()
	o.Registerer, o.LogPaths, o.Stdout = d, []string{"-"}, io.Discard
	if _, err := audit.New(o); err != nil {
		t.Fatal(err)
	}
	slices.Sort(d.names)
	return d.names
}

func newVocabulary(t *testing.T) *vocabulary {
	t.Helper()
	v := &vocabulary{
		root: root(t), rules: slices.Clone(policyRules), metrics: metricNames(t),
		strings: map[string]bool{}, tests: map[string]bool{}, exports: map[string]bool{},
	}
	for _, rule := range quorum.Rules {
		v.rules = append(v.rules, string(rule))
	}
	for _, found := range regexp.MustCompile(`(?m)^ +- alert: (\S+)`).FindAllStringSubmatch(read(t, "deploy/monitoring/prometheusrule.yaml"), -1) {
		v.alerts = append(v.alerts, found[1])
	}
	for _, dir := range []string{"cmd", "internal", "webhooks", "test", "deploy"} {
		if err := filepath.WalkDir(filepath.Join(v.root, dir), v.visit); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// visit takes the names out of a file.
func (v *vocabulary) visit(path string, entry fs.DirEntry, err error) error {
	switch {
	case err != nil || entry.IsDir():
		return err
	case strings.HasSuffix(path, ".yaml"):
		text, err := os.ReadFile(path)
		for _, word := range regexp.MustCompile(`[A-Za-z0-9./-]+`).FindAllString(string(text), -1) {
			v.strings[word] = true
		}
		return err
	case !strings.HasSuffix(path, ".go"):
		return nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	isTest := strings.HasSuffix(path, "_test.go")
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			v.exports[file.Name.Name+"."+n.Name.Name] = true
			if isTest {
				v.tests[n.Name.Name] = true
			}
		case *ast.TypeSpec:
			v.exports[file.Name.Name+"."+n.Name.Name] = true
		case *ast.ValueSpec:
			for _, name := range n.Names {
				v.exports[file.Name.Name+"."+name.Name] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && !isTest {
				v.strings[text] = true
				for _, word := range strings.FieldsFunc(text, func(r rune) bool {
					return !strings.ContainsRune("-./_", r) && (r < '0' || r > '9') && (r|32 < 'a' || r|32 > 'z')
				}) {
					v.strings[word] = true
				}
			}
		}
		return true
	})
	return nil
}

// missing says what a person may meet and does not find documented where they look for it.
func (v *vocabulary) missing(t *testing.T, run, plugin *help) []string {
	t.Helper()
	var problems []string
	want := func(page, what, name string, texts ...string) {
		text := read(t, page)
		if !slices.ContainsFunc(texts, func(one string) bool { return strings.Contains(text, one) }) {
			problems = append(problems, fmt.Sprintf("%s does not tell %s %s", page, what, name))
		}
	}
	for _, rule := range v.rules {
		want("docs/rules.md", "rule", rule, "\n## `"+rule+"`\n")
	}
	for _, alert := range v.alerts {
		want("docs/alerts.md", "alert", alert, "\n## "+alert+"\n")
	}
	for _, name := range v.metrics {
		want("docs/operations.md", "metric", name, "\n| `"+name+"`")
	}
	for flag := range run.flags {
		if strings.HasPrefix(flag, "--") && flag != "--help" {
			want("docs/flags.md", "flag", flag+" of holdfast run", "\n| `"+flag+"`", ", `"+flag+"`")
		}
	}
	for _, found := range flagRow.FindAllStringSubmatch(read(t, "docs/flags.md"), -1) {
		if told, is := strings.Trim(found[2], "`"), run.defaults[found[1]]; told != "" && !same(told, is) {
			problems = append(problems, fmt.Sprintf("docs/flags.md: the default of %s is %q, not %q", found[1], is, told))
		}
	}
	for _, pattern := range []string{"deploy/overlays/*", "deploy/components/*"} {
		found, err := filepath.Glob(filepath.Join(v.root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: nothing is there: %v", pattern, err)
		}
		for _, dir := range found {
			want("docs/install.md", "folder", filepath.Base(dir), "`"+filepath.Join(filepath.Dir(pattern), filepath.Base(dir))+"`")
		}
	}
	for _, file := range []string{"deploy/base/rbac.yaml", "deploy/components/full-mode/rbac.yaml", "deploy/overlays/self-signed/rbac.yaml"} {
		for _, found := range regexp.MustCompile(`resourceNames: \[(.*)\]`).FindAllStringSubmatch(read(t, file), -1) {
			for _, name := range strings.Split(found[1], ", ") {
				want("docs/rights.md", "right to", name+" of "+file, "`"+name+"`")
			}
		}
	}
	for command := range plugin.commands {
		if command != "help" && command != "version" {
			want("docs/kubectl-holdfast.md", "command", command, "\n| `"+command)
		}
	}
	for n := 1; n <= 9; n++ {
		want("docs/proof/invariants.md", "invariant", fmt.Sprint("I", n), fmt.Sprintf("\n## I%d", n))
	}
	slices.Sort(problems)
	return problems
}

// flagRow is a flag's row with a default that is a value and no description.
var flagRow = regexp.MustCompile("(?m)^\\| `(--[a-z-]+)` \\| (`[^`$]+`|-?[0-9][0-9a-z]*|true) \\| ")

// same compares defaults: 5m is 5m0s, and help leaves a zero out.
func same(a, b string) bool {
	x, err1 := time.ParseDuration(a)
	y, err2 := time.ParseDuration(b)
	return a == b || a == "0" && b == "" || err1 == nil && err2 == nil && x == y || strings.Trim(b, "[]") == a
}

var (
	longFlag  = regexp.MustCompile(`(?:^|[^-\w])(--[a-z][a-z0-9-]+)`)
	metric    = regexp.MustCompile(`\bholdfast_[a-z0-9_]+`)
	alert     = regexp.MustCompile(`\bHoldfast[A-Z]\w+`)
	camel     = regexp.MustCompile(`^[A-Z][a-z]+(?:[A-Z][a-z]*)+$`)
	kebab     = regexp.MustCompile(`^[a-z]+(?:-[a-z]+)*$`)
	ours      = regexp.MustCompile(`holdfast\.dev/[a-z0-9-]+`)
	rulePlace = regexp.MustCompile(`(?:\b[rR]ules? |denied by |Warning of )$`)
	inMessage = regexp.MustCompile(`(?:Refused|Holdfast) \(([a-z-]+)\)`)
	path      = regexp.MustCompile(`^(?:cmd|deploy|docs|internal|test|webhooks)/[\w./*-]+$`)
	export    = regexp.MustCompile(`^(?:audit|controller|quorum|serving|webhooks)\.[A-Z]\w+$`)
)

// wrong is what a page names that does not exist.
func (v *vocabulary) wrong(p *page) []string {
	var problems []string
	add := func(at, format string, args ...any) {
		problems = append(problems, at+": "+fmt.Sprintf(format, args...))
	}
	texts := map[string]string{} // by place: running text by line, blocks whole
	for i, line := range p.lines {
		texts[p.at(i+1)] = line
	}
	for i := range p.blocks {
		texts[p.blocks[i].at()] = strings.Join(p.blocks[i].lines, "\n")
	}
	for at, text := range texts {
		for _, name := range metric.FindAllString(text, -1) {
			if !v.metric(name) {
				add(at, "there is no metric %s", name)
			}
		}
		for _, name := range alert.FindAllString(text, -1) {
			if !slices.Contains(v.alerts, name) {
				add(at, "there is no alert %s", name)
			}
		}
		for _, name := range ours.FindAllString(text, -1) {
			if !v.strings[strings.TrimSuffix(name, "-")] && name != auditAnnotation { // kubectl annotate KEY- removes it
				add(at, "the code knows no %s", name)
			}
		}
		for _, found := range inMessage.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(v.rules, found[1]) {
				add(at, "there is no rule %s", found[1])
			}
		}
	}
	for _, s := range p.spans() {
		problems = append(problems, v.wrongSpan(&s)...)
	}
	column := ""
	for i, line := range p.lines {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || strings.TrimSpace(cells[0]) != "" {
			column = ""
			continue
		}
		first := strings.Trim(strings.TrimSpace(cells[1]), "`")
		switch {
		case column == "":
			column = first
		case column == "rule" && strings.Trim(first, "-") != "" && !slices.Contains(v.rules, first):
			add(p.at(i+1), "there is no rule %s", first)
		}
	}
	slices.Sort(problems)
	return problems
}

func (v *vocabulary) metric(name string) bool {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && slices.Contains(v.metrics, base) {
			return true
		}
	}
	return strings.HasSuffix(name, "_") && slices.ContainsFunc(v.metrics, func(m string) bool { return strings.HasPrefix(m, name) }) // holdfast_audit_*
}

func (v *vocabulary) wrongSpan(s *span) []string {
	var problems []string
	add := func(format string, args ...any) { problems = append(problems, s.at+": "+fmt.Sprintf(format, args...)) }
	for _, found := range longFlag.FindAllStringSubmatch(s.text, -1) {
		if !v.flag(found[1], s.paragraph) {
			add("no command has the flag %s", found[1])
		}
	}
	name := s.text
	switch {
	case kebab.MatchString(name):
		known := slices.Contains(v.rules, name)
		near := slices.IndexFunc(v.rules, func(rule string) bool { return strings.Contains(rule, "-") && distance(rule, name) <= 2 })
		if !known && rulePlace.MatchString(s.before) || !known && near >= 0 {
			add("there is no rule %s", name)
		}
	case strings.HasPrefix(name, "Test") && camel.MatchString(strings.SplitN(name, "/", 2)[0]):
		if function, _, _ := strings.Cut(name, "/"); !v.tests[function] {
			add("there is no test %s", function)
		}
	case camel.MatchString(name):
		if !v.strings[name] && !slices.Contains(foreign, name) {
			add("the code knows no %s: neither an Event's reason nor a condition's, nor anything else", name)
		}
	case export.MatchString(name):
		if !v.exports[name] {
			add("there is no %s", name)
		}
	case path.MatchString(name):
		if found, err := filepath.Glob(filepath.Join(v.root, name)); err != nil || len(found) == 0 {
			add("there is no file %s", name)
		}
	}
	return problems
}

// flag says whether a flag is one of ours, or one of another tool that the paragraph names.
func (v *vocabulary) flag(name, paragraph string) bool {
	if v.flags[name] {
		return true
	}
	return slices.ContainsFunc(others[name], func(word string) bool { return strings.Contains(paragraph, word) })
}

// distance is how many letters make one word the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
