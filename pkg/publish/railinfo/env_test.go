package railinfo

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/pcie/pcietest"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// entries returns the GID entries for an address as a RoCE port has them. The first one has the
// index index.
func entries(index int, ip string, types ...ibaddr.GIDType) []GID {
	var gids []GID
	for i, t := range types {
		gids = append(gids, GID{Index: index + i, Type: t, GID: "0000", IP: ip})
	}
	return gids
}

// withAddress adds an address to a rail, and the GIDs for it.
func withAddress(l *Rail, ip string, index int, types ...ibaddr.GIDType) {
	l.Addresses = append(l.Addresses, ip+"/24")
	l.GIDs = append(l.GIDs, entries(index, ip, types...)...)
	for _, g := range l.GIDs {
		if g.Type == ibaddr.RoCEv2 && l.HasAddress(g.IP) && l.GIDIndexV2 == nil {
			l.GIDIndexV2 = &g.Index
		}
	}
}

var both = []ibaddr.GIDType{ibaddr.RoCEv1, ibaddr.RoCEv2}

func TestEnvironment(t *testing.T) {
	m := machineOf(t)
	all := Settings{Env: []Family{NCCL, UCX, NVSHMEM, VLLM}}
	hcas := "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"
	others := []string{"UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1", "NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1"}
	for _, c := range []struct {
		name   string
		layer  string
		change func(*Rails, *Settings)
		nccl   []string // beside NCCL_IB_HCA
	}{
		{"IPv4", "Ethernet", func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "10.0.0.1", 2, both...)
			withAddress(&r.Rails[1], "10.1.0.1", 2, both...)
		}, nil},
		{"IPv6 only", "Ethernet", func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "fd00::1", 2, both...)
			withAddress(&r.Rails[1], "fd00:1::1", 2, both...)
		}, []string{"NCCL_IB_ADDR_FAMILY=AF_INET6"}},
		{"IPv6 on one rail only", "Ethernet", func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "fd00::1", 2, both...)
			withAddress(&r.Rails[1], "10.1.0.1", 2, both...)
		}, nil},
		{"no RoCE v2", "Ethernet", func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "10.0.0.1", 2, ibaddr.RoCEv1)
			withAddress(&r.Rails[1], "10.1.0.1", 2, ibaddr.RoCEv1)
		}, []string{"NCCL_IB_ROCE_VERSION_NUM=1"}},
		{"fixed index", "Ethernet", func(r *Rails, s *Settings) {
			s.FixedGIDIndex = true
			withAddress(&r.Rails[0], "10.0.0.1", 2, both...)
			withAddress(&r.Rails[1], "10.1.0.1", 2, both...)
		}, []string{"NCCL_IB_GID_INDEX=3"}},
		{"fixed index that differs", "Ethernet", func(r *Rails, s *Settings) {
			s.FixedGIDIndex = true
			withAddress(&r.Rails[0], "10.0.0.1", 2, both...)
			withAddress(&r.Rails[1], "10.1.0.1", 4, both...)
		}, nil},
		{"fixed index without addresses", "Ethernet", func(_ *Rails, s *Settings) { s.FixedGIDIndex = true }, nil},
		{"isolated fabric", "Ethernet", func(_ *Rails, s *Settings) { s.Isolated = true }, []string{"NCCL_CROSS_NIC=0"}},
		{"InfiniBand has no variables of RoCE", InfiniBand, func(r *Rails, s *Settings) {
			s.FixedGIDIndex = true
			withAddress(&r.Rails[0], "fd00::1", 0, ibaddr.RoCEv1)
			withAddress(&r.Rails[1], "fd00:1::1", 0, ibaddr.RoCEv1)
		}, nil},
		{"mounted", "Ethernet", func(_ *Rails, s *Settings) { s.Mount = true }, []string{"NCCL_TOPO_FILE=/run/rail-cni/pod/topo.xml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, s := railsAt(m, c.layer, "0000:0c:00.0", "0000:1c:00.0"), all
			c.change(r, &s)
			want := slices.Concat([]string{hcas}, c.nccl, others)
			var names []string
			for _, v := range want {
				name, _, _ := strings.Cut(v, "=")
				names = append(names, name)
			}
			want = append(want, "RAIL_CNI_ENV="+strings.Join(names, ","))
			if got := texts(r.Env(s)); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			conf := string(r.NCCLConf(s))
			if want := "# written by rail-agent\n" + strings.Join(append([]string{hcas}, c.nccl...), "\n") + "\n"; conf != want {
				t.Errorf("nccl.conf is\n%swant\n%s", conf, want)
			}
		})
	}
}

// TestEnvironmentLeadsToTheOwnGID has rails on ports whose GID tables also have entries of others,
// as with a macvlan. By default NCCL and UCX use the first entry.
func TestEnvironmentLeadsToTheOwnGID(t *testing.T) {
	const range4, index4, ucx4 = "NCCL_IB_ADDR_RANGE=10.0.0.1/32", "NCCL_IB_GID_INDEX=9", "UCX_IB_GID_INDEX=9"
	for name, c := range map[string]struct {
		rails  int
		change func(*Rails, *Settings)
		want   []string // of these variables
	}{
		"one rail": {1, func(r *Rails, _ *Settings) { withAddress(&r.Rails[0], "10.0.0.1", 8, both...) }, []string{range4, ucx4}},
		"not shared": {1, func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "10.0.0.1", 8, both...)
			r.Rails[0].SharedPort = false
		}, nil},
		"IPv6": {1, func(r *Rails, _ *Settings) { withAddress(&r.Rails[0], "fd00::1", 8, both...) }, []string{"NCCL_IB_ADDR_RANGE=fd00::1/128", ucx4}},
		"both families": {1, func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "fd00::1", 8, both...)
			withAddress(&r.Rails[0], "10.0.0.1", 12, both...)
		}, []string{range4, ucx4}},
		"no GID yet": {1, func(r *Rails, _ *Settings) { r.Rails[0].Addresses = []string{"10.0.0.1/24"} }, nil},
		"two rails, one index": {2, func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "10.0.0.1", 8, both...)
			withAddress(&r.Rails[1], "10.1.0.1", 8, both...)
		}, []string{index4, ucx4}},
		"two rails, two indexes": {2, func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "10.0.0.1", 8, both...)
			withAddress(&r.Rails[1], "10.1.0.1", 12, both...)
		}, nil},
		"two ports below one macvlan": {2, func(r *Rails, _ *Settings) {
			withAddress(&r.Rails[0], "10.0.0.1", 8, both...)
			withAddress(&r.Rails[1], "10.0.0.1", 12, both...)
		}, []string{range4}},
		"fixed index": {1, func(r *Rails, s *Settings) {
			s.FixedGIDIndex = true
			withAddress(&r.Rails[0], "10.0.0.1", 8, both...)
		}, []string{index4, ucx4}},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := railsAt(machineOf(t), "Ethernet", []string{"0000:0c:00.0", "0000:1c:00.0"}[:c.rails]...), Settings{Env: []Family{NCCL, UCX}}
			for i := range r.Rails {
				r.Rails[i].SharedPort = true
			}
			c.change(r, &s)
			got := slices.DeleteFunc(texts(r.Env(s)), func(text string) bool {
				return !strings.HasPrefix(text, "NCCL_IB_ADDR_RANGE=") && !strings.HasPrefix(text, "NCCL_IB_GID_INDEX=") && !strings.HasPrefix(text, "UCX_IB_GID_INDEX=")
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestUCXIsGivenOnlyNamesThatItFinds has an RDMA device whose name UCX would cut off. UCX would
// then find no device, and not use another network either.
func TestUCXIsGivenOnlyNamesThatItFinds(t *testing.T) {
	r := railsAt(machineOf(t), "Ethernet", "0000:0c:00.0", "0000:1c:00.0")
	r.Rails[0].RDMA = "roceP22p3s0f0v10"
	if got, want := texts(r.ucx(Settings{})), []string{"UCX_NET_DEVICES=mlx5_1:1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for i := range r.Rails {
		r.Rails[i].GPUs = []GPU{{PCI: "0000:40:00.0", Level: pcie.Distance(i)}} // the first is nearer
	}
	if pairs := texts(r.vllm(Settings{})); pairs[0] != "VLLM_GPU_NIC_PCIE_MAPPING=0000:40:00.0=0000:1c:00.0" {
		t.Errorf("a worker of vLLM gets a device that UCX does not find: %q", pairs)
	}
	r.Rails[1].RDMA = "roceP22p3s0f0v11"
	if got := r.Env(Settings{Env: []Family{UCX}}); got != nil {
		t.Errorf("got %q for names that UCX does not find", got)
	}
	if got := texts(r.nccl(Settings{})); !slices.Contains(got, "NCCL_IB_HCA==roceP22p3s0f0v10:1,roceP22p3s0f0v11:1") {
		t.Errorf("NCCL finds long names, and gets %q", got)
	}
}

func texts(vars []Var) []string {
	var list []string
	for _, v := range vars {
		list = append(list, v.Name+"="+v.Value)
	}
	return list
}

func TestEnvironmentHasTheFamiliesThatAreAskedFor(t *testing.T) {
	r := railsAt(machineOf(t), "Ethernet", "0000:0c:00.0")
	if got, want := texts(r.Env(Settings{Env: []Family{UCX}})), []string{"UCX_NET_DEVICES=mlx5_0:1", "RAIL_CNI_ENV=UCX_NET_DEVICES"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := r.Env(Settings{}); got != nil {
		t.Errorf("got %q without a family", got)
	}
	r.Rails[0].RDMA = ""
	if got := r.Env(Settings{Env: []Family{NCCL, UCX}}); got != nil {
		t.Errorf("got %q without RDMA", got)
	}
}

// Two macvlans on one port are two rails, but one device.
func TestEnvironmentNamesAPortOnce(t *testing.T) {
	r := railsAt(machineOf(t), "Ethernet", "0000:0c:00.0", "0000:1c:00.0")
	r.Rails[1].RDMA = r.Rails[0].RDMA
	if got, want := r.Env(Settings{Env: []Family{NCCL}})[0].Value, "=mlx5_0:1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Each GPU gets the nearest NIC. GPUs at the same distance share the NICs evenly.
func TestEachGPUGetsANearNIC(t *testing.T) {
	var functions []pcietest.Function
	for numa, bus := range []string{"10", "20"} {
		for i := range 2 {
			functions = append(functions,
				pcietest.Function{Path: strings.ReplaceAll("pci0000:BB/0000:BB:01.0/0000:BB:02.0/0000:BB:03.", "BB", bus) + string(rune('0'+i)) + "/0000:" + bus + ":1" + string(rune('0'+i)) + ".0", Class: pcietest.ClassGPU, NUMA: numa},
				pcietest.Function{Path: strings.ReplaceAll("pci0000:BB/0000:BB:01.0/0000:BB:02.0/0000:BB:04.", "BB", bus) + string(rune('0'+i)) + "/0000:" + bus + ":18." + string(rune('0'+i)), Class: pcietest.ClassRoCE, NUMA: numa})
		}
	}
	m := machineOf(t, functions...)
	r := railsAt(m, "Ethernet", "0000:10:18.0", "0000:10:18.1", "0000:20:18.0")
	if got, want := r.Rails[0].PCIeSwitch, "0000:10:02.0"; got != want {
		t.Errorf("switch %q, want %q", got, want)
	}
	if g := r.Rails[2].GPUs[0]; g.PCI != "0000:20:10.0" || g.Level != pcie.PIX {
		t.Errorf("the nearest GPU is %+v", g)
	}
	want := []string{
		"VLLM_GPU_NIC_PCIE_MAPPING=0000:10:10.0=0000:10:18.0,0000:10:11.0=0000:10:18.1,0000:20:10.0=0000:20:18.0,0000:20:11.0=0000:20:18.0",
		"VLLM_NIC_SELECTION_VARS=UCX_NET_DEVICES:1", "RAIL_CNI_ENV=VLLM_GPU_NIC_PCIE_MAPPING,VLLM_NIC_SELECTION_VARS",
	}
	if got := texts(r.Env(Settings{Env: []Family{VLLM}})); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestScriptIsQuoted(t *testing.T) {
	const value = `a'$(touch /tmp/owned)"; b`
	out, err := exec.Command("sh", "-c", "export UCX_NET_DEVICES="+quote(value)+`; printf %s "$UCX_NET_DEVICES"`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := string(out); got != value {
		t.Errorf("sh has %q, want %q", got, value)
	}
}

// The kernel allows any characters in the name of an RDMA device, and root in a pod that shares the
// device may have chosen them. They must not become another device or another line.
func TestEnvironmentHasNoNameThatIsNoElementOfAList(t *testing.T) {
	all := Settings{Env: []Family{NCCL, UCX, NVSHMEM}}
	for _, name := range []string{"a\nNCCL_NET_PLUGIN=/tmp/x", "mlx5_0,mlx5_9", "a:2", "a b", "=a", "^a", "\xff", "ü", "a'", "$(a)"} {
		r := railsAt(machineOf(t), "Ethernet", "0000:0c:00.0", "0000:1c:00.0")
		r.Rails[0].RDMA = name
		if got, want := texts(r.Env(all)[:1]), []string{"NCCL_IB_HCA==mlx5_1:1"}; !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
		if conf := string(r.NCCLConf(all)); strings.Contains(conf, "PLUGIN") {
			t.Errorf("nccl.conf is\n%s", conf)
		}
		r.Rails = r.Rails[:1]
		if got := r.Env(all); got != nil {
			t.Errorf("%q alone: got %q", name, got)
		}
	}
}

// TestEnvironmentNamesThePartition: NCCL and UCX each have one variable for all rails.
func TestEnvironmentNamesThePartition(t *testing.T) {
	m := machineOf(t)
	type at struct {
		key   string
		index int // -1: the port is not in the partition
	}
	for name, c := range map[string]struct {
		layer string
		rails [2]at
		want  []string
	}{
		"the default":                   {InfiniBand, [2]at{{"0xffff", 0}, {"0xffff", 0}}, nil},
		"one at index 0":                {InfiniBand, [2]at{{"0x8001", 0}, {"0x8001", 0}}, nil},
		"limited at index 0":            {InfiniBand, [2]at{{"0x7fff", 0}, {"0x7fff", 0}}, []string{"UCX_IB_PKEY=0x7fff"}},
		"one at the same index":         {InfiniBand, [2]at{{"0x8001", 2}, {"0x8001", 2}}, []string{"NCCL_IB_PKEY=2", "UCX_IB_PKEY=0x0001"}},
		"one, a member of it limited":   {InfiniBand, [2]at{{"0x0001", 2}, {"0x8001", 2}}, []string{"NCCL_IB_PKEY=2", "UCX_IB_PKEY=0x0001"}},
		"one at different indexes":      {InfiniBand, [2]at{{"0x8001", 2}, {"0x8001", 1}}, []string{"UCX_IB_PKEY=0x0001"}},
		"one at index 0 and another":    {InfiniBand, [2]at{{"0x8001", 0}, {"0x8001", 1}}, []string{"UCX_IB_PKEY=0x0001"}},
		"two at the same index":         {InfiniBand, [2]at{{"0x8001", 1}, {"0x8002", 1}}, []string{"NCCL_IB_PKEY=1"}},
		"a rail outside its partition":  {InfiniBand, [2]at{{"0x8001", 1}, {"0x8001", -1}}, nil},
		"beside a rail of RoCE":         {"", [2]at{{"0x8001", 1}, {"", -1}}, nil},
		"Ethernet, whatever is in them": {"Ethernet", [2]at{{"0x8001", 1}, {"0x8001", 1}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := railsAt(m, c.layer, "0000:0c:00.0", "0000:1c:00.0")
			for i, a := range c.rails {
				if c.layer == "" { // one of each
					r.Rails[i].LinkLayer = []string{InfiniBand, "Ethernet"}[i]
				}
				r.Rails[i].PKey = a.key
				if a.index >= 0 {
					r.Rails[i].PKeyIndex = &a.index
				}
			}
			var have []string
			for _, v := range texts(r.Env(Settings{Env: []Family{NCCL, UCX}})) {
				if strings.Contains(v, "_IB_PKEY=") {
					have = append(have, v)
				}
			}
			if !slices.Equal(have, c.want) {
				t.Errorf("%q, not %q", have, c.want)
			}
		})
	}
}
