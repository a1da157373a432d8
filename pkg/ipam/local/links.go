package local

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// index is a directory of links to the records of the pool above it.
type index struct{ dir *statefile.Dir }

// get returns the address to which key links. Any other file counts as absent.
func (x index) get(key string) (netip.Addr, bool) {
	target, err := x.dir.Readlink(key)
	if err != nil {
		return netip.Addr{}, false
	}
	name, ok := strings.CutPrefix(target, "../")
	if !ok {
		return netip.Addr{}, false
	}
	return recordAddr(name)
}

// set makes key a link to addr's record. It replaces an earlier link.
func (x index) set(key string, addr netip.Addr) error {
	target := "../" + recordName(addr)
	if now, err := x.dir.Readlink(key); err == nil && now == target {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		if err := x.dir.Remove(key); err != nil {
			return err
		}
	}
	err := x.dir.Symlink(target, key)
	return failure.From(err, failure.IO, "cannot link %s in %s", key, x.dir.Path()).
		Cure("make the directory writable for root and free space on its file system")
}

// drop removes key if it links to addr's record.
func (x index) drop(key string, addr netip.Addr) error {
	if now, ok := x.get(key); !ok || now != addr {
		return nil
	}
	return x.dir.Remove(key)
}

func podKey(o ipam.Owner) string { return statefile.Name(o.PodRef, o.IfName) }

func attachmentKey(o ipam.Owner) string { return statefile.Name(o.ContainerID, o.IfName) }
