package nic

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

const (
	pciVirtio = "0000:00:03.0" // ens1 by its virtio child
	pciPlain  = "0000:3b:00.0" // ens2, and the representors rep0 and rep1
	pciDPDK   = "0000:3b:00.1" // held by vfio-pci
	pciKernel = "0000:3b:00.2" // ens3, with a kernel's driver
	pciEmpty  = "0000:3b:00.3" // no netdev
	aux       = "mlx5_core.sf.4"
)

// machine makes a host netns with veth NICs, and a sysfs in which they belong
// to devices. (Virtual links have no parent in rtnetlink, like all links before
// Linux 5.14, so the code uses sysfs.)
func machine(t *testing.T) *Host {
	t.Helper()
	host, wire := testnet.NewNetns(t, "host"), testnet.NewNetns(t, "wire")
	for _, name := range []string{"ens1", "ens2", "ens3", "ens4", "rep0", "rep1"} {
		host.NIC(name, wire)
	}
	host.IP("link", "set", "ens1", "address", "02:00:00:00:00:01")
	host.IP("link", "property", "add", "dev", "ens1", "altname", "enp4s0np0")
	sys := t.TempDir()
	mkdir := func(path ...string) {
		if err := os.MkdirAll(filepath.Join(append([]string{sys}, path...)...), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const bridge = "devices/pci0000:3a/0000:3a:00.0"
	for device, dirs := range map[string][]string{
		"devices/pci0000:00/" + pciVirtio: {"virtio1/net/ens1", "virtio-ports"},
		bridge + "/" + pciPlain:           {"net/rep0", "net/ens2", "net/rep1", "net/of-another-netns"},
		bridge + "/" + pciDPDK:            {"vfio-dev"},
		bridge + "/" + pciKernel:          {"net/ens3", aux + "/net/ens4"},
		bridge + "/" + pciEmpty:           {"net"},
	} {
		for _, dir := range dirs {
			mkdir(device, dir)
		}
		symlink(t, filepath.Join(sys, device), filepath.Join(sys, "bus/pci/devices", filepath.Base(device)))
	}
	symlink(t, filepath.Join(sys, bridge, pciKernel, aux), filepath.Join(sys, "bus/auxiliary/devices", aux))
	symlink(t, "../../../../bus/pci/drivers/vfio-pci", filepath.Join(sys, bridge, pciDPDK, "driver"))
	symlink(t, "../../../../bus/pci/drivers/mlx5_core", filepath.Join(sys, bridge, pciKernel, "driver"))
	for name, port := range map[string]string{"rep0": "pf0vf0\n", "rep1": "c1pf0sf1\n", "ens2": "p0\n"} {
		mkdir("class/net", name)
		if err := os.WriteFile(filepath.Join(sys, "class/net", name, "phys_port_name"), []byte(port), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &Host{Netns: host.Netns, Sys: sys}
}

func symlink(t *testing.T, target, name string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.Symlink(target, name)); err != nil {
		t.Fatal(err)
	}
}

func TestSelect(t *testing.T) {
	h := machine(t)
	for _, c := range []struct {
		name   string
		s      Selector
		link   string // name of the netdev found
		pci    string
		driver string
		code   uint // of the error; Internal with ErrNotFound
		text   string
	}{
		{name: "by name", s: Selector{Device: "ens2"}, link: "ens2"},
		{name: "by altname", s: Selector{Device: "enp4s0np0"}, link: "ens1"},
		{name: "by MAC", s: Selector{HWAddr: "02:00:00:00:00:01"}, link: "ens1"},
		{name: "by MAC, written otherwise", s: Selector{HWAddr: "0200.0000.0001"}, link: "ens1"},
		{name: "by kernelpath", s: Selector{KernelPath: "/sys/devices/pci0000:3a/0000:3a:00.0/" + pciPlain}, link: "ens2"},
		{name: "by kernelpath of the virtio function", s: Selector{KernelPath: "/sys/devices/pci0000:00/" + pciVirtio + "/"}, link: "ens1"},
		{name: "by kernelpath of the virtio device", s: Selector{KernelPath: "/sys/devices/pci0000:00/" + pciVirtio + "/virtio1"}, link: "ens1"},
		{name: "by kernelpath that goes up and stays", s: Selector{KernelPath: "/sys/devices/x/../pci0000:00/" + pciVirtio}, link: "ens1"},
		{name: "by PCI, with representors", s: Selector{PCI: pciPlain}, link: "ens2"},
		{name: "by PCI, virtio", s: Selector{PCI: pciVirtio}, link: "ens1"},
		{name: "by PCI, with a kernel's driver", s: Selector{PCI: pciKernel}, link: "ens3"},
		{name: "by PCI, with a userspace driver", s: Selector{PCI: pciDPDK}, pci: pciDPDK, driver: "vfio-pci"},
		{name: "by auxiliary device", s: Selector{Aux: aux}, link: "ens4"},

		{name: "device before the rest", s: Selector{Device: "ens2", HWAddr: "02:00:00:00:00:01", KernelPath: "nonsense", PCI: pciKernel, Aux: aux}, link: "ens2"},
		{name: "hwaddr before the rest", s: Selector{HWAddr: "02:00:00:00:00:01", KernelPath: "nonsense", PCI: pciKernel, Aux: aux}, link: "ens1"},
		{name: "kernelpath before the rest", s: Selector{KernelPath: "/sys/devices/pci0000:00/" + pciVirtio, PCI: pciKernel, Aux: aux}, link: "ens1"},
		{name: "PCI before aux", s: Selector{PCI: pciKernel, Aux: aux}, link: "ens3"},
		{name: "the first decides, found or not", s: Selector{Device: "nobody", PCI: pciKernel}, code: cnierr.Internal, text: `device "nobody"`},

		{name: "no such name", s: Selector{Device: "ens9"}, code: cnierr.Internal, text: `device "ens9"`},
		{name: "no such MAC", s: Selector{HWAddr: "02:00:00:00:00:99"}, code: cnierr.Internal, text: "02:00:00:00:00:99"},
		{name: "no MAC", s: Selector{HWAddr: "02:00:00"}, code: cnierr.InvalidConfig, text: "aa:bb:cc:dd:ee:ff"},
		{name: "no such kernelpath", s: Selector{KernelPath: "/sys/devices/pci0000:99"}, code: cnierr.Internal, text: "pci0000:99"},
		{name: "a pattern is no kernelpath", s: Selector{KernelPath: "/sys/devices/pci0000:00/*"}, code: cnierr.Internal, text: "*"},
		{name: "kernelpath of a device without a netdev", s: Selector{KernelPath: "/sys/devices/pci0000:3a/0000:3a:00.0"}, code: cnierr.Internal},
		{name: "kernelpath elsewhere", s: Selector{KernelPath: "/etc/passwd"}, code: cnierr.InvalidConfig, text: "begin with /sys/devices/"},
		{name: "relative kernelpath", s: Selector{KernelPath: "sys/devices/pci0000:00"}, code: cnierr.InvalidConfig, text: "begin with"},
		{name: "kernelpath that climbs", s: Selector{KernelPath: "/sys/devices/../../etc"}, code: cnierr.InvalidConfig, text: "begin with"},
		{name: "kernelpath of all devices", s: Selector{KernelPath: "/sys/devices/"}, code: cnierr.InvalidConfig, text: "begin with"},
		{name: "no such PCI device", s: Selector{PCI: "0000:99:00.0"}, code: cnierr.Internal, text: "0000:99:00.0"},
		{name: "PCI device without a netdev", s: Selector{PCI: pciEmpty}, code: cnierr.Internal, text: pciEmpty},
		{name: "a device plugin's number", s: Selector{PCI: "0"}, code: cnierr.Internal},
		{name: "PCI that climbs", s: Selector{PCI: "../../../devices/pci0000:00/" + pciVirtio}, code: cnierr.Internal},
		{name: "no such auxiliary device", s: Selector{Aux: "mlx5_core.sf.9"}, code: cnierr.Internal},
		{name: "aux that climbs", s: Selector{Aux: "../../pci/devices/" + pciKernel}, code: cnierr.Internal},
		{name: "nothing", s: Selector{}, code: cnierr.InvalidConfig, text: `specify either "device", "hwaddr", "kernelpath" or "pciBusID"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := h.Select(c.s)
			if c.code != 0 {
				if got != nil || err == nil || cnierr.Code(err) != c.code || !strings.Contains(err.Error(), c.text) || errors.Is(err, ErrNotFound) != (c.code == cnierr.Internal) {
					t.Errorf("%+v, error %v (code %d), want code %d and %q", got, err, cnierr.Code(err), c.code, c.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			name := ""
			if got.Link != nil {
				name = got.Link.Name
			}
			if name != c.link || got.PCI != c.pci || got.Driver != c.driver {
				t.Errorf("found %q, PCI %q, driver %q, want %+v", name, got.PCI, got.Driver, c)
			}
		})
	}
}

func TestSelectByMACPrefersTheDevice(t *testing.T) {
	host := testnet.NewNetns(t, "host")
	host.NIC("ens1", testnet.NewNetns(t, "wire"))
	host.IP("link", "set", "ens1", "address", "02:00:00:00:00:01")
	host.IP("link", "add", "mv0", "link", "ens1", "type", "macvlan", "mode", "passthru")
	h := &Host{Netns: host.Netns, Sys: t.TempDir()}
	// Neither has a parent here, so the older one is selected.
	if got, err := h.Select(Selector{HWAddr: "02:00:00:00:00:01"}); err != nil || got.Link.Name != "ens1" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestIDsOfDevices(t *testing.T) {
	h := machine(t)
	for id, want := range map[string]struct{ pci, aux bool }{
		pciPlain: {true, false}, pciDPDK: {true, false}, aux: {false, true},
		"": {}, "0": {}, "1": {}, ".": {}, "..": {}, "../pci": {}, pciPlain + "/net": {}, pciPlain + "\x00": {}, "0000:99:00.0": {},
	} {
		if h.IsPCI(id) != want.pci || h.IsAux(id) != want.aux {
			t.Errorf("%q: PCI %v, auxiliary %v, want %+v", id, h.IsPCI(id), h.IsAux(id), want)
		}
	}
}

func TestPCIFunctionAboveALink(t *testing.T) {
	h := machine(t)
	symlink(t, filepath.Join(h.Sys, "devices/pci0000:00", pciVirtio, "virtio1"), filepath.Join(h.Sys, "bus/virtio/devices/virtio1"))
	symlink(t, filepath.Join(h.Sys, "devices/pci0000:00"), filepath.Join(h.Sys, "bus/platform/devices/no-pci"))
	for _, c := range []struct{ bus, dev, want string }{
		{"", "", ""},
		{"pci", pciPlain, pciPlain},
		{"virtio", "virtio1", pciVirtio},
		{"auxiliary", aux, pciKernel},
		{"auxiliary", "gone", ""},
		{"platform", "no-pci", ""},
	} {
		if got := h.pciOf(&link.Link{ParentBus: c.bus, ParentDev: c.dev}); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.bus, c.dev, got, c.want)
		}
	}
	if !h.HasRDMA(&link.Link{ParentBus: "pci", ParentDev: pciPlain}) {
		if err := os.Mkdir(filepath.Join(h.Sys, "bus/pci/devices", pciPlain, "infiniband"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for dev, want := range map[string]bool{pciPlain: true, pciKernel: false} {
		if got := h.HasRDMA(&link.Link{ParentBus: "pci", ParentDev: dev}); got != want {
			t.Errorf("RDMA of %s: %v", dev, got)
		}
	}
}

func TestKeysOfNICs(t *testing.T) {
	host, other := netns.ID{Inode: 1, Cookie: 5}, netns.ID{Inode: 2, Cookie: 6}
	port := func(mac byte, name string) *NIC {
		l := &link.Link{Name: name, ParentBus: "pci", ParentDev: pciPlain}
		if mac != 0 {
			l.PermMAC = []byte{2, 0, 0, 0, 0, mac}
		}
		return &NIC{Link: l, PCI: pciPlain}
	}
	veth := func(name string) *NIC { return &NIC{Link: &link.Link{Name: name, Kind: "veth"}} }
	type in struct {
		n    *NIC
		host netns.ID
	}
	for _, c := range []struct {
		name string
		a, b in
		same bool
	}{
		{"one NIC, renamed, seen from two netns", in{port(1, "a"), host}, in{port(1, "b"), other}, true},
		{"two ports of one function", in{port(1, "a"), host}, in{port(2, "b"), host}, false},
		{"two representors of one function", in{port(0, "a"), host}, in{port(0, "b"), host}, false},
		{"virtual NICs of two hosts", in{veth("a"), host}, in{veth("a"), other}, false},
		{"virtual NICs of one host", in{veth("a"), host}, in{veth("b"), host}, false},
		{"one virtual NIC", in{veth("a"), host}, in{veth("a"), host}, true},
		{"one function under a userspace driver", in{&NIC{PCI: pciDPDK, Driver: "vfio-pci"}, host}, in{&NIC{PCI: pciDPDK, Driver: "DPDKMode"}, other}, true},
	} {
		if a, b := c.a.n.Key(c.a.host), c.b.n.Key(c.b.host); (a == b) != c.same || a == "" {
			t.Errorf("%s: %q and %q", c.name, a, b)
		}
	}
}

func TestSelectorTexts(t *testing.T) {
	for want, s := range map[string]Selector{
		`device "a"`: {Device: "a", PCI: "b"}, `hwaddr "a"`: {HWAddr: "a"}, `kernelpath "a"`: {KernelPath: "a"},
		`PCI device "a"`: {PCI: "a"}, `auxiliary device "a"`: {Aux: "a"},
	} {
		if s.String() != want || s.IsZero() {
			t.Errorf("%q, want %q", s, want)
		}
	}
	if !(Selector{}).IsZero() {
		t.Error("IsZero")
	}
}
