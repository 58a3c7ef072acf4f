package sandbox

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// volumesEvery is how often a kubelet here looks whether what a pod mounts has changed; a real one does so
// about once a minute. Each pod has its own beat, so replicas see a new file at different times.
const volumesEvery = 5 * time.Second

// followVolumes keeps what a pod mounts up to date until the context ends. What is gone or cannot be read
// stays as it was.
func (h *host) followVolumes(ctx context.Context, pod *corev1.Pod) {
	tick := time.NewTicker(volumesEvery)
	defer tick.Stop()
	for said := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := h.mount(ctx, pod); err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			h.log.Warn("volumes", "pod", pod.Name, "error", err)
		}
	}
}

// put has a directory hold these files, and no others that it put there. They change all at once, as they
// do in a pod: each is a link through one link, which is renamed.
func put(dir string, files map[string][]byte) error {
	const current = "..data"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	before, err := os.Readlink(filepath.Join(dir, current))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if before != "" && holds(filepath.Join(dir, before), files) {
		return nil
	}
	fresh, err := os.MkdirTemp(dir, "..")
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(fresh, name), content, 0o600); err != nil {
			return err
		}
	}
	next := filepath.Join(dir, current+".next")
	if err := errors.Join(os.Symlink(filepath.Base(fresh), next), os.Rename(next, filepath.Join(dir, current))); err != nil {
		return err
	}
	for name := range files {
		if err := os.Symlink(filepath.Join(current, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if before == "" {
		return nil
	}
	old, err := os.ReadDir(filepath.Join(dir, before))
	if err != nil {
		return err
	}
	for _, file := range old {
		if _, stays := files[file.Name()]; !stays {
			err = errors.Join(err, os.Remove(filepath.Join(dir, file.Name())))
		}
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(dir, before)))
}

// holds says whether a directory has exactly these files.
func holds(dir string, files map[string][]byte) bool {
	there, err := os.ReadDir(dir)
	if err != nil || len(there) != len(files) {
		return false
	}
	for name, content := range files {
		if have, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(have, content) {
			return false
		}
	}
	return true
}
