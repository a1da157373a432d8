package link

import (
	"net"
	"testing"
)

// Devices with a parent need real hardware; the comparison of identities does
// not.
func TestScoreTellsTheNetdevsOfOneFunctionApart(t *testing.T) {
	mac := func(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }
	port1 := &Link{Index: 4, Name: "p0", Kind: "device", ParentDev: "0000:3b:00.0", ParentBus: "pci", MAC: mac(1), PermMAC: mac(1)}
	port2 := &Link{Index: 5, Name: "p1", Kind: "device", ParentDev: "0000:3b:00.0", ParentBus: "pci", MAC: mac(2), PermMAC: mac(2)}
	rep1 := &Link{Index: 6, Name: "r0", Kind: "device", ParentDev: "0000:3b:00.0", ParentBus: "pci", MAC: mac(3)}
	rep2 := &Link{Index: 7, Name: "r1", Kind: "device", ParentDev: "0000:3b:00.0", ParentBus: "pci", MAC: mac(4)}
	other := &Link{Index: 4, Name: "p0", Kind: "device", ParentDev: "0000:3b:00.1", ParentBus: "pci", MAC: mac(1), PermMAC: mac(1)}
	virtual := &Link{Index: 4, Name: "p0", Kind: "veth", MAC: mac(1)}
	all := []*Link{port1, port2, rep1, rep2, other, virtual}

	moved := func(l *Link, name string, index int, m net.HardwareAddr) *Link {
		c := *l
		c.Name, c.Index, c.MAC = name, index, m
		return &c
	}
	for _, c := range []struct {
		name string
		id   *Link
		in   []*Link
		want *Link
	}{
		{"a port by its permanent MAC alone", moved(port2, "net9", 99, mac(9)), all, port2},
		{"a port that is away is not its sibling", port1, []*Link{port2, rep1, rep2, other, virtual}, nil},
		{"a representor by its name", moved(rep2, "r1", 99, mac(9)), all, rep2},
		{"a representor by its MAC", moved(rep2, "x", 99, mac(4)), all, rep2},
		{"a representor by its index", moved(rep1, "x", 6, mac(9)), all, rep1},
		{"a representor that is away is not its sibling, nor the port", rep1, []*Link{port1, port2, rep2}, nil},
		{"a representor of which nothing is as it was", moved(rep1, "x", 99, mac(9)), all, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, hints := c.id.Identity(), []string{"", c.id.Name}
			var best *Link
			score := 0
			for _, l := range c.in {
				if s := id.score(l, hints); s > score {
					best, score = l, s
				}
			}
			if best != c.want {
				t.Errorf("found %+v (score %d), want %+v", best, score, c.want)
			}
		})
	}
}
