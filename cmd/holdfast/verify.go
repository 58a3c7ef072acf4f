package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/etcdflags"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/verify"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check on a control-plane host whether etcd may start, whether its disk is fit, whether it serves",
		Long: `Checks for a control-plane host, each one a command:

  membership  before etcd starts, each time: does etcd list this host, as expected?
  storage     before etcd starts, or whenever: is the disk fit for it?
  health      while etcd runs (a readiness probe): does this member serve a ring with quorum?

Each exits 0 if all is well, 1 if not, with the reason and what to do, and 2 for a bad command line.
The connection to etcd is described as to etcdctl, by flags or by its variables ETCDCTL_*.`,
		Args: unknown("check"),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(verifyMembershipCommand(), verifyStorageCommand(), verifyHealthCommand())
	return cmd
}

// membershipFlags are those of verify membership.
type membershipFlags struct {
	etcd            etcdflags.Flags
	file, port      string // the environment file, and the client port of the members in it
	given           bool   // --endpoints is on the command line
	peer, data, wal string
	timeout         time.Duration
	quorumWait      time.Duration
}

func verifyMembershipCommand() *cobra.Command {
	var o membershipFlags
	cmd := &cobra.Command{
		Use:   "membership [flags] [-- COMMAND [ARGUMENT]...]",
		Short: "Wait until etcd may start on this host; run before etcd, each time",
		Long: `Wait until etcd may start on this host, and make its data directory ready for that.

etcd may start when a live, linearizable member list names this host's peer URL, when that list and
the expected members (ETCD_MEMBER_IDS) agree, and when the data directory holds this member's data
of this ring, or nothing if the member never started. Data of the member that etcd lists here start
whatever the expected members are: etcd with data does not read them. While the host is not listed yet this command
waits, with progress, until --timeout.

  - An older member's data directory is archived before a new member starts: renamed to a sibling,
    DIR-removed-TIME. Nothing is deleted. It is refused while an etcd uses the directory, where the
    rename would cross file systems, and where less room is left than the ring's data take. Data of
    a member that etcd lists are never archived.
  - A member that has started before does not start without its data.
  - Where etcd lists the member whose data are here at another peer URL, the host's address changed. This
    command waits until etcd lists it here, and says what to type for that.
  - Data from before etcd was restored from a snapshot do not start. Restore with a new
    --initial-cluster-token: with the old one members and cluster keep their IDs.
  - If etcd gives no linearizable answer for --quorum-wait, a member whose own data are here and that
    is expected starts all the same: after a power cut of all hosts there is no quorum to ask.

What etcd is to start with is in three variables:

  ETCD_INITIAL_CLUSTER        NAME=PEER-URL,... of all members
  ETCD_INITIAL_CLUSTER_STATE  existing, or new for the first members of a ring
  ETCD_MEMBER_IDS             HEX-ID=PEER-URL,... of all members that are expected

In full mode Holdfast renders them for each control-plane Node, under the Node's name, into a ConfigMap:

  kubectl -n openshift-etcd get configmap etcd-membership -o yaml

With --environment-file this command takes them from a file that "holdfast host-files" keeps on the host, waits for
that file and for the certificates, and begins again whenever the file changes.

After -- comes a command, such as etcd and its flags. Once etcd may start, it takes the place of this process, with
ETCD_INITIAL_CLUSTER and ETCD_INITIAL_CLUSTER_STATE as they were checked. A kubelet starts a container again
without the init containers. Checked there as well, a member that was removed waits and goes on as a new one.`,
		Example: `  export ETCD_MEMBER_IDS=8e9e05c52164694d=https://10.0.0.1:2380,91bc3c398fb3c146=https://10.0.0.2:2380
  export ETCD_INITIAL_CLUSTER=master-0=https://10.0.0.1:2380,master-1=https://10.0.0.2:2380
  export ETCD_INITIAL_CLUSTER_STATE=existing
  holdfast verify membership --peer-url https://10.0.0.2:2380 --data-dir /var/lib/etcd/data \
    --endpoints https://10.0.0.1:2379,https://10.0.0.2:2379 --cacert ca.crt --cert client.crt --key client.key`,
		Args: func(cmd *cobra.Command, args []string) error {
			before := cmd.ArgsLenAtDash()
			return wrong(before > 0 || before < 0 && len(args) > 0,
				"%s takes no arguments but a command after --, and was given %q; see %[1]s --help", cmd.CommandPath(), args)
		},
		RunE: func(cmd *cobra.Command, command []string) error {
			o.given = cmd.Flags().Changed("endpoints")
			environment, err := o.run(cmd)
			if err != nil || len(command) == 0 {
				return err
			}
			if err := cmd.Context().Err(); err != nil {
				return fmt.Errorf("stopped before etcd started: %w", err)
			}
			return become(command, environment)
		},
	}
	o.bind(cmd.Flags())
	return cmd
}

func (o *membershipFlags) bind(f *pflag.FlagSet) {
	o.etcd.Bind(f)
	o.etcd.BindEndpoints(f)
	f.StringVar(&o.file, "environment-file", "", "file with the three variables, in place of those of this process; without --endpoints, etcd is asked at --client-port of the members in it")
	f.StringVar(&o.port, "client-port", clientPort, "port at which the members of --environment-file serve clients")
	f.StringVar(&o.peer, "peer-url", os.Getenv("ETCD_INITIAL_ADVERTISE_PEER_URLS"), "this host's peer URL (ETCD_INITIAL_ADVERTISE_PEER_URLS)")
	f.StringVar(&o.data, "data-dir", os.Getenv("ETCD_DATA_DIR"), "etcd's data directory; a directory of its own inside a file system, not a mount point (ETCD_DATA_DIR)")
	f.StringVar(&o.wal, "wal-dir", os.Getenv("ETCD_WAL_DIR"), "etcd's --wal-dir, where its write-ahead log is elsewhere (ETCD_WAL_DIR)")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long this may take, waiting until etcd may start included")
	f.DurationVar(&o.quorumWait, "quorum-wait", 5*time.Second, "how long etcd must give no linearizable answer before a member starts on its own data without one")
}

// run waits until etcd may start, and says with what.
func (o *membershipFlags) run(cmd *cobra.Command) (hostenv.Environment, error) {
	if err := o.check(); err != nil {
		return hostenv.Environment{}, err
	}
	check := verify.Membership{
		File: o.file, Connect: o.connect, PeerURL: o.peer, DataDir: o.data, WALDir: o.wal, Timeout: o.timeout, QuorumWait: o.quorumWait, Out: cmd.OutOrStdout(),
	}
	if o.file == "" {
		var err error
		if check.Environment, err = hostenv.FromVariables(os.Getenv); err != nil {
			return check.Environment, cli.Usage("%w", err)
		}
		client, err := o.etcd.Open()
		if err != nil {
			return check.Environment, err
		}
		defer client.Close()
		check.Etcd = client
	}
	err := check.Run(cmd.Context())
	return check.Environment, err
}

// become has a command take the place of this process, with the environment's variables that are etcd's own. It returns only if it cannot.
func become(command []string, e hostenv.Environment) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("etcd may start, and its command cannot: %w", err)
	}
	variables := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{hostenv.InitialClusterVariable, hostenv.StateVariable, hostenv.MemberIDsVariable}, name)
	})
	variables = append(variables, hostenv.InitialClusterVariable+"="+e.InitialCluster.String(), hostenv.StateVariable+"="+string(e.State))
	return fmt.Errorf("etcd may start, and its command cannot: %s: %w", path, syscall.Exec(path, command, variables))
}

// check finds what is wrong with the flags.
func (o *membershipFlags) check() error {
	if u, err := url.Parse(o.peer); err != nil || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.Scheme != "https" {
		return cli.Usage("--peer-url is %q; it is this host's peer URL, such as https://10.0.0.1:2380", o.peer)
	}
	if err := cmp.Or(
		wrong(o.data == "", "--data-dir is missing"),
		wrong(o.timeout <= 0 || o.quorumWait < 0, "--timeout must be longer than 0, and --quorum-wait not negative"),
	); err != nil || o.file == "" {
		return err
	}
	// The files may come later.
	if err := cmp.Or(
		wrong(o.etcd.CACert == "", "--cacert is missing"),
		wrong(o.etcd.Cert == "", "--cert is missing"),
		wrong(o.etcd.Key == "", "--key is missing"),
	); err != nil || !o.given {
		return err
	}
	return etcdflags.CheckEndpoints(o.etcd.Endpoints)
}

// endpoints are where the etcd of an environment file is asked: at its members, unless the command line names endpoints. Variables do not
// count: etcd's container may have ETCDCTL_ENDPOINTS for people, which name this host's member alone.
func (o *membershipFlags) endpoints(e hostenv.Environment) []string {
	if o.given {
		return o.etcd.Endpoints
	}
	var out []string
	for _, peers := range []hostenv.Peers{e.Members, e.InitialCluster} {
		for _, raw := range slices.Concat(slices.Collect(maps.Values(peers))...) {
			if u, err := url.Parse(raw); err == nil {
				out = append(out, "https://"+net.JoinHostPort(u.Hostname(), o.port))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// connect connects to the etcd of an environment file.
func (o *membershipFlags) connect(e hostenv.Environment) (verify.Etcd, func(), error) {
	to := o.etcd
	to.Endpoints = o.endpoints(e)
	client, err := to.Open()
	if err != nil {
		return nil, nil, err
	}
	return client, client.Close, nil
}

func verifyStorageCommand() *cobra.Command {
	check := verify.Storage{}
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "Check that the data directory's disk is fit for etcd",
		Long: `Check the data directory: its mode, whether it can be written, the room on its file system against
etcd's quota, and how long small writes take to last (fsync), measured by 200 writes of 2300 bytes to a
file that is gone afterwards, for at most 5 s. A p99 above 10 ms is warned about, and fails the check
only with --max-fsync. Where a member has data already, whatever is wrong is only warned about.`,
		Example: `  holdfast verify storage --data-dir /var/lib/etcd/data --max-fsync 20ms`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(
				wrong(check.DataDir == "", "--data-dir is missing"),
				wrong(check.Quota < 0 || check.MaxFsync < 0, "--quota-backend-bytes and --max-fsync must not be negative"),
			); err != nil {
				return err
			}
			check.Out = cmd.OutOrStdout()
			return check.Run()
		},
	}
	f := cmd.Flags()
	f.StringVar(&check.DataDir, "data-dir", os.Getenv("ETCD_DATA_DIR"), "etcd's data directory (ETCD_DATA_DIR)")
	f.Int64Var(&check.Quota, "quota-backend-bytes", 8<<30, "etcd's flag of this name: bytes that its database may grow to; 0 not to look at the room")
	f.DurationVar(&check.MaxFsync, "max-fsync", 0, "fail if the p99 of an fsync is above this; 0 never fails")
	return cmd
}

func verifyHealthCommand() *cobra.Command {
	var at etcdflags.Flags
	var endpoint string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check that this host's member serves a ring with quorum; a readiness probe",
		Long: `Check that the member at --endpoint is a voter, knows a leader and gives a
linearizable read. A linearizable read takes a quorum, so a member that lost the others fails the
check, although it would still answer reads from its own data. A learner fails it: it does not vote.`,
		Example: `  holdfast verify health --endpoint https://10.0.0.1:2379 --cacert ca.crt --cert client.crt --key client.key`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "https" || strings.Contains(endpoint, ",") {
				return cli.Usage("--endpoint is %q; it is the client URL of this host's member, such as https://10.0.0.1:2379", endpoint)
			}
			if timeout <= 0 {
				return cli.Usage("--timeout must be longer than 0")
			}
			at.Endpoints = []string{endpoint}
			client, err := at.Open()
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			healthy, err := verify.Health(ctx, client, endpoint)
			if err != nil {
				return fmt.Errorf("not healthy: %w", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "healthy: "+healthy)
			return err
		},
	}
	f := cmd.Flags()
	at.Bind(f)
	f.StringVar(&endpoint, "endpoint", os.Getenv("ETCDCTL_ENDPOINTS"), "client URL of this host's member (ETCDCTL_ENDPOINTS)")
	f.DurationVar(&timeout, "timeout", 2*time.Second, "how long the member may take")
	return cmd
}
