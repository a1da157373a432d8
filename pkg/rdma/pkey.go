package rdma

import (
	"fmt"
	"path/filepath"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// PKeys returns the entries of a port that are in use, by index. The error wraps [ErrNotFound]
// if the namespace has no such device or port.
func (c *Core) PKeys(d Device, port uint32) ([]ibaddr.PKey, error) {
	return c.pkeys(d, port, func(ibaddr.PKey) bool { return false })
}

// Member returns the port's entry for a partition, chosen as [ibaddr.FindPKey] does. If the port is not a member, keys
// has all entries of the port's table, by index. Member stops reading at an entry of full membership, because
// drivers ask the firmware for each entry (mlx5_query_hca_vport_pkey), and there are 128.
func (c *Core) Member(d Device, port uint32, key uint16) (found ibaddr.PKey, ok bool, keys []ibaddr.PKey, err error) {
	keys, err = c.pkeys(d, port, func(k ibaddr.PKey) bool { return k.IsFull() && k.Partition() == (ibaddr.PKey{Key: key}).Partition() })
	found, ok = ibaddr.FindPKey(keys, key)
	return found, ok, keys, err
}

// pkeys reads the table by index. It stops after an entry for which last returns true.
func (c *Core) pkeys(d Device, port uint32, last func(ibaddr.PKey) bool) (keys []ibaddr.PKey, err error) {
	read := func() (err error) {
		size := 0
		keys = nil
		if dir := portDir(d, port); filepath.IsLocal(dir) {
			var root string
			if root, err = c.sys(); err == nil {
				keys, size, err = ibaddr.ReadPKeys(filepath.Join(root, dir), last)
			}
		}
		if err == nil && size == 0 {
			return fmt.Errorf("%w %s with port %d in netns %s", ErrNotFound, d.Name, port, c.ns.Path)
		}
		return err
	}
	err = c.inNetns(func() error { return c.steady(d, read) })
	return keys, failure.Wrap(err, failure.IO, "read the P_Keys of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
}
