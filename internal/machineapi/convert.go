package machineapi

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// zoneLabel is the failure domain on a Machine; the Machine API's providers write it.
const zoneLabel = "machine.openshift.io/zone"

// Object is a Machine as it is in an AdmissionReview. Make it with Decode.
type Object struct {
	machinev1beta1.Machine        // as much of it as the guard looks at
	Raw                    []byte // all of it, JSON

	managedFields jsontext.Value // its metadata.managedFields
	spec, hooks   bool           // it has a spec, and lifecycleHooks in it
}

// Decode reads as much of a Machine's JSON as the guard looks at: metadata, the hooks, and what says
// where the Machine runs. The rest is most of the bytes, and decoding it would be most of the time that
// a request takes.
func Decode(raw []byte) (*Object, error) {
	var in struct {
		Metadata struct {
			metav1.ObjectMeta `json:",inline"`
			ManagedFields     jsontext.Value `json:"managedFields"` // in the place of ObjectMeta's: not decoded
		} `json:"metadata"`
		Spec *struct {
			LifecycleHooks *machinev1beta1.LifecycleHooks `json:"lifecycleHooks"`
			ProviderID     *string                        `json:"providerID"`
		} `json:"spec"`
		Status struct {
			Phase            *string                         `json:"phase"`
			NodeRef          *corev1.ObjectReference         `json:"nodeRef"`
			Addresses        []corev1.NodeAddress            `json:"addresses"`
			ProviderStatus   *runtime.RawExtension           `json:"providerStatus"`
			AuthoritativeAPI machinev1beta1.MachineAuthority `json:"authoritativeAPI"`
		} `json:"status"`
	}
	if err := ReadJSON(raw, &in); err != nil {
		return nil, fmt.Errorf("decoding a Machine: %w", err)
	}
	m := &Object{Raw: raw, managedFields: in.Metadata.ManagedFields}
	m.ObjectMeta = in.Metadata.ObjectMeta
	if in.Spec != nil {
		m.spec, m.Spec.ProviderID = true, in.Spec.ProviderID
		if in.Spec.LifecycleHooks != nil {
			m.hooks, m.Spec.LifecycleHooks = true, *in.Spec.LifecycleHooks
		}
	}
	m.Status.Phase, m.Status.NodeRef, m.Status.Addresses = in.Status.Phase, in.Status.NodeRef, in.Status.Addresses
	m.Status.ProviderStatus, m.Status.AuthoritativeAPI = in.Status.ProviderStatus, in.Status.AuthoritativeAPI
	return m, nil
}

// ReadJSON reads what an API server has written, as its own reader would: keys count with their case. It reads each byte
// once where that one does three times. It takes a key that is there twice and text that is not UTF-8, too: an API server passes
// on some of the latter, and a reader that looks for duplicate keys must remember all keys, of which a user may write many.
func ReadJSON(raw []byte, into any) error {
	return json.Unmarshal(raw, into, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// Machine is the Machine as the guard sees it.
func Machine(m *machinev1beta1.Machine) quorum.Machine {
	out := quorum.Machine{
		Name:        m.Name,
		UID:         string(m.UID),
		Role:        m.Labels[quorum.RoleLabel],
		Type:        m.Labels[quorum.TypeLabel],
		Mirrored:    m.Status.AuthoritativeAPI != "" && m.Status.AuthoritativeAPI != machinev1beta1.MachineAuthorityMachineAPI,
		CreatedAt:   m.CreationTimestamp.Time,
		DeletedAt:   ptr.Deref(m.DeletionTimestamp, metav1.Time{}).Time,
		NodeName:    ptr.Deref(m.Status.NodeRef, corev1.ObjectReference{}).Name,
		Hook:        kindHook.entry(m),
		Latch:       kindLatch.entry(m),
		Finalizer:   slices.Contains(m.Finalizers, quorum.Finalizer),
		EvidenceRaw: m.Annotations[quorum.EvidenceAnnotation],
		Override:    m.Annotations[quorum.OverrideAnnotation],
		OverrideBy:  m.Annotations[quorum.OverrideByAnnotation],
		ProviderID:  ptr.Deref(m.Spec.ProviderID, ""),
		Phase:       ptr.Deref(m.Status.Phase, ""),
		Zone:        m.Labels[zoneLabel],
	}
	for _, hook := range slices.Concat(m.Spec.LifecycleHooks.PreDrain, m.Spec.LifecycleHooks.PreTerminate) {
		if hook.Name != quorum.HookName && hook.Name != quorum.LatchName {
			out.OtherHooks = append(out.OtherHooks, hook.Name+" of "+hook.Owner)
		}
	}
	for key := range m.Annotations {
		switch key {
		case quorum.EvidenceAnnotation, quorum.OverrideAnnotation, quorum.OverrideByAnnotation, quorum.IdleAnnotation, "holdfast.dev/release-reason", "holdfast.dev/template-hash", "holdfast.dev/auto-repair", "holdfast.dev/auto-repair-after":
		default:
			if strings.HasPrefix(key, "holdfast.dev/") && (out.Misspelled == "" || key < out.Misspelled) {
				out.Misspelled = key
			}
		}
	}
	out.Marked = out.UID != "" && m.Annotations[quorum.IdleAnnotation] == out.UID
	_, out.Remediating = m.Annotations[quorum.RemediationAnnotation]
	out.Drained = slices.ContainsFunc(m.Status.Conditions, func(c machinev1beta1.Condition) bool {
		return c.Type == machinev1beta1.MachineDrained && c.Status == corev1.ConditionTrue
	})
	if out.EvidenceRaw != "" {
		// The zero Evidence of an annotation that does not parse joins nothing, so a member that only
		// it could place stays unknown, which holds; EvidenceRaw keeps it from being lost.
		out.Evidence, _ = ParseEvidence(out.EvidenceRaw)
	}
	out.Addresses, out.HostNames = hosts(m.Status.Addresses)
	out.StatusInstances, out.InstanceID = instances(m)
	for _, o := range m.OwnerReferences {
		group, _, ok := strings.Cut(o.APIVersion, "/")
		if !ok {
			group = "" // the core group has a version alone
		}
		out.Owners = append(out.Owners, quorum.Owner{Group: group, Kind: o.Kind, Name: o.Name, UID: string(o.UID), Controller: ptr.Deref(o.Controller, false)})
	}
	for i, annotation := range quorum.InstanceAnnotations {
		out.Instance[i] = m.Annotations[annotation.Key]
	}
	return out
}

// Node is the Node as the guard sees it.
func Node(n *corev1.Node) quorum.Node {
	out := quorum.Node{
		Name:       n.Name,
		ProviderID: n.Spec.ProviderID,
		Zone:       n.Labels[corev1.LabelTopologyZone],
		CreatedAt:  n.CreationTimestamp.Time,
		Cordoned:   n.Spec.Unschedulable,
		Ready: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}),
	}
	// A time that does not parse is no time: the Node then waits in its usual place.
	out.GaveWayAt, _ = time.Parse(time.RFC3339, n.Annotations[quorum.GaveWayAnnotation])
	out.Addresses, out.HostNames = hosts(n.Status.Addresses)
	return out
}

// hosts sorts addresses into those that a peer URL may hold: InternalIPs and host names. An
// InternalIP that does not parse is kept among the names: it says that there is an instance, and a
// peer URL that holds it meets it there.
func hosts(all []corev1.NodeAddress) (addrs []netip.Addr, names []string) {
	for _, a := range all {
		switch a.Type {
		case corev1.NodeInternalIP:
			if addr, err := netip.ParseAddr(strings.Trim(a.Address, "[]")); err == nil {
				addrs = append(addrs, addr.Unmap())
				continue
			}
		case corev1.NodeHostName, corev1.NodeInternalDNS:
		default: // no peer URL points at an external address
			continue
		}
		if name := strings.ToLower(strings.TrimSuffix(a.Address, ".")); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return addrs, names
}

// instances are the IDs of instances that the status has, and whether it hints at one at all. Each provider has its own type of status, so it
// is read key by key; one that cannot be read may name an instance.
func instances(m *machinev1beta1.Machine) (ids []string, hints bool) {
	hints = len(m.Status.Addresses) > 0
	if m.Status.ProviderStatus == nil || len(m.Status.ProviderStatus.Raw) == 0 {
		return nil, hints
	}
	var status map[string]jsontext.Value
	if ReadJSON(m.Status.ProviderStatus.Raw, &status) != nil {
		return nil, true
	}
	for key, value := range status {
		if s := string(value); s == `""` || s == "null" {
			continue
		}
		switch strings.ToLower(key) {
		case "instanceid", "vmid", "vmuuid":
			hints = true
			var id string
			if ReadJSON(value, &id) == nil {
				ids = append(ids, id)
			}
		case "instancestate", "vmstate", "taskref":
			hints = true
		}
	}
	slices.Sort(ids)
	return ids, hints
}
