package sandbox

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPut: what a pod mounts changes all at once, and only if it is other than before.
func TestPut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	link := func() string {
		t.Helper()
		to, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	was := ""
	for _, files := range []map[string][]byte{
		{"tls.crt": []byte("1"), "tls.key": []byte("1"), "ca.crt": []byte("1")},
		{"tls.crt": []byte("2"), "tls.key": []byte("2")},
		{"tls.crt": []byte("2"), "tls.key": []byte("2"), "more": nil},
		{},
	} {
		for range 2 {
			before := was
			if err := put(dir, maps.Clone(files)); err != nil {
				t.Fatal(err)
			}
			got := map[string][]byte{}
			names, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				content, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				got[filepath.Base(name)] = content
			}
			want := map[string][]byte{}
			for name, content := range files {
				want[name] = append([]byte{}, content...)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			was = link()
			if _, err := os.Stat(filepath.Join(dir, before)); before != "" && before != was && err == nil {
				t.Errorf("%s is still there", before)
			}
		}
		again := was
		if err := put(dir, files); err != nil {
			t.Fatal(err)
		}
		if link() != again {
			t.Error("what had not changed was written again")
		}
	}
}
