package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// addressed returns the two GIDs that the kernel makes from an address: one for RoCE v1 and one for
// RoCE v2.
func addressed(index int, value, netdev string) []fact.GID {
	return []fact.GID{{Index: index, Value: value, Type: "IB/RoCE v1", Netdev: netdev}, {Index: index + 1, Value: value, Type: "RoCE v2", Netdev: netdev}}
}

// mapped returns the GID of 172.31.rail.host.
func mapped(rail, host int) string {
	return fmt.Sprintf("0000:0000:0000:0000:0000:ffff:ac1f:%02x%02x", rail, host)
}

// The paths of the settings of reverse path filtering.
const (
	ofAll     = "net/ipv4/conf/all/rp_filter"
	ofDefault = "net/ipv4/conf/default/rp_filter"
)

func healthyNode(f *fact.Facts) {
	f.Taken = time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	modules := []string{"ib_core", "ib_umad", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_peermem", "rdma_cm", "rdma_ucm"}
	f.Host = &fact.Host{
		Kernel: fact.Known("6.8.0-60-generic", "uname"), CmdLine: fact.Known("ro iommu=pt", "/proc/cmdline"), Hypervisor: fact.Known(false, "/proc/cpuinfo"),
		RDMAMode: fact.Known("shared", "netlink"), Modules: fact.Known(modules, "/proc/modules"),
		MOFED: fact.Known("", "/usr/bin/ofed_info"), DMABuf: fact.Known(true, "/proc/kallsyms"), NVIDIAOpen: fact.Known(false, "modinfo"),
		Origins:     fact.Known(map[string]string{"rdma_rxe": fact.OriginPackage, "ib_core": fact.OriginKernel, "mlx5_ib": fact.OriginKernel}, "/lib/modules"),
		Memlock:     fact.Known([]fact.Memlock{{Process: "containerd", PID: 812, Soft: fact.Unlimited, Hard: fact.Unlimited}, {Process: "kubelet", PID: 900, Soft: 8 << 20, Hard: 8 << 20}}, "/proc/PID/limits"),
		LimitsConf:  fact.Known([]string{"* soft memlock unlimited", "* hard memlock 67108864"}, "/etc/security"),
		Swaps:       fact.Known([]string(nil), "/proc/swaps"),
		Sysctls:     fact.Known(map[string]string{ofAll: "0", ofDefault: "2"}, "/proc/sys"),
		KernelLog:   fact.Known([]string{"mlx5_core 0000:10:00.0: firmware version: 28.43.2566"}, "/dev/kmsg"),
		CharDevices: fact.Known([]string{"/dev/infiniband/rdma_cm"}, "/dev/infiniband"),
	}
	uverbs := []string{}
	f.NICs = &fact.NICs{
		Problems: fact.Known([]string(nil), "node file"), Fabric: fact.Known("isolated", "node file"),
		Others: fact.Known([]fact.HostInterface{{Name: "ib0.8001", MTU: 2044, Kind: fact.IPoIBKind, AdminUp: true}}, "netlink"),
	}
	var nics []fact.NIC
	var gpus []fact.GPU
	for i := range 9 {
		nics = append(nics, healthyNIC(i))
		uverbs = append(uverbs, fmt.Sprintf("uverbs%d", i))
		f.Host.CharDevices.Value = append(f.Host.CharDevices.Value, nics[i].CharDevices...)
		if i < 8 {
			gpus = append(gpus, fact.GPU{PCI: gpuPCI(i), Vendor: "10de", NUMA: nics[i].NUMA})
		}
	}
	nics = append(nics, healthyFunctions()...)
	f.Host.Uverbs = fact.Known(uverbs, "/sys/class/infiniband_verbs")
	f.NICs.List, f.NICs.GPUs = fact.Known(nics, "netlink, sysfs, ledger"), fact.Known(gpus, "sysfs")
	f.CNI = &fact.CNI{Primary: fact.Known("/etc/cni/net.d/00-multus.conf", "/etc/cni/net.d"), Multus: fact.Known("v4.2.1", "image"), Binaries: fact.Known([]fact.Binary{
		{Path: "/opt/cni/bin/host-device", SHA256: "aaaa", Installed: "aaaa", Version: "v1.0.0", RailCNI: true},
		{Path: "/opt/cni/bin/macvlan", SHA256: "bbbb", Installed: "bbbb", Version: "v1.0.0", RailCNI: true},
		{Path: "/opt/cni/bin/whereabouts", SHA256: "cccc", Installed: "cccc", Version: "v1.0.0", RailCNI: true},
		{Path: "/opt/cni/bin/ipoib", SHA256: "eeee", Installed: "eeee", Version: "v1.0.0", RailCNI: true},
		{Path: "/opt/cni/bin/rdma", SHA256: "ffff", Installed: "ffff", Version: "v1.0.0", RailCNI: true},
	}, "/opt/cni/bin")}
	f.Agent = &fact.Agent{
		Running: fact.Known(true, "socket"), Version: fact.Known("v1.0.0", "socket"), NRI: fact.Known(true, "socket"),
		Memlock: fact.Known(true, "socket"), NotReturned: fact.Known(0, "metrics"),
		Kubeconfig: fact.Known(fact.Kubeconfig{Path: "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}, "socket"),
	}
	f.Kubelet = &fact.Kubelet{
		Foreign:     fact.Known([]string{"resource example.com/of_another_plugin"}, "/var/lib/kubelet"),
		Allocatable: fact.Known(map[string]int64{"rdma/hca_gpu": 8, "example.com/roce_rail_0": 0}, "API server"),
		Capacity:    fact.Known(map[string]int64{"rdma/hca_gpu": 8, "example.com/roce_rail_0": 1}, "API server"),
		Labels:      fact.Known(map[string]string{"feature.node.kubernetes.io/pci-15b3.present": "true", "feature.node.kubernetes.io/pci-0302_10de.present": "true"}, "API server"),
		Pools: fact.Known([]fact.Pool{
			{Resource: "rdma/hca_gpu", Kind: "shared", NICs: []string{"ens3np0", "ens4np0"}, Count: 8, UMAD: false}, {Resource: "example.com/roce_rail_0", Kind: "exclusive", NICs: []string{"ens1np0"}, Count: 1, UMAD: false},
		}, "node file"),
	}
	f.Ledger = &fact.Ledger{Dir: "/run/rail-cni", Unreadable: fact.Known([]string(nil), "/run/rail-cni"), Changed: fact.Known([]string(nil), "/run/rail-cni"), Attachments: fact.Known([]fact.Attachment{
		{
			Pod: "default/trainer-0", UID: "u", ContainerID: "0123456789abcdef", IfName: "net1", Plugin: "host-device", Network: "roce-0", NIC: "ens1np0", PCI: "0000:10:00.0",
			Rail: &[]int{0}[0], Phase: "lent", Alive: true, InPod: true, Addresses: []string{"172.31.0.2/24"}, RDMA: []string{"mlx5_0"}, Created: f.Taken.Add(-time.Hour),
		},
		{Pod: "default/trainer-0", ContainerID: "0123456789abcdef", IfName: "net2", Plugin: "host-device", NIC: "ens2np0", PCI: "0000:11:00.0", Phase: "lending", Alive: true, Created: f.Taken.Add(-time.Minute)},
	}, "/run/rail-cni")}
}

func gpuPCI(i int) string { return fmt.Sprintf("0000:%02x:00.0", i+0x40) }

// healthyNIC returns the NIC with index i. NICs 0 to 7 have RoCE, and a pod holds the first two of
// them. NIC 8 is an InfiniBand NIC.
func healthyNIC(i int) fact.NIC {
	name, device := fmt.Sprintf("ens%dnp0", i+1), fmt.Sprintf("mlx5_%d", i)
	distances := map[string]string{}
	for k := range 8 {
		distances[gpuPCI(k)] = "SYS"
		if k/4 == i/4 {
			distances[gpuPCI(k)] = "NODE"
		}
		if k == i {
			distances[gpuPCI(k)] = "PIX"
		}
	}
	n := fact.NIC{
		Name: name, AltNames: []string{fmt.Sprintf("enp%ds0np0", i+0x10)}, PCI: fmt.Sprintf("0000:%02x:00.0", i+0x10), Kind: "pf", Vendor: "15b3", Driver: "mlx5_core",
		Rail: &[]int{i}[0], NUMA: &[]int{i / 4}[0], LinkType: "ether", Distances: distances, CharDevices: []string{fmt.Sprintf("/dev/infiniband/uverbs%d", i)},
		AdminUp: fact.Known(true, "netlink"), Carrier: fact.Known(true, "netlink"), Mbps: fact.Known(int64(400_000), "sysfs"), MTU: fact.Known(9000, "netlink"), DCB: fact.Known(fact.DCB{Supported: true, PFC: "3"}, "netlink"),
		ECN:      fact.Known(fact.ECN{Known: true, NP: "0,3", RP: "0,3"}, "sysfs"),
		Firmware: fact.Known("28.43.2566", "ethtool"), PCIe: fact.Known(fact.PCIe{GTs: 32, MaxGTs: 32, Width: 16, MaxWidth: 16}, "sysfs"), CarrierDown: fact.Known(uint64(4), "netlink"),
		Flaps: fact.Known(fact.Flaps{Count: 1, Seconds: 12 * 3600}, "rail-agent"), Rising: fact.Known(fact.Rising{Seconds: 1, Counters: map[string]uint64{"out_of_sequence": 1}}, "sysfs"),
		IOMMU: fact.Known("identity", "sysfs"), Redirecting: fact.Known([]string(nil), "sysfs"), ManagedBy: fact.Known("", "/run"), VFs: fact.Known(fact.VFs{Count: 0, Mode: "legacy"}, "sysfs"),
		Addresses: fact.Known([]string{fmt.Sprintf("172.31.%d.1/24", i)}, "netlink"),
	}
	port := fact.Port{
		Device: device, Port: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "Ethernet", ActiveMTU: 4096, TableSize: 255,
		GIDs: fact.Known(addressed(2, mapped(i, 1), name), "sysfs"),
	}
	switch {
	case i == 2:
		n.Children = 1
	case i < 2:
		n.Holder = "default/trainer-0"
		n.Addresses.Value = []string{fmt.Sprintf("172.31.%d.2/24", i)}
		port.GIDs.Value = addressed(2, mapped(i, 2), fmt.Sprintf("net%d", i+1))
	case i == 8:
		n.LinkType, n.Addresses.Value, n.MTU.Value = "infiniband", nil, 2044
		port.LinkLayer, port.TableSize, port.GIDs.Value = fact.InfiniBand, 8, []fact.GID{{Index: 0, Value: "fe80:0000:0000:0000:0002:c903:00ab:cdef", Type: "IB/RoCE v1", Netdev: ""}}
		port.LID, port.SMLID, port.PKeys = fact.Known(uint32(7), "sysfs"), fact.Known(uint32(1), "sysfs"), fact.Known([]fact.PKey{{Index: 0, Key: "0xffff"}}, "sysfs")
		port.IsSM = fact.Known(false, "RDMA netlink")
	}
	n.Ports = fact.Known([]fact.Port{port}, "netlink, sysfs")
	return n
}

// physical is the index of the physical function in the healthy facts. Its five virtual functions follow after it.
const physical = 9

// healthyFunctions returns a physical function and its virtual functions. None of them has a rail.
func healthyFunctions() []fact.NIC {
	no, yes := false, true
	pf := fact.NIC{Name: "ens20np0", PCI: "0000:30:00.0", Kind: "pf", Vendor: "8086", Driver: "ice", LinkType: "ether", NUMA: &[]int{0}[0], VFs: fact.Known(fact.VFs{Count: 5, Mode: "legacy"}, "sysfs"), Distances: map[string]string{}}
	all := []fact.NIC{pf}
	pf.Functions = fact.Known([]fact.Function{}, "netlink")
	for i := range 5 {
		vf := fact.NIC{Name: fmt.Sprintf("ens20v%d", i), PCI: fmt.Sprintf("0000:30:01.%d", i), Kind: "vf", Vendor: "8086", Driver: "iavf", LinkType: "ether", NUMA: pf.NUMA, Distances: map[string]string{}}
		vf.VFs = fact.Known(fact.VFs{}, "sysfs")
		all = append(all, vf)
		pf.Functions.Value = append(pf.Functions.Value, fact.Function{Number: i, PCI: vf.PCI, SpoofCheck: &yes, Trust: &no})
	}
	all[0].Functions = pf.Functions
	return all
}

// function returns a virtual function of the facts.
func function(f *fact.Facts, number int) *fact.Function {
	return &nic(f, physical).Functions.Value[number]
}

// nic returns a NIC of the facts. port returns the port of such a NIC.
func nic(f *fact.Facts, i int) *fact.NIC { return &f.NICs.List.Value[i] }

func port(f *fact.Facts, i int) *fact.Port { return &nic(f, i).Ports.Value[0] }

func away[T any](to *fact.Fact[T]) { ruletest.Away(to) }

// noNICs and the functions after it each remove one fact.
func noNICs(f *fact.Facts) { away(&f.NICs.List) }

func noPorts(f *fact.Facts) { away(&nic(f, 3).Ports) }

func noModules(f *fact.Facts) { away(&f.Host.Modules) }

func noBinaries(f *fact.Facts) { away(&f.CNI.Binaries) }

func noLedger(f *fact.Facts) { away(&f.Ledger.Attachments) }

func attachment(f *fact.Facts) *fact.Attachment { return &f.Ledger.Attachments.Value[0] }

func init() {
	add("HOST-KERNEL", fixture{
		fires:   func(f *fact.Facts) { f.Host.Kernel.Value = "4.18.0-553.el8_10.x86_64" },
		missing: func(f *fact.Facts) { away(&f.Host.Kernel) },
	})
	add("HOST-MODULES", fixture{fires: func(f *fact.Facts) { f.Host.Modules.Value = f.Host.Modules.Value[1:] }, missing: noModules})
	add("HOST-RDMADRIVER", fixture{
		fires: func(f *fact.Facts) {
			f.Host.Modules.Value = slices.DeleteFunc(f.Host.Modules.Value, func(name string) bool { return name == "mlx5_ib" })
			nic(f, 3).Ports.Value, nic(f, 3).CharDevices = nil, nil
		},
		missing: noNICs,
	})
	add("HOST-OFED", fixture{
		fires:   func(f *fact.Facts) { f.Host.Origins.Value["mlx5_ib"] = fact.OriginPackage },
		missing: func(f *fact.Facts) { away(&f.Host.MOFED) },
	})
	add("HOST-UMAD", fixture{
		fires:   func(f *fact.Facts) { f.Host.Modules.Value[1] = "ib_cm" },
		missing: func(f *fact.Facts) { away(&nic(f, 8).Ports) },
	})
	add("HOST-RDMAMODE", fixture{
		fires: func(f *fact.Facts) {
			f.Host.RDMAMode.Value = "exclusive"
			f.Kubelet.Foreign.Value = []string{"resource rdma/hca_shared"}
		},
		missing: func(f *fact.Facts) { away(&f.Host.RDMAMode) },
		also:    []string{"CNI-MODE"},
	})
	add("HOST-CHARDEV", fixture{
		fires:   func(f *fact.Facts) { f.Host.CharDevices.Value = f.Host.CharDevices.Value[1:] },
		missing: func(f *fact.Facts) { away(&f.Host.Uverbs) },
	})
	add("HOST-PEERMEM", fixture{
		fires:   func(f *fact.Facts) { f.Host.Modules.Value[6] = "nvidia_uvm" },
		missing: func(f *fact.Facts) { away(&f.NICs.GPUs) },
	})
	add("HOST-MEMLOCK", fixture{
		fires: func(f *fact.Facts) {
			f.Host.Memlock.Value[0].Soft = 64 << 10
			f.Agent.Memlock.Value = false
		},
		missing: func(f *fact.Facts) {
			f.Host.Memlock.Value[0].Soft = 64 << 10
			away(&f.Agent.NRI)
		},
	})
	add("HOST-LIMITSCONF", fixture{
		fires:   func(f *fact.Facts) { f.Host.LimitsConf.Value = []string{"limits.conf: @mpi - memlock 64"} },
		missing: func(f *fact.Facts) { away(&f.Host.LimitsConf) },
	})
	add("HOST-SWAP", fixture{
		fires:   func(f *fact.Facts) { f.Host.Swaps.Value = []string{"/dev/dm-1"} },
		missing: func(f *fact.Facts) { away(&f.Host.Swaps) },
	})
	add("HOST-NM", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).ManagedBy.Value = "NetworkManager" },
		missing: func(f *fact.Facts) { away(&nic(f, 3).ManagedBy) },
	})
	add("HOST-IOMMU", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).IOMMU.Value = "DMA-FQ" },
		missing: func(f *fact.Facts) { away(&f.Host.Hypervisor) },
	})
	add("HOST-ACS", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).Redirecting.Value = []string{"0000:0f:01.0"} },
		missing: func(f *fact.Facts) { away(&nic(f, 3).Redirecting) },
	})
	add("HOST-RPFILTER", fixture{
		fires:   func(f *fact.Facts) { f.Host.Sysctls.Value[ofDefault] = "1" },
		missing: func(f *fact.Facts) { delete(f.Host.Sysctls.Value, ofAll) },
	})
	add("HOST-KMSG", fixture{
		fires: func(f *fact.Facts) {
			f.Host.KernelLog.Value = append(f.Host.KernelLog.Value, "mlx5_core 0000:13:00.0: mlx5_pcie_event:301:(pid 9): Detected insufficient power on the PCIe slot (27W).")
		},
		missing: func(f *fact.Facts) { away(&f.Host.KernelLog) },
	})
	addNICs()
	addPorts()
	addNode()
}

func addNICs() {
	add("NIC-CARRIER", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).Carrier.Value = false },
		missing: func(f *fact.Facts) { away(&nic(f, 3).Carrier) },
	})
	add("NIC-DOWN", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).AdminUp.Value, nic(f, 3).Children = false, 2 },
		missing: func(f *fact.Facts) { away(&nic(f, 2).AdminUp) },
	})
	add("NIC-PCIE", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).PCIe.Value.Width = 8 },
		missing: func(f *fact.Facts) { nic(f, 3).PCIe = fact.Fact[fact.PCIe]{} },
	})
	add("NIC-SPEED", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).Mbps.Value = 200_000 },
		missing: func(f *fact.Facts) { away(&nic(f, 3).Mbps) },
	})
	add("NIC-FIRMWARE", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).Firmware.Value = "28.42.1000" },
		missing: func(f *fact.Facts) { away(&nic(f, 3).Firmware) },
	})
	add("NIC-MTU", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).MTU.Value = 1500 },
		missing: func(f *fact.Facts) { away(&nic(f, 3).MTU) },
	})
	add("NIC-PFC", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).DCB.Value.PFC = "" },
		missing: func(f *fact.Facts) { away(&nic(f, 3).DCB) },
	})
	add("NIC-ECN", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).ECN.Value = fact.ECN{Known: true, NP: "0,3", RP: "0"} },
		missing: func(f *fact.Facts) { away(&nic(f, 3).ECN) },
	})
	add("NIC-FLAP", fixture{
		fires:   func(f *fact.Facts) { nic(f, 3).Flaps.Value = fact.Flaps{Count: 3, Seconds: 600} },
		missing: func(f *fact.Facts) { away(&nic(f, 3).Flaps) },
	})
	noRising := func(f *fact.Facts) { away(&nic(f, 3).Rising) }
	grow := func(counter string) func(*fact.Facts) {
		return func(f *fact.Facts) { nic(f, 3).Rising.Value.Counters[counter] = 20 }
	}
	add("NIC-BER", fixture{fires: grow("symbol_error"), missing: noRising})
	add("NIC-LOSS", fixture{fires: grow("packet_seq_err"), missing: noRising})
	add("NIC-REQERR", fixture{fires: grow("resp_local_length_error"), missing: noRising})
	add("NIC-DRIVER", fixture{
		fires: func(f *fact.Facts) {
			*nic(f, 8) = fact.NIC{PCI: "0000:18:00.0", Rail: nic(f, 8).Rail, NUMA: nic(f, 8).NUMA}
		},
		missing: noNICs,
		also:    []string{"CNI-NIC"},
	})
	add("NIC-NETDEV", fixture{fires: func(f *fact.Facts) { nic(f, 7).Name = "" }, missing: noNICs, also: []string{"CNI-NIC", "DP-IFNAMES"}})
	add("NIC-NAME", fixture{
		fires:   func(f *fact.Facts) { nic(f, 7).Name, nic(f, 7).AltNames = "dev7", []string{"ens8np0"} },
		missing: noNICs,
		also:    []string{"DP-IFNAMES"},
	})
	add("NIC-NUMA", fixture{fires: func(f *fact.Facts) { nic(f, 3).NUMA = nil }, missing: noNICs})
	add("NIC-DISTANCE", fixture{
		fires: func(f *fact.Facts) {
			for i := range f.NICs.List.Value {
				nic(f, i).Distances[gpuPCI(3)] = "SYS"
			}
		},
		missing: func(f *fact.Facts) { away(&f.NICs.GPUs) },
	})
	add("NIC-VFS", fixture{
		fires:   func(f *fact.Facts) { nic(f, 0).VFs.Value.Count = 8 },
		missing: func(f *fact.Facts) { away(&nic(f, 0).VFs) },
	})
	add("NIC-SWITCHDEV", fixture{
		fires: func(f *fact.Facts) { // the guardrails protect such a NIC
			nic(f, 4).VFs.Value = fact.VFs{Count: 2, Mode: "switchdev"}
			nic(f, 4).Protected = "ens5np0 must stay on the host: it has 2 virtual functions"
		},
		missing: func(f *fact.Facts) { away(&nic(f, 3).VFs) },
	})
	add("NIC-PROTECTED", fixture{
		fires:   func(f *fact.Facts) { nic(f, 4).Protected = "it belongs to the bond bond0" },
		missing: func(f *fact.Facts) { away(&f.NICs.Problems) },
	})
	add("RAIL-DUP", fixture{
		fires:   func(f *fact.Facts) { nic(f, 8).Rail = &[]int{7}[0] },
		missing: noNICs,
	})
	add("RAIL-GAP", fixture{
		fires:   func(f *fact.Facts) { nic(f, 8).Rail = &[]int{9}[0] },
		missing: noNICs,
	})
}

func addPorts() {
	add("NIC-PORT", fixture{fires: func(f *fact.Facts) { port(f, 3).State = "DOWN" }, missing: noPorts})
	add("NIC-PHYS", fixture{fires: func(f *fact.Facts) { port(f, 3).PhysState = "Polling" }, missing: noPorts})
	add("NIC-ACTIVEMTU", fixture{fires: func(f *fact.Facts) { port(f, 3).ActiveMTU = 1024 }, missing: noPorts})
	add("NIC-GIDV2", fixture{
		fires:   func(f *fact.Facts) { port(f, 3).GIDs.Value = port(f, 3).GIDs.Value[:1] },
		missing: func(f *fact.Facts) { away(&port(f, 3).GIDs) },
	})
	add("NIC-GIDFULL", fixture{
		fires: func(f *fact.Facts) {
			for i := range 240 {
				port(f, 3).GIDs.Value = append(port(f, 3).GIDs.Value, addressed(10+i, mapped(3, i), "mv0")[1])
			}
		},
		missing: func(f *fact.Facts) { away(&port(f, 3).GIDs) },
	})
	add("IB-SM", fixture{fires: func(f *fact.Facts) { port(f, 8).State = "INIT" }, missing: func(f *fact.Facts) { away(&port(f, 8).SMLID) }})
	add("IB-LID", fixture{fires: func(f *fact.Facts) { port(f, 8).LID.Value = 0 }, missing: func(f *fact.Facts) { away(&port(f, 8).LID) }})
	add("IB-GUID-ZERO", fixture{
		fires:   func(f *fact.Facts) { port(f, 8).GIDs.Value[0].Value = "fe80:0000:0000:0000:0000:0000:0000:0000" },
		missing: func(f *fact.Facts) { away(&port(f, 8).GIDs) },
	})
	add("IB-SM-LENT", fixture{fires: func(f *fact.Facts) { port(f, 8).IsSM.Value = true }, missing: func(f *fact.Facts) { away(&port(f, 8).IsSM) }})
	add("IB-ORPHAN-CHILD", fixture{
		fires:   func(f *fact.Facts) { f.NICs.Others.Value[0].AdminUp = false },
		missing: func(f *fact.Facts) { away(&f.NICs.Others) },
	})
	add("VF-STALE", fixture{
		fires:   func(f *fact.Facts) { function(f, 3).VLAN = "100 qos 5" },
		missing: func(f *fact.Facts) { away(&nic(f, physical).Functions) },
	})
	add("IB-PKEY", fixture{fires: func(f *fact.Facts) { port(f, 8).PKeys.Value = []fact.PKey{{Index: 0, Key: "0x7fff"}} }, missing: func(f *fact.Facts) { away(&port(f, 8).PKeys) }})
}

func addNode() {
	add("LEDGER-UNREADABLE", fixture{
		fires: func(f *fact.Facts) {
			f.Ledger.Unreadable.Value = []string{"attachments/0123/net1.json: unexpected end of JSON input"}
		},
		missing: func(f *fact.Facts) { away(&f.Ledger.Unreadable) },
	})
	add("LEDGER-ORPHAN", fixture{fires: func(f *fact.Facts) { attachment(f).Alive = false }, missing: noLedger})
	add("LEDGER-LOST", fixture{fires: func(f *fact.Facts) { attachment(f).InPod = false }, missing: noLedger})
	add("LEDGER-LENDING", fixture{fires: func(f *fact.Facts) { f.Ledger.Attachments.Value[1].Created = f.Taken.Add(-time.Hour) }, missing: noLedger})
	add("LEDGER-CHANGED", fixture{
		fires:   func(f *fact.Facts) { f.Ledger.Changed.Value = []string{"ens1np0: ring rx is 512, and was 1024"} },
		missing: func(f *fact.Facts) { away(&f.Ledger.Changed) },
	})
	add("CNI-BINARY", fixture{fires: func(f *fact.Facts) {
		f.CNI.Binaries.Value[1] = fact.Binary{Path: "/opt/cni/bin/macvlan", SHA256: "dddd", Installed: "bbbb", Version: "", RailCNI: false}
	}, missing: noBinaries})
	add("CNI-MIX", fixture{fires: func(f *fact.Facts) { f.CNI.Binaries.Value[1].Version = "v0.9.0" }, missing: noBinaries})
	add("CNI-MULTUS", fixture{
		fires:   func(f *fact.Facts) { f.CNI.Multus.Value = "v3.9.3" },
		missing: func(f *fact.Facts) { away(&f.CNI.Multus) },
	})
	add("CNI-PRIMARY", fixture{
		fires:   func(f *fact.Facts) { f.CNI.Primary.Value = "/etc/cni/net.d/00-calico.conflist" },
		missing: func(f *fact.Facts) { away(&f.CNI.Primary) },
	})
	add("AGENT-DOWN", fixture{
		fires:   func(f *fact.Facts) { f.Agent.Running.Value = false },
		missing: func(f *fact.Facts) { away(&f.Agent.Running) },
	})
	add("AGENT-VERSION", fixture{
		fires:   func(f *fact.Facts) { f.Agent.Version.Value = "v0.9.0" },
		missing: func(f *fact.Facts) { away(&f.Agent.Version) },
	})
	add("AGENT-RETURN", fixture{
		fires:   func(f *fact.Facts) { f.Agent.NotReturned.Value = 1 },
		missing: func(f *fact.Facts) { away(&f.Agent.NotReturned) },
	})
	add("IPAM-CRED", fixture{
		fires:   func(f *fact.Facts) { f.Agent.Kubeconfig.Value.Refused = "the API server refuses its credentials" },
		missing: func(f *fact.Facts) { away(&f.Agent.Kubeconfig) },
	})
	add("DP-SELECT", fixture{
		fires: func(f *fact.Facts) {
			f.NICs.Problems.Value = []string{`rails: rail 3 ({name: "ens4"}) is not a NIC of this node`}
		},
		missing: func(f *fact.Facts) { away(&f.NICs.Problems) },
	})
	noPools := func(f *fact.Facts) { away(&f.Kubelet.Pools) }
	add("DP-DUP", fixture{
		fires: func(f *fact.Facts) {
			f.Kubelet.Foreign.Value = []string{"socket /var/lib/kubelet/device-plugins/hca_gpu.sock"}
		},
		missing: noPools,
	})
	add("DP-COUNT", fixture{
		fires:   func(f *fact.Facts) { f.Kubelet.Capacity.Value["rdma/hca_gpu"] = 0 },
		missing: func(f *fact.Facts) { away(&f.Kubelet.Capacity) },
	})
	add("DP-HCAMAX", fixture{
		fires: func(f *fact.Facts) {
			f.Kubelet.Pools.Value[0].Count, f.Kubelet.Capacity.Value["rdma/hca_gpu"] = 200, 200
		},
		missing: noPools,
	})
	add("K8S-NFD", fixture{
		fires:   func(f *fact.Facts) { delete(f.Kubelet.Labels.Value, "feature.node.kubernetes.io/pci-15b3.present") },
		missing: func(f *fact.Facts) { away(&f.Kubelet.Labels) },
	})
}
