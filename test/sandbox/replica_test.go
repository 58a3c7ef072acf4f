package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
	"github.com/holdfast-dev/holdfast/test/slots"
)

// TestHoldfastIsKilled: somebody kills Holdfast by its process id. The sandbox goes on, says so, and starts it
// again; it refuses again what it is to refuse.
func TestHoldfastIsKilled(t *testing.T) {
	t.Parallel()
	s := sandboxtest.Start(t, sandbox.Options{})
	g := NewWithT(t)
	c := admin(t, s)

	killed := s.Holdfast.Process()
	g.Expect(syscall.Kill(killed.PID(), syscall.SIGKILL)).To(Succeed())
	g.Eventually(killed.Done()).WithTimeout(3 * time.Minute).Should(BeClosed())
	g.Eventually(s.Holdfast.Process).WithTimeout(3 * time.Minute).ShouldNot(BeIdenticalTo(killed))
	g.Expect(s.WaitHoldfast(t.Context())).To(Succeed())
	log, err := os.ReadFile(filepath.Join(s.Logs, "cloud.log"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(log)).To(MatchRegexp(`Holdfast ended.* pid=%d how="signal: killed"`, killed.PID()))
	refuses(t, c)
	g.Expect(s.Failed()).NotTo(Receive())

	// One that was stopped stays so, also if it was killed just before.
	g.Expect(s.Holdfast.Process().Signal(syscall.SIGKILL)).To(Succeed())
	last := s.Holdfast.Process()
	g.Expect(s.Holdfast.Stop()).To(Succeed())
	g.Consistently(s.Holdfast.Process).WithTimeout(2 * time.Second).Should(BeIdenticalTo(last))
	g.Expect(last.Done()).To(BeClosed())

	// A panic is a defect, and not hidden by another start. SIGQUIT has a Go program end like one.
	g.Expect(s.Holdfast.Start()).To(Succeed())
	g.Expect(s.WaitHoldfast(t.Context())).To(Succeed())
	g.Expect(s.Holdfast.Process().Signal(syscall.SIGQUIT)).To(Succeed())
	g.Eventually(s.Failed()).WithTimeout(3 * time.Minute).Should(Receive(MatchError(ContainSubstring("exit status 2"))))
}

// TestHoldfastThatCannotStart fails the sandbox: it never stood.
func TestHoldfastThatCannotStart(t *testing.T) {
	t.Parallel()
	slots.Take(t)
	options := sandbox.Options{Dir: filepath.Join(t.TempDir(), "s"), Replicas: 1, HoldfastArgs: []string{"--max-deleting=-7"}}
	s, err := sandbox.Start(t.Context(), options)
	if err == nil {
		err = errors.Join(errors.New("it started"), s.Stop())
		t.Fatal(err)
	}
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("--max-deleting is -7")))
}

// TestTwoHoldfasts: one is elected, and both answer at one address. The leader hangs until another leads; when
// it goes on it finds its lease lost, serves on and stands again.
func TestTwoHoldfasts(t *testing.T) {
	t.Parallel()
	s := sandboxtest.Start(t, sandbox.Options{HoldfastReplicas: 2})
	g := NewWithT(t)
	c := admin(t, s)
	g.Expect(s.Holdfasts()).To(HaveLen(2))

	old := elected(t, s, nil)
	hung := old.Process()
	g.Expect(old.Pause()).To(Succeed())
	t.Cleanup(func() { _ = hung.Signal(syscall.SIGCONT) })
	next := elected(t, s, hung)
	g.Expect(next).NotTo(BeIdenticalTo(old))
	refuses(t, c) // by the one that does not hang

	g.Expect(old.Resume()).To(Succeed())
	g.Expect(s.WaitHoldfast(t.Context())).To(Succeed())
	g.Expect(elected(t, s, nil)).To(BeIdenticalTo(next))
	g.Expect(old.Process()).To(BeIdenticalTo(hung))
	g.Expect(next.Stop()).To(Succeed()) // its lease is given up, and requests are led to the other
	g.Expect(elected(t, s, nil)).To(BeIdenticalTo(old))
	refuses(t, c)
}

// TestAllIsGone is the worst that can happen to the registrations: all are deleted, and every replica is killed at once.
// They are back as soon as a process has started, which does not wait for the Lease of the dead to run out.
func TestAllIsGone(t *testing.T) {
	t.Parallel()
	s := sandboxtest.Start(t, sandbox.Options{HoldfastReplicas: 2, KeepsRegistrations: true})
	g := NewWithT(t)
	c := admin(t, s)
	kinds := []client.ObjectList{
		&admissionregistrationv1.MutatingWebhookConfigurationList{}, &admissionregistrationv1.ValidatingWebhookConfigurationList{},
		&admissionregistrationv1.ValidatingAdmissionPolicyList{}, &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
	}
	registered := func(ctx context.Context) (all []client.Object) {
		for _, list := range kinds {
			g.Expect(c.List(ctx, list)).To(Succeed())
			g.Expect(meta.EachListItem(list, func(o runtime.Object) error {
				if o := o.(client.Object); strings.HasPrefix(o.GetName(), "holdfast") {
					all = append(all, o)
				}
				return nil
			})).To(Succeed())
		}
		return all
	}
	elected(t, s, nil)
	refuses(t, c)
	all := registered(t.Context())
	g.Expect(all).To(HaveLen(10))

	for _, replica := range s.Holdfasts() {
		g.Expect(replica.Pause()).To(Succeed())
	}
	for _, o := range all {
		g.Expect(c.Delete(t.Context(), o)).To(Succeed())
	}
	g.Expect(registered(t.Context())).To(BeEmpty())
	killed := time.Now()
	for _, replica := range s.Holdfasts() {
		g.Expect(replica.Process().Signal(syscall.SIGKILL)).To(Succeed())
	}
	g.Eventually(t.Context(), registered).WithTimeout(3 * time.Minute).WithPolling(50 * time.Millisecond).Should(HaveLen(len(all)))
	back := time.Since(killed)
	_, err := s.Elected(t.Context())
	g.Expect(err).To(HaveOccurred(), "it did not wait for an election")
	refuses(t, c)
	t.Logf("all registrations are back after %s, a delete is refused after %s, of which a replica was started again after 1 s", back, time.Since(killed))
	g.Expect(back).To(BeNumerically("<", time.Minute))
}

// TestEndpointsAreGone: all members that Holdfast was told of have been replaced when it starts. It finds the others by what
// the Holdfast before it wrote down.
func TestEndpointsAreGone(t *testing.T) {
	t.Parallel()
	s := sandboxtest.Start(t, sandbox.Options{Replicas: 1})
	g := NewWithT(t)
	c := admin(t, s)
	told := func(ctx context.Context) (*snapshotfile.Ring, error) {
		cm := &corev1.ConfigMap{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: "holdfast-system", Name: snapshotfile.RingName}, cm); err != nil {
			return nil, err
		}
		return snapshotfile.ParseRing(cm.Data)
	}
	known := func(before string) func(context.Context) error {
		return func(ctx context.Context) error {
			ring, err := told(ctx)
			if err == nil && (!ring.Snapshot.Ring.Known || ring.By == before) {
				err = fmt.Errorf("%s: %s", ring.By, ring.Snapshot.Ring.Why)
			}
			return err
		}
	}
	g.Eventually(t.Context(), known("")).WithTimeout(3 * time.Minute).Should(Succeed())
	before, err := told(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Holdfast.Stop()).To(Succeed())

	next, err := s.SecondHoldfast("--endpoints=https://127.0.0.1:1")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = next.Signal(syscall.SIGKILL); <-next.Done() })
	g.Eventually(t.Context(), known(before.By)).WithTimeout(3 * time.Minute).Should(Succeed())
}

// elected waits for a leader that is not that process.
func elected(t *testing.T, s *sandbox.Sandbox, but *process.Process) (leader *sandbox.Component) {
	t.Helper()
	NewWithT(t).Eventually(t.Context(), func(ctx context.Context) (err error) {
		if leader, err = s.Elected(ctx); err == nil && leader.Process() == but {
			err = fmt.Errorf("%s still leads", leader.Name)
		}
		return err
	}).WithTimeout(3 * time.Minute).WithPolling(100 * time.Millisecond).Should(Succeed())
	return leader
}

// refuses waits until the deletion of a second Machine would be refused by rule. While no replica answers it would
// pass, since the hook holds the Machine.
func refuses(t *testing.T, c client.Client) {
	t.Helper()
	remove := func(ctx context.Context, name string, options ...client.DeleteOption) error {
		m := &machinev1beta1.Machine{}
		m.Namespace, m.Name = sandbox.MachineNamespace, name
		return c.Delete(ctx, m, options...)
	}
	g := NewWithT(t)
	// A Machine whose hook is about to be added is not deleted yet: Holdfast may have been killed before it added them.
	g.Eventually(t.Context(), remove).WithArguments("master-0").WithTimeout(2 * time.Minute).Should(Succeed())
	g.Eventually(t.Context(), remove).WithArguments("master-1", client.DryRunAll).WithTimeout(2 * time.Minute).Should(
		And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring(string(quorum.RuleOneTooMany)))))
}
