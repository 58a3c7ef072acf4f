package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
)

// Connect opens a connection to etcd for an environment; the function that it returns closes it.
type Connect func(hostenv.Environment) (client Etcd, disconnect func(), err error)

var errFileChanged = errors.New("the environment's file changed")

// RunFile is Run with the environment that a file holds, and begins again whenever the file changes: what was expected before
// is of no use then. While there is no such file, none that can be read as an environment or that etcd agrees with, or no
// certificate to connect with, it waits for that. The result is the environment that etcd agreed with.
func (m *Membership) RunFile(ctx context.Context, path string, connect Connect) (hostenv.Environment, error) {
	began := time.Now()
	over := began.Add(m.Timeout)
	said, told := "", time.Time{}
	for {
		environment, err := m.runOnce(ctx, path, over, connect)
		var (
			missing  errMissing
			outdated *outdatedError
		)
		switch {
		case errors.Is(err, errFileChanged):
			fmt.Fprintf(m.Out, "%s changed: once more.\n", path)
			continue
		case !errors.As(err, &missing) && !errors.As(err, &outdated):
			return environment, err
		case time.Now().After(over):
			return environment, fmt.Errorf("not within %v: %w", m.Timeout, err)
		}
		if now := err.Error(); now != said || time.Since(told) >= sayAgain {
			said, told = now, time.Now()
			fmt.Fprintf(m.Out, "Waiting: %s\n", said)
		}
		select {
		case <-ctx.Done():
			return environment, fmt.Errorf("stopped while waiting: %w", err)
		case <-time.After(pause(began)):
		}
	}
}

// errMissing is what has to be there before etcd can be asked.
type errMissing struct{ error }

func (e errMissing) Unwrap() error { return e.error }

// runOnce is a run with what the file holds, until it ends or the file holds something else.
func (m *Membership) runOnce(ctx context.Context, path string, over time.Time, connect Connect) (hostenv.Environment, error) {
	text, environment, err := readEnvironment(path)
	if err != nil {
		return environment, errMissing{err}
	}
	client, disconnect, err := connect(environment)
	if err != nil {
		return environment, errMissing{err}
	}
	defer disconnect()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for ctx.Err() == nil && holds(path, text) {
			select {
			case <-ctx.Done():
			case <-time.After(look):
			}
		}
		cancel(errFileChanged)
	}()
	check := *m
	check.Etcd, check.Environment, check.Timeout = client, environment, time.Until(over)
	err = check.Run(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errFileChanged) {
		return environment, errFileChanged
	}
	return environment, err
}

// readEnvironment is what a file holds, and the environment in it.
func readEnvironment(path string) (text []byte, environment hostenv.Environment, err error) {
	text, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, environment, fmt.Errorf("%s is not there yet", path)
	}
	if err != nil {
		return nil, environment, err
	}
	if environment, err = hostenv.Parse(string(text)); err != nil {
		return nil, environment, fmt.Errorf("%s: %w", path, err)
	}
	return text, environment, nil
}

// holds says whether a file holds that text still. Of one that cannot be read now, what it held stays true.
func holds(path string, text []byte) bool {
	now, err := os.ReadFile(path)
	return err != nil || bytes.Equal(now, text)
}
