package doctor

import (
	"fmt"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

func healthyPod(f *fact.Facts) {
	p := fact.Pod{Namespace: "default", Name: "trainer-0", UID: "u", GPUs: fact.Known([]string{gpuPCI(0), gpuPCI(1)}, "runtime")}
	p.Containers = fact.Known([]fact.Container{
		{
			Name: "main", Memlock: fact.Memlock{Process: "main", PID: 4711, Soft: fact.Unlimited, Hard: fact.Unlimited}, UID: 1000, Permitted: 1 << 14,
			Env:         map[string]string{"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_PKEY": "0", "NCCL_SOCKET_IFNAME": "eth0", "UCX_IB_GID_INDEX": "auto"},
			CharDevices: []string{"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"},
		},
		{Name: "sidecar", Memlock: fact.Memlock{Process: "sidecar", PID: 4712, Soft: 64 << 10, Hard: 64 << 10}},
	}, "/proc")
	interfaces := []fact.Interface{{Name: "eth0", Up: true, Carrier: true, MTU: 1450, Addresses: []string{"10.244.0.7/24"}, RPFilter: 1}}
	var devices []fact.Port
	for i := range 2 {
		name := fmt.Sprintf("net%d", i+1)
		devices = append(devices, *port(f, i))
		interfaces = append(interfaces, fact.Interface{
			Name: name, NIC: nic(f, i).Name, Rail: nic(f, i).Rail, Up: true, Carrier: true, MTU: 9000, RDMA: []string{devices[i].Device},
			Addresses: []string{fmt.Sprintf("172.31.%d.2/24", i)}, ARPIgnore: 1, RPFilter: 2,
		})
	}
	// In shared mode the pod also sees the devices of others.
	devices = append(devices, fact.Port{Device: "mlx5_10", Port: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "Ethernet", ActiveMTU: 4096, TableSize: 255, GIDs: fact.Known([]fact.GID(nil), "sysfs")})
	p.Interfaces, p.Devices = fact.Known(interfaces, "netlink"), fact.Known(devices, "netlink, sysfs")
	p.Status = fact.Known(`[{"name": "cbr0", "interface": "eth0", "ips": ["10.244.0.7"], "default": true},
		{"name": "default/roce-0", "interface": "net1", "ips": ["172.31.0.2"], "device-info": {"type": "pci", "pci": {"pci-address": "0000:10:00.0"}}}]`, "API server")
	f.Pods = []fact.Pod{p}
}

func pod(f *fact.Facts) *fact.Pod { return &f.Pods[0] }

func container(f *fact.Facts) *fact.Container { return &pod(f).Containers.Value[0] }

// rail returns the interface net1 or net2 of the pod.
func rail(f *fact.Facts, i int) *fact.Interface { return &pod(f).Interfaces.Value[i] }

// partition changes a rail of the pod to InfiniBand, and sets the index of a partition in the
// container's environment.
func partition(f *fact.Facts, index string) {
	container(f).Env["NCCL_IB_PKEY"] = index
	delete(container(f).Env, "NCCL_IB_GID_INDEX")
	p := &pod(f).Devices.Value[0]
	p.LinkLayer, p.PKeys = fact.InfiniBand, fact.Known([]fact.PKey{{Index: 0, Key: "0x7fff"}, {Index: 2, Key: "0x8001"}}, "sysfs")
}

// manages adds a management device of the InfiniBand NIC to the container.
func manages(f *fact.Facts, name string) {
	nic(f, 8).CharDevices = append(nic(f, 8).CharDevices, "/dev/infiniband/"+name)
	container(f).CharDevices = append(container(f).CharDevices, "/dev/infiniband/"+name)
}

func init() {
	noContainers := func(f *fact.Facts) { away(&pod(f).Containers) }
	noInterfaces := func(f *fact.Facts) { away(&pod(f).Interfaces) }
	noDevices := func(f *fact.Facts) { away(&pod(f).Devices) }
	add("POD-MEMLOCK", fixture{
		fires:   func(f *fact.Facts) { container(f).Memlock.Soft, container(f).Permitted = 64<<10, 0 },
		missing: noContainers,
	})
	add("POD-CAPS", fixture{fires: func(f *fact.Facts) { container(f).Memlock.Soft = 8 << 20 }, missing: noContainers})
	add("POD-NODEV", fixture{fires: func(f *fact.Facts) { container(f).CharDevices = nil }, missing: noInterfaces})
	add("POD-CHARDEV", fixture{
		fires: func(f *fact.Facts) {
			nic(f, 5).Holder = "default/trainer-1"
			container(f).CharDevices = append(container(f).CharDevices, "/dev/infiniband/uverbs5")
		},
		missing: func(f *fact.Facts) { away(&f.Host.RDMAMode) },
	})
	add("IB-UMAD-IN-POD", fixture{
		fires:   func(f *fact.Facts) { manages(f, "umad8") },
		missing: func(f *fact.Facts) { manages(f, "umad8"); away(&f.Kubelet.Pools) },
	})
	add("POD-HCA", fixture{fires: func(f *fact.Facts) { container(f).Env["NCCL_IB_HCA"] = "mlx5_0,mlx5_1" }, missing: noDevices})
	add("POD-GIDIDX", fixture{fires: func(f *fact.Facts) { container(f).Env["NCCL_IB_GID_INDEX"] = "2" }, missing: noDevices})
	add("POD-GIDFIRST", fixture{
		fires: func(f *fact.Facts) {
			delete(container(f).Env, "NCCL_IB_GID_INDEX")
			port := &pod(f).Devices.Value[0]
			port.GIDs.Value = append(addressed(0, mapped(0, 9), "net1"), port.GIDs.Value...)
		},
		missing: func(f *fact.Facts) {
			delete(container(f).Env, "NCCL_IB_GID_INDEX")
			noDevices(f)
		},
	})
	add("POD-PKEY", fixture{
		fires:   func(f *fact.Facts) { partition(f, "1") },
		missing: func(f *fact.Facts) { partition(f, "1"); away(&pod(f).Devices.Value[0].PKeys) },
	})
	add("POD-SOCKET", fixture{fires: func(f *fact.Facts) { container(f).Env["NCCL_SOCKET_IFNAME"] = "net" }, missing: noContainers})
	add("POD-RAILS", fixture{
		fires:   func(f *fact.Facts) { pod(f).GPUs.Value = append(pod(f).GPUs.Value, gpuPCI(2)) },
		missing: func(f *fact.Facts) { away(&pod(f).GPUs) },
		also:    []string{"POD-DIST"},
	})
	add("POD-DIST", fixture{
		fires:   func(f *fact.Facts) { pod(f).GPUs.Value[1] = gpuPCI(5) },
		missing: func(f *fact.Facts) { away(&pod(f).GPUs) },
	})
	add("POD-DOWN", fixture{fires: func(f *fact.Facts) { rail(f, 1).Up = false }, missing: noInterfaces})
	add("POD-PORT", fixture{fires: func(f *fact.Facts) { pod(f).Devices.Value[0].State = "DOWN" }, missing: noDevices})
	add("POD-MTU", fixture{
		fires:   func(f *fact.Facts) { rail(f, 2).MTU = 1500 },
		missing: func(f *fact.Facts) { away(&nic(f, 1).MTU) },
	})
	add("POD-GIDV2", fixture{
		fires: func(f *fact.Facts) {
			delete(container(f).Env, "NCCL_IB_GID_INDEX")
			pod(f).Devices.Value[0].GIDs = fact.Known(addressed(2, mapped(0, 99), "net1"), "sysfs")
		},
		missing: func(f *fact.Facts) { away(&pod(f).Devices.Value[0].GIDs) },
		also:    []string{"POD-GIDFIRST"},
	})
	add("RAIL-ARPFLUX", fixture{
		fires: func(f *fact.Facts) {
			for i := range 2 {
				rail(f, i+1).Addresses[0] = strings.Replace(rail(f, i+1).Addresses[0], "/24", "/16", 1)
			}
			rail(f, 2).ARPIgnore = 0
		},
		missing: noInterfaces,
	})
	add("K8S-DEVINFO", fixture{
		fires: func(f *fact.Facts) {
			pod(f).Status.Value = strings.Replace(pod(f).Status.Value, "172.31.0.2", "172.31.0.3", 1)
		},
		missing: func(f *fact.Facts) { away(&pod(f).Status) },
	})
}
