package sandboxtest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestAgain: what etcd dropped is sent again, whole, if a second time does no harm, and three times at most.
func TestAgain(t *testing.T) {
	const dropped, other = `{"message":"etcdserver: request timed out"}`, `{"message":"another reason"}`
	for name, c := range map[string]struct {
		method string
		code   int
		body   string
		sent   int
	}{
		"a patch":              {http.MethodPatch, http.StatusInternalServerError, dropped, 3},
		"a deletion":           {http.MethodDelete, http.StatusInternalServerError, dropped, 3},
		"a creation":           {http.MethodPost, http.StatusInternalServerError, dropped, 1},
		"a PUT":                {http.MethodPut, http.StatusInternalServerError, dropped, 1},
		"another error":        {http.MethodPatch, http.StatusInternalServerError, other, 1},
		"a refusal":            {http.MethodPatch, http.StatusForbidden, dropped, 1},
		"it goes well at once": {http.MethodPatch, http.StatusOK, other, 1},
	} {
		t.Run(name, func(t *testing.T) {
			server := &answers{code: c.code, body: c.body}
			config := &rest.Config{Transport: server}
			Again(config)
			transport, err := rest.TransportFor(config)
			if err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), c.method, "http://sandbox", strings.NewReader("a body"))
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			if err != nil || string(body) != c.body || response.StatusCode != c.code {
				t.Errorf("%d %s, %v", response.StatusCode, body, err)
			}
			if got := strings.Join(server.got, ", "); got != strings.Repeat(", a body", c.sent)[2:] {
				t.Errorf("sent: %s; want %d", got, c.sent)
			}
		})
	}
}

// answers gives one answer to every request, and keeps the requests' bodies.
type answers struct {
	code int
	body string
	got  []string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	a.got = append(a.got, string(body))
	return &http.Response{StatusCode: a.code, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, err
}
