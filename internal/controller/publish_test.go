package controller

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
)

// world is what a Publisher's second look sees.
type world struct{ snapshot *quorum.Snapshot }

func (w *world) look(context.Context) (*quorum.Snapshot, error) { return w.snapshot, nil }

// ringOf is a Snapshot of started voters on Nodes of their own, 10.0.0.<id>.
func ringOf(at time.Time, ids ...byte) *quorum.Snapshot {
	s := &quorum.Snapshot{Mode: quorum.ModeFull, Now: at, Ring: quorum.Ring{Known: true}}
	for _, id := range ids {
		address := netip.AddrFrom4([4]byte{10, 0, 0, id})
		name := "master-" + quorum.MemberID(id).Hex()
		s.Ring.Members = append(s.Ring.Members, quorum.Member{
			ID: quorum.MemberID(id), Name: name, Healthy: true,
			PeerURLs: []string{"https://" + address.String() + ":2380"}, ClientURLs: []string{"https://" + address.String() + ":2379"},
		})
		s.Nodes = append(s.Nodes, quorum.Node{Name: name, Ready: true, Zone: "a", Addresses: []netip.Addr{address}})
	}
	return s
}

// TestPublish: what a real API server holds after each look at the ring.
func TestPublish(t *testing.T) {
	t.Parallel()
	api := startAPI(t)
	ctx := t.Context()
	seen := &world{}
	p := &Publisher{Client: api, Namespace: hostenv.Namespace, Log: logr.Discard()}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var failed error // the last time
	publish := func(s *quorum.Snapshot) bool {
		t.Helper()
		if seen.snapshot == nil {
			seen.snapshot = s
		}
		failed = p.Publish(ctx, quorum.NewJoin(s), seen.look)
		return failed == nil
	}

	// Without the namespace it fails, later and later, and not at each round.
	failures := 0
	for range 600 {
		if !publish(ringOf(now, 1, 2, 3)) {
			failures++
		}
		now = now.Add(requeueSoon)
	}
	if failures < 8 || failures > 14 {
		t.Errorf("it failed %d times in a minute", failures)
	}
	must(t, api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostenv.Namespace}}))
	publish(ringOf(now, 1, 2, 3))
	if err := api.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.Name}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Errorf("it tries at each round: %v", err)
	}
	now = now.Add(requeueIdle)

	// Where cluster-etcd-operator is here, they are that operator's.
	driven := ringOf(now, 1, 2, 3)
	driven.OtherDriver = "ClusterOperator etcd"
	if !publish(driven) {
		t.Error("it asks for another round, and somebody else publishes")
	}
	if err := api.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.Name}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Errorf("published beside cluster-etcd-operator: %v", err)
	}

	// All of it, as the API server takes it.
	if !publish(ringOf(now, 1, 2, 3)) {
		t.Errorf("not published: %v", failed)
	}
	three := map[string]string{"1": "10.0.0.1", "2": "10.0.0.2", "3": "10.0.0.3"}
	wantEndpoints := func(want map[string]string, ready ...bool) {
		t.Helper()
		var cm corev1.ConfigMap
		must(t, api.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.EndpointsName}, &cm))
		if diff := cmp.Diff(want, cm.Data); diff != "" {
			t.Errorf("ConfigMap: %s", diff)
		}
		var slice discoveryv1.EndpointSlice
		must(t, api.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: "etcd-ipv4"}, &slice))
		var got []bool
		for _, e := range slice.Endpoints {
			if want[e.Addresses[0][len("10.0.0."):]] != e.Addresses[0] || e.NodeName == nil || *e.Zone != "a" {
				t.Errorf("EndpointSlice: %+v", e)
			}
			got = append(got, *e.Conditions.Ready)
		}
		if !slices.Equal(got, ready) || slice.Labels[discoveryv1.LabelServiceName] != "etcd" || *slice.Ports[0].Port != 2379 {
			t.Errorf("EndpointSlice: ready %v, want %v: %+v", got, ready, slice)
		}
	}
	environments := func() *corev1.ConfigMap {
		t.Helper()
		var cm corev1.ConfigMap
		must(t, api.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.Name}, &cm))
		return &cm
	}
	wantEndpoints(three, true, true, true)
	first := environments()
	if want := "ETCD_INITIAL_CLUSTER=master-1=https://10.0.0.1:2380,master-2=https://10.0.0.2:2380,master-3=https://10.0.0.3:2380\n" +
		"ETCD_INITIAL_CLUSTER_STATE=existing\nETCD_MEMBER_IDS=1=https://10.0.0.1:2380,2=https://10.0.0.2:2380,3=https://10.0.0.3:2380\n"; first.Data["master-2"] != want || len(first.Data) != 3 {
		t.Errorf("environments: %q", first.Data)
	}

	// Nothing is written that is as it was.
	if !publish(ringOf(now, 1, 2, 3)) || environments().ResourceVersion != first.ResourceVersion {
		t.Error("a round at rest wrote")
	}

	// A voter that is ill stays listed, a learner is none.
	ill := ringOf(now, 1, 2, 3, 4)
	ill.Ring.Members[1].Healthy, ill.Ring.Members[3].Learner, ill.Ring.Members[3].Name = false, true, ""
	seen.snapshot = ill
	if !publish(ill) {
		t.Error("not published")
	}
	wantEndpoints(three, true, false, true)
	if e, err := hostenv.Parse(environments().Data["master-4"]); err != nil || len(e.Members) != 4 || len(e.InitialCluster) != 4 {
		t.Errorf("the learner's environment: %+v, %v", e, err)
	}

	// A read that failed, the first one or the second one, changes nothing.
	unknown := &quorum.Snapshot{Mode: quorum.ModeFull, Now: now, Ring: quorum.Ring{Why: "no answer in time"}}
	before := environments().ResourceVersion
	if !publish(unknown) {
		t.Error("an unknown ring asks for another round by itself")
	}
	seen.snapshot = unknown
	if publish(ringOf(now, 1)) {
		t.Error("published what a second look did not see")
	}
	if environments().ResourceVersion != before {
		t.Error("a failed read wrote")
	}
	wantEndpoints(three, true, false, true)

	// The second look counts, not the first: this round began before the ring changed.
	seen.snapshot = ringOf(now, 1, 2)
	if !publish(ringOf(now, 1)) {
		t.Error("not published")
	}
	wantEndpoints(map[string]string{"1": "10.0.0.1", "2": "10.0.0.2"}, true, true)

	// Another Holdfast writes between this one's look and its write: its word stands.
	p.Client = interceptor.NewClient(api, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if cm, ok := o.(*corev1.ConfigMap); ok && cm.Name == hostenv.EndpointsName {
				other := &Publisher{Client: api, Namespace: hostenv.Namespace}
				must(t, other.Publish(ctx, quorum.NewJoin(ringOf(now, 1, 2, 3)), (&world{ringOf(now, 1, 2, 3)}).look))
			}
			return c.Update(ctx, o, opts...)
		},
	})
	seen.snapshot = ringOf(now, 1)
	if publish(ringOf(now, 1)) {
		t.Error("it lost and does not look again")
	}
	p.Client = api
	wantEndpoints(three, true, true, true)

	// What somebody edited is put right; guard mode leaves all alone.
	edited := environments()
	edited.Data = map[string]string{"master-1": "ETCD_MEMBER_IDS=bad=https://10.0.0.66:2380\n"}
	must(t, api.Update(ctx, edited))
	guard := ringOf(now, 1, 2, 3)
	guard.Mode = quorum.ModeGuard
	seen.snapshot = ringOf(now, 1, 2, 3)
	if !publish(guard) || environments().ResourceVersion != edited.ResourceVersion {
		t.Error("guard mode wrote")
	}
	if !publish(ringOf(now, 1, 2, 3)) || environments().Data["master-2"] != first.Data["master-2"] || len(environments().Data) != 3 {
		t.Errorf("after an edit: %q", environments().Data)
	}

	// What somebody made immutable is made anew, with what others put beside.
	var fixed corev1.ConfigMap
	must(t, api.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.EndpointsName}, &fixed))
	fixed.Immutable, fixed.Annotations = new(true), map[string]string{observe.BootstrapAnnotation: "10.0.0.9"}
	must(t, api.Update(ctx, &fixed))
	seen.snapshot = ringOf(now, 1, 2)
	if !publish(ringOf(now, 1, 2)) || p.failures() != nil {
		t.Errorf("an immutable one: %v, %v", failed, p.failures())
	}
	wantEndpoints(map[string]string{"1": "10.0.0.1", "2": "10.0.0.2"}, true, true)
	must(t, api.Get(ctx, client.ObjectKeyFromObject(&fixed), &fixed))
	if fixed.Immutable != nil || fixed.Annotations[observe.BootstrapAnnotation] != "10.0.0.9" {
		t.Errorf("made anew: %+v", fixed)
	}

	// What cannot be written is told, with since when, until it is written or need not be.
	p.Client = interceptor.NewClient(api, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if o.GetName() == hostenv.Name {
				return errors.New("exceeded quota")
			}
			return c.Update(ctx, o, opts...)
		},
	})
	since := now
	for range 3 {
		seen.snapshot = ringOf(now, 1, 2, 3)
		publish(ringOf(now, 1, 2, 3))
		now = now.Add(requeueIdle)
	}
	want := []quorum.Failure{{Reason: string(membership.ReasonMembershipNotPublished), What: "write ConfigMap openshift-etcd/etcd-membership", Since: since, Why: "exceeded quota"}}
	if diff := cmp.Diff(want, p.failures()); diff != "" {
		t.Error(diff)
	}
	seen.snapshot = ringOf(now, 1, 2)
	if publish(ringOf(now, 1, 2)); p.failures() != nil {
		t.Errorf("it stands as it should: %v", p.failures())
	}
}

// TestSliceFamilies: addresses go to the slice of their family; what the API server takes in none
// (loopback, host names) is in the ConfigMap alone.
func TestSliceFamilies(t *testing.T) {
	var endpoints []hostenv.Endpoint
	for _, text := range []string{"10.0.0.1", "fd00::1", "127.0.0.1", "::1", "169.254.1.1", "0.0.0.0"} {
		endpoints = append(endpoints, hostenv.Endpoint{Host: text, Address: netip.MustParseAddr(text), Port: 2379})
	}
	endpoints = append(endpoints, hostenv.Endpoint{Host: "etcd.example", Port: 2379}, hostenv.Endpoint{Host: "10.0.0.2", Address: netip.MustParseAddr("10.0.0.2"), Port: 4001})
	got := map[discoveryv1.AddressType][]string{}
	for _, family := range families() {
		for _, e := range renderSlice(&discoveryv1.EndpointSlice{}, family, endpoints).Endpoints {
			got[family] = append(got[family], e.Addresses...)
		}
	}
	if diff := cmp.Diff(map[discoveryv1.AddressType][]string{discoveryv1.AddressTypeIPv4: {"10.0.0.1"}, discoveryv1.AddressTypeIPv6: {"fd00::1"}}, got); diff != "" {
		t.Error(diff)
	}
}

// startAPI is a client of a real API server.
func startAPI(t *testing.T) client.WithWatch {
	t.Helper()
	api, err := client.NewWithWatch(apiserver.Start(t).Config, client.Options{})
	must(t, err)
	return api
}

// where the Machines are.
const where = "openshift-machine-api"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPublishReadsSeldom: what was correct is not read at each look, and an edit is put back all the same.
func TestPublishReadsSeldom(t *testing.T) {
	t.Parallel()
	api := startAPI(t)
	ctx := t.Context()
	must(t, api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostenv.Namespace}}))
	reads := 0
	counting := interceptor.NewClient(api, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
		reads++
		return c.Get(ctx, key, into, o...)
	}})
	p := &Publisher{Client: counting, Namespace: hostenv.Namespace, Log: logr.Discard()}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	look := func(after time.Duration, voters ...byte) int {
		t.Helper()
		now, reads = now.Add(after), 0
		s := ringOf(now, voters...)
		must(t, p.Publish(ctx, quorum.NewJoin(s), (&world{s}).look))
		return reads
	}
	for _, is := range []struct {
		what string
		n    int
		want int
	}{
		{"it publishes", look(0, 1, 2, 3), 4},
		{"it sees what it wrote", look(time.Second, 1, 2, 3), 4},
		{"that stands", look(time.Second, 1, 2, 3), 0},
		{"another content", look(time.Second, 1, 2, 4), 4},
		{"it sees what it wrote again", look(time.Second, 1, 2, 4), 4},
		{"that stands, too", look(time.Second, 1, 2, 4), 0},
	} {
		if is.n != is.want {
			t.Errorf("%s: %d reads, want %d", is.what, is.n, is.want)
		}
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: hostenv.Namespace, Name: hostenv.EndpointsName}}
	must(t, api.Patch(ctx, cm, client.RawPatch(types.MergePatchType, []byte(`{"data":{"4":"edited"}}`))))
	look(reviewEvery, 1, 2, 4)
	must(t, api.Get(ctx, client.ObjectKeyFromObject(cm), cm))
	if cm.Data["4"] != "10.0.0.4" {
		t.Errorf("after the review it is still %v", cm.Data)
	}
}
