package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

// reportOf is the ConfigMap that Holdfast writes of a snapshot file's ring, as of a time.
func reportOf(t *testing.T, ring string, at time.Time, change func(*quorum.Snapshot)) *corev1.ConfigMap {
	t.Helper()
	v, err := readFile(t.Context(), terminal{}, "testdata/snapshots/"+ring+".yaml")
	if err != nil {
		t.Fatal(err)
	}
	v.Now = at
	if change != nil {
		change(v.Snapshot)
	}
	data, err := snapshotfile.RingData(v.Snapshot, "holdfast-5d8f-x2x/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: "holdfast-ring"}, Data: data}
}

// TestRingReport: what the commands say about etcd as Holdfast reported it, to somebody who has kubectl alone.
func TestRingReport(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	now := noon().Add(time.Minute)
	fresh := reportOf(t, "waiting", now.Add(-3*time.Second), nil)
	forbidden := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if key.Name == snapshotfile.RingName {
			return apierrors.NewForbidden(corev1.Resource("configmaps"), key.Name, errors.New("no"))
		}
		return c.Get(ctx, key, o, options...)
	}}
	elsewhere := fresh.DeepCopy()
	elsewhere.Namespace = "guard"
	for name, c := range map[string]struct {
		args   string
		report *corev1.ConfigMap
		funcs  interceptor.Funcs
		ring   string // as the etcd that the command asks has it
		status int
	}{
		"ringreport-status":    {args: "status", report: fresh},
		"ringreport-elsewhere": {args: "status --holdfast-namespace guard", report: elsewhere},
		"ringreport-explain":   {args: "explain master-1", report: fresh},
		"ringreport-release":   {args: "release master-1 --reason ticket --confirm master-1 --dry-run", report: fresh},
		"ringreport-last":      {args: "release master-1 --reason ticket --confirm master-1", report: reportOf(t, "last", now, nil), status: 1},
		"ringreport-overrides": {args: "status --mode guard --desired-replicas 1", report: fresh},
		// Another Machine of a voter is being deleted: by default one too many, by Holdfast's own flags not.
		"ringreport-limits":  {args: "explain master-0", report: reportOf(t, "waiting", now, func(s *quorum.Snapshot) { s.Limits.MaxDeleting = 0 })},
		"ringreport-default": {args: "explain master-0", report: fresh},
		"ringreport-json":    {args: "explain master-1 -o json", report: reportOf(t, "waiting", now.Add(-2*time.Hour), nil)},
		"ringreport-guard":   {args: "status", report: reportOf(t, "waiting", now, func(s *quorum.Snapshot) { s.Mode = quorum.ModeGuard })},
		"ringreport-desired": {args: "status", report: reportOf(t, "waiting", now, func(s *quorum.Snapshot) {
			s.Desired, s.DesiredWhy = 0, "the install-config cannot be read"
		})},
		"ringreport-unknown": {args: "explain master-1", report: reportOf(t, "waiting", now, func(s *quorum.Snapshot) { s.Ring = quorum.Ring{Why: "no answer in time"} })},
		// A report that is too old, from the future or garbled is ignored.
		"ringreport-old":    {args: "status", report: reportOf(t, "waiting", now.Add(-61*time.Second), nil)},
		"ringreport-ahead":  {args: "status", report: reportOf(t, "waiting", now.Add(10*time.Minute), nil)},
		"ringreport-broken": {args: "explain master-1", report: &corev1.ConfigMap{ObjectMeta: fresh.ObjectMeta, Data: map[string]string{"snapshot.yaml": "a: }{\n\x1b[2J"}}},
		// Endpoints of a terminal that was open over some replacements.
		"ringreport-stale-endpoints": {args: "release master-1 --reason ticket --dry-run --endpoints https://10.0.0.1:2379", report: reportOf(t, "last", now, nil), ring: "unknown", status: 1},
		"ringreport-empty":           {args: "status", report: &corev1.ConfigMap{ObjectMeta: fresh.ObjectMeta}},
		"ringreport-forbidden":       {args: "status", report: fresh, funcs: forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			api := memory(t, "alice", c.funcs, append(controlPlane(), c.report)...)
			var out, errs bytes.Buffer
			status := execute(t.Context(), strings.Fields(c.args), terminal{strings.NewReader(""), &out, &errs, func() time.Time { return now }, fakes{api, c.ring}})
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast "+c.args+"\n"+out.String()+errs.String())
		})
	}
}

// TestPromotedMeanwhile: the records say that a member votes a moment before Holdfast tells of the ring in which it does. That is no
// contradiction; one that stays is.
func TestPromotedMeanwhile(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	now := noon().Add(time.Minute)
	ring := func(learner bool) *corev1.ConfigMap {
		return reportOf(t, "waiting", now, func(s *quorum.Snapshot) { s.Ring.Member(0xa2).Learner = learner })
	}
	records := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: machineapi.RecordsName},
		Data: machineapi.FormatRecords([]quorum.Evidence{{MachineUID: "uid-2", Machine: "master-2", MemberIDs: []quorum.MemberID{0xa2}, Voted: true}})}
	for _, reported := range []bool{true, false} {
		var looks atomic.Int32
		api := memory(t, "alice", interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if err := c.Get(ctx, key, o, options...); err != nil || key.Name != snapshotfile.RingName {
				return err
			}
			if looks.Add(1) > 1 && reported {
				ring(false).DeepCopyInto(o.(*corev1.ConfigMap))
			}
			return nil
		}}, append(controlPlane(), ring(true), records)...)
		var out, errs bytes.Buffer
		status := execute(t.Context(), []string{"status"}, terminal{strings.NewReader(""), &out, &errs, func() time.Time { return now }, fakes{api, ""}})
		if says := strings.Contains(out.String(), "VoterListedAsLearner"); status != 0 || says == reported {
			t.Errorf("reported: %v, after %d looks: %d, %s%s", reported, looks.Load(), status, out.String(), errs.String())
		}
	}
}

// TestClock: a computer whose clock is wrong takes the API server's, or all that Holdfast tells would be old.
func TestClock(t *testing.T) {
	for _, c := range []struct{ server, want time.Time }{
		{time.Time{}, noon()},                                        // it says nothing
		{noon().Add(-2 * time.Second), noon()},                       // whole seconds, and a request takes time
		{noon().Add(10 * time.Minute), noon().Add(10 * time.Minute)}, // ours is late
		{noon().Add(-time.Hour), noon().Add(-time.Hour)},
	} {
		clock := passive{now: noon}
		clock.set(c.server)
		if got := clock.Now(); !got.Equal(c.want) {
			t.Errorf("the API server's is %s: %s, not %s", c.server, got, c.want)
		}
	}
}

// FuzzTold: whatever stands in the ConfigMap, nothing is claimed to be releasable that would not
// be without it.
func FuzzTold(f *testing.F) {
	f.Add("", "")
	f.Add("kind: Snapshot\n", "x")
	f.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	f.Fuzz(func(t *testing.T, text, by string) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: "holdfast-ring"}, Data: map[string]string{"snapshot.yaml": text, "by": by}}
		var out, errs bytes.Buffer
		if status := execute(t.Context(), []string{"status"}, terminal{nil, &out, &errs, noon, fakes{memory(t, "alice", interceptor.Funcs{}, append(controlPlane(), cm)...), ""}}); status != 0 {
			t.Errorf("status %d: %s", status, errs.String())
		}
		if strings.ContainsRune(out.String(), '\x1b') || strings.Contains(out.String(), "release-hook") {
			t.Errorf("it says %s", out.String())
		}
	})
}

// TestCompletion: commands, and a script for each shell.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"exp": "explain\tSay why a Machine is held or free, what comes next, and what its deletion would do now\n:4\n",
	} {
		var out bytes.Buffer
		line := append([]string{"__complete"}, strings.Split(args, " ")...)
		if status := execute(t.Context(), line, terminal{nil, &out, io.Discard, noon, fakes{}}); status != 0 || out.String() != want {
			t.Errorf("%q: status %d, %q, not %q", args, status, out.String(), want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if status, stdout, stderr := typed(t, nil, "completion", shell); status != 0 || !strings.Contains(stdout, "kubectl-holdfast") || stderr != "" {
			t.Errorf("%s: status %d, %d bytes, %s", shell, status, len(stdout), stderr)
		}
	}
}

// TestHelp: each command says what it does, with examples.
func TestHelp(t *testing.T) {
	for _, name := range []string{"ETCDCTL_ENDPOINTS", "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"} {
		t.Setenv(name, "")
	}
	_, help, _ := typed(t, nil, "--help")
	_, list, _ := strings.Cut(help, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		command := strings.Fields(line)[0]
		if _, stdout, _ := typed(t, nil, command, "--help"); command != "help" && command != "completion" && !strings.Contains(stdout, "Examples:\n  ") {
			t.Errorf("the help of %s has no example", command)
		}
	}
	for _, command := range []string{"", "status", "explain", "simulate", "replace", "release", "audit", "version"} {
		args := append(strings.Fields(command), "--help")
		status, stdout, stderr := typed(t, nil, args...)
		if status != 0 || stderr != "" {
			t.Errorf("%s: status %d, %s", command, status, stderr)
		}
		name := "help"
		if command != "" {
			name += "-" + command
		}
		golden(t, name+".txt", "$ kubectl holdfast "+strings.Join(args, " ")+"\n"+stdout)
	}
}

// TestWithoutAPI: where the API server does not answer, a command names the runbook, and fails.
func TestWithoutAPI(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	away := interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
		return context.DeadlineExceeded
	}}
	c := fake.NewClientBuilder().WithScheme(kinds()).WithInterceptorFuncs(away).Build()
	var out, errs bytes.Buffer
	status := execute(t.Context(), []string{"status"}, terminal{nil, &out, &errs, noon, fakes{c, ""}})
	if status != 1 || out.Len() > 0 || !strings.Contains(errs.String(), runbook) {
		t.Errorf("status %d: %s%s", status, out.String(), errs.String())
	}
}

// TestRingReportSince: since when a member is unhealthy comes from what Holdfast reported, not what this command saw.
func TestRingReportSince(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	now := noon().Add(10 * time.Minute)
	report := reportOf(t, "sick", now.Add(-3*time.Second), func(s *quorum.Snapshot) {
		for i := range s.Ring.Members {
			s.Ring.Members[i].Since = noon()
		}
	})
	api := memory(t, "alice", interceptor.Funcs{}, append(controlPlane(), report)...)
	var out, errs bytes.Buffer
	if status := execute(t.Context(), []string{"status"}, terminal{nil, &out, &errs, func() time.Time { return now }, fakes{api, ""}}); status != 0 || !strings.Contains(out.String(), "unhealthy for 10m") {
		t.Errorf("status %d: %s%s", status, out.String(), errs.String())
	}
}

// TestUnanswered: a refusal is an answer, and leads to no runbook.
func TestUnanswered(t *testing.T) {
	for err, want := range map[error]bool{
		apierrors.NewUnauthorized("who are you"):                            false,
		apierrors.NewForbidden(corev1.Resource("x"), "x", errors.New("no")): false,
		apierrors.NewTimeoutError("etcd", 1):                                true,
		context.DeadlineExceeded:                                            true,
		errors.New("connection refused"):                                    true,
	} {
		if got := strings.Contains(unanswered(err).Error(), runbook); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
	for value, want := range map[string]bool{"...": true, "<type>": true, "[]": false, "{}": false, "": false, "m5.large": false} {
		if placeholder(value) != want {
			t.Errorf("%q: %t", value, !want)
		}
	}
}

// TestAgeless: an age that grows is nothing new.
func TestAgeless(t *testing.T) {
	for _, same := range []string{"held for 10m", "held for 2h3m", "seen 30s ago", "for 3d"} {
		if strings.ContainsAny(ageless(same), "0123456789") {
			t.Errorf("the age stays in %q: %q", same, ageless(same))
		}
	}
	if ageless("2 of 3 voters") != "2 of 3 voters" || ageless("node-3s1") != "node-3s1" {
		t.Error("what is no age goes, too")
	}
}
