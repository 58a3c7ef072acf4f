package custodian_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// promises are what Holdfast's Warnings say will happen to a Machine, and what has to be seen for that. Those that say what must not
// happen before the Machine is released are looked at until it is; the others have to come true.
var promises = []struct {
	text     *regexp.Regexp
	released func(l *letting) error // wanted when hook and latch are off
	then     func(l *letting) error // wanted at some time
}{
	{regexp.MustCompile(`is held until etcd has the wanted number of voters \((\d+) now\) without it`), func(l *letting) error {
		if want, _ := strconv.Atoi(l.said[1]); l.others < want || l.listed {
			return fmt.Errorf("it is released at %d other voters, its own listed: %t", l.others, l.listed)
		}
		return nil
	}, (*letting).isGone},
	{regexp.MustCompile(`is held until its unhealthy member has left etcd; it is neither drained nor terminated before`), (*letting).hasLeft, (*letting).isGone},
	{regexp.MustCompile(`(?:cluster-etcd-operator removes that within minutes, whether there is a replacement or not|Holdfast removes that once the Node of a replacement waits for its place)\. etcd then has (\d+) voters?`), func(l *letting) error {
		if want := l.said[1]; strconv.Itoa(l.others) != want {
			return fmt.Errorf("etcd has %d voters", l.others)
		}
		return nil
	}, nil},
	{regexp.MustCompile(`hosts etcd learner \S+ \(\S+\), which never voted: it leaves etcd, and the Machine is released`), (*letting).hasLeft, (*letting).isGone},
	{regexp.MustCompile(`hosts no etcd member, so it is released next and terminated`), nil, (*letting).isGone},
	{regexp.MustCompile(`Holdfast is about to release the Machine, and it is then terminated`), nil, (*letting).isGone},
	{regexp.MustCompile(`The Machine is not terminated before etcd can do without it`), func(l *letting) error {
		if l.answering <= (l.others+1)/2 {
			return fmt.Errorf("it is released while %d of %d voters answer without it", l.answering, l.others+1)
		}
		return nil
	}, (*letting).isGone},
	{regexp.MustCompile(`^ControlPlaneMachineSet cluster creates the replacement while its spec\.state is Active`), nil, func(l *letting) error {
		if l.live < desired {
			return fmt.Errorf("%d Machines are live", l.live)
		}
		return nil
	}},
	// What a person is told to do, and what is a fact: nothing is promised.
	{regexp.MustCompile(`^(Follow it|If there is no replacement yet|It hosts etcd|See that its member leaves|Holdfast removes the dead member once|Healthy voters|Holdfast releases the Machine once|To let it go all the same|After that only a restore|No etcd member runs on it|It has|etcd )`), nil, nil},
}

// letting is a Machine that is let go, and etcd at one time.
type letting struct {
	said      []string // by a promise's text
	others    int      // voters that are not its member
	answering int      // of them
	listed    bool     // its member
	gone      bool     // the Machine
	live      int      // Machines
}

func (l *letting) isGone() error {
	if !l.gone {
		return errors.New("the Machine is there")
	}
	return nil
}

func (l *letting) hasLeft() error {
	if l.listed {
		return errors.New("its member is listed")
	}
	return nil
}

// TestPromises holds what Holdfast tells people, when they delete Machines and take hooks off, against what happens then.
func TestPromises(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	for _, mode := range []string{"guard", "full"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := start(t, sandbox.Options{Mode: mode})
			waits := &patient{Etcd: dial(t, c.Sandbox)}
			if mode == "guard" {
				o := c.custodian(t, waits, custodian.Options{})
				running, stop := context.WithCancel(context.WithoutCancel(t.Context()))
				ended := make(chan error, 1)
				go func() { ended <- o.Run(running, glimpse) }()
				t.Cleanup(func() { stop(); <-ended })
			}
			for _, part := range []struct {
				name string
				run  func(t *testing.T)
			}{
				{"a healthy voter's Machine", func(t *testing.T) {
					old := c.voters(t)[0]
					said := c.asks(t, func(alice client.Client) error { return alice.Delete(t.Context(), named(old)) })
					c.replace(t, old, "first")
					c.kept(t, old, said, 1)
				}},
				{"a learner's Machine", func(t *testing.T) {
					waits.set(true) // in full mode it waits of itself, for no voter leaves
					defer waits.set(false)
					c.replace(t, c.voters(t)[0], "learns")
					eventually(t, "a learner that has started", func(ctx context.Context) error {
						members, err := c.members(ctx)
						if err == nil && (members["learns"] == nil || !members["learns"].GetIsLearner()) {
							err = fmt.Errorf("the members are %v", members)
						}
						return err
					})
					c.hooked(t, "learns")
					said := c.asks(t, func(alice client.Client) error { return alice.Delete(t.Context(), named("learns")) })
					c.kept(t, "learns", said, 1)
				}},
				{"a Machine that hosts nothing", func(t *testing.T) {
					if mode == "full" {
						return // it has no hook there, so its deletion is nothing to tell of
					}
					must(t, c.alice.Create(t.Context(), broken("never")))
					c.hooked(t, "never")
					said := c.asks(t, func(alice client.Client) error { return alice.Delete(t.Context(), named("never")) })
					c.kept(t, "never", said, 1)
				}},
				{"a dead voter's Machine", func(t *testing.T) {
					old := c.voters(t)[1]
					must(t, c.Power(old, false))
					eventually(t, "Holdfast to see it", func(ctx context.Context) error {
						for _, other := range c.voters(t) {
							if err := c.alice.Delete(ctx, named(other), client.DryRunAll); other != old && err != nil && strings.Contains(err.Error(), string(quorum.RuleDegradedDelete)) {
								return nil
							}
						}
						return errors.New("the others may be deleted")
					})
					said := c.asks(t, func(alice client.Client) error { return alice.Delete(t.Context(), named(old)) })
					if mode == "full" {
						c.replace(t, c.voters(t)[0], "second")
					}
					c.kept(t, old, said, 2)
					if mode == "guard" {
						c.replace(t, c.voters(t)[0], "second")
					}
				}},
				{"a person takes the hook of a voter's Machine off", func(t *testing.T) {
					old := c.voters(t)[0]
					must(t, c.asks(t, func(alice client.Client) error { return alice.Delete(t.Context(), named(old)) }).err)
					c.seen(t, old)
					said := c.asks(t, func(alice client.Client) error {
						m, err := c.machine(t.Context(), old)
						if err != nil {
							return err
						}
						patch := client.MergeFrom(m.DeepCopy())
						m.Spec.LifecycleHooks.PreDrain = nil
						return alice.Patch(t.Context(), m, patch)
					})
					c.kept(t, old, said, 1)
					c.replace(t, c.voters(t)[1], "third")
				}},
				{"a Machine that a set keeps", func(t *testing.T) {
					if mode == "guard" {
						return // the platform's own set operator does it there: TestPlatformSets
					}
					set := platformSet(t)
					set.Spec.Strategy.Type = machinev1.OnDelete
					must(t, c.alice.Create(t.Context(), set))
					old := c.voters(t)[0]
					eventually(t, "the set to keep it", func(ctx context.Context) error {
						m, err := c.machine(ctx, old)
						if err == nil && metav1.GetControllerOf(m) == nil {
							err = errors.New("it has no controller")
						}
						return err
					})
					said := c.asks(t, func(alice client.Client) error { return alice.Delete(t.Context(), named(old)) })
					c.kept(t, old, said, 2)
				}},
			} {
				eventually(t, "a control plane at rest", c.restless)
				if !t.Run(part.name, part.run) {
					return // those after it begin with a control plane at rest
				}
			}
			eventually(t, "a control plane at rest", c.restless)
		})
	}
}

// hooked waits until a Machine has hook and latch.
func (c *cluster) hooked(t *testing.T, name string) {
	t.Helper()
	eventually(t, "hook and latch on "+name, func(ctx context.Context) error {
		m, err := c.machine(ctx, name)
		if err == nil && (m == nil || !protected(m)) {
			err = errors.New("it is not protected")
		}
		return err
	})
}

// answer is what a person was told.
type answer struct {
	lines []string
	err   error
}

// asks sends what a person asks for, until it is answered and nothing was in its way for a moment.
func (c *cluster) asks(t *testing.T, send func(alice client.Client) error) answer {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, machinev1beta1.Install(scheme))
	config := c.Config(sandbox.Alice)
	told := &told{}
	config.WarningHandler = told
	alice, err := client.New(config, client.Options{Scheme: scheme, Log: funcr.New(func(_, _ string) {}, funcr.Options{})})
	must(t, err)
	var a answer
	eventually(t, "an answer", func(context.Context) error {
		told.lines = nil
		a.err = send(alice)
		a.lines = told.lines
		return a.err
	})
	t.Logf("Alice is told:\n%s", strings.Join(a.lines, "\n"))
	return a
}

// told are Warnings.
type told struct{ lines []string }

// HandleWarningHeader makes it client-go's rest.WarningHandler.
func (w *told) HandleWarningHeader(_ int, _, text string) { w.lines = append(w.lines, text) }

// kept looks until every promise of an answer has come true, and wants as many that say something of the future. Each sentence that it
// does not know fails the test.
func (c *cluster) kept(t *testing.T, name string, a answer, want int) {
	t.Helper()
	m, err := c.machine(t.Context(), name)
	must(t, err)
	e := machineapi.Machine(m)
	ids := e.OwnEvidence()
	type due struct {
		text     string
		said     []string
		released func(l *letting) error
		then     func(l *letting) error
	}
	var dues []due
	count := 0
	for _, line := range a.lines {
		known := false
		for _, p := range promises {
			if said := p.text.FindStringSubmatch(line); said != nil {
				known = true
				if p.released != nil || p.then != nil {
					count++
					dues = append(dues, due{line, said, p.released, p.then})
				}
			}
		}
		if !known {
			t.Errorf("nothing holds this sentence: %s", line)
		}
	}
	if count != want {
		t.Errorf("%d promises of %d in\n%s", count, want, strings.Join(a.lines, "\n"))
	}
	wasReleased := false
	eventually(t, "what was promised of Machine "+name, func(ctx context.Context) error {
		m, err := c.machine(ctx, name)
		if err != nil {
			return err
		}
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		l := &letting{gone: m == nil}
		var all machinev1beta1.MachineList
		if err := c.admin.List(ctx, &all, client.InNamespace(sandbox.MachineNamespace)); err != nil {
			return err
		}
		for i := range all.Items {
			if all.Items[i].DeletionTimestamp == nil {
				l.live++
			}
		}
		for _, member := range members {
			own := ids.Names(quorum.MemberID(member.GetID()))
			switch {
			case own:
				l.listed = true
			case !member.GetIsLearner():
				l.others++
				if len(member.GetClientURLs()) > 0 {
					if _, err := c.etcd.Status(ctx, member.GetClientURLs()[0]); err == nil {
						l.answering++
					}
				}
			}
		}
		released := m == nil
		if m != nil {
			seen := machineapi.Machine(m)
			released = seen.Hook != quorum.EntryOurs && seen.Latch != quorum.EntryOurs
		}
		var missing error
		for i := range dues {
			d := &dues[i]
			l.said = d.said
			if d.released != nil && released && !wasReleased {
				if err := d.released(l); err != nil {
					t.Errorf("%q: %v", d.text, err)
				}
			}
			if d.then != nil {
				if err := d.then(l); err != nil {
					missing = errors.Join(missing, fmt.Errorf("%q: %w", d.text, err))
				}
			}
		}
		wasReleased = wasReleased || released
		if missing == nil && !released {
			missing = errors.New("it is not released")
		}
		return missing
	})
}

// patient is an etcd that finds no learner ready while it waits.
type patient struct {
	custodian.Etcd
	mu    sync.Mutex
	waits bool
}

func (p *patient) set(waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits = waits
}

// MemberPromote promotes where it does not wait.
func (p *patient) MemberPromote(ctx context.Context, id uint64) (*clientv3.MemberPromoteResponse, error) {
	p.mu.Lock()
	waits := p.waits
	p.mu.Unlock()
	if waits {
		return unready{}.MemberPromote(ctx, id)
	}
	return p.Etcd.MemberPromote(ctx, id)
}
