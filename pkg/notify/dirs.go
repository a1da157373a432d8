package notify

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Dirs reports changes in directories to its subscribers. All subscribers share one inotify
// instance (inotify(7)), because a user may have only a few. The methods of Dirs may be called
// concurrently. A nil Dirs reports nothing.
type Dirs struct {
	file    *os.File // nil if Dirs reports nothing
	reading sync.WaitGroup

	mu            sync.Mutex
	fd            int // -1 when closed
	subscriptions map[*Subscription]bool
}

// Subscription is the set of directories that one receiver watches.
type Subscription struct {
	dirs    *Dirs
	changed func()
	watched map[string]int // watch descriptors by path; the mu of dirs guards it
}

// NewDirs returns a Dirs. The caller must close it. If no inotify instance can be opened, the Dirs
// reports nothing.
func NewDirs(log *slog.Logger) *Dirs {
	d := &Dirs{fd: -1, subscriptions: map[*Subscription]bool{}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("cannot open an inotify instance, so changes in directories are noticed late", "err", os.NewSyscallError("inotify_init1", err),
			"cure", "raise the sysctls fs.inotify.max_user_instances and user.max_inotify_instances, and restart the agent")
		return d
	}
	d.file, d.fd = os.NewFile(uintptr(fd), "inotify"), fd
	d.reading.Go(d.read)
	return d
}

// Close ends all reports. When Close returns, no changed function is running.
func (d *Dirs) Close() {
	if d == nil || d.file == nil {
		return
	}
	d.mu.Lock()
	d.fd = -1
	d.mu.Unlock()
	_ = d.file.Close()
	d.reading.Wait()
}

// Subscribe returns a subscription, at first without directories. After a change in one of its
// directories the subscription calls changed. changed must neither block nor panic, because it runs
// on the goroutine that serves all subscriptions. It may be called once more after
// [Subscription.Close].
func (d *Dirs) Subscribe(changed func()) *Subscription {
	s := &Subscription{dirs: d, changed: changed, watched: map[string]int{}}
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.subscriptions[s] = true
	}
	return s
}

// Watch adds a directory. A directory that is watched already is not an error. If a directory was
// removed and made again, Watch must be called again. Watch ignores a failure, because the receiver
// polls as well.
func (s *Subscription) Watch(dir string) {
	d := s.dirs
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 || !d.subscriptions[s] {
		return
	}
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB |
		unix.IN_ONLYDIR
	before, had := s.watched[dir]
	delete(s.watched, dir)
	if watch, err := unix.InotifyAddWatch(d.fd, dir, changes); err == nil {
		s.watched[dir] = watch
	}
	if had {
		d.unwatch(before)
	}
}

// Close ends the subscription.
func (s *Subscription) Close() {
	d := s.dirs
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.subscriptions, s)
	for _, watch := range s.watched {
		d.unwatch(watch)
	}
}

// unwatch ends a watch if no subscription has it. mu is held.
func (d *Dirs) unwatch(watch int) {
	for s := range d.subscriptions {
		if s.has(func(wd int) bool { return wd == watch }) {
			return
		}
	}
	if d.fd >= 0 {
		_, _ = unix.InotifyRmWatch(d.fd, uint32(watch)) // fails if the directory is gone, because the watch is gone as well
	}
}

// has reports whether the function is returns true for one of the subscription's watches. The mu of
// dirs is held.
func (s *Subscription) has(is func(watch int) bool) bool {
	for _, watch := range s.watched {
		if is(watch) {
			return true
		}
	}
	return false
}

// read reports changes until the file is closed.
func (d *Dirs) read() {
	for events := make([]byte, 16<<10); ; {
		n, err := d.file.Read(events)
		if err != nil {
			return
		}
		for _, s := range d.concerned(events[:n]) {
			s.changed()
		}
	}
}

// concerned returns the subscriptions that watch a directory in which one of these events happened.
func (d *Dirs) concerned(events []byte) []*Subscription {
	changed, ended := watchesOf(events)
	d.mu.Lock()
	defer d.mu.Unlock()
	var concerned []*Subscription
	for s := range d.subscriptions {
		if changed[overflow] || s.has(func(watch int) bool { return changed[watch] }) {
			concerned = append(concerned, s)
		}
		maps.DeleteFunc(s.watched, func(_ string, watch int) bool { return slices.Contains(ended, watch) })
	}
	return concerned
}

// overflow is the watch descriptor of the event that the kernel sends after it has dropped other
// events (IN_Q_OVERFLOW).
const overflow = -1

// watchesOf returns the watch descriptors of events. ended are the watches that have ended because
// their directory is gone.
func watchesOf(events []byte) (changed map[int]bool, ended []int) {
	changed = map[int]bool{}
	for len(events) >= unix.SizeofInotifyEvent {
		watch := int(int32(binary.NativeEndian.Uint32(events)))
		mask, name := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		changed[watch] = true
		if mask&unix.IN_IGNORED != 0 {
			ended = append(ended, watch)
		}
		events = events[unix.SizeofInotifyEvent+int(name):]
	}
	return changed, ended
}
