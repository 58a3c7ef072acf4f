package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Publisher keeps what etcd's hosts and clients read up with etcd: the environments in ConfigMap
// etcd-membership, the voters in ConfigMap etcd-endpoints and in EndpointSlices. Full mode only:
// beside cluster-etcd-operator these are the operator's.
//
// A write is never older than what it replaces: the objects are read first, etcd by a linearizable
// read after that, and the write goes through only if the object is still the one that was read. So
// of two Holdfasts at work for a moment, the slower one cannot undo what the faster one published.
// Objects that were found as wanted are read again every 10 seconds, and at once when other content is wanted. If etcd cannot be read,
// nothing is written. A write that failed is tried again at its own intervals: it does not delay changes of etcd's members, and causes
// no extra rounds.
type Publisher struct {
	Client    client.Client // live: a cache may be behind what it is to protect
	Namespace string
	Log       logr.Logger

	attempts attempts
	stood    *content  // what was wanted when the objects were read last and stood so; nil if they did not
	readAt   time.Time // when that was
}

// published is what is read, compared and written.
type published struct {
	membership, endpoints corev1.ConfigMap
	slices                map[discoveryv1.AddressType]*discoveryv1.EndpointSlice
}

// Publish brings the objects up to date. Where cluster-etcd-operator is here, the objects are that operator's. snapshot
// reads the cluster anew, before anything is written. An error asks for another round.
func (p *Publisher) Publish(ctx context.Context, join *quorum.Join, snapshot func(context.Context) (*quorum.Snapshot, error)) error {
	if p == nil {
		return nil
	}
	s := join.Snapshot()
	if s.Mode != quorum.ModeFull || s.OtherDriver != "" {
		p.attempts, p.stood = attempts{}, nil // that operator's, too
		return nil
	}
	if !s.Ring.Known || p.attempts.pausing(everything, s.Now) {
		return nil
	}
	seen, unfit := contentOf(join)
	if unfit == nil && reflect.DeepEqual(seen, p.stood) && !s.Now.Before(p.readAt) && s.Now.Before(p.readAt.Add(reviewEvery)) {
		return nil // these are four reads for each look
	}
	p.stood = nil
	ctx, cancel := context.WithTimeout(ctx, 2*observe.APITimeout)
	defer cancel()
	stands, err := p.read(ctx)
	if err != nil {
		return p.after(everything, s.Now, err)
	}
	if unfit == nil {
		wanted := render(stands, seen)
		stale := changes(stands, wanted)
		p.attempts.forgetExcept(func(what string) bool {
			return what == everything || slices.ContainsFunc(stale, func(o client.Object) bool { return nameOf(o) == what })
		})
		if len(stale) == 0 {
			p.stood, p.readAt = seen, s.Now
		}
		if len(p.due(stands, wanted, s.Now)) == 0 {
			return p.after(everything, s.Now, nil)
		}
	}
	fresh, err := snapshot(ctx)
	if err == nil && !fresh.Ring.Known {
		err = errors.New(fresh.Ring.Why)
	}
	if err != nil {
		return fmt.Errorf("a second look, before etcd's membership is published: %w", err)
	}
	wanted, err := contentOf(quorum.NewJoin(fresh))
	if err != nil {
		return p.after(everything, s.Now, err)
	}
	return errors.Join(p.after(everything, s.Now, nil), p.write(ctx, p.due(stands, render(stands, wanted), s.Now), s.Now))
}

// content is all that is published of a look.
type content struct {
	environments map[string]hostenv.Environment // by the Node's name
	endpoints    []hostenv.Endpoint
}

func contentOf(join *quorum.Join) (*content, error) {
	environments, err := hostenv.Environments(join)
	if err != nil {
		return nil, err
	}
	endpoints, err := hostenv.Endpoints(join)
	return &content{environments, endpoints}, err
}

// everything is what a failure is about that is not about one object.
const everything = "publish etcd's membership"

// failures are what is not published.
func (p *Publisher) failures() []quorum.Failure {
	if p == nil {
		return nil
	}
	return p.attempts.failures()
}

// due are the changes to write now.
func (p *Publisher) due(stands, wanted *published, now time.Time) []client.Object {
	return slices.DeleteFunc(changes(stands, wanted), func(o client.Object) bool { return p.attempts.pausing(nameOf(o), now) })
}

func nameOf(o client.Object) string {
	name := fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
	return "write " + name[strings.LastIndex(name, ".")+1:]
}

// after sets when to try again after a failure, or forgets those before.
func (p *Publisher) after(what string, now time.Time, err error) error {
	p.attempts.after(quorum.Failure{Reason: string(membership.ReasonMembershipNotPublished), What: what}, now, err, false)
	if err == nil {
		return nil
	}
	return fmt.Errorf("etcd's membership and endpoints are not published: %s: %w", what, err)
}

// read reads the objects as they stand; one without resourceVersion is not there.
func (p *Publisher) read(ctx context.Context) (*published, error) {
	stands := &published{slices: map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}}
	stands.membership.Name, stands.endpoints.Name = hostenv.Name, hostenv.EndpointsName
	objects := []client.Object{&stands.membership, &stands.endpoints}
	for _, family := range families() {
		slice := &discoveryv1.EndpointSlice{AddressType: family}
		slice.Name = hostenv.ServiceName + "-" + strings.ToLower(string(family))
		stands.slices[family] = slice
		objects = append(objects, slice)
	}
	for _, object := range objects {
		object.SetNamespace(p.Namespace)
		key := client.ObjectKeyFromObject(object)
		if err := p.Client.Get(ctx, key, object); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
	}
	return stands, nil
}

func families() []discoveryv1.AddressType {
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}

// render returns the objects as they should be, made from those that were read: what others added stays.
func render(stands *published, c *content) *published {
	wanted := &published{slices: map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}}
	stands.membership.DeepCopyInto(&wanted.membership)
	wanted.membership.Data = map[string]string{}
	for node, e := range c.environments {
		wanted.membership.Data[node] = e.Text()
	}
	stands.endpoints.DeepCopyInto(&wanted.endpoints)
	wanted.endpoints.Data = map[string]string{}
	for _, e := range c.endpoints {
		wanted.endpoints.Data[e.ID.Hex()] = e.Host
	}
	for _, family := range families() {
		wanted.slices[family] = renderSlice(stands.slices[family], family, c.endpoints)
	}
	return wanted
}

// renderSlice lists the voters of one address family, healthy or not: a client that lost the others
// still finds them. What the API server takes in no EndpointSlice (names, loopback) is left out.
func renderSlice(stands *discoveryv1.EndpointSlice, family discoveryv1.AddressType, endpoints []hostenv.Endpoint) *discoveryv1.EndpointSlice {
	slice := stands.DeepCopy()
	slice.AddressType = family
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discoveryv1.LabelServiceName] = hostenv.ServiceName
	slice.Labels[discoveryv1.LabelManagedBy] = "holdfast.dev"
	slice.Endpoints, slice.Ports = nil, nil
	for _, e := range endpoints {
		if !e.Address.IsGlobalUnicast() || e.Address.Is4() != (family == discoveryv1.AddressTypeIPv4) {
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

// write writes the changed objects. The write of one fails if somebody else changed it since it was read.
func (p *Publisher) write(ctx context.Context, changed []client.Object, now time.Time) error {
	var failed error
	for _, object := range changed {
		name := nameOf(object)
		var err error
		cm, is := object.(*corev1.ConfigMap)
		switch {
		case object.GetResourceVersion() == "":
			err = p.Client.Create(ctx, object)
		case is && ptr.Deref(cm.Immutable, false):
			p.Log.Info("somebody made it immutable, so it is made anew", "what", name)
			err = p.replace(ctx, cm)
		default:
			err = p.Client.Update(ctx, object)
		}
		if err == nil {
			p.Log.V(1).Info("published", "what", name)
		}
		failed = errors.Join(failed, p.after(name, now, err))
	}
	return failed
}

// replace deletes and creates a ConfigMap that somebody made immutable: else no replacement makes progress until a person deletes it.
// The labels, annotations and owner references of others stay: an annotation marks the bootstrap member. A reader in between finds
// no ConfigMap, and waits. If Holdfast ends in between, the next replica creates it.
func (p *Publisher) replace(ctx context.Context, cm *corev1.ConfigMap) error {
	if err := p.Client.Delete(ctx, cm, client.Preconditions{UID: &cm.UID, ResourceVersion: &cm.ResourceVersion}); err != nil {
		return err
	}
	anew := &corev1.ConfigMap{Data: cm.Data, BinaryData: cm.BinaryData}
	anew.Namespace, anew.Name, anew.Labels, anew.Annotations, anew.OwnerReferences = cm.Namespace, cm.Name, cm.Labels, cm.Annotations, cm.OwnerReferences
	return p.Client.Create(ctx, anew)
}
