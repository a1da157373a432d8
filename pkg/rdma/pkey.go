package rdma

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// PKey is an entry of an InfiniBand port's table of partition keys. The subnet manager fills
// the table: equal partitions may have other indexes on another port, and after a change.
type PKey struct {
	Index int
	Key   uint16
}

// fullMember is the bit of a key by which a port is a full member of the partition (InfiniBand
// Architecture Specification, volume 1, 10.9.3).
const fullMember = 1 << 15

// IsFull reports whether the port is a full member of the partition. Limited members reach full
// ones only.
func (k PKey) IsFull() bool { return k.Key&fullMember != 0 }

// Partition returns the number of the partition: the key without the bit of full membership.
func (k PKey) Partition() uint16 { return k.Key &^ fullMember }

func (k PKey) String() string { return fmt.Sprintf("%d=%#04x", k.Index, k.Key) }

// PKeys returns the entries of a port that are in use, by index. The error wraps [ErrNotFound]
// if the namespace has no such device or port.
func (c *Core) PKeys(d Device, port uint32) (keys []PKey, err error) {
	at := filepath.Join("class/infiniband", d.Name, "ports", strconv.Itoa(int(port)), "pkeys")
	read := func() error {
		keys = nil
		names, err := c.list(at)
		if err == nil && len(names) == 0 {
			return fmt.Errorf("%w %s with port %d in netns %s", ErrNotFound, d.Name, port, c.ns.Path)
		}
		for _, name := range names {
			index, indexErr := strconv.Atoi(name)
			text, readErr := c.readSys(filepath.Join(at, name))
			key, keyErr := strconv.ParseUint(text, 0, 16)
			for _, e := range []error{indexErr, readErr, keyErr} {
				if e != nil {
					return e
				}
			}
			if key != 0 {
				keys = append(keys, PKey{index, uint16(key)})
			}
		}
		return err
	}
	err = c.inNetns(func() error { return c.steady(d, read) })
	slices.SortFunc(keys, func(a, b PKey) int { return a.Index - b.Index })
	return keys, failure.Wrap(err, failure.IO, "read the P_Keys of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
}

// FindPKey returns the entry of the partition, if there is one. A port may be a full and a
// limited member of it (allow_both_pkeys of OpenSM): then the full one counts, wherever it is.
func FindPKey(keys []PKey, key uint16) (found PKey, ok bool) {
	for _, k := range keys {
		if k.Partition() == (PKey{Key: key}).Partition() && (!ok || k.IsFull() && !found.IsFull()) {
			found, ok = k, true
		}
	}
	return found, ok
}
