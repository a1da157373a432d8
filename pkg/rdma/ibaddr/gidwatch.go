package ibaddr

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// GIDWatch notices changes of a port's GID table by reading sysfs, because the kernel reports
// changes only to programs that have the device open. It holds a directory of sysfs open, which
// does not keep the network namespace alive. It is not safe for concurrent use.
type GIDWatch struct {
	dir  *os.File
	seen []GID // by index, up to the last one in use
}

// WatchGIDs returns a GIDWatch that has seen table, the GID table of the port whose directory in
// sysfs is port. The caller must close the GIDWatch.
func WatchGIDs(port string, table GIDTable) (*GIDWatch, error) {
	dir, err := os.Open(filepath.Join(port, "gids"))
	if err != nil {
		return nil, err
	}
	w := &GIDWatch{dir: dir}
	for _, e := range table.Entries {
		w.seen = append(w.seen, make([]GID, e.Index-len(w.seen)+1)...)
		w.seen[e.Index] = e.GID
	}
	return w, nil
}

// Changed returns the GIDs that were added to the table or removed from it since the last call that
// returned some. A GID that has moved to another index is among them. An error means that the table
// no longer exists.
//
// A table may have hundreds of files, but Changed reads only a few: the kernel puts a new GID at
// the lowest free index (find_gid in the kernel's ib_core). So once Changed finds a free index
// above all indexes that were in use, the remaining indexes are free as well.
func (w *GIDWatch) Changed() ([]GID, error) {
	if err := w.stat(); err != nil {
		return nil, err
	}
	var now []GID
	for i := 0; ; i++ {
		gid, err := readGID(int(w.dir.Fd()), strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		if gid.IsZero() && i >= len(w.seen) {
			break
		}
		now = append(now, gid)
	}
	for len(now) > 0 && now[len(now)-1].IsZero() {
		now = now[:len(now)-1]
	}
	if slices.Equal(now, w.seen) {
		return nil, nil
	}
	var changed []GID
	for i := range max(len(now), len(w.seen)) {
		before, after := gidAt(w.seen, i), gidAt(now, i)
		if before == after {
			continue
		}
		for _, gid := range []GID{before, after} {
			if !gid.IsZero() && !slices.Contains(changed, gid) {
				changed = append(changed, gid)
			}
		}
	}
	w.seen = now
	return changed, nil
}

// stat returns an error if the directory was removed. Otherwise a missing file would look like a
// free entry.
func (w *GIDWatch) stat() error {
	var st unix.Stat_t
	return unix.Fstatat(int(w.dir.Fd()), "0", &st, 0)
}

func gidAt(list []GID, i int) GID {
	if i < len(list) {
		return list[i]
	}
	return GID{}
}

// Close ends the watch.
func (w *GIDWatch) Close() { _ = w.dir.Close() }
