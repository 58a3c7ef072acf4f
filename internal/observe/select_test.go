package observe

import (
	"fmt"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestSelected counts all Machines that a selector matches in the namespace, and names the control plane's.
func TestSelected(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := machinev1beta1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	machine := func(namespace, name, label, value string) *machinev1beta1.Machine {
		return &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{label: value, "all": "yes"}}}
	}
	g := &Observer{Namespace: "n", Desired: 5, API: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		machine("n", "master-0", quorum.RoleLabel, "master"), machine("n", "master-1", quorum.TypeLabel, "arbiter"),
		machine("n", "worker-0", quorum.RoleLabel, "worker"), machine("elsewhere", "master-2", quorum.RoleLabel, "master"),
	).Build()}
	for selector, want := range map[string]string{
		"":                                "3 [master-0 master-1]",
		"all=yes":                         "3 [master-0 master-1]",
		quorum.RoleLabel + "=master":      "1 [master-0]",
		quorum.RoleLabel + "!=master":     "2 [master-1]",
		quorum.RoleLabel + " in (worker)": "1 []",
		"all=no":                          "0 []",
	} {
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.Selected(t.Context(), parsed)
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for i := range s.Machines {
			names = append(names, s.Machines[i].Name)
		}
		if got := fmt.Sprint(s.Total, " ", names); got != want || s.Desired != 5 {
			t.Errorf("%q selects %s of %d wanted, not %s", selector, got, s.Desired, want)
		}
	}
}
