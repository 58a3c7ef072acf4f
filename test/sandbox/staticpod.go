package sandbox

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/hostfiles"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// StaticPod is etcd's static pod as users of full mode are given it.
func StaticPod() (*corev1.Pod, error) {
	root, err := assets.Root()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(root, "deploy", "examples", "etcd-host", "etcd.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(pod.Spec.Containers) != 1 {
		return nil, fmt.Errorf("%s: %d containers; one is run", path, len(pod.Spec.Containers))
	}
	for _, p := range []*corev1.Probe{pod.Spec.Containers[0].StartupProbe, pod.Spec.Containers[0].ReadinessProbe, pod.Spec.Containers[0].LivenessProbe} {
		if p != nil && (p.HTTPGet == nil || net.JoinHostPort(p.HTTPGet.Host, p.HTTPGet.Port.String()) != ownHost) {
			return nil, fmt.Errorf("%s: a probe that is no httpGet of %s is not run here: %+v", path, ownHost, p)
		}
	}
	return pod, nil
}

// configuration is the host's directory of what its etcd starts from, data that of its data.
func (h *host) configuration() string { return filepath.Join(h.dir, "configuration") }

// issue gives the host the certificates of its etcd, as cert-manager and holdfast host-files do.
func (h *host) issue(ca *pki.Authority) error {
	files := map[string][]byte{}
	for _, kind := range hostfiles.Kinds() {
		cert, key, err := ca.Issue(pki.Leaf{
			CommonName: "etcd " + kind + " " + h.name,
			// A connection within 127.0.0.0/8 comes from 127.0.0.1 whatever address
			// its process listens on, and etcd compares a peer's certificate with
			// the address that it comes from.
			Hosts: []string{h.at(), "127.0.0.1", netip.MustParseAddrPort(h.etcdHost().Clients).Addr().String()},
		})
		if err != nil {
			return err
		}
		files[kind+".pem"], files[kind+"-ca.crt"] = slices.Concat(key, cert), ca.CertPEM()
	}
	_, err := hostfiles.Write(h.configuration(), files)
	return err
}

// runFiles plays holdfast host-files: while the host has power, its file follows what is published for it.
func (h *host) runFiles(ctx context.Context) {
	for h.waitForPower(ctx) {
		text, changed := h.cloud.environments.of(h)
		if text != "" {
			if _, err := hostfiles.Write(h.configuration(), map[string][]byte{hostfiles.Membership: []byte(text)}); err != nil {
				h.log.Error("writing what etcd starts with", "error", err)
			}
		}
		if err := h.wait(ctx, nil, changed); err != nil && ctx.Err() != nil {
			return
		}
	}
}

// ownHost is where etcd serves its metrics, and answers probes, in the static pod.
const ownHost = "127.0.0.1:2381"

// ownClients are where etcd serves clients on the host itself, in the static pod.
func ownClients() []string { return []string{"127.0.0.1:2379", "[::1]:2379"} }

// ownAddresses stand for ownHost and ownClients. All hosts of a sandbox have the loopback device in common, so each has ports of its own there.
type ownAddresses struct{ metrics, clients string }

// EtcdHost is where a static pod's containers run as processes.
type EtcdHost struct {
	Node, Address string
	Ports         ring.Ports
	// Loopback stands for ownHost, which each real host has for itself, and Clients for ownClients.
	Loopback, Clients string
	// Configuration and Data stand for the host's directories /etc/etcd and /var/lib/etcd.
	Configuration, Data string
	// Etcd is the binary, "" for the one that is built.
	Etcd string
}

// Command is what a container of etcd's static pod runs there. Such hosts differ from real ones in this: their directories are
// elsewhere, their ports are their own, and a database grows to etcd's default at most.
func (h EtcdHost) Command(c *corev1.Container, more ...string) (process.Spec, error) {
	holdfast, err := assets.Path("holdfast")
	if err != nil {
		return process.Spec{}, err
	}
	var replaced []string
	for _, own := range ownClients() {
		replaced = append(replaced, own, h.Clients)
	}
	values := strings.NewReplacer(append(replaced,
		"/opt/holdfast", filepath.Dir(holdfast),
		"$(NODE_NAME)", h.Node, "$(HOST_IP)", h.Address,
		ownHost, h.Loopback,
		"/etc/etcd", h.Configuration, "/var/lib/etcd", h.Data,
		":2379", ":"+strconv.Itoa(h.Ports.Client), ":2380", ":"+strconv.Itoa(h.Ports.Peer),
		"8589934592", strconv.Itoa(2<<30),
	)...)
	name := c.Image // what an image runs without a command is called as the image is
	if len(c.Command) > 0 {
		name = "etcd"
	}
	binary, err := assets.Path(name)
	if err != nil {
		return process.Spec{}, err
	}
	if name == "etcd" {
		if h.Etcd != "" {
			binary = h.Etcd
		}
		own, err := ring.OwnAddress(binary)
		if err != nil {
			return process.Spec{}, err
		}
		more = slices.Concat(own, more)
	}
	spec := process.Spec{
		Name: c.Name + " on " + h.Node, Path: binary,
		Env: append(process.Roomy(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH")),
	}
	args := c.Args
	if len(c.Command) > 0 {
		spec.Path, args = values.Replace(c.Command[0]), append(slices.Clone(c.Command[1:]), c.Args...)
	}
	if i := slices.Index(args, "membership"); i >= 0 {
		// Tests wait for it; and these members serve clients at a port of their own.
		args = slices.Insert(slices.Clone(args), i+1, "--quorum-wait=1s", "--client-port="+strconv.Itoa(h.Ports.Client))
	}
	for _, arg := range slices.Concat(args, more) {
		spec.Args = append(spec.Args, values.Replace(arg))
	}
	return spec, nil
}

func (h *host) etcdHost() EtcdHost {
	at := h.at()
	return EtcdHost{
		Node: h.name, Address: at, Ports: h.cloud.ports, Loopback: h.cloud.own[at].metrics, Clients: h.cloud.own[at].clients, Configuration: h.configuration(), Data: h.dir, Etcd: *h.cloud.etcd.Load(),
	}
}

// startContainer runs a container of etcd's static pod.
func (h *host) startContainer(c *corev1.Container, more ...string) (*process.Process, error) {
	spec, err := h.etcdHost().Command(c, more...)
	if err != nil {
		return nil, err
	}
	spec.Log = filepath.Join(h.cloud.logs, c.Name+"-"+h.name+".log")
	return process.Start(spec)
}

// initContainer runs an init container of a pod of etcd to its end.
func (h *host) initContainer(ctx context.Context, pod int, c *corev1.Container) error {
	run, err := h.startContainer(c)
	if err != nil {
		return err
	}
	for err == nil && !closed(run.Done()) && h.has(pod) {
		err = h.wait(ctx, run.Done(), nil)
	}
	if err != nil || !closed(run.Done()) {
		_ = run.Stop(0)
		return err
	}
	if code, exited := run.ExitCode(); !exited || code != 0 {
		return run.Err()
	}
	return nil
}
