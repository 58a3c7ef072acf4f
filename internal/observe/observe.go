package observe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// installConfig is where OpenShift's installer leaves the number of control-plane replicas.
func installConfig() client.ObjectKey {
	return client.ObjectKey{Namespace: "kube-system", Name: "cluster-config-v1"}
}

// Ring reads etcd's membership.
type Ring interface {
	// Read takes one linearizable read of the member list, and asks every member how it is. The
	// result says itself whether it is known.
	Read(ctx context.Context) quorum.Ring
}

// Observer makes Snapshots. All its reads are live: a cache may not have seen what just happened.
type Observer struct {
	API  client.Reader
	Etcd Ring
	// Tries creates Machines of the control plane's set in a dry run.
	Tries     client.Writer
	Namespace string // of the Machines
	Mode      quorum.Mode
	Desired   int // voters wanted; 0 to read the install-config

	// Claims are what Watch found; nil without a watch.
	Claims *Claims

	// EtcdNamespace is where the endpoints object may be marked with the address of the installer's
	// bootstrap member; "" for nowhere.
	EtcdNamespace string

	Limits quorum.Limits
	Clock  clock.PassiveClock
}

// How long a Snapshot may take: the API server waits 3 s for a webhook's answer.
const (
	EtcdTimeout = time.Second
	APITimeout  = 2 * time.Second
)

// Snapshot reads everything that can influence a decision. An error means that the Kubernetes API
// did not say; that etcd did not answer is in the Snapshot. Since when a member is as it is, one read
// does not show: see Memory.
func (o *Observer) Snapshot(ctx context.Context) (*quorum.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	s, _, err := o.snapshot(ctx)
	return s, err
}

// snapshot is Snapshot, with the objects of the Machines in it.
func (o *Observer) snapshot(ctx context.Context) (*quorum.Snapshot, []machinev1beta1.Machine, error) {
	s := &quorum.Snapshot{Mode: o.Mode, Limits: o.Limits, Began: o.Clock.Now()}
	var found machineList
	var set *machineset.Set
	var setErr error
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error {
		ctx, cancel := context.WithTimeout(within, EtcdTimeout)
		defer cancel()
		s.Ring = o.Etcd.Read(ctx)
		return nil
	})
	group.Go(func() (err error) {
		found, err = o.guarded(within)
		return err
	})
	group.Go(func() (err error) {
		s.Nodes, err = Nodes(within, o.API)
		return err
	})
	group.Go(func() (err error) {
		s.Configured, s.DesiredWhy, err = o.configured(within)
		return err
	})
	group.Go(func() (err error) {
		s.Ledger, err = o.Ledger(within)
		return err
	})
	group.Go(func() error { return o.records(within, s) })
	if o.Mode == quorum.ModeFull {
		group.Go(func() error {
			set, setErr = o.wantedBySet(within)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	s.Machines = found.machines
	switch o.want(s); {
	case setErr != nil:
		s.Desired, s.DesiredWhy = 0, setErr.Error()
	case set != nil:
		machineset.Want(s, set)
	}
	if err := o.needed(ctx, s); err != nil {
		return nil, nil, err
	}
	if o.Claims != nil {
		var names []string
		names, s.ClaimantsWhy = o.Claims.known(s)
		o.claimants(ctx, s, names)
	}
	s.Now = o.Clock.Now()
	return s, found.objects, nil
}

// Hosts reads what the rules claim and adopt want to know for a request about a Machine, beside the guarded Machines: the Machine's own Node,
// and of one without a Node, whose addresses may be a control-plane Node's, those. If it is compared with the others, they include the Machines outside the
// control plane that have its instance; if the request makes an owner its controller, which MachineSets there are.
func (o *Observer) Hosts(ctx context.Context, m *quorum.Machine, compares, adopts bool) (s *quorum.Snapshot, err error) {
	s = &quorum.Snapshot{MachineSetsWhy: "nobody asked for them"}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	switch {
	case m.NodeName != "":
		var list corev1.NodeList // RBAC grants no get
		if err := o.API.List(ctx, &list, client.MatchingFields{"metadata.name": m.NodeName}); err != nil {
			return nil, fmt.Errorf("read Node %s: %w", m.NodeName, err)
		}
		for i := range list.Items {
			s.Nodes = append(s.Nodes, machineapi.Node(&list.Items[i]))
		}
	case len(m.Addresses) > 0:
		if s.Nodes, err = Nodes(ctx, o.API); err != nil {
			return nil, err
		}
	}
	if adopts {
		s.MachineSetsWhy = ""
		if s.MachineSets, err = o.uids(ctx, machinev1beta1.GroupVersion.WithKind("MachineSetList")); err == nil {
			s.ControlPlaneMachineSets, err = o.uids(ctx, machinev1.GroupVersion.WithKind("ControlPlaneMachineSetList"))
		}
		if err != nil {
			s.MachineSetsWhy = err.Error()
		}
	}
	if compares && m.ControlPlane() {
		keys := m.InstanceKeys()
		if err := o.each(ctx, func(other *quorum.Machine) {
			if !other.ControlPlane() && slices.ContainsFunc(other.InstanceKeys(), func(key string) bool { return slices.Contains(keys, key) }) {
				s.Claimants = append(s.Claimants, *other)
			}
		}); err != nil {
			s.ClaimantsWhy = err.Error()
		}
	}
	return s, nil
}

// uids are those of all objects of a kind in the namespace: none of a kind that is not served.
func (o *Observer) uids(ctx context.Context, kind schema.GroupVersionKind) (uids []string, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	for more := true; more; more = list.Continue != "" {
		if err := o.API.List(ctx, list, client.InNamespace(o.Namespace), client.Limit(page), client.Continue(list.Continue)); apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return nil, nil
		} else if err != nil {
			return nil, fmt.Errorf("list %s in namespace %s: %w", strings.TrimSuffix(kind.Kind, "List")+"s", o.Namespace, err)
		}
		for i := range list.Items {
			uids = append(uids, string(list.Items[i].UID))
		}
	}
	return uids, nil
}

// claimants reads the Machines of these names that are none of the control plane's, live: the look that found them was a while ago.
func (o *Observer) claimants(ctx context.Context, s *quorum.Snapshot, names []string) {
	for _, name := range names {
		var m machinev1beta1.Machine
		switch err := o.API.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: name}, &m); {
		case apierrors.IsNotFound(err):
		case err != nil:
			s.ClaimantsWhy = fmt.Sprintf("read Machine %s: %v", name, err)
		default:
			if seen := machineapi.Machine(&m); !seen.ControlPlane() {
				s.Claimants = append(s.Claimants, seen)
			}
		}
	}
}

// NodeLabels are the labels of which a control-plane Node has one at least.
func NodeLabels() []string {
	return []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/arbiter"}
}

// Nodes lists the control-plane Nodes. The lists of one type are asked for at once: an API server that
// serves them from its cache has each wait, for up to 100 ms, until the cache is known to be up to date.
func Nodes(ctx context.Context, api client.Reader) ([]quorum.Node, error) {
	roles := NodeLabels()
	lists := make([]corev1.NodeList, len(roles))
	group, ctx := errgroup.WithContext(ctx)
	for i, label := range roles {
		group.Go(func() error {
			if err := api.List(ctx, &lists[i], client.HasLabels{label}); err != nil {
				return fmt.Errorf("list Nodes with label %s: %w", label, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	found := map[string]quorum.Node{}
	for _, list := range lists {
		for i := range list.Items {
			n := &list.Items[i]
			found[n.Name] = machineapi.Node(n)
		}
	}
	return sorted(found), nil
}

// sorted are the values in the order of their keys.
func sorted[T any](m map[string]T) []T {
	out := make([]T, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[key])
	}
	return out
}

// want puts into a Snapshot how many voters are wanted: by the flag, else by the install-config, of which the greatest number on record
// counts. Whoever may write the install-config could otherwise have voters leave etcd without a replacement.
func (o *Observer) want(s *quorum.Snapshot) {
	s.Desired = cmp.Or(o.Desired, max(s.Configured, s.Installed))
	if o.Desired > 0 || s.Installed <= s.Configured {
		return
	}
	if s.DesiredWhy == "" {
		s.DesiredWhy = fmt.Sprintf("ConfigMap %s asks for %d", installConfig(), s.Configured)
	}
	s.DesiredWhy = fmt.Sprintf("as it was installed; fewer only by --desired-replicas or a ControlPlaneMachineSet: %s", s.DesiredWhy)
}

// configured is how many voters the install-config asks for, or 0 and why that is not known. A number that cannot be read
// holds the membership as it is; it is no reason not to guard.
func (o *Observer) configured(ctx context.Context) (n int, why string, err error) {
	if o.Desired > 0 {
		return 0, "", nil
	}
	var cm corev1.ConfigMap
	key := installConfig()
	if err := o.API.Get(ctx, key, &cm); apierrors.IsNotFound(err) {
		return 0, fmt.Sprintf("ConfigMap %s does not exist; set --desired-replicas", key), nil
	} else if err != nil {
		return 0, "", fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	n, err = machineapi.DesiredReplicas(cm.Data["install-config"])
	if err != nil {
		return 0, fmt.Sprintf("ConfigMap %s: %v; mend it or set --desired-replicas", key, err), nil
	}
	return n, "", nil
}

// records reads those that can be read into the Snapshot, and why not all can.
func (o *Observer) records(ctx context.Context, s *quorum.Snapshot) error {
	key := client.ObjectKey{Namespace: o.Namespace, Name: machineapi.RecordsName}
	var cm corev1.ConfigMap
	if err := o.API.Get(ctx, key, &cm); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	s.RecordsVersion = cm.ResourceVersion
	var err error
	s.Installed = machineapi.Installed(cm.Data)
	if s.Records, err = machineapi.ParseRecords(cm.Data); err != nil {
		s.RecordsWhy = strings.ReplaceAll(fmt.Sprintf("ConfigMap %s: %v", key, err), "\n", "; ")
	}
	return nil
}

// page is how many Machines are read at a time where there may be thousands.
const page = 500

// Selected is what a selector meets in the Machine namespace, live. It reads their metadata alone.
func (o *Observer) Selected(ctx context.Context, selector labels.Selector) (*quorum.Selection, error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	s := &quorum.Selection{}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind("MachineList"))
	for more := true; more; more = list.Continue != "" {
		if err := o.API.List(ctx, list, client.InNamespace(o.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.Limit(page), client.Continue(list.Continue)); err != nil {
			return nil, fmt.Errorf("list Machines in namespace %s: %w", o.Namespace, err)
		}
		s.Total += len(list.Items)
		for i := range list.Items {
			if m := machineapi.Machine(&machinev1beta1.Machine{ObjectMeta: list.Items[i].ObjectMeta}); m.ControlPlane() {
				s.Machines = append(s.Machines, m)
			}
		}
	}
	configured, _, err := o.configured(ctx)
	s.Desired = cmp.Or(o.Desired, configured) // for a Warning alone
	return s, err
}
