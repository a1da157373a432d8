package doctor

import "slices"

var hostRules = []Rule{
	{
		ID: "HOST-RDMAMODE", Scope: NodeScope, Severity: Fail,
		Expects:     "The RDMA mode is not exclusive where a shared device plugin of others serves the node.",
		Consequence: "k8s-rdma-shared-dev-plugin exits in exclusive mode, and the node offers no RDMA resources.",
		Cure:        "Set the mode to shared, or let rail-agent serve the resources (docs/guide/devices.md) and remove the other plugin.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil || f.Kubelet == nil {
				return
			}
			mode, _ := Read(r, "rdmaMode", f.Host.RDMAMode)
			foreign, _ := Read(r, "foreign device plugins", f.Kubelet.Foreign)
			if mode == "exclusive" && len(foreign) > 0 {
				r.Find("", "the RDMA mode is exclusive, and another device plugin serves RDMA NICs: %s", foreign[0]).Fix("railctl rdma mode shared")
			}
		},
	},
	{
		ID: "HOST-MODULES", Scope: NodeScope, Severity: Fail,
		Expects:     "The kernel has the modules of RDMA: ib_core, ib_uverbs, rdma_cm, rdma_ucm.",
		Consequence: "Programs in pods find no RDMA device, and NCCL falls back to TCP.",
		Cure:        "Load the modules, also at boot (/etc/modules-load.d), or install the vendor's driver package.",
		Check: func(f *Facts, r *Report) {
			if f.Host == nil {
				return
			}
			loaded, ok := Read(r, "modules", f.Host.Modules)
			for _, name := range []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"} {
				if ok && !slices.Contains(loaded, name) {
					r.Find("", "the module %s is not loaded", name).Fix("modprobe %s", name)
				}
			}
		},
	},
}
