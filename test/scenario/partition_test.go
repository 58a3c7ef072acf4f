package scenario_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// inNamespace says that this process is the test's own child, in a network namespace of its own.
const inNamespace = "HOLDFAST_TEST_NETWORK_NAMESPACE"

// TestPartition cuts a member off: nothing reaches its address, neither clients nor peers, and it reaches
// no peer from there. The whole sandbox runs in a network namespace that the test makes for it.
// Nothing is asked of the API server meanwhile: it may wait for the very member that is cut off.
func TestPartition(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	partition(t, sandbox.Options{HoldfastArgs: []string{"--member-dead-timeout=3s"}})
}

// TestPartitionGuard has that in guard mode, with two replicas: who changes members is the stand-in for cluster-etcd-operator, by gates and
// delays of its own.
func TestPartitionGuard(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	partition(t, sandbox.Options{Mode: "guard", HoldfastReplicas: 2})
}

func partition(t *testing.T, options sandbox.Options) {
	t.Helper()
	if os.Getenv(inNamespace) == "" {
		if !runInNamespace(t) {
			t.Skip("network namespaces are not permitted here")
		}
		return
	}
	upLoopback(t)
	options.Replicas = 3
	c := start(t, options)
	c.watch(t, 2)
	if options.Mode == "guard" {
		sandboxtest.Operate(t, c.Sandbox, 3)
	}
	c.atRest(t)

	// One that is not to be replaced. Nothing is lost, and the replacement completes.
	t.Run("a voter while another is replaced", func(t *testing.T) {
		old := c.oldest(t)
		cut := c.follower(t, old)
		must(t, c.remove(t.Context(), old))
		must(t, c.replacement(t.Context(), old, "first"))
		heal := c.cutOff(t, cut)
		c.logs(t, "etcd voter "+cut+" ") // that it is unhealthy; an Event may be lost, the API server may have its own etcd cut off
		heal()
		c.gone(t, 2*slowly, old)
		c.becomes(t, "first", "voter")
		c.recovers(t)
	})

	if options.Mode != "guard" { // there the stand-in promotes it
		t.Run("the learner", func(t *testing.T) {
			old := c.oldest(t)
			must(t, c.remove(t.Context(), old))
			must(t, c.replacement(t.Context(), old, "second"))
			c.reaches(t, added, old, "second")
			heal := c.cutOff(t, "second")
			NewWithT(t).Consistently(t.Context(), func(ctx context.Context) bool {
				role, err := c.role(ctx, "second")
				return err == nil && role == "voter"
			}).WithTimeout(attempt).WithPolling(glimpse).Should(BeFalse(), "a learner that nobody reaches is not promoted")
			heal()
			c.gone(t, 2*slowly, old)
			c.recovers(t)
		})
	}

	t.Run("the leader, which is to be removed", func(t *testing.T) {
		old := c.leader(t)
		must(t, c.remove(t.Context(), old))
		must(t, c.replacement(t.Context(), old, "third"))
		if c.reaches(t, started, old, "third"); options.Mode == "guard" {
			c.reaches(t, promoted, old, "third") // the stand-in, as the real operator, promotes only while every member answers
		}
		heal := c.cutOff(t, old)
		c.reaches(t, removed, old, "third")
		heal()
		c.gone(t, 2*slowly, old)
		c.recovers(t)
	})
}

// logs waits until a replica's log has a text.
func (c *cluster) logs(t *testing.T, text string) {
	t.Helper()
	eventually(t, slowly, "Holdfast's log to say "+text, func(context.Context) error {
		for _, replica := range c.Holdfasts() {
			if log, err := os.ReadFile(replica.Process().Log()); err != nil || bytes.Contains(log, []byte(text)) {
				return err
			}
		}
		return errors.New("it does not yet")
	})
}

// cutOff lets nothing reach a host's address, nor leave from it, until heal is called.
func (c *cluster) cutOff(t *testing.T, name string) (heal func()) {
	t.Helper()
	host, ok := c.Host(name)
	if !ok {
		t.Fatalf("no host %s", name)
	}
	u, err := url.Parse(host.PeerURL)
	must(t, err)
	address, err := netip.ParseAddr(u.Hostname())
	must(t, err)
	route := &netlink.Route{
		Dst:   &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())},
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_BLACKHOLE,
	}
	must(t, netlink.RouteAdd(route))
	healed := false
	heal = func() {
		if !healed {
			healed = true
			must(t, netlink.RouteDel(route))
		}
	}
	t.Cleanup(heal)
	return heal
}

// upLoopback makes the addresses of a new network namespace work.
func upLoopback(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
}

// runInNamespace runs the same test in a child with a network namespace of its own. Its answer is whether
// that is permitted, which it has to be where the test runs as CI: nothing is left out there.
func runInNamespace(t *testing.T) (permitted bool) {
	t.Helper()
	deadline := 24 * time.Hour
	if by, ok := t.Deadline(); ok {
		deadline = time.Until(by) - time.Minute // so that the child is the one to say where it hangs
	}
	//nolint:gosec // this very program
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprintf("-test.timeout=%s", deadline))
	child.Env = append(os.Environ(), inNamespace+"=yes")
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	var out bytes.Buffer
	child.Stdout = &out
	if testing.Verbose() {
		child.Stdout = io.MultiWriter(&out, os.Stdout) // as it goes on
	}
	child.Stderr = child.Stdout
	err := child.Run()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		if os.Getenv("CI") != "" {
			t.Fatal("network namespaces are not permitted here, and this test is not to be left out: ", err)
		}
		return false
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "--- PASS: "+t.Name()+"/") {
		t.Fatal("nothing was run")
	}
	return true
}
