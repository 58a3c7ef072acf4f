package sandbox

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/test/pki"
)

// What a kubelet serves, for kubectl logs, oc adm node-logs and kubectl holdfast audit: the logs of pods whose containers run, and the host's
// /var/log. An API server asks no kubelet at a loopback address for the latter. So each Node has an address for documentation (RFC 5737) as well,
// and the API server's requests for those go through a proxy that leads them here.

// kubeletPort is where API servers look for a kubelet of which the Node tells no other.
const kubeletPort = 10250

// external is the Node's address beyond loopback, with the same last byte.
func (h *host) external() string {
	at := netip.MustParseAddr(h.at()).As4()
	return netip.AddrFrom4([4]byte{203, 0, 113, at[3]}).String()
}

// hostPath is where a path of the host is.
func (h *host) hostPath(path string) string { return filepath.Join(h.dir, "root", path) }

// reached is the host with power at that address and port.
func (c *cloud) reached(address string) *host {
	for _, h := range c.all() {
		if on, _, _ := h.state(); on && address == joinPort(h.external(), kubeletPort) {
			return h
		}
	}
	return nil
}

// openKubelets serves for all hosts, and the proxy.
func (s *Sandbox) openKubelets() error {
	if !s.options.ForInstall {
		return nil
	}
	var hosts []string
	for i := range s.pool {
		hosts = append(hosts, fmt.Sprintf("203.0.113.%d", 10+i))
	}
	cert, key, err := s.ca.Issue(pki.Leaf{CommonName: "kubelet", Hosts: hosts})
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("the kubelets' certificate: %w", err)
	}
	if s.kubeletCert, s.kubeletKey, err = s.ca.IssueFiles(s.pki(), "kubelet-client", pki.Leaf{CommonName: "system:kube-apiserver"}); err != nil {
		return err
	}
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("the proxy to the kubelets: %w", err)
	}
	s.kubeletProxy = "http://" + proxy.Addr().String()
	kubelets := map[string]string{} // by the address that the API server asks for, where each listens
	for _, host := range hosts {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("the kubelets: %w", err)
		}
		at := joinPort(host, kubeletPort)
		kubelets[at] = listener.Addr().String()
		serve := &http.Server{
			Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.cloud.kubelet(at, w, r) }),
			ReadHeaderTimeout: time.Minute,
			TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.ca.Pool()},
		}
		s.closers = append(s.closers, serve.Close)
		go func() { _ = serve.ServeTLS(listener, "", "") }()
	}
	lead := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || s.cloud.reached(r.Host) == nil {
			http.Error(w, "no route to host", http.StatusBadGateway)
			return
		}
		from, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, err = from.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
		}
		if err != nil {
			return
		}
		join(s.background, from, s.cloud.log.With("part", "kubelets"), func() (string, bool) { return kubelets[r.Host], true })
	})}
	s.closers = append(s.closers, lead.Close)
	go func() { _ = lead.Serve(proxy) }()
	return nil
}

// kubelet answers for the host with that address. Of a request for a Node's proxy the Host is the API server's.
func (c *cloud) kubelet(at string, w http.ResponseWriter, r *http.Request) {
	h := c.reached(at)
	if h == nil {
		panic(http.ErrAbortHandler) // it lost its power: the connection breaks
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/logs/"):
		http.StripPrefix("/logs/", http.FileServer(http.Dir(h.hostPath("/var/log")))).ServeHTTP(w, r)
	case strings.HasPrefix(r.URL.Path, "/containerLogs/"):
		h.containerLogs(w, r)
	default:
		http.NotFound(w, r)
	}
}

// containerLogs serves the log of a pod's container: all of what its processes printed, one after the other.
func (h *host) containerLogs(w http.ResponseWriter, r *http.Request) {
	part := strings.Split(r.URL.Path, "/") // "", containerLogs, namespace, pod, container
	pods, _ := h.cloud.pods.on(h.name)
	for _, pod := range pods {
		if len(part) == 5 && pod.Namespace == part[2] && pod.Name == part[3] && r.URL.Query().Get("previous") != "true" && h.workload(string(pod.UID)) != nil {
			http.ServeFile(w, r, filepath.Join(h.cloud.logs, "pod-"+pod.Name+".log"))
			return
		}
	}
	http.Error(w, "there is no such container here", http.StatusBadRequest)
}
