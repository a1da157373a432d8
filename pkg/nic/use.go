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

// use describes the host's own use of the link of v, "" if none is known. The host
// uses it if it has the address by which the cluster reaches the node, if an established
// TCP connection has one of its addresses, or if the route to the server of mounted
// storage leaves by it. A listening socket does not count.
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

// reaches reports whether the host reaches server through l. Every NIC has a route to
// all IPv6 link-local addresses, so only the zone of such an address, a name or an
// index, identifies the NIC. Without a zone the NIC is unknown, and reaches reports
// false.
func (h *Host) reaches(l *link.Link, server netip.Addr) (bool, error) {
	if server.Is6() && server.IsLinkLocalUnicast() {
		zone := server.Zone()
		return slices.Contains(l.Names(), zone) || zone == strconv.Itoa(l.Index), nil
	}
	by, err := link.RouteTo(h.Netns, server.WithZone(""))
	return by == l.Index, err
}

// storage is a mount, session or controller whose server is on the network. The
// server has a zone if the kernel shows one.
type storage struct {
	what   string
	server netip.Addr
}

// storage lists the servers of the host's NFS mounts, iSCSI sessions and NVMe over
// Fabrics controllers, as the kernel shows them. Over RDMA these have no TCP
// connections.
func (h *Host) storage() []storage {
	found := h.nfs()
	for _, class := range []struct{ what, pattern string }{
		{"an iSCSI session", "class/iscsi_connection/*/address"},
		{"an iSCSI session", "class/iscsi_connection/*/persistent_address"},
		{"an NVMe controller", "class/nvme/*/address"},
	} {
		// The only error is a malformed pattern, and these are constants.
		files, _ := filepath.Glob(filepath.Join(h.Sys, class.pattern))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // it has just been removed
			}
			if ip, ok := serverOf(string(text)); ok {
				found = append(found, storage{class.what, ip})
			}
		}
	}
	return found
}

// serverOf returns the server's address from the sysfs text of an iSCSI connection
// ("10.1.0.1") or an NVMe controller ("traddr=10.1.0.1,trsvcid=4420"), and reports
// whether there is one. A local disk has a PCI address instead.
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

// nfs lists the servers of NFS in the host netns (nfs_server_list_show):
//
//	NV SERVER   PORT USE HOSTNAME
//	v4 0a010001  801   2 10.1.0.1
func (h *Host) nfs() []storage {
	var text []byte
	_ = h.Netns.Do(func() (err error) { // without NFS the file is missing
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
