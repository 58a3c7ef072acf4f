package machineapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// The ConfigMaps in the Machine namespace that are Holdfast's own.
const (
	// RecordsName keeps which Machine hosted which listed member, so that the knowledge outlives the Machine.
	RecordsName = "holdfast-members"
	// LedgerName is the release ledger.
	LedgerName = "holdfast-releases"
)

// release is quorum.Release as it is written down, under the Machine's UID. Member IDs are hex, as etcdctl prints them.
type release struct {
	Machine string    `json:"machine"`
	Members []string  `json:"members"`
	At      time.Time `json:"at"`
	By      string    `json:"by,omitempty"`
	Until   time.Time `json:"until,omitzero"`
}

// powersOff begins the key of an entry with Until: the Machine may have another.
const powersOff = "host."

// FormatLedger is the data of the ConfigMap that is the release ledger: a key for each Machine, its UID.
func FormatLedger(entries []quorum.Release) map[string]string {
	data := map[string]string{}
	for _, e := range entries {
		out := release{Machine: e.Machine, Members: []string{}, At: e.At.UTC(), By: e.By, Until: e.Until.UTC()}
		for _, id := range e.Members {
			out.Members = append(out.Members, id.Hex())
		}
		value, err := json.Marshal(out)
		if err != nil { // only a year beyond 9999 does not marshal
			panic(err)
		}
		key := e.UID
		if !e.Until.IsZero() {
			key = powersOff + key
		}
		data[key] = string(value)
	}
	return data
}

// ParseLedger reads the data of that ConfigMap, in the order of its keys. What does not parse is left out and named by the
// error; the other entries are good.
func ParseLedger(data map[string]string) ([]quorum.Release, error) {
	var entries []quorum.Release
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		var in release
		uid := strings.TrimPrefix(key, powersOff)
		if err := json.Unmarshal([]byte(data[key]), &in); err != nil {
			errs = append(errs, fmt.Errorf("release %.100s: %w", uid, err))
			continue
		}
		e := quorum.Release{Machine: in.Machine, UID: uid, At: in.At, By: in.By, Until: in.Until}
		for _, s := range in.Members {
			id, err := quorum.ParseMemberID(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("release %.100s: %w", uid, err))
				continue
			}
			e.Members = append(e.Members, id)
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(errs...)
}
