package install_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// rollout replaces all replicas under load: nothing is answered wrongly, no Machine is without hook, latch and
// evidence at any time, and a new replica leads.
func (f *fixture) rollout(requests map[string]request, manifests []byte) {
	f.t.Helper()
	f.rolloutBy(requests, func() { f.install(manifests) })
}

// rolloutBy is rollout by what install does.
func (f *fixture) rolloutBy(requests map[string]request, install func()) {
	f.t.Helper()
	before := map[types.UID]bool{}
	for _, pod := range f.pods() {
		before[pod.UID] = true
	}
	var l *tally
	bare := f.bare(func() {
		l = f.load(requests, func() {
			install()
			f.Eventually(func(g gomega.Gomega) {
				pods := f.pods()
				g.Expect(pods).To(gomega.HaveLen(2))
				for _, pod := range pods {
					g.Expect(before).NotTo(gomega.HaveKey(pod.UID))
				}
			}).Should(gomega.Succeed())
			f.leads()
		})
	})
	f.Expect(l.wrong).To(gomega.BeEmpty())
	f.Expect(bare).To(gomega.BeEmpty())
}

// leads waits until one of the pods that are there has told the ring, which the elected replica does.
func (f *fixture) leads() {
	f.t.Helper()
	f.Eventually(func(g gomega.Gomega) {
		var cm corev1.ConfigMap
		g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: snapshotfile.RingName}, &cm)).To(gomega.Succeed())
		ring, err := snapshotfile.ParseRing(cm.Data)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		var pids []string
		for _, pod := range f.pods() {
			proc, err := f.sandbox.PodProcess(pod.Namespace, pod.Name)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			pids = append(pids, fmt.Sprint(proc.PID()))
		}
		_, by, _ := strings.Cut(ring.By, "/")
		g.Expect(pids).To(gomega.ContainElement(by))
	}).Should(gomega.Succeed())
}

// bare are the Machines that were seen without hook, latch or evidence while run ran.
func (f *fixture) bare(run func()) []string {
	f.t.Helper()
	ctx := f.t.Context()
	var list machinev1beta1.MachineList
	f.Expect(f.admin.List(ctx, &list, client.InNamespace(sandbox.MachineNamespace))).To(gomega.Succeed())
	f.Expect(list.Items).To(gomega.HaveLen(3))
	var found []string
	for i := range list.Items {
		if err := intact(&list.Items[i]); err != nil {
			found = append(found, list.Items[i].Name+" at the beginning: "+err.Error())
		}
	}
	changes, err := f.admin.Watch(ctx, &machinev1beta1.MachineList{}, client.InNamespace(sandbox.MachineNamespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	f.Expect(err).NotTo(gomega.HaveOccurred())
	defer changes.Stop()
	var (
		watcher sync.WaitGroup
		over    atomic.Bool
	)
	watcher.Go(func() {
		for event := range changes.ResultChan() {
			m, ok := event.Object.(*machinev1beta1.Machine)
			if !ok {
				break
			}
			if err := intact(m); err != nil || event.Type == watch.Deleted {
				found = append(found, fmt.Sprintf("%s %s at %s: %v", m.Name, event.Type, m.ResourceVersion, err))
			}
		}
		if !over.Load() {
			found = append(found, "the watch ended early")
		}
	})
	run()
	over.Store(true)
	changes.Stop()
	watcher.Wait()
	return found
}
