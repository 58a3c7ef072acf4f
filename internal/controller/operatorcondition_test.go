package controller

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// testOperatorCondition tells OLM, by its own CRD on a real API server, that Holdfast may be upgraded, and then that it may not.
func testOperatorCondition(t *testing.T, config *rest.Config, namespace string) {
	g := NewWithT(t)
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{operatorConditionCRD(t)}, ErrorIfPathMissing: true})
	g.Expect(err).NotTo(HaveOccurred())
	api, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "operators.coreos.com/v2", "kind": "OperatorCondition",
		"metadata": map[string]any{"namespace": namespace, "name": "holdfast.v0.1.0"},
	}}
	key := client.ObjectKeyFromObject(object)
	o := &OperatorCondition{Namespace: key.Namespace, Name: key.Name, Client: api}
	voter := func(id quorum.MemberID) quorum.Member { return quorum.Member{ID: id, Name: "m", Healthy: true} }
	s := &quorum.Snapshot{
		Mode: quorum.ModeFull, Desired: 3, Now: time.Now(), Limits: quorum.DefaultLimits(),
		Ring: quorum.Ring{Known: true, Leader: 1, Members: []quorum.Member{voter(1), voter(2), voter(3)}},
	}
	tell := func() {
		g.ExpectWithOffset(1, o.report(t.Context(), membership.Conditions(&membership.Plan{Join: quorum.NewJoin(s)}), s.Now)).To(Succeed())
	}
	told := func() (condition map[string]any, generation int64) {
		now := object.DeepCopy()
		g.ExpectWithOffset(1, api.Get(t.Context(), key, now)).To(Succeed())
		conditions, _, err := unstructured.NestedSlice(now.Object, "spec", "conditions")
		g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
		g.ExpectWithOffset(1, conditions).To(HaveLen(1))
		return conditions[0].(map[string]any), now.GetGeneration()
	}

	tell() // OLM has not made the object: nobody is there to be told
	g.Expect(client.IgnoreNotFound(api.Get(t.Context(), key, object.DeepCopy()))).To(Succeed())
	g.Expect(api.Create(t.Context(), object.DeepCopy())).To(Succeed())
	s.Now = s.Now.Add(time.Hour)
	tell()
	condition, first := told()
	g.Expect(condition).To(And(HaveKeyWithValue("type", "Upgradeable"), HaveKeyWithValue("status", "True"), HaveKeyWithValue("reason", "AsExpected")))

	tell()
	_, second := told()
	g.Expect(second).To(Equal(first), "nothing is written while nothing changes")

	s.Ring.Members[2].Healthy = false // which a newer version may mend
	for range 2 {
		s.Now = s.Now.Add(time.Hour)
		tell()
	}
	condition, _ = told()
	g.Expect(condition).To(HaveKeyWithValue("status", "True"))

	s.Ring.Members = append(s.Ring.Members[:2:2], quorum.Member{ID: 4, Learner: true}) // one that has not started
	for range 2 {
		s.Now = s.Now.Add(time.Hour) // it lasts
		tell()
	}
	condition, _ = told()
	g.Expect(condition).To(And(HaveKeyWithValue("status", "False"), HaveKeyWithValue("reason", "EtcdMembersNotStarted")))

	// After a restart etcd has not answered yet.
	s.Ring = quorum.Ring{Why: "no answer yet"}
	restarted := &Reconciler{Reports: Reports{OperatorCondition: &OperatorCondition{Namespace: key.Namespace, Name: key.Name, Client: api}}}
	g.Expect(restarted.report(t.Context(), &membership.Plan{Join: quorum.NewJoin(s)})).To(Succeed())
	condition, _ = told()
	g.Expect(condition).To(HaveKeyWithValue("status", "False"))
	s.Now = s.Now.Add(firstLook)
	g.Expect(restarted.report(t.Context(), &membership.Plan{Join: quorum.NewJoin(s)})).To(Succeed())
	condition, _ = told()
	g.Expect(condition).To(HaveKeyWithValue("status", "True"), "what is wrong does not hold up an upgrade")
}

// operatorConditionCRD is the real one, out of the module that validates the bundle.
func operatorConditionCRD(t *testing.T) string {
	t.Helper()
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/operator-framework/api")
	download.Dir = filepath.Join(root, "deploy", "bundle")
	out, err := download.Output()
	if err != nil {
		t.Fatal(err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(module.Dir, "crds", "operators.coreos.com_operatorconditions.yaml")
}
