package plugin

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// following is the replacement of master-1 at a screen, and a clock for it.
func following(out *bytes.Buffer) (*replacing, *time.Time) {
	now := noon()
	return &replacing{t: terminal{out: out, now: func() time.Time { return now }}, old: &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "master-1"}}}, &now
}

// TestVoting: a Machine is replaced once it is gone and the new one's member votes, and not before.
func TestVoting(t *testing.T) {
	for name, c := range map[string]struct {
		by     string
		change func(s *quorum.Snapshot)
		done   bool
		says   string
	}{
		"a learner yet": {by: "master-3", says: "does not vote yet: it hosts etcd learner"},
		"it votes":      {by: "master-3", change: func(s *quorum.Snapshot) { voter(s).Learner = false }, done: true, says: "Machine master-3 has replaced it, and its etcd member votes: etcd has 3 of 3 voters healthy, 3 wanted"},
		"it votes and is not well": {by: "master-3", change: func(s *quorum.Snapshot) {
			voter(s).Learner, voter(s).Healthy = false, false
		}, says: "does not vote yet: it hosts etcd voter node-3 (a3), unhealthy"},
		"no member":       {by: "master-3", change: func(s *quorum.Snapshot) { s.Ring.Members = s.Ring.Members[:2] }, says: "it has no etcd member yet"},
		"none is missing": {by: "master-3", change: func(s *quorum.Snapshot) { s.Ring.Members, s.Desired = s.Ring.Members[:2], 2 }, done: true, says: "none is missing"},
		"a voter that goes, too, is no voter that stays": {by: "master-3", change: func(s *quorum.Snapshot) {
			s.Desired = 2
			s.Machine("master-0").DeletedAt = noon()
		}, says: "does not vote yet"},
		"it votes, and is being deleted itself": {by: "master-3", change: func(s *quorum.Snapshot) {
			voter(s).Learner = false
			s.Machine("master-3").DeletedAt = noon()
		}, says: "is being deleted itself"},
		"the set is slow":      {says: "Nothing has replaced it yet; etcd has 2 of 2 voters healthy, 3 wanted"},
		"whichever it is":      {change: func(s *quorum.Snapshot) { voter(s).Learner = false }, done: true, says: "3 of 3 voters healthy"},
		"etcd does not answer": {by: "master-3", change: func(s *quorum.Snapshot) { s.Ring = quorum.Ring{Why: "no answer"} }, says: "is not known (no answer)"},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := readFile(t.Context(), terminal{}, "testdata/snapshots/replacing.yaml")
			if err != nil {
				t.Fatal(err)
			}
			s := v.Snapshot
			s.Machines = slices.DeleteFunc(s.Machines, func(m quorum.Machine) bool { return m.Name == "master-1" })
			s.Ring.Members = slices.DeleteFunc(s.Ring.Members, func(m quorum.Member) bool { return m.ID == 0xa1 })
			if c.change != nil {
				c.change(s)
			}
			v.decide(s)
			var out bytes.Buffer
			r, _ := following(&out)
			if done, err := r.voting(v, c.by); done != c.done || err != nil || !strings.Contains(out.String(), c.says) {
				t.Errorf("done %v, %v: %s", done, err, out.String())
			}
		})
	}
}

// voter is node-3's member.
func voter(s *quorum.Snapshot) *quorum.Member { return s.Ring.Member(0xa3) }

// TestReplacedAnother: a copy that votes in place of another Machine is none for the one that still waits for a Node.
func TestReplacedAnother(t *testing.T) {
	v, err := readFile(t.Context(), terminal{}, "testdata/snapshots/replacing.yaml")
	if err != nil {
		t.Fatal(err)
	}
	voter(v.Snapshot).Learner = false
	first, second := v.Machine("master-0"), v.Machine("master-1")
	second.DeletedAt = noon().Add(time.Minute)
	v.decide(v.Snapshot)
	if v.replacedAnother("master-1", "master-3") {
		t.Error("it votes in place of the only one that is being deleted")
	}
	first.DeletedAt = noon()
	v.decide(v.Snapshot)
	if !v.replacedAnother("master-1", "master-3") || v.replacedAnother("master-0", "master-3") {
		t.Errorf("the replacements: %v", membership.Replacements(v.join))
	}
	v.Desired = 0
	if v.replacedAnother("master-1", "master-3") {
		t.Error("how many voters are wanted is not known, and it takes the copy for another Machine's")
	}
}

// TestSpare: a Machine that is being deleted needs no other where as many stay as voters are wanted.
func TestSpare(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *quorum.Snapshot)
		name   string
		enough bool
	}{
		"one is on its way":              {name: "master-3", enough: true},
		"all vote":                       {change: func(s *quorum.Snapshot) { voter(s).Learner = false }, enough: true},
		"another is deleted, too":        {change: func(s *quorum.Snapshot) { s.Machine("master-0").DeletedAt = noon() }, name: "master-3"},
		"it has failed":                  {change: func(s *quorum.Snapshot) { s.Machine("master-3").Phase = machinev1beta1.PhaseFailed }},
		"how many are wanted, who knows": {change: func(s *quorum.Snapshot) { s.Desired = 0 }, name: "master-3"},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := readFile(t.Context(), terminal{}, "testdata/snapshots/replacing.yaml")
			if err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(v.Snapshot)
			}
			v.decide(v.Snapshot)
			if name, enough := v.spare(); name != c.name || enough != c.enough {
				t.Errorf("%q, %v", name, enough)
			}
		})
	}
}

// TestUnseen: the old Machine is gone, and nobody tells of etcd: that ends the command after a minute, and the new one's end at once.
func TestUnseen(t *testing.T) {
	v, err := readFile(t.Context(), terminal{}, "testdata/snapshots/unknown.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r, now := following(&out)
	if _, err := r.voting(v, "master-0"); err != nil {
		t.Error(err)
	}
	*now = now.Add(time.Minute)
	if _, err := r.voting(v, "master-0"); err == nil || !strings.Contains(err.Error(), "is gone, but whether its replacement votes in etcd is not known here") {
		t.Error(err)
	}
	if v, err = readFile(t.Context(), terminal{}, "testdata/snapshots/rest.yaml"); err != nil {
		t.Fatal(err)
	}
	v.Desired = 5
	if _, err := r.voting(v, "master-9"); err == nil || !strings.Contains(err.Error(), "so is Machine master-9") {
		t.Error(err)
	}
}

// TestSuccessor: of two Machines that a set creates for two that were deleted, each replaces the one with its number.
func TestSuccessor(t *testing.T) {
	var created []machinev1beta1.Machine
	for _, is := range []struct{ add, old, want string }{
		{"", "c-master-abcde-1", ""},
		{"c-master-fghij-0", "c-master-abcde-1", ""},
		{"c-master-klmno-1", "c-master-abcde-1", "c-master-klmno-1"},
		{"", "c-master-abcde-0", "c-master-fghij-0"},
		{"", "without-a-number", "c-master-fghij-0"},
		{"first", "c-master-abcde-2", ""},
		{"", "without-a-number", "c-master-fghij-0"},
	} {
		if is.add != "" {
			created = append(created, machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: is.add}})
		}
		if got := successor(is.old, created); got != is.want {
			t.Errorf("of %d Machines %q replaces %s, want %q", len(created), got, is.old, is.want)
		}
	}
}
