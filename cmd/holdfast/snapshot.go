package main

import (
	"cmp"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/verify"
)

func snapshotCommand() *cobra.Command {
	var s verify.Snapshot
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Make a snapshot of etcd from a stopped member's data, with all that is in its log",
		Long: `Make a snapshot file of etcd from the data directory of a member that is stopped, for a restore where etcd has lost its
quorum for good: the other hosts are lost, or all hosts came back at other addresses.

etcd's own ways, a restore from member/snap/db and the flag --force-new-cluster, drop the last entries of the log, of which
the member does not know that they are committed. Acknowledged writes may be among them. This command keeps them all. It may
also keep a write that was never acknowledged.

  - The data directory is locked, read and copied, and stays as it is. It is refused while an etcd uses it, where it is no
    member's, and where the member is a learner or was removed.
  - etcd's program applies the log on the copy, as a ring of that member alone that listens in the copy's directory only.
    Take the version of etcd that ran on the data. The copy lies beside the file, needs twice the room of the data, and is
    removed at the end. After a run that was killed, .holdfast-snapshot-* is left there and may be deleted.
  - A file that is there already is never overwritten.

--dry-run checks the same and says how far the log goes. Of several hosts take the one with the highest term, and among those
the highest index. If the hosts that you compare are a majority of etcd's voters, that one has every acknowledged write. What others
acknowledged without this member is lost with them, and nothing shows how much that is.

The file is a snapshot like that of "etcdctl snapshot save". Restore from it with "etcdutl snapshot restore" and a new
--initial-cluster-token, which gives the new ring an ID of its own.`,
		Example: `  holdfast snapshot --data-dir /var/lib/etcd/data --dry-run
  holdfast snapshot --data-dir /var/lib/etcd/data --out /var/lib/etcd/snapshot.db`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(
				wrong(s.DataDir == "", "--data-dir is missing"),
				wrong(s.File == "" && !s.DryRun, "--out is missing"),
			); err != nil {
				return err
			}
			s.Out = cmd.OutOrStdout()
			return s.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.DataDir, "data-dir", os.Getenv("ETCD_DATA_DIR"), "data directory of the member, whose etcd is stopped (ETCD_DATA_DIR)")
	f.StringVar(&s.WALDir, "wal-dir", os.Getenv("ETCD_WAL_DIR"), "etcd's --wal-dir, where its write-ahead log is elsewhere (ETCD_WAL_DIR)")
	f.StringVar(&s.File, "out", "", "snapshot file to make")
	f.StringVar(&s.Etcd, "etcd", "etcd", "etcd's program")
	f.BoolVar(&s.DryRun, "dry-run", false, "check, say how far the data go, and write nothing")
	return cmd
}
