package machineapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// evidence is quorum.Evidence as it is written down. Member IDs are hex, as etcdctl prints them.
type evidence struct {
	MachineUID    string            `json:"machineUID"`
	Machine       string            `json:"machine"`
	MemberIDs     []quorum.MemberID `json:"memberIDs"`
	PeerAddresses []string          `json:"peerAddresses"`
	Voted         bool              `json:"voted,omitempty"`
}

// ParseEvidence reads the value of the annotation quorum.EvidenceAnnotation. The Evidence is zero
// with an error: half of it would be as good as a wrong one.
func ParseEvidence(value string) (quorum.Evidence, error) {
	var in evidence
	if err := json.Unmarshal([]byte(value), &in); err != nil {
		return quorum.Evidence{}, fmt.Errorf("evidence %.200q: %w", value, err)
	}
	out := quorum.Evidence{MachineUID: in.MachineUID, Machine: in.Machine, MemberIDs: in.MemberIDs, Voted: in.Voted}
	if in.MachineUID == "" || len(in.MemberIDs) == 0 {
		return quorum.Evidence{}, fmt.Errorf("evidence %.200q names no Machine UID or no member", value)
	}
	for _, s := range in.PeerAddresses {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return quorum.Evidence{}, fmt.Errorf("evidence of Machine %s: peer address: %w", in.Machine, err)
		}
		out.Addresses = append(out.Addresses, addr.Unmap())
	}
	return out, nil
}

// FormatEvidence is the value of the annotation quorum.EvidenceAnnotation.
func FormatEvidence(e quorum.Evidence) string {
	out := evidence{MachineUID: e.MachineUID, Machine: e.Machine, MemberIDs: append([]quorum.MemberID{}, e.MemberIDs...), PeerAddresses: []string{}, Voted: e.Voted}
	for _, addr := range e.Addresses {
		out.PeerAddresses = append(out.PeerAddresses, addr.String())
	}
	value, err := json.Marshal(out)
	if err != nil { // strings and slices of strings always marshal
		panic(err)
	}
	return string(value)
}

// FormatRecords is the data of the ConfigMap that keeps evidence apart from the Machines: a key for
// each member, its ID in hex, with the evidence that names it and no other member.
func FormatRecords(records []quorum.Evidence) map[string]string {
	data := map[string]string{}
	for _, r := range records {
		for _, id := range r.MemberIDs {
			one := r
			one.MemberIDs = []quorum.MemberID{id}
			data[id.Hex()] = FormatEvidence(one)
		}
	}
	return data
}

// installedKey is the key of that ConfigMap with the greatest number of voters that an install-config asked for.
const installedKey = "install-config"

// RecordInstalled adds that number to the ConfigMap's data; 0 is unknown, and adds nothing.
func RecordInstalled(data map[string]string, voters int) map[string]string {
	if voters > 0 {
		data[installedKey] = strconv.Itoa(voters)
	}
	return data
}

// Installed reads that number, 0 without one.
func Installed(data map[string]string) int {
	n, err := strconv.Atoi(data[installedKey])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// ParseRecords reads the data of that ConfigMap, in the order of its keys. What does not parse is
// left out and named by the error: the member then has no record, and unless a Machine or Node has
// its address its host is unknown, which holds. The other records are good.
func ParseRecords(data map[string]string) ([]quorum.Evidence, error) {
	var records []quorum.Evidence
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if key == installedKey {
			continue
		}
		e, err := ParseEvidence(data[key])
		if err == nil && (len(e.MemberIDs) != 1 || e.MemberIDs[0].Hex() != key) {
			err = errors.New("its evidence is not that of the member that it is named after")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record %s: %w", key, err))
			continue
		}
		records = append(records, e)
	}
	return records, errors.Join(errs...)
}
