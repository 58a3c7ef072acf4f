package controller

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestLedger: the ledger is made where there is none, made anew where it cannot be read or written, with what could be read, and
// written only as it was read.
func TestLedger(t *testing.T) {
	good := quorum.Release{Machine: "master-0", UID: "uid-0", Members: []quorum.MemberID{0xa0}, At: time.Unix(1e9, 0).UTC(), By: "alice"}
	key := metav1.ObjectMeta{Namespace: "n", Name: machineapi.LedgerName}
	garbled := machineapi.FormatLedger([]quorum.Release{good})
	garbled["uid-1"] = "garbage"
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	for name, c := range map[string]struct {
		there   *corev1.ConfigMap
		why     string
		entries []quorum.Release
	}{
		"missing":   {},
		"garbled":   {&corev1.ConfigMap{ObjectMeta: key, Data: garbled}, "release uid-1", []quorum.Release{good}},
		"immutable": {&corev1.ConfigMap{ObjectMeta: key, Immutable: new(true), Data: machineapi.FormatLedger([]quorum.Release{good})}, "immutable", []quorum.Release{good}},
	} {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder().WithScheme(scheme)
			if c.there != nil {
				builder.WithObjects(c.there)
			}
			api := builder.Build()
			r := &Reconciler{Client: api, Observer: &observe.Observer{API: api, Namespace: "n"}, Log: logr.Discard()}
			s := &quorum.Snapshot{}
			read := func() {
				var err error
				s.Ledger, err = r.Observer.Ledger(t.Context())
				must(t, err)
			}
			read()
			if !strings.Contains(s.Ledger.Why, c.why) || c.why == "" && s.Ledger.Version != "" || !reflect.DeepEqual(s.Ledger.Entries, c.entries) {
				t.Fatalf("it is read as %+v", s.Ledger)
			}
			wrote, err := r.keepLedger(t.Context(), s, s.Ledger.Entries)
			if c.entries == nil {
				wrote, err = r.keepLedger(t.Context(), s, []quorum.Release{})
			}
			if !wrote || err != nil {
				t.Fatalf("wrote %t, %v", wrote, err)
			}
			read()
			if s.Ledger.Why != "" || s.Ledger.Version == "" || !reflect.DeepEqual(s.Ledger.Entries, c.entries) {
				t.Fatalf("it is made anew as %+v", s.Ledger)
			}
			if wrote, err := r.keepLedger(t.Context(), s, append([]quorum.Release{}, s.Ledger.Entries...)); wrote || err != nil {
				t.Errorf("written again: %t, %v", wrote, err)
			}
			before := *s
			next := quorum.Release{Machine: "master-2", UID: "uid-2"}
			must(t, r.record(t.Context(), s, next))
			if err := r.record(t.Context(), &before, next); !errors.As(err, new(notYet)) {
				t.Errorf("recorded on what was read before another release: %v", err)
			}
			if wrote, err := r.keepLedger(t.Context(), &before, append([]quorum.Release{next}, before.Ledger.Entries...)); wrote || !errors.As(err, new(notYet)) {
				t.Errorf("kept as it was read before another release: %t, %v", wrote, err)
			}
			// As where Holdfast may not read it: an error, so that a person is told, and the round goes on.
			if wrote, err := r.keepLedger(t.Context(), &quorum.Snapshot{}, []quorum.Release{}); wrote || err == nil || errors.As(err, new(notYet)) {
				t.Errorf("created where it is: %t, %v", wrote, err)
			}
		})
	}
}

// TestFinalReleaseLocks: in full mode a final release is made under the membership lock, and not made without it.
func TestFinalReleaseLocks(t *testing.T) {
	meters := NewMetrics(prometheus.NewRegistry())
	r := &Reconciler{Etcd: &fixedRing{}, Reports: Reports{Metrics: meters}, Log: logr.Discard()} // no client: nothing is written
	s := &quorum.Snapshot{Mode: quorum.ModeFull, Ring: quorum.Ring{Known: true}}
	r.act(t.Context(), s, &membership.Plan{Actions: []membership.Action{{Machine: "master-0", UID: "uid-0", Change: membership.ReleaseHook{Latch: true, Final: true}}}}, nil)
	if got := testutil.ToFloat64(meters.actions.WithLabelValues("release-hook", "not-yet")); got != 1 {
		t.Errorf("%v releases wait for the lock, not one", got)
	}
}
