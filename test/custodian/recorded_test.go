package custodian_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/custodian/recording"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestRecorded drives the stand-in through situations in which cluster-etcd-operator was recorded, and compares what it writes with
// what that one wrote. Its writes are read from the API server's audit log and from the logs of etcd's members. Machines have the
// names that they had then, so the situations come in that order.
func TestRecorded(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	t.Run("three voters", func(t *testing.T) {
		t.Parallel()
		o := operate(t, 3, custodian.Options{Resync: 15 * time.Second, Revision: 3 * time.Second, Health: 4 * time.Second})
		for _, s := range []situation{
			{"1-adoption", o.adoption, false},
			{"2a-create-first", o.createFirst, false},
			{"2b-delete-first", o.deleteFirst, false},
			{"4-dead-member", o.deadMember, true},
			{"5-addresses-emptied", o.addressesEmptied, false},
			{"6-holdfast-down", o.holdfastDown, false},
		} {
			if !o.compare(t, s) {
				return // those after it begin with a control plane at rest
			}
		}
	})
	t.Run("five voters", func(t *testing.T) {
		t.Parallel()
		// In the recording, too, the second learner was promoted before the revision was done that the first one began.
		o := operate(t, 5, custodian.Options{Resync: 15 * time.Second, Revision: 20 * time.Second, Health: 4 * time.Second})
		o.start()
		eventually(t, "the operator's hook, and latch and evidence with it, on every Machine", o.restless)
		o.compare(t, situation{"8-five-two-deleted", o.twoDeleted, false})
	})
}

// situation is one that was recorded.
type situation struct {
	recording string
	run       func(t *testing.T) (cause time.Time) // which it begins with
	dead      bool                                 // the member that is removed does not answer
}

// operated is a control plane with a stand-in that goes on from one situation to the next.
type operated struct {
	*cluster
	operator *custodian.Operator
	options  custodian.Options
	stop     func()
}

func operate(t *testing.T, voters int, options custodian.Options) *operated {
	t.Helper()
	c := start(t, sandbox.Options{Mode: "guard", AuditMachines: true, Replicas: voters})
	o := &operated{cluster: c, operator: c.custodian(t, dial(t, c.Sandbox), options), options: options, stop: func() {}}
	t.Cleanup(func() { o.stop() })
	return o
}

// start has the stand-in run until stop.
func (o *operated) start() {
	running, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = o.operator.Run(running, glimpse) // what it could not do, it does later
	}()
	o.stop = func() { cancel(); <-ended }
}

// compare runs one situation to its end, and says what came of it.
func (o *operated) compare(t *testing.T, s situation) bool {
	t.Helper()
	return t.Run(s.recording, func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join("testdata", "recordings", s.recording+".txt"))
		must(t, err)
		recorded, err := recording.Parse(string(text))
		must(t, err)
		cause := s.run(t)
		eventually(t, "a control plane at rest", o.restless)
		observed := o.observed(t, cause)
		for _, w := range observed {
			t.Log(w)
		}
		t.Logf("of which are compared:\n%s", recording.Steps(observed))
		wrong := slices.Concat(recording.Differences(recorded, observed), recording.Unprompted(observed, o.options.Resync))
		if s.dead {
			wrong = append(wrong, recording.Hasty(observed, o.options.Health)...)
		}
		for _, line := range wrong {
			t.Error(line)
		}
	})
}

func (o *operated) adoption(*testing.T) time.Time {
	cause := time.Now()
	o.start()
	return cause
}

func (o *operated) createFirst(t *testing.T) time.Time {
	cause := time.Now()
	o.replace(t, "master-0", "master-3")
	eventually(t, "master-3 to vote", func(ctx context.Context) error { return o.votes(ctx, "master-3") })
	o.remove(t, "master-0")
	return o.left(t, cause, "master-0")
}

func (o *operated) deleteFirst(t *testing.T) time.Time {
	cause := time.Now()
	o.remove(t, "master-1")
	o.refused(t, o.alice, "master-2", quorum.RuleOneTooMany)
	o.replace(t, "master-2", "master-4")
	return o.left(t, cause, "master-1")
}

func (o *operated) deadMember(t *testing.T) time.Time {
	cause := time.Now()
	must(t, o.Power("master-3", false))
	eventually(t, "Holdfast to see it", func(ctx context.Context) error {
		err := o.alice.Delete(ctx, named("master-4"), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "("+string(quorum.RuleDegradedDelete)+")") {
			return fmt.Errorf("deleting Machine master-4: %w", err)
		}
		return nil
	})
	o.remove(t, "master-3")
	o.replace(t, "master-4", "master-5")
	return o.left(t, cause, "master-3")
}

func (o *operated) addressesEmptied(t *testing.T) time.Time {
	cause := time.Now()
	o.remove(t, "master-2")
	o.seen(t, "master-2")
	must(t, o.machineAPI.Status().Patch(t.Context(), named("master-2"), client.RawPatch(types.MergePatchType, []byte(`{"status":{"addresses":null}}`))))
	o.answered(t, cause, "release-hook master-2 put-back")
	o.replace(t, "master-4", "master-6")
	eventually(t, "master-6 to vote", func(ctx context.Context) error { return o.votes(ctx, "master-6") })
	eventually(t, "a person to remove the member", func(ctx context.Context) error {
		members, err := o.members(ctx)
		if err == nil && members["master-2"] != nil {
			_, err = o.etcd.MemberRemove(ctx, members["master-2"].GetID())
		}
		return err
	})
	return o.left(t, cause, "master-2")
}

// holdfastDown: the recording begins when the member has left. That Holdfast is down before the operator releases the Machine is sure
// where the operator is away while it goes down.
func (o *operated) holdfastDown(t *testing.T) time.Time {
	o.replace(t, "master-4", "master-7")
	eventually(t, "master-7 to vote", func(ctx context.Context) error { return o.votes(ctx, "master-7") })
	o.stop()
	o.remove(t, "master-4")
	o.seen(t, "master-4")
	must(t, o.Holdfast.Stop())
	o.start()
	eventually(t, "the member to leave", func(ctx context.Context) error {
		members, err := o.members(ctx)
		if err == nil && members["master-4"] != nil {
			err = errors.New("it is there")
		}
		return err
	})
	cause := time.Now()
	o.answered(t, cause, "release-hook master-4 refused")
	must(t, o.Holdfast.Start())
	return o.left(t, cause, "master-4")
}

func (o *operated) twoDeleted(t *testing.T) time.Time {
	cause := time.Now()
	o.remove(t, "master-0")
	o.remove(t, "master-1")
	o.refused(t, o.alice, "master-2", quorum.RuleOneTooMany)
	o.replace(t, "master-2", "master-5")
	o.replace(t, "master-2", "master-6")
	o.left(t, cause, "master-0")
	return o.left(t, cause, "master-1")
}

// left waits until a Machine is gone, and passes on the cause.
func (o *operated) left(t *testing.T, cause time.Time, name string) time.Time {
	t.Helper()
	eventually(t, "Machine "+name+" gone", func(ctx context.Context) error { return o.gone(ctx, name) })
	return cause
}

// answered waits until the operator has been answered so.
func (o *operated) answered(t *testing.T, cause time.Time, step string) {
	t.Helper()
	eventually(t, step, func(context.Context) error {
		if steps := recording.Steps(o.observed(t, cause)); !strings.Contains(steps, step+"\n") {
			return errors.New(steps)
		}
		return nil
	})
}

// observed is what was written to Machines and to etcd's membership since the cause, in order.
func (o *operated) observed(t *testing.T, cause time.Time) []recording.Write {
	t.Helper()
	var out []recording.Write
	for _, w := range slices.Concat(o.machineWrites(t, cause), o.memberWrites(t, cause)) {
		if w.At >= 0 {
			out = append(out, w)
		}
	}
	slices.SortStableFunc(out, func(a, b recording.Write) int { return int(a.At - b.At) })
	return out
}

// machineWrites are those to hooks by the operator, and the changes of Machines by others, from the API server's audit log.
func (o *operated) machineWrites(t *testing.T, cause time.Time) []recording.Write {
	t.Helper()
	var out []recording.Write
	versions := map[string]string{}
	lines(t, o.APIAuditLog(), func(line []byte) {
		var event auditv1.Event
		if json.Unmarshal(line, &event) != nil || event.ObjectRef == nil {
			return // it is being written
		}
		w := recording.Write{
			At: event.RequestReceivedTimestamp.Sub(cause), Actor: event.User.Username[strings.LastIndex(event.User.Username, ":")+1:],
			Call: event.Verb, On: event.ObjectRef.Name, Answer: "done",
		}
		asked, stored, code := machineIn(event.RequestObject), machineIn(event.ResponseObject), event.ResponseStatus.Code
		if event.User.Username == string(sandbox.EtcdOperator) {
			putOn := hooked(asked)
			w.Kind, w.Call = recording.Machine, recording.ReleaseHook
			if putOn {
				w.Call = recording.PutHook
			}
			switch {
			case code == http.StatusConflict:
				w.Answer = "conflict"
			case strings.Contains(event.ResponseStatus.Message, "etcdserver: "):
				w.Answer = "failed"
			case code != http.StatusOK:
				w.Answer = "refused"
			case hooked(stored) != putOn:
				w.Answer = "put-back"
			}
			out = append(out, w)
		} else if code < http.StatusMultipleChoices && stored.ResourceVersion != versions[w.On] {
			w.Kind = recording.Changed
			out = append(out, w)
		}
		versions[w.On] = stored.ResourceVersion
	})
	return out
}

// machineIn is what was sent; an empty Machine if it is none.
func machineIn(sent *runtime.Unknown) *machinev1beta1.Machine {
	m := &machinev1beta1.Machine{}
	if sent != nil {
		_ = json.Unmarshal(sent.Raw, m)
	}
	return m
}

func hooked(m *machinev1beta1.Machine) bool {
	return slices.Contains(m.Spec.LifecycleHooks.PreDrain, machinev1beta1.LifecycleHook{Name: "EtcdQuorumOperator", Owner: "clusteroperator/etcd"})
}

// memberWrites are the changes of the membership, each when the first of etcd's members logged that it had made it. A member logs under
// its own host's name, and a change again when it starts.
func (o *operated) memberWrites(t *testing.T, cause time.Time) []recording.Write {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(o.Logs, "etcd-*.log"))
	must(t, err)
	names := map[string]string{}
	type change struct{ call, id string }
	made := map[change]time.Time{}
	for _, file := range files {
		lines(t, file, func(line []byte) {
			var e struct {
				At       string `json:"ts"`
				What     string `json:"msg"`
				Local    string `json:"local-member-id"`
				Added    string `json:"added-peer-id"`
				Learner  bool   `json:"added-peer-is-learner"`
				Promoted string `json:"promoted-member-id"`
				Removed  string `json:"removed-remote-peer-id"`
			}
			if json.Unmarshal(line, &e) != nil || e.Local == "" {
				return
			}
			names[e.Local] = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "etcd-"), ".log")
			var c change
			switch {
			case e.What == "added member" && e.Learner:
				c = change{recording.Add, e.Added}
			case e.What == "promote member":
				c = change{recording.Promote, e.Promoted}
			case e.What == "removed member":
				c = change{recording.Remove, e.Removed}
			default:
				return
			}
			at, err := time.Parse("2006-01-02T15:04:05.999999Z0700", e.At)
			must(t, err)
			if before, ok := made[c]; !ok || at.Before(before) {
				made[c] = at
			}
		})
	}
	var out []recording.Write
	for c, at := range made {
		out = append(out, recording.Write{At: at.Sub(cause), Actor: "etcd", Kind: recording.Member, Call: c.call, On: names[c.id], Answer: "done"})
	}
	return out
}

// lines reads a log.
func lines(t *testing.T, file string, each func(line []byte)) {
	t.Helper()
	log, err := os.Open(file)
	must(t, err)
	defer func() { _ = log.Close() }()
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		each(scanner.Bytes())
	}
	must(t, scanner.Err())
}
