package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// HealthCheckRequest creates or changes a MachineHealthCheck.
type HealthCheckRequest struct {
	Namespace, Name string
	// MaxUnhealthy is spec.maxUnhealthy: how many of the Machines that it selects may be unhealthy for it
	// to act on any of them; per cent of those if Percent.
	MaxUnhealthy int
	Percent      bool
	// External: something else than a deletion of the Machine mends it.
	External bool
	// Fresh: the selector matches a new Machine of role and type master.
	Fresh bool
}

// AdmitHealthCheck is the rule health-check. It only warns, because the deletions that a
// MachineHealthCheck sends are judged like all others.
func AdmitHealthCheck(r *HealthCheckRequest, s *quorum.Selection) Decision {
	var d Decision
	if len(s.Machines) == 0 && !r.Fresh {
		return d
	}
	voters := s.Desired
	if voters == 0 {
		voters = len(s.Machines)
	}
	if voters == 0 {
		voters = 3 // nothing is known yet: what an installation begins with
	}
	can := max(1, quorum.Tolerance(voters)) // as many as one-too-many lets go
	if most := r.most(max(s.Total, voters)); most > can {
		d.add(quorum.RuleHealthCheck, VerdictAllowed, healthCheckWarned(r, voters, most, can)...)
	}
	return d
}

// most is the number of unhealthy Machines with which the check still acts: machine-api-operator takes
// a percentage of the Machines selected and rounds it down.
func (r *HealthCheckRequest) most(total int) int {
	if r.Percent {
		return min(r.MaxUnhealthy, 100) * total / 100
	}
	return min(r.MaxUnhealthy, total)
}

func healthCheckWarned(r *HealthCheckRequest, voters, most, can int) []string {
	then := fmt.Sprintf("It may delete more control-plane Machines at once than that; Holdfast refuses the deletions that go too far (%s, %s).", quorum.RuleOneTooMany, quorum.RuleDegradedDelete)
	if r.External {
		then = fmt.Sprintf("Its remediation restarts hosts. Holdfast refuses one too many where bare metal is asked for it (%s), and nothing that another operator does.", quorum.RuleKeepHost)
	}
	return []string{
		fmt.Sprintf("Holdfast (%s): MachineHealthCheck %s acts while up to %d Machines are unhealthy, and etcd with %s can lose %d.", quorum.RuleHealthCheck, quorum.Clip(r.Name, 80), most, quorum.NVoters(voters), can),
		then,
		fmt.Sprintf(`Set maxUnhealthy to %d: kubectl -n %s patch machinehealthcheck.machine.openshift.io %s --type=merge -p '{"spec":{"maxUnhealthy":%d}}'`, can, r.Namespace, quorum.Clip(r.Name, 80), can),
	}
}
