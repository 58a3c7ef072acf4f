package install_test

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestPlacement: the Machine API copies labels and taints of a Machine to its Node, so whoever may write Machines chooses them. No taint
// ends Holdfast's pods or keeps them off a control-plane Node, nor does any value of a label.
func TestPlacement(t *testing.T) {
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "base", "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		t.Fatal(err)
	}
	spec := d.Spec.Template.Spec
	for key, seconds := range map[string]int64{"example.com/evil": 0, "node-role.kubernetes.io/control-plane": 0, corev1.TaintNodeUnreachable: 30, corev1.TaintNodeNotReady: 30} {
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule} {
			tolerated := false
			for _, toleration := range spec.Tolerations { // the first that fits counts, as for the controller that evicts
				if toleration.Operator != corev1.TolerationOpExists || toleration.Key != "" && toleration.Key != key || toleration.Effect != "" && toleration.Effect != effect {
					continue
				}
				tolerated = true
				if limited := toleration.TolerationSeconds; effect == corev1.TaintEffectNoExecute && (limited == nil) != (seconds == 0) {
					t.Errorf("taint %s:%s is tolerated for %v seconds", key, effect, limited)
				}
				break
			}
			if !tolerated {
				t.Errorf("taint %s:%s is not tolerated", key, effect)
			}
		}
	}
	if len(spec.NodeSelector) > 0 || spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Error("a value of a label decides")
	}
	fits := false
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		selector := labels.NewSelector()
		for _, e := range term.MatchExpressions {
			r, err := labels.NewRequirement(e.Key, map[corev1.NodeSelectorOperator]selection.Operator{corev1.NodeSelectorOpExists: selection.Exists}[e.Operator], e.Values)
			if err != nil {
				t.Fatal(err)
			}
			selector = selector.Add(*r)
		}
		fits = fits || selector.Matches(labels.Set{"node-role.kubernetes.io/control-plane": "x"})
	}
	if !fits {
		t.Error("a Node whose role label has a value is not chosen")
	}
}
