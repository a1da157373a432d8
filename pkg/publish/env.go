package publish

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Var is a variable of the environment.
type Var struct{ Name, Value string }

// ListVar is the variable that lists the others.
const ListVar = "RAIL_CNI_ENV"

// The files of a pod.
const (
	railsFile = "rails.json"
	ncclFile  = "nccl.conf"
	envFile   = "env.sh"
	topoFile  = "topo.xml"
)

// Env returns the variables of the families in the settings. [ListVar] is the last one. It
// returns none for a pod without RDMA devices that a list can name.
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

// WithList returns the variables with a [ListVar] of their names as the last one. A former
// [ListVar] is left out. It returns nil if there are no others.
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

// inLists reports whether the name of an RDMA device can be in the lists of NCCL, UCX and
// NVSHMEM, and in a line of nccl.conf. The kernel lets a name have any characters, and root in
// a pod may have given it.
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

// roce returns the rails with RoCE.
func (r *Rails) roce() []Rail {
	var list []Rail
	for _, l := range r.Rails {
		if l.RDMA != "" && l.LinkLayer != "" && l.LinkLayer != infiniBand {
			list = append(list, l)
		}
	}
	return list
}

// nccl returns the variables of NCCL. "=" makes it compare whole names: without it mlx5_1
// would also match mlx5_10.
func (r *Rails) nccl(s Settings) []Var {
	vars := []Var{{"NCCL_IB_HCA", "=" + strings.Join(r.ports(), ",")}}
	vars = append(vars, r.ncclGID(s)...)
	if s.Isolated {
		vars = append(vars, Var{"NCCL_CROSS_NIC", "0"})
	}
	if s.Mount && slices.ContainsFunc(r.Rails, func(l Rail) bool { return l.RDMA != "" && l.PCI != "" }) {
		vars = append(vars, Var{"NCCL_TOPO_FILE", MountPoint + "/" + topoFile})
	}
	return vars
}

// ncclGID returns the variables by which NCCL chooses GIDs, where its defaults (an address
// of IPv4, RoCE v2) choose none. They hold for all rails.
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
	if all(func(l *Rail) bool { return l.hasType(rdma.RoCEv1) && !l.hasType(rdma.RoCEv2) }) {
		vars = append(vars, Var{"NCCL_IB_ROCE_VERSION_NUM", "1"})
	}
	first := rails[0].GIDIndexV2
	if s.FixedGIDIndex && all(func(l *Rail) bool { return first != nil && l.GIDIndexV2 != nil && *l.GIDIndexV2 == *first }) {
		vars = append(vars, Var{"NCCL_IB_GID_INDEX", strconv.Itoa(*first)})
	}
	return vars
}

// hasGID reports whether an address of the rail, of IPv6 or of IPv4, has a GID.
func (l *Rail) hasGID(ipv6 bool) bool {
	return slices.ContainsFunc(l.GIDs, func(g GID) bool { return strings.Contains(g.IP, ":") == ipv6 && l.has(g.IP) })
}

func (l *Rail) hasType(t rdma.GIDType) bool {
	return slices.ContainsFunc(l.GIDs, func(g GID) bool { return g.Type == t })
}

func (r *Rails) ucx(Settings) []Var {
	return []Var{{"UCX_NET_DEVICES", strings.Join(r.ports(), ",")}}
}

func (r *Rails) nvshmem(Settings) []Var {
	return []Var{{"NVSHMEM_HCA_LIST", strings.Join(r.ports(), ",")}}
}

// vllm returns the variables by which vLLM selects the NIC of each worker's GPU: pairs of
// PCI addresses, and the variables that it sets for a worker. It returns none without GPUs.
func (r *Rails) vllm(Settings) []Var {
	nics, port := r.nicOfGPUs()
	if len(nics) == 0 {
		return nil
	}
	selection := "UCX_NET_DEVICES"
	if port != 0 {
		selection += fmt.Sprintf(":%d", port)
	}
	return []Var{{"VLLM_GPU_NIC_PCIE_MAPPING", strings.Join(nics, ",")}, {"VLLM_NIC_SELECTION_VARS", selection}}
}

// nicOfGPUs returns "GPU=NIC" by PCI addresses for each GPU, sorted: of the nearest rails
// the one that has the fewest GPUs yet. port is the number of the ports, 0 if they differ.
func (r *Rails) nicOfGPUs() (pairs []string, port uint32) {
	var gpus []string
	var ports []uint32
	for i := range r.Rails {
		l := &r.Rails[i]
		if l.RDMA == "" || l.PCI == "" {
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
			at, ok := r.Rails[i].distance(gpu)
			if ok && (best < 0 || at < level || at == level && used[i] < used[best]) {
				best, level = i, at
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

// distance returns the distance of a GPU. It reports false if the rail has no RDMA, or does
// not know the GPU.
func (l *Rail) distance(gpu string) (pcie.Distance, bool) {
	i := slices.IndexFunc(l.GPUs, func(g GPU) bool { return g.PCI == gpu })
	if i < 0 || l.RDMA == "" || l.PCI == "" {
		return 0, false
	}
	return l.GPUs[i].Level, true
}

// NCCLConf returns the variables of NCCL as a file that NCCL_CONF_FILE may name: one
// KEY=value a line. It has them also if the settings leave out the family.
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

// quote returns the value as one word of sh(1). In single quotes nothing but a single quote
// is special, which a name of an RDMA device may have.
func quote(value string) string {
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}
