package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

// clientPort is where etcd serves clients unless its configuration says otherwise.
const clientPort = "2379"

// searchBound is how long a search for etcd may take.
const searchBound = 20 * time.Second

// discover are etcd's client URLs to begin with where none is given: clientPort of every control-plane
// Node, member or not, in order. Who answers there has to prove itself by its certificate.
func discover(ctx context.Context, api client.Reader) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, searchBound)
	defer cancel()
	urls, err := onNodes(ctx, api, clientPort)
	if err != nil {
		return nil, fmt.Errorf("%w; or set --endpoints", err)
	}
	if len(urls) == 0 {
		return nil, cli.Usage("no control-plane Node has an address at which etcd could be found; set --endpoints")
	}
	return urls, nil
}

// onNodes are the URLs of a port on control-plane Nodes.
func onNodes(ctx context.Context, api client.Reader, port string) ([]string, error) {
	nodes, err := observe.Nodes(ctx, api)
	if err != nil {
		return nil, fmt.Errorf("find etcd: %w", err)
	}
	var urls []string
	for i := range nodes {
		for _, address := range nodes[i].Addresses {
			urls = append(urls, "https://"+net.JoinHostPort(address.String(), port))
		}
	}
	slices.Sort(urls)
	return slices.Compact(urls), nil
}

// perObject is how many URLs are taken from one ConfigMap.
const perObject = 8

// search finds where etcd may be besides the endpoints that Holdfast began with: those may be of hosts that have
// been replaced since. Three places know: what Holdfast wrote when it read etcd last, what is published for etcd's
// clients, and the control-plane Nodes. None of them is trusted with more than where to ask.
type search struct {
	api          client.Reader
	ring         client.ObjectKey // ConfigMap of the ring as Holdfast saw it
	published    client.ObjectKey // ConfigMap of etcd's endpoints
	machines     string           // their namespace
	port         string           // where no URL is written down
	etcd         learner
	log          logr.Logger
	every, blind time.Duration
}

// learner is etcd's client.
type learner interface {
	Learn(urls []string)
	Answered() time.Time
	Restored(ctx context.Context, stored func(context.Context) (revision int64, err error)) (cluster uint64, err error)
}

func (o *runOptions) search(api client.Reader, ring learner, log logr.Logger) *search {
	s := &search{
		api: api, etcd: ring, log: log.WithName("etcd"), every: 5 * time.Second, blind: 10 * time.Second, port: clientPort, machines: o.namespace,
		ring:      client.ObjectKey{Namespace: o.electNamespace, Name: snapshotfile.RingName},
		published: client.ObjectKey{Namespace: o.etcdNamespace, Name: hostenv.EndpointsName},
	}
	if u, err := url.Parse(o.endpoints[0]); err == nil && u.Port() != "" {
		s.port = u.Port()
	}
	return s
}

// Start searches while etcd gives no answer, until the context ends.
func (s *search) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if time.Since(s.etcd.Answered()) > s.blind {
			s.once(ctx)
			s.restored(ctx)
		}
	}, s.every)
	return nil
}

// restored follows etcd where it was restored from a snapshot.
func (s *search) restored(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchBound)
	defer cancel()
	if _, err := s.etcd.Restored(ctx, s.revision); err != nil {
		s.log.Info("not followed", "reason", err.Error())
	}
}

// revision is that of the API server's store: a list that is not asked of a cache is as of the latest.
func (s *search) revision(ctx context.Context) (int64, error) {
	machines := &metav1.PartialObjectMetadataList{}
	machines.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind("MachineList"))
	if err := s.api.List(ctx, machines, client.InNamespace(s.machines), client.Limit(1)); err != nil {
		return 0, fmt.Errorf("list Machines for the revision of the API server's store: %w", err)
	}
	return strconv.ParseInt(machines.ResourceVersion, 10, 64)
}

// once searches. What cannot be read is left out; if nothing can, what was found before stays.
func (s *search) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchBound)
	defer cancel()
	var urls []string
	var failed error
	read := func(key client.ObjectKey, in func(data map[string]string) []string) {
		var cm corev1.ConfigMap
		if err := s.api.Get(ctx, key, &cm); err == nil {
			found := in(cm.Data)
			urls = append(urls, found[:min(len(found), perObject)]...) // what somebody else wrote there leaves room for the others
		} else if !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("read ConfigMap %s: %w", key, err))
		}
	}
	read(s.ring, snapshotfile.RingEndpoints)
	read(s.published, func(data map[string]string) (out []string) {
		for _, id := range slices.Sorted(maps.Keys(data)) {
			out = append(out, "https://"+net.JoinHostPort(strings.Trim(data[id], "[]"), s.port))
		}
		return out
	})
	nodes, err := onNodes(ctx, s.api, s.port)
	urls, failed = append(urls, nodes...), errors.Join(failed, err)
	if failed != nil {
		s.log.V(1).Info("not all that may know where etcd is could be read", "reason", failed.Error())
	}
	if len(urls) > 0 {
		s.etcd.Learn(urls)
	}
}
