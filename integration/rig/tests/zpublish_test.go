//go:build rig

package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// told returns what the agent tells the pod of a container, for which the runtime gave no
// UID; nil if there is nothing.
func (n *node) told(container string) *railinfo.Rails {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.state, "pods", container, "rails.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r := &railinfo.Rails{}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

// tells waits until what the agent tells the pod is so, and returns the time that it took.
func (n *node) tells(container, what string, is func(r *railinfo.Rails) bool) time.Duration {
	n.t.Helper()
	began := time.Now()
	if !testnet.Within(30*time.Second, func() bool { return is(n.told(container)) }) {
		n.t.Fatalf("not within 30 s: %s: %+v", what, n.told(container))
	}
	return time.Since(began)
}

// sameAsKernel compares a rail with what the kernel says of its port.
func (n *node) sameAsKernel(core *rdma.Core, l *railinfo.Rail, rail int) {
	n.t.Helper()
	devices, err := core.Devices()
	if err != nil {
		n.t.Fatal(err)
	}
	i := slices.IndexFunc(devices, func(d rdma.Device) bool { return d.Name == l.RDMA })
	if i < 0 {
		n.t.Errorf("there is no RDMA device %q", l.RDMA)
		return
	}
	d := devices[i]
	port, err := core.Port(d, 1)
	if err != nil {
		n.t.Fatal(err)
	}
	if l.Port != 1 || d.ParentDev != nicPCI(rail) || l.PCI != nicPCI(rail) || l.State != port.State.String() || l.LinkLayer != port.LinkLayer || l.SysImageGUID != d.SysImageGUID.String() {
		n.t.Errorf("rail %d: %+v; the kernel has %+v, %+v", rail, l, d, port)
	}
	table, err := core.GIDs(d, 1)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, g := range l.GIDs {
		if !slices.ContainsFunc(table.Entries, func(e ibaddr.GIDEntry) bool {
			return e.Index == g.Index && e.Type == g.Type && e.GID.String() == g.GID && e.GID.Addr().String() == g.IP
		}) {
			n.t.Errorf("rail %d has the GID %+v, the kernel %+v", rail, g, table.Entries)
		}
	}
	address := fmt.Sprintf("172.31.%d.2", rail+1)
	v2 := slices.IndexFunc(table.Entries, func(e ibaddr.GIDEntry) bool { return e.Type == ibaddr.RoCEv2 && e.GID.Addr().String() == address })
	if v2 < 0 || l.GIDIndexV2 == nil || *l.GIDIndexV2 != table.Entries[v2].Index {
		n.t.Errorf("rail %d: the index of RoCE v2 is %v, the kernel has %+v", rail, l.GIDIndexV2, table.Entries)
	}
	for _, path := range l.CharDevices {
		if _, err := os.Stat(path); err != nil {
			n.t.Errorf("rail %d: %v", rail, err)
		}
	}
	if len(l.CharDevices) == 0 {
		n.t.Errorf("rail %d has no char devices", rail)
	}
}

// sameAsRailctl compares the files with what railctl prints.
func (n *node) sameAsRailctl(container string) {
	n.t.Helper()
	told := n.told(container)
	told.Generation = 0
	out, errOut, code := n.railctl("pod", "default/trainer", "-o", "json")
	if want := string(told.JSON()); out != want || code != 0 {
		n.t.Errorf("railctl pod: exit code %d, %s\n%s\nrails.json has\n%s", code, errOut, out, want)
	}
	for format, file := range map[string]string{"nccl": "nccl.conf", "sh": "env.sh", "topo": "topo.xml"} {
		want, err := os.ReadFile(filepath.Join(n.state, "pods", container, file))
		if err != nil {
			n.t.Fatal(err)
		}
		if out, errOut, code := n.railctl("env", "default/trainer", "--format", format); out != string(want) || code != 0 {
			n.t.Errorf("railctl env --format %s: exit code %d, %s\n%s\n%s has\n%s", format, code, errOut, out, file, want)
		}
	}
}

// A pod is told what the kernel has, by the files and by railctl, and the files follow its
// GIDs.
func TestPodIsToldOfItsRails(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.up(2)
			n.nodeFile("rails: {auto: pciOrder}\nfabric: isolated")
			n.keep()
			before := n.State()
			p := n.pod("trainer")
			n.attachRails(p, 2)
			n.tells(p.container, "two rails", func(r *railinfo.Rails) bool {
				return r != nil && len(r.Rails) == 2 && r.Rails[0].GIDIndexV2 != nil && r.Rails[1].GIDIndexV2 != nil
			})
			core := n.core(n.Netns.Netns)
			if mode == rdma.Exclusive {
				core = n.core(p.Netns.Netns)
			}
			told := n.told(p.container)
			for rail := range 2 {
				l := &told.Rails[rail]
				if l.Rail == nil || *l.Rail != rail || l.IfName != podName(rail) || l.Gateway != fmt.Sprintf("172.31.%d.1", rail+1) || !slices.Equal(l.Addresses, []string{fmt.Sprintf("172.31.%d.2/24", rail+1)}) {
					t.Errorf("rail %d: %+v", rail, l)
				}
				n.sameAsKernel(core, l, rail)
			}
			vars := map[string]string{}
			for _, v := range told.Env(railinfo.SettingsOf(nil)) {
				vars[v.Name] = v.Value
			}
			if want := "=" + n.hca(told, 0) + "," + n.hca(told, 1); vars["NCCL_IB_HCA"] != want {
				t.Errorf("NCCL_IB_HCA is %q, not %q", vars["NCCL_IB_HCA"], want)
			}
			n.sameAsRailctl(p.container)

			generation := told.Generation
			p.IP("addr", "add", "172.31.1.99/24", "dev", "net1")
			took := n.tells(p.container, "the new GID", func(r *railinfo.Rails) bool {
				return slices.ContainsFunc(r.Rails[0].GIDs, func(g railinfo.GID) bool { return g.IP == "172.31.1.99" && g.Type == ibaddr.RoCEv2 })
			})
			timing.Check(t, "a new GID in rails.json after its address", took, 2*time.Second)
			if n.told(p.container).Generation <= generation {
				t.Error("the generation is the same")
			}
			n.sameAsRailctl(p.container)
			p.IP("addr", "del", "172.31.1.99/24", "dev", "net1")
			n.tells(p.container, "the GID goes", func(r *railinfo.Rails) bool {
				return !slices.ContainsFunc(r.Rails[0].GIDs, func(g railinfo.GID) bool { return g.IP == "172.31.1.99" })
			})
			n.endRails(p, 2)
			n.tells(p.container, "nothing is told any more", func(r *railinfo.Rails) bool { return r == nil })
			n.untouched(before)
		})
	}
}

// hca returns the RDMA device and port of a rail.
func (n *node) hca(r *railinfo.Rails, rail int) string {
	n.t.Helper()
	return fmt.Sprintf("%s:%d", r.Rails[rail].RDMA, r.Rails[rail].Port)
}
