package sandbox

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
)

// proxy plays kube-proxy: it listens on each Service's address and port, and leads a new connection to one
// of its pods that are ready and not being deleted. One that stands is left alone, as kube-proxy does.
// It follows the pods themselves, since EndpointSlices may not hold loopback addresses.
type proxy struct {
	pods *pods
	log  *slog.Logger

	mu        sync.Mutex
	listeners map[string]net.Listener // by namespace/name of the Service and address:port
}

// startProxy runs until the sandbox stops.
func (s *Sandbox) startProxy() {
	p := &proxy{pods: s.cloud.pods, log: s.cloud.log.With("part", "proxy"), listeners: map[string]net.Listener{}}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(s.cloud.pods.core.RESTClient(), "services", metav1.NamespaceAll, fields.Everything()),
		ObjectType:    &corev1.Service{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { p.follow(s.background, o, true) },
			UpdateFunc: func(_, o any) { p.follow(s.background, o, true) },
			DeleteFunc: func(o any) { p.follow(s.background, o, false) },
		},
	})
	s.work.Go(func() { informer.RunWithContext(s.watching) })
	s.closers = append(s.closers, p.close)
}

// follow listens on the ports that a Service has, and no longer on those that it had.
func (p *proxy) follow(ctx context.Context, o any, exists bool) {
	service, ok := o.(*corev1.Service)
	if !ok || len(service.Spec.Selector) == 0 || service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range service.Spec.Ports {
		address := joinPort(service.Spec.ClusterIP, int(port.Port))
		key := service.Namespace + "/" + service.Name + " " + address
		listener := p.listeners[key]
		switch {
		case exists && listener == nil:
			listener, err := net.Listen("tcp", address)
			if err != nil {
				p.log.Error("listening for a Service", "service", key, "error", err)
				continue
			}
			p.log.Info("leads", "service", key)
			p.listeners[key] = listener
			go lead(ctx, listener, p.log.With("service", service.Name), func() (string, bool) { return p.pick(service, port.TargetPort) })
		case !exists && listener != nil:
			_ = listener.Close()
			delete(p.listeners, key)
		}
	}
}

func (p *proxy) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
	return nil
}

// lead joins each new connection with one to the address that is picked for it, until the listener is closed.
func lead(ctx context.Context, listener net.Listener, log *slog.Logger, pick func() (address string, ok bool)) {
	accept(listener, log, func(from net.Conn) { join(ctx, from, log, pick) })
}

// accept serves each new connection, until the listener is closed.
func accept(listener net.Listener, log *slog.Logger, serve func(net.Conn)) {
	for {
		from, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Error("accepting", "error", err)
			return
		}
		go serve(from)
	}
}

// join lasts until either connection ends. Without an address the first is closed at once.
func join(ctx context.Context, from net.Conn, log *slog.Logger, pick func() (address string, ok bool)) {
	defer func() { _ = from.Close() }()
	address, ok := pick()
	if !ok {
		return
	}
	to, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		log.Info("does not answer", "error", err)
		return
	}
	defer func() { _ = to.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = errors.Join(from.Close(), to.Close()) })
	defer stop()
	one := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // whoever ends first ends both
			one <- struct{}{}
		}()
	}
	<-one
}

// pick is where one of the Service's pods listens, chosen at random.
func (p *proxy) pick(service *corev1.Service, port intstr.IntOrString) (string, bool) {
	selector := labels.SelectorFromSet(service.Spec.Selector)
	var addresses []string
	all, _ := p.pods.all()
	for _, pod := range all {
		if pod.Namespace != service.Namespace || pod.DeletionTimestamp != nil || !podReady(pod) || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if number, err := portOf(pod, port); err == nil {
			addresses = append(addresses, joinPort(pod.Status.PodIP, number))
		}
	}
	if len(addresses) == 0 {
		return "", false
	}
	return addresses[rand.IntN(len(addresses))], true
}
