package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestHostAudit: a refusal is on record after the pod that answered is gone, with the component host-audit, and not without.
func TestHostAudit(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	f := start(t)
	f.hook()
	part := f.parts(t)
	part("without the component it goes with the pod", func() {
		f.install(f.render("self-signed", ""))
		f.guards()
		pod := f.refused("carol")
		f.Expect(f.refusals("carol")).To(gomega.Equal(1))
		f.gone(pod)
		f.Expect(f.refusals("carol")).To(gomega.BeZero())
	})
	part("with it the record stays", func() {
		f.install(f.render("self-signed", "", "host-audit"))
		f.complete()
		f.Eventually(func() int { return len(f.pods()) }).Should(gomega.Equal(2), "one of before, which writes on no host, may answer until it has ended")
		pod := f.refused("dave")
		f.Expect(f.refusals("dave")).To(gomega.Equal(1), "it is in the pod's log and in the host's file, and is shown once")
		f.gone(pod)
		f.Expect(f.refusals("dave")).To(gomega.Equal(1))
		list := f.must("kubectl", nil, "get", "--raw", "/api/v1/nodes/"+pod.Spec.NodeName+"/proxy/logs/holdfast/")
		f.Expect(list).To(gomega.ContainSubstring(`"audit.log"`))
		files, err := filepath.Glob(filepath.Join(f.sandbox.Dir, "hosts", "*", "root", "var", "log", "holdfast", "audit*.log"))
		f.Expect(err).NotTo(gomega.HaveOccurred())
		f.Expect(len(files)).To(gomega.BeNumerically(">", 1))
		for _, file := range files {
			info, err := os.Stat(file)
			f.Expect(err).NotTo(gomega.HaveOccurred())
			f.Expect(info.Mode()).To(gomega.Equal(os.FileMode(0o600)), file)
		}
	})
	part("without a right to the hosts' files", func() {
		f.must("kubectl", nil, "create", "clusterrole", "reader", "--verb=get,list", "--resource=pods,pods/log,nodes")
		f.must("kubectl", nil, "create", "clusterrolebinding", "reader", "--clusterrole=reader", "--user=erin")
		out, err := f.command("kubectl-holdfast", nil, "audit", "--as=erin")
		f.Expect(err).To(gomega.HaveOccurred())
		f.Expect(out).To(gomega.ContainSubstring(`read the audit files on the host of Node master-1: nodes "master-1" is forbidden: User "erin" cannot get resource "nodes/proxy"`))
	})
	part("a host that does not answer", func() {
		pod := f.refused("frank")
		other := "master-1"
		if pod.Spec.NodeName == other {
			other = "master-2"
		}
		f.Expect(f.sandbox.Power(other, false)).To(gomega.Succeed())
		out, err := f.command("kubectl-holdfast", nil, "audit", "--user=frank")
		f.Expect(err).To(gomega.HaveOccurred())
		f.Expect(out).To(gomega.ContainSubstring("read the audit files on the host of Node " + other + ":"))
		f.Expect(strings.Count(out, " denied ")).To(gomega.Equal(1), out)
	})
}

// refused has somebody be refused a deletion, and returns the pod that answered.
func (f *fixture) refused(user string) corev1.Pod {
	f.t.Helper()
	out, err := f.command("kubectl", nil, "delete", "machine", "master-1", "--wait=false", "-n", sandbox.MachineNamespace, "--as="+user, "--as-group=system:masters")
	f.Expect(err).To(gomega.HaveOccurred())
	f.Expect(out).To(gomega.ContainSubstring("Refused (one-too-many)"))
	for _, pod := range f.pods() {
		if log, err := os.ReadFile(filepath.Join(f.sandbox.Logs, "pod-"+pod.Name+".log")); err == nil && strings.Contains(string(log), `"username":"`+user+`"`) {
			return pod
		}
	}
	f.t.Fatalf("no pod's log has the refusal of %s", user)
	return corev1.Pod{}
}

// refusals are how often the plugin shows that somebody was refused.
func (f *fixture) refusals(user string) int {
	f.t.Helper()
	return strings.Count(f.must("kubectl-holdfast", nil, "audit", "--verdict=denied", "--user="+user), " denied ")
}

// gone deletes a pod, with its log, and waits for another one.
func (f *fixture) gone(pod corev1.Pod) {
	f.t.Helper()
	f.must("kubectl", nil, "-n", pod.Namespace, "delete", "pod", pod.Name)
	f.Eventually(func() error { return f.admin.Get(f.t.Context(), client.ObjectKeyFromObject(&pod), &corev1.Pod{}) }).Should(gomega.Satisfy(apierrors.IsNotFound))
	f.complete()
}
