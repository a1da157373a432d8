// Package statefile keeps small files of state below one directory. If a process
// is killed while it writes, either the old file or the new file is there.
//
// Every access goes through an [os.Root], which refuses a name or a planted
// symbolic link that leads out of the directory. Reading and locking refuse any
// symbolic link. Only [Dir.ReadEach] does not use an [os.Root], but it opens only
// entries that it found in the directory. Directories have mode 0700 and files
// mode 0600. Both are owned by the user who runs the plugin (root).
//
// A write makes a temporary file and renames it. On tmpfs that is enough, because
// the file does not outlive the kernel state that it describes. On any other file
// system the file and its directory are synced as well.
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
