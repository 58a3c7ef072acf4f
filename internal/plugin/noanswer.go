package plugin

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// runbook is where a person is led who has no API server.
const runbook = "https://github.com/holdfast-dev/holdfast/blob/main/docs/incidents.md#etcd-has-no-quorum"

// noAnswer is the error of a first request to the API server that was not answered. A refusal is an answer.
type noAnswer struct{ error }

// unanswered makes it one, unless the API server answered.
func unanswered(err error) error {
	if errors.As(err, new(apierrors.APIStatus)) && !transient(err) {
		return err
	}
	return noAnswer{err}
}

func (n noAnswer) Unwrap() error { return n.error }

func (n noAnswer) Error() string {
	return oneLine(n.error) + "; if etcd has no quorum: " + runbook
}
