package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

var hostRules = []Rule{
	{
		ID: "HOST-KERNEL", Scope: NodeScope, Severity: Warn,
		Expects:     "The kernel is Linux 5.10 or newer.",
		Consequence: "rail-cni is not tested on this kernel. If the kernel lacks a feature that a plugin needs, the plugin refuses to run.",
		Cure:        "Boot Linux 5.10 or newer. docs/reference/kernels.md lists what each kernel offers.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil {
				return
			}
			release, ok := Read(r, "kernel", f.Host.Kernel)
			if !ok {
				return
			}
			r.judged()
			if major, minor, ok := kernelVersion(release); ok && (major < 5 || major == 5 && minor < 10) {
				r.Find("", "the kernel is %s", release)
			}
		},
	},
	{
		ID: "HOST-MODULES", Scope: NodeScope, Severity: Fail,
		Expects:     "On a node with NICs that support RDMA, the kernel's RDMA modules are loaded: ib_core, ib_uverbs, rdma_cm, rdma_ucm.",
		Consequence: "Programs in pods find no RDMA device, and NCCL falls back to TCP.",
		Cure:        "Load the modules now, and list them in /etc/modules-load.d so that they are also loaded at boot. Or install the vendor's driver package.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil {
				return
			}
			loaded, ok := Read(r, "modules", f.Host.Modules)
			if !canRDMA(f, r) {
				return
			}
			for _, name := range []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"} {
				r.judged()
				if ok && !slices.Contains(loaded, name) {
					r.Find("", "the module %s is not loaded", name).Part(name).Fix("modprobe %s", name)
				}
			}
		},
	},
	{
		ID: "HOST-RDMADRIVER", Scope: NodeScope, Severity: Fail,
		Expects:     "Each rail's NIC has its RDMA device, or the module that makes the RDMA device is loaded. For example, the module for mlx5_core is mlx5_ib.",
		Consequence: "The NIC has a network interface, but no RDMA device. Programs in pods with this NIC fall back to TCP, and an ADD with \"rdma\": \"required\" fails.",
		Cure:        "Load the module now, and list it in /etc/modules-load.d so that it is also loaded at boot.",
		Check:       checkRDMADriver,
	},
	{
		ID: "HOST-OFED", Scope: NodeScope, Severity: Warn,
		Expects:     "All loaded RDMA modules come from one source: either the kernel or the vendor's driver package (MLNX_OFED, DOCA).",
		Consequence: "Modules from two sources have different interfaces inside the kernel. Symbols do not match, features are missing, and errors are hard to explain.",
		Cure:        "Reinstall the driver package for the running kernel, or remove the package. Then reboot, so that all modules are loaded from one source.",
		Check:       checkOrigins,
	},
	{
		ID: "HOST-UMAD", Scope: NodeScope, Severity: Warn,
		Expects:     "If the node has an InfiniBand port, the module ib_umad is loaded.",
		Consequence: "Tools that talk to the fabric (ibstat, ibdiagnet, a subnet manager on this node) do not work.",
		Cure:        "Load the module ib_umad now, and list it in /etc/modules-load.d so that it is also loaded at boot.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil || f.NICs == nil {
				return
			}
			loaded, ok := Read(r, "modules", f.Host.Modules)
			infiniband := ""
			eachPort(f, r, func(_ *NIC, p *Port) {
				if p.LinkLayer == InfiniBand {
					infiniband = p.Device
				}
			})
			if infiniband == "" {
				return
			}
			r.judged()
			if ok && !slices.Contains(loaded, "ib_umad") {
				r.Find("", "%s is InfiniBand, but the module ib_umad is not loaded", infiniband).Fix("modprobe ib_umad")
			}
		},
	},
	{
		ID: "HOST-RDMAMODE", Scope: NodeScope, Severity: Fail,
		Expects:     "If a shared device plugin of another project serves the node, the RDMA mode is not exclusive.",
		Consequence: "k8s-rdma-shared-dev-plugin exits in exclusive mode, so the node offers no RDMA resources.",
		Cure:        "Set the mode to shared. Or remove the other plugin, and let rail-agent serve the resources (docs/guide/devices.md).",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil || f.Kubelet == nil {
				return
			}
			mode, _ := Read(r, "rdmaMode", f.Host.RDMAMode)
			foreign, _ := Read(r, "foreign device plugins", f.Kubelet.Foreign)
			if len(foreign) > 0 {
				r.judged()
			}
			if mode == "exclusive" && len(foreign) > 0 {
				r.Find("", "the RDMA mode is exclusive, and another device plugin serves RDMA NICs: %s", foreign[0]).Fix("railctl rdma mode shared")
			}
		},
	},
	{
		ID: "HOST-CHARDEV", Scope: NodeScope, Severity: Fail,
		Expects:     "/dev/infiniband contains rdma_cm and one char device for each verbs device of the kernel.",
		Consequence: "Device plugins cannot give the missing device to containers. Programs find no RDMA device, or the pod does not start.",
		Cure:        "Check that /dev is a devtmpfs, because there the kernel makes these files, and that nothing is mounted over /dev/infiniband. Or make the missing file with mknod. If rdma_cm is missing, load the module rdma_ucm first.",
		Check:       checkCharDevices,
	},
	{
		ID: "HOST-PEERMEM", Scope: NodeScope, Severity: Fail, Slow: true,
		Expects:     "A node with NVIDIA's GPUs supports GPUDirect RDMA in one of two ways: with the module nvidia_peermem, or with dma-buf in the kernel together with the open GPU driver.",
		Consequence: "GPUDirect RDMA does not work. Each message is copied through host memory, which reaches only a fraction of the bandwidth.",
		Cure:        "Load nvidia_peermem now, and list it in /etc/modules-load.d so that it is also loaded at boot. Or install the open GPU driver on a kernel with dma-buf (5.12 or newer).",
		Check:       checkPeerMemory,
	},
	{
		ID: "HOST-MEMLOCK", Scope: NodeScope, Severity: Warn,
		Expects:     "On a node with NICs that support RDMA, containers may lock enough memory. Either the container runtime has LimitMEMLOCK=infinity (or at least 8 GiB), or rail-agent sets the limit by NRI.",
		Consequence: "Programs cannot register memory (ibv_reg_mr: cannot allocate memory), so NCCL ends or falls back to TCP. Only containers that run as root with the capability IPC_LOCK are not affected.",
		Cure:        "Add a drop-in with LimitMEMLOCK=infinity to the systemd unit of the container runtime, and restart the runtime (for docker: default-ulimits in daemon.json). Or let rail-agent set the limit by NRI (publish.memlock in the node file). The kubelet's own limit does not matter, because containers do not inherit it.",
		Check:       checkRuntimeMemlock,
	},
	{
		ID: "HOST-LIMITSCONF", Scope: NodeScope, Severity: Warn,
		Expects:     "No line of /etc/security/limits.conf or limits.d limits locked memory to less than 8 GiB.",
		Consequence: "Programs that are started from a login (MPI by SSH, tests by hand) cannot register memory, although programs in pods can.",
		Cure:        "Replace the line with the two lines \"* soft memlock unlimited\" and \"* hard memlock unlimited\". Then log in again.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil {
				return
			}
			lines, _ := Read(r, "limits.conf", f.Host.LimitsConf)
			r.judged() // The host is judged even if there is no line, because then nothing limits locked memory.
			for _, line := range lines {
				fields := strings.Fields(line)
				i := slices.Index(fields, "memlock")
				if i < 0 || i+1 >= len(fields) {
					continue
				}
				if kib, err := strconv.ParseInt(fields[i+1], 10, 64); err == nil && kib >= 0 && kib < enoughMemlock>>10 {
					r.Find("", "a line limits locked memory to %d KiB: %q", kib, line).Part(line)
				}
			}
		},
	},
	{
		ID: "HOST-SWAP", Scope: NodeScope, Severity: Warn,
		Expects:     "No swap area is active.",
		Consequence: "The kernel cannot swap registered memory, so it swaps other memory of RDMA programs. Their steps then take varying times. The kubelet does not start with swap, except if its configuration allows swap.",
		Cure:        "Switch swap off, and remove the swap areas from /etc/fstab.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil {
				return
			}
			r.judged()
			if areas, _ := Read(r, "swaps", f.Host.Swaps); len(areas) > 0 {
				r.Find("", "swap is active: %s", strings.Join(areas, ", ")).Fix("swapoff -a")
			}
		},
	},
	{
		ID: "HOST-NM", Scope: NodeScope, Severity: Warn,
		Expects:     "No network manager configures a rail's NIC.",
		Consequence: "While a pod gets or returns the NIC, the network manager may run DHCP on the rail, set the link up or down, or remove addresses. systemd-networkd also removes the policy rules of other programs each time the NIC returns.",
		Cure:        "Tell the network manager not to manage the rails. For NetworkManager, use unmanaged-devices. For systemd-networkd, use a .network file with Unmanaged=yes, or at least ManageForeignRoutingPolicyRules=no in networkd.conf. In some clouds (OCI) NetworkManager sets the rails' addresses on the host. There, first configure these addresses in another way, or ignore this rule (--ignore HOST-NM).",
		Check: func(f *Facts, r *Report) {
			eachRail(f, r, func(n *NIC) {
				r.judged()
				if by, _ := Read(r, n.label()+" managedBy", n.ManagedBy); by != "" {
					found := r.Find(n.Object(), "%s manages it", by)
					if by == "NetworkManager" && plain(n.Name) && n.Children == 0 && n.Addresses.OK() && !slices.ContainsFunc(n.Addresses.Value, isGlobal) {
						found.Fix("nmcli device set %s managed no", n.Name)
					}
				}
			})
		},
	},
	{
		ID: "HOST-IOMMU", Scope: NodeScope, Severity: Warn,
		Expects:     "On a physical machine with GPUs, the IOMMU does not translate the addresses of the rails' NICs.",
		Consequence: "Traffic between GPU and NIC goes through the root complex, which translates the addresses. This costs bandwidth and latency.",
		Cure:        "Boot with the kernel parameter iommu=pt (with Intel CPUs also intel_iommu=on), or switch the IOMMU off in the firmware setup.",
		Check: func(f *Facts, r *Report) {
			eachNICBesideGPUs(f, r, func(n *NIC) {
				r.judged()
				if kind, _ := Read(r, n.label()+" iommu", n.IOMMU); strings.HasPrefix(kind, "DMA") {
					r.Find(n.Object(), "its IOMMU group has the type %s", kind)
				}
			})
		},
	},
	{
		ID: "HOST-ACS", Scope: NodeScope, Severity: Warn,
		Expects:     "On a physical machine with GPUs, no PCI bridge above a rail's NIC redirects traffic between devices (ACS).",
		Consequence: "Traffic between GPU and NIC goes up to the root complex and back, which leaves about half of the bandwidth.",
		Cure:        "Switch ACS off in the firmware setup, or clear it in each bridge at boot (setpci -s BRIDGE ECAP_ACS+6.w=0000).",
		Check: func(f *Facts, r *Report) {
			eachNICBesideGPUs(f, r, func(n *NIC) {
				r.judged()
				if bridges, _ := Read(r, n.label()+" redirecting", n.Redirecting); len(bridges) > 0 {
					r.Find(n.Object(), "bridges above it redirect requests: %s", strings.Join(bridges, ", "))
				}
			})
		},
	},
	{
		ID: "HOST-RPFILTER", Scope: NodeScope, Severity: Warn,
		Expects:     "On a node with several rails, reverse path filtering is not strict: rp_filter is not 1 in \"all\" and \"default\". New network namespaces inherit these values.",
		Consequence: "If a packet or an ARP request arrives on one rail, but the route to its source uses another rail, the kernel drops it. So connections over some rails fail.",
		Cure:        "Set net.ipv4.conf.all.rp_filter to 2 (loose) now and in /etc/sysctl.d. Or write \"arp\": \"own\" into the networks, which sets rp_filter only for the pods' interfaces.",
		Check:       checkRPFilter,
	},
	{
		ID: "HOST-KMSG", Scope: NodeScope, Severity: Warn,
		Expects:     "The kernel log of the last day reports no fault of a NIC.",
		Consequence: "The NIC, its slot, its transceiver or its firmware had a fault. Such a fault often occurs again under load.",
		Cure:        "Search the vendor's documentation for the log line. Check the transceiver, the slot's power and the firmware.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil {
				return
			}
			lines, _ := Read(r, "kernelLog", f.Host.KernelLog)
			eachRail(f, r, func(*NIC) { r.judged() })
			for _, line := range lines {
				if t := troubleOf(line); t != nil && t.concernsRail(f, r, line) {
					r.Find("", "%s: %q", t.meaning, line).Part(t.meaning + " " + f.nicIn(line))
				}
			}
		},
	},
}

// enoughMemlock is the smallest limit of locked memory, in bytes, that is enough for RDMA programs.
// With a smaller limit they are known to fail: NCCL with eight rails registers several gigabytes.
const enoughMemlock int64 = 8 << 30

// enough reports whether programs with this limit can register enough memory.
func (m *Memlock) enough() bool { return m.Soft == Unlimited || m.Soft >= enoughMemlock }

// size returns a limit as a text for people, for example "64 KiB".
func size(limit int64) string {
	switch {
	case limit == Unlimited:
		return "unlimited"
	case limit >= 1<<30 && limit%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", limit>>30)
	case limit >= 1<<20 && limit%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", limit>>20)
	case limit >= 1<<10 && limit%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", limit>>10)
	}
	return fmt.Sprintf("%d bytes", limit)
}

// plain reports whether a name can stand in a shell command without quotes. The facts may come from
// a stranger, and people paste the commands of a report into a shell.
func plain(name string) bool {
	return name != "" && name[0] != '-' && strings.IndexFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-:@/", c)
	}) < 0
}

// isGlobal reports whether an address is not link-local. The address must have a prefix length.
func isGlobal(address string) bool {
	p, err := netip.ParsePrefix(address)
	return err != nil || !p.Addr().IsLinkLocalUnicast()
}

// kernelVersion returns the first two numbers of a release such as "6.1.0-18-amd64".
func kernelVersion(release string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, n == 2
}

// rdmaDrivers are the modules that make the RDMA devices of NICs, by the driver of the NIC.
var rdmaDrivers = map[string]string{
	"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "mlx4_en": "mlx4_ib", "bnxt_en": "bnxt_re", "ice": "irdma", "ionic": "ionic_rdma", "hns3": "hns_roce_hw_v2",
}

// canRDMA reports whether the node has a NIC that is meant for RDMA. Such a NIC has an RDMA device,
// or is one of NVIDIA's, or is a rail whose driver has a module for RDMA. An uplink of another
// vendor does not count, because nobody needs RDMA on it. Without facts about NICs, canRDMA returns
// true. If the facts could not be read, it notes that in r.
func canRDMA(f *Facts, r *Report) bool {
	if f.NICs == nil {
		return true
	}
	found := false
	eachNIC(f, r, func(n *NIC) {
		ofPods := n.Rail != nil || n.Holder != ""
		found = found || ofPods && rdmaDrivers[n.Driver] != "" || n.isMellanox() || len(n.CharDevices) > 0
	})
	if found {
		return true // it does not matter what is unknown about other NICs
	}
	eachNIC(f, r, func(n *NIC) {
		ports, _ := Read(r, n.label()+" ports", n.Ports)
		found = found || len(ports) > 0
	})
	return found
}

func checkRDMADriver(f *Facts, r *Report) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	loaded, ok := Read(r, "modules", f.Host.Modules)
	missing := map[string][]string{}
	eachRail(f, r, func(n *NIC) {
		module := rdmaDrivers[n.Driver]
		if module != "" {
			r.judged()
		}
		if !ok || module == "" || slices.Contains(loaded, module) || len(n.CharDevices) > 0 || n.Name == "" {
			return // NIC-NETDEV judges a NIC without an interface
		}
		// A NIC that has its RDMA device does not need the module.
		if ports, known := Read(r, n.label()+" ports", n.Ports); known && len(ports) == 0 {
			missing[module] = append(missing[module], n.label())
		}
	})
	for _, module := range slices.Sorted(maps.Keys(missing)) {
		r.Find("", "the module %s, which makes the RDMA devices of %s, is not loaded", module, strings.Join(missing[module], ", ")).Part(module).Fix("modprobe %s", module)
	}
}

func checkOrigins(f *Facts, r *Report) {
	if f.Host == nil {
		return
	}
	version, _ := Read(r, "mofed", f.Host.MOFED)
	origins, _ := Read(r, "origins", f.Host.Origins)
	by := map[string][]string{}
	for _, module := range slices.Sorted(maps.Keys(origins)) {
		if module == "rdma_rxe" || module == "siw" {
			continue // These are RDMA in software, which no rail uses. Some people build them because their kernel lacks them.
		}
		r.judged()
		by[origins[module]] = append(by[origins[module]], module)
	}
	kernel, vendor := by[OriginKernel], by[OriginPackage]
	switch {
	case len(kernel) > 0 && len(vendor) > 0:
		r.Find("", "from the kernel: %s; from a driver package: %s", strings.Join(kernel, ", "), strings.Join(vendor, ", "))
	case len(kernel) > 0 && version != "":
		r.Find("", "the driver package %s is installed, but all loaded RDMA modules are the kernel's", version)
	}
}

func checkCharDevices(f *Facts, r *Report) {
	if f.Host == nil {
		return
	}
	devices, haveDevices := Read(r, "charDevices", f.Host.CharDevices)
	uverbs, haveUverbs := Read(r, "uverbs", f.Host.Uverbs)
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
		if plain(name) {
			found.Fix("mknod -m 666 %s c $(tr : ' ' < /sys/class/%s/%s/dev)", path, class, name)
		}
	}
	for _, name := range uverbs {
		r.judged()
		missing(name, "infiniband_verbs")
	}
	if len(uverbs) > 0 {
		missing("rdma_cm", "misc")
	}
}

func checkPeerMemory(f *Facts, r *Report) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	gpus, _ := Read(r, "gpus", f.NICs.GPUs)
	loaded, haveModules := Read(r, "modules", f.Host.Modules)
	nvidia := slices.ContainsFunc(gpus, func(g GPU) bool { return g.Vendor == vendorNVIDIA })
	if !nvidia || !haveModules || !slices.Contains(loaded, "nvidia") { // the GPUs have another driver, or belong to a virtual machine
		return
	}
	r.judged()
	dmabuf, haveDMABuf := Read(r, "dmabuf", f.Host.DMABuf)
	open, haveOpen := Read(r, "nvidiaOpen", f.Host.NVIDIAOpen)
	if slices.Contains(loaded, "nvidia_peermem") || slices.Contains(loaded, "nv_peer_mem") || !haveDMABuf || !haveOpen || dmabuf && open {
		return
	}
	why := "the kernel has no dma-buf for RDMA"
	if dmabuf {
		why = "the GPU driver is not the open one, which dma-buf needs"
	}
	r.Find("", "nvidia_peermem is not loaded, and %s", why).Fix("modprobe nvidia-peermem")
}

func checkRuntimeMemlock(f *Facts, r *Report) {
	if f.Host == nil {
		return
	}
	daemons, _ := Read(r, "memlock", f.Host.Memlock)
	if !canRDMA(f, r) {
		return
	}
	for i := range daemons {
		d := &daemons[i]
		if d.Process == "kubelet" {
			continue
		}
		r.judged()
		if d.enough() {
			continue
		}
		if f.Agent != nil && !f.Agent.absent() {
			connected, ok := Read(r, "nri", f.Agent.NRI)
			publishes, also := Read(r, "agent memlock", f.Agent.Memlock)
			if !ok || connected && (!also || publishes) {
				continue // pods do not get the runtime's limit, or it is not known whether they do
			}
		}
		r.Find("process "+d.Process, "its limit of locked memory is %s (pid %d)", size(d.Soft), d.PID)
	}
}

// eachNICBesideGPUs calls do for each rail's NIC, if the node is a physical machine with GPUs.
func eachNICBesideGPUs(f *Facts, r *Report, do func(*NIC)) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	virtual, ok := Read(r, "hypervisor", f.Host.Hypervisor)
	gpus, _ := Read(r, "gpus", f.NICs.GPUs)
	if !ok || virtual || len(gpus) == 0 {
		return
	}
	eachRail(f, r, func(n *NIC) {
		if n.PCI != "" {
			do(n)
		}
	})
}

func checkRPFilter(f *Facts, r *Report) {
	if f.Host == nil || f.NICs == nil {
		return
	}
	values, ok := Read(r, "sysctls", f.Host.Sysctls)
	rails := 0
	eachRail(f, r, func(*NIC) { rails++ })
	if !ok || rails < 2 {
		return
	}
	r.judged()
	all, def := values[sysctlAll], values[sysctlDefault]
	if all == "" || def == "" {
		r.lacks("sysctls", "without rp_filter")
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

// WantedSysctls returns the paths below /proc/sys that rules read from [Host.Sysctls].
func WantedSysctls() []string { return []string{sysctlAll, sysctlDefault} }

// trouble is a kind of line in the kernel's log that reports trouble with a NIC. A line is of this
// kind if it contains all the texts, which are in lower case.
type trouble struct {
	texts     []string
	meaning   string
	anyDevice bool // lines about devices that are not NICs also contain the texts
}

// troubles are the kinds of lines that the rule HOST-KMSG reports. The texts of mlx5 are from
// drivers/net/ethernet/mellanox/mlx5/core/events.c and health.c, since Linux 5.10. Two kinds are
// left out: a single error that the PCIe link has corrected, and a slot that is slower than the NIC
// ("available PCIe bandwidth, limited by"), which NIC-PCIE judges.
var troubles = []trouble{
	{[]string{"insufficient power"}, "the slot gives the NIC too little power", false},
	{[]string{"high temperature"}, "the NIC or its transceiver is too hot", true},
	{[]string{"health compromised"}, "the NIC's firmware reports a fault", false},
	{[]string{"mlx5_core", "fatal error", "detected"}, "the NIC's firmware has stopped", false},
	{[]string{"mlx5_core", "access_reg", "failed"}, "the NIC's firmware refused a request", false},
	{[]string{"pcie bus error", "severity=uncorrect"}, "errors on a PCIe link (AER)", true},
	{[]string{"transmit queue", "timed out"}, "the NIC sent nothing for seconds", true},
	{[]string{"tx timeout"}, "the NIC sent nothing for seconds", true},
	{[]string{"cable", "unplugged"}, "a cable was unplugged", false},
	{[]string{"module", "bus stuck"}, "the transceiver does not answer", false},
	{[]string{"port module event", "cable error"}, "the cable or transceiver has a fault, or the NIC does not support it", false},
	{[]string{"peermem", "invalid context"}, "memory of a GPU was registered without its process", false},
}

// troubleOf returns the trouble that a line of the kernel's log reports. It returns nil if the line
// reports none.
func troubleOf(line string) *trouble {
	line = strings.ToLower(line)
	for i := range troubles {
		if !slices.ContainsFunc(troubles[i].texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return &troubles[i]
		}
	}
	return nil
}

// concernsRail reports whether a line of the kernel's log is or may be about a rail's NIC. It looks
// for the names and the PCI addresses of NICs in the line. A line about a physical function also
// concerns its virtual functions. Without facts about NICs, every line counts.
func (t *trouble) concernsRail(f *Facts, r *Report, line string) bool {
	if f.NICs == nil || !f.NICs.List.OK() {
		eachNIC(f, r, func(*NIC) {}) // this notes that the facts are missing
		return true
	}
	named, rail, forPods := false, false, r.nicsForPods(f)
	eachNIC(f, r, func(n *NIC) {
		if !hasWord(line, n.Name) && !hasWord(line, n.PCI) {
			return
		}
		named, rail = true, rail || forPods[n]
		if !rail {
			vfs, _ := Read(r, n.label()+" vfs", n.VFs)
			rail = vfs.Count > 0
		}
	})
	return rail || !named && !t.anyDevice
}

// hasWord reports whether the line contains the name as a whole word. For example, "eth10: NETDEV
// WATCHDOG" does not contain eth1.
func hasWord(line, name string) bool {
	part := func(c byte) bool {
		return c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	for at := 0; name != ""; at++ {
		i := strings.Index(line[at:], name)
		if i < 0 {
			return false
		}
		at += i
		end := at + len(name)
		if (at == 0 || !part(line[at-1])) && (end == len(line) || !part(line[end])) {
			return true
		}
	}
	return false
}

// KernelTrouble reports whether a line of the kernel's log reports trouble with a NIC that a rule
// knows.
func KernelTrouble(line string) bool { return troubleOf(line) != nil }
