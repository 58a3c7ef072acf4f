package quorum

import (
	"cmp"
	"time"
)

// RemovalRank decides which voter leaves etcd first, or which Machine its set deletes first.
type RemovalRank struct {
	Lost  bool      // a voter that does not answer, or counts as lost
	Tier  int       // the lower leaves first
	Crowd int       // how many are in its failure domain
	Since time.Time // since when it is to leave, or is there
}

// Compare orders Machines by which leaves first: the lost, then the lower tier, then the most crowded failure domain, then the longest.
func (l RemovalRank) Compare(o RemovalRank) int {
	return cmp.Or(
		cmp.Compare(count(o.Lost), count(l.Lost)),
		cmp.Compare(l.Tier, o.Tier),
		cmp.Compare(o.Crowd, l.Crowd),
		l.Since.Compare(o.Since),
	)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
