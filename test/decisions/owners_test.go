package decisions_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/admission"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestManyOwners: a control-plane Machine gets no more owners than are looked at, and keeps what it has.
func TestManyOwners(t *testing.T) {
	machine := func(role string, owners int) *q.Machine {
		m := &q.Machine{Name: "m", UID: "u", Role: role, Finalizer: true}
		for i := range owners {
			m.Owners = append(m.Owners, q.Owner{Kind: "ConfigMap", Name: "c", UID: fmt.Sprint(i)})
		}
		return m
	}
	const most = admission.MostOwners
	for _, c := range []struct {
		name     string
		old, new *q.Machine
		denied   bool
	}{
		{"created with as many as may be", nil, machine("master", most), false},
		{"created with one more", nil, machine("master", most+1), true},
		{"one more is added", machine("master", most), machine("master", most+1), true},
		{"one of too many is taken off", machine("master", most+2), machine("master", most+1), true},
		{"all but as many as may be are taken off", machine("master", most+2), machine("master", most), false},
		{"too many, and they stay", machine("master", most+1), machine("master", most+1), false},
		{"a worker with too many becomes the control plane's", machine("worker", most+1), machine("master", most+1), true},
		{"a worker", machine("worker", most), machine("worker", most+1), false},
	} {
		r := &admission.Request{Operation: admission.OperationUpdate, User: admission.User{Name: "alice"}, Old: c.old, New: c.new}
		if c.old == nil {
			r.Operation = admission.OperationCreate
		}
		d := identities().Admit(r, &q.Snapshot{})
		if denial := d.Denial(); (denial != nil) != c.denied || denial != nil && denial.Rule != q.RuleAdopt {
			t.Errorf("%s: %s", c.name, d.Describe())
		}
	}
}
