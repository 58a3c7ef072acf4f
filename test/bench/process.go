package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// cpu is the CPU time that a process has had, with that of its threads that have ended.
func cpu(pid int) (time.Duration, error) {
	var at syscall.Timespec
	clock := ^pid<<3 | 2 // clock_getcpuclockid(3), in nanoseconds where /proc has hundredths of a second
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&at)), 0); errno != 0 {
		return 0, fmt.Errorf("the CPU time of process %d: %w", pid, errno)
	}
	return time.Duration(at.Nano()), nil
}

// memory is a process's resident memory in MiB, now or at its highest.
func memory(pid int, field string) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}

// samples are the samples of a page of metrics, by name and labels as they are written.
type samples map[string]float64

// scrape reads a page of metrics.
func scrape(ctx context.Context, c *http.Client, url string) (samples, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %w", url, resp.Status, err)
	}
	out := samples{}
	for line := range strings.Lines(string(raw)) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		if value, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err == nil {
			out[line[:i]] = value
		}
	}
	return out, nil
}

// sum adds the samples of a metric whose labels hold all of the texts.
func (s samples) sum(name string, labels ...string) (total float64) {
next:
	for key, value := range s {
		is, rest, _ := strings.Cut(key, "{")
		if is != name {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue next
			}
		}
		total += value
	}
	return total
}
