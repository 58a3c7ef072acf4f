package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// Instance is what the cloud tells of a host, as JSON over its socket.
type Instance struct {
	Name string `json:"name"`
	// ID is never used twice.
	ID string `json:"id"`
	// Type is the instance type, m5.large say. It is only a label, but for the families that fail.
	Type string `json:"type"`
	// Address is the host's own, on loopback.
	Address string `json:"address"`
	// State is Pending, Running, Stopped (no power) or Terminating.
	State string `json:"state"`
	// ProviderID is the Machine's and the Node's.
	ProviderID string `json:"providerID"`
	Zone       string `json:"zone"`
}

// The families of instance types that fail, such as impossible.large.
const (
	familyImpossible = "impossible"  // refused for good: its Machine fails
	familyNoCapacity = "no-capacity" // refused for now, each time
	familyNoPower    = "no-power"    // it never starts, so that its Machine gets no Node
)

func providerID(id string) string { return "process:///" + id }

// nodeGrace is how long the Node of an instance that is gone may stay until the
// cloud deletes it, as a cloud's node lifecycle controller would. The machine
// controller is faster.
const nodeGrace = 10 * time.Second

var errNoAddress = errors.New("the cloud has no address left: delete an instance first")

// cloud allots loopback addresses to instances and runs their hosts.
type cloud struct {
	ca    *pki.Authority
	ports ring.Ports
	// own are, by a host's address, where its etcd serves what it serves on a real host's loopback.
	own     map[string]ownAddresses
	logs    string // directory
	hosts   string // directory of the hosts' disks
	members *members
	// pod is each host's static pod of etcd.
	pod *corev1.Pod
	// apiServer is what a host's API server runs, nil where hosts have none.
	apiServer func(*host) (process.Spec, error)
	// apiPort is where it serves on the host's address, and apiClient asks it whether it is ready.
	apiPort   int
	apiClient *http.Client
	// etcd is its binary, and etcdArgs are more flags for it.
	etcd     atomic.Pointer[string]
	etcdArgs []string
	// environments are what the hosts' etcds start with. The cloud renders them
	// itself until it is relieved, by a Holdfast that drives the membership.
	environments *environments
	relieved     atomic.Bool
	nodes        corev1client.NodeInterface
	pods         *pods
	// runPods has the kubelets run the containers of Holdfast's pods, which reach the API at server.
	runPods bool
	server  string
	podIPs  []string // addresses of such pods, taken in turn
	log     *slog.Logger

	ctx  context.Context // ends all hosts
	stop context.CancelFunc
	work sync.WaitGroup

	mu        sync.Mutex
	instances map[string]*host
	free      []string          // addresses, the one that is free for longest first
	had       map[string]string // addresses of instances that are gone, by name
	created   int
	made      int // pods whose containers run or ran
}

// podAddress is an address for a pod, which no other has had for long.
func (c *cloud) podAddress() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	return c.podIPs[c.made%len(c.podIPs)]
}

// create is idempotent by name. An instance that is created again has its old address if that is free,
// as on bare metal. The founders' map makes the host one of a new ring.
func (c *cloud) create(name, kind, zone string, founders map[string]string) (_ *host, created bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.instances[name]; h != nil {
		return h, false, nil
	}
	if c.ctx.Err() != nil {
		return nil, false, errors.New("the cloud is closing")
	}
	if len(c.free) == 0 {
		return nil, false, errNoAddress
	}
	at := max(0, slices.Index(c.free, c.had[name]))
	h := &host{
		cloud: c, name: name, kind: kind, founders: founders,
		id:        fmt.Sprintf("i-%06d", c.created+1),
		zone:      cmp.Or(zone, "zone-"+string(rune('a'+c.created%3))),
		address:   c.free[at],
		log:       c.log.With("host", name, "address", c.free[at]),
		workloads: map[string]*workload{},
		on:        !strings.HasPrefix(kind, familyNoPower+"."), changed: make(chan struct{}), done: make(chan struct{}),
	}
	h.dir = filepath.Join(c.hosts, h.id)
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return nil, false, fmt.Errorf("the disk of %s: %w", name, err)
	}
	if err := h.issue(c.ca); err != nil {
		return nil, false, fmt.Errorf("the certificates of %s: %w", name, err)
	}
	c.free = slices.Delete(c.free, at, at+1)
	c.created++
	c.instances[name] = h
	h.log.Info("instance created", "type", kind)
	h.start(c.ctx)
	return h, true, nil
}

// terminate begins the end of an instance; nil if there is none of that name.
func (c *cloud) terminate(name string) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.instances[name]
	if h == nil || h.isTerminating() {
		return h
	}
	h.change(func() { h.terminating = true })
	h.log.Info("instance terminating")
	h.cancel()
	c.work.Go(func() { c.bury(h) })
	return h
}

// bury waits for the host's end and forgets it. It is gone for a client only
// when its kubelet is, which otherwise could register again the Node that the
// machine controller then deletes.
func (c *cloud) bury(h *host) {
	<-h.done
	if err := c.pods.evict(c.ctx, h.name); err != nil {
		h.log.Error("deleting the pods of an instance that is gone", "error", err)
	}
	if err := os.RemoveAll(h.dir); err != nil {
		h.log.Error("removing the disk", "error", err)
	}
	c.mu.Lock()
	delete(c.instances, h.name)
	at := h.at()
	c.free, c.had[h.name] = append(c.free, at), at
	c.mu.Unlock()
	h.log.Info("instance gone")
	select {
	case <-c.ctx.Done():
	case <-time.After(nodeGrace):
		c.deleteNode(h)
	}
}

// readdress gives an instance without power another address, and certificates for it.
func (c *cloud) readdress(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.instances[name]
	if h == nil {
		return fmt.Errorf("no instance %s", name)
	}
	on, etcd, _ := h.state()
	if on {
		return fmt.Errorf("instance %s has power", name)
	}
	if etcd != nil {
		<-etcd.Done() // it ends, since the power is off
	}
	if len(c.free) == 0 {
		return errNoAddress
	}
	was := h.at()
	h.change(func() { h.address = c.free[0] })
	c.free = append(c.free[1:], was)
	h.log.Info("another address", "was", was, "is", h.at())
	return h.issue(c.ca)
}

func (c *cloud) deleteNode(h *host) {
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	node, err := c.nodes.Get(ctx, h.name, metav1.GetOptions{})
	if err == nil && node.Spec.ProviderID == providerID(h.id) {
		h.log.Warn("nobody deleted the Node of an instance that is gone")
		err = c.nodes.Delete(ctx, h.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		h.log.Error("deleting the Node of an instance that is gone", "error", err)
	}
}

// close stops all hosts and waits for them.
func (c *cloud) close() {
	c.stop()
	for _, h := range c.all() {
		<-h.done
	}
	c.work.Wait()
}

func (c *cloud) get(name string) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances[name]
}

// all hosts, by name.
func (c *cloud) all() []*host {
	c.mu.Lock()
	defer c.mu.Unlock()
	var hosts []*host
	for _, h := range c.instances {
		hosts = append(hosts, h)
	}
	slices.SortFunc(hosts, func(a, b *host) int { return strings.Compare(a.name, b.name) })
	return hosts
}

// running are the client URLs of the members that run.
func (c *cloud) running() []string {
	var urls []string
	for _, h := range c.all() {
		if h.public().Etcd != nil {
			urls = append(urls, c.ports.ClientURL(h.at()))
		}
	}
	return urls
}

func (h *host) isTerminating() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.terminating
}

func (h *host) instance() Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := "Running"
	switch {
	case h.terminating:
		state = "Terminating"
	case !h.on:
		state = "Stopped"
	}
	return Instance{
		Name: h.name, ID: h.id, Type: h.kind, Address: h.address,
		State: state, ProviderID: providerID(h.id), Zone: h.zone,
	}
}

// serve answers the cloud's API on a unix socket until the listener closes.
func (c *cloud) serve(listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /instances", func(w http.ResponseWriter, _ *http.Request) {
		instances := []Instance{}
		for _, h := range c.all() {
			instances = append(instances, h.instance())
		}
		answer(w, http.StatusOK, instances)
	})
	mux.HandleFunc("GET /instances/{name}", func(w http.ResponseWriter, r *http.Request) {
		c.answerHost(w, r, http.StatusOK, c.get(r.PathValue("name")))
	})
	mux.HandleFunc("PUT /instances/{name}", c.put)
	mux.HandleFunc("DELETE /instances/{name}", func(w http.ResponseWriter, r *http.Request) {
		c.answerHost(w, r, http.StatusAccepted, c.terminate(r.PathValue("name")))
	})
	mux.HandleFunc("POST /instances/{name}/power", func(w http.ResponseWriter, r *http.Request) {
		var want struct{ On *bool }
		if err := json.NewDecoder(r.Body).Decode(&want); err != nil || want.On == nil {
			http.Error(w, `say {"on":true} or {"on":false}`, http.StatusBadRequest)
			return
		}
		h := c.get(r.PathValue("name"))
		if h != nil {
			h.power(*want.On)
		}
		c.answerHost(w, r, http.StatusOK, h)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	if err := server.Serve(listener); !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("the cloud's API: %w", err)
	}
	return nil
}

func (c *cloud) put(w http.ResponseWriter, r *http.Request) {
	var want struct{ Type, Zone, Role string }
	if err := json.NewDecoder(r.Body).Decode(&want); err != nil || want.Type == "" {
		http.Error(w, `say {"type":"m5.large","zone":"zone-a","role":"master"}`, http.StatusBadRequest)
		return
	}
	switch family, _, _ := strings.Cut(want.Type, "."); family {
	case familyImpossible:
		http.Error(w, "there is no instance type "+want.Type, http.StatusBadRequest)
		return
	case familyNoCapacity:
		http.Error(w, "there is no capacity for instance type "+want.Type, http.StatusServiceUnavailable)
		return
	}
	if want.Role != "" && want.Role != "master" {
		http.Error(w, "this cloud has control-plane hosts only, not role "+want.Role, http.StatusBadRequest)
		return
	}
	h, created, err := c.create(r.PathValue("name"), want.Type, want.Zone, nil)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case h.isTerminating():
		http.Error(w, "instance "+h.name+" is terminating", http.StatusConflict)
	case created:
		answer(w, http.StatusCreated, h.instance())
	default:
		answer(w, http.StatusOK, h.instance())
	}
}

func (c *cloud) answerHost(w http.ResponseWriter, r *http.Request, status int, h *host) {
	if h == nil {
		http.Error(w, "there is no instance "+r.PathValue("name"), http.StatusNotFound)
		return
	}
	answer(w, status, h.instance())
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
