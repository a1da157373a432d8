package agent

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// watcher tells when something changes in directories (inotify(7)).
type watcher struct {
	file *os.File
	fd   int
}

func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &watcher{file: os.NewFile(uintptr(fd), "inotify"), fd: fd}, nil
}

// watch adds a directory, unless it is watched already. What cannot be watched
// is looked at now and then all the same.
func (w *watcher) watch(dir string) {
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_ONLYDIR
	_, _ = unix.InotifyAddWatch(w.fd, dir, changes)
}

// run calls changed until ctx ends, and closes the watcher.
func (w *watcher) run(ctx context.Context, changed func()) {
	defer w.file.Close()
	defer context.AfterFunc(ctx, func() { _ = w.file.Close() })()
	for events := make([]byte, 16<<10); ; {
		if _, err := w.file.Read(events); err != nil {
			return
		}
		changed()
	}
}
