package verify

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestWALDir: the log may be elsewhere, by etcd's --wal-dir.
func TestWALDir(t *testing.T) {
	logs, bare, empty := t.TempDir(), t.TempDir(), t.TempDir()
	writeLog(t, logs, 9)
	wal := filepath.Dir(logFile(logs, 0))
	put(t, filepath.Join(bare, "member", "snap", "db"), "x")
	for name, c := range map[string]struct {
		at   data
		want Holding
	}{
		"a database here, the log there":  {dataIn(bare, wal), HoldingData},
		"the log there alone":             {dataIn(empty, wal), HoldingData},
		"a database here, and no log":     {dataIn(bare, ""), HoldingNoLog},
		"a database here, and none there": {dataIn(bare, filepath.Join(empty, "none")), HoldingNoLog},
		"nothing at either":               {dataIn(empty, filepath.Join(empty, "none")), HoldingNothing},
	} {
		if got, err := readDisk(c.at); err != nil || got.Holding != c.want || c.want == HoldingData && got.Member != 9 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestWALDirStays: older data are not put aside without their log, with which the new member would start as the old one.
func TestWALDirStays(t *testing.T) {
	dir := olderData(t)
	check := newcomer(dir)
	check.WALDir = t.TempDir()
	var refused *Refusal
	if err := check.Run(t.Context()); !errors.As(err, &refused) || !strings.Contains(refused.Advice, "Move "+dir) {
		t.Errorf("got %v, want a refusal that says what to move", err)
	}
	if aside, err := filepath.Glob(dir + "-removed-*"); err != nil || len(aside) > 0 {
		t.Errorf("put aside: %q, %v", aside, err)
	}
	check.WALDir = filepath.Join(dir, "member", "wal") // goes with the rest
	if err := check.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
