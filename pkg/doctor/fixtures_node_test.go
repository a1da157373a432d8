package doctor

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

var errAway = errors.New("permission denied")

// addressed returns the two GIDs that the kernel makes from an address: one for RoCE v1 and one for
// RoCE v2.
func addressed(index int, value, netdev string) []GID {
	return []GID{{index, value, "IB/RoCE v1", netdev}, {index + 1, value, "RoCE v2", netdev}}
}

// mapped returns the GID of 172.31.rail.host.
func mapped(rail, host int) string {
	return fmt.Sprintf("0000:0000:0000:0000:0000:ffff:ac1f:%02x%02x", rail, host)
}

func healthyNode(f *Facts) {
	f.Taken = time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	modules := []string{"ib_core", "ib_umad", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_peermem", "rdma_cm", "rdma_ucm"}
	f.Host = &Host{
		Kernel: Known("6.8.0-60-generic", "uname"), CmdLine: Known("ro iommu=pt", "/proc/cmdline"), Hypervisor: Known(false, "/proc/cpuinfo"),
		RDMAMode: Known("shared", "netlink"), Modules: Known(modules, "/proc/modules"),
		MOFED: Known("", "/usr/bin/ofed_info"), DMABuf: Known(true, "/proc/kallsyms"), NVIDIAOpen: Known(false, "modinfo"),
		Origins:     Known(map[string]string{"rdma_rxe": OriginPackage, "ib_core": OriginKernel, "mlx5_ib": OriginKernel}, "/lib/modules"),
		Memlock:     Known([]Memlock{{"containerd", 812, Unlimited, Unlimited}, {"kubelet", 900, 8 << 20, 8 << 20}}, "/proc/PID/limits"),
		LimitsConf:  Known([]string{"* soft memlock unlimited", "* hard memlock 67108864"}, "/etc/security"),
		Swaps:       Known([]string(nil), "/proc/swaps"),
		Sysctls:     Known(map[string]string{sysctlAll: "0", sysctlDefault: "2"}, "/proc/sys"),
		KernelLog:   Known([]string{"mlx5_core 0000:10:00.0: firmware version: 28.43.2566"}, "/dev/kmsg"),
		CharDevices: Known([]string{"/dev/infiniband/rdma_cm"}, "/dev/infiniband"),
	}
	uverbs := []string{}
	f.NICs = &NICs{
		Problems: Known([]string(nil), "node file"), Fabric: Known("isolated", "node file"),
		Others: Known([]HostInterface{{Name: "ib0.8001", MTU: 2044, Kind: ipoibKind, AdminUp: true}}, "netlink"),
	}
	var nics []NIC
	var gpus []GPU
	for i := range 9 {
		nics = append(nics, healthyNIC(i))
		uverbs = append(uverbs, fmt.Sprintf("uverbs%d", i))
		f.Host.CharDevices.Value = append(f.Host.CharDevices.Value, nics[i].CharDevices...)
		if i < 8 {
			gpus = append(gpus, GPU{PCI: gpuPCI(i), Vendor: "10de", NUMA: nics[i].NUMA})
		}
	}
	nics = append(nics, healthyFunctions()...)
	f.Host.Uverbs = Known(uverbs, "/sys/class/infiniband_verbs")
	f.NICs.List, f.NICs.GPUs = Known(nics, "netlink, sysfs, ledger"), Known(gpus, "sysfs")
	f.CNI = &CNI{Primary: Known("/etc/cni/net.d/00-multus.conf", "/etc/cni/net.d"), Multus: Known("v4.2.1", "image"), Binaries: Known([]Binary{
		{"/opt/cni/bin/host-device", "aaaa", "aaaa", "v1.0.0", true},
		{"/opt/cni/bin/macvlan", "bbbb", "bbbb", "v1.0.0", true},
		{"/opt/cni/bin/whereabouts", "cccc", "cccc", "v1.0.0", true},
		{"/opt/cni/bin/ipoib", "eeee", "eeee", "v1.0.0", true},
		{"/opt/cni/bin/rdma", "ffff", "ffff", "v1.0.0", true},
	}, "/opt/cni/bin")}
	f.Agent = &Agent{
		Running: Known(true, "socket"), Version: Known("v1.0.0", "socket"), NRI: Known(true, "socket"),
		Memlock: Known(true, "socket"), NotReturned: Known(0, "metrics"),
		Kubeconfig: Known(Kubeconfig{Path: "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}, "socket"),
	}
	f.Kubelet = &Kubelet{
		Foreign:     Known([]string{"resource example.com/of_another_plugin"}, "/var/lib/kubelet"),
		Allocatable: Known(map[string]int64{"rdma/hca_gpu": 8, "example.com/roce_rail_0": 0}, "API server"),
		Capacity:    Known(map[string]int64{"rdma/hca_gpu": 8, "example.com/roce_rail_0": 1}, "API server"),
		Labels:      Known(map[string]string{"feature.node.kubernetes.io/pci-15b3.present": "true", "feature.node.kubernetes.io/pci-0302_10de.present": "true"}, "API server"),
		Pools: Known([]Pool{
			{"rdma/hca_gpu", "shared", []string{"ens3np0", "ens4np0"}, 8, false}, {"example.com/roce_rail_0", "exclusive", []string{"ens1np0"}, 1, false},
		}, "node file"),
	}
	f.Ledger = &Ledger{Dir: "/run/rail-cni", Unreadable: Known([]string(nil), "/run/rail-cni"), Changed: Known([]string(nil), "/run/rail-cni"), Attachments: Known([]Attachment{
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
func healthyNIC(i int) NIC {
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
	n := NIC{
		Name: name, AltNames: []string{fmt.Sprintf("enp%ds0np0", i+0x10)}, PCI: fmt.Sprintf("0000:%02x:00.0", i+0x10), Kind: "pf", Vendor: "15b3", Driver: "mlx5_core",
		Rail: &[]int{i}[0], NUMA: &[]int{i / 4}[0], LinkType: "ether", Distances: distances, CharDevices: []string{fmt.Sprintf("/dev/infiniband/uverbs%d", i)},
		AdminUp: Known(true, "netlink"), Carrier: Known(true, "netlink"), Mbps: Known(int64(400_000), "sysfs"), MTU: Known(9000, "netlink"), DCB: Known(DCB{Supported: true, PFC: "3"}, "netlink"),
		ECN:      Known(ECN{true, "0,3", "0,3"}, "sysfs"),
		Firmware: Known("28.43.2566", "ethtool"), PCIe: Known(PCIe{32, 32, 16, 16}, "sysfs"), CarrierDown: Known(uint64(4), "netlink"),
		Flaps: Known(Flaps{1, 12 * 3600}, "rail-agent"), Rising: Known(Rising{1, map[string]uint64{"out_of_sequence": 1}}, "sysfs"),
		IOMMU: Known("identity", "sysfs"), Redirecting: Known([]string(nil), "sysfs"), ManagedBy: Known("", "/run"), VFs: Known(VFs{0, "legacy"}, "sysfs"),
		Addresses: Known([]string{fmt.Sprintf("172.31.%d.1/24", i)}, "netlink"),
	}
	port := Port{
		Device: device, Port: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "Ethernet", ActiveMTU: 4096, TableSize: 255,
		GIDs: Known(addressed(2, mapped(i, 1), name), "sysfs"),
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
		port.LinkLayer, port.TableSize, port.GIDs.Value = InfiniBand, 8, []GID{{0, "fe80:0000:0000:0000:0002:c903:00ab:cdef", "IB/RoCE v1", ""}}
		port.LID, port.SMLID, port.PKeys = Known(uint32(7), "sysfs"), Known(uint32(1), "sysfs"), Known([]PKey{{0, "0xffff"}}, "sysfs")
		port.IsSM = Known(false, "RDMA netlink")
	}
	n.Ports = Known([]Port{port}, "netlink, sysfs")
	return n
}

// physical is the index of the physical function in the healthy facts. Its five virtual functions follow after it.
const physical = 9

// healthyFunctions returns a physical function and its virtual functions. None of them has a rail.
func healthyFunctions() []NIC {
	no, yes := false, true
	pf := NIC{Name: "ens20np0", PCI: "0000:30:00.0", Kind: "pf", Vendor: "8086", Driver: "ice", LinkType: "ether", NUMA: &[]int{0}[0], VFs: Known(VFs{5, "legacy"}, "sysfs"), Distances: map[string]string{}}
	all := []NIC{pf}
	pf.Functions = Known([]Function{}, "netlink")
	for i := range 5 {
		vf := NIC{Name: fmt.Sprintf("ens20v%d", i), PCI: fmt.Sprintf("0000:30:01.%d", i), Kind: "vf", Vendor: "8086", Driver: "iavf", LinkType: "ether", NUMA: pf.NUMA, Distances: map[string]string{}}
		vf.VFs = Known(VFs{}, "sysfs")
		all = append(all, vf)
		pf.Functions.Value = append(pf.Functions.Value, Function{Number: i, PCI: vf.PCI, SpoofCheck: &yes, Trust: &no})
	}
	all[0].Functions = pf.Functions
	return all
}

// function returns a virtual function of the facts.
func function(f *Facts, number int) *Function { return &nic(f, physical).Functions.Value[number] }

// nic returns a NIC of the facts. port returns the port of such a NIC.
func nic(f *Facts, i int) *NIC   { return &f.NICs.List.Value[i] }
func port(f *Facts, i int) *Port { return &nic(f, i).Ports.Value[0] }

func away[T any](to *Fact[T]) { *to = Failed[T]("test", errAway) }

// noNICs and the functions after it each remove one fact.
func noNICs(f *Facts)                 { away(&f.NICs.List) }
func noPorts(f *Facts)                { away(&nic(f, 3).Ports) }
func noModules(f *Facts)              { away(&f.Host.Modules) }
func noBinaries(f *Facts)             { away(&f.CNI.Binaries) }
func noLedger(f *Facts)               { away(&f.Ledger.Attachments) }
func attachment(f *Facts) *Attachment { return &f.Ledger.Attachments.Value[0] }

func init() {
	add("HOST-KERNEL", fixture{
		fires:   func(f *Facts) { f.Host.Kernel.Value = "4.18.0-553.el8_10.x86_64" },
		missing: func(f *Facts) { away(&f.Host.Kernel) },
	})
	add("HOST-MODULES", fixture{fires: func(f *Facts) { f.Host.Modules.Value = f.Host.Modules.Value[1:] }, missing: noModules})
	add("HOST-RDMADRIVER", fixture{
		fires: func(f *Facts) {
			f.Host.Modules.Value = slices.DeleteFunc(f.Host.Modules.Value, func(name string) bool { return name == "mlx5_ib" })
			nic(f, 3).Ports.Value, nic(f, 3).CharDevices = nil, nil
		},
		missing: noNICs,
	})
	add("HOST-OFED", fixture{
		fires:   func(f *Facts) { f.Host.Origins.Value["mlx5_ib"] = OriginPackage },
		missing: func(f *Facts) { away(&f.Host.MOFED) },
	})
	add("HOST-UMAD", fixture{
		fires:   func(f *Facts) { f.Host.Modules.Value[1] = "ib_cm" },
		missing: func(f *Facts) { away(&nic(f, 8).Ports) },
	})
	add("HOST-RDMAMODE", fixture{
		fires: func(f *Facts) {
			f.Host.RDMAMode.Value = "exclusive"
			f.Kubelet.Foreign.Value = []string{"resource rdma/hca_shared"}
		},
		missing: func(f *Facts) { away(&f.Host.RDMAMode) },
		also:    []string{"CNI-MODE"},
	})
	add("HOST-CHARDEV", fixture{
		fires:   func(f *Facts) { f.Host.CharDevices.Value = f.Host.CharDevices.Value[1:] },
		missing: func(f *Facts) { away(&f.Host.Uverbs) },
	})
	add("HOST-PEERMEM", fixture{
		fires:   func(f *Facts) { f.Host.Modules.Value[6] = "nvidia_uvm" },
		missing: func(f *Facts) { away(&f.NICs.GPUs) },
	})
	add("HOST-MEMLOCK", fixture{
		fires: func(f *Facts) {
			f.Host.Memlock.Value[0].Soft = 64 << 10
			f.Agent.Memlock.Value = false
		},
		missing: func(f *Facts) {
			f.Host.Memlock.Value[0].Soft = 64 << 10
			away(&f.Agent.NRI)
		},
	})
	add("HOST-LIMITSCONF", fixture{
		fires:   func(f *Facts) { f.Host.LimitsConf.Value = []string{"limits.conf: @mpi - memlock 64"} },
		missing: func(f *Facts) { away(&f.Host.LimitsConf) },
	})
	add("HOST-SWAP", fixture{
		fires:   func(f *Facts) { f.Host.Swaps.Value = []string{"/dev/dm-1"} },
		missing: func(f *Facts) { away(&f.Host.Swaps) },
	})
	add("HOST-NM", fixture{
		fires:   func(f *Facts) { nic(f, 3).ManagedBy.Value = "NetworkManager" },
		missing: func(f *Facts) { away(&nic(f, 3).ManagedBy) },
	})
	add("HOST-IOMMU", fixture{
		fires:   func(f *Facts) { nic(f, 3).IOMMU.Value = "DMA-FQ" },
		missing: func(f *Facts) { away(&f.Host.Hypervisor) },
	})
	add("HOST-ACS", fixture{
		fires:   func(f *Facts) { nic(f, 3).Redirecting.Value = []string{"0000:0f:01.0"} },
		missing: func(f *Facts) { away(&nic(f, 3).Redirecting) },
	})
	add("HOST-RPFILTER", fixture{
		fires:   func(f *Facts) { f.Host.Sysctls.Value[sysctlDefault] = "1" },
		missing: func(f *Facts) { delete(f.Host.Sysctls.Value, sysctlAll) },
	})
	add("HOST-KMSG", fixture{
		fires: func(f *Facts) {
			f.Host.KernelLog.Value = append(f.Host.KernelLog.Value, "mlx5_core 0000:13:00.0: mlx5_pcie_event:301:(pid 9): Detected insufficient power on the PCIe slot (27W).")
		},
		missing: func(f *Facts) { away(&f.Host.KernelLog) },
	})
	addNICs()
	addPorts()
	addNode()
}

func addNICs() {
	add("NIC-CARRIER", fixture{
		fires:   func(f *Facts) { nic(f, 3).Carrier.Value = false },
		missing: func(f *Facts) { away(&nic(f, 3).Carrier) },
	})
	add("NIC-DOWN", fixture{
		fires:   func(f *Facts) { nic(f, 3).AdminUp.Value, nic(f, 3).Children = false, 2 },
		missing: func(f *Facts) { away(&nic(f, 2).AdminUp) },
	})
	add("NIC-PCIE", fixture{
		fires:   func(f *Facts) { nic(f, 3).PCIe.Value.Width = 8 },
		missing: func(f *Facts) { nic(f, 3).PCIe = Fact[PCIe]{} },
	})
	add("NIC-SPEED", fixture{
		fires:   func(f *Facts) { nic(f, 3).Mbps.Value = 200_000 },
		missing: func(f *Facts) { away(&nic(f, 3).Mbps) },
	})
	add("NIC-FIRMWARE", fixture{
		fires:   func(f *Facts) { nic(f, 3).Firmware.Value = "28.42.1000" },
		missing: func(f *Facts) { away(&nic(f, 3).Firmware) },
	})
	add("NIC-MTU", fixture{
		fires:   func(f *Facts) { nic(f, 3).MTU.Value = 1500 },
		missing: func(f *Facts) { away(&nic(f, 3).MTU) },
	})
	add("NIC-PFC", fixture{
		fires:   func(f *Facts) { nic(f, 3).DCB.Value.PFC = "" },
		missing: func(f *Facts) { away(&nic(f, 3).DCB) },
	})
	add("NIC-ECN", fixture{
		fires:   func(f *Facts) { nic(f, 3).ECN.Value = ECN{true, "0,3", "0"} },
		missing: func(f *Facts) { away(&nic(f, 3).ECN) },
	})
	add("NIC-FLAP", fixture{
		fires:   func(f *Facts) { nic(f, 3).Flaps.Value = Flaps{3, 600} },
		missing: func(f *Facts) { away(&nic(f, 3).Flaps) },
	})
	noRising := func(f *Facts) { away(&nic(f, 3).Rising) }
	grow := func(counter string) func(*Facts) {
		return func(f *Facts) { nic(f, 3).Rising.Value.Counters[counter] = 20 }
	}
	add("NIC-BER", fixture{fires: grow("symbol_error"), missing: noRising})
	add("NIC-LOSS", fixture{fires: grow("packet_seq_err"), missing: noRising})
	add("NIC-REQERR", fixture{fires: grow("resp_local_length_error"), missing: noRising})
	add("NIC-DRIVER", fixture{
		fires:   func(f *Facts) { *nic(f, 8) = NIC{PCI: "0000:18:00.0", Rail: nic(f, 8).Rail, NUMA: nic(f, 8).NUMA} },
		missing: noNICs,
		also:    []string{"CNI-NIC"},
	})
	add("NIC-NETDEV", fixture{fires: func(f *Facts) { nic(f, 7).Name = "" }, missing: noNICs, also: []string{"CNI-NIC", "DP-IFNAMES"}})
	add("NIC-NAME", fixture{
		fires:   func(f *Facts) { nic(f, 7).Name, nic(f, 7).AltNames = "dev7", []string{"ens8np0"} },
		missing: noNICs,
		also:    []string{"DP-IFNAMES"},
	})
	add("NIC-NUMA", fixture{fires: func(f *Facts) { nic(f, 3).NUMA = nil }, missing: noNICs})
	add("NIC-DISTANCE", fixture{
		fires: func(f *Facts) {
			for i := range f.NICs.List.Value {
				nic(f, i).Distances[gpuPCI(3)] = "SYS"
			}
		},
		missing: func(f *Facts) { away(&f.NICs.GPUs) },
	})
	add("NIC-VFS", fixture{
		fires:   func(f *Facts) { nic(f, 0).VFs.Value.Count = 8 },
		missing: func(f *Facts) { away(&nic(f, 0).VFs) },
	})
	add("NIC-SWITCHDEV", fixture{
		fires: func(f *Facts) { // the guardrails protect such a NIC
			nic(f, 4).VFs.Value = VFs{Count: 2, Mode: "switchdev"}
			nic(f, 4).Protected = "ens5np0 must stay on the host: it has 2 virtual functions"
		},
		missing: func(f *Facts) { away(&nic(f, 3).VFs) },
	})
	add("NIC-PROTECTED", fixture{
		fires:   func(f *Facts) { nic(f, 4).Protected = "it belongs to the bond bond0" },
		missing: func(f *Facts) { away(&f.NICs.Problems) },
	})
	add("RAIL-DUP", fixture{
		fires:   func(f *Facts) { nic(f, 8).Rail = &[]int{7}[0] },
		missing: noNICs,
	})
	add("RAIL-GAP", fixture{
		fires:   func(f *Facts) { nic(f, 8).Rail = &[]int{9}[0] },
		missing: noNICs,
	})
}

func addPorts() {
	add("NIC-PORT", fixture{fires: func(f *Facts) { port(f, 3).State = "DOWN" }, missing: noPorts})
	add("NIC-PHYS", fixture{fires: func(f *Facts) { port(f, 3).PhysState = "Polling" }, missing: noPorts})
	add("NIC-ACTIVEMTU", fixture{fires: func(f *Facts) { port(f, 3).ActiveMTU = 1024 }, missing: noPorts})
	add("NIC-GIDV2", fixture{
		fires:   func(f *Facts) { port(f, 3).GIDs.Value = port(f, 3).GIDs.Value[:1] },
		missing: func(f *Facts) { away(&port(f, 3).GIDs) },
	})
	add("NIC-GIDFULL", fixture{
		fires: func(f *Facts) {
			for i := range 240 {
				port(f, 3).GIDs.Value = append(port(f, 3).GIDs.Value, addressed(10+i, mapped(3, i), "mv0")[1])
			}
		},
		missing: func(f *Facts) { away(&port(f, 3).GIDs) },
	})
	add("IB-SM", fixture{fires: func(f *Facts) { port(f, 8).State = "INIT" }, missing: func(f *Facts) { away(&port(f, 8).SMLID) }})
	add("IB-LID", fixture{fires: func(f *Facts) { port(f, 8).LID.Value = 0 }, missing: func(f *Facts) { away(&port(f, 8).LID) }})
	add("IB-GUID-ZERO", fixture{
		fires:   func(f *Facts) { port(f, 8).GIDs.Value[0].Value = "fe80:0000:0000:0000:0000:0000:0000:0000" },
		missing: func(f *Facts) { away(&port(f, 8).GIDs) },
	})
	add("IB-SM-LENT", fixture{fires: func(f *Facts) { port(f, 8).IsSM.Value = true }, missing: func(f *Facts) { away(&port(f, 8).IsSM) }})
	add("IB-ORPHAN-CHILD", fixture{
		fires:   func(f *Facts) { f.NICs.Others.Value[0].AdminUp = false },
		missing: func(f *Facts) { away(&f.NICs.Others) },
	})
	add("VF-STALE", fixture{
		fires:   func(f *Facts) { function(f, 3).VLAN = "100 qos 5" },
		missing: func(f *Facts) { away(&nic(f, physical).Functions) },
	})
	add("IB-PKEY", fixture{fires: func(f *Facts) { port(f, 8).PKeys.Value = []PKey{{0, "0x7fff"}} }, missing: func(f *Facts) { away(&port(f, 8).PKeys) }})
}

func addNode() {
	add("LEDGER-UNREADABLE", fixture{
		fires: func(f *Facts) {
			f.Ledger.Unreadable.Value = []string{"attachments/0123/net1.json: unexpected end of JSON input"}
		},
		missing: func(f *Facts) { away(&f.Ledger.Unreadable) },
	})
	add("LEDGER-ORPHAN", fixture{fires: func(f *Facts) { attachment(f).Alive = false }, missing: noLedger})
	add("LEDGER-LOST", fixture{fires: func(f *Facts) { attachment(f).InPod = false }, missing: noLedger})
	add("LEDGER-LENDING", fixture{fires: func(f *Facts) { f.Ledger.Attachments.Value[1].Created = f.Taken.Add(-time.Hour) }, missing: noLedger})
	add("LEDGER-CHANGED", fixture{
		fires:   func(f *Facts) { f.Ledger.Changed.Value = []string{"ens1np0: ring rx is 512, and was 1024"} },
		missing: func(f *Facts) { away(&f.Ledger.Changed) },
	})
	add("CNI-BINARY", fixture{fires: func(f *Facts) { f.CNI.Binaries.Value[1] = Binary{"/opt/cni/bin/macvlan", "dddd", "bbbb", "", false} }, missing: noBinaries})
	add("CNI-MIX", fixture{fires: func(f *Facts) { f.CNI.Binaries.Value[1].Version = "v0.9.0" }, missing: noBinaries})
	add("CNI-MULTUS", fixture{
		fires:   func(f *Facts) { f.CNI.Multus.Value = "v3.9.3" },
		missing: func(f *Facts) { away(&f.CNI.Multus) },
	})
	add("CNI-PRIMARY", fixture{
		fires:   func(f *Facts) { f.CNI.Primary.Value = "/etc/cni/net.d/00-calico.conflist" },
		missing: func(f *Facts) { away(&f.CNI.Primary) },
	})
	add("AGENT-DOWN", fixture{
		fires:   func(f *Facts) { f.Agent.Running.Value = false },
		missing: func(f *Facts) { away(&f.Agent.Running) },
	})
	add("AGENT-VERSION", fixture{
		fires:   func(f *Facts) { f.Agent.Version.Value = "v0.9.0" },
		missing: func(f *Facts) { away(&f.Agent.Version) },
	})
	add("AGENT-RETURN", fixture{
		fires:   func(f *Facts) { f.Agent.NotReturned.Value = 1 },
		missing: func(f *Facts) { away(&f.Agent.NotReturned) },
	})
	add("IPAM-CRED", fixture{
		fires:   func(f *Facts) { f.Agent.Kubeconfig.Value.Refused = "the API server refuses its credentials" },
		missing: func(f *Facts) { away(&f.Agent.Kubeconfig) },
	})
	add("DP-SELECT", fixture{
		fires: func(f *Facts) {
			f.NICs.Problems.Value = []string{`rails: rail 3 ({name: "ens4"}) is not a NIC of this node`}
		},
		missing: func(f *Facts) { away(&f.NICs.Problems) },
	})
	noPools := func(f *Facts) { away(&f.Kubelet.Pools) }
	add("DP-DUP", fixture{
		fires: func(f *Facts) {
			f.Kubelet.Foreign.Value = []string{"socket /var/lib/kubelet/device-plugins/hca_gpu.sock"}
		},
		missing: noPools,
	})
	add("DP-COUNT", fixture{
		fires:   func(f *Facts) { f.Kubelet.Capacity.Value["rdma/hca_gpu"] = 0 },
		missing: func(f *Facts) { away(&f.Kubelet.Capacity) },
	})
	add("DP-HCAMAX", fixture{
		fires: func(f *Facts) {
			f.Kubelet.Pools.Value[0].Count, f.Kubelet.Capacity.Value["rdma/hca_gpu"] = 200, 200
		},
		missing: noPools,
	})
	add("K8S-NFD", fixture{
		fires:   func(f *Facts) { delete(f.Kubelet.Labels.Value, "feature.node.kubernetes.io/pci-15b3.present") },
		missing: func(f *Facts) { away(&f.Kubelet.Labels) },
	})
}
