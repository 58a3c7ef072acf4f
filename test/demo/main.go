// Command demo shows Holdfast's main job on real parts, narrated: a three-member control plane comes up, a Machine is replaced, then
// all three by one edit of their set, and quorum never shakes. It exits with 1 if any of what it tells did not happen.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

// stallLimit is the longest that a write may take: an election, which a planned move of leadership avoids, takes up to two of etcd's
// election timeouts; a write that reaches a leader while it hands over is dropped, and costs the writer's timeout of one attempt.
const stallLimit = 3 * time.Second

// unreadyLimit is the longest from one yes of the API server's /readyz to the next. A request at a member that is removed just then
// fails ("raft: stopped") or hangs, and etcd's client does not repeat it; the API server asks in two checks, waits 2 s in each, and
// repeats an answer for a second (k8s.io/apiserver, storagebackend/factory). A load balancer gives up after three probes 5 s apart.
const unreadyLimit = 5 * time.Second

func main() {
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	dir := flags.String("dir", "", "folder for the sandbox and its logs; without it a temporary one, kept only after a failure")
	drawing := flags.String("picture", "", "SVG file to draw what happened into")
	mode := flags.String("mode", "full", "full, or guard: the same attack on two control planes, without Holdfast and with it beside cluster-etcd-operator (a stand-in)")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "demo replaces a Machine of a real control plane on this computer, and tells what happens.")
		flags.PrintDefaults()
	}
	_ = flags.Parse(os.Args[1:]) // it exits
	if flags.NArg() > 0 || *mode != "full" && *mode != "guard" {
		fmt.Fprintln(os.Stderr, "demo: it takes flags only, and --mode is full or guard; see --help")
		os.Exit(2)
	}
	ctrllog.SetLogger(logr.Discard()) // else controller-runtime complains that it has none
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *dir, *mode, *drawing)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

// run plays a mode in a folder: the one that is given, else a temporary one, which is kept only after a failure.
func run(ctx context.Context, dir, mode, drawing string) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = fmt.Errorf("%w\nThe logs of every process are below %s", err, dir)
			} else {
				err = os.RemoveAll(dir)
			}
		}()
	}
	n := newNarrator(os.Stdout)
	if mode == "full" {
		return fullMode(ctx, n, dir, drawing)
	}
	return guardMode(ctx, n, dir, drawing)
}

// fullMode replaces a Machine, then all by one edit of their set.
func fullMode(ctx context.Context, n *narrator, dir, drawing string) error {
	n.say(bold, "Holdfast: Machines of a real control plane are replaced, and quorum never shakes")
	n.say("", `etcd, kube-apiserver, the Machine API controllers and Holdfast start on this computer, as they are;
the sandbox plays the kubelets, and the cloud: an instance is a process. It takes a minute or two.
`)
	return begin(ctx, n, dir, "full", func(ctx context.Context, d *demo) error {
		err := d.proven(ctx, "four Machines were replaced, and quorum never shook", d.adopt, d.gitops, d.remove, d.replace, d.set)
		if err != nil || drawing == "" {
			return err
		}
		return os.WriteFile(drawing, []byte(draw(panel{"With Holdfast, in full mode", d.seen})), 0o600)
	})
}

// guardMode shows the same attack on two control planes: without Holdfast the first is lost, with Holdfast the second is not.
func guardMode(ctx context.Context, n *narrator, dir, drawing string) error {
	n.say(bold, "Holdfast in guard mode, beside cluster-etcd-operator: the same attack twice, without Holdfast and with it")
	n.say("", `etcd, kube-apiserver, the Machine API controllers and Holdfast start on this computer, as they are. A program of this project
stands in for cluster-etcd-operator: it puts on and releases the hook, and moves etcd's members. All takes a minute or two.
`)
	var without, with panel
	if err := begin(ctx, n, filepath.Join(dir, "without"), "guard", beside(func(d *demo, ctx context.Context) error {
		err := d.lose(ctx)
		without = panel{"Without Holdfast", d.seen}
		return err
	})); err != nil {
		return err
	}
	n.say("", "")
	if err := begin(ctx, n, filepath.Join(dir, "with"), "guard", beside(func(d *demo, ctx context.Context) error {
		err := d.proven(ctx, "the same attack took no host, one Machine was replaced, and quorum never shook", d.guard, d.remove, d.gitops, d.replace)
		with = panel{"With Holdfast, the same attack", d.seen}
		return err
	})); err != nil || drawing == "" {
		return err
	}
	return os.WriteFile(drawing, []byte(draw(without, with)), 0o600)
}

// begin starts a control plane of three Machines without Holdfast, plays on it, and stops it.
func begin(ctx context.Context, n *narrator, dir, mode string, play func(context.Context, *demo) error) (err error) {
	d := &demo{narrator: n, guards: mode == "guard"}
	d.sandbox, err = sandbox.Start(ctx, sandbox.Options{
		Dir: dir, Replicas: 3, Mode: mode, WithoutHoldfast: true, HoldfastReplicas: 2, Progress: func(l string) { n.say("", "   %s", l) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.sandbox.Stop()) }()
	if err := d.connect(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.etcd.Close()) }()
	return play(ctx, d)
}

// beside plays while the stand-in for cluster-etcd-operator works.
func beside(play func(*demo, context.Context) error) func(context.Context, *demo) error {
	return func(ctx context.Context, d *demo) (err error) {
		end, err := d.sandbox.Operate(custodian.Options{Desired: 3}, time.Second)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		return play(d, ctx)
	}
}

// proven tells chapters while a writer writes and the API server is asked whether it is ready. At the end it tells what became of
// every request, and what these two saw.
func (d *demo) proven(ctx context.Context, done string, chapters ...func(context.Context) error) error {
	var work sync.WaitGroup
	working, end := context.WithCancel(ctx)
	defer work.Wait()
	defer end()
	w := writer.New(d.etcd)
	work.Go(func() { w.Run(working) })
	api, err := kubernetes.NewForConfig(d.sandbox.Config(sandbox.Admin))
	if err != nil {
		return err
	}
	asked, yes := 0, 0
	var no error
	var unready time.Duration // the longest from one yes to the next
	work.Go(func() {
		last := time.Now()
		wait.UntilWithContext(working, func(context.Context) {
			asked++
			err := api.RESTClient().Get().AbsPath("/readyz").Timeout(5 * time.Second).Do(ctx).Error()
			unready = max(unready, time.Since(last))
			if err != nil {
				no = err
			} else {
				yes, last = yes+1, time.Now()
			}
		}, 250*time.Millisecond)
	})
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

	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	lost, err := w.Lost(ctx)
	if err != nil {
		return err
	}
	voters := func(a, b moment) int { return a.voters - b.voters }
	fewest, most := slices.MinFunc(d.seen, voters).voters, slices.MaxFunc(d.seen, voters).voters
	wrote := w.Stats()
	d.say("", "")
	d.say("", "   etcd's voters all along: %d to %d", fewest, most)
	d.say("", "   linearizable writes to etcd all along: %d acknowledged, %d lost, attempts that failed: %d, longest stall %s",
		wrote.Acked, lost, wrote.Failed, wrote.Longest.Round(time.Millisecond))
	if wrote.Failed > 0 {
		d.say("", "     (a failed attempt was repeated until it was acknowledged; the last error: %v)", wrote.Last)
	}
	d.say("", "   API server ready: %d of %d times it was asked, at most %s from one yes to the next", yes, asked, unready.Round(time.Millisecond))
	switch {
	case fewest < 3 || most > 4:
		return fmt.Errorf("etcd had %d to %d voters, not 3 or 4", fewest, most)
	case lost > 0:
		return fmt.Errorf("%d acknowledged writes are lost", lost)
	case wrote.Acked == 0:
		return errors.New("no write was acknowledged")
	case wrote.Longest > stallLimit:
		return fmt.Errorf("a write took %s, longer than an election (%s)", wrote.Longest, stallLimit)
	case yes == 0 || unready > unreadyLimit:
		return errors.Join(fmt.Errorf("the API server was not ready for %s; %s can be borne", unready, unreadyLimit), no)
	}
	d.say("", "")
	d.say(green, "Done in %.0f s: %s.", time.Since(d.begun).Seconds(), done)
	return nil
}

// audit is the last chapter.
func (d *demo) audit(ctx context.Context) error {
	d.chapter("Who asked for what, and what became of it", "Every decision is on record before its answer is given.")
	out, err := d.kubectl(ctx, sandbox.Alice, append([]string{"holdfast", "audit"}, d.sandbox.AuditLogs()...)...) // each replica has its own
	if err != nil {
		return fmt.Errorf("kubectl holdfast audit: %w", err)
	}
	for _, rule := range []quorum.Rule{quorum.RuleKeepHook, quorum.RuleHeld, quorum.RuleOneTooMany, quorum.RuleClaim} {
		if !strings.Contains(out, string(rule)) {
			return fmt.Errorf("no record of rule %s", rule)
		}
	}
	return nil
}
