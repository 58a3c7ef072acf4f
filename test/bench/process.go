package main

import (
	"fmt"
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
