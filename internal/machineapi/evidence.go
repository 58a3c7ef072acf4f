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

// ParseEvidence reads the value of the annotation quorum.EvidenceAnnotation. The Evidence is zero
// with an error: half of it would be as good as a wrong one.
func ParseEvidence(value string) (quorum.Evidence, error) {
	var e quorum.Evidence
	if err := json.Unmarshal([]byte(value), &e); err != nil {
		return quorum.Evidence{}, fmt.Errorf("evidence %.200q: %w", value, err)
	}
	if e.MachineUID == "" || len(e.MemberIDs) == 0 {
		return quorum.Evidence{}, fmt.Errorf("evidence %.200q names no Machine UID or no member", value)
	}
	addresses := e.Addresses
	e.Addresses = nil
	for _, addr := range addresses {
		if !addr.IsValid() { // "" is read as none
			return quorum.Evidence{}, fmt.Errorf("evidence of Machine %s: a peer address is empty", e.Machine)
		}
		e.Addresses = append(e.Addresses, addr.Unmap())
	}
	return e, nil
}

// FormatEvidence is the value of the annotation quorum.EvidenceAnnotation.
func FormatEvidence(e quorum.Evidence) string {
	e.MemberIDs, e.Addresses = append([]quorum.MemberID{}, e.MemberIDs...), append([]netip.Addr{}, e.Addresses...) // [] and not null
	value, err := json.Marshal(e)
	if err != nil { // IDs, addresses and strings always marshal
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
