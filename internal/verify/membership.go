package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Etcd is what the checks ask of etcd.
type Etcd interface {
	Read(ctx context.Context) quorum.Ring
	Status(ctx context.Context, clientURL string) (etcd.Status, error)
	Contacts(ctx context.Context) []etcd.Contact
	Past(ctx context.Context, clientURL string, key []byte, revision int64) (value *mvccpb.KeyValue, known bool, err error)
	Linearizable(ctx context.Context, clientURL string) error
}

// Membership is the check whether etcd may start on this host.
type Membership struct {
	// File holds the environment, and Connect opens a connection to the etcd of an environment. Without a File these are Environment and
	// Etcd.
	File        string
	Connect     func(hostenv.Environment) (client Etcd, disconnect func(), err error)
	Etcd        Etcd
	Environment hostenv.Environment // after a Run that returned nil: the one that etcd agreed with

	PeerURL    string
	DataDir    string
	WALDir     string        // etcd's --wal-dir; "" for member/wal in DataDir
	Timeout    time.Duration // for all of it
	QuorumWait time.Duration
	Out        io.Writer // progress, for people

	step func(done string) // called after each step of an archive; may be nil
}

const (
	look     = 100 * time.Millisecond // between two looks while waiting
	seldom   = time.Second            // the same, after the first seconds
	sayAgain = 10 * time.Second       // while nothing changes
	answer   = time.Second            // that one member may take
)

// Run waits until etcd may start and makes the data directory ready for it. It returns nil then, a
// Refusal if it must not, and an error with the last reason for waiting when the time is over, whatever
// hangs then. It waits while File is missing, unreadable or not what etcd lists, and while there is no certificate to
// connect with.
func (m *Membership) Run(ctx context.Context) error {
	r := &run{Membership: *m, began: time.Now(), disconnect: func() {}}
	r.DataDir = filepath.Clean(m.DataDir)
	r.answered = r.began
	if r.step == nil {
		r.step = func(string) {}
	}
	r.now("asking etcd for its members")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := time.NewTimer(m.Timeout)
	defer over.Stop()
	done := make(chan error, 1) // so that no goroutine blocks for ever
	go func() { done <- r.loop(ctx) }()
	select {
	case err := <-done:
		m.Environment = r.Environment
		return err
	case <-over.C:
		return fmt.Errorf("not within %v: %s", m.Timeout, *r.doing.Load())
	case <-ctx.Done():
		return fmt.Errorf("stopped while waiting: %s", *r.doing.Load())
	}
}

// run is one run of the check.
type run struct {
	Membership
	began      time.Time
	answered   time.Time // when etcd last gave a linearizable answer, or was first asked
	doing      atomic.Pointer[string]
	text       []byte // what was taken in of File, nil before
	disconnect func()
}

func (m *run) now(doing string) { m.doing.Store(&doing) }

func (m *run) loop(ctx context.Context) error {
	defer func() { m.disconnect() }()
	var at time.Time
	said := ""
	for {
		d, err := m.act(ctx)
		if err != nil {
			return err
		}
		// A decision made while the context ended is dropped: a missing answer may only mean that the call was cancelled.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if d.Verdict == VerdictOutdated && m.File != "" {
			d = wait("%s\n%s", d.Why, d.Advice)
		}
		m.now(d.Why)
		switch d.Verdict {
		case VerdictStart, VerdictFresh, VerdictArchive:
			m.say("Start: %s", d.Why)
			return nil
		case VerdictRefuse, VerdictOutdated:
			return &Refusal{d.Why, d.Advice}
		case VerdictWait, VerdictCompare:
		}
		if d.Why != said || time.Since(at) >= sayAgain {
			said, at = d.Why, time.Now()
			m.say("Waiting (%d s of %d s): %s", int(time.Since(m.began).Seconds()), int(m.Timeout.Seconds()), d.Why)
		}
		pause := look
		if time.Since(m.began) >= sayAgain { // a host that waits for long asks the members that are left less often
			pause = seldom
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// act looks, decides, and does what has to be done before etcd may start. It says what was decided.
func (m *run) act(ctx context.Context) (Decision, error) {
	if m.File != "" {
		if err := m.takeIn(); err != nil {
			return wait("%v", err), nil
		}
	}
	f, err := m.observe(ctx)
	if err != nil {
		return Decision{}, err
	}
	d := m.decide(ctx, f)
	if d.Verdict == VerdictFresh || d.Verdict == VerdictArchive {
		d = m.checkRoom(ctx, &f.Ring, d)
	}
	switch d.Verdict {
	case VerdictFresh:
		return d, makeDir(m.DataDir, m.step)
	case VerdictArchive:
		return m.archive(ctx, d)
	default:
		return d, nil
	}
}

// takeIn takes in what File says now, and connects to the etcd that it names. While it cannot be read, what it said stays true.
func (m *run) takeIn() error {
	text, err := os.ReadFile(m.File)
	if err != nil && m.text != nil {
		text, err = m.text, nil
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is not there yet", m.File)
	case err != nil:
		return err
	case m.text != nil && bytes.Equal(text, m.text):
		return nil
	}
	environment, err := hostenv.Parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", m.File, err)
	}
	client, disconnect, err := m.Connect(environment)
	if err != nil {
		return err
	}
	if m.text != nil {
		m.say("%s changed: once more.", m.File)
	}
	m.disconnect()
	m.Etcd, m.Environment, m.text, m.disconnect, m.answered = client, environment, text, disconnect, time.Now()
	return nil
}

// observe gathers the facts that every decision takes.
func (m *run) observe(ctx context.Context) (f Facts, err error) {
	f = Facts{Environment: m.Environment, PeerURL: m.PeerURL, QuorumWait: m.QuorumWait, Ring: m.Etcd.Read(ctx)}
	if !f.Ring.Known {
		for _, c := range m.Etcd.Contacts(ctx) {
			if c.Err == nil {
				f.Running = append(f.Running, Running{Status: c.Status, At: c.URL})
			} else if !c.Silent {
				f.Stranger = c.Err.Error()
			}
		}
	}
	if f.Ring.Known || f.Stranger != "" {
		m.answered = time.Now()
	}
	f.Silent = time.Since(m.answered)
	defer m.reading()()
	f.Disk, err = readDisk(m.data())
	return f, err
}

// reading says that the disk is asked, until the function that it returns is called: a disk may never answer.
func (m *run) reading() (end func()) {
	before := *m.doing.Load()
	m.now(fmt.Sprintf("reading %s has not ended. %s", m.DataDir, before))
	return func() { m.now(before) }
}

func (m *run) say(format string, args ...any) { fmt.Fprintf(m.Out, format+"\n", args...) }

// leader asks the leader of a ring that is known about itself.
func (m *run) leader(ctx context.Context, ring *quorum.Ring) (leader Running, err error) {
	member := ring.Member(ring.Leader)
	if member == nil || len(member.ClientURLs) == 0 {
		return leader, errors.New("etcd's leader is not known")
	}
	for _, leader.At = range member.ClientURLs { // one may be a loopback address, where this host's own etcd answers
		within, cancel := context.WithTimeout(ctx, answer)
		leader.Status, err = m.Etcd.Status(within, leader.At)
		cancel()
		if err == nil && leader.Member == member.ID {
			return leader, nil
		}
		if err == nil {
			err = fmt.Errorf("member %x answers at %s", leader.Member, leader.At)
		}
	}
	return leader, fmt.Errorf("etcd's leader says nothing of its data: %w", err)
}

// decide is Decide with the facts that only some decisions take: where the data here stand, and what the
// members that run say of that.
func (m *run) decide(ctx context.Context, f Facts) Decision {
	d := Decide(f)
	if d.Verdict != VerdictCompare {
		return d
	}
	if f.Ring.Known {
		leader, err := m.leader(ctx, &f.Ring)
		if err != nil {
			return wait("%v.", err)
		}
		f.Running = []Running{leader}
	}
	if me := f.me(); f.Disk.Holding != HoldingData || me != nil && me.ID != f.Disk.Member {
		return Decide(f)
	}
	upTo := make([]int64, len(f.Running))
	for i := range f.Running {
		upTo[i] = f.Running[i].Revision
	}
	end := m.reading()
	position, written, err := readPosition(m.data(), upTo)
	end()
	switch {
	case errors.Is(err, errLocked):
		return wait("The data directory is in use: %v.", err)
	case err != nil:
		return refuse(
			fmt.Sprintf("If they cannot be mended, move the data directory aside and remove the member (etcdctl member remove %x), and a new one is added in its place.", f.Disk.Member),
			"Whether the data here are of this ring is not known: %v.", err)
	}
	f.Position = &position
	for i := range f.Running {
		if f.Running[i].Differs, err = m.differs(ctx, &f.Running[i], written[i]); err != nil {
			return wait("The data here cannot be compared with etcd's: %v.", err)
		}
	}
	return Decide(f)
}

// differs says what a running member holds otherwise than these keys of the data here. What it
// compacted, or does not let this client read, says nothing.
func (m *run) differs(ctx context.Context, r *Running, written []*mvccpb.KeyValue) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	for _, kv := range written {
		there, known, err := m.Etcd.Past(ctx, r.At, kv.GetKey(), kv.GetModRevision())
		if err != nil {
			return "", err
		}
		if known && !proto.Equal(there, kv) {
			return fmt.Sprintf("what they hold of revision %d is not what member %x holds of it", kv.GetModRevision(), r.Member), nil
		}
	}
	return "", nil
}

// checkRoom compares what is free with what the leader has. The first members of a ring have nothing
// to take over.
func (m *run) checkRoom(ctx context.Context, ring *quorum.Ring, d Decision) Decision {
	if !ring.Known {
		return d
	}
	leader, err := m.leader(ctx, ring)
	if err != nil {
		return wait("%v.", err)
	}
	var refused *Refusal
	if err := room(m.DataDir, leader.DBSize); errors.As(err, &refused) {
		return refuse(refused.Advice, "%s", refused.Reason)
	} else if err != nil {
		return wait("%v.", err)
	}
	return d
}

func (m *run) data() data { return dataIn(m.DataDir, m.WALDir) }

// archive puts the data here aside, if that is still right once nothing else can use them.
func (m *run) archive(ctx context.Context, d Decision) (Decision, error) {
	if inside, err := filepath.Rel(m.DataDir, m.data().wal); err != nil || !filepath.IsLocal(inside) { // the log that stays would start in the name of the old member
		return refuse(fmt.Sprintf("Move %s and %s aside by hand.", m.DataDir, m.WALDir), "Older data have to go, and their log is in %s.", m.WALDir), nil
	}
	defer m.reading()()
	unlock, err := lockData(m.data())
	if errors.Is(err, errBusy) {
		return wait("%v.", err), nil
	}
	if err != nil {
		return d, err
	}
	// Held over the rename: an etcd that starts now finds its files locked.
	defer unlock()
	// Since the decision another run may have put the older data aside, and etcd may have started and ended.
	f, err := m.observe(ctx)
	if err != nil {
		return d, err
	}
	if m.decide(ctx, f).Verdict != VerdictArchive || ctx.Err() != nil {
		return wait("The data directory or etcd's members changed a moment ago."), nil
	}
	aside, err := archive(m.DataDir, time.Now(), m.step)
	if err == nil {
		m.say("Archived: %s is now %s.", m.DataDir, aside)
	}
	return d, err
}
