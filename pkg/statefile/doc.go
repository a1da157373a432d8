// Package statefile keeps small files of state below one directory. A process
// that is killed at any instant leaves either the old file or the new one.
//
// Every access goes through an [os.Root]: a name or a planted symbolic link
// that leads out of the directory is refused; reading and locking refuse any
// symbolic link. Only [Dir.ReadEach] uses no [os.Root], and opens only entries
// that it found in the directory. Directories are 0700, files 0600, both owned
// by the user who runs the plugin (root).
//
// A write is a temporary file and a rename. On tmpfs that is enough, because
// the file lives no longer than the kernel state that it describes; on any
// other file system the file and its directory are synced as well.
//
// To write a file:
//
//	dir, err := statefile.Open("/run/rail-cni")
//	if err != nil {
//		return err
//	}
//	defer dir.Close()
//	err = dir.Write("note.json", data)
package statefile
