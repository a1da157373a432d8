package testnet

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Tree describes everything below a directory, one line for each file: name,
// mode, owner, of a file its time and the checksum of its content, of a
// symbolic link its target.
func Tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", strings.TrimPrefix(path, dir), info.Mode())
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			fmt.Fprintf(&b, " %d:%d", st.Uid, st.Gid)
		}
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %v %d %x", info.ModTime().UnixNano(), len(text), sha256.Sum256(text))
		case info.Mode().Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprint(&b, " -> ", to)
		}
		b.WriteByte('\n')
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
