package notify

import (
	"context"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// Dirs reports changes in directories (inotify(7)).
type Dirs struct {
	file *os.File // nil reports nothing
	fd   int
}

// NewDirs returns a Dirs without directories. If the kernel has no inotify instance left,
// it reports nothing. Run must be called once, and closes it.
func NewDirs(log *slog.Logger) *Dirs {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("no inotify instance, changes of directories are seen late", "err", os.NewSyscallError("inotify_init1", err),
			"cure", "raise the sysctls fs.inotify.max_user_instances and user.max_inotify_instances, and start the agent again")
		return &Dirs{}
	}
	return &Dirs{file: os.NewFile(uintptr(fd), "inotify"), fd: fd}
}

// Watch adds a directory, unless it is watched already. A failure is ignored: the
// receiver polls as well. Watch must not be called after the end of Run.
func (d *Dirs) Watch(dir string) {
	if d.file == nil {
		return
	}
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_ONLYDIR
	_, _ = unix.InotifyAddWatch(d.fd, dir, changes)
}

// Run calls changed after changes until ctx ends, and closes d.
func (d *Dirs) Run(ctx context.Context, changed func()) {
	if d.file == nil {
		<-ctx.Done()
		return
	}
	defer d.file.Close()
	defer context.AfterFunc(ctx, func() { _ = d.file.Close() })()
	for events := make([]byte, 16<<10); ; {
		if _, err := d.file.Read(events); err != nil {
			return
		}
		changed()
	}
}
