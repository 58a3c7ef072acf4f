package observe

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
)

// Claims is an index of the Machines of a namespace by what they claim: instance, Node and addresses. It holds names and hashes
// alone, some 200 bytes for a Machine, since there may be thousands. It says which Machines to read, and may be late or wrong:
// nothing is decided by it. Make one with NewClaims.
type Claims struct {
	api       client.WithWatch // without a cache
	namespace string
	log       logr.Logger
	seed      maphash.Seed

	mu   sync.RWMutex
	late bool                // keys are of before the watch broke
	keys map[string][]uint64 // by the Machine's name; nil while they are not all known
	why  string              // they are not
}

// NewClaims is the index of a namespace; it is empty until it runs.
func NewClaims(api client.WithWatch, namespace string, log logr.Logger) *Claims {
	return &Claims{api: api, namespace: namespace, log: log, seed: maphash.MakeSeed()}
}

const (
	claimsPage  = 100 // Machines, decoded whole, which is what the index costs for a moment
	claimsWatch = 5 * time.Minute
	claimsRetry = 5 * time.Second // grows up to claimsWatch while the Machines cannot be listed
)

// NeedLeaderElection has every replica keep an index: all of them answer the API server.
func (*Claims) NeedLeaderElection() bool { return false }

// Start keeps the index until the context ends.
func (c *Claims) Start(ctx context.Context) error {
	wait := claimsRetry
	for ctx.Err() == nil {
		listed, err := c.keep(ctx)
		if listed {
			wait = claimsRetry
		}
		if ctx.Err() == nil {
			c.log.Error(err, "the index of Machines is made anew", "in", wait)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			wait = min(2*wait, claimsWatch)
		}
	}
	return nil
}

// keep lists all Machines and follows their changes until that fails. Then the index is late: it still has its old entries, and where
// those are not enough, all Machines are read. listed says whether the list succeeded.
func (c *Claims) keep(ctx context.Context) (listed bool, err error) {
	keys := map[string][]uint64{}
	version, err := c.each(ctx, func(m *machinev1beta1.Machine) { keys[m.Name] = c.hashes(m) })
	if err != nil {
		c.set(nil, err.Error())
		return false, err
	}
	c.set(keys, "")
	defer func() {
		c.mu.Lock()
		c.late = true
		c.mu.Unlock()
	}()
	again := time.NewTicker(time.Second) // a watch that ends at once is not asked for in a hurry
	defer again.Stop()
	for {
		if version, err = c.follow(ctx, version); err != nil {
			return true, err
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-again.C:
		}
	}
}

func (c *Claims) set(keys map[string][]uint64, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys, c.why, c.late = keys, why, false
}

// follow applies changes from a version on, until the API server ends the watch, and says from which version to go on.
func (c *Claims) follow(ctx context.Context, version string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, claimsWatch+time.Minute)
	defer cancel()
	seconds := int64(claimsWatch.Seconds())
	watcher, err := c.api.Watch(ctx, &machinev1beta1.MachineList{}, client.InNamespace(c.namespace), &client.ListOptions{Raw: &metav1.ListOptions{
		ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	}})
	if err != nil {
		return "", fmt.Errorf("watch Machines in namespace %s: %w", c.namespace, err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		m, ok := event.Object.(*machinev1beta1.Machine)
		if !ok {
			return "", fmt.Errorf("watch Machines in namespace %s: %+v", c.namespace, event.Object)
		}
		version = m.ResourceVersion
		c.mu.Lock()
		switch event.Type {
		case watch.Added, watch.Modified:
			c.keys[m.Name] = c.hashes(m)
		case watch.Deleted:
			delete(c.keys, m.Name)
		case watch.Bookmark, watch.Error:
		}
		c.mu.Unlock()
	}
	return version, ctx.Err()
}

// each visits all Machines, a page at a time, and returns the version that they were listed at. If a page cannot be read, one
// Machine in it may be the reason, so each is read by itself. A Machine that cannot be read even then has no entry.
func (c *Claims) each(ctx context.Context, visit func(*machinev1beta1.Machine)) (version string, err error) {
	more := ""
	for {
		list := &machinev1beta1.MachineList{}
		page := []client.ListOption{client.InNamespace(c.namespace), client.Limit(claimsPage), client.Continue(more)}
		if err := c.api.List(ctx, list, page...); err != nil {
			names := &metav1.PartialObjectMetadataList{}
			names.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind("MachineList"))
			if c.api.List(ctx, names, page...) != nil {
				return "", fmt.Errorf("list Machines in namespace %s: %w", c.namespace, err)
			}
			list.ListMeta, list.Items = names.ListMeta, nil
			for i := range names.Items {
				var m machinev1beta1.Machine
				err := c.api.Get(ctx, client.ObjectKeyFromObject(&names.Items[i]), &m)
				switch {
				case err == nil:
					list.Items = append(list.Items, m)
				case !apierrors.IsNotFound(err) && !garbled(err):
					return "", fmt.Errorf("read Machine %s/%s: %w", c.namespace, names.Items[i].Name, err)
				}
			}
		}
		for i := range list.Items {
			visit(&list.Items[i])
		}
		if more = list.Continue; more == "" {
			return list.ResourceVersion, nil
		}
	}
}

// garbled says whether an object came, and could not be decoded: neither the API server refused it nor the way to it failed.
func garbled(err error) bool {
	return !errors.As(err, new(apierrors.APIStatus)) && !errors.As(err, new(*url.Error)) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// hashes are the hashes of a Machine's DeletionKeys.
func (c *Claims) hashes(m *machinev1beta1.Machine) []uint64 {
	seen := machineapi.Machine(m)
	return c.sums(seen.DeletionKeys(nil))
}

func (c *Claims) sums(keys []string) []uint64 {
	out := make([]uint64, len(keys))
	for i, key := range keys {
		out[i] = maphash.String(c.seed, key)
	}
	return out
}

// find returns the names of the Machines that have one of the keys, in order; known is false while there is no index or it is late, and why says why
// if that is no matter of a moment.
func (c *Claims) find(keys []string) (names []string, known bool, why string) {
	sums := c.sums(keys)
	c.mu.RLock()
	defer c.mu.RUnlock()
	for name, of := range c.keys {
		if meet(of, sums) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, c.keys != nil && !c.late, c.why
}

// read is find without the index: it reads all Machines.
func (c *Claims) read(ctx context.Context, keys []string) (names []string, err error) {
	sums := c.sums(keys)
	_, err = c.each(ctx, func(m *machinev1beta1.Machine) {
		if meet(c.hashes(m), sums) {
			names = append(names, m.Name)
		}
	})
	return names, err
}

func meet(a, b []uint64) bool {
	return slices.ContainsFunc(a, func(sum uint64) bool { return slices.Contains(b, sum) })
}
