package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

var update = flag.Bool("update", false, "write the golden files anew")

// record is a denied DELETE, by a person who has a name for it.
func record(uid string) Record {
	return Record{
		RequestUID: types.UID(uid), Received: time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC),
		User: authenticationv1.UserInfo{
			Username: "alice", UID: "u-1", Groups: []string{"admins", "system:authenticated"},
			Extra: map[string]authenticationv1.ExtraValue{"scopes.authorization.openshift.io": {"user:full"}},
		},
		Operation: admission.OperationDelete,
		Object: auditapi.ObjectReference{
			APIGroup: "machine.openshift.io", APIVersion: "v1beta1", Resource: "machines",
			Namespace: "openshift-machine-api", Name: "master-0", UID: "m-0", ResourceVersion: "4711",
		},
		Decision: admission.Decision{Findings: []admission.Finding{{
			Rule: quorum.RuleOneTooMany, Verdict: admission.VerdictDenied, Lines: []string{"Refused (one-too-many): Machine master-1 is going already.", "Wait."},
		}}},
	}
}

// repaired is one round of a tool that strips the hook.
func repaired(uid, user, machine string) Record {
	r := record(uid)
	r.Received = time.Now()
	r.Operation, r.FieldManager = admission.OperationUpdate, "argocd-controller"
	r.User = authenticationv1.UserInfo{Username: user}
	r.Object.Name, r.Object.UID = machine, types.UID("uid-of-"+machine)
	r.Decision.Findings = []admission.Finding{{Rule: quorum.RuleKeepHook, Verdict: admission.VerdictRepaired, Lines: []string{"Holdfast put it back."}}}
	return r
}

func options(path string) Options {
	o := NewOptions()
	o.Registerer, o.Log = prometheus.NewRegistry(), logr.Discard()
	if path != "" {
		o.LogPaths = []string{path}
	}
	return o
}

// sink is one of the options, closed when the test ends.
func sink(t *testing.T, o Options) *Sink {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && !errors.Is(err, t.Context().Err()) {
			t.Error(err)
		}
	})
	return s
}

// patient is a sink that gives up on no write, however busy the computer is.
func patient(t *testing.T, o Options) *Sink {
	t.Helper()
	s := sink(t, o)
	for _, l := range s.locals {
		l.out.patience = time.Minute
	}
	return s
}

// entries reads logs back; a line that is no record fails the test unless it is expected.
func entries(t *testing.T, bad int, paths ...string) []Entry {
	t.Helper()
	var out []Entry
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		tally, err := Read(f, func(e Entry) { out = append(out, e) }, func(int, error) {})
		f.Close()
		if err != nil || tally.Bad > bad || tally.Foreign > 0 {
			t.Fatalf("%s: %+v, %v", path, tally, err)
		}
	}
	return out
}

func uids(list []Entry) []string {
	var out []string
	for i := range list {
		out = append(out, string(list[i].AuditID))
	}
	return out
}

func counts(t *testing.T, s *Sink, want string) {
	t.Helper()
	value := testutil.ToFloat64
	got := fmt.Sprintf("written %v errors %v repeated %v", value(s.locals[0].counters.events), value(s.locals[0].counters.errors), value(s.repeated))
	if s.remote != nil {
		got += fmt.Sprintf("; sent %v dropped %v", value(s.remote.counters.events), value(s.remote.counters.dropped))
	}
	if got != want {
		t.Errorf("counted: %s\n   want: %s", got, want)
	}
}

func TestEvent(t *testing.T) {
	down := record("denied")
	down.Snapshot = &quorum.Snapshot{
		Now: time.Date(2026, 3, 1, 12, 0, 0, 5000000, time.UTC), Desired: 3,
		Ring: quorum.Ring{Known: true, Leader: 0xa1, Members: []quorum.Member{
			{ID: 0xa0, Name: "master-0", PeerURLs: []string{"https://10.0.0.1:2380"}, Healthy: true}, {ID: 0xa1, Name: "master-1", Healthy: true},
			{ID: 0xa2, Name: "master-2", Why: "its endpoint does not answer"}, {ID: 0xa3, Learner: true, Healthy: true},
		}},
		Machines: []quorum.Machine{{Name: "master-0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, {Name: "master-1", DeletedAt: time.Unix(1, 0)}},
	}
	lifted := record("overridden")
	lifted.Override, lifted.OverrideBy = "one-too-many: the rack burns", "bob"
	lifted.Decision.Findings = []admission.Finding{
		{Rule: quorum.RuleOneTooMany, Verdict: admission.VerdictOverridden, Lines: []string{"Lifted by bob."}},
		{Rule: quorum.RuleHeld, Verdict: admission.VerdictAllowed, Lines: []string{"Held."}},
	}
	lifted.Snapshot = &quorum.Snapshot{DesiredWhy: "no install-config", Ring: quorum.Ring{Why: "etcd did not answer within 1 s"}}
	put := repaired("repaired", "system:serviceaccount:gitops:argocd", "master-0")
	put.Received = record("").Received
	late := record("abandoned") // by the API server, which did not wait any more
	late.Abandoned = true
	late.ReleaseReason = "the host burnt down"
	passed := record("not enforced")
	passed.Enforcement = admission.Warn

	synctest.Test(t, func(t *testing.T) { // for the clock
		var out bytes.Buffer
		o := options("-")
		o.Stdout = &out
		s := sink(t, o)
		for _, r := range []Record{down, lifted, put, late, passed} {
			s.Write(r)
		}
		var got bytes.Buffer
		for line := range strings.Lines(out.String()) {
			if err := json.Indent(&got, []byte(line), "", "  "); err != nil {
				t.Fatal(err)
			}
		}
		golden(t, "events.json", got.Bytes())
	})
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not so any more (-want +got; -update writes it anew):\n%s", path, diff)
	}
}

func TestNoRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	s := sink(t, options(path))
	dry := record("dry")
	dry.DryRun = true
	s.Write(dry)
	nothing := record("nothing")
	nothing.Decision = admission.Decision{}
	s.Write(nothing)
	counts(t, s, "written 0 errors 0 repeated 0")

	none := sink(t, options(""))
	none.Write(record("a"))
	if err := none.Ready(); err != nil {
		t.Error(err)
	}
}

func TestRotationAndCompression(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	o := options(path)
	o.LogMaxSize, o.LogCompress = 1, true
	s := patient(t, o)
	var want []string
	for i := range 40 { // 100 KB each
		r := record(fmt.Sprint(i))
		r.Decision.Findings[0].Lines = []string{strings.Repeat("a long story. ", 7000)}
		s.Write(r)
		want = append(want, fmt.Sprint(i))
	}
	g := gomega.NewWithT(t)
	var files []string
	g.Eventually(func() (rotated bool) {
		files, _ = filepath.Glob(filepath.Join(dir, "audit*")) // by time: audit.log comes last
		return len(files) > 3 && !slices.ContainsFunc(files[:len(files)-1], func(f string) bool { return !strings.HasSuffix(f, ".log.gz") })
	}).WithTimeout(2*time.Minute).Should(gomega.BeTrue(), "rotated files are compressed")
	if diff := cmp.Diff(want, uids(entries(t, 0, files...))); diff != "" {
		t.Error(diff)
	}
	for _, f := range files { // users' words are in them
		if info, err := os.Stat(f); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", f, info.Mode(), err)
		}
	}
	counts(t, s, "written 40 errors 0 repeated 0")
}

func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	inTheWay := filepath.Join(dir, "log")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(inTheWay, "audit.log")
	s := sink(t, options(path))
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("ready from the start: %v", err)
	}
	s.Write(record("lost"))
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("ready: %v", err)
	}
	counts(t, s, "written 0 errors 1 repeated 0")

	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(); err != nil {
		t.Errorf("the path is free now: %v", err)
	}
	s.Write(record("kept"))
	if diff := cmp.Diff([]string{"kept"}, uids(entries(t, 0, path))); diff != "" {
		t.Error(diff)
	}
}

func TestDevices(t *testing.T) {
	full := sink(t, options("/dev/full"))
	full.Write(record("a"))
	if err := full.Ready(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("/dev/full: %v", err)
	}
	counts(t, full, "written 0 errors 1 repeated 0")

	o := options("/dev/null")
	o.LogMaxSize = 1
	null := sink(t, o)
	for range 30 { // more than a MB: rotating would rename the device
		r := record("a")
		r.Decision.Findings[0].Lines = []string{strings.Repeat("a long story. ", 7000)}
		null.Write(r)
	}
	counts(t, null, "written 30 errors 0 repeated 0")
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode().IsRegular() {
		t.Errorf("/dev/null is %v, %v", info, err)
	}
}

// disk is a writer with so much space.
type disk struct {
	bytes.Buffer
	space int
}

func (d *disk) Write(p []byte) (int, error) {
	n := min(len(p), d.space)
	d.space -= n
	d.Buffer.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func TestFullDisk(t *testing.T) {
	o := options("-")
	d := &disk{space: 100}
	o.Stdout = d
	s := sink(t, o)
	s.Write(record("cut off"))
	s.Write(record("not at all"))
	if err := s.Ready(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("ready: %v", err)
	}
	d.space = 1 << 20
	if err := s.Ready(); err != nil {
		t.Errorf("there is space now: %v", err)
	}
	s.Write(record("whole"))
	counts(t, s, "written 1 errors 2 repeated 0")
	var got []Entry
	tally, err := Read(&d.Buffer, func(e Entry) { got = append(got, e) }, func(int, error) {})
	if err != nil || (tally != Tally{Ours: 1, Bad: 1}) || got[0].AuditID != "whole" {
		t.Errorf("read %+v, %v", tally, err)
	}
}

// TestTorn: the file ends in half a record, left by a crash, and the next one is whole.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(`{"kind":"Event","apiVer`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := sink(t, options(path))
	s.Write(record("a"))
	s.Write(record("b"))
	if diff := cmp.Diff([]string{"a", "b"}, uids(entries(t, 1, path))); diff != "" {
		t.Error(diff)
	}
}

// stuck is a pipe that nobody reads until it is let go.
type stuck struct {
	disk
	letGo chan struct{}
}

func (w *stuck) Write(p []byte) (int, error) {
	<-w.letGo
	return w.disk.Write(p)
}

func TestHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("-")
		w := &stuck{disk: disk{space: 1 << 20}, letGo: make(chan struct{})}
		o.Stdout = w
		s := sink(t, o)
		start := time.Now()
		s.Write(record("a"))
		if took := time.Since(start); took != writeTimeout {
			t.Errorf("the first waited %s", took)
		}
		start = time.Now()
		s.Write(record("b"))
		if took := time.Since(start); took != 0 {
			t.Errorf("the second waited %s although the first still does", took)
		}
		if err := s.Ready(); !errors.Is(err, errHangs) {
			t.Errorf("ready: %v", err)
		}
		close(w.letGo)
		synctest.Wait()
		if err := s.Ready(); err != nil {
			t.Errorf("it is written again: %v", err)
		}
		s.Write(record("c"))
		counts(t, s, "written 1 errors 2 repeated 0")
		var got []Entry
		if _, err := Read(&w.Buffer, func(e Entry) { got = append(got, e) }, func(int, error) {}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a", "c"}, uids(got)); diff != "" { // a was late, not lost
			t.Error(diff)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	o := options(path)
	o.LogMaxSize = 1
	s := patient(t, o)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 200 {
				s.Write(record(fmt.Sprintf("%d-%d", i, j)))
				s.Write(repaired("r", fmt.Sprint("user-", j), "master-0"))
			}
		})
	}
	group.Wait()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "audit*"))
	if err != nil {
		t.Fatal(err)
	}
	denied, repairs := map[types.UID]int{}, 0
	for _, e := range entries(t, 0, files...) {
		if e.Verdicts()[0] == "denied" {
			denied[e.AuditID]++
		} else {
			repairs += e.Count()
		}
	}
	if len(files) < 2 || len(denied) != 1600 || repairs != 1600 {
		t.Errorf("%d files, %d denials, %d repairs", len(files), len(denied), repairs)
	}
}

// TestTwoLogs: each has every record, and what ails one of them is nothing to the other.
func TestTwoLogs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "not", "there", "audit.log")
	if err := os.WriteFile(filepath.Join(dir, "not"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := options("-")
	o.LogPaths, o.Stdout = append(o.LogPaths, path), &out
	s := patient(t, o)
	s.Write(record("a"))
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("ready: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "not")); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	s.Write(record("b"))
	counts(t, s, "written 3 errors 1 repeated 0")
	var got []Entry
	if _, err := Read(&out, func(e Entry) { got = append(got, e) }, func(_ int, err error) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, uids(got)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b"}, uids(entries(t, 0, path))); diff != "" {
		t.Error(diff)
	}
}

// hung takes no write until it is closed. Two logs may share it.
type hung chan struct{}

func (w hung) Write(p []byte) (int, error) {
	<-w
	return len(p), nil
}

// TestBothHang: an answer waits for two logs that hang as long as for one.
func TestBothHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("-")
		w := make(hung)
		o.LogPaths, o.Stdout = []string{"-", "-"}, w
		s := sink(t, o)
		start := time.Now()
		s.Write(record("a"))
		if took := time.Since(start); took != writeTimeout {
			t.Errorf("the first waited %s", took)
		}
		start = time.Now()
		s.Write(record("b"))
		if took := time.Since(start); took != 0 {
			t.Errorf("the second waited %s", took)
		}
		counts(t, s, "written 0 errors 4 repeated 0")
		close(w)
		synctest.Wait()
	})
}

// TestSharedHost: two replicas are given one file, and rotate. Each writes its own, so that no record is lost or torn.
func TestSharedHost(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	var both [2]*Sink
	for i := range both {
		o := options(path)
		o.LogMaxSize = 1
		both[i] = patient(t, o)
	}
	var want []string
	for i := range 40 { // 100 KB each
		r := record(fmt.Sprint(i))
		r.Decision.Findings[0].Lines = []string{strings.Repeat("a long story. ", 7000)}
		both[i%2].Write(r)
		want = append(want, fmt.Sprint(i))
	}
	all, err := filepath.Glob(filepath.Join(dir, "audit*.log"))
	if err != nil {
		t.Fatal(err)
	}
	got := uids(entries(t, 0, all...))
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in %v: %s", all, diff)
	}
	if len(all) < 4 || !slices.Contains(all, filepath.Join(dir, "audit-2.log")) {
		t.Errorf("the files are %v", all)
	}
}

// TestNextProcess: a process goes on with the file of one that was killed.
func TestNextProcess(t *testing.T) {
	const env = "HOLDFAST_AUDIT_NEXT_LOG"
	if path := os.Getenv(env); path != "" {
		sink(t, options(path)).Write(record("before"))
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	var exit *exec.ExitError
	if output, err := child(t, env, path); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v:\n%s", err, output)
	}
	sink(t, options(path)).Write(record("after"))
	if diff := cmp.Diff([]string{"before", "after"}, uids(entries(t, 0, path))); diff != "" {
		t.Error(diff)
	}
}

// child runs the test of that name again, in a process of its own that finds the path of a log in
// its environment.
func child(t *testing.T, env, path string) (output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), env+"="+path)
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

// TestCutOff: a real file takes half a record and no more, as on a full disk, and then there is space
// again. A limit on the size of files does that, and holds for a whole process.
func TestCutOff(t *testing.T) {
	const env = "HOLDFAST_AUDIT_LIMITED_LOG"
	if path := os.Getenv(env); path != "" {
		signal.Ignore(syscall.SIGXFSZ)
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
		s := sink(t, options(path))
		s.Write(record("a"))
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		small := syscall.Rlimit{Cur: uint64(info.Size()) + 100, Max: limit.Max}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
			t.Fatal(err)
		}
		s.Write(record("b"))
		if err := s.Ready(); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("ready: %v", err)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
		s.Write(record("c"))
		counts(t, s, "written 2 errors 1 repeated 0")
		return
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	if output, err := child(t, env, path); err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	if diff := cmp.Diff([]string{"a", "c"}, uids(entries(t, 1, path))); diff != "" {
		t.Error(diff)
	}
}

// TestKillRightAfter: a process writes and is killed, by itself, before it could do anything else.
func TestKillRightAfter(t *testing.T) {
	const env = "HOLDFAST_AUDIT_KILL_LOG"
	if path := os.Getenv(env); path != "" {
		s, err := New(options(path))
		if err != nil {
			t.Fatal(err)
		}
		s.Write(record("last words"))
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	var exit *exec.ExitError
	if output, err := child(t, env, path); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v:\n%s", err, output)
	}
	if diff := cmp.Diff([]string{"last words"}, uids(entries(t, 0, path))); diff != "" {
		t.Error(diff)
	}
}

func TestRepetitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		o := options("-")
		o.Stdout = &out
		s := sink(t, o)
		wrote := func(want ...string) {
			t.Helper()
			var got []string
			_, err := Read(bytes.NewReader(out.Bytes()), func(e Entry) {
				got = append(got, fmt.Sprintf("%s x%d over %s", e.AuditID, e.Count(), e.Last().Sub(e.First())))
			}, func(_ int, err error) { t.Error(err) })
			out.Reset()
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		}
		rest := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		for i := range 34 {
			s.Write(repaired(fmt.Sprint(i), "argocd", "master-0"))
			rest(9 * time.Second)
		}
		rest(5 * time.Second)
		wrote("0 x1 over 0s", "1 x1 over 0s", "3 x2 over 9s", "7 x4 over 27s", "16 x9 over 1m12s", "33 x17 over 2m24s")

		s.Write(repaired("counted", "argocd", "master-0"))
		rest(RepeatWindow)
		wrote("counted x1 over 0s")
		rest(RepeatWindow)
		s.Write(repaired("next", "argocd", "master-0"))
		wrote("next x1 over 0s") // the fight rested: this is another one
		s.Write(repaired("a", "flux", "master-0"))
		s.Write(repaired("b", "argocd", "master-1"))
		other := repaired("c", "argocd", "master-0")
		other.Decision.Findings[0].Rule = quorum.RuleAutomationRelease
		s.Write(other)
		for range 3 { // not to be counted
			s.Write(record("denied"))
			escape := repaired("escape", "alice", "master-0")
			escape.Decision.Findings[0] = admission.Finding{Rule: quorum.RuleEscapeHatch, Verdict: admission.VerdictAllowed}
			s.Write(escape)
		}
		for range 2 {
			late := repaired("late", "flux", "master-0")
			late.Abandoned = true
			s.Write(late)
		}
		wrote("a x1 over 0s", "b x1 over 0s", "c x1 over 0s",
			"denied x1 over 0s", "escape x1 over 0s", "denied x1 over 0s", "escape x1 over 0s", "denied x1 over 0s", "escape x1 over 0s",
			"late x1 over 0s", "late x1 over 0s")

		rest(time.Hour)
		wrote() // nothing repeated, nothing to sum up

		create := repaired("create", "argocd", "new")
		create.Object.UID = ""
		s.Write(create)
		create.RequestUID = "again"
		s.Write(create)
		for i := range maxFights { // more fights than are counted
			s.Write(repaired("crowd", fmt.Sprint("user-", i), "master-0"))
		}
		if got := len(s.repeats.fights); got != maxFights {
			t.Errorf("%d fights are kept", got)
		}
		out.Reset()
		s.Write(repaired("one too many", fmt.Sprint("user-", maxFights-1), "master-0"))
		wrote("one too many x1 over 0s")
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wrote("again x1 over 0s")
		counts(t, s, "written 534 errors 0 repeated 35")
	})
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(config, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]string{
		"":                   nil,
		"--audit-log-path=-": nil,
		"--audit-log-path=- --audit-log-path=/nowhere/at/all/audit.log": nil,
		"--audit-log-path=/nowhere/at/all/audit.log":                    nil, // a disk that is missing is no slip
		"--audit-log-maxsize=0 --audit-log-maxage=0":                    nil,
		"--audit-log-maxsize=-1":                                        {"--audit-log-maxsize", "-1", "0 or more"},
		"--audit-log-maxage=-7":                                         {"--audit-log-maxage", "-7"},
		"--audit-log-maxbackup=-1":                                      {"--audit-log-maxbackup", "-1"},
		"--audit-log-path=" + dir:                                       {"--audit-log-path", dir, "folder"},
		"--audit-log-path=" + pipe:                                      {"--audit-log-path", pipe, "use -"},
		"--audit-log-path=-," + dir:                                     {"--audit-log-path", dir, "folder"},
		"--audit-webhook-config-file=" + config:                         {"--audit-webhook-config-file", "needs --audit-log-path"},
	} {
		o := NewOptions()
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		err := o.Validate()
		if (err == nil) != (want == nil) {
			t.Errorf("%s: %v", args, err)
		}
		for _, w := range want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not hold %q", args, err, w)
			}
		}
	}
}

func TestReadLongLines(t *testing.T) {
	long := strings.NewReader(strings.Repeat("x", maxLine+1) + "\n")
	if _, err := Read(long, func(Entry) {}, func(int, error) {}); err == nil || !strings.Contains(err.Error(), "longer than 16 MiB") {
		t.Error(err)
	}
}

func TestReadPrefixed(t *testing.T) {
	var log bytes.Buffer
	log.WriteString("[pod/holdfast-5d8f-x2x/manager] ")
	o := options("-")
	o.Stdout = &log
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Write(record("a"))
	if tally, err := Read(&log, func(Entry) {}, func(_ int, err error) { t.Error(err) }); err != nil || tally.Ours != 1 {
		t.Errorf("%+v %v", tally, err)
	}
}

func BenchmarkWrite(b *testing.B) {
	s, err := New(options(filepath.Join(b.TempDir(), "audit.log")))
	if err != nil {
		b.Fatal(err)
	}
	denied, again := record("a"), repaired("b", "argocd", "master-0")
	s.Write(again)
	for name, r := range map[string]Record{"denied": denied, "repeated": again} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Write(r)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	var log bytes.Buffer
	o := options("-")
	o.Stdout = &log
	s, err := New(o)
	if err != nil {
		f.Fatal(err)
	}
	s.Write(record("a"))
	f.Add(log.Bytes())
	f.Add([]byte("\n{}\n\x1f\x8b{"))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","annotations":{"holdfast.dev/rule":"a,b","holdfast.dev/repeated":"9999999999"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := 0
		tally, err := Read(bytes.NewReader(data), func(e Entry) {
			lines++
			if len(e.Rules()) == 0 || len(e.Verdicts()) == 0 || e.Count() < 1 || e.First().After(e.Last()) {
				t.Errorf("%+v", e)
			}
			e.Name()
			e.Said()
			e.Evidence()
		}, func(line int, err error) {
			if line < 1 || err == nil {
				t.Errorf("line %d: %v", line, err)
			}
		})
		if err == nil && tally.Ours != lines {
			t.Errorf("%+v, %d handed over", tally, lines)
		}
		if errors.Is(err, io.EOF) {
			t.Error("the end is no error")
		}
	})
}

// TestStep: what Holdfast did of its own accord is a record, too, and no decision.
func TestStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	s := sink(t, options(path))
	s.WriteStep(Step{
		Object: ObjectOf(&corev1.ObjectReference{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "openshift-machine-api", Name: "master-3", UID: "m-3"}),
		Reason: "LearnerPromoted", Action: "Promote", Said: "Holdfast: promote learner master-3", Warning: true,
		Snapshot: &quorum.Snapshot{Ring: quorum.Ring{Known: true, Members: []quorum.Member{{ID: 0xa0, Name: "master-3", Healthy: true}}}},
	})
	s.WriteStep(Step{Reason: "Changed", Action: "observe", Said: "a\nb"})
	none := sink(t, options(""))
	none.WriteStep(Step{Reason: "Changed"})
	got := entries(t, 0, path)
	if len(got) != 2 || got[0].key() == got[1].key() {
		t.Fatalf("%+v", got)
	}
	e := &got[0]
	told := fmt.Sprintf("%s %s %s/%s %s %s %s %t %d", e.Step(), e.Verb, e.ObjectRef.Resource, e.Name(), e.ObjectRef.UID, e.User.Username, e.Said(), e.Annotations[WarningAnnotation] == "true", len(e.Evidence().Members))
	if want := "LearnerPromoted promote machines/master-3 m-3 holdfast [Holdfast: promote learner master-3] true 1"; told != want {
		t.Errorf("it is %s\n want %s", told, want)
	}
	if e := &got[1]; e.Step() != "Changed" || e.Name() != "" || e.Annotations[WarningAnnotation] != "" || e.Evidence() != nil || len(e.Said()) != 2 || e.Rules()[0] != "" {
		t.Errorf("%+v", e)
	}
}
