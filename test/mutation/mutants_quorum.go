package main

func join() []mutant {
	return []mutant{
		{"hosting: after a restore", "quorum/join.go", "why != \"\" && m.Deleting() {", "false && why != \"\" {"},
		{"hosting: after a restore, etcd unknown", "quorum/join.go", "	if !j.s.Ring.Known {\n		return \"\"", "	if false {\n		return \"\""},
		{"hosting: after a restore, what stays", "quorum/join.go", "why != \"\" && m.Deleting() {", "why != \"\" {"},
		{"hosting: after a restore, with all voters that are wanted", "quorum/join.go", "if wanted > 0 && voters >= wanted || !lost(m) {", "if _ = voters; !lost(m) {"},
		{"hosting: after a restore, the number for this step", "quorum/join.go", "max(j.s.Desired, j.s.Replicas)", "j.s.Desired"},
		{"hosting: after a restore, no number is known", "quorum/join.go", "if wanted > 0 && voters >= wanted ", "if voters >= wanted "},
		{"hosting: after a restore, what had no member", "quorum/join.go", "if wanted > 0 && voters >= wanted || !lost(m) {", "if wanted > 0 && voters >= wanted {"},
		{"hosting: one member removed by hand", "quorum/join.go", "other.ControlPlane() && lost(other) {", "other.ControlPlane() {"},
		{"phases: after a restore", "membership/replacement.go", "		case join.Rejoining(m) != \"\":\n", ""},
		{"report: after a restore", "membership/blocker.go", "if why := p.join.Rejoining(m); why != \"\" {", "if why := p.join.Rejoining(m); false && why != \"\" {"},
		{"held: after a restore", "admission/delete.go", "Rejoining(s.Machine(old.Name)); why != \"\" {", "Rejoining(s.Machine(old.Name)); false && why != \"\" {"},
		{"early-release: after a restore", "admission/release.go", "m != nil && quorum.NewJoin(s).Rejoining(m) != \"\" {", "m != nil && false {"},
		{"runs: the one that answers", "quorum/join.go", "len(twins) == 0 || member.Healthy ||", "len(twins) == 0 ||"},
		{"runs: the one that evidence names", "quorum/join.go", "		named(member) && !slices", "		false && named(member) && !slices"},
		{"evidence joins", "quorum/join.go", "m.OwnEvidence().Names(member.ID) || ", ""},
		{"evidence of another UID", "quorum/evidence.go", "m.UID == \"\" || m.Evidence.MachineUID != m.UID", "m.UID == \"\""},
		{"unknown holds", "quorum/join.go", "!j.hosts[k].Known() {", "false {"},
		{"two hosts are none", "quorum/join.go", "	return n == 1 || n == 0", "	return n >= 1 || n == 0"},
		{"never had an instance", "quorum/join.go", "	if m.NeverHadInstance() {", "	if false && m != nil {"},
		{"copied evidence hints at nothing", "quorum/machine.go", " || m.EvidenceCopied())", ")"},
		{"stale: Machine gone", "quorum/join.go", " && j.Host(member).Departed != nil", " && false"},
		{"stale: Node away", "quorum/join.go", " && j.Host(member).Departed != nil", " && (j.Host(member).Departed != nil || len(j.Host(member).Machines) == 0)"},
		{"stale: dead", "quorum/join.go", "!member.Learner && j.s.Dead(member) && ", "!member.Learner && "},
		{"records outlive Machines", "membership/hook.go", "if r := slices.IndexFunc(p.s.Records, func(r quorum.Evidence) bool { return r.Names(member.ID) }); r >= 0 {", "if r := -1; r >= 0 {"},
		{"IPv4 in IPv6", "quorum/join.go", "e.addrs = append(e.addrs, addr.Unmap())", "e.addrs = append(e.addrs, addr)"},
		{"Node's addresses", "quorum/join.go", "j.nodes[i] != nil && at.Meets(", "false && at.Meets("},
	}
}
