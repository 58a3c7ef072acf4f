package snapshotfile

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// RingName is the ConfigMap, in Holdfast's own namespace, in which it publishes the ring as it reads it, for
// those who cannot reach etcd.
const RingName = "holdfast-ring"

// The keys of its data.
const (
	ringKey      = "snapshot.yaml" // a File without Machines, Nodes, records and quorum guard
	byKey        = "by"            // which process wrote it
	endpointsKey = "endpoints"     // client URLs of the voters, each on a line, as they were when the ring was last known
)

// Ring is what that ConfigMap says.
type Ring struct {
	By string // the process that read etcd, a pod's name and a number mostly
	// Snapshot has Mode, Now (when it was read), Desired, DesiredWhy, Surge, OtherDriver, Lock, Failures, Ring and Limits alone.
	Snapshot *quorum.Snapshot
}

// RingData is what the ConfigMap holds after a look at the cluster by a process. stands is what it held before, or nil:
// while the ring is unknown its endpoints stay.
func RingData(s *quorum.Snapshot, by string, stands map[string]string) (map[string]string, error) {
	raw, err := yaml.Marshal(Of(published(s), ""))
	if err != nil {
		return nil, fmt.Errorf("write the ring down: %w", err)
	}
	data := map[string]string{ringKey: string(raw), byKey: by}
	endpoints := stands[endpointsKey]
	if s.Ring.Known {
		var urls []string
		for i := range s.Ring.Members {
			if m := &s.Ring.Members[i]; !m.Learner {
				urls = append(urls, m.ClientURLs...)
			}
		}
		endpoints = strings.Join(urls, "\n")
	}
	if endpoints != "" {
		data[endpointsKey] = endpoints
	}
	return data, nil
}

// RingEndpoints are the client URLs that the ConfigMap holds, if it holds any. Whoever may write it may have written them.
func RingEndpoints(data map[string]string) []string { return strings.Fields(data[endpointsKey]) }

// ParseRing reads what the ConfigMap holds. Whoever may write the ConfigMap may have written anything: an
// error is a sentence of one line, and a ring that is known has voters and a time.
func ParseRing(data map[string]string) (*Ring, error) {
	if data[ringKey] == "" {
		return nil, fmt.Errorf("it has no key %s", ringKey)
	}
	f, err := Parse([]byte(data[ringKey]))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ringKey, err)
	}
	s := published(&f.Snapshot)
	if voters, _ := s.Ring.Voters(); s.Ring.Known && voters == 0 {
		// It would say of every Machine that it hosts nothing.
		return nil, fmt.Errorf("%s: etcd.members: etcd is known, and there is no voter among its members", ringKey)
	}
	if s.Ring.Known && s.Ring.ReadAt.IsZero() {
		return nil, fmt.Errorf("%s: etcd.readAt: it is missing", ringKey)
	}
	if by := data[byKey]; len(by) > 300 || !utf8.ValidString(by) {
		return nil, errors.New(byKey + ": it is too long or no text")
	}
	return &Ring{By: data[byKey], Snapshot: s}, nil
}

// published is what of a Snapshot Holdfast publishes.
func published(s *quorum.Snapshot) *quorum.Snapshot {
	return &quorum.Snapshot{
		Mode: s.Mode, Now: s.Now, Desired: s.Desired, DesiredWhy: s.DesiredWhy, Replicas: s.Replicas, Surge: s.Surge, OtherDriver: s.OtherDriver,
		BootstrapWaits: s.BootstrapWaits, APIServersWait: s.APIServersWait, Lock: s.Lock, Failures: s.Failures, Ring: s.Ring, Limits: s.Limits,
	}
}
