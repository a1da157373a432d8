package sysctl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Root is the directory of the network sysctls (net.*) of the calling thread's namespace.
const Root = "/proc/sys/net"

// groups are the directories that have one subdirectory per interface.
var groups = []string{"ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"}

// Read reads every setting of the interface, for example "ipv4/conf/arp_ignore" → "1". It leaves
// out settings that the kernel does not show (an ipv6 stable_secret that is not set).
func Read(n *netns.Netns, name string) (map[string]string, error) { return ReadKnowing(n, name, nil) }

// ReadKnowing is like [Read], but does not read the files of the settings in known, which is a
// result of [OfAttrs].
func ReadKnowing(n *netns.Netns, name string, known map[string]string) (map[string]string, error) {
	found := map[string]string{}
	err := n.Do(func() error {
		for _, group := range groups {
			err := readAll(filepath.Join(Root, group, name), func(dir int, setting string) {
				key := group + "/" + setting
				value, ok := known[key]
				if !ok {
					var err error
					if value, err = netns.ReadSetting(dir, setting); err != nil {
						return
					}
				}
				found[key] = value
			})
			// IPv6 is off, or the link has no such settings.
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	if len(found) == 0 && err == nil {
		err = link.NameStillThere(n, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read sysctls of %s in netns %s: %w", name, n.Path, err)
	}
	return found, nil
}

// Set sets the interface's settings, and writes only values that differ. If it fails for a setting,
// it continues with the next one. It returns all errors, joined. A setting that this kernel lacks
// is not an error. The error wraps [link.ErrNotFound] if the link has left.
func Set(n *netns.Netns, name string, settings map[string]string) error {
	return SetKnowing(n, name, settings, nil)
}

// SetKnowing is like [Set], but does not read the files of the settings in known, which is a result
// of [OfAttrs]. After the first change it reads all files, because the change may have changed
// other settings.
func SetKnowing(n *netns.Netns, name string, settings, known map[string]string) error {
	if !netns.IsElement(name) || name == "all" || name == "default" {
		return fmt.Errorf("%q is not the name of one interface", name)
	}
	missing := false
	err := n.Do(func() error {
		var errs []error
		for _, key := range writeOrder(settings) {
			want := settings[key]
			group, setting := path.Split(key)
			if !slices.Contains(groups, path.Clean(group)) || !netns.IsElement(setting) {
				errs = append(errs, fmt.Errorf("%q is not a sysctl of an interface", key))
				continue
			}
			if have, ok := known[key]; ok && have == want {
				continue
			}
			file := filepath.Join(Root, group, name, setting)
			have, err := netns.ReadSetting(unix.AT_FDCWD, file)
			if missing = missing || errors.Is(err, fs.ErrNotExist); errors.Is(err, fs.ErrNotExist) || (err == nil && have == want) {
				continue
			}
			known = nil
			if err := write(file, want); err != nil {
				errs = append(errs, fmt.Errorf("sysctl %s of %s: %w", key, name, err))
			}
		}
		return errors.Join(errs...)
	})
	if missing || err != nil {
		return cmp.Or(link.NameStillThere(n, name), err)
	}
	return nil
}

// stableSecret has a side effect: writing it sets addr_gen_mode.
const stableSecret = "ipv6/conf/stable_secret"

// writeOrder sorts the keys so that no write undoes an earlier one.
func writeOrder(settings map[string]string) []string {
	return slices.SortedFunc(maps.Keys(settings), func(a, b string) int {
		if (a == stableSecret) != (b == stableSecret) {
			if a == stableSecret {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
}

// readAll calls found for each setting in a directory.
func readAll(path string, found func(dir int, setting string)) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	settings, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, setting := range settings {
		found(int(dir.Fd()), setting)
	}
	return nil
}

// write writes the value in one write(2), as the kernel requires. It never creates the file.
func write(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(value))
	return errors.Join(err, unix.Close(fd))
}
