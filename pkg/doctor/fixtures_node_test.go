package doctor

import (
	"errors"
	"fmt"
)

var errAway = errors.New("permission denied")

func healthyNode(f *Facts) {
	f.Host = &Host{
		RDMAMode: Known("shared", "netlink"),
		Modules:  Known([]string{"ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "rdma_cm", "rdma_ucm"}, "/proc/modules"),
	}
	f.Kubelet = &Kubelet{Foreign: Known([]string(nil), "/var/lib/kubelet")}
	var nics []NIC
	for i := range 8 {
		nics = append(nics, NIC{
			Name: fmt.Sprintf("ens%dnp0", i+1), PCI: fmt.Sprintf("0000:%02x:00.0", i+0x10), Kind: "pf", Vendor: "15b3", Driver: "mlx5_core", Rail: &[]int{i}[0],
			AdminUp: Known(true, "netlink"), Carrier: Known(true, "netlink"), Mbps: Known(int64(400_000), "sysfs"), MTU: Known(9000, "netlink"),
			Firmware: Known("28.43.2566", "ethtool"), PCIe: Known(PCIe{32, 32, 16, 16}, "sysfs"),
		})
	}
	f.NICs = &NICs{List: Known(nics, "netlink, sysfs, ledger")}
}

// nic returns a NIC of the facts.
func nic(f *Facts, i int) *NIC { return &f.NICs.List.Value[i] }

func init() {
	add("NIC-CARRIER", fixture{
		fires:   func(f *Facts) { nic(f, 3).Carrier.Value = false },
		missing: func(f *Facts) { nic(f, 3).Carrier = Failed[bool]("netlink", errAway) },
	})
	add("NIC-PCIE", fixture{
		fires:   func(f *Facts) { nic(f, 3).PCIe.Value.Width = 8 },
		missing: func(f *Facts) { nic(f, 3).PCIe = Fact[PCIe]{} },
	})
	add("NIC-SPEED", fixture{
		fires:   func(f *Facts) { nic(f, 3).Mbps.Value = 200_000 },
		missing: func(f *Facts) { nic(f, 3).Mbps = Failed[int64]("sysfs", errAway) },
	})
	add("NIC-FIRMWARE", fixture{
		fires:   func(f *Facts) { nic(f, 0).Firmware.Value = "28.42.1000" },
		missing: func(f *Facts) { nic(f, 0).Firmware = Failed[string]("ethtool", errAway) },
	})
	add("HOST-RDMAMODE", fixture{
		fires: func(f *Facts) {
			f.Host.RDMAMode.Value = "exclusive"
			f.Kubelet.Foreign.Value = []string{"resource rdma/hca_shared"}
		},
		missing: func(f *Facts) { f.Host.RDMAMode = Failed[string]("netlink", errAway) },
	})
	add("HOST-MODULES", fixture{
		fires:   func(f *Facts) { f.Host.Modules.Value = f.Host.Modules.Value[1:] },
		missing: func(f *Facts) { f.Host.Modules = Failed[[]string]("/proc/modules", errAway) },
	})
}
