package railinfo

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// Var is a variable of the environment.
type Var struct{ Name, Value string }

// ListVar is the variable that lists the names of the other variables.
const ListVar = "RAIL_CNI_ENV"

// ucxDevices is the variable that selects the devices of UCX.
const ucxDevices = "UCX_NET_DEVICES"

// The files of a pod.
const (
	RailsFile = "rails.json"
	NCCLFile  = "nccl.conf"
	EnvFile   = "env.sh"
	TopoFile  = "topo.xml"
)

// Env returns the variables of the families in the settings. [ListVar] is the last one. Env returns
// none if no RDMA device of the pod has a name that a list can contain.
func (r *Rails) Env(s Settings) []Var {
	if len(r.ports()) == 0 {
		return nil
	}
	var vars []Var
	for _, f := range []struct {
		family Family
		vars   func(Settings) []Var
	}{{NCCL, r.nccl}, {UCX, r.ucx}, {NVSHMEM, r.nvshmem}, {VLLM, r.vllm}} {
		if slices.Contains(s.Env, f.family) {
			vars = append(vars, f.vars(s)...)
		}
	}
	return WithList(vars)
}

// WithList returns the variables, followed by a [ListVar] with their names. It leaves out a
// [ListVar] in vars. It returns nil if there are no other variables.
func WithList(vars []Var) []Var {
	var list []Var
	var names []string
	for _, v := range vars {
		if v.Name != ListVar {
			list, names = append(list, v), append(names, v.Name)
		}
	}
	if list == nil {
		return nil
	}
	return append(list, Var{ListVar, strings.Join(names, ",")})
}

// inLists reports whether the name of an RDMA device can be in the lists of NCCL, UCX and NVSHMEM,
// and in a line of nccl.conf. The kernel allows any characters in a name, and root in a pod may
// have chosen the name.
func inLists(rdma string) bool {
	return rdma != "" && !strings.ContainsFunc(rdma, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(",:;=^#*?'\"\\$`", c)
	})
}

// ports returns each RDMA port once, "mlx5_0:1", in the order of rails.
func (r *Rails) ports() []string {
	var ports []string
	for _, l := range r.Rails {
		port := l.RDMA
		if l.Port != 0 {
			port = fmt.Sprintf("%s:%d", l.RDMA, l.Port)
		}
		if inLists(l.RDMA) && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}

// maxUCX is the length in bytes of the longest name of a device that UCX finds by UCX_NET_DEVICES:
// UCX keeps a name and its port in UCT_DEVICE_NAME_MAX bytes (UCX 1.13.1).
const maxUCX = 15

// ucxPorts returns the ports that UCX can name.
func (r *Rails) ucxPorts() []string {
	return slices.DeleteFunc(r.ports(), func(port string) bool {
		device, _, _ := strings.Cut(port, ":")
		return len(device) > maxUCX
	})
}

// roce returns the rails with RoCE.
func (r *Rails) roce() []Rail {
	var list []Rail
	for _, l := range r.Rails {
		if l.RDMA != "" && l.LinkLayer != "" && l.LinkLayer != InfiniBand {
			list = append(list, l)
		}
	}
	return list
}

// nccl returns the variables of NCCL. "=" makes NCCL compare whole names: without it mlx5_1 would
// also match mlx5_10.
func (r *Rails) nccl(s Settings) []Var {
	vars := []Var{{"NCCL_IB_HCA", "=" + strings.Join(r.ports(), ",")}}
	vars = append(vars, r.ncclGID(s)...)
	if index, _ := r.partition(); index > 0 {
		vars = append(vars, Var{"NCCL_IB_PKEY", strconv.Itoa(index)})
	}
	if s.Isolated {
		vars = append(vars, Var{"NCCL_CROSS_NIC", "0"})
	}
	if s.Mount && slices.ContainsFunc(r.Rails, func(l Rail) bool { return l.RDMA != "" && l.PCI != "" }) {
		vars = append(vars, Var{"NCCL_TOPO_FILE", MountPoint + "/" + TopoFile})
	}
	return vars
}

// ncclGID returns the variables by which NCCL chooses GIDs. They are needed if NCCL's defaults (an
// IPv4 address, RoCE v2) choose no GID, or another pod's GID. The variables apply to all rails.
func (r *Rails) ncclGID(s Settings) []Var {
	rails := r.roce()
	if len(rails) == 0 {
		return nil
	}
	var vars []Var
	all := func(is func(l *Rail) bool) bool {
		return !slices.ContainsFunc(rails, func(l Rail) bool { return !is(&l) })
	}
	if all(func(l *Rail) bool { return l.hasGID(true) && !l.hasGID(false) }) {
		vars = append(vars, Var{"NCCL_IB_ADDR_FAMILY", "AF_INET6"})
	}
	if all(func(l *Rail) bool { return l.hasType(ibaddr.RoCEv1) && !l.hasType(ibaddr.RoCEv2) }) {
		vars = append(vars, Var{"NCCL_IB_ROCE_VERSION_NUM", "1"})
	}
	return append(vars, r.ownGID(s, rails)...)
}

// ownGID returns the variable by which NCCL uses the pod's own GID if the port also has the GIDs of
// others: NCCL uses the first GID that matches its defaults. A range with only the pod's own
// address stays right when indexes change, but there is only one range for all rails. An index is
// right for several rails if it is the same on all of them. The settings may require the index in
// any case.
func (r *Rails) ownGID(s Settings, rails []Rail) []Var {
	index, equal := equalIndex(rails)
	shared := slices.ContainsFunc(rails, func(l Rail) bool { return l.SharedPort })
	addr := rails[0].ownAddress()
	if one := !slices.ContainsFunc(rails, func(l Rail) bool { return l.ownAddress() != addr }); shared && one && addr.IsValid() && !s.FixedGIDIndex {
		return []Var{{"NCCL_IB_ADDR_RANGE", netip.PrefixFrom(addr, addr.BitLen()).String()}}
	}
	if equal && (shared || s.FixedGIDIndex) {
		return []Var{{"NCCL_IB_GID_INDEX", strconv.Itoa(index)}}
	}
	return nil
}

// partition returns the P_Key index and the partition (without the membership bit) that all
// InfiniBand rails share. NCCL and UCX each have one variable for all rails. By default NCCL uses
// index 0, and UCX uses the first partition of which the port is a full member. index is 0 if the
// indexes of the rails differ, and key is 0 if their partitions differ. Both are 0 if all ports are
// full members at index 0, if a port is not a member of its partition, or if there are RoCE rails,
// to which the variables would apply as well.
func (r *Rails) partition() (index int, key uint16) {
	var keys []uint16
	var indexes []int
	full := true
	for _, l := range r.Rails {
		if l.LinkLayer != InfiniBand {
			continue
		}
		key, err := strconv.ParseUint(l.PKey, 0, 16)
		if l.PKeyIndex == nil || err != nil {
			return 0, 0
		}
		k := ibaddr.PKey{Key: uint16(key)}
		keys, indexes, full = append(keys, k.Partition()), append(indexes, *l.PKeyIndex), full && k.IsFull()
	}
	if len(keys) == 0 || len(r.roce()) > 0 || slices.Max(indexes) == 0 && full {
		return 0, 0
	}
	if slices.Min(keys) == slices.Max(keys) {
		key = keys[0]
	}
	if slices.Min(indexes) == slices.Max(indexes) {
		index = indexes[0]
	}
	return index, key
}

// equalIndex returns the index of the rails' RoCE v2 GIDs, if all rails have such a GID at the same
// index.
func equalIndex(rails []Rail) (index int, equal bool) {
	for i, l := range rails {
		if l.GIDIndexV2 == nil || i > 0 && *l.GIDIndexV2 != index {
			return 0, false
		}
		index = *l.GIDIndexV2
	}
	return index, len(rails) > 0
}

// ownAddress returns the address whose RoCE v2 GID NCCL must use: the first IPv4 address, because
// IPv4 is NCCL's default family, or the first IPv6 address if there is no IPv4 address.
func (l *Rail) ownAddress() (addr netip.Addr) {
	for _, text := range l.Addresses {
		ip, err := netip.ParseAddr(plain(text))
		has := slices.ContainsFunc(l.GIDs, func(g GID) bool { return g.Type == ibaddr.RoCEv2 && g.IP == plain(text) })
		if err == nil && has && (!addr.IsValid() || ip.Is4() && !addr.Is4()) {
			addr = ip
		}
	}
	return addr
}

// hasGID reports whether an address of the rail has a GID. ipv6 selects the family of the address.
func (l *Rail) hasGID(ipv6 bool) bool {
	return slices.ContainsFunc(l.GIDs, func(g GID) bool { return strings.Contains(g.IP, ":") == ipv6 && l.HasAddress(g.IP) })
}

func (l *Rail) hasType(t ibaddr.GIDType) bool {
	return slices.ContainsFunc(l.GIDs, func(g GID) bool { return g.Type == t })
}

// ucx returns the variables of UCX. UCX_NET_DEVICES also keeps UCX from using TCP, so it is left
// out if UCX can name none of the rails. Like NCCL, UCX uses the first GID, and has one index for
// all devices.
func (r *Rails) ucx(Settings) []Var {
	ports := r.ucxPorts()
	if len(ports) == 0 {
		return nil
	}
	vars := []Var{{ucxDevices, strings.Join(ports, ",")}}
	rails := r.roce()
	shared := slices.ContainsFunc(rails, func(l Rail) bool { return l.SharedPort })
	if index, equal := equalIndex(rails); shared && equal {
		vars = append(vars, Var{"UCX_IB_GID_INDEX", strconv.Itoa(index)})
	}
	if _, key := r.partition(); key != 0 {
		vars = append(vars, Var{"UCX_IB_PKEY", fmt.Sprintf("%#04x", key)})
	}
	return vars
}

func (r *Rails) nvshmem(Settings) []Var {
	return []Var{{"NVSHMEM_HCA_LIST", strings.Join(r.ports(), ",")}}
}

// vllm returns the variables by which vLLM selects the NIC of each worker's GPU: pairs of PCI
// addresses, and the names of the variables that vLLM sets for a worker. Without GPUs it returns
// none.
func (r *Rails) vllm(Settings) []Var {
	nics, port := r.nicOfGPUs()
	if len(nics) == 0 {
		return nil
	}
	selection := ucxDevices
	if port != 0 {
		selection += fmt.Sprintf(":%d", port)
	}
	return []Var{{"VLLM_GPU_NIC_PCIE_MAPPING", strings.Join(nics, ",")}, {"VLLM_NIC_SELECTION_VARS", selection}}
}

// nicOfGPUs returns sorted pairs "GPU=NIC" of PCI addresses, one for each GPU. If several rails are
// nearest to a GPU, it takes the rail that has the fewest GPUs so far. port is the port number of
// the rails, or 0 if their ports differ.
func (r *Rails) nicOfGPUs() (pairs []string, port uint32) {
	var gpus []string
	var ports []uint32
	for i := range r.Rails {
		l := &r.Rails[i]
		if !l.forVLLM() {
			continue
		}
		for _, g := range l.GPUs {
			gpus = append(gpus, g.PCI)
		}
		ports = append(ports, l.Port)
	}
	slices.Sort(gpus)
	used := make([]int, len(r.Rails))
	for _, gpu := range slices.Compact(gpus) {
		best, level := -1, pcie.Distance(0)
		for i := range r.Rails {
			dist, ok := r.Rails[i].distance(gpu)
			if ok && (best < 0 || dist < level || dist == level && used[i] < used[best]) {
				best, level = i, dist
			}
		}
		used[best]++
		pairs = append(pairs, gpu+"="+r.Rails[best].PCI)
	}
	if ports = slices.Compact(ports); len(ports) == 1 {
		port = ports[0]
	}
	return pairs, port
}

// forVLLM reports whether vLLM can select the rail for a GPU by the rail's PCI address, and hand
// the rail's device to UCX.
func (l *Rail) forVLLM() bool { return l.RDMA != "" && l.PCI != "" && len(l.RDMA) <= maxUCX }

// distance returns the distance of a GPU from the rail. ok is false if the rail has no RDMA, or
// does not have the GPU in its list.
func (l *Rail) distance(gpu string) (pcie.Distance, bool) {
	i := slices.IndexFunc(l.GPUs, func(g GPU) bool { return g.PCI == gpu })
	if i < 0 || !l.forVLLM() {
		return 0, false
	}
	return l.GPUs[i].Level, true
}

// NCCLConf returns the variables of NCCL in the form of a file that NCCL_CONF_FILE may name, with
// one KEY=value a line. The result has the variables even if the settings leave out the family
// NCCL.
func (r *Rails) NCCLConf(s Settings) []byte {
	s.Env = []Family{NCCL}
	var b strings.Builder
	b.WriteString("# written by rail-agent\n")
	for _, v := range r.Env(s) {
		if v.Name != ListVar {
			fmt.Fprintf(&b, "%s=%s\n", v.Name, v.Value)
		}
	}
	return []byte(b.String())
}

// EnvSh returns the variables of [Rails.Env] as a script for sh(1) that exports them.
func (r *Rails) EnvSh(s Settings) []byte {
	var b strings.Builder
	b.WriteString("# written by rail-agent\n")
	for _, v := range r.Env(s) {
		fmt.Fprintf(&b, "export %s=%s\n", v.Name, quote(v.Value))
	}
	return []byte(b.String())
}

// quote returns the value as one word of sh(1). In single quotes only a single quote is special,
// and the name of an RDMA device may contain one.
func quote(value string) string {
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}
