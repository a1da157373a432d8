package nic

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sockdiag"
)

// use returns a description of how the host uses the link of v, or "" if no use is known. The host
// uses the link in three cases: the link has the address by which the cluster reaches the node, an
// established TCP connection has one of the link's addresses, or the route to the server of mounted
// storage leaves by the link. A listening socket does not count.
func (h *Host) use(v *link.View) (string, error) {
	if h.NodeIP != nil {
		node, err := h.NodeIP()
		if err != nil {
			return "", err
		}
		for _, a := range v.Addresses() {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && node.IsValid() && ip.Unmap() == node.Unmap() {
				return fmt.Sprintf("it has the node's address in the cluster, %s (InternalIP)", node), nil
			}
		}
	}
	c, err := sockdiag.ConnectionOf(h.Netns, v)
	if err != nil {
		return "", err
	}
	if c != nil {
		return fmt.Sprintf("the host has TCP connections by its address %s (one to %s)", c.Local.Addr(), c.Remote), nil
	}
	for _, s := range h.storage() {
		behind, err := h.reaches(v.Link, s.server)
		if err != nil {
			return "", err
		}
		if behind {
			return fmt.Sprintf("%s of the host has its server %s behind it", s.what, s.server), nil
		}
	}
	return "", nil
}

// reaches reports whether the host reaches server through l. Every NIC has a route to all IPv6
// link-local addresses. So for such an address only its zone, which is a name or an index,
// identifies the NIC. If the address has no zone, the NIC is unknown, and reaches returns false.
func (h *Host) reaches(l *link.Link, server netip.Addr) (bool, error) {
	if server.Is6() && server.IsLinkLocalUnicast() {
		zone := server.Zone()
		return slices.Contains(l.Names(), zone) || zone == strconv.Itoa(l.Index), nil
	}
	index, err := link.RouteTo(h.Netns, server.WithZone(""))
	return index == l.Index, err
}

// storage is a mount, session or controller whose server is on the network. The address of the
// server has a zone if the kernel shows a zone.
type storage struct {
	what   string
	server netip.Addr
}

// storage returns the servers of the host's NFS mounts, iSCSI sessions and NVMe over Fabrics
// controllers, as the kernel shows them. They are not found by their TCP connections, because over
// RDMA they have none.
func (h *Host) storage() []storage {
	found := h.nfs()
	for _, class := range []struct{ what, pattern string }{
		{"an iSCSI session", "class/iscsi_connection/*/address"},
		{"an iSCSI session", "class/iscsi_connection/*/persistent_address"},
		{"an NVMe controller", "class/nvme/*/address"},
	} {
		// Glob fails only for a malformed pattern, and these patterns are constants.
		files, _ := filepath.Glob(filepath.Join(h.Sys, class.pattern))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // the session or controller has just been removed
			}
			if ip, ok := serverOf(string(text)); ok {
				found = append(found, storage{class.what, ip})
			}
		}
	}
	return found
}

// serverOf returns the server's address from the sysfs text of an iSCSI connection ("10.1.0.1") or
// of an NVMe controller ("traddr=10.1.0.1,trsvcid=4420"). It also reports whether the text has an
// address. For a local disk the text has a PCI address instead.
func serverOf(text string) (netip.Addr, bool) {
	var server netip.Addr
	var iface string
	for _, field := range strings.Split(strings.TrimSpace(text), ",") {
		if name, ok := strings.CutPrefix(field, "host_iface="); ok {
			iface = name
		} else if ip, err := netip.ParseAddr(strings.TrimPrefix(field, "traddr=")); err == nil {
			server = ip.Unmap()
		}
	}
	if server.Is6() && server.Zone() == "" {
		server = server.WithZone(iface)
	}
	return server, server.IsValid()
}

// nfs returns the NFS servers that are used in the host netns. The kernel lists them
// (nfs_server_list_show) as
//
//	NV SERVER   PORT USE HOSTNAME
//	v4 0a010001  801   2 10.1.0.1
func (h *Host) nfs() []storage {
	var text []byte
	_ = h.Netns.Do(func() (err error) { // the file is missing if NFS is not used
		text, err = os.ReadFile(filepath.Join(h.Proc, "thread-self/net/nfsfs/servers"))
		return err
	})
	var found []storage
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		raw, err := hex.DecodeString(string(fields[1]))
		if ip, ok := netip.AddrFromSlice(raw); err == nil && ok {
			found = append(found, storage{"an NFS mount", ip.Unmap()})
		}
	}
	return found
}
