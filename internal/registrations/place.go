package registrations

import (
	"fmt"
	"net/url"
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

// Hosts are what a certificate of the webhook server must be valid for: DNS names or IP addresses. The
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

// place is where a webhook is called, without the path.
func place(c *admissionregistrationv1.WebhookClientConfig) string {
	if c.Service != nil {
		return fmt.Sprintf("%s/%s:%d", c.Service.Namespace, c.Service.Name, ptr.Deref(c.Service.Port, 443))
	}
	return origin(ptr.Deref(c.URL, ""))
}

// origin is a URL without its path.
func origin(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "nowhere"
	}
	return u.Scheme + "://" + u.Host
}
