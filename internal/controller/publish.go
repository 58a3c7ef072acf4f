package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Publisher keeps what etcd's hosts and clients are told up with etcd: the environments in ConfigMap
// etcd-membership, the voters in ConfigMap etcd-endpoints and in EndpointSlices. Full mode only:
// beside cluster-etcd-operator these are the operator's.
//
// A write is never older than what it replaces: the objects are read first, etcd by a linearizable
// read after that, and the write goes through only if the object is still the one that was read. So
// of two Holdfasts at work for a moment, the slower one cannot undo what the faster one published.
// A read of etcd that fails writes nothing.
type Publisher struct {
	API       client.Reader // live: a cache may be behind what it is to protect
	Client    client.Client
	Namespace string
	Log       logr.Logger

	said  map[string]string // by object: the trouble in force
	pause time.Time         // until then nothing is tried: what stands in the way does not pass quickly
}

// pauseFor is how long a namespace that is not there, or a right that is not given, is taken for granted.
const pauseFor = 10 * time.Second

// published is what is read, compared and written.
type published struct {
	membership, endpoints corev1.ConfigMap
	slices                map[discoveryv1.AddressType]*discoveryv1.EndpointSlice
}

// Publish brings the objects up to date. Its answer is whether they are, as far as that can be: false
// asks for another round soon. Where cluster-etcd-operator is here, the objects are that operator's. snapshot
// reads the cluster anew, before anything is written.
func (p *Publisher) Publish(ctx context.Context, s *quorum.Snapshot, snapshot func(context.Context) (*quorum.Snapshot, error)) bool {
	if p == nil || s.Mode != quorum.Full || s.OtherDriver != "" || !s.Ring.Known || s.Now.Before(p.pause) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 2*apiBound)
	defer cancel()
	stands, err := p.read(ctx)
	if apierrors.IsForbidden(err) {
		p.pause = s.Now.Add(pauseFor)
	}
	if err != nil {
		p.say(everything, err)
		return false
	}
	if wanted, err := render(stands, s); err == nil && len(changes(stands, wanted)) == 0 {
		p.say(everything, nil)
		return true
	}
	fresh, err := snapshot(ctx)
	if err != nil || !fresh.Ring.Known {
		return false // the next round says why
	}
	wanted, err := render(stands, fresh)
	p.say(everything, err)
	if err != nil {
		return false
	}
	return p.write(ctx, stands, wanted, s.Now)
}

// everything is what trouble is about that is not about one object.
const everything = "all"

// read reads the objects as they stand; one without resourceVersion is not there.
func (p *Publisher) read(ctx context.Context) (*published, error) {
	stands := &published{slices: map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}}
	objects := []client.Object{&stands.membership, &stands.endpoints}
	for _, family := range families() {
		slice := &discoveryv1.EndpointSlice{AddressType: family}
		stands.slices[family] = slice
		objects = append(objects, slice)
	}
	for i, name := range []string{membership.Name, membership.EndpointsName, sliceName(discoveryv1.AddressTypeIPv4), sliceName(discoveryv1.AddressTypeIPv6)} {
		key := client.ObjectKey{Namespace: p.Namespace, Name: name}
		err := p.API.Get(ctx, key, objects[i])
		if apierrors.IsNotFound(err) {
			objects[i].SetNamespace(key.Namespace)
			objects[i].SetName(key.Name)
		} else if err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
	}
	return stands, nil
}

func families() []discoveryv1.AddressType {
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}

func sliceName(family discoveryv1.AddressType) string {
	return membership.ServiceName + "-" + strings.ToLower(string(family))
}

// render makes of the objects as they stand what they are to be: what others put beside stays.
func render(stands *published, s *quorum.Snapshot) (*published, error) {
	environments, err := membership.Environments(s)
	if err != nil {
		return nil, err
	}
	endpoints, err := membership.Endpoints(s)
	if err != nil {
		return nil, err
	}
	wanted := &published{slices: map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}}
	stands.membership.DeepCopyInto(&wanted.membership)
	wanted.membership.Data = map[string]string{}
	for node, e := range environments {
		wanted.membership.Data[node] = e.Text()
	}
	stands.endpoints.DeepCopyInto(&wanted.endpoints)
	wanted.endpoints.Data = map[string]string{}
	for _, e := range endpoints {
		wanted.endpoints.Data[membership.FormatID(e.ID)] = e.Host
	}
	for _, family := range families() {
		wanted.slices[family] = renderSlice(stands.slices[family], family, endpoints)
	}
	return wanted, nil
}

// renderSlice lists the voters of one address family, healthy or not: a client that lost the others
// still finds them. What the API server takes in no EndpointSlice (names, loopback) is left out.
func renderSlice(stands *discoveryv1.EndpointSlice, family discoveryv1.AddressType, endpoints []membership.Endpoint) *discoveryv1.EndpointSlice {
	slice := stands.DeepCopy()
	slice.AddressType = family
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discoveryv1.LabelServiceName] = membership.ServiceName
	slice.Labels[discoveryv1.LabelManagedBy] = "holdfast.dev"
	slice.Endpoints, slice.Ports = nil, nil
	for _, e := range endpoints {
		if !routable(e.Address) || e.Address.Is4() != (family == discoveryv1.AddressTypeIPv4) {
			continue
		}
		port := int32(e.Port)
		if len(slice.Ports) == 0 {
			slice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("etcd"), Port: &port, Protocol: ptr.To(corev1.ProtocolTCP)}}
		} else if *slice.Ports[0].Port != port {
			continue // a slice has one port for all: the ConfigMap has this one
		}
		one := discoveryv1.Endpoint{
			Addresses:  []string{e.Address.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &e.Ready, Serving: &e.Ready, Terminating: ptr.To(false)},
		}
		if e.Node != "" {
			one.NodeName = &e.Node
		}
		if e.Zone != "" {
			one.Zone = &e.Zone
		}
		slice.Endpoints = append(slice.Endpoints, one)
	}
	return slice
}

func routable(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

// changes are the objects of wanted that are not as they stand. A slice that would be made without an
// endpoint is not made; one that is there and lost its voters to a good read is emptied.
func changes(stands, wanted *published) []client.Object {
	var out []client.Object
	if stands.membership.ResourceVersion == "" || !maps.Equal(stands.membership.Data, wanted.membership.Data) {
		out = append(out, &wanted.membership)
	}
	if stands.endpoints.ResourceVersion == "" || !maps.Equal(stands.endpoints.Data, wanted.endpoints.Data) {
		out = append(out, &wanted.endpoints)
	}
	for _, family := range families() {
		was, slice := stands.slices[family], wanted.slices[family]
		if was.ResourceVersion == "" && len(slice.Endpoints) == 0 {
			continue
		}
		if was.ResourceVersion == "" || !equality.Semantic.DeepEqual(was, slice) {
			out = append(out, slice)
		}
	}
	return out
}

// write writes what changed, each object as it was read or not at all.
func (p *Publisher) write(ctx context.Context, stands, wanted *published, now time.Time) bool {
	settled := true
	for _, object := range changes(stands, wanted) {
		name := fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName())
		name = name[strings.LastIndex(name, ".")+1:]
		var err error
		if object.GetResourceVersion() == "" {
			err = p.Client.Create(ctx, object)
		} else {
			err = p.Client.Update(ctx, object)
		}
		switch {
		case err == nil:
			p.say(name, nil)
			p.Log.V(1).Info("published", "object", name)
		case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
			settled = false // somebody was faster: look again
		case apierrors.IsNotFound(err) && object.GetResourceVersion() == "":
			// A cluster need not have the namespace.
			p.say(name, fmt.Errorf("namespace %s does not exist: %w", p.Namespace, err))
			p.pause = now.Add(pauseFor)
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			p.say(name, err)
			p.pause = now.Add(pauseFor)
		default:
			p.say(name, err)
			settled = false
		}
	}
	return settled
}

// say tells of trouble when it comes, when it changes and when it goes.
func (p *Publisher) say(object string, err error) {
	text := ""
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return // this is the end, not a failure
		}
		text = err.Error()
	}
	if text == p.said[object] {
		return
	}
	if p.said == nil {
		p.said = map[string]string{}
	}
	if p.said[object] = text; err == nil {
		delete(p.said, object)
		p.Log.Info("etcd's membership and endpoints are published again", "object", object)
		return
	}
	p.Log.Error(err, "etcd's membership and endpoints are not published", "object", object)
}
