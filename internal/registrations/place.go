package registrations

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// ParseService reads NAMESPACE/NAME[:PORT]; without a port it is 443.
func ParseService(text string) (*Service, error) {
	s := &Service{Port: 443}
	at, port, hasPort := strings.Cut(text, ":")
	var ok bool
	if s.Namespace, s.Name, ok = strings.Cut(at, "/"); !ok {
		return nil, fmt.Errorf("%q is not NAMESPACE/NAME[:PORT]", text)
	}
	if problems := utilvalidation.IsDNS1123Label(s.Namespace); len(problems) > 0 {
		return nil, fmt.Errorf("%q: %q is no namespace: %s", text, s.Namespace, problems[0])
	}
	if problems := utilvalidation.IsDNS1035Label(s.Name); len(problems) > 0 {
		return nil, fmt.Errorf("%q: %q is no name of a Service: %s", text, s.Name, problems[0])
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q: %q is no port from 1 to 65535", text, port)
		}
		s.Port = int32(n)
	}
	return s, nil
}

// Hosts are what a certificate of the webhook server is to be good for: DNS names or IP addresses. The
// first is the one that the API server verifies it for.
func (o *Options) Hosts() ([]string, error) {
	if s := o.Service; s != nil {
		host := s.Name + "." + s.Namespace + ".svc"
		return []string{host, host + ".cluster.local"}, nil
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, fmt.Errorf("the webhooks' URL: %w", err)
	}
	if u.Hostname() == "" {
		return nil, fmt.Errorf("the webhooks' URL %q has no host", o.URL)
	}
	return []string{u.Hostname()}, nil
}

// addresses parts hosts into DNS names and IP addresses.
func addresses(hosts []string) (names []string, ips []net.IP) {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, h)
		}
	}
	return names, ips
}

// pathOf is the path under which a webhook is called.
func pathOf(c *admissionregistrationv1.WebhookClientConfig) string {
	if c.Service != nil {
		return ptr.Deref(c.Service.Path, "")
	}
	u, err := url.Parse(ptr.Deref(c.URL, ""))
	if err != nil {
		return ""
	}
	return u.Path
}

func setPath(c *admissionregistrationv1.WebhookClientConfig, path string) {
	if c.Service != nil {
		service := *c.Service
		service.Path = &path
		c.Service = &service
		return
	}
	if u, err := url.Parse(ptr.Deref(c.URL, "")); err == nil {
		u.Path, u.RawPath = path, ""
		c.URL = new(u.String())
	}
}

// withToken has a webhook called under a path that begins with a token, and with no other; "" for none.
func withToken(c admissionregistrationv1.WebhookClientConfig, token string) admissionregistrationv1.WebhookClientConfig {
	plain := "/" + path.Base(pathOf(&c))
	if token != "" {
		plain = "/" + token + plain
	}
	setPath(&c, plain)
	return c
}
