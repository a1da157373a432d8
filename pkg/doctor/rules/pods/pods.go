package pods

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Rules returns the rules of this package, in the order of reports.
func Rules() []rule.Rule { return podRules }

var podRules = []rule.Rule{
	{
		ID: "POD-MEMLOCK", Scope: rule.PodScope, Severity: rule.Fail,
		Expects:     "Each container with RDMA devices may lock unlimited memory, or at least 8 GiB. Otherwise it has the capability IPC_LOCK.",
		Consequence: "Programs cannot register memory (ibv_reg_mr: cannot allocate memory), so NCCL ends or falls back to TCP.",
		Cure:        "Do one of these: let rail-agent set the limit by NRI (publish.memlock in the node file), set LimitMEMLOCK=infinity in the systemd unit of the container runtime, or add the capability IPC_LOCK to the container.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachRDMAContainer(f, r, func(p *fact.Pod, c *fact.Container) {
				r.Judged()
				if !subject.LocksEnough(&c.Memlock) && !mayLock(c) && !inert(c) {
					r.Find(p.Object(), "container %s may lock %s, and has no IPC_LOCK", c.Name, subject.SizeText(c.Memlock.Soft))
				}
			})
		},
	},
	{
		ID: "POD-CAPS", Scope: rule.PodScope, Severity: rule.Fail,
		Expects:     "A container that needs the capability IPC_LOCK to lock memory runs as root.",
		Consequence: "The capability has no effect if another user runs the container. Programs cannot register memory (ibv_reg_mr: cannot allocate memory).",
		Cure:        "Let rail-agent set the limit of locked memory by NRI (publish.memlock in the node file), or set LimitMEMLOCK=infinity in the systemd unit of the container runtime. Each of these works for every user.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachRDMAContainer(f, r, func(p *fact.Pod, c *fact.Container) {
				if !inert(c) {
					return
				}
				r.Judged()
				if !subject.LocksEnough(&c.Memlock) {
					r.Find(p.Object(), "container %s has IPC_LOCK, runs as user %d, and may lock %s", c.Name, c.UID, subject.SizeText(c.Memlock.Soft))
				}
			})
		},
	},
	{
		ID: "POD-NODEV", Scope: rule.PodScope, Severity: rule.Fail,
		Expects:     "If a pod has RDMA devices and its containers are meant for RDMA, at least one container has the char devices, including rdma_cm. Containers are meant for RDMA if one of them has variables of NCCL, UCX or NVSHMEM, or the capability IPC_LOCK.",
		Consequence: "Programs in the pod find no RDMA device, so NCCL falls back to TCP.",
		Cure:        "Request the devices as a resource (docs/guide/devices.md). Or let rail-agent give the devices to the containers by NRI (publish.devices in the node file).",
		Check:       checkNoDevices,
	},
	{
		ID: "POD-CHARDEV", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "In shared RDMA mode, no container has the char device of a NIC that another pod holds.",
		Consequence: "The container can use the other pod's NIC, its addresses and its bandwidth.",
		Cure:        "Offer the NICs in a pool with the mode perRail or exclusive instead of shared. Or set the node's RDMA mode to exclusive.",
		Check:       checkForeignDevices,
	},
	{
		ID: "IB-UMAD-IN-POD", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "A container has the device umad of an InfiniBand port only if a pool in the node file contains the port's NIC and has umad: true. No container has the device issm.",
		Consequence: "With umad, a program in the container can take down ports of other nodes, and needs only one packet for each port. With issm, it can become the fabric's subnet manager.",
		Cure:        "If the pod is older than the setting in the pool, restart the pod. If the container is privileged or mounts the node's /dev/infiniband, remove that. If the pod must manage the fabric, set umad: true in its pool.",
		Check:       checkManagement,
	},
	{
		ID: "POD-HCA", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "NCCL_IB_HCA names only devices that the pod sees. If the name of one device is the beginning of another device's name, NCCL_IB_HCA begins with \"=\".",
		Consequence: "Without \"=\", NCCL treats each name as a prefix: mlx5_1 also matches mlx5_10, which may belong to another pod. If the names match no device, NCCL uses TCP.",
		Cure:        "Write NCCL_IB_HCA==mlx5_1,… (with two equal signs). Or remove the variable: rail-agent publishes the right value.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachContainer(f, r, func(p *fact.Pod, c *fact.Container) {
				devices, ok := rule.Read(r, p.Object()+" devices", p.Devices)
				if value, set := c.Env["NCCL_IB_HCA"]; ok && set {
					r.Judged()
					if why := wrongHCA(value, devices); why != "" {
						r.Find(p.Object(), "container %s has NCCL_IB_HCA=%s: %s", c.Name, value, why)
					}
				}
			})
		},
	},
	{
		ID: "POD-GIDIDX", Scope: rule.PodScope, Severity: rule.Fail,
		Expects:     "If the environment of a container has a GID index (NCCL_IB_GID_INDEX, UCX_IB_GID_INDEX, NVSHMEM_IB_GID_INDEX), the entry at this index is a RoCE v2 GID of the pod's address on each rail.",
		Consequence: "The program uses the GID of another pod, or finds no GID. Connections fail (NCCL: unhandled system error).",
		Cure:        "Remove the variable: rail-agent publishes what NCCL and UCX need. If rail-agent does not run and other pods use the same port (macvlan), set NCCL_IB_ADDR_RANGE to the pod's own address, or set the variable to the index of the pod's own GID.",
		Check:       checkGIDIndex,
	},
	{
		ID: "POD-GIDFIRST", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "The first RoCE v2 GID of each rail's port belongs to the pod. Otherwise the environment has NCCL_IB_ADDR_RANGE or NCCL_IB_GID_INDEX.",
		Consequence: "NCCL, UCX and perftest use the first GID of the port, but this GID belongs to another pod or to the host. Connections fail (modify QP from INIT to RTR: No such device).",
		Cure:        "Let rail-agent set the variables by NRI. This does not work if a pod has several rails whose GIDs have different indexes, because one value must fit all rails. Give such pods whole NICs or VFs with host-device.",
		Check:       checkFirstGID,
	},
	{
		ID: "POD-PKEY", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "No container with an InfiniBand rail sets NCCL_IB_PKEY itself, except to 0.",
		Consequence: "The index of a partition can differ from node to node, and it can change when a port's partitions change. With the same index, NCCL on another node uses another partition or no partition, and connections fail.",
		Cure:        "Remove the variable. If the partition has the same index on all rails of the pod, and this index is not 0, rail-agent sets the variable by NRI. If the indexes differ, no value is right: give all ports the same partitions in the same order.",
		Check:       checkPKeyIndex,
	},
	{
		ID: "POD-SOCKET", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME do not name a rail.",
		Consequence: "The connections that start a job use a rail. The rail may not reach the addresses of other rails or nodes, so the job hangs at its start.",
		Cure:        "Name the interface of the pod network instead: NCCL_SOCKET_IFNAME==eth0.",
		Check:       checkSocketInterface,
	},
	{
		ID: "POD-RAILS", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "A pod has as many rails as GPUs. If the node has fewer rails than the pod has GPUs, the pod has all rails of the node.",
		Consequence: "Several GPUs share a rail, so each of them gets only a part of the rail's bandwidth to other nodes.",
		Cure:        "Request one NIC for each GPU, and name the networks of all rails in the pod's annotation.",
		Check: func(f *fact.Facts, r *rule.Report) {
			rails := 0
			subject.EachNIC(f, r, func(n *fact.NIC) {
				if n.Rail != nil {
					rails++
				}
			})
			subject.EachPod(f, r, func(p *fact.Pod) {
				gpus, ok := rule.Read(r, p.Object()+" gpus", p.GPUs)
				nics := map[string]bool{}
				known := subject.EachRailOf(p, r, func(i *fact.Interface) { nics[i.NIC] = true })
				want := min(len(gpus), rails)
				if !ok || !known || want == 0 {
					return
				}
				r.Judged()
				if len(nics) < want {
					r.Find(p.Object(), "it has %d GPUs and %d rails; the node has %d rails", len(gpus), len(nics), rails)
				}
			})
		},
	},
	{
		ID: "POD-DIST", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "No GPU of a pod reaches the pod's rails only through the CPU (NODE, SYS) while a NIC on the GPU's own PCIe switch is free.",
		Consequence: "The traffic of the GPU takes a longer path, which costs 30 to 60 % of the bandwidth.",
		Cure:        "Use a pool with the mode perRail or exclusive: from such a pool, rail-agent chooses NICs by their distance to the GPUs. Or name the networks of the rails that are nearest to the pod's GPUs.",
		Check:       checkPodDistance,
	},
	{
		ID: "POD-DOWN", Scope: rule.PodScope, Severity: rule.Fail,
		Expects:     "Each rail of a pod is up and has a carrier.",
		Consequence: "The pod runs without this rail. Collective operations stop or fall back to TCP.",
		Cure:        "If a program in the pod has set the interface down, set it up again. Otherwise check the cable, the transceiver and the switch port.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachPod(f, r, func(p *fact.Pod) {
				subject.EachRailOf(p, r, func(i *fact.Interface) {
					r.Judged()
					switch {
					case !i.Up:
						r.Find(p.Object(), "%s is set down", i.Name)
					case !i.Carrier:
						r.Find(p.Object(), "%s has no carrier", i.Name)
					}
				})
			})
		},
	},
	{
		ID: "POD-PORT", Scope: rule.PodScope, Severity: rule.Fail,
		Expects:     "If a rail of a pod has a carrier, its RDMA port is active.",
		Consequence: "NCCL does not use the rail, and prints no message about it.",
		Cure:        "Search the kernel's log for the driver's reason. Then restart the pod.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachPod(f, r, func(p *fact.Pod) {
				eachPortOf(p, r, func(i *fact.Interface, port *fact.Port) {
					if !subject.KnownState(r, p.Object()+" "+port.Device+" state", port.State) || !i.Up || !i.Carrier {
						return
					}
					r.Judged()
					if port.State != "ACTIVE" {
						r.Find(p.Object(), "port %d of %s is %s, although %s has a carrier", port.Port, port.Device, port.State, i.Name)
					}
				})
			})
		},
	},
	{
		ID: "POD-MTU", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "All rails of a pod have the same MTU. Each rail has the MTU of its NIC.",
		Consequence: "Large packets may be dropped, so that small messages pass but jobs hang. Or RDMA uses smaller packets on this rail and loses 30 to 50 % of the bandwidth. The slowest rail limits the bandwidth of every collective operation.",
		Cure:        "Remove \"mtu\" from the network, or set the NIC's MTU to the same value. If the network has no \"mtu\", a program in the pod has changed the MTU: create the pod again.",
		Check:       checkPodMTU,
	},
	{
		ID: "POD-GIDV2", Scope: rule.PodScope, Severity: rule.Fail,
		Expects:     "Each address on a RoCE rail of a pod has a GID of the type RoCE v2.",
		Consequence: "Programs cannot use RDMA from this address. Or they choose another GID, which their peers do not reach.",
		Cure:        "Check whether the GID table is full (NIC-GIDFULL), and whether another pod has the same address. Then restart the pod.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachPod(f, r, func(p *fact.Pod) {
				tables := map[string][][]fact.GID{}
				var interfaces []*fact.Interface
				eachPortOf(p, r, func(i *fact.Interface, port *fact.Port) {
					gids, ok := rule.Read(r, p.Object()+" gids", port.GIDs)
					if ok && port.LinkLayer != fact.InfiniBand && port.TableSize > 1 {
						if tables[i.Name] == nil {
							interfaces = append(interfaces, i)
						}
						tables[i.Name] = append(tables[i.Name], gids)
					}
				})
				for _, i := range interfaces {
					if !i.Up || !i.Carrier {
						continue
					}
					r.Judged()
					if missing := subject.WithoutGID(i.Addresses, tables[i.Name]...); len(missing) > 0 {
						r.Find(p.Object(), "%s: no RoCE v2 GID for %s", i.Name, strings.Join(missing, ", ")).Part(i.Name)
					}
				}
			})
		},
	},
	{
		ID: "RAIL-ARPFLUX", Scope: rule.PodScope, Severity: rule.Warn,
		Expects:     "If a pod has several rails in one subnet, it answers an ARP request only on the rail that has the requested address (arp_ignore is not 0), and its reverse path filter is not strict (rp_filter is not 1).",
		Consequence: "Neighbors send packets to the wrong rail. Then two rails share one link, and some connections fail.",
		Cure:        "Add \"arp\": \"own\" and \"routing\": {\"mode\": \"source\"} to the networks, or give each rail its own subnet.",
		Check:       checkARPFlux,
	},
	{
		ID: "K8S-DEVINFO", Scope: rule.PodScope, Severity: rule.Warn, API: true,
		Expects:     "The annotation network-status of a pod lists the same interfaces, addresses and devices as the ledger.",
		Consequence: "Programs that read the annotation use a wrong address or RDMA device.",
		Cure:        "Restart the pod. If the annotation is wrong again, check whether another plugin or a controller changes the annotation or the interface.",
		Check:       checkNetworkStatus,
	},
}

// capIPCLock is the bit of CAP_IPC_LOCK (linux/capability.h).
const capIPCLock = 1 << 14

// mayLock reports whether the container has the capability IPC_LOCK, so that the limit of locked
// memory does not apply.
func mayLock(c *fact.Container) bool { return c.Capabilities&capIPCLock != 0 }

// inert reports whether the container was given the capability IPC_LOCK but cannot use it: a user
// other than root loses the capability when a program starts.
func inert(c *fact.Container) bool {
	return c.UID != 0 && c.Permitted&capIPCLock != 0 && !mayLock(c)
}

// hasRDMADevice reports whether the container has a char device of an RDMA device.
func hasRDMADevice(c *fact.Container) bool {
	return slices.ContainsFunc(c.CharDevices, func(d string) bool { return strings.Contains(d, "uverbs") })
}

func eachContainer(f *fact.Facts, r *rule.Report, do func(*fact.Pod, *fact.Container)) {
	subject.EachPod(f, r, func(p *fact.Pod) {
		list, _ := rule.Read(r, p.Object()+" containers", p.Containers)
		for i := range list {
			r.Within(list[i].Name, func() { do(p, &list[i]) })
		}
	})
}

func eachRDMAContainer(f *fact.Facts, r *rule.Report, do func(*fact.Pod, *fact.Container)) {
	eachContainer(f, r, func(p *fact.Pod, c *fact.Container) {
		if hasRDMADevice(c) {
			do(p, c)
		}
	})
}

// eachPortOf calls do for each port of the RDMA devices of the pod's rails.
func eachPortOf(p *fact.Pod, r *rule.Report, do func(*fact.Interface, *fact.Port)) {
	devices, _ := rule.Read(r, p.Object()+" devices", p.Devices)
	ports := map[string][]*fact.Port{}
	for i := range devices {
		ports[devices[i].Device] = append(ports[devices[i].Device], &devices[i])
	}
	subject.EachRailOf(p, r, func(i *fact.Interface) {
		for _, name := range i.RDMA {
			for _, port := range ports[name] {
				r.Within(port.Name(), func() { do(i, port) })
			}
		}
	})
}

func checkNoDevices(f *fact.Facts, r *rule.Report) {
	subject.EachPod(f, r, func(p *fact.Pod) {
		containers, ok := rule.Read(r, p.Object()+" containers", p.Containers)
		var devices []string
		subject.EachRailOf(p, r, func(i *fact.Interface) { devices = append(devices, i.RDMA...) })
		if !ok || len(devices) == 0 || len(containers) == 0 {
			return
		}
		if !slices.ContainsFunc(containers, func(c fact.Container) bool { return hasRDMADevice(&c) }) {
			// A pod without these signs may use the interface only for TCP.
			if !slices.ContainsFunc(containers, func(c fact.Container) bool { return len(c.Env) > 0 || c.Permitted&capIPCLock != 0 }) {
				return
			}
			r.Judged()
			r.Find(p.Object(), "it has %s, and no container has a char device below /dev/infiniband", strings.Join(devices, ", "))
			return
		}
		for i := range containers {
			c := &containers[i]
			if !hasRDMADevice(c) {
				continue
			}
			r.Judged()
			if !slices.ContainsFunc(c.CharDevices, func(d string) bool { return strings.HasSuffix(d, "rdma_cm") }) {
				r.Find(p.Object(), "container %s has no /dev/infiniband/rdma_cm", c.Name).Part(c.Name)
			}
		}
	})
}

const (
	// ncclPKey is NCCL's variable for the index of a partition. Its value applies to all devices.
	ncclPKey = "NCCL_IB_PKEY"
	// setByAgent is the variable that lists the names of the variables that rail-agent has set.
	setByAgent = "RAIL_CNI_ENV"
)

func checkPKeyIndex(f *fact.Facts, r *rule.Report) {
	eachContainer(f, r, func(p *fact.Pod, c *fact.Container) {
		value, set := c.Env[ncclPKey]
		if !set {
			return
		}
		r.Judged()
		if value == "0" || slices.Contains(strings.Split(c.Env[setByAgent], ","), ncclPKey) {
			return
		}
		eachPortOf(p, r, func(i *fact.Interface, port *fact.Port) {
			if port.LinkLayer != fact.InfiniBand {
				return
			}
			keys, ok := rule.Read(r, p.Object()+" pkeys", port.PKeys)
			if !ok {
				return
			}
			partition := "no partition"
			for _, k := range keys {
				if strconv.Itoa(k.Index) == value {
					partition = k.Key
				}
			}
			r.Find(p.Object(), "container %s sets %s=%s; at that index port %d of %s now has %s", c.Name, ncclPKey, value, port.Port, port.Device, partition).Part(i.Name)
		})
	})
}

// checkManagement reports containers that have the device issm of an InfiniBand NIC. It also
// reports containers that have umad of an InfiniBand NIC that is in no pool with UMAD.
func checkManagement(f *fact.Facts, r *rule.Report) {
	if !subject.AnyPod(f, r) {
		return
	}
	owner, granted := map[string]*fact.NIC{}, map[string]bool{}
	subject.EachNIC(f, r, func(n *fact.NIC) {
		for _, d := range n.CharDevices {
			if n.LinkType == resource.InfiniBand {
				owner[d] = n
			}
		}
	})
	if len(owner) == 0 {
		return
	}
	var pools []fact.Pool
	known := true
	if f.Kubelet != nil {
		pools, known = rule.Read(r, "pools", f.Kubelet.Pools)
	}
	for i := range pools {
		for _, name := range pools[i].NICs {
			granted[name] = granted[name] || pools[i].UMAD
		}
	}
	eachContainer(f, r, func(p *fact.Pod, c *fact.Container) {
		r.Judged()
		for _, d := range c.CharDevices {
			n := owner[d]
			if n == nil || !resource.ManagesFabric(d) {
				continue
			}
			if strings.Contains(d, "issm") || known && !granted[n.Name] && !granted[n.PCI] {
				r.Find(p.Object(), "container %s has %s, which belongs to the InfiniBand port of %s", c.Name, d, n.Label()).Part(d)
			}
		}
	})
}

func checkForeignDevices(f *fact.Facts, r *rule.Report) {
	if f.Host == nil || !subject.AnyPod(f, r) {
		return
	}
	mode, ok := rule.Read(r, "rdmaMode", f.Host.RDMAMode)
	owner := map[string]*fact.NIC{}
	subject.EachNIC(f, r, func(n *fact.NIC) {
		if n.Holder != "" && n.Children == 0 {
			for _, d := range n.CharDevices {
				owner[d] = n
			}
		}
	})
	eachContainer(f, r, func(p *fact.Pod, c *fact.Container) {
		for _, d := range c.CharDevices {
			n := owner[d]
			if !ok || mode != "shared" || n == nil {
				continue
			}
			r.Judged()
			if n.Holder != p.Namespace+"/"+p.Name {
				r.Find(p.Object(), "container %s has %s, which belongs to %s, and %s holds that NIC", c.Name, d, n.Label(), n.Holder).Part(d)
			}
		}
	})
}

// wrongHCA returns the reason why the value of NCCL_IB_HCA does not name devices exactly. It
// returns "" if the value does. The form of the value is [^][=]name[:port],… (NCCL, parseStringList
// in src/misc/utils.cc).
func wrongHCA(value string, devices []fact.Port) string {
	list, exclude := strings.CutPrefix(value, "^")
	list, exact := strings.CutPrefix(list, "=")
	names := map[string]bool{}
	for i := range devices {
		names[devices[i].Device] = true
	}
	for entry := range strings.SplitSeq(list, ",") {
		name, _, _ := strings.Cut(entry, ":")
		if name == "" {
			continue
		}
		found := names[name]
		for _, other := range slices.Sorted(maps.Keys(names)) {
			if exact || other == name || !strings.HasPrefix(other, name) {
				continue
			}
			if names[name] {
				return name + " is also the beginning of " + other
			}
			found = true
		}
		if !found && !exclude {
			return "the pod sees no device " + name
		}
	}
	return ""
}

// indexVariables are the variables for the index of a GID. Their values apply to all devices.
var indexVariables = []string{"NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX"}

func checkGIDIndex(f *fact.Facts, r *rule.Report) {
	eachContainer(f, r, func(p *fact.Pod, c *fact.Container) {
		for _, name := range indexVariables {
			index, err := strconv.Atoi(c.Env[name])
			if err != nil || index < 0 { // "auto", -1: the program chooses
				continue
			}
			eachPortOf(p, r, func(i *fact.Interface, port *fact.Port) {
				gids, ok := rule.Read(r, p.Object()+" gids", port.GIDs)
				if !ok || port.LinkLayer == fact.InfiniBand {
					return
				}
				r.Judged()
				if why := wrongIndex(index, gids, i.Addresses); why != "" {
					r.Find(p.Object(), "container %s has %s=%d, and on %s (%s) %s", c.Name, name, index, i.Name, port.Device, why).Part(name)
				}
			})
		}
	})
}

func checkFirstGID(f *fact.Facts, r *rule.Report) {
	eachRDMAContainer(f, r, func(p *fact.Pod, c *fact.Container) {
		r.Judged()
		if c.Env["NCCL_IB_ADDR_RANGE"] != "" {
			return
		}
		if index, err := strconv.Atoi(c.Env["NCCL_IB_GID_INDEX"]); err == nil && index >= 0 {
			return // POD-GIDIDX judges the index
		}
		ipv6 := c.Env["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
		eachPortOf(p, r, func(i *fact.Interface, port *fact.Port) {
			gids, ok := rule.Read(r, p.Object()+" gids", port.GIDs)
			if !ok || port.LinkLayer == fact.InfiniBand || len(i.Addresses) == 0 {
				return
			}
			first := slices.IndexFunc(gids, func(g fact.GID) bool {
				a := g.Address()
				return g.IsRoCEv2() && a.Is6() == ipv6 && !a.IsLinkLocalUnicast()
			})
			if first < 0 || wrongIndex(gids[first].Index, gids, i.Addresses) == "" {
				return
			}
			r.Find(p.Object(), "programs in container %s use GID index %d of %s by default, which is the GID of %s, but the interface %s has %s",
				c.Name, gids[first].Index, port.Device, gids[first].Address(), i.Name, strings.Join(i.Addresses, ", ")).Part(port.Device)
		})
	})
}

// wrongIndex returns the reason why the entry at index is not a RoCE v2 GID of one of the
// addresses. It returns "" if the entry is.
func wrongIndex(index int, gids []fact.GID, addresses []string) string {
	i := slices.IndexFunc(gids, func(g fact.GID) bool { return g.Index == index })
	switch {
	case i < 0:
		return "there is no GID with this index"
	case !gids[i].IsRoCEv2():
		return "that GID has the type " + gids[i].Type
	}
	assigned := slices.ContainsFunc(addresses, func(text string) bool {
		a, err := netip.ParsePrefix(text)
		return err == nil && a.Addr().Unmap() == gids[i].Address()
	})
	if !assigned {
		return "that GID belongs to " + gids[i].Address().String() + ", which is not an address of the interface"
	}
	return ""
}

func checkSocketInterface(f *fact.Facts, r *rule.Report) {
	eachContainer(f, r, func(p *fact.Pod, c *fact.Container) {
		for _, name := range []string{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} {
			value := c.Env[name]
			if value == "" || strings.HasPrefix(value, "^") {
				continue
			}
			list, exact := strings.CutPrefix(value, "=")
			exact = exact || name == "GLOO_SOCKET_IFNAME"
			subject.EachRailOf(p, r, func(i *fact.Interface) {
				r.Judged()
				for entry := range strings.SplitSeq(list, ",") {
					if entry != "" && (i.Name == entry || !exact && strings.HasPrefix(i.Name, entry)) {
						r.Find(p.Object(), "container %s has %s=%s, and %s is a rail (%s)", c.Name, name, value, i.Name, i.NIC).Part(name)
						return
					}
				}
			})
		}
	})
}

func checkPodDistance(f *fact.Facts, r *rule.Report) {
	free := map[string]*fact.NIC{} // for each GPU, the nearest NIC that is free
	all := map[string]*fact.NIC{}
	subject.EachNIC(f, r, func(n *fact.NIC) {
		all[n.Name] = n
		if n.Rail == nil || n.Holder != "" || n.Protected != "" {
			return
		}
		for gpu, d := range n.Distances {
			if best := free[gpu]; best == nil || fact.Rank(d) < fact.Rank(best.Distances[gpu]) {
				free[gpu] = n
			}
		}
	})
	subject.EachPod(f, r, func(p *fact.Pod) {
		gpus, _ := rule.Read(r, p.Object()+" gpus", p.GPUs)
		for _, gpu := range gpus {
			nearest := len(fact.Distances)
			subject.EachRailOf(p, r, func(i *fact.Interface) {
				if n := all[i.NIC]; n != nil {
					nearest = min(nearest, fact.Rank(n.Distances[gpu]))
				}
			})
			n := free[gpu]
			if nearest == len(fact.Distances) {
				continue
			}
			r.Judged()
			if n != nil && nearest >= fact.Rank("NODE") && fact.Rank(n.Distances[gpu]) <= fact.Rank("PXB") {
				r.Find(p.Object(), "the distance of GPU %s is %s to the pod's nearest rail, but %s to %s, which is free", gpu, fact.Distances[nearest], n.Distances[gpu], n.Label()).Part(gpu)
			}
		}
	})
}

func checkPodMTU(f *fact.Facts, r *rule.Report) {
	mtus := map[string]fact.Fact[int]{}
	subject.EachNIC(f, r, func(n *fact.NIC) { mtus[n.Name] = n.MTU })
	subject.EachPod(f, r, func(p *fact.Pod) {
		first := (*fact.Interface)(nil)
		subject.EachRailOf(p, r, func(i *fact.Interface) {
			r.Judged()
			if mtu, ok := mtus[i.NIC]; ok {
				if nic, ok := rule.Read(r, i.NIC+" mtu", mtu); ok && i.MTU < nic {
					r.Find(p.Object(), "the MTU of %s is %d, but the MTU of %s is %d", i.Name, i.MTU, i.NIC, nic)
					return
				}
			}
			switch {
			case first == nil:
				first = i
			case i.MTU != first.MTU:
				r.Find(p.Object(), "the MTU of %s is %d, but the MTU of %s is %d", i.Name, i.MTU, first.Name, first.MTU)
			}
		})
	})
}

func checkARPFlux(f *fact.Facts, r *rule.Report) {
	subject.EachPod(f, r, func(p *fact.Pod) {
		byNet, rails := map[netip.Prefix][]*fact.Interface{}, 0
		subject.EachRailOf(p, r, func(i *fact.Interface) {
			if rails++; rails == 2 {
				r.Judged()
			}
			for _, text := range i.Addresses {
				a, err := netip.ParsePrefix(text)
				if err != nil || !a.Addr().Unmap().Is4() || a.IsSingleIP() {
					continue
				}
				if list := byNet[a.Masked()]; len(list) == 0 || list[len(list)-1] != i {
					byNet[a.Masked()] = append(list, i)
				}
			}
		})
		reported := map[*fact.Interface]bool{}
		for _, network := range subject.SortedPrefixes(byNet) {
			list := byNet[network]
			for _, i := range list {
				if len(list) < 2 || reported[i] || i.ARPIgnore != 0 && i.RPFilter != 1 {
					continue
				}
				reported[i] = true
				r.Find(p.Object(), "%d rails are in %s, and %s has arp_ignore %d and rp_filter %d", len(list), network, i.Name, i.ARPIgnore, i.RPFilter).Part(i.Name)
			}
		}
	})
}

// networkStatus is an entry of Multus' annotation.
type networkStatus struct {
	Interface  string   `json:"interface"`
	IPs        []string `json:"ips"`
	DeviceInfo struct {
		PCI struct {
			Address string `json:"pci-address"`
		} `json:"pci"`
	} `json:"device-info"`
}

func checkNetworkStatus(f *fact.Facts, r *rule.Report) {
	if f.Ledger == nil || !subject.AnyPod(f, r) {
		return
	}
	held := map[string][]*fact.Attachment{}
	subject.EachAttachment(f, r, func(a *fact.Attachment) {
		if a.Phase == "lent" && a.Alive {
			held[a.Pod] = append(held[a.Pod], a)
		}
	})
	subject.EachPod(f, r, func(p *fact.Pod) {
		text, ok := rule.Read(r, p.Object()+" networkStatus", p.Status)
		if !ok || text == "" {
			return
		}
		var list []networkStatus
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			r.Find(p.Object(), "the annotation is not the JSON of Multus: %s", err)
			return
		}
		for _, a := range held[p.Namespace+"/"+p.Name] {
			if a.UID != p.UID {
				continue // the attachment belongs to another pod that had or has the same name
			}
			r.Judged()
			i := slices.IndexFunc(list, func(s networkStatus) bool { return s.Interface == a.IfName })
			if i < 0 {
				r.Find(p.Object(), "the annotation does not list the interface %s, which is in the ledger", a.IfName)
			} else if why := differs(a, &list[i]); why != "" {
				r.Find(p.Object(), "%s", why)
			}
		}
	})
}

// differs returns how an entry of the annotation differs from the attachment. It returns "" if they
// do not differ.
func differs(a *fact.Attachment, s *networkStatus) string {
	recorded, annotated := bareAddresses(a.Addresses), bareAddresses(s.IPs)
	switch pci := s.DeviceInfo.PCI.Address; {
	case len(recorded) > 0 && !slices.Equal(recorded, annotated): // the ledger does not list addresses that the NIC had before
		return "the annotation has " + a.IfName + " with " + strings.Join(annotated, ", ") + ", but the ledger has it with " + strings.Join(recorded, ", ")
	case pci != "" && a.PCI != "" && pci != a.PCI:
		return "the annotation has " + a.IfName + " with the device " + pci + ", but the ledger has it with " + a.PCI
	}
	return ""
}

// bareAddresses returns the addresses in sorted order, each in its usual form and without a prefix
// length.
func bareAddresses(texts []string) []string {
	var all []string
	for _, text := range texts {
		bare, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(bare); err == nil {
			bare = a.Unmap().String()
		}
		all = append(all, bare)
	}
	slices.Sort(all)
	return all
}
