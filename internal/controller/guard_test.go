package controller

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
)

// TestGuardKeeper keeps the quorum guard on a real API server, which alone knows what a spec becomes.
func TestGuardKeeper(t *testing.T) {
	t.Parallel()
	config := apiserver.Start(t).Config
	form := machineapi.GuardForm{Namespace: "openshift-etcd", Image: "holdfast", Secret: "etcd-client", ClientURL: url.URL{Scheme: "https", Host: "10.0.0.1:2379"}}
	keeper := func(as string) (*GuardKeeper, client.WithWatch) {
		config := rest.CopyConfig(config)
		config.Impersonate.UserName, config.WarningHandler = as, rest.NoWarnings{}
		if as == "" {
			config.Impersonate = rest.ImpersonationConfig{}
		}
		api, err := client.NewWithWatch(config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return NewGuardKeeper(api, form), api
	}
	k, api := keeper("")
	look := func(k *GuardKeeper) quorum.DrainGuard {
		t.Helper()
		g, err := k.gather(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	is := func(when string, min, replicas int, intact bool) {
		t.Helper()
		if g := look(k); g.MinAvailable != min || g.Replicas != replicas || g.Intact != intact || g.Absent != "" {
			t.Errorf("%s: %+v", when, g)
		}
	}

	if g := look(k); !g.Managed || !strings.Contains(g.Absent, "namespace openshift-etcd does not exist") {
		t.Errorf("without a namespace: %+v", g)
	}
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: form.Namespace}}))
	stranger, _ := keeper("stranger")
	if g := look(stranger); !strings.Contains(g.Absent, "no rights in namespace openshift-etcd") {
		t.Errorf("without rights: %+v", g)
	}

	is("at first", -1, -1, false)
	must(t, k.size(t.Context(), 3))
	is("made", 2, 3, true)
	must(t, k.size(t.Context(), 1))
	is("sized", 0, 1, true)

	var deployment appsv1.Deployment
	key := client.ObjectKey{Namespace: form.Namespace, Name: machineapi.GuardName}
	must(t, api.Get(t.Context(), key, &deployment))
	deployment.Annotations = map[string]string{"somebody": "else"}
	deployment.Spec.Template.Spec.HostNetwork = false
	must(t, api.Update(t.Context(), &deployment))
	is("edited", 0, 1, false)
	must(t, k.size(t.Context(), 1))
	is("restored", 0, 1, true)
	must(t, api.Get(t.Context(), key, &deployment))
	if !deployment.Spec.Template.Spec.HostNetwork || deployment.Annotations["somebody"] == "" {
		t.Errorf("host network %t, annotations %v", deployment.Spec.Template.Spec.HostNetwork, deployment.Annotations)
	}

	// The selector is for ever, so the Deployment that has another is replaced.
	must(t, api.Delete(t.Context(), &deployment, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	deployment = appsv1.Deployment{}
	deployment.Namespace, deployment.Name = key.Namespace, key.Name
	form.Deployment(&deployment, 1)
	deployment.Spec.Selector.MatchLabels = map[string]string{"app": "other"}
	deployment.Spec.Template.Labels = map[string]string{"app": "other"}
	must(t, api.Create(t.Context(), &deployment))
	is("of another", 0, 1, false)
	if err := k.size(t.Context(), 1); !errors.As(err, new(notYet)) {
		t.Errorf("over another's: %v", err)
	}
	must(t, k.size(t.Context(), 1))
	is("replaced", 0, 1, true)

	// A pod of that name under another UID is another pod.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: form.Namespace, Name: "p", Labels: form.Labels()}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	must(t, api.Create(t.Context(), pod))
	if err := k.deletePod(t.Context(), "p", "other"); !errors.As(err, new(notYet)) {
		t.Errorf("another pod: %v", err)
	}
	must(t, k.deletePod(t.Context(), "p", string(pod.UID)))
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); !apierrors.IsNotFound(err) {
		t.Errorf("the pod is there: %v", err)
	}

	// Whoever edits again and again is not answered again and again.
	var err error
	for range 20 {
		var budget policyv1.PodDisruptionBudget
		must(t, api.Get(t.Context(), key, &budget))
		must(t, api.Delete(t.Context(), &budget))
		if err = k.size(t.Context(), 1); err != nil {
			break
		}
	}
	if !errors.As(err, new(notYet)) || !strings.Contains(err.Error(), "is somebody else changing") {
		t.Errorf("a fight: %v", err)
	}
}
