package agent

import (
	"context"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// watcher reports changes in directories (inotify(7)).
type watcher struct {
	file *os.File // nil reports nothing
	fd   int
}

// newWatcher returns a watcher. If the kernel has no inotify instance left, the
// watcher reports nothing: the agent polls as well.
func newWatcher(log *slog.Logger) *watcher {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("no inotify instance, changes of directories are seen late", "err", os.NewSyscallError("inotify_init1", err),
			"cure", "raise the sysctls fs.inotify.max_user_instances and user.max_inotify_instances, and start the agent again")
		return &watcher{}
	}
	return &watcher{file: os.NewFile(uintptr(fd), "inotify"), fd: fd}
}

// watch adds a directory, unless it is watched already. A failure is ignored:
// the agent polls as well.
func (w *watcher) watch(dir string) {
	if w.file == nil {
		return
	}
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_ONLYDIR
	_, _ = unix.InotifyAddWatch(w.fd, dir, changes)
}

// run calls changed until ctx ends, and closes the watcher.
func (w *watcher) run(ctx context.Context, changed func()) {
	if w.file == nil {
		<-ctx.Done()
		return
	}
	defer w.file.Close()
	defer context.AfterFunc(ctx, func() { _ = w.file.Close() })()
	for events := make([]byte, 16<<10); ; {
		if _, err := w.file.Read(events); err != nil {
			return
		}
		changed()
	}
}
