package host

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

// Rules returns the rules of this package, in the order of reports.
func Rules() []rule.Rule { return hostRules }

var hostRules = []rule.Rule{
	{
		ID: "HOST-KERNEL", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "The kernel is Linux 5.10 or newer.",
		Consequence: "rail-cni is not tested on this kernel. If the kernel lacks a feature that a plugin needs, the plugin refuses to run.",
		Cure:        "Boot Linux 5.10 or newer. docs/reference/kernels.md lists what each kernel offers.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Host == nil {
				return
			}
			release, ok := rule.Read(r, "kernel", f.Host.Kernel)
			if !ok {
				return
			}
			r.Judged()
			if major, minor, ok := subject.MajorMinor(release); ok && (major < 5 || major == 5 && minor < 10) {
				r.Find("", "the kernel is %s", release)
			}
		},
	},
	{
		ID: "HOST-MODULES", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "On a node with NICs that support RDMA, the kernel's RDMA modules are loaded: ib_core, ib_uverbs, rdma_cm, rdma_ucm.",
		Consequence: "Programs in pods find no RDMA device, and NCCL falls back to TCP.",
		Cure:        "Load the modules now, and list them in /etc/modules-load.d so that they are also loaded at boot. Or install the vendor's driver package.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Host == nil {
				return
			}
			loaded, ok := rule.Read(r, "modules", f.Host.Modules)
			if !canRDMA(f, r) {
				return
			}
			for _, name := range []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"} {
				r.Judged()
				if ok && !slices.Contains(loaded, name) {
					r.Find("", "the module %s is not loaded", name).Part(name).Fix("modprobe %s", name)
				}
			}
		},
	},
	{
		ID: "HOST-RDMADRIVER", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each rail's NIC has its RDMA device, or the module that makes the RDMA device is loaded. For example, the module for mlx5_core is mlx5_ib.",
		Consequence: "The NIC has a network interface, but no RDMA device. Programs in pods with this NIC fall back to TCP, and an ADD with \"rdma\": \"required\" fails.",
		Cure:        "Load the module now, and list it in /etc/modules-load.d so that it is also loaded at boot.",
		Check:       checkRDMADriver,
	},
	{
		ID: "HOST-OFED", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "All loaded RDMA modules come from one source: either the kernel or the vendor's driver package (MLNX_OFED, DOCA).",
		Consequence: "Modules from two sources have different interfaces inside the kernel. Symbols do not match, features are missing, and errors are hard to explain.",
		Cure:        "Reinstall the driver package for the running kernel, or remove the package. Then reboot, so that all modules are loaded from one source.",
		Check:       checkOrigins,
	},
	{
		ID: "HOST-UMAD", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "If the node has an InfiniBand port, the module ib_umad is loaded.",
		Consequence: "Tools that talk to the fabric (ibstat, ibdiagnet, a subnet manager on this node) do not work.",
		Cure:        "Load the module ib_umad now, and list it in /etc/modules-load.d so that it is also loaded at boot.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Host == nil || f.NICs == nil {
				return
			}
			loaded, ok := rule.Read(r, "modules", f.Host.Modules)
			infiniband := ""
			subject.EachPort(f, r, func(_ *fact.NIC, p *fact.Port) {
				if p.LinkLayer == fact.InfiniBand {
					infiniband = p.Device
				}
			})
			if infiniband == "" {
				return
			}
			r.Judged()
			if ok && !slices.Contains(loaded, "ib_umad") {
				r.Find("", "%s is InfiniBand, but the module ib_umad is not loaded", infiniband).Fix("modprobe ib_umad")
			}
		},
	},
	{
		ID: "HOST-RDMAMODE", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "If a shared device plugin of another project serves the node, the RDMA mode is not exclusive.",
		Consequence: "k8s-rdma-shared-dev-plugin exits in exclusive mode, so the node offers no RDMA resources.",
		Cure:        "Set the mode to shared. Or remove the other plugin, and let rail-agent serve the resources (docs/guide/devices.md).",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Host == nil || f.Kubelet == nil {
				return
			}
			mode, _ := rule.Read(r, "rdmaMode", f.Host.RDMAMode)
			foreign, _ := rule.Read(r, "foreign device plugins", f.Kubelet.Foreign)
			if len(foreign) > 0 {
				r.Judged()
			}
			if mode == "exclusive" && len(foreign) > 0 {
				r.Find("", "the RDMA mode is exclusive, and another device plugin serves RDMA NICs: %s", foreign[0]).Fix("railctl rdma mode shared")
			}
		},
	},
	{
		ID: "HOST-CHARDEV", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "/dev/infiniband contains rdma_cm and one char device for each verbs device of the kernel.",
		Consequence: "Device plugins cannot give the missing device to containers. Programs find no RDMA device, or the pod does not start.",
		Cure:        "Check that /dev is a devtmpfs, because there the kernel makes these files, and that nothing is mounted over /dev/infiniband. Or make the missing file with mknod. If rdma_cm is missing, load the module rdma_ucm first.",
		Check:       checkCharDevices,
	},
	{
		ID: "HOST-PEERMEM", Scope: rule.NodeScope, Severity: rule.Fail, Slow: true,
		Expects:     "A node with NVIDIA's GPUs supports GPUDirect RDMA in one of two ways: with the module nvidia_peermem, or with dma-buf in the kernel together with the open GPU driver.",
		Consequence: "GPUDirect RDMA does not work. Each message is copied through host memory, which reaches only a fraction of the bandwidth.",
		Cure:        "Load nvidia_peermem now, and list it in /etc/modules-load.d so that it is also loaded at boot. Or install the open GPU driver on a kernel with dma-buf (5.12 or newer).",
		Check:       checkPeerMemory,
	},
	{
		ID: "HOST-MEMLOCK", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "On a node with NICs that support RDMA, containers may lock enough memory. Either the container runtime has LimitMEMLOCK=infinity (or at least 8 GiB), or rail-agent sets the limit by NRI.",
		Consequence: "Programs cannot register memory (ibv_reg_mr: cannot allocate memory), so NCCL ends or falls back to TCP. Only containers that run as root with the capability IPC_LOCK are not affected.",
		Cure:        "Add a drop-in with LimitMEMLOCK=infinity to the systemd unit of the container runtime, and restart the runtime (for docker: default-ulimits in daemon.json). Or let rail-agent set the limit by NRI (publish.memlock in the node file). The kubelet's own limit does not matter, because containers do not inherit it.",
		Check:       checkRuntimeMemlock,
	},
	{
		ID: "HOST-LIMITSCONF", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No line of /etc/security/limits.conf or limits.d limits locked memory to less than 8 GiB.",
		Consequence: "Programs that are started from a login (MPI by SSH, tests by hand) cannot register memory, although programs in pods can.",
		Cure:        "Replace the line with the two lines \"* soft memlock unlimited\" and \"* hard memlock unlimited\". Then log in again.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Host == nil {
				return
			}
			lines, _ := rule.Read(r, "limits.conf", f.Host.LimitsConf)
			r.Judged() // The host is judged even if there is no line, because then nothing limits locked memory.
			for _, line := range lines {
				fields := strings.Fields(line)
				i := slices.Index(fields, "memlock")
				if i < 0 || i+1 >= len(fields) {
					continue
				}
				if kib, err := strconv.ParseInt(fields[i+1], 10, 64); err == nil && kib >= 0 && kib < subject.EnoughMemlock>>10 {
					r.Find("", "a line limits locked memory to %d KiB: %q", kib, line).Part(line)
				}
			}
		},
	},
	{
		ID: "HOST-SWAP", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No swap area is active.",
		Consequence: "The kernel cannot swap registered memory, so it swaps other memory of RDMA programs. Their steps then take varying times. The kubelet does not start with swap, except if its configuration allows swap.",
		Cure:        "Switch swap off, and remove the swap areas from /etc/fstab.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Host == nil {
				return
			}
			r.Judged()
			if areas, _ := rule.Read(r, "swaps", f.Host.Swaps); len(areas) > 0 {
				r.Find("", "swap is active: %s", strings.Join(areas, ", ")).Fix("swapoff -a")
			}
		},
	},
	{
		ID: "HOST-NM", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No network manager configures a rail's NIC.",
		Consequence: "While a pod gets or returns the NIC, the network manager may run DHCP on the rail, set the link up or down, or remove addresses. systemd-networkd also removes the policy rules of other programs each time the NIC returns.",
		Cure:        "Tell the network manager not to manage the rails. For NetworkManager, use unmanaged-devices. For systemd-networkd, use a .network file with Unmanaged=yes, or at least ManageForeignRoutingPolicyRules=no in networkd.conf. In some clouds (OCI) NetworkManager sets the rails' addresses on the host. There, first configure these addresses in another way, or ignore this rule (--ignore HOST-NM).",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachRail(f, r, func(n *fact.NIC) {
				r.Judged()
				if manager, _ := rule.Read(r, n.Label()+" managedBy", n.ManagedBy); manager != "" {
					found := r.Find(n.Object(), "%s manages it", manager)
					if manager == "NetworkManager" && rule.Plain(n.Name) && n.Children == 0 && n.Addresses.OK() && !slices.ContainsFunc(n.Addresses.Value, isGlobal) {
						found.Fix("nmcli device set %s managed no", n.Name)
					}
				}
			})
		},
	},
	{
		ID: "HOST-IOMMU", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "On a physical machine with GPUs, the IOMMU does not translate the addresses of the rails' NICs.",
		Consequence: "Traffic between GPU and NIC goes through the root complex, which translates the addresses. This costs bandwidth and latency.",
		Cure:        "Boot with the kernel parameter iommu=pt (with Intel CPUs also intel_iommu=on), or switch the IOMMU off in the firmware setup.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachNICBesideGPUs(f, r, func(n *fact.NIC) {
				r.Judged()
				if kind, _ := rule.Read(r, n.Label()+" iommu", n.IOMMU); strings.HasPrefix(kind, "DMA") {
					r.Find(n.Object(), "its IOMMU group has the type %s", kind)
				}
			})
		},
	},
	{
		ID: "HOST-ACS", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "On a physical machine with GPUs, no PCI bridge above a rail's NIC redirects traffic between devices (ACS).",
		Consequence: "Traffic between GPU and NIC goes up to the root complex and back, which leaves about half of the bandwidth.",
		Cure:        "Switch ACS off in the firmware setup, or clear it in each bridge at boot (setpci -s BRIDGE ECAP_ACS+6.w=0000).",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachNICBesideGPUs(f, r, func(n *fact.NIC) {
				r.Judged()
				if bridges, _ := rule.Read(r, n.Label()+" redirecting", n.Redirecting); len(bridges) > 0 {
					r.Find(n.Object(), "bridges above it redirect requests: %s", strings.Join(bridges, ", "))
				}
			})
		},
	},
	{
		ID: "HOST-RPFILTER", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "On a node with several rails, reverse path filtering is not strict: rp_filter is not 1 in \"all\" and \"default\". New network namespaces inherit these values.",
		Consequence: "If a packet or an ARP request arrives on one rail, but the route to its source uses another rail, the kernel drops it. So connections over some rails fail.",
		Cure:        "Set net.ipv4.conf.all.rp_filter to 2 (loose) now and in /etc/sysctl.d. Or write \"arp\": \"own\" into the networks, which sets rp_filter only for the pods' interfaces.",
		Check:       checkRPFilter,
	},
	{
		ID: "HOST-KMSG", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "The kernel log of the last day reports no fault of a NIC.",
		Consequence: "The NIC, its slot, its transceiver or its firmware had a fault. Such a fault often occurs again under load.",
		Cure:        "Search the vendor's documentation for the log line. Check the transceiver, the slot's power and the firmware.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Host == nil {
				return
			}
			lines, _ := rule.Read(r, "kernelLog", f.Host.KernelLog)
			subject.EachRail(f, r, func(*fact.NIC) { r.Judged() })
			for _, line := range lines {
				if t := troubleOf(line); t != nil && t.concernsRail(f, r, line) {
					r.Find("", "%s: %q", t.meaning, line).Part(t.meaning + " " + nicIn(f, line))
				}
			}
		},
	},
}

// isGlobal reports whether an address is not link-local. The address must have a prefix length.
func isGlobal(address string) bool {
	p, err := netip.ParsePrefix(address)
	return err != nil || !p.Addr().IsLinkLocalUnicast()
}

// rdmaDrivers are the modules that make the RDMA devices of NICs, by the driver of the NIC.
var rdmaDrivers = map[string]string{
	"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "mlx4_en": "mlx4_ib", "bnxt_en": "bnxt_re", "ice": "irdma", "ionic": "ionic_rdma", "hns3": "hns_roce_hw_v2",
}

// canRDMA reports whether the node has a NIC that is meant for RDMA. Such a NIC has an RDMA device,
// or is one of NVIDIA's, or is a rail whose driver has a module for RDMA. An uplink of another
// vendor does not count, because nobody needs RDMA on it. Without facts about NICs, canRDMA returns
// true. If the facts could not be read, it notes that in r.
func canRDMA(f *fact.Facts, r *rule.Report) bool {
	if f.NICs == nil {
		return true
	}
	found := false
	subject.EachNIC(f, r, func(n *fact.NIC) {
		ofPods := n.Rail != nil || n.Holder != ""
		found = found || ofPods && rdmaDrivers[n.Driver] != "" || n.IsMellanox() || len(n.CharDevices) > 0
	})
	if found {
		return true // it does not matter what is unknown about other NICs
	}
	subject.EachNIC(f, r, func(n *fact.NIC) {
		ports, _ := rule.Read(r, n.Label()+" ports", n.Ports)
		found = found || len(ports) > 0
	})
	return found
}

func checkRDMADriver(f *fact.Facts, r *rule.Report) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	loaded, ok := rule.Read(r, "modules", f.Host.Modules)
	missing := map[string][]string{}
	subject.EachRail(f, r, func(n *fact.NIC) {
		module := rdmaDrivers[n.Driver]
		if module != "" {
			r.Judged()
		}
		if !ok || module == "" || slices.Contains(loaded, module) || len(n.CharDevices) > 0 || n.Name == "" {
			return // NIC-NETDEV judges a NIC without an interface
		}
		// A NIC that has its RDMA device does not need the module.
		if ports, known := rule.Read(r, n.Label()+" ports", n.Ports); known && len(ports) == 0 {
			missing[module] = append(missing[module], n.Label())
		}
	})
	for _, module := range slices.Sorted(maps.Keys(missing)) {
		r.Find("", "the module %s, which makes the RDMA devices of %s, is not loaded", module, strings.Join(missing[module], ", ")).Part(module).Fix("modprobe %s", module)
	}
}

func checkOrigins(f *fact.Facts, r *rule.Report) {
	if f.Host == nil {
		return
	}
	version, _ := rule.Read(r, "mofed", f.Host.MOFED)
	origins, _ := rule.Read(r, "origins", f.Host.Origins)
	byOrigin := map[string][]string{}
	for _, module := range slices.Sorted(maps.Keys(origins)) {
		if module == "rdma_rxe" || module == "siw" {
			continue // These are RDMA in software, which no rail uses. Some people build them because their kernel lacks them.
		}
		r.Judged()
		byOrigin[origins[module]] = append(byOrigin[origins[module]], module)
	}
	kernel, vendor := byOrigin[fact.OriginKernel], byOrigin[fact.OriginPackage]
	switch {
	case len(kernel) > 0 && len(vendor) > 0:
		r.Find("", "from the kernel: %s; from a driver package: %s", strings.Join(kernel, ", "), strings.Join(vendor, ", "))
	case len(kernel) > 0 && version != "":
		r.Find("", "the driver package %s is installed, but all loaded RDMA modules are the kernel's", version)
	}
}

func checkCharDevices(f *fact.Facts, r *rule.Report) {
	if f.Host == nil {
		return
	}
	devices, haveDevices := rule.Read(r, "charDevices", f.Host.CharDevices)
	uverbs, haveUverbs := rule.Read(r, "uverbs", f.Host.Uverbs)
	if !haveDevices || !haveUverbs {
		return
	}
	has := map[string]bool{}
	for _, d := range devices {
		has[d] = true
	}
	missing := func(name, class string) {
		path := "/dev/infiniband/" + name
		if has[path] {
			return
		}
		found := r.Find("", "there is no %s", path).Part(path)
		if rule.Plain(name) {
			found.Fix("mknod -m 666 %s c $(tr : ' ' < /sys/class/%s/%s/dev)", path, class, name)
		}
	}
	for _, name := range uverbs {
		r.Judged()
		missing(name, "infiniband_verbs")
	}
	if len(uverbs) > 0 {
		missing("rdma_cm", "misc")
	}
}

func checkPeerMemory(f *fact.Facts, r *rule.Report) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	gpus, _ := rule.Read(r, "gpus", f.NICs.GPUs)
	loaded, haveModules := rule.Read(r, "modules", f.Host.Modules)
	nvidia := slices.ContainsFunc(gpus, func(g fact.GPU) bool { return g.Vendor == fact.VendorNVIDIA })
	if !nvidia || !haveModules || !slices.Contains(loaded, "nvidia") { // the GPUs have another driver, or belong to a virtual machine
		return
	}
	r.Judged()
	dmabuf, haveDMABuf := rule.Read(r, "dmabuf", f.Host.DMABuf)
	open, haveOpen := rule.Read(r, "nvidiaOpen", f.Host.NVIDIAOpen)
	if slices.Contains(loaded, "nvidia_peermem") || slices.Contains(loaded, "nv_peer_mem") || !haveDMABuf || !haveOpen || dmabuf && open {
		return
	}
	why := "the kernel has no dma-buf for RDMA"
	if dmabuf {
		why = "the GPU driver is not the open one, which dma-buf needs"
	}
	r.Find("", "nvidia_peermem is not loaded, and %s", why).Fix("modprobe nvidia-peermem")
}

func checkRuntimeMemlock(f *fact.Facts, r *rule.Report) {
	if f.Host == nil {
		return
	}
	daemons, _ := rule.Read(r, "memlock", f.Host.Memlock)
	if !canRDMA(f, r) {
		return
	}
	for i := range daemons {
		d := &daemons[i]
		if d.Process == "kubelet" {
			continue
		}
		r.Judged()
		if subject.LocksEnough(d) {
			continue
		}
		if f.Agent != nil && !f.Agent.Absent() {
			connected, ok := rule.Read(r, "nri", f.Agent.NRI)
			publishes, also := rule.Read(r, "agent memlock", f.Agent.Memlock)
			if !ok || connected && (!also || publishes) {
				continue // pods do not get the runtime's limit, or it is not known whether they do
			}
		}
		r.Find("process "+d.Process, "its limit of locked memory is %s (pid %d)", subject.SizeText(d.Soft), d.PID)
	}
}

// eachNICBesideGPUs calls do for each rail's NIC, if the node is a physical machine with GPUs.
func eachNICBesideGPUs(f *fact.Facts, r *rule.Report, do func(*fact.NIC)) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	virtual, ok := rule.Read(r, "hypervisor", f.Host.Hypervisor)
	gpus, _ := rule.Read(r, "gpus", f.NICs.GPUs)
	if !ok || virtual || len(gpus) == 0 {
		return
	}
	subject.EachRail(f, r, func(n *fact.NIC) {
		if n.PCI != "" {
			do(n)
		}
	})
}

func checkRPFilter(f *fact.Facts, r *rule.Report) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	values, ok := rule.Read(r, "sysctls", f.Host.Sysctls)
	rails := 0
	subject.EachRail(f, r, func(*fact.NIC) { rails++ })
	if !ok || rails < 2 {
		return
	}
	r.Judged()
	all, def := values[sysctlAll], values[sysctlDefault]
	if all == "" || def == "" {
		r.Lacks("sysctls", "without rp_filter")
		return
	}
	// The kernel uses the larger of an interface's value and that of "all".
	if max(all, def) == "1" {
		r.Find("", "rp_filter is %s in all and %s in default, and the node has %d rails", all, def, rails).Fix("sysctl -w net.ipv4.conf.all.rp_filter=2")
	}
}

const (
	sysctlAll     = "net/ipv4/conf/all/rp_filter"
	sysctlDefault = "net/ipv4/conf/default/rp_filter"
)

// WantedSysctls returns the paths below /proc/sys that rules read from [fact.Host.Sysctls].
func WantedSysctls() []string { return []string{sysctlAll, sysctlDefault} }
