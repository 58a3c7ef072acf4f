package cpms

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

var update = flag.Bool("update", false, "write testdata/successors.jsonl and trials.jsonl anew")

// recorded is one case of testdata/platform.json: objects, and what the platform's own operator says of them. test/cpms records it.
type recorded struct {
	Name           string
	Set            *machinev1.ControlPlaneMachineSet
	Infrastructure *configv1.Infrastructure
	Machines       []machinev1beta1.Machine
	Fills          map[string]any // what webhooks fill into a provider spec
	Answers        []struct {
		Machine     string
		Index       int
		NeedsUpdate bool
		Successor   json.RawMessage // the provider spec of the Machine that it creates in its place
	}
}

// TestLikeThePlatform: of sets that the platform's generator writes, with changes, Holdfast says of each Machine what the platform's operator says:
// whether it is replaced, its index, and what its successor is. So a set is taken over and given back without a replacement that need not be.
//
// The Machines that Holdfast creates are in testdata/successors.jsonl; test/cpms has the platform's operator judge them.
func TestLikeThePlatform(t *testing.T) {
	raw, err := os.ReadFile("testdata/platform.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	successors := map[string][]*machinev1beta1.Machine{} // by the case's name
	for i := range all {
		r := &all[i]
		t.Run(r.Name, func(t *testing.T) {
			trials, err := Trials(r.Set, r.Infrastructure)
			if err != nil {
				t.Fatal(err)
			}
			fill := func(spec map[string]any) { maps.Copy(spec, r.Fills) }
			for _, m := range trials {
				edited(t, m, fill)
			}
			trial := Trial{Machines: trials}
			got := Read(r.Set, r.Machines, r.Infrastructure, trial)
			if got.Unusable != "" {
				t.Fatal(got.Unusable)
			}
			for k, a := range r.Answers {
				m := &r.Machines[k]
				p := got.Places[string(m.UID)]
				inside := len(got.Domains) == 0 || slices.Contains(got.Domains, p.Domain)
				if needs := p.Outdated != "" || !inside; m.Name != a.Machine || p.Unclear != "" || needs != a.NeedsUpdate {
					t.Errorf("%s needs an update: %t, and the platform's operator says %t: %+v", m.Name, needs, a.NeedsUpdate, p)
				}
				if p.Index != nil && *p.Index != a.Index {
					t.Errorf("%s has index %d, and the platform's operator says %d", m.Name, *p.Index, a.Index)
				}
				if !inside {
					continue // its successor is where the fewest are
				}
				next, err := NewMachine(r.Set, r.Infrastructure, trial, machineset.Create{Index: a.Index, Domain: p.Domain}, "x4k2p")
				if err != nil {
					t.Fatal(err)
				}
				_, tmpl, err := parts(r.Set, r.Infrastructure)
				if err != nil {
					t.Fatal(err)
				}
				edited(t, next, fill)
				successors[r.Name] = append(successors[r.Name], next)
				ours, err := tmpl.read(next.Spec)
				if err != nil {
					t.Fatal(err)
				}
				theirs, err := tmpl.read(machinev1beta1.MachineSpec{ProviderSpec: machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{Raw: a.Successor}}})
				if err != nil {
					t.Fatal(err)
				}
				if d, err := differences(ours, theirs); err != nil || len(d) > 0 {
					t.Errorf("the successor of %s differs: %v, %v", m.Name, d, err)
				}
			}
		})
	}
	var got bytes.Buffer // a line for each case
	for _, r := range all {
		if err := json.NewEncoder(&got).Encode(map[string]any{r.Name: successors[r.Name]}); err != nil {
			t.Fatal(err)
		}
	}
	const file = "testdata/successors.jsonl"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("Holdfast creates other Machines than %s has (-update writes it anew; then run make cpms): %v", file, err)
	}
}
