package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// noAudit keeps no records.
type noAudit struct{}

func (noAudit) Write(audit.Record) {}

const (
	tool   = "system:serviceaccount:gitops:argocd"
	person = "alice"
	where  = "openshift-machine-api"
)

// decided is a decision about a Machine with one finding.
func decided(user, machine string, rule quorum.Rule, verdict admission.Verdict, text string) webhooks.Record {
	return webhooks.Record{
		Admission: &admissionv1.AdmissionRequest{
			Resource:  metav1.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"},
			Namespace: where, Name: machine,
		},
		Request: admission.Request{
			Operation: admission.OperationUpdate, User: admission.User{Name: user}, Namespace: where, Old: &quorum.Machine{Name: machine, UID: "uid-of-" + machine},
		},
		Decision: admission.Decision{Findings: []admission.Finding{{Rule: rule, Verdict: verdict, Lines: []string{text}}}},
	}
}

// fight is 50 strips by a tool and 5 by a person, each with a text of its own, and a dry run, which
// leaves no trace. Pause comes after each request.
func fight(r *Recorder, pause func()) {
	for i := range 50 {
		r.Decided(context.Background(), decided(tool, "master-0", quorum.RuleKeepHook, admission.VerdictRepaired, fmt.Sprintf("strip %d", i)))
		pause()
		if i%10 == 0 {
			r.Decided(context.Background(), decided(person, "master-0", quorum.RuleKeepHook, admission.VerdictRepaired, fmt.Sprintf("by hand %d", i)))
			pause()
		}
	}
	dry := decided("bob", "master-0", quorum.RuleKeepHook, admission.VerdictRepaired, "only a question")
	dry.Admission.DryRun = new(true)
	r.Decided(context.Background(), dry)
}

// TestFightIsOneEvent has a real API server store the Events of a fight: one for each user.
func TestFightIsOneEvent(t *testing.T) {
	t.Parallel()
	api, err := kubernetes.NewForConfig(apiserver.Start(t).Config)
	must(t, err)
	_, err = api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: where}}, metav1.CreateOptions{})
	must(t, err)

	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: api.EventsV1()})
	must(t, broadcaster.StartRecordingToSinkWithContext(t.Context()))
	t.Cleanup(broadcaster.Shutdown)
	r := &Recorder{Events: broadcaster.NewRecorder(scheme.Scheme, "holdfast"), Audit: noAudit{}, Log: logr.Discard()}
	fight(r, func() {})
	// Texts hold names, which can be long.
	long := strings.Repeat("m", 250)
	r.Decided(t.Context(), decided(person, long, quorum.RuleEscapeHatch, admission.VerdictAllowed, strings.Repeat(long+"é ", 5)))

	gomega.NewWithT(t).Eventually(t.Context(), func() error {
		list, err := api.EventsV1().Events(where).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, e := range list.Items {
			if e.Regarding.Name != long && (e.Series == nil || e.Series.Count < 2 || !strings.Contains(e.Note, "UPDATE by "+e.Related.Name)) {
				return fmt.Errorf("the series %+v of %q", e.Series, e.Note)
			}
			got = append(got, fmt.Sprintf("%s %s by %s %s about %s", e.Type, e.Reason, e.Related.Kind, e.Related.Name, e.Regarding.UID))
		}
		want := []string{
			"Warning EscapeHatchUsed by User alice about uid-of-" + long,
			"Warning HookRestored by User alice about uid-of-master-0",
			"Warning HookRestored by User " + tool + " about uid-of-master-0",
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	}).WithTimeout(2 * time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// kept is what an API server would have stored of Events.
type kept struct {
	mu     sync.Mutex
	events map[string]*eventsv1.Event
	writes int
}

func (k *kept) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	if k.events[e.Name] != nil {
		return nil, apierrors.NewAlreadyExists(eventsv1.Resource("events"), e.Name)
	}
	k.events[e.Name] = e
	return e, nil
}

func (k *kept) Update(context.Context, *eventsv1.Event) (*eventsv1.Event, error) {
	return nil, errors.New("nobody updates Events")
}

func (k *kept) Patch(_ context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	was := k.events[e.Name]
	if was == nil {
		return nil, apierrors.NewNotFound(eventsv1.Resource("events"), e.Name)
	}
	old, err := json.Marshal(was)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(old, data, eventsv1.Event{})
	if err != nil {
		return nil, err
	}
	now := &eventsv1.Event{}
	k.events[e.Name] = now
	return now, json.Unmarshal(merged, now)
}

// TestFightIsCounted: once a fight has rested, its Event has the count, and few writes were made of it.
func TestFightIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &kept{events: map[string]*eventsv1.Event{}}
		ctx, cancel := context.WithCancel(t.Context())
		broadcaster := events.NewBroadcaster(store)
		must(t, broadcaster.StartRecordingToSinkWithContext(ctx))
		r := &Recorder{Events: broadcaster.NewRecorder(scheme.Scheme, "holdfast"), Audit: noAudit{}, Log: logr.Discard()}
		// The bubble's time. Events are named by theirs.
		fight(r, func() { <-time.After(time.Second) })
		<-time.After(15 * time.Minute)
		synctest.Wait()
		broadcaster.Shutdown()
		cancel()
		synctest.Wait()

		counts := map[string]int32{}
		for _, e := range store.events {
			counts[e.Related.Name] += e.Series.Count
		}
		if want := map[string]int32{tool: 50, person: 5}; len(store.events) != 2 || !maps.Equal(counts, want) {
			t.Errorf("%d Events with counts %v, want two with %v", len(store.events), counts, want)
		}
		if store.writes > 8 {
			t.Errorf("%d writes", store.writes)
		}
	})
}

// TestNote: an Event with a longer note would be refused.
func TestNote(t *testing.T) {
	if got := quorum.Clip(strings.Repeat("é", 1000), noteLimit); len(got) > 1024 || !strings.HasSuffix(got, "é ...") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// records keeps them.
type records []audit.Record

func (r *records) Write(one audit.Record) { *r = append(*r, one) }

// TestReleaseReason: the record of a release has the reason that the person gave, and other records have none.
func TestReleaseReason(t *testing.T) {
	raw := func(reason string) []byte {
		return []byte(`{"metadata":{"annotations":{"holdfast.dev/release-reason":"` + reason + `"}}}`)
	}
	for _, c := range []struct {
		rule    quorum.Rule
		verdict admission.Verdict
		raw     []byte
		want    string
		was     []byte
	}{
		{quorum.RuleEscapeHatch, admission.VerdictAllowed, raw("it burnt down"), "it burnt down", nil},
		{quorum.RuleEscapeHatch, admission.VerdictDenied, raw("it burnt down"), "it burnt down", nil},
		{quorum.RuleEscapeHatch, admission.VerdictAllowed, raw(strings.Repeat("x", 3000)), strings.Repeat("x", noteLimit) + " ...", nil},
		{quorum.RuleEscapeHatch, admission.VerdictAllowed, []byte(`{"metadata":{}}`), "", nil},
		{quorum.RuleEscapeHatch, admission.VerdictAllowed, []byte(`{"metadata":{"annotations":7}}`), "", nil},
		{quorum.RuleEscapeHatch, admission.VerdictAllowed, nil, "", nil},
		{quorum.RuleEscapeHatch, admission.VerdictAllowed, raw("it burnt down"), "it burnt down", raw("a tool's")},
		{quorum.RuleEscapeHatch, admission.VerdictAllowed, raw("a tool's"), "", raw("a tool's")},
		{quorum.RuleAutomationRelease, admission.VerdictRepaired, raw("an old one"), "", nil},
	} {
		kept := &records{}
		request := decided(person, "master-0", c.rule, c.verdict, "x")
		request.Admission.Object.Raw, request.Admission.OldObject.Raw = c.raw, c.was
		(&Recorder{Events: events.NewFakeRecorder(1), Audit: kept, Log: logr.Discard()}).Decided(t.Context(), request)
		if got := (*kept)[0].ReleaseReason; got != c.want {
			t.Errorf("%s of %s: %q, not %q", c.rule, c.raw, got, c.want)
		}
	}
}

// TestAbandoned: of a decision that nobody waited for any more nothing came, so it makes no Event, and
// its record says so.
func TestAbandoned(t *testing.T) {
	seen, kept := events.NewFakeRecorder(2), &records{}
	r := &Recorder{Events: seen, Audit: kept, Log: logr.Discard()}
	request := decided(person, "master-0", quorum.RuleEscapeHatch, admission.VerdictAllowed, "by hand")
	ctx, hangUp := context.WithCancel(t.Context())
	r.Decided(ctx, request)
	hangUp()
	r.Decided(ctx, request)
	if len(seen.Events) != 1 {
		t.Errorf("%d Events, want one", len(seen.Events))
	}
	if len(*kept) != 2 || (*kept)[0].Abandoned || !(*kept)[1].Abandoned {
		t.Errorf("records %+v", *kept)
	}
}

// TestNotEnforced: what passed although a rule denies or repairs it is recorded as that.
func TestNotEnforced(t *testing.T) {
	seen, kept := events.NewFakeRecorder(3), &records{}
	r := &Recorder{Enforcement: admission.Warn, Events: seen, Audit: kept, Log: logr.Discard()}
	r.Decided(t.Context(), decided(person, "master-0", quorum.RuleOneTooMany, admission.VerdictDenied, "no"))
	r.Decided(t.Context(), decided(person, "master-0", quorum.RuleHeld, admission.VerdictAllowed, "held"))
	if first, second := <-seen.Events, <-seen.Events; !strings.HasPrefix(first, "Warning NotEnforced ") || !strings.Contains(first, "--enforcement=warn") || !strings.HasPrefix(second, "Normal DeletionHeld ") {
		t.Errorf("Events %q and %q", first, second)
	}
	if len(*kept) != 2 || (*kept)[0].Enforcement != admission.Warn {
		t.Errorf("records %+v", *kept)
	}
}
