package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

const (
	// retellEvery is how soon an unchanged ring is written again. With a look every 10 s at rest, the
	// ConfigMap is then never much older than 30 s.
	retellEvery = 25 * time.Second
	// progressEvery is how soon a learner's progress, or another message about the same trouble, is written.
	progressEvery = 2 * time.Second
	// ringBound is how long a round waits for one write.
	ringBound = time.Second
	// ringRetry is how long no write is tried after one that failed, so that not every round waits for it.
	ringRetry = 5 * time.Second
)

// RingView publishes the ring as Holdfast reads it in ConfigMap holdfast-ring, in both modes, for people who
// have kubectl and cannot reach etcd. Nothing is decided by it. Set its exported fields.
type RingView struct {
	Client    client.Client
	Namespace string // Holdfast's own
	By        string // this process

	stands  *corev1.ConfigMap // as it was written last; nil if that is not known
	at      time.Time         // when that was, zero for never
	weighty string            // what of it is published at once
	minor   string            // what of it is published now and then
	pause   time.Time         // until then nothing is tried
}

// report brings the ConfigMap up to date with a look at the cluster.
func (v *RingView) report(ctx context.Context, s *quorum.Snapshot) error {
	if v == nil || s.Now.Before(v.pause) {
		return nil
	}
	weighty, minor := digest(s)
	age := s.Now.Sub(v.at)
	if !v.at.IsZero() && weighty == v.weighty && (minor == v.minor || age < progressEvery) && age < retellEvery {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ringBound)
	defer cancel()
	err := v.write(ctx, s)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && v.stands != nil {
		// Somebody else wrote or deleted it: read it, and write once more.
		v.stands = nil
		err = v.write(ctx, s)
	}
	if err != nil {
		// An update that timed out may have been made: what stands there is not known.
		v.stands, v.at, v.pause = nil, time.Time{}, s.Now.Add(ringRetry)
		return fmt.Errorf("cannot write ConfigMap holdfast-ring, from which kubectl holdfast reads etcd's members: %w", err)
	}
	v.at, v.weighty, v.minor = s.Now, weighty, minor
	return nil
}

// write puts the look into the object, as it was written last, or as it is read now.
func (v *RingView) write(ctx context.Context, s *quorum.Snapshot) error {
	key := client.ObjectKey{Namespace: v.Namespace, Name: snapshotfile.RingName}
	object, write := v.stands, "update"
	if object == nil {
		object = &corev1.ConfigMap{}
		if err := v.Client.Get(ctx, key, object); apierrors.IsNotFound(err) {
			object, write = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, "create"
		} else if err != nil {
			return fmt.Errorf("read ConfigMap %s: %w", key, err)
		}
	}
	data, err := snapshotfile.RingData(s, v.By, object.Data)
	if err != nil {
		return err
	}
	object.Data, object.BinaryData = data, nil
	if write == "create" {
		err = v.Client.Create(ctx, object)
	} else {
		err = v.Client.Update(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("%s ConfigMap %s: %w", write, key, err)
	}
	v.stands = object
	return nil
}

// digest has what the ConfigMap says, in two texts. A change of weighty is written at once: members, their roles and health, the leader,
// whether they are known, and the settings. A change of minor may wait for progressEvery.
func digest(s *quorum.Snapshot) (weighty, minor string) {
	var now, later strings.Builder
	fmt.Fprintln(&now, s.Mode, s.Desired, s.DesiredWhy, s.Replicas, s.Surge, s.Limits, s.ForeignLock(), s.Ring.Known, s.Ring.Leader, s.Ring.Version, s.Ring.Alarms)
	fmt.Fprintln(&later, s.Ring.Why, s.BootstrapWaits, s.APIServersWait)
	for i := range s.Failures {
		f := &s.Failures[i]
		fmt.Fprintf(&now, "%q %s\n", f.What, f.Since)
		fmt.Fprintf(&later, "%q\n", f.Why)
	}
	for i := range s.Ring.Members {
		m := &s.Ring.Members[i]
		fmt.Fprintf(&now, "%x %q %q %q %t %t\n", m.ID, m.Name, m.PeerURLs, m.ClientURLs, m.Learner, m.Healthy)
		fmt.Fprintf(&later, "%q", m.Why)
		if m.Learner {
			fmt.Fprintf(&later, " %d %t", m.Applied, m.CaughtUpAt.IsZero())
		}
	}
	return now.String(), later.String()
}
