package machineapi_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func full() *machinev1beta1.Machine {
	return &machinev1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Name: "cp-1", UID: "u-1", CreationTimestamp: metav1.Unix(100, 0), DeletionTimestamp: new(metav1.Unix(200, 0)),
			Labels:     map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "worker", "machine.openshift.io/zone": "zone-a"},
			Finalizers: []string{"example.com/other", quorum.Finalizer},
			Annotations: map[string]string{
				quorum.EvidenceAnnotation: `{"machineUID":"u-1","machine":"cp-1","memberIDs":["8e9e05c52164694d"],"peerAddresses":["10.0.0.1"]}`,
				quorum.OverrideAnnotation: "held: x", quorum.OverrideByAnnotation: "alice",
				"metal3.io/BareMetalHost": "machines/host-1", "openstack-resourceId": "server-1",
			},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "machine.openshift.io/v1beta1", Kind: "MachineSet", Name: "set", UID: "s", Controller: new(true)},
				{APIVersion: "v1", Kind: "ConfigMap", Name: "map", UID: "m", Controller: new(false)}, {APIVersion: "v1", Kind: "Secret", Name: "secret", UID: "n"},
			},
		},
		Spec: machinev1beta1.MachineSpec{
			ProviderID: new("process:///1"),
			LifecycleHooks: machinev1beta1.LifecycleHooks{
				PreDrain:     []machinev1beta1.LifecycleHook{{Name: "Other", Owner: "x"}, {Name: quorum.HookName, Owner: quorum.HookOwner}},
				PreTerminate: []machinev1beta1.LifecycleHook{{Name: quorum.LatchName, Owner: "somebody"}},
			},
		},
		Status: machinev1beta1.MachineStatus{
			Phase: new("Deleting"), NodeRef: &corev1.ObjectReference{Name: "node-1"},
			ProviderStatus: &runtime.RawExtension{Raw: []byte(`{"instanceId":"i-1"}`)},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "[fd00::1]"},
				{Type: corev1.NodeInternalIP, Address: "::ffff:10.0.0.2"}, {Type: corev1.NodeInternalIP, Address: "10.0.0"},
				{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeExternalDNS, Address: "out.example.com"},
				{Type: corev1.NodeHostName, Address: "Node-1"}, {Type: corev1.NodeInternalDNS, Address: "node-1.example.com."},
				{Type: corev1.NodeInternalDNS, Address: "node-1"}, {Type: corev1.NodeHostName, Address: ""},
			},
		},
	}
}

func TestMachine(t *testing.T) {
	want := quorum.Machine{
		Name: "cp-1", UID: "u-1", Role: "master", Type: "worker", CreatedAt: time.Unix(100, 0), DeletedAt: time.Unix(200, 0),
		Hook: quorum.EntryOurs, Latch: quorum.EntryForeign, Finalizer: true,
		Evidence:    quorum.Evidence{MachineUID: "u-1", Machine: "cp-1", MemberIDs: []quorum.MemberID{0x8e9e05c52164694d}, Addresses: []netip.Addr{addr("10.0.0.1")}},
		EvidenceRaw: full().Annotations[quorum.EvidenceAnnotation], Override: "held: x", OverrideBy: "alice", OtherHooks: []string{"Other of x"},
		Owners: []quorum.Owner{
			{Group: "machine.openshift.io", Kind: "MachineSet", Name: "set", UID: "s", Controller: true},
			{Kind: "ConfigMap", Name: "map", UID: "m"}, {Kind: "Secret", Name: "secret", UID: "n"},
		},
		Instance:   [...]string{"machines/host-1", "server-1"},
		ProviderID: "process:///1", Phase: "Deleting", NodeName: "node-1", InstanceID: true, StatusInstances: []string{"i-1"},
		Addresses: []netip.Addr{addr("10.0.0.1"), addr("fd00::1"), addr("10.0.0.2")},
		HostNames: []string{"10.0.0", "node-1", "node-1.example.com"}, Zone: "zone-a",
	}
	if diff := cmp.Diff(want, machineapi.Machine(full()), compareAddrs); diff != "" {
		t.Error(diff)
	}
	empty := quorum.Machine{Hook: quorum.EntryAbsent, Latch: quorum.EntryAbsent}
	if diff := cmp.Diff(empty, machineapi.Machine(&machinev1beta1.Machine{})); diff != "" {
		t.Errorf("a Machine without anything: %s", diff)
	}
	misspelled := full()
	misspelled.Annotations["holdfast.dev/zzz"], misspelled.Annotations["holdfast.dev/overide"] = "", ""
	if got := machineapi.Machine(misspelled).Misspelled; got != "holdfast.dev/overide" {
		t.Errorf("misspelled: %q", got)
	}
}

// TestDecode: of a Machine as JSON, Decode keeps all that Machine reads.
func TestDecode(t *testing.T) {
	raw, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	m, err := machineapi.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(machineapi.Machine(full()), machineapi.Machine(&m.Machine), compareAddrs); diff != "" {
		t.Error(diff)
	}
	m, err = machineapi.Decode([]byte(`{"Metadata":{"name":"x"},"spec":{"lifecyclehooks":{"preDrain":[{"name":"x"}]}}}`))
	if err != nil || m.Name != "" || m.Spec.LifecycleHooks.PreDrain != nil {
		t.Errorf("keys in another case were read: %+v, %v", m, err)
	}
}

// TestMachineHolds has input that is wrong or missing: none of it makes a Machine look as if it had
// never had an instance.
func TestMachineHolds(t *testing.T) {
	for name, change := range map[string]func(*machinev1beta1.Machine){
		"an address that is none":     func(m *machinev1beta1.Machine) { m.Status.Addresses = node(corev1.NodeInternalIP, "10.0.0") },
		"an external address alone":   func(m *machinev1beta1.Machine) { m.Status.Addresses = node(corev1.NodeExternalIP, "192.0.2.1") },
		"evidence that is no JSON":    func(m *machinev1beta1.Machine) { annotate(m, "{") },
		"status that is no JSON":      func(m *machinev1beta1.Machine) { provide(m, `{`) },
		"status that is no object":    func(m *machinev1beta1.Machine) { provide(m, `["i-1"]`) },
		"instanceId":                  func(m *machinev1beta1.Machine) { provide(m, `{"instanceId":"i-1"}`) },
		"instanceID as a number":      func(m *machinev1beta1.Machine) { provide(m, `{"instanceID":7}`) },
		"vmId":                        func(m *machinev1beta1.Machine) { provide(m, `{"vmId":"/subscriptions/x"}`) },
		"vmUUID":                      func(m *machinev1beta1.Machine) { provide(m, `{"vmUUID":"x"}`) },
		"a state without an ID":       func(m *machinev1beta1.Machine) { provide(m, `{"instanceState":"pending"}`) },
		"a task that makes a machine": func(m *machinev1beta1.Machine) { provide(m, `{"taskRef":"task-7"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "u-1"}}
			change(m)
			got := machineapi.Machine(m)
			if got.NeverHadInstance() {
				t.Errorf("%+v counts as never having had an instance", got)
			}
			if own := got.OwnEvidence(); own.MachineUID != "" {
				t.Errorf("evidence %+v counts as its own", own)
			}
		})
	}
	for _, status := range []string{`{}`, `null`, `{"instanceId":"","vmId":null}`, `{"conditions":[]}`} {
		m := &machinev1beta1.Machine{}
		provide(m, status)
		if got := machineapi.Machine(m); !got.NeverHadInstance() {
			t.Errorf("provider status %s names an instance", status)
		}
	}
}

func node(kind corev1.NodeAddressType, address string) []corev1.NodeAddress {
	return []corev1.NodeAddress{{Type: kind, Address: address}}
}

func annotate(m *machinev1beta1.Machine, evidence string) {
	m.Annotations = map[string]string{quorum.EvidenceAnnotation: evidence}
}

func provide(m *machinev1beta1.Machine, status string) {
	m.Status.ProviderStatus = &runtime.RawExtension{Raw: []byte(status)}
}

func TestMirrored(t *testing.T) {
	for authority, want := range map[machinev1beta1.MachineAuthority]bool{"": false, "MachineAPI": false, "ClusterAPI": true, "Migrating": true} {
		m := &machinev1beta1.Machine{Status: machinev1beta1.MachineStatus{AuthoritativeAPI: authority}}
		if got := machineapi.Machine(m); got.Mirrored != want {
			t.Errorf("authority %q: mirrored is %t", authority, got.Mirrored)
		}
	}
}

func TestNode(t *testing.T) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-1", CreationTimestamp: metav1.Unix(100, 0), Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"},
			Annotations: map[string]string{quorum.GaveWayAnnotation: "2026-01-02T03:04:05Z"},
		},
		Spec: corev1.NodeSpec{ProviderID: "process:///1"},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "fd00::1"}, {Type: corev1.NodeHostName, Address: "node-1"}},
		},
	}
	want := quorum.Node{
		Name: "node-1", ProviderID: "process:///1", Ready: true, Addresses: []netip.Addr{addr("fd00::1")}, HostNames: []string{"node-1"}, Zone: "zone-a",
		CreatedAt: time.Unix(100, 0), GaveWayAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	if diff := cmp.Diff(want, machineapi.Node(n), compareAddrs); diff != "" {
		t.Error(diff)
	}
	n.Annotations[quorum.GaveWayAnnotation] = "yesterday"
	n.Status.Conditions[1].Status = corev1.ConditionUnknown
	if got := machineapi.Node(n); got.Ready || !got.GaveWayAt.IsZero() {
		t.Errorf("%+v", got)
	}
}

func TestEvidence(t *testing.T) {
	e := quorum.Evidence{MachineUID: "u-1", Machine: "cp-1", MemberIDs: []quorum.MemberID{0x8e9e05c52164694d, 1}, Addresses: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")}}
	const text = `{"machineUID":"u-1","machine":"cp-1","memberIDs":["8e9e05c52164694d","1"],"peerAddresses":["10.0.0.1","fd00::1"]}`
	if got := machineapi.FormatEvidence(e); got != text {
		t.Error(got)
	}
	got, err := machineapi.ParseEvidence(text)
	if diff := cmp.Diff(e, got, compareAddrs); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, bad := range []string{
		``, `{`, `[]`, `{}`, `null`, `{"machineUID":"u","memberIDs":[]}`, `{"memberIDs":["1"]}`, `{"machineUID":"u","memberIDs":["0"]}`,
		`{"machineUID":"u","memberIDs":["xyz"]}`, `{"machineUID":"u","memberIDs":[1]}`, `{"machineUID":"u","memberIDs":["1"],"peerAddresses":["host"]}`,
		`{"machineUID":"u","memberIDs":["1"],"peerAddresses":[""]}`, `{"machineUID":"u","memberIDs":["1"],"peerAddresses":[null]}`,
		`{"machineUID":"u","memberIDs":["11112222333344445"]}`,
	} {
		if got, err := machineapi.ParseEvidence(bad); err == nil || got.MachineUID != "" || got.MemberIDs != nil {
			t.Errorf("%s: %+v, %v", bad, got, err)
		}
	}
}

// TestEvidenceOfNothing: a list that is empty is written as one, and not as null: what is stored is compared byte by byte.
func TestEvidenceOfNothing(t *testing.T) {
	const want = `{"machineUID":"u-1","machine":"","memberIDs":[],"peerAddresses":[],"voted":true}`
	if got := machineapi.FormatEvidence(quorum.Evidence{MachineUID: "u-1", Voted: true}); got != want {
		t.Error(got)
	}
}

func TestRecords(t *testing.T) {
	records := []quorum.Evidence{
		{MachineUID: "u-1", Machine: "cp-1", MemberIDs: []quorum.MemberID{2}, Addresses: []netip.Addr{addr("10.0.0.1")}},
		{MachineUID: "u-2", Machine: "cp-2", MemberIDs: []quorum.MemberID{0xab}, Addresses: []netip.Addr{addr("10.0.0.2")}},
	}
	data := machineapi.FormatRecords(records)
	if _, ok := data["ab"]; !ok || len(data) != 2 {
		t.Errorf("%v", data)
	}
	got, err := machineapi.ParseRecords(data)
	if diff := cmp.Diff(records, got, compareAddrs); diff != "" || err != nil {
		t.Error(diff, err)
	}
	data["note"], data["3"] = "garbled", data["2"]
	got, err = machineapi.ParseRecords(data)
	if diff := cmp.Diff(records, got, compareAddrs); diff != "" || err == nil || !strings.Contains(err.Error(), "record note") || !strings.Contains(err.Error(), "record 3") {
		t.Error(diff, err)
	}
}

func TestDesiredReplicas(t *testing.T) {
	for _, c := range []struct {
		config string
		want   int
		fails  string // a piece of the error
	}{
		{"controlPlane:\n  replicas: 3\n", 3, ""},
		{"controlPlane: {name: master, replicas: 1}\ncompute: [{replicas: 0}]", 1, ""},
		{`{"controlPlane":{"replicas":5}}`, 5, ""},
		{"controlPlane: {replicas: 2}\narbiter: {replicas: 1}", 3, ""},
		{"controlPlane: {replicas: 3}\narbiter: {name: arbiter}", 3, ""},
		{"controlPlane: {replicas: 3}\narbiter: {replicas: 1}", 4, ""},
		{"controlPlane: {replicas: 4}", 4, ""},
		{"controlPlane: {replicas: 0}", 0, "no etcd voters (controlPlane.replicas 0)"},
		{"controlPlane: {replicas: -3}", 0, "is -3"},
		{"controlPlane: {replicas: three}", 0, `is "three"`},
		{"controlPlane: {replicas: 3.5}", 0, "is 3.5"},
		{"controlPlane: {replicas: 1e9}", 0, "no number of replicas"},
		{"controlPlane: {replicas: 101}", 0, "is 101"},
		{"controlPlane: {replicas: 1}\narbiter: {replicas: many}", 0, `arbiter.replicas of the install-config is "many"`},
		{"controlPlane: {name: master}", 0, "no controlPlane.replicas"},
		{"controlPlane: {replicas: }", 0, "no controlPlane.replicas"},
		{"pullSecret: '{}'", 0, "no controlPlane.replicas"},
		{"", 0, "no controlPlane.replicas"},
		{"controlPlane: [1]", 0, "not YAML with"},
		{"pullSecret: s3cret\ncontrolPlane: {", 0, "not YAML with"},
	} {
		got, err := machineapi.DesiredReplicas(c.config)
		if got != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%q: %d, %v", c.config, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}
