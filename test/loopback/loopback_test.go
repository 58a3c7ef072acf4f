package loopback_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/holdfast-dev/holdfast/test/loopback"
)

func TestBlocksAreDistinct(t *testing.T) {
	seen := map[netip.Addr]bool{}
	for range 20 {
		block, err := loopback.Claim()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = block.Close() })
		addr := block.Addr(1)
		if !addr.IsLoopback() || seen[addr] {
			t.Fatalf("%v: not loopback, or claimed twice", addr)
		}
		seen[addr] = true
	}
}

func TestFreePortsCanBeBound(t *testing.T) {
	block, err := loopback.Claim()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = block.Close() })
	ports, err := block.FreePorts(5)
	if err != nil {
		t.Fatal(err)
	}
	for i, port := range ports {
		l, err := net.Listen("tcp", netip.AddrPortFrom(block.Addr(10+i), uint16(port)).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
}
