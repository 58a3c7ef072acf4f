package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitLabels are the rules keep-finalizer and keep-role.
func admitLabels(d *Decision, r *Request) {
	if !r.Old.Held() {
		return
	}
	if r.Old.Finalizer && !r.New.Finalizer {
		d.add(quorum.RuleKeepFinalizer, VerdictDenied, keepFinalizer(r)...)
	}
	if r.Old.Role != "" && r.New.Role != r.Old.Role || r.Old.Type != "" && r.New.Type != r.Old.Type {
		d.add(quorum.RuleKeepRole, VerdictDenied, keepRole(r)...)
	}
}

func keepFinalizer(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): finalizer %s of Machine %s stays while hook %s is on it.", quorum.RuleKeepFinalizer, quorum.Finalizer, r.name(), r.holder()),
		"Without the finalizer a deletion removes the Machine at once, even if the hook is on, and nobody knows the host of its etcd member any more.",
		"To release a deleting Machine by hand, remove the hook; the finalizer goes by itself: " + r.kubectl("edit", ""),
	}
}

func keepRole(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s keeps %s=%q and %s=%q while hook %s is on it.", quorum.RuleKeepRole, r.name(), quorum.RoleLabel, r.Old.Role, quorum.TypeLabel, r.Old.Type, r.holder()),
		"Without them it would no longer be seen as a control-plane Machine, although etcd runs on it.",
		"Leave both labels as they are. To replace the Machine, delete it: " + r.kubectl("delete", ""),
	}
}
