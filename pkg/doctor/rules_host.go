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
		Consequence: "rail-cni is not tested on this kernel, and plugins refuse it if it lacks a feature that they need.",
		Cure:        "Boot Linux 5.10 or newer; docs/reference/kernels.md has what each kernel offers.",
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
		Cure:        "Load the modules, also at boot (/etc/modules-load.d), or install the vendor's driver package.",
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
		Expects:     "Each rail's NIC has its RDMA device, or the module that makes it is loaded: mlx5_ib for mlx5_core, for example.",
		Consequence: "The NIC has a network interface, but no RDMA device. Programs in pods with this NIC fall back to TCP, and an ADD with \"rdma\": \"required\" fails.",
		Cure:        "Load the module, also at boot (/etc/modules-load.d).",
		Check:       checkRDMADriver,
	},
	{
		ID: "HOST-OFED", Scope: NodeScope, Severity: Warn,
		Expects:     "The RDMA modules that are loaded come from one source: all from the kernel, or all from the vendor's driver package (MLNX_OFED, DOCA).",
		Consequence: "Modules of two sources have different interfaces inside of the kernel: symbols do not match, features are missing, and errors are hard to explain.",
		Cure:        "Reinstall the driver package for the running kernel, or remove the package. Then reboot, so that all modules are loaded again.",
		Check:       checkOrigins,
	},
	{
		ID: "HOST-UMAD", Scope: NodeScope, Severity: Warn,
		Expects:     "If the node has an InfiniBand port, the module ib_umad is loaded.",
		Consequence: "Tools that talk to the fabric (ibstat, ibdiagnet, a subnet manager on this node) do not work.",
		Cure:        "Load the module ib_umad, also at boot (/etc/modules-load.d).",
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
				r.Find("", "%s is InfiniBand, and the module ib_umad is not loaded", infiniband).Fix("modprobe ib_umad")
			}
		},
	},
	{
		ID: "HOST-RDMAMODE", Scope: NodeScope, Severity: Fail,
		Expects:     "The RDMA mode is not exclusive if a shared device plugin of another project serves the node.",
		Consequence: "k8s-rdma-shared-dev-plugin exits in exclusive mode, and the node offers no RDMA resources.",
		Cure:        "Set the mode to shared, or let rail-agent serve the resources (docs/guide/devices.md) and remove the other plugin.",
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
		Expects:     "/dev/infiniband has rdma_cm, and a char device for each verbs device of the kernel.",
		Consequence: "Device plugins cannot give the device to containers, so programs find no RDMA device, or the pod does not start.",
		Cure:        "Check that /dev is a devtmpfs, in which the kernel makes these files, and that nothing is mounted over /dev/infiniband. Or make the file with mknod. Without rdma_cm load the module rdma_ucm first.",
		Check:       checkCharDevices,
	},
	{
		ID: "HOST-PEERMEM", Scope: NodeScope, Severity: Fail, Slow: true,
		Expects:     "A node with NVIDIA's GPUs has a path for GPUDirect RDMA: the module nvidia_peermem, or dma-buf in the kernel and the open GPU driver.",
		Consequence: "GPUDirect RDMA does not work: each message is copied through host memory, at a fraction of the bandwidth.",
		Cure:        "Load nvidia_peermem, also at boot (/etc/modules-load.d), or install the open GPU driver on a kernel with dma-buf (5.12 or newer).",
		Check:       checkPeerMemory,
	},
	{
		ID: "HOST-MEMLOCK", Scope: NodeScope, Severity: Warn,
		Expects:     "On a node with NICs that support RDMA, containers may lock enough memory: the container runtime has LimitMEMLOCK=infinity (8 GiB at least), or rail-agent sets the limit by NRI.",
		Consequence: "Programs cannot register memory (ibv_reg_mr: cannot allocate memory) unless their container has the capability IPC_LOCK and runs as root; NCCL ends, or falls back to TCP.",
		Cure:        "Give the runtime's unit LimitMEMLOCK=infinity with a drop-in and restart it (docker: default-ulimits in daemon.json), or let rail-agent set it by NRI (publish.memlock in the node file). The limit of the kubelet does not matter: containers do not inherit it.",
		Check:       checkRuntimeMemlock,
	},
	{
		ID: "HOST-LIMITSCONF", Scope: NodeScope, Severity: Warn,
		Expects:     "No line of /etc/security/limits.conf and limits.d limits locked memory to less than 8 GiB.",
		Consequence: "Logins (MPI by SSH, tests by hand) cannot register memory, although pods can.",
		Cure:        "Replace the line by \"* soft memlock unlimited\" and \"* hard memlock unlimited\", and log in again.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil {
				return
			}
			lines, _ := Read(r, "limits.conf", f.Host.LimitsConf)
			r.judged() // the host: without a line nothing bounds
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
		Consequence: "Registered memory is never swapped, so the kernel swaps other memory of RDMA programs, and their steps take varying times. The kubelet does not start with swap unless its configuration allows swap.",
		Cure:        "Switch swap off, and remove it from /etc/fstab.",
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
		Consequence: "The network manager runs DHCP on the rail, sets the link up or down, or removes addresses while a pod gets or returns the NIC. systemd-networkd also removes the policy rules of other programs each time the NIC returns.",
		Cure:        "Exclude the rails from the network manager (NetworkManager: unmanaged-devices; systemd-networkd: a .network file with Unmanaged=yes, or at least ManageForeignRoutingPolicyRules=no in networkd.conf). In some clouds (OCI) NetworkManager sets the rails' addresses on the host: then configure these addresses in another way first, or ignore this rule (--ignore HOST-NM).",
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
		Consequence: "Traffic between GPU and NIC goes through the root complex to be translated, which costs bandwidth and latency.",
		Cure:        "Boot with iommu=pt (Intel also intel_iommu=on), or switch the IOMMU off in the firmware setup.",
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
		Consequence: "Traffic between GPU and NIC goes up to the root complex and back, at about half of the bandwidth.",
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
		Expects:     "On a node with several rails, reverse path filtering is not strict (rp_filter 1) in \"all\" and \"default\", which new network namespaces inherit.",
		Consequence: "If a packet or ARP request arrives on a rail, and the route to its source uses another rail, the kernel drops it: connections over some rails fail.",
		Cure:        "Set net.ipv4.conf.all.rp_filter to 2 (loose), also in /etc/sysctl.d. Or use \"arp\": \"own\" in a network, which sets it only for the pod's interface.",
		Check:       checkRPFilter,
	},
	{
		ID: "HOST-KMSG", Scope: NodeScope, Severity: Warn,
		Expects:     "The kernel log of the last day has no fault of a NIC.",
		Consequence: "The NIC, its slot, its transceiver or its firmware had a fault, which often occurs again under load.",
		Cure:        "Search the vendor's documentation for the line; check the transceiver, the slot's power and the firmware.",
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

// enoughMemlock is the limit of locked memory, in bytes, below which RDMA programs are known
// to fail: NCCL with eight rails registers several gigabytes.
const enoughMemlock int64 = 8 << 30

// enough reports whether programs can register enough memory.
func (m *Memlock) enough() bool { return m.Soft == Unlimited || m.Soft >= enoughMemlock }

// size returns a limit for a person.
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

// plain reports whether a name can be in a command without quotes: the facts may be of a
// stranger, and people paste commands.
func plain(name string) bool {
	return name != "" && name[0] != '-' && strings.IndexFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-:@/", c)
	}) < 0
}

// isGlobal reports whether an address, with its prefix length, is not link-local.
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

// canRDMA reports whether the node has a NIC with RDMA, or one that is for RDMA: NVIDIA's, or a
// rail whose driver has a module for it. An uplink of others is no reason to load that. Without
// facts of NICs it may have one; if they could not be read, that is noted.
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
		return true // whatever is not known of other NICs
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
			return // NIC-NETDEV looks at one without an interface
		}
		// A NIC that has its RDMA device needs no further module.
		if ports, known := Read(r, n.label()+" ports", n.Ports); known && len(ports) == 0 {
			missing[module] = append(missing[module], n.label())
		}
	})
	for _, module := range slices.Sorted(maps.Keys(missing)) {
		r.Find("", "the module %s is not loaded, which makes the RDMA devices of %s", module, strings.Join(missing[module], ", ")).Part(module).Fix("modprobe %s", module)
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
			continue // RDMA in software, by no NIC of a rail; built by hand where the kernel has none
		}
		r.judged()
		by[origins[module]] = append(by[origins[module]], module)
	}
	kernel, vendor := by[OriginKernel], by[OriginPackage]
	switch {
	case len(kernel) > 0 && len(vendor) > 0:
		r.Find("", "of the kernel: %s; of a driver package: %s", strings.Join(kernel, ", "), strings.Join(vendor, ", "))
	case len(kernel) > 0 && version != "":
		r.Find("", "the driver package %s is installed, and all RDMA modules that are loaded are the kernel's", version)
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
	if !nvidia || !haveModules || !slices.Contains(loaded, "nvidia") { // another driver, or a virtual machine has the GPUs
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
				continue // the limit of the runtime does not reach pods, or nobody knows
			}
		}
		r.Find("process "+d.Process, "its limit of locked memory is %s (pid %d)", size(d.Soft), d.PID)
	}
}

// eachNICBesideGPUs calls do for each rail's NIC of a node with GPUs that is no virtual
// machine.
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

// trouble is what a line of the kernel's log means. All its texts, in small letters, are in
// the line.
type trouble struct {
	texts     []string
	meaning   string
	anyDevice bool // lines about other devices than NICs have them, too
}

// troubles are those that rules know. The texts of mlx5 are those of
// drivers/net/ethernet/mellanox/mlx5/core/events.c and health.c, since Linux 5.10. A single
// error that the PCIe link has corrected is none, and a slot that is slower than the NIC
// ("available PCIe bandwidth, limited by") is for NIC-PCIE to judge.
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

// troubleOf returns what a line of the kernel's log means, nil for nothing.
func troubleOf(line string) *trouble {
	line = strings.ToLower(line)
	for i := range troubles {
		if !slices.ContainsFunc(troubles[i].texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return &troubles[i]
		}
	}
	return nil
}

// concernsRail reports whether a line of the kernel's log is about a rail's NIC, by the name or
// the PCI address in it, or may be about one. A physical function speaks for its virtual ones.
// Without the NICs' facts every line counts.
func (t *trouble) concernsRail(f *Facts, r *Report, line string) bool {
	if f.NICs == nil || !f.NICs.List.OK() {
		eachNIC(f, r, func(*NIC) {}) // it notes what is missing
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

// hasWord reports whether a line has a name that is no part of a longer one: eth1 is not in
// "eth10: NETDEV WATCHDOG".
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

// KernelTrouble reports whether a line of the kernel's log tells of a NIC's trouble that a
// rule knows.
func KernelTrouble(line string) bool { return troubleOf(line) != nil }
