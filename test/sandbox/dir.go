package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// parts are what a sandbox makes in its directory, beside the lock.
func parts() []string { return []string{"env", "cloud.sock", "logs", "pki", "kubeconfig", "hosts"} }

// claim makes the directory, or takes it over from a sandbox that is gone. The
// lock is the kernel's, so a crash leaves none behind.
func claim(dir string) (_ *os.File, err error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
			return nil, fmt.Errorf("%s is not empty and was not made by a sandbox: choose another directory", dir)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the sandbox's directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the sandbox's directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another sandbox runs in %s: stop it, or choose another directory", dir)
		}
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	for _, part := range parts() {
		if err := os.RemoveAll(filepath.Join(dir, part)); err != nil {
			return nil, fmt.Errorf("cleaning %s: %w", dir, err)
		}
	}
	for _, part := range []string{"logs", "pki", "kubeconfig", "hosts"} {
		if err := os.Mkdir(filepath.Join(dir, part), 0o700); err != nil {
			return nil, fmt.Errorf("the sandbox's directory: %w", err)
		}
	}
	return lock, nil
}

func (s *Sandbox) logFile(name string) string { return filepath.Join(s.Logs, name+".log") }

func (s *Sandbox) envFile() string { return filepath.Join(s.Dir, "env") }

func (s *Sandbox) cloudSocket() string { return SocketIn(s.Dir) }

// SocketIn is the cloud's socket of the sandbox in that directory.
func SocketIn(dir string) string { return filepath.Join(dir, "cloud.sock") }

// writeEnv writes what a shell needs, all at once, so that who waits for the
// file never reads half of it.
func (s *Sandbox) writeEnv() error {
	kubectl, err := assets.Path("kubectl")
	if err != nil {
		return err
	}
	root, err := assets.Root()
	if err != nil {
		return err
	}
	path := filepath.Dir(kubectl)
	if bin := filepath.Join(root, "bin"); bin != path {
		path = bin + ":" + path
	}
	text := &strings.Builder{}
	for _, line := range [][2]string{
		{"KUBECONFIG", s.Kubeconfig(Admin)},
		{"ETCDCTL_ENDPOINTS", strings.Join(s.Endpoints(), ",")},
		{"ETCDCTL_CACERT", s.EtcdFiles.CA},
		{"ETCDCTL_CERT", s.EtcdFiles.Cert},
		{"ETCDCTL_KEY", s.EtcdFiles.Key},
	} {
		fmt.Fprintf(text, "export %s=%s\n", line[0], quote(line[1]))
	}
	fmt.Fprintf(text, "export PATH=%s:\"$PATH\"\n", quote(path))
	half := s.envFile() + ".new"
	if err := os.WriteFile(half, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("writing the environment: %w", err)
	}
	if err := os.Rename(half, s.envFile()); err != nil {
		return fmt.Errorf("writing the environment: %w", err)
	}
	return nil
}

// quote is a word for a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
