package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Etcd is what the checks ask of etcd.
type Etcd interface {
	Read(ctx context.Context) quorum.Ring
	Status(ctx context.Context, clientURL string) (etcd.Status, error)
	Linearizable(ctx context.Context, clientURL string) error
}

// Membership is the check whether etcd may start on this host.
type Membership struct {
	Etcd        Etcd
	Environment membership.Environment
	PeerURL     string
	DataDir     string
	Timeout     time.Duration // for waiting
	QuorumWait  time.Duration
	Out         io.Writer // progress, for people

	step func(done string) // told of the steps of an archive; nil for nobody
}

const (
	look     = 100 * time.Millisecond // between two looks while waiting
	sayAgain = 10 * time.Second       // while nothing changes
)

// Run waits until etcd may start and makes the data directory ready for it. It returns nil then, a
// Refusal if it must not, and an error with the last reason for waiting when the time is over.
func (m *Membership) Run(ctx context.Context) error {
	if m.step == nil {
		m.step = func(string) {}
	}
	began := time.Now()
	answered := began // when etcd last gave a linearizable answer, or was first asked
	var told time.Time
	said := ""
	for {
		ring := m.Etcd.Read(ctx)
		if ring.Known {
			answered = time.Now()
		}
		disk, err := readDisk(m.DataDir)
		if err != nil {
			return err
		}
		d := Decide(Facts{
			Environment: m.Environment, PeerURL: m.PeerURL, Ring: ring, Disk: disk,
			Silent: time.Since(answered), QuorumWait: m.QuorumWait,
		})
		if d.Verdict == Fresh || d.Verdict == Archive {
			d = m.checkRoom(ctx, &ring, d)
		}
		switch d.Verdict {
		case Start:
			m.say("Start: %s", d.Why)
			return nil
		case Fresh, Archive:
			return m.fresh(d)
		case Refuse:
			return &Refusal{d.Why, d.Advice}
		case Wait:
		}
		if d.Why != said || time.Since(told) >= sayAgain {
			said, told = d.Why, time.Now()
			m.say("Waiting (%d s of %d s): %s", int(time.Since(began).Seconds()), int(m.Timeout.Seconds()), d.Why)
		}
		if time.Since(began) >= m.Timeout {
			return fmt.Errorf("not within %v: %s", m.Timeout, d.Why)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped while waiting: %s", d.Why)
		case <-time.After(look):
		}
	}
}

func (m *Membership) say(format string, args ...any) { fmt.Fprintf(m.Out, format+"\n", args...) }

// checkRoom compares what is free with what the leader has. The first members of a ring have nothing
// to take over.
func (m *Membership) checkRoom(ctx context.Context, ring *quorum.Ring, d Decision) Decision {
	if !ring.Known {
		return d
	}
	leader := ring.Member(ring.Leader)
	if leader == nil || len(leader.ClientURLs) == 0 {
		return Decision{Verdict: Wait, Why: "etcd's leader, whose data a new member takes over, is not known."}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status, err := m.Etcd.Status(ctx, leader.ClientURLs[0])
	if err != nil {
		return Decision{Verdict: Wait, Why: fmt.Sprintf("etcd's leader did not say how large its data are: %v.", err)}
	}
	var refused *Refusal
	if err := room(m.DataDir, status.DBSize); errors.As(err, &refused) {
		return Decision{Refuse, refused.Reason, refused.Advice}
	} else if err != nil {
		return Decision{Verdict: Wait, Why: err.Error() + "."}
	}
	return d
}

// fresh makes an empty data directory, after putting aside what is there.
func (m *Membership) fresh(d Decision) error {
	if d.Verdict == Fresh {
		if err := makeDir(m.DataDir, m.step); err != nil {
			return err
		}
		m.say("Start: %s", d.Why)
		return nil
	}
	aside, err := archive(m.DataDir, time.Now(), m.step)
	if err != nil {
		return err
	}
	m.say("Archived: %s is now %s.", m.DataDir, aside)
	m.say("Start: %s", d.Why)
	return nil
}
