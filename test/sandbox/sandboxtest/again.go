package sandboxtest

import (
	"bytes"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// Again has a client send a patch or a deletion again where etcd dropped the write, as the person who typed it would. etcd
// drops what is proposed while leadership moves, and says so after some seconds. A creation or a PUT is not sent again: etcd
// may have it, and then the second one is refused.
func Again(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return again{next} })
}

type again struct{ next http.RoundTripper }

// dropped is what the API server passes on of such an answer.
const dropped = "etcdserver: request timed out"

// RoundTrip sends the request up to three times.
func (a again) RoundTrip(r *http.Request) (*http.Response, error) {
	for tries := 1; ; tries++ {
		response, err := a.next.RoundTrip(r)
		if err != nil || tries == 3 || response.StatusCode != http.StatusInternalServerError || r.Method != http.MethodPatch && r.Method != http.MethodDelete {
			return response, err
		}
		body, err := io.ReadAll(response.Body)
		if closed := response.Body.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(body, []byte(dropped)) {
			response.Body = io.NopCloser(bytes.NewReader(body))
			return response, nil
		}
		r = r.Clone(r.Context())
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}
