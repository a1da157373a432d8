package link

import (
	"net"
	"testing"
)

// IPoIBAddressOf returns the address of an InfiniBand interface.
func IPoIBAddressOf(queuePair, guid byte) net.HardwareAddr {
	return net.HardwareAddr{0x80, 0, 0, queuePair, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0xb8, 0xce, 0xf6, 0xff, 0xfe, 0, 0, guid}
}

// Devices with a parent need real hardware, but the comparison of identities does not.
func TestInfiniBandInterfaceIsKnownByItsGUID(t *testing.T) {
	at := func(kind, parent string, queuePair, guid byte) *Link {
		mac := IPoIBAddressOf(queuePair, guid)
		return &Link{Index: int(queuePair), Name: "ib0", Kind: kind, ParentDev: parent, ParentBus: "pci", MAC: mac, PermMAC: mac}
	}
	const function = "0000:3b:00.0"
	id := at(KindIPoIB, function, 1, 0x58).Identity()
	if got := id.Hardware(); got != "b8:ce:f6:ff:fe:00:00:58" {
		t.Errorf("%s", got)
	}
	for name, c := range map[string]struct {
		l    *Link
		same bool
	}{
		"made anew":                 {at(KindIPoIB, function, 9, 0x58), true},
		"of another port":           {at(KindIPoIB, function, 1, 0x59), false},
		"of another function":       {at(KindIPoIB, "0000:3b:00.1", 1, 0x58), false},
		"a child":                   {at(KindIPoIB, "", 1, 0x58), false},
		"of another kind":           {at("device", function, 1, 0x58), false},
		"in a pod that changed it":  {func() *Link { l := at(KindIPoIB, function, 9, 0x58); l.MAC = IPoIBAddressOf(9, 0xee); return l }(), true},
		"without an address at all": {&Link{Index: 1, Name: "ib0", Kind: KindIPoIB, ParentDev: function, ParentBus: "pci"}, false},
	} {
		if score := id.Score(c.l, nil); score > 0 != c.same {
			t.Errorf("%s: score %d", name, score)
		}
	}
	child := at(KindIPoIB, "", 1, 0x58).Identity()
	if score := child.Score(at(KindIPoIB, "", 2, 0x58), nil); score > 0 {
		t.Errorf("a child is taken for its sibling: score %d", score)
	}
	if score := child.Score(at(KindIPoIB, "", 1, 0x58), nil); score == 0 {
		t.Error("a child is not known by its queue pair")
	}
	ethernet := at("device", function, 1, 0x58)
	ethernet.MAC, ethernet.PermMAC = ethernet.MAC[:6], ethernet.PermMAC[:6]
	if got := ethernet.Identity().Hardware(); got != ethernet.PermMAC.String() {
		t.Errorf("of Ethernet: %s", got)
	}
}

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
				if s := id.Score(l, hints); s > score {
					best, score = l, s
				}
			}
			if best != c.want {
				t.Errorf("found %+v (score %d), want %+v", best, score, c.want)
			}
		})
	}
}

func TestIdentityWithAnyMAC(t *testing.T) {
	l := &Link{Name: "ens1v0", Index: 7, ParentDev: "0000:01:10.0", ParentBus: "pci", PermMAC: ParseMAC("02:00:00:00:00:01")}
	id := l.Identity()
	other := *l
	other.PermMAC = ParseMAC("02:00:00:00:00:02")
	if id.Is(&other) || id.Score(&other, nil) > 0 {
		t.Error("another permanent MAC is another NIC")
	}
	id.AnyMAC = true
	if !id.Is(&other) || id.Score(&other, nil) == 0 {
		t.Error("of a virtual function it is not")
	}
	other.ParentDev = "0000:01:10.2"
	if id.Is(&other) || id.Score(&other, nil) > 0 {
		t.Error("another function is another NIC")
	}
}
