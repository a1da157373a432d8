//go:build rig

package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// defect is a thing that is wrong.
type defect struct {
	name    string
	plant   func(s *railNode) (undo func())
	want    map[string]string // a part of the finding, by rule
	unknown []string          // rules that miss a fact for this reason
}

// defects are those of a node in shared mode.
var defects = []defect{
	{
		name: "carrier of a free rail is lost",
		plant: func(s *railNode) func() {
			s.set(freeRail, "carrier", "0")
			return func() { s.set(freeRail, "carrier", "1"); s.carrier(nicName(freeRail)) }
		},
		want: map[string]string{"NIC-CARRIER": "NIC ens16np0: it is up and has no carrier"},
	},
	{
		name: "carrier of a pod's rail is lost",
		plant: func(s *railNode) func() {
			s.set(0, "carrier", "0")
			return func() { s.set(0, "carrier", "1"); s.carrierIn(s.trainer, "net1") }
		},
		want: map[string]string{"POD-DOWN": "pod default/trainer: net1 has no carrier"},
	},
	{
		name: "pod has set its rail down",
		plant: func(s *railNode) func() {
			s.trainer.IP("link", "set", "net2", "down")
			return func() { s.trainer.IP("link", "set", "net2", "up"); s.carrierIn(s.trainer, "net2") }
		},
		want: map[string]string{"POD-DOWN": "pod default/trainer: net2 is set down"},
	},
	{
		name: "NIC below a macvlan is down",
		plant: func(s *railNode) func() {
			s.IP("link", "set", nicName(macvlanRail), "down")
			return func() { s.IP("link", "set", nicName(macvlanRail), "up"); s.carrierIn(s.guest, "net1") }
		},
		want: map[string]string{
			"NIC-DOWN": "NIC ens14np0: it is set down, and child interfaces of pods lie on it: 1",
			"POD-DOWN": "pod default/guest: net1 has no carrier", // what the pod has of it
		},
	},
	{
		name: "MTU of a free rail",
		plant: func(s *railNode) func() {
			s.IP("link", "set", nicName(otherRail), "mtu", "1500")
			return func() { s.IP("link", "set", nicName(otherRail), "mtu", "9000") }
		},
		want: map[string]string{
			"NIC-MTU":       "NIC ens17np0: it has MTU 1500, and 7 of 8 have MTU 9000",
			"NIC-ACTIVEMTU": "NIC ens17np0: its MTU is 1500 at 200 Gb/s", // which is slow as well as different
		},
	},
	{
		name: "MTU of a pod's rail",
		plant: func(s *railNode) func() {
			s.trainer.IP("link", "set", "net3", "mtu", "4200")
			return func() { s.trainer.IP("link", "set", "net3", "mtu", "9000") }
		},
		want: map[string]string{
			"POD-MTU": "pod default/trainer: the MTU of net3 is 4200",
			"NIC-MTU": "NIC ens13np0: it has MTU 4200", // the pod has the NIC itself
		},
	},
	{
		name: "PFC of a free rail",
		plant: func(s *railNode) func() {
			s.Exec("dcb", "pfc", "set", "dev", nicName(otherRail), "prio-pfc", "3:on")
			return func() { s.Exec("dcb", "pfc", "set", "dev", nicName(otherRail), "prio-pfc", "3:off") }
		},
		want: map[string]string{"NIC-PFC": "NIC ens17np0: it has PFC on priority 3, and 7 of 8 have no PFC"},
	},
	{
		name: "PFC of a pod's rail",
		plant: func(s *railNode) func() {
			s.trainer.Exec("dcb", "pfc", "set", "dev", "net3", "prio-pfc", "3:on", "5:on")
			return func() { s.trainer.Exec("dcb", "pfc", "set", "dev", "net3", "prio-pfc", "all:off") }
		},
		want: map[string]string{"NIC-PFC": "NIC ens13np0: it has PFC on priority 3,5, and 7 of 8 have no PFC"},
	},
	{
		name: "RDMA port of a free rail is down",
		plant: func(s *railNode) func() {
			s.set(freeRail, "port_state", "DOWN")
			return func() { s.set(freeRail, "port_state", "auto") }
		},
		want: map[string]string{
			"NIC-PORT": "NIC ens16np0: port 1 of mlx5_5 is DOWN, although the NIC has a carrier",
			"NIC-PHYS": "mlx5_5", // the driver reports both
		},
	},
	{
		name: "RDMA port of a pod's rail is not active",
		plant: func(s *railNode) func() {
			s.set(1, "port_state", "INIT")
			return func() { s.set(1, "port_state", "auto") }
		},
		want: map[string]string{"POD-PORT": "pod default/trainer: port 1 of mlx5_1 is INIT, although net2 has a carrier"},
	},
	{
		name: "GID table is full",
		plant: func(s *railNode) func() {
			var add []string
			for i := range 13 { // two GIDs for each
				add = append(add, fmt.Sprintf("addr add 10.77.0.%d/16 dev %s", i+1, nicName(otherRail)))
			}
			s.Batch(nil, add...)
			s.awaitGIDs(otherRail, func(n int) bool { return n >= 26 })
			return func() {
				s.IP("addr", "flush", "dev", nicName(otherRail), "to", "10.77.0.0/16")
				s.awaitGIDs(otherRail, func(n int) bool { return n < 10 })
			}
		},
		want: map[string]string{"NIC-GIDFULL": "NIC ens17np0: the GID table of port 1 of mlx5_6 has 32 entries, of which 4 are free"},
	},
	{
		name: "NIC takes no GID for an address",
		plant: func(s *railNode) func() {
			s.set(freeRail, "refuse_gids", "1")
			s.IP("addr", "add", "10.78.0.1/16", "dev", nicName(freeRail))
			return func() {
				s.IP("addr", "del", "10.78.0.1/16", "dev", nicName(freeRail))
				s.set(freeRail, "refuse_gids", "0")
			}
		},
		want: map[string]string{"NIC-GIDV2": "NIC ens16np0: no RoCE v2 GID for 10.78.0.1/16"},
	},
	{
		name: "pod's NIC takes no GID for an address",
		plant: func(s *railNode) func() {
			s.set(2, "refuse_gids", "1")
			s.trainer.IP("addr", "add", "10.79.0.1/16", "dev", "net3")
			return func() { s.trainer.IP("addr", "del", "10.79.0.1/16", "dev", "net3"); s.set(2, "refuse_gids", "0") }
		},
		want: map[string]string{"POD-GIDV2": "pod default/trainer: net3: no RoCE v2 GID for 10.79.0.1/16"},
	},
	{
		name: "NIC has the name of a pod's interface",
		plant: func(s *railNode) func() {
			s.IP("link", "set", nicName(freeRail), "name", "net7")
			return func() { s.IP("link", "set", "net7", "name", nicName(freeRail)) }
		},
		want: map[string]string{"NIC-NAME": "NIC net7: its name is net7, and its alternative names are " + altName(freeRail)},
	},
	{
		name: "char device is missing",
		plant: func(s *railNode) func() {
			move(s, "/dev/infiniband/uverbs5", "/dev/lost")
			return func() { move(s, "/dev/lost", "/dev/infiniband/uverbs5") }
		},
		want: map[string]string{"HOST-CHARDEV": "there is no /dev/infiniband/uverbs5"},
	},
	{
		// Without its driver the rig's NIC is a device of another kind again.
		name: "NIC is lost from the bus",
		plant: func(s *railNode) func() {
			driver := readLink(s.t, function(freeRail, "driver"))
			write(s.t, driver+"/unbind", nicPCI(freeRail))
			return func() {
				write(s.t, driver+"/bind", nicPCI(freeRail))
				s.Batch(nil, "link set "+nicName(freeRail)+" mtu 9000 up", "link property add dev "+nicName(freeRail)+" altname "+altName(freeRail))
				s.carrier(nicName(freeRail))
			}
		},
		want: map[string]string{
			"DP-SELECT": "rail 5 ({pci: \"0000:00:10.0\"}) is not a NIC of this node",
			"RAIL-GAP":  "rail 5: the node has rail 4 and rail 6", // that is the rail without a NIC
		},
	},
	{
		name: "network interface was moved by hand",
		plant: func(s *railNode) func() {
			other := s.pod("other")
			s.IP("link", "set", nicName(otherRail), "netns", other.Name)
			return func() {
				other.IP("link", "set", nicName(otherRail), "netns", s.Name)
				s.Batch(nil, "link set "+nicName(otherRail)+" mtu 9000 up")
				s.carrier(nicName(otherRail))
				other.Delete()
			}
		},
		want: map[string]string{"NIC-NETDEV": "NIC 0000:00:11.0: it has the driver mlx5_core and no network interface"},
	},
	{
		name: "record of a pod's NIC is deleted",
		plant: func(s *railNode) func() {
			record := filepath.Join(s.state, "attachments", "trainer@net3.json")
			move(s, record, s.state+"/../kept")
			return func() { move(s, s.state+"/../kept", record) }
		},
		want: map[string]string{"NIC-NETDEV": "NIC 0000:00:0d.0: it has the driver mlx5_core and no network interface"},
	},
	{
		name: "NIC was lentRails from its pod by hand",
		plant: func(s *railNode) func() {
			s.trainer.IP("link", "set", "net3", "netns", s.Name)
			return func() {
				s.IP("link", "set", "net3", "netns", s.trainer.Name)
				s.trainer.Batch(nil, "link set net3 up", "addr add 172.31.3.2/24 dev net3")
				s.carrierIn(s.trainer, "net3")
			}
		},
		want: map[string]string{"LEDGER-LOST": "pod default/trainer: net3 of ens13np0 is not in the pod"},
	},
	{
		name: "record of a dead pod",
		plant: func(s *railNode) func() {
			p := s.pod("dead")
			s.MustRun(s.macvlan("ADD", p, "dead"))
			p.Delete()
			return s.gc
		},
		want: map[string]string{"LEDGER-ORPHAN": "pod default/dead: the network namespace of container dead is gone"},
	},
	{
		name: "record cannot be read",
		plant: func(s *railNode) func() {
			record := filepath.Join(s.state, "attachments", "broken@net1.json")
			write(s.t, record, "")
			if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
				s.t.Fatal(err)
			}
			return func() { _ = os.Remove(record) }
		},
		want: map[string]string{"LEDGER-UNREADABLE": "broken@net1"},
	},
	{
		name: "plugin was replaced",
		plant: func(s *railNode) func() {
			plugin := filepath.Join(binDir, "rdma")
			move(s, plugin, "/opt/cni/kept")
			if err := os.WriteFile(plugin, []byte("#!/bin/sh\n"), 0o755); err != nil {
				s.t.Fatal(err)
			}
			return func() { move(s, "/opt/cni/kept", plugin) }
		},
		want: map[string]string{"CNI-BINARY": "/opt/cni/bin/rdma: it is another program"},
	},
	{
		name: "plugin is missing",
		plant: func(s *railNode) func() {
			plugin := filepath.Join(binDir, "rdma")
			move(s, plugin, "/opt/cni/kept")
			return func() { move(s, "/opt/cni/kept", plugin) }
		},
		want: map[string]string{"CNI-BINARY": "/opt/cni/bin/rdma: "},
	},
	{
		name: "pod holds a NIC with virtual functions",
		plant: func(s *railNode) func() {
			const physical, pf = "/sys/bus/pci/devices/0000:01:00.0/", "enp1s0np0"
			write(s.t, physical+"sriov_numvfs", "2")
			s.Batch(nil, "link set "+pf+" mtu 9000 up")
			s.carrier(pf)
			c := s.trainer.call("ADD", "net9", s.config(0, map[string]any{"device": pf, "allow": []string{"vfs"}}))
			c.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=trainer"
			s.MustRun(c)
			return func() { s.MustRun(c.With("DEL")); write(s.t, physical+"sriov_numvfs", "0") }
		},
		want: map[string]string{"NIC-VFS": "NIC enp1s0np0: default/trainer holds it, and it has 2 virtual functions"},
	},
	{
		// As sriov-cni leaves it when the pod is killed.
		name: "free virtual function has the settings of a former pod",
		plant: func(s *railNode) func() {
			write(s.t, functionDir+"sriov_numvfs", "4")
			s.Batch(nil, "link set "+functionsOf+" vf 2 vlan 100 qos 5 trust on")
			return func() { write(s.t, functionDir+"sriov_numvfs", "0") }
		},
		want: map[string]string{"VF-STALE": "NIC enp1s0np0: virtual function 2 (0000:01:00.3) has VLAN 100 qos 5 (3 of the 3 other free ones: no VLAN) and trust on"},
	},
	{
		name: "ARP flux",
		plant: func(s *railNode) func() {
			s.trainer.IP("addr", "add", "172.31.1.77/24", "dev", "net2")
			return func() { s.trainer.IP("addr", "del", "172.31.1.77/24", "dev", "net2") }
		},
		want: map[string]string{"RAIL-ARPFLUX": "pod default/trainer: 2 rails are in 172.31.1.0/24, and net1 has arp_ignore 0"},
	},
	{
		name: "filter of reverse paths is strict",
		plant: func(s *railNode) func() {
			s.Sysctl("ipv4/conf/all/rp_filter", "1")
			return func() { s.Sysctl("ipv4/conf/all/rp_filter", "0") }
		},
		want: map[string]string{"HOST-RPFILTER": "rp_filter is 1 in all"},
	},
	{
		name: "container may lock little memory",
		plant: func(s *railNode) func() {
			pid, end := s.containerBy(startWithoutIPCLock, s.trainer)
			s.limitMemlock(pid, 64<<10)
			return end
		},
		want: map[string]string{"POD-MEMLOCK": "may lock 64 KiB"},
	},
	{
		name:  "NCCL_IB_HCA names no device",
		plant: func(s *railNode) func() { _, end := s.container(s.trainer, "NCCL_IB_HCA=mlx5_77"); return end },
		want:  map[string]string{"POD-HCA": "has NCCL_IB_HCA=mlx5_77: the pod sees no device mlx5_77"},
	},
	{
		name:  "NCCL_IB_GID_INDEX is wrong",
		plant: func(s *railNode) func() { _, end := s.container(s.trainer, "NCCL_IB_GID_INDEX=200"); return end },
		want:  map[string]string{"POD-GIDIDX": "has NCCL_IB_GID_INDEX=200, and on net1 (mlx5_0) there is no GID with this index"},
	},
	{
		name:  "NCCL_SOCKET_IFNAME names a rail",
		plant: func(s *railNode) func() { _, end := s.container(s.trainer, "NCCL_SOCKET_IFNAME=net"); return end },
		want:  map[string]string{"POD-SOCKET": "has NCCL_SOCKET_IFNAME=net, and net1 is a rail (ens11np0)"},
	},
	{
		name: "container has the device of another pod's NIC",
		plant: func(s *railNode) func() {
			p := s.pod("other")
			c := p.call("ADD", "net1", s.ofAddress(freeRail))
			c.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=other"
			s.MustRun(c)
			return func() { s.MustRun(c.With("DEL")); p.Delete(); s.carrier(nicName(freeRail)) }
		},
		want: map[string]string{"POD-CHARDEV": "has /dev/infiniband/uverbs5, which belongs to ens16np0, and default/other holds that NIC"},
	},
	{
		name: "NetworkManager configures a rail",
		plant: func(s *railNode) func() {
			end := s.program("NetworkManager")
			index, err := s.Index(nicName(freeRail))
			if err != nil {
				s.t.Fatal(err)
			}
			const dir = "/run/NetworkManager"
			put(s, fmt.Sprintf("%s/devices/%d", dir, index), "[device]\nmanaged=true\n")
			return func() { end(); _ = os.RemoveAll(dir) }
		},
		want: map[string]string{"HOST-NM": "NIC ens16np0: NetworkManager manages it"},
	},
	{
		name:  "runtime may lock little memory",
		plant: func(s *railNode) func() { return s.program("containerd") },
		want:  map[string]string{"HOST-MEMLOCK": "process containerd: its limit of locked memory is"},
	},
	{
		name: "limits.conf limits locked memory",
		plant: func(s *railNode) func() {
			put(s, "/etc/security/limits.d/90-memlock.conf", "* hard memlock 65536\n")
			return func() { _ = os.RemoveAll("/etc/security") }
		},
		want: map[string]string{"HOST-LIMITSCONF": "a line limits locked memory to 65536 KiB"},
	},
	{
		name: "speed of a rail",
		plant: func(s *railNode) func() {
			before := strings.TrimSpace(readText(s.t, "/sys/class/net/"+nicName(otherRail)+"/speed"))
			s.set(otherRail, "speed", "25000")
			return func() { s.set(otherRail, "speed", before) }
		},
		want: map[string]string{"NIC-SPEED": "NIC ens17np0: it has 25 Gb/s"},
	},
	{
		name:  "packets are lost",
		plant: func(s *railNode) func() { return s.rises(freeRail, "out_of_sequence") },
		want:  map[string]string{"NIC-LOSS": " s rose out_of_sequence by "},
	},
	{
		name:  "frames are broken",
		plant: func(s *railNode) func() { return s.rises(1, "rx_icrc_encapsulated") },
		want:  map[string]string{"NIC-BER": " s rose rx_icrc_encapsulated by "},
	},
	{
		name: "node file names a NIC that does not exist",
		plant: func(s *railNode) func() {
			text := readText(s.t, s.nodeFile)
			write(s.t, s.nodeFile, strings.Replace(text, nicPCI(freeRail), "0000:00:1f.0", 1))
			return func() { write(s.t, s.nodeFile, text) }
		},
		want: map[string]string{
			"DP-SELECT": "0000:00:1f.0",
			"RAIL-GAP":  "rail 5: the node has rail 4 and rail 6", // that is the rail without a NIC
		},
	},
	{
		name: "node file has an unknown key",
		plant: func(s *railNode) func() {
			s.writeNodeFile("alow: []\n")
			return func() { s.writeNodeFile("") }
		},
		want: map[string]string{"NODE-FILE": "alow", "DP-SELECT": "alow"},
	},
	{
		name: "kernel module is not loaded",
		plant: func(s *railNode) func() {
			if err := unix.DeleteModule("rdma_ucm", 0); err != nil {
				s.t.Fatal(err)
			}
			return func() {
				if err := kmod.LoadAll(wire.LoadOrder); err != nil {
					s.t.Fatal(err)
				}
			}
		},
		want: map[string]string{
			"HOST-MODULES": "the module rdma_ucm is not loaded",
			"HOST-CHARDEV": "there is no /dev/infiniband/rdma_cm", // which the module makes …
			"POD-NODEV":    "has no /dev/infiniband/rdma_cm",      // … and the pod's container had
		},
	},
	{
		name: "kernel log tells of a transceiver",
		plant: func(s *railNode) func() {
			s.log("<5>mlx5_core 0000:00:10.0: Port module event[error]: module 5, Cable error, Bus stuck (I2C or data shorted)")
			return s.forgetLog
		},
		want: map[string]string{"HOST-KMSG": "the transceiver does not answer: \"mlx5_core 0000:00:10.0: Port module event[error]: module 5"},
	},
	{
		name: "rail's NIC is in a bridge",
		plant: func(s *railNode) func() {
			s.Batch(nil, "link add br9 mtu 9000 type bridge", "link set "+nicName(otherRail)+" master br9")
			return func() { s.Batch(nil, "link set "+nicName(otherRail)+" nomaster", "link del br9") }
		},
		want: map[string]string{"NIC-PROTECTED": "NIC ens17np0: rail 6: "},
	},
}

// exclusiveDefects are those of a node in exclusive mode.
var exclusiveDefects = []defect{
	{
		// The machine becomes a node of Kubernetes.
		name: "shared device plugin beside exclusive mode",
		plant: func(s *railNode) func() {
			const dir = "/var/lib/kubelet"
			put(s, dir+"/device-plugins/kubelet_internal_checkpoint", `{"Data":{"RegisteredDevices":{"rdma/hca_shared":[]}},"Checksum":1}`)
			return func() { _ = os.RemoveAll(dir) }
		},
		want: map[string]string{
			"HOST-RDMAMODE": "the RDMA mode is exclusive, and another device plugin serves RDMA NICs: resource rdma/hca_shared",
			"AGENT-DOWN":    "rail-agent does not run", // a node of Kubernetes has one …
			"CNI-MULTUS":    "the node has no Multus",  // … and this
		},
		unknown: append([]string{"K8S-DEVINFO", "K8S-NFD"}, ofNetworks()...), // without an API server
	},
	{
		name: "RDMA port of a pod's rail is down",
		plant: func(s *railNode) func() {
			s.set(1, "port_state", "DOWN")
			return func() { s.set(1, "port_state", "auto") }
		},
		want: map[string]string{
			"POD-PORT": "pod default/trainer: port 1 of mlx5_1 is DOWN, although net2 has a carrier",
			"NIC-PHYS": "NIC ens12np0: the physical state of port 1 of mlx5_1 is Disabled", // the driver reports both
		},
	},
	{
		name: "pod's NIC takes no GID for an address",
		plant: func(s *railNode) func() {
			s.set(2, "refuse_gids", "1")
			s.trainer.IP("addr", "add", "10.79.0.1/16", "dev", "net3")
			return func() { s.trainer.IP("addr", "del", "10.79.0.1/16", "dev", "net3"); s.set(2, "refuse_gids", "0") }
		},
		want: map[string]string{"POD-GIDV2": "pod default/trainer: net3: no RoCE v2 GID for 10.79.0.1/16"},
	},
}

// move renames a file.
func move(s *railNode, from, to string) {
	s.t.Helper()
	if err := os.Rename(from, to); err != nil {
		s.t.Fatal(err)
	}
}

// put writes a file and its directory.
func put(s *railNode, path, text string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// log writes a line to the kernel's log.
func (s *railNode) log(line string) {
	s.t.Helper()
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line + "\n"); err != nil {
		s.t.Fatal(err)
	}
}

// forgetLog writes as much to the kernel's log as it keeps. The console does not show lines of
// this level.
func (s *railNode) forgetLog() {
	s.t.Helper()
	const limit = "/proc/sys/kernel/printk_devkmsg" // ten lines of a program in five seconds
	before := readText(s.t, limit)
	write(s.t, limit, "on\n")
	defer write(s.t, limit, before+"\n")
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	line := "<7>zdoctor: " + strings.Repeat("-", 900) + "\n"
	for written := 0; written < 2*size; written += len(line) {
		if _, err := f.WriteString(line); err != nil {
			s.t.Fatal(err)
		}
	}
}

// program starts a program with this name and a limit of locked memory of 64 KiB.
func (s *railNode) program(name string) (end func()) {
	s.t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.t.TempDir(), name)
	if err := os.WriteFile(path, busybox, 0o755); err != nil {
		s.t.Fatal(err)
	}
	pid, end := s.started((*exec.Cmd).Start, &exec.Cmd{Path: path, Args: []string{"sleep", "100000"}}, name, func() {})
	s.limitMemlock(pid, 64<<10)
	return end
}

// rises lets a counter of the rail's port rise until end is called.
func (s *railNode) rises(rail int, counter string) (end func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	path := function(rail, "port_counter")
	go func() {
		defer close(stopped)
		for value := 10; ; value += 10 {
			_ = os.WriteFile(path, []byte(fmt.Sprintf("%s %d", counter, value)), 0)
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

// carrierIn waits for the carrier of a pod's interface.
func (s *railNode) carrierIn(p *pod, name string) {
	s.t.Helper()
	s.await(name+" has a carrier", func() bool {
		l, err := link.ByName(p.Netns.Netns, name)
		return err == nil && l.OperUp
	})
}

// awaitGIDs waits until the number of GIDs of the rail's port is right.
func (s *railNode) awaitGIDs(rail int, right func(n int) bool) {
	s.t.Helper()
	core := s.core(s.Netns.Netns)
	devices, err := core.Devices()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range devices {
		if d.ParentDev != nicPCI(rail) {
			continue
		}
		s.await("the number of GIDs", func() bool {
			table, err := core.GIDs(d, 1)
			return err == nil && right(len(table.Entries))
		})
		return
	}
	s.t.Fatalf("rail %d has no RDMA device", rail)
}

// ofNetworks returns the IDs of the rules about networks.
func ofNetworks() []string {
	var ids []string
	for _, r := range rule.Select(doctor.Rules(), rule.ConfigScope) {
		ids = append(ids, r.ID)
	}
	return ids
}
