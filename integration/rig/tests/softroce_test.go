//go:build rig

package tests

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/verbs"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestPodsSpeakVerbs lends two NICs of one rail, each with a Soft-RoCE device,
// to two pods, and has the usual programs write from one pod's memory to the
// other's.
func TestPodsSpeakVerbs(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "rdma=0")
			if err := kmod.SoftRoCE(); errors.Is(err, kmod.ErrNoSoftRoCE) {
				need.Skip(t, err)
			} else if err != nil {
				t.Fatal(err)
			}
			nics := []string{nicName(0), n.spare}
			for i, name := range nics {
				n.Batch(nil, "link set "+name+" mtu 9000 up")
				n.Exec("rdma", "link", "add", fmt.Sprintf("rxe%d", i), "type", "rxe", "netdev", name)
			}
			n.carrier(nics...)
			before, devices := n.State(), n.allRDMA()
			var pods []*pod
			for i, name := range nics {
				p := n.pod(fmt.Sprintf("pod%d", i+1))
				n.MustRun(p.call("ADD", "net1", n.config(0, verbsConfig(name))))
				pods = append(pods, p)
			}
			if left := n.allRDMA(); mode == rdma.Exclusive && len(left) != 0 {
				t.Errorf("still on the host: %v", left)
			}
			server, client := n.end(pods[0]), n.end(pods[1])
			turns, err := verbs.PingPong(t.Context(), 20, server, client)
			if err != nil {
				t.Fatal(err)
			}
			bandwidth, err := verbs.Bandwidth(t.Context(), 50, server, client)
			if err != nil || bandwidth <= 0 {
				t.Fatal(bandwidth, err)
			}
			t.Logf("ibv_rc_pingpong: %s; ib_write_bw: %.2f Gbit/s", turns, bandwidth)
			for i, p := range pods {
				n.MustRun(p.call("DEL", "net1", n.config(0, verbsConfig(nics[i]))))
			}
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, devices)
			}
		})
	}
}

func verbsConfig(nic string) map[string]any {
	return map[string]any{"device": nic, "rdma": "required", "ipam": map[string]any{"type": "whereabouts", "range": "172.31.1.0/24"}}
}

// allRDMA returns GUID, parent and uverbs number of each RDMA device of the host.
func (n *node) allRDMA() map[string]string {
	n.t.Helper()
	return n.rdmaIn(n.Netns.Netns, func(string) bool { return true })
}

// end returns the pod's RDMA in the record.
func (n *node) end(p *pod) verbs.End {
	n.t.Helper()
	for _, r := range n.records() {
		if r.ContainerID == p.container {
			gid := r.RDMA.GIDs[0]
			return verbs.End{Netns: p.Name, Device: gid.Device, GID: gid.Index, Address: gid.Address}
		}
	}
	n.t.Fatalf("%s has no record", p.container)
	return verbs.End{}
}
