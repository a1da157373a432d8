//go:build rig

package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// tooSlow reports whether facts, or results, are without a fact because it was not read in time.
func tooSlow(text string) bool { return strings.Contains(text, context.DeadlineExceeded.Error()) }

// collected returns the facts of the node. On a busy machine a source may take longer than the
// collector waits: then it reads them again.
func (n *node) collected(sample time.Duration) *fact.Facts {
	n.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; {
		f := collect.Node(n.t.Context(), collect.Options{StateDir: n.state, Sample: sample})
		text, err := json.Marshal(f)
		if err != nil {
			n.t.Fatal(err)
		}
		if !tooSlow(string(text)) || time.Now().After(deadline) {
			return f
		}
	}
}

// facts returns the facts of the node, and fails for those that are not known.
func (n *node) facts() *fact.Facts {
	n.t.Helper()
	f := n.collected(0)
	for i := range f.NICs.List.Value {
		nic := &f.NICs.List.Value[i]
		for name, why := range map[string]string{
			"adminUp": nic.AdminUp.Error, "carrier": nic.Carrier.Error, "mbps": nic.Mbps.Error, "MTU": nic.MTU.Error, "addresses": nic.Addresses.Error,
			"PCIe": nic.PCIe.Error, "carrierDown": nic.CarrierDown.Error, "rising": nic.Rising.Error, "IOMMU": nic.IOMMU.Error,
			"redirecting": nic.Redirecting.Error, "managedBy": nic.ManagedBy.Error, "ports": nic.Ports.Error, "VFs": nic.VFs.Error,
		} {
			if why != "" {
				n.t.Errorf("%s of %s %s: %s", name, nic.Name, nic.PCI, why)
			}
		}
	}
	return f
}

// hasGID reports whether the port has a RoCE v2 GID of an IPv4 address.
func hasGID(p fact.Port, netdev string) bool {
	return p.GIDs.OK() && slices.ContainsFunc(p.GIDs.Value, func(g fact.GID) bool {
		return g.Type == string(ibaddr.RoCEv2) && g.Netdev == netdev && strings.HasPrefix(g.Value, "0000:0000:0000:0000:0000:ffff:ac1f:")
	})
}

// TestDoctorsFactsOfRDMADevices reads them of a pod with some of the node's rails.
func TestDoctorsFactsOfRDMADevices(t *testing.T) {
	const lent = 3
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.up(rails)
			p := n.pod("trainer")
			n.attachRails(p, lent)
			f := n.facts()
			n.sound(f)
			if f.Host.RDMAMode.Value != string(mode) || len(f.Host.Uverbs.Value) < rails || !slices.Contains(f.Host.Modules.Value, "ib_core") {
				t.Errorf("mode %+v, uverbs %+v, modules %+v", f.Host.RDMAMode, f.Host.Uverbs, f.Host.Modules)
			}
			for rail := range rails {
				n.hasPort(f, rail, rail < lent)
			}
			if len(f.Pods) != 1 {
				t.Fatalf("pods %+v, attachments %+v", f.Pods, f.Ledger.Attachments)
			}
			pod := &f.Pods[0]
			for _, i := range pod.Interfaces.Value {
				if i.NIC != "" && (len(i.RDMA) != 1 || len(i.Addresses) == 0 || !i.Carrier) {
					t.Errorf("interface of the pod: %+v", i)
				}
			}
			own := 0
			for _, d := range pod.Devices.Value {
				if hasGID(d, podName(0)) || hasGID(d, podName(1)) || hasGID(d, podName(2)) {
					own++
				}
			}
			if !pod.Interfaces.OK() || !pod.Devices.OK() || own != lent || mode == rdma.Exclusive && len(pod.Devices.Value) != lent {
				t.Errorf("the pod has GIDs on %d devices: %+v, interfaces %+v", own, pod.Devices, pod.Interfaces)
			}
			n.endRails(p, lent)
			if f := n.facts(); len(f.Pods) != 0 || len(f.Ledger.Attachments.Value) != 0 {
				t.Errorf("after the end of the pod: %+v %+v", f.Pods, f.Ledger.Attachments)
			}
		})
	}
}

// sound fails for each finding about the node's NICs, attachments and pods.
func (n *node) sound(f *fact.Facts) {
	n.t.Helper()
	for _, r := range rule.Judge(doctor.Rules(), f) {
		for _, found := range r.Findings {
			if r.ID == "NIC-MTU" && (strings.Contains(found.Object, n.spare) || strings.Contains(found.Object, "enp1s0np0")) {
				continue // no rails, but without a node file all NICs with RDMA are judged
			}
			n.t.Errorf("%s: %s: %s", r.ID, found.Object, found.Evidence)
		}
		if len(r.Missing) > 0 {
			n.t.Errorf("%s is unknown: %v", r.ID, r.Missing)
		}
	}
}

// hasPort fails unless the NIC of the rail has its active port.
func (n *node) hasPort(f *fact.Facts, rail int, lent bool) {
	n.t.Helper()
	i := slices.IndexFunc(f.NICs.List.Value, func(nic fact.NIC) bool { return nic.Name == nicName(rail) })
	if i < 0 {
		n.t.Errorf("%s is not listed: %+v", nicName(rail), f.NICs.List)
		return
	}
	nic := &f.NICs.List.Value[i]
	ports := nic.Ports.Value
	if len(ports) != 1 || ports[0].Device != fmt.Sprintf("mlx5_%d", rail) || ports[0].State != "ACTIVE" || ports[0].PhysState != "LinkUp" ||
		ports[0].LinkLayer != "Ethernet" || ports[0].ActiveMTU != 4096 || ports[0].TableSize == 0 || hasGID(ports[0], podName(rail)) != lent {
		n.t.Errorf("ports of %s: %+v", nic.Name, ports)
	}
	if nic.PCI != nicPCI(rail) || !nic.AdminUp.Value || !nic.Carrier.Value || nic.MTU.Value != 9000 || (nic.Holder == "default/trainer") != lent || len(nic.CharDevices) == 0 {
		n.t.Errorf("%+v", nic)
	}
}
