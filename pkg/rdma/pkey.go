package rdma

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// PKey is an entry of an InfiniBand port's table of partition keys. The subnet manager fills the
// table. The same partition may have another index on another port, and after a change.
type PKey struct {
	Index int
	Key   uint16
}

// fullMember is the bit of a key that makes a port a full member of the partition (InfiniBand
// Architecture Specification, volume 1, 10.9.3).
const fullMember = 1 << 15

// IsFull reports whether the port is a full member of the partition. Limited members reach only
// full members.
func (k PKey) IsFull() bool { return k.Key&fullMember != 0 }

// Partition returns the number of the partition: the key without the bit of full membership.
func (k PKey) Partition() uint16 { return k.Key &^ fullMember }

func (k PKey) String() string { return fmt.Sprintf("%d=%#04x", k.Index, k.Key) }

// PKeys returns the entries of a port that are in use, by index. The error wraps [ErrNotFound]
// if the namespace has no such device or port.
func (c *Core) PKeys(d Device, port uint32) ([]PKey, error) {
	return c.pkeys(d, port, func(PKey) bool { return false })
}

// Member returns the port's entry for a partition, chosen as [FindPKey] does. If the port is not a member, keys
// has all entries of the port's table, by index. Member stops reading at an entry of full membership, because
// drivers ask the firmware for each entry (mlx5_query_hca_vport_pkey), and there are 128.
func (c *Core) Member(d Device, port uint32, key uint16) (found PKey, ok bool, keys []PKey, err error) {
	keys, err = c.pkeys(d, port, func(k PKey) bool { return k.IsFull() && k.Partition() == (PKey{Key: key}).Partition() })
	found, ok = FindPKey(keys, key)
	return found, ok, keys, err
}

// pkeys reads the table by index. It stops after an entry for which last returns true.
func (c *Core) pkeys(d Device, port uint32, last func(PKey) bool) (keys []PKey, err error) {
	at := filepath.Join("class/infiniband", d.Name, "ports", strconv.Itoa(int(port)), "pkeys")
	read := func() error {
		keys = nil
		names, err := c.list(at)
		if err == nil && len(names) == 0 {
			return fmt.Errorf("%w %s with port %d in netns %s", ErrNotFound, d.Name, port, c.ns.Path)
		}
		if err != nil {
			return err
		}
		for index := range names { // an entry for each index
			text, err := c.readSys(filepath.Join(at, strconv.Itoa(index)))
			if err != nil {
				return err
			}
			key, err := strconv.ParseUint(text, 0, 16)
			if err != nil {
				return err
			}
			if key == 0 {
				continue
			}
			keys = append(keys, PKey{index, uint16(key)})
			if last(keys[len(keys)-1]) {
				break
			}
		}
		return nil
	}
	err = c.inNetns(func() error { return c.steady(d, read) })
	return keys, failure.Wrap(err, failure.IO, "read the P_Keys of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
}

// FindPKey returns the entry of the partition, if there is one. A port may be both a full and a
// limited member (allow_both_pkeys of OpenSM). In that case FindPKey returns the entry of full
// membership, wherever it is.
func FindPKey(keys []PKey, key uint16) (found PKey, ok bool) {
	for _, k := range keys {
		if k.Partition() == (PKey{Key: key}).Partition() && (!ok || k.IsFull() && !found.IsFull()) {
			found, ok = k, true
		}
	}
	return found, ok
}
