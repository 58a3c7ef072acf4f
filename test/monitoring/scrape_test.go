package monitoring

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	limit     = 2 * time.Minute // of each wait
	namespace = "openshift-machine-api"
	admin     = "admin"
	alice     = "alice" // a person
	gitops    = "argocd-application-controller"
	holdfast  = "holdfast"
)

// child is a process that this test started.
type child struct {
	name  string
	done  chan struct{} // closed when it has ended
	err   error         // set before
	mu    sync.Mutex
	lines strings.Builder
}

// start starts a process and stops it when the test is over. It ends with this process, however that ends.
func start(t *testing.T, command *exec.Cmd, stop os.Signal) *child {
	t.Helper()
	c := &child{name: filepath.Base(command.Path), done: make(chan struct{})}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = writer, writer
	go func() {
		defer func() { _ = reader.Close() }()
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			c.mu.Lock()
			fmt.Fprintln(&c.lines, lines.Text())
			c.mu.Unlock()
		}
	}()
	started := make(chan error)
	go func() {
		defer close(c.done)
		// The kernel kills the child when the thread that started it ends, so the thread stays for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := errors.Join(command.Start(), writer.Close())
		started <- err
		if err == nil {
			c.err = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := command.Process.Signal(stop); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		select {
		case <-c.done:
			if c.err != nil {
				t.Errorf("%s: %v\n%s", c.name, c.err, c.said())
			}
		case <-time.After(limit):
			t.Errorf("%s does not stop\n%s", c.name, c.said())
			_ = command.Process.Kill()
			<-c.done
		}
	})
	return c
}

func (c *child) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines.String()
}

// address is one to listen on. It is not 127.0.0.1: there a connection of somebody's may take the port
// before its listener comes.
func address(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 32+rand.IntN(16), rand.IntN(256), 1+rand.IntN(254)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}

// patient are the alerts that wait as long as on a cluster.
var patient = []string{"HoldfastMemberNotStarted", "HoldfastLearnerNotPromoted", "HoldfastQuorumGuardMismatch"}

// cluster is a sandbox with a Prometheus that scrapes its Holdfast.
type cluster struct {
	dir, prometheus string
	kubectl         string
	metrics, beside string // the addresses of Holdfast's, and of one that is beside it for a moment
	webhooks        *relay // the way from the API server
}

func startCluster(t *testing.T, options ...string) *cluster {
	t.Helper()
	metrics, webhooks := address(t), address(t)
	c := &cluster{dir: filepath.Join(t.TempDir(), "s"), kubectl: binary(t, "kubectl"), metrics: metrics, beside: address(t)}
	host, port, err := net.SplitHostPort(webhooks)
	if err != nil {
		t.Fatal(err)
	}
	c.webhooks = startRelay(t, webhooks)
	up := start(t, exec.Command(binary(t, "sandbox"), append(options, "up", "--replicas=3", "--dir="+c.dir, "--holdfast-arg=--metrics-bind-address="+metrics,
		"--holdfast-arg=--webhook-host="+host, "--holdfast-arg=--webhook-port="+port, "--holdfast-arg=--webhook-url=https://"+c.webhooks.address)...), os.Interrupt)
	eventually(t, "the sandbox is ready", func() error {
		select {
		case <-up.done:
			t.Fatalf("the sandbox did not start: %v\n%s", up.err, up.said())
		default:
		}
		if !strings.Contains(up.said(), "s  ready\n") {
			return errors.New(up.said())
		}
		return nil
	})

	// Most alerts fire at once where they would wait, for nothing to be done in half an hour, too.
	quick := alerts(t)
	for g := range quick.Groups {
		for r := range quick.Groups[g].Rules {
			rule := &quick.Groups[g].Rules[r]
			if !slices.Contains(patient, rule.Alert) {
				rule.For = "1s"
			}
			rule.Expr = strings.ReplaceAll(rule.Expr, "[30m]", "[10s]")
		}
	}
	text, err := yaml.Marshal(quick)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"+
		"rule_files: [rules.yaml]\nscrape_configs: [{job_name: holdfast, static_configs: [{targets: [%q, %q]}]}]\n", metrics, c.beside)
	if err := errors.Join(os.WriteFile(filepath.Join(home, "rules.yaml"), text, 0o600), os.WriteFile(filepath.Join(home, "prometheus.yaml"), []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	listen := address(t)
	c.prometheus = "http://" + listen
	start(t, exec.Command(binary(t, "prometheus"), "--config.file="+filepath.Join(home, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(home, "data"), "--web.listen-address="+listen, "--log.level=warn"), syscall.SIGTERM)
	eventually(t, "Prometheus scrapes Holdfast", func() error {
		return c.nonempty(`up{job="holdfast"} == 1`)
	})
	return c
}

// as runs kubectl as an identity of the sandbox.
func (c *cluster) as(who, stdin string, args ...string) (string, error) {
	command := exec.Command(c.kubectl, append([]string{"--kubeconfig=" + filepath.Join(c.dir, "kubeconfig", who), "--namespace=" + namespace}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	out, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// must is as, for what has to go through. Where the test has a Machine deleted, or a host lose power, etcd may lose its
// leader: it fails what is under way then, and kubectl does not try again.
func (c *cluster) must(t *testing.T, who, stdin string, args ...string) string {
	t.Helper()
	for began := time.Now(); ; {
		out, err := c.as(who, stdin, args...)
		switch {
		case err == nil:
			return out
		case !strings.Contains(err.Error(), "etcdserver: ") || time.Since(began) > time.Minute:
			t.Fatal(err)
		}
	}
}

// etcdctl runs it with what the sandbox says in its env file.
func (c *cluster) etcdctl(args string) (string, error) {
	return c.shell(`exec "` + filepath.Join(filepath.Dir(c.kubectl), "etcdctl") + `" ` + args)
}

func (c *cluster) mustEtcdctl(t *testing.T, args string) {
	t.Helper()
	if out, err := c.etcdctl(args); err != nil {
		t.Fatalf("etcdctl %s: %v: %s", args, err, out)
	}
}

// shell runs a script with what the sandbox says in its env file.
func (c *cluster) shell(script string) (string, error) {
	out, err := exec.Command("bash", "-c", `. "$1/env" && `+script, "bash", c.dir).Output()
	return string(out), err
}

// power cuts or restores that of a host.
func (c *cluster) power(t *testing.T, state, host string) {
	t.Helper()
	if out, err := exec.Command(binary(t, "sandbox"), "power", state, host, "--dir="+c.dir).CombinedOutput(); err != nil {
		t.Fatalf("power %s %s: %v\n%s", state, host, err, out)
	}
}

// replacement creates a Machine like an old one, in zone-a.
func (c *cluster) replacement(t *testing.T, old, name string) {
	t.Helper()
	var m struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := json.Unmarshal([]byte(c.must(t, admin, "", "get", "machine", old, "-o", "json")), &m); err != nil {
		t.Fatal(err)
	}
	m.Metadata = map[string]any{"name": name, "namespace": namespace, "labels": m.Metadata["labels"]}
	delete(m.Spec, "providerID")
	delete(m.Spec, "lifecycleHooks")
	m.Spec["providerSpec"] = map[string]any{"value": json.RawMessage(zoned)}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	c.must(t, alice, string(text), "create", "-f", "-")
}

// condition is one of Holdfast's ClusterOperator: status and reason.
func (c *cluster) condition(kind string) (string, error) {
	return c.as(admin, "", "get", "clusteroperator", "holdfast", "-o", fmt.Sprintf(`jsonpath={.status.conditions[?(@.type==%q)]['status','reason']}`, kind))
}

func (c *cluster) conditionIs(t *testing.T, kind, want string) {
	t.Helper()
	eventually(t, kind+" of ClusterOperator holdfast", func() error {
		got, err := c.condition(kind)
		if err == nil && !strings.HasPrefix(got, want) {
			err = fmt.Errorf("it is %q, want %q", got, want)
		}
		return err
	})
}

// get asks Prometheus.
func (c *cluster) get(path string, parameters url.Values, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.prometheus+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Warnings      []string
		Infos         []string
		Data          any
	}{Data: into}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	if answer.Status != "success" || len(answer.Warnings) > 0 {
		return fmt.Errorf("Prometheus: %s %v", answer.Error, answer.Warnings)
	}
	return nil
}

// nonempty runs an instant query and wants an answer.
func (c *cluster) nonempty(expr string) error {
	var data struct{ Result []any }
	if err := c.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return err
	}
	if len(data.Result) == 0 {
		return fmt.Errorf("%s is empty", expr)
	}
	return nil
}

// fires waits until an alert does.
func (c *cluster) fires(t *testing.T, alert string) {
	t.Helper()
	eventually(t, alert+" fires", func() error {
		return c.nonempty(fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing"}`, alert))
	})
}

// needs waits until HoldfastNeedsAttention fires for a reason.
func (c *cluster) needs(t *testing.T, reason string) {
	t.Helper()
	eventually(t, "HoldfastNeedsAttention fires for reason "+reason, func() error {
		return c.nonempty(fmt.Sprintf(`ALERTS{alertname="HoldfastNeedsAttention", alertstate="firing", reason=%q}`, reason))
	})
}

// over waits until an alert does not fire.
func (c *cluster) over(t *testing.T, alert string) {
	t.Helper()
	eventually(t, alert+" is over", func() error {
		return c.nonempty(fmt.Sprintf(`absent(ALERTS{alertname=%q, alertstate="firing"})`, alert))
	})
}

// series counts what an expression gives between two times.
func (c *cluster) series(expr string, from, to time.Time) (n int, err error) {
	var data struct{ Result []any }
	err = c.get("/api/v1/query_range", url.Values{
		"query": {expr}, "start": {from.Format(time.RFC3339Nano)}, "end": {to.Format(time.RFC3339Nano)}, "step": {"1s"},
	}, &data)
	return len(data.Result), err
}

// takeRight takes from Holdfast a verb of a role, as kubectl names it, on what (a resource, or one object of it), and returns what gives it
// back.
func (c *cluster) takeRight(t *testing.T, role, in, verb, what string) (giveBack func()) {
	t.Helper()
	type rule struct {
		Resources []string `json:"resources"`
		Verbs     []string `json:"verbs"`
	}
	var all struct {
		Rules []rule `json:"rules"`
	}
	if err := json.Unmarshal([]byte(c.must(t, admin, "", "get", role, "--namespace="+in, "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	resource, _, _ := strings.Cut(what, "/")
	i := slices.IndexFunc(all.Rules, func(r rule) bool { return slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb) })
	if i < 0 {
		t.Fatalf("%s has no right to %s %s: %v", role, verb, resource, all.Rules)
	}
	set := func(verbs []string, answer string) {
		t.Helper()
		list, err := json.Marshal(verbs)
		if err != nil {
			t.Fatal(err)
		}
		c.must(t, admin, "", "patch", role, "--namespace="+in, "--type=json", "-p", fmt.Sprintf(`[{"op": "replace", "path": "/rules/%d/verbs", "value": %s}]`, i, list))
		eventually(t, "the API server has heard of it", func() error {
			said, err := c.as(holdfast, "", "auth", "can-i", verb, what, "--namespace="+in)
			if (err == nil) == (answer == "yes") { // it exits with 1 for no
				return nil
			}
			return errors.Join(fmt.Errorf("may Holdfast %s %s? %q, want %s", verb, what, said, answer), err)
		})
	}
	others := slices.DeleteFunc(slices.Clone(all.Rules[i].Verbs), func(v string) bool { return v == verb })
	set(append(others, "get"), "no")
	return func() { t.Helper(); set(all.Rules[i].Verbs, "yes") }
}

// memberID is the ID of etcd's member of that name; of the one that never started for "".
func (c *cluster) memberID(t *testing.T, name string) string {
	t.Helper()
	id, err := c.etcdctl(`member list | awk -F', ' '$3 == "` + name + `" { print $1 }'`)
	if id = strings.TrimSpace(id); err != nil || id == "" {
		t.Fatalf("which member is %q: %q, %v", name, id, err)
	}
	return id
}

// TestScrape: on a control plane where a Machine is replaced and people do what they should not, alerts
// fire, every query of the dashboard has something to show, and every metric that is named is served.
func TestScrape(t *testing.T) {
	installed := time.Now()
	c := startCluster(t, "--bootstrap")
	c.installs(t)
	c.conditionIs(t, "Available", "True AsExpected")
	c.conditionIs(t, "Progressing", "False AsExpected")
	// Before its first scrape Prometheus took Holdfast to be silent.
	eventually(t, "no alert at rest", func() error { return c.nonempty("absent(ALERTS)") })
	for _, is := range []string{
		"sum(holdfast_etcd_member_is_leader) == 1", "sum(holdfast_etcd_member_has_leader) == 3", "sum(holdfast_etcd_member_healthy) == 3",
		"sum(holdfast_etcd_member_is_learner) == 0", "holdfast_quorum_guard_pods_ready == 3", "sum(holdfast_registration_present) == 15",
		"sum(holdfast_registration_enforced) == 3", "holdfast_registration_reached == 1",
	} {
		eventually(t, is, func() error { return c.nonempty(is) })
	}
	began := time.Now()
	eventually(t, "the Machines are adopted", func() error {
		hooks, err := c.as(admin, "", "get", "machines", "-o", "jsonpath={.items[*].spec.lifecycleHooks.preDrain[*].name}")
		if err == nil && len(strings.Fields(hooks)) != 3 {
			err = fmt.Errorf("the hooks are %q", hooks)
		}
		return err
	})

	c.keepsSet(t)

	// A tool strips a hook again and again, and somebody deletes two Machines at a time.
	for range 35 {
		c.must(t, gitops, "", "patch", "machine", "master-2", "--type=merge", "-p", `{"spec":{"lifecycleHooks":null}}`)
	}
	c.fires(t, "HoldfastHookFight")
	c.must(t, alice, "", "delete", "machine", "master-0", "--wait=false")
	if _, err := c.as(alice, "", "delete", "machine", "master-1", "--wait=false"); err == nil || !strings.Contains(err.Error(), "one-too-many") {
		t.Errorf("the second deletion was not refused: %v", err)
	}
	c.conditionIs(t, "Progressing", "True ReplacementInProgress")
	c.conditionIs(t, "Upgradeable", "False ReplacementInProgress")
	c.fires(t, "HoldfastReplacementWaitsForNode")
	c.guardsTooLittle(t)
	eventually(t, "master-0 is replaced", func() error {
		left, err := c.as(admin, "", "get", "machine", "master-0", "--ignore-not-found", "-o", "name")
		if err == nil && left != "" {
			err = errors.New("it is still there")
		}
		return err
	})
	c.conditionIs(t, "Progressing", "False AsExpected")
	c.losesGuardPod(t)
	c.needsPerson(t)

	// An upgrade restarts a Node: that alone does not page, and it is told if it takes long.
	c.must(t, alice, "", "cordon", "master-2")
	c.power(t, "off", "master-2")
	c.fires(t, "HoldfastMaintenanceLong")
	c.conditionIs(t, "Degraded", "True EtcdMembersUnhealthy")
	if err := c.nonempty(`absent(ALERTS{alertname="HoldfastQuorumAtLimit"})`); err != nil {
		t.Errorf("HoldfastQuorumAtLimit during a restart: %v", err)
	}
	c.power(t, "on", "master-2")
	c.must(t, alice, "", "uncordon", "master-2")
	c.conditionIs(t, "Degraded", "False AsExpected")

	// A voter is away, and nobody cordoned its Node. A set that would replace the Machines waits for it.
	c.power(t, "off", "master-2")
	c.fires(t, "HoldfastVoterUnhealthy")
	c.fires(t, "HoldfastQuorumAtLimit")
	c.must(t, alice, strings.Replace(setManifest(`m5.24xlarge`), "OnDelete", "RollingUpdate", 1), "create", "-f", "-")
	c.fires(t, "HoldfastSetGateShut")
	c.must(t, alice, "", "delete", "controlplanemachineset", "cluster")

	// Somebody removes its member, and adds one that never starts: a seat is free, and a learner waits.
	c.mustEtcdctl(t, "member remove "+c.memberID(t, "master-2"))
	c.needs(t, "EtcdVotersMissing")
	c.mustEtcdctl(t, "member add orphan --learner --peer-urls=https://127.0.0.1:1")
	c.fires(t, "HoldfastLearnerWaits")
	c.fires(t, "HoldfastMemberNotStarted")
	c.needs(t, "LearnerOrphaned")
	c.conditionIs(t, "Progressing", "True EtcdMembersNotStarted")
	eventually(t, "Degraded of ClusterOperator holdfast", func() error {
		got, err := c.condition("Degraded")
		if err == nil && (!strings.HasPrefix(got, "True ") || !strings.Contains(got, "LearnerOrphaned")) {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
	c.mustEtcdctl(t, "member remove "+c.memberID(t, ""))
	c.power(t, "on", "master-2")
	eventually(t, "three vote again", func() error { return c.nonempty(`sum(holdfast_etcd_members{role="voter", health="healthy"}) == 3`) })

	// A person takes the hook off a deleting Machine, and somebody takes the guard away.
	c.must(t, alice, "", "delete", "machine", "master-1", "--wait=false")
	c.must(t, alice, "", "patch", "machine", "master-1", "--type=merge", "-p", `{"spec":{"lifecycleHooks":null}}`)
	c.fires(t, "HoldfastEscapeHatchUsed")
	c.fires(t, "HoldfastQuorumAtLimit")
	c.must(t, admin, "", "delete", "validatingwebhookconfiguration", "holdfast", "--ignore-not-found")
	c.fires(t, "HoldfastRegistrationChanged")
	giveBack := c.takeRight(t, "clusterrole/holdfast", namespace, "create", "validatingwebhookconfigurations")
	c.must(t, admin, "", "delete", "validatingwebhookconfiguration", "holdfast", "--ignore-not-found")
	c.fires(t, "HoldfastRegistrationGone")
	giveBack()
	eventually(t, "the registration is back", func() error { return c.nonempty("sum(holdfast_registration_present) == 15") })

	c.uneven(t)

	// The API server does not get through to the webhooks.
	c.webhooks.cut()
	c.fires(t, "HoldfastWebhooksUnreached")
	c.webhooks.mend(t)
	ended := time.Now()

	var names []string
	for _, r := range alerts(t).all() {
		names = append(names, metrics(t, r.Expr)...)
		if _, err := c.series(r.Expr, began, ended); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
	}
	queries := dashboard(t)
	for _, q := range queries {
		names = append(names, metrics(t, q.expr)...)
		if n, err := c.series(q.expr, began, ended); err != nil || n == 0 {
			t.Errorf("panel %s shows %d series of %s: %v", q.panel, n, q.expr, err)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		if n, err := c.series(name, began, ended); err != nil || n == 0 {
			t.Errorf("%s has %d series: %v", name, n, err)
		}
	}
	alerted := c.fired(t, began)
	t.Logf("%d queries of the dashboard and %d metrics over %s; fired: %s", len(queries), len(names), ended.Sub(began).Round(time.Second), strings.Join(alerted, ", "))
	if slices.Contains(alerted, "HoldfastQuorumLost") || slices.Contains(alerted, "HoldfastNotReadingEtcd") || slices.Contains(alerted, "HoldfastPlanRefused") {
		t.Error("one of these fired that should not have")
	}

	// Two of three go, and the API with them.
	c.power(t, "off", "master-3")
	c.power(t, "off", "master-4")
	c.fires(t, "HoldfastQuorumLost")
	c.power(t, "on", "master-3")
	c.power(t, "on", "master-4")
	c.over(t, "HoldfastQuorumLost")
	c.over(t, "HoldfastWebhooksUnreached")
	c.runsOutOfSpace(t)
	c.hangs(t)

	alerted = c.fired(t, installed)
	for _, r := range alerts(t).all() {
		if !slices.Contains(alerted, r.Alert) && r.Alert != "HoldfastPlanRefused" && r.Alert != "HoldfastReportsOnly" { // one takes a defect of Holdfast, one two hours
			t.Errorf("%s has not fired", r.Alert)
		}
	}
}
