// Package loopback claims addresses in 127.0.0.0/8, so that several rings and
// sandboxes, each with many hosts, run on one machine without clashing.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
)

// lockPort is above Linux's default range of ephemeral ports, so that only
// another claim holds it.
const lockPort = 61999

// Block is a claimed 127.A.B.0/24. It is not safe for concurrent use.
type Block struct {
	a, b   byte
	lock   net.Listener
	handed map[int]bool
}

// Claim takes a free block for this process. The claim is a listener on the
// block's last address: the kernel grants it once and takes it back when the
// process ends, however it ends.
func Claim() (*Block, error) {
	var last error
	for range 200 {
		block := &Block{a: byte(64 + rand.IntN(187)), b: byte(64 + rand.IntN(187)), handed: map[int]bool{}}
		lock, err := net.Listen("tcp", netip.AddrPortFrom(block.Addr(254), lockPort).String())
		if err == nil {
			block.lock = lock
			return block, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no free block of loopback addresses: %w", last)
}

// Addr is 127.A.B.i; i from 1 to 253 is free to use.
func (b *Block) Addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, b.a, b.b, byte(i)}) }

// FreePorts returns n ports, none returned before, that can be bound on each
// address of the block. They are below the ephemeral range, so that no outgoing
// connection takes one before it is used.
func (b *Block) FreePorts(n int) ([]int, error) {
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := 10000 + rand.IntN(20000)
		if b.handed[port] || !b.bindable(port) {
			continue
		}
		b.handed[port] = true
		ports = append(ports, port)
	}
	return nil, errors.New("no free ports on loopback")
}

// bindable probes one address: the block is ours, so what else may hold a port
// is a listener on the wildcard address, which shows on any of them.
func (b *Block) bindable(port int) bool {
	probe, err := net.Listen("tcp", netip.AddrPortFrom(b.Addr(253), uint16(port)).String())
	if err != nil {
		return false
	}
	return probe.Close() == nil
}

// Close gives the block back.
func (b *Block) Close() error { return b.lock.Close() }
