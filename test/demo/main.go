// Command demo shows Holdfast's main job on real parts, narrated: a three-member control plane comes
// up, a Machine is replaced, then all three by one edit of their set, and quorum never shakes. It exits with 1 if any of what it tells did
// not happen.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

const (
	leaving     = "master-1"
	second      = "master-2"
	replacement = "master-3"
	larger      = "m5.2xlarge"

	holdfast = "Holdfast"
)

// stallLimit is the longest that a write may take: an election, which a planned move of leadership
// avoids, takes up to two of etcd's election timeouts.
const stallLimit = 3 * time.Second

type demo struct {
	*narrator
	sandbox *sandbox.Sandbox
	client  client.Client
	etcd    *clientv3.Client
	files   string // the manifests that are applied
	kubectl string
	hooks   string                   // who puts etcd's hook on and releases it: Holdfast in full mode
	phases  map[string]time.Duration // since the replacement was created
	picture picture
}

func main() {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	dir := flags.String("dir", "", "folder for the sandbox and its logs; without it a temporary one, kept only after a failure")
	drawing := flags.String("picture", "", "SVG file to draw what happened into (full mode)")
	mode := flags.String("mode", "full", "full, or guard: the same attack on two control planes, without Holdfast and with it beside cluster-etcd-operator (a stand-in)")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "demo replaces a Machine of a real control plane on this computer, and tells what happens.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		return
	} else if err != nil || flags.NArg() > 0 || *mode != "full" && *mode != "guard" {
		switch {
		case err != nil:
		case flags.NArg() > 0:
			fmt.Fprintf(os.Stderr, "demo: it takes flags only, not %q\n", flags.Args())
		default:
			fmt.Fprintf(os.Stderr, "demo: --mode is %q; it is full or guard\n", *mode)
		}
		os.Exit(2)
	}
	ctrllog.SetLogger(logr.Discard()) // else controller-runtime complains that it has none
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(*dir, func(dir string) error {
		if *mode == "guard" {
			return guardMode(ctx, newNarrator(os.Stdout), dir)
		}
		return fullMode(ctx, newNarrator(os.Stdout), dir, *drawing)
	})
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

// run has something done in a folder: the one that is given, else a temporary one, which is kept only after a failure.
func run(dir string, do func(dir string) error) (err error) {
	if dir != "" {
		return do(dir)
	}
	if dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
		return err
	}
	if err := do(dir); err != nil {
		return fmt.Errorf("%w\nThe logs of every process are below %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// begin starts a control plane.
func begin(ctx context.Context, n *narrator, o sandbox.Options, hooks string) (d *demo, end func() error, err error) {
	d = &demo{narrator: n, hooks: hooks, phases: map[string]time.Duration{}, files: filepath.Join(o.Dir, "demo")}
	if d.kubectl, err = assets.Path("kubectl"); err != nil {
		return nil, nil, err
	}
	o.Progress = func(l string) { d.say("%s", l) }
	if d.sandbox, err = sandbox.Start(ctx, o); err != nil {
		return nil, nil, err
	}
	stop := func() error {
		d.wait("stopping everything")
		err := d.sandbox.Stop()
		d.wait("")
		return err
	}
	if err := d.connect(); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return d, func() error { return errors.Join(d.etcd.Close(), stop()) }, nil
}

// fullMode replaces a Machine, then all by one edit of their set.
func fullMode(ctx context.Context, n *narrator, dir, drawing string) (err error) {
	n.line(n.paint(bold, "Holdfast: Machines of a real control plane are replaced, and quorum never shakes"))
	n.line("etcd, kube-apiserver, the Machine API controllers and Holdfast start on this computer, as they are;")
	n.line("the sandbox plays the kubelets, and the cloud: an instance is a process. It takes a minute or two.")
	n.line("")
	d, end, err := begin(ctx, n, sandbox.Options{Dir: dir, Replicas: 3, Mode: "full", WithoutHoldfast: true, HoldfastReplicas: 2}, holdfast)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return d.proven(ctx, "four Machines were replaced, and quorum never shook", d.adopt, d.gitops, func(ctx context.Context) error {
		return d.remove(ctx, 3)
	}, func(ctx context.Context) error {
		return d.replace(ctx, 4, "Its Node comes up, Holdfast adds a learner there, promotes it once it caught up, moves leadership if it must,\nremoves the old member, and only then lets the old Machine go.")
	}, d.set, func(context.Context) error {
		if drawing == "" {
			return nil
		}
		return os.WriteFile(drawing, []byte(d.picture.svg()), 0o600)
	})
}

// proven tells chapters while a writer writes and the API server is asked whether it is ready, and then the last one: what became of
// every request, and what these two saw.
func (d *demo) proven(ctx context.Context, done string, chapters ...func(context.Context) error) error {
	var work sync.WaitGroup
	proofCtx, end := context.WithCancel(ctx)
	defer work.Wait()
	defer end()
	w := writer.New(d.etcd)
	work.Go(func() { w.Run(proofCtx) })
	ready := &readiness{config: d.sandbox.Config(sandbox.Admin)}
	work.Go(func() { ready.watch(proofCtx) })
	for _, chapter := range chapters {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	end()
	work.Wait()
	if err := d.audit(ctx); err != nil {
		return err
	}
	return d.prove(ctx, w, ready, done)
}

func (d *demo) connect() (err error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(machinev1beta1.Install(scheme))
	if d.client, err = client.New(d.sandbox.Config(sandbox.Admin), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if d.etcd, err = d.sandbox.EtcdClient(d.sandbox.Endpoints()...); err != nil {
		return err
	}
	return os.MkdirAll(d.files, 0o755)
}

// adopt is chapter 1.
func (d *demo) adopt(ctx context.Context) error {
	d.chapter(1, "A control plane without a guard, and Holdfast takes it on",
		"One etcd member on each Machine, three voters: etcd can lose one. Nothing holds a Machine yet.")
	s, err := d.look(ctx)
	if err != nil {
		return err
	}
	d.table(s)
	if s.voters() != 3 {
		return fmt.Errorf("the ring has %d voters, not 3", s.voters())
	}
	from := time.Now()
	if err := d.sandbox.StartHoldfast(ctx); err != nil {
		return err
	}
	d.event(from, "Two replicas of Holdfast run, and the API server asks one of them about every change of a control-plane Machine")
	s, err = d.follow(ctx, time.Minute, "hooks on all Machines", from, func(s sight) bool {
		for _, m := range s.machines {
			if !m.Protected() || len(m.OwnEvidence().MemberIDs) != 1 {
				return false
			}
		}
		return len(s.machines) == 3
	})
	if err != nil {
		return err
	}
	d.table(s)
	return nil
}

// gitops is chapter 2.
func (d *demo) gitops(ctx context.Context) error {
	d.chapter(2, "A GitOps tool writes a Machine as it stands in Git: without hooks",
		"The hook stays, the tool gets no error, and the Warning says why.")
	file, err := d.inGit(ctx, leaving)
	if err != nil {
		return err
	}
	if err := d.synced(ctx, file, quorum.RuleKeepHook); err != nil {
		return err
	}
	return d.kept(ctx, leaving)
}

// inGit is the file of a Machine as it stands in Git.
func (d *demo) inGit(ctx context.Context, name string) (file string, err error) {
	var m machinev1beta1.Machine
	if err := d.client.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: name}, &m); err != nil {
		return "", err
	}
	m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
	m.Annotations = nil
	m.ManagedFields = nil
	m.ResourceVersion = ""
	m.Status = machinev1beta1.MachineStatus{}
	return d.save(name+"-from-git.yaml", &m)
}

// synced has the GitOps tool apply the file, to which Holdfast says by a rule that the hook stays.
func (d *demo) synced(ctx context.Context, file string, rule quorum.Rule) error {
	out, failed := d.run(ctx, sandbox.GitOps, "replace", "-f", file)
	if failed != nil || !says(out, rule) {
		return fmt.Errorf("the replace was to pass with a Warning of rule %s, and kubectl ended with %w", rule, ended(failed))
	}
	return nil
}

// kept wants Machines to have hook and latch.
func (d *demo) kept(ctx context.Context, names ...string) error {
	s, err := d.look(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if got := s.machine(name); got == nil || !got.Protected() {
			return fmt.Errorf("Machine %s lost its hook or latch to the replace", name)
		}
		d.say("Machine %s has its hook and latch still.", name)
	}
	return nil
}

// says whether a rule speaks in what kubectl printed.
func says(out string, rule quorum.Rule) bool { return strings.Contains(out, "("+string(rule)+")") }

// ended is how a command ended, in words also for one that went well.
func ended(err error) error {
	if err == nil {
		return errors.New("success")
	}
	return err
}

// remove is the chapter of two deletions.
func (d *demo) remove(ctx context.Context, chapter int) error {
	d.chapter(chapter, "A Machine is deleted, then a second one",
		"The first is held: neither drained nor terminated before a replacement votes. The second would be one too many.")
	out, failed := d.run(ctx, sandbox.Alice, "delete", "machine", leaving, "--wait=false")
	if failed != nil || !says(out, quorum.RuleHeld) {
		return fmt.Errorf("the delete was to pass with a Warning of rule %s, and kubectl ended with %w", quorum.RuleHeld, ended(failed))
	}
	d.line("")
	out, failed = d.run(ctx, sandbox.Alice, "delete", "machine", second, "--wait=false")
	if failed == nil || !says(out, quorum.RuleOneTooMany) {
		return fmt.Errorf("the second delete was to be refused by rule %s, and kubectl ended with %w", quorum.RuleOneTooMany, ended(failed))
	}
	return nil
}

// replace is the chapter of the replacement, and the one of the control plane afterwards.
func (d *demo) replace(ctx context.Context, chapter int, what string) error {
	d.chapter(chapter, "A larger replacement is created: copy the Machine, rename it, give it another type, create it", what)
	var old machinev1beta1.Machine
	if err := d.client.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: leaving}, &old); err != nil {
		return err
	}
	m, err := sandbox.Replacement(&old, replacement, larger)
	if err != nil {
		return err
	}
	file, err := d.save(replacement+".yaml", m)
	if err != nil {
		return err
	}
	from := time.Now()
	if _, err := d.run(ctx, sandbox.Alice, "create", "-f", file); err != nil {
		return fmt.Errorf("create the replacement: %w", err)
	}
	most := 0
	s, err := d.follow(ctx, 90*time.Second, "the replacement", from, func(s sight) bool {
		most = max(most, s.voters())
		return s.machine(leaving) == nil && s.voters() == 3 && len(s.members) == 3
	})
	if err != nil {
		return err
	}
	d.chapter(chapter+1, "The control plane afterwards", "Three voters again, on three hooked Machines, one of them larger.")
	d.table(s)
	got := s.machine(replacement)
	switch {
	case got == nil || !got.Protected() || got.Deleting():
		return fmt.Errorf("Machine %s is not a live, hooked one", replacement)
	case s.types[replacement] != larger:
		return fmt.Errorf("Machine %s is of type %q, not %s", replacement, s.types[replacement], larger)
	case most > 4:
		return fmt.Errorf("etcd had %d voters at one time, more than one above three", most)
	}
	d.say("from the replacement's creation: Node ready %s, learner added %s, started %s, promoted %s, old member removed %s, old Machine released %s, gone %s",
		d.phase("node"), d.phase("learner"), d.phase("started"), d.phase("promoted"), d.phase("removed"), d.phase("released"), d.phase("gone"))
	return nil
}

// audit is the last chapter.
func (d *demo) audit(ctx context.Context) error {
	d.chapter(d.told+1, "Who asked for what, and what became of it", "Every decision is on record before its answer is given.")
	plugin, err := assets.Path("kubectl-holdfast")
	if err != nil {
		return err
	}
	logs := d.sandbox.AuditLogs() // each replica has its own
	shown := "kubectl holdfast audit"
	for _, log := range logs {
		shown += " " + filepath.Base(log)
	}
	d.command(string(sandbox.Alice), shown)
	out, err := exec.CommandContext(ctx, plugin, append([]string{"audit"}, logs...)...).CombinedOutput()
	d.output(string(out))
	if err != nil {
		return fmt.Errorf("kubectl holdfast audit: %w", err)
	}
	for _, rule := range []quorum.Rule{quorum.RuleKeepHook, quorum.RuleHeld, quorum.RuleOneTooMany, quorum.RuleClaim} {
		if !strings.Contains(string(out), string(rule)) {
			return fmt.Errorf("no record of rule %s", rule)
		}
	}
	return nil
}

// prove ends the demo with what a writer and the API server's readiness say of it.
func (d *demo) prove(ctx context.Context, w *writer.Writer, ready *readiness, done string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	lost, err := w.Lost(ctx)
	if err != nil {
		return err
	}
	wrote := w.Stats()
	d.line("")
	d.say("linearizable writes to etcd all along: %d acknowledged, %d lost, attempts that failed: %d, longest stall %s",
		wrote.Acked, lost, wrote.Failed, wrote.Longest.Round(time.Millisecond))
	if wrote.Failed > 0 {
		d.say("  (a failed attempt was repeated until it was acknowledged; the last error: %v)", wrote.Last)
	}
	d.say("API server ready: %d of %d times it was asked", ready.yes, ready.asked)
	switch {
	case lost > 0:
		return fmt.Errorf("%d acknowledged writes are lost", lost)
	case wrote.Acked == 0:
		return errors.New("no write was acknowledged")
	case wrote.Longest > stallLimit:
		return fmt.Errorf("a write took %s, longer than an election (%s)", wrote.Longest, stallLimit)
	case ready.asked == 0 || ready.yes < ready.asked:
		return fmt.Errorf("the API server was not ready all along: %w", ready.last)
	}
	d.line("")
	d.line(d.paint(green, fmt.Sprintf("Done in %.0f s: %s.", time.Since(d.begun).Seconds(), done)))
	return nil
}

// stamp remembers when a phase of the replacement was last reached.
func (d *demo) stamp(phase string, from time.Time) { d.phases[phase] = time.Since(from) }

func (d *demo) phase(name string) string {
	if at, ok := d.phases[name]; ok {
		return fmt.Sprintf("%.1f s", at.Seconds())
	}
	return "-"
}

// save writes a manifest as a person would have it in a file.
func (d *demo) save(name string, m *machinev1beta1.Machine) (string, error) {
	m.APIVersion, m.Kind = machinev1beta1.GroupVersion.String(), "Machine"
	raw, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	text, err := yaml.JSONToYAML(raw)
	if err != nil {
		return "", err
	}
	return filepath.Join(d.files, name), os.WriteFile(filepath.Join(d.files, name), text, 0o600)
}

// run runs kubectl as one of the sandbox's identities and shows command and output.
func (d *demo) run(ctx context.Context, as sandbox.Identity, args ...string) (string, error) {
	shown := make([]string, len(args))
	for i, a := range args {
		shown[i] = strings.TrimPrefix(a, d.files+string(filepath.Separator))
		if strings.ContainsAny(a, "{}' ") { // so that it can be pasted
			shown[i] = "'" + strings.ReplaceAll(shown[i], "'", `'\''`) + "'"
		}
	}
	d.command(string(as), "kubectl "+strings.Join(shown, " "))
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, d.kubectl, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+d.sandbox.Kubeconfig(as), "COLUMNS=200")
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	d.output(out.String())
	return out.String(), err
}

// readiness asks the API server all along whether it is ready.
type readiness struct {
	config     *rest.Config
	asked, yes int
	last       error
}

func (r *readiness) watch(ctx context.Context) {
	transport, err := rest.HTTPClientFor(r.config)
	if err != nil {
		r.asked, r.last = 1, err
		return
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := r.ask(ctx, transport)
		if ctx.Err() != nil {
			return
		}
		r.asked++
		if err == nil {
			r.yes++
		} else {
			r.last = err
		}
	}
}

func (r *readiness) ask(ctx context.Context, c *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.config.Host+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /readyz: %s", response.Status)
	}
	return nil
}
