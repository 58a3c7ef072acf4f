package registrations

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/holdfast-dev/holdfast/internal/observe"
)

// LogChanges is a check that logs its answer when it changes, and once a minute while it is an error: /readyz itself withholds the sentence.
func LogChanges(name string, log logr.Logger, check healthz.Checker) healthz.Checker {
	var last trouble
	return func(r *http.Request) error {
		err := check(r)
		switch {
		case !last.news(err):
		case err != nil:
			log.Info("not ready", "check", name, "reason", err.Error())
		default:
			log.Info("ready", "check", name)
		}
		return err
	}
}

// Loaded is a check: there is a certificate to serve, and it has not expired.
func (s *Source) Loaded(*http.Request) error {
	c, err := s.GetCertificate(nil)
	if err != nil {
		return err
	}
	if s.clock.Now().After(c.Leaf.NotAfter) {
		return fmt.Errorf("the certificate that the webhooks are served with expired at %s", c.Leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// readinessGrace is how long a replica that was vouched for stays ready while the registrations say otherwise:
// the elected replica puts them right in seconds, and to be without endpoints would then cost more.
const readinessGrace = 15 * time.Second

// Vouched makes a check: the live registrations vouch for the certificate that is served, or did so when
// they could be read last. A replica that was vouched for once stays ready where nothing is registered:
// it is not called then, and the metrics show it.
func (s *Source) Vouched() healthz.Checker {
	var (
		mu   sync.Mutex
		good time.Time // when it was so last
	)
	return func(*http.Request) error {
		c, err := s.GetCertificate(nil)
		if err != nil {
			return err
		}
		now := s.clock.Now()
		distrust := s.live.trusts(c, s.host, now)
		mu.Lock()
		defer mu.Unlock()
		if distrust == nil && good.IsZero() {
			distrust = s.live.registered()
		}
		if distrust == nil {
			good = now
		}
		if !good.IsZero() && now.Sub(good) < readinessGrace {
			return nil
		}
		return distrust
	}
}

const (
	firstRead = time.Second
	readAgain = 5 * time.Second
)

// FirstRead reads etcd once, on every replica, and says so if it cannot. Then the replica is ready all
// the same: the guard is to serve while etcd is down.
type FirstRead struct {
	Etcd    observe.Ring
	Metrics *Metrics
	Log     logr.Logger
	Asked   chan struct{} // closed once it has answered, or has not within a second
}

// Start tries until etcd answers or the context ends.
func (f *FirstRead) Start(ctx context.Context) error {
	first := true
	_ = wait.PollUntilContextCancel(ctx, readAgain, true, func(ctx context.Context) (done bool, err error) {
		bounded, cancel := context.WithTimeout(ctx, firstRead)
		defer cancel()
		ring := f.Etcd.Read(bounded)
		if ring.Known {
			f.Metrics.answered.Set(1)
			f.Log.Info("etcd was read", "members", len(ring.Members), "version", ring.Version)
		} else if first && ctx.Err() == nil {
			f.Log.Error(errors.New(ring.Why), "etcd cannot be read: rules that need it hold what they guard until it can")
		}
		if first {
			first = false
			close(f.Asked)
		}
		return ring.Known, nil
	})
	return nil
}

// Check returns nil once etcd was read, or the log says why it cannot be read.
func (f *FirstRead) Check(*http.Request) error {
	select {
	case <-f.Asked:
		return nil
	default:
		return errors.New("etcd has not been read yet")
	}
}
