package nic

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// connect makes a TCP connection from one namespace to another, which ends with
// the test. own is the client's address, "" for any.
func connect(t *testing.T, from *testnet.Netns, own string, to *testnet.Netns, address string) {
	t.Helper()
	var l net.Listener
	var err error
	to.Inside(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	host, _, _ := net.SplitHostPort(address)
	d := net.Dialer{}
	if own != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(own)}
	}
	from.Inside(func() {
		if host == "" {
			host = "10.0.0.5" // the host's address, for a socket of both families
		}
		c, dialErr := d.Dial("tcp", net.JoinHostPort(host, port))
		if err = dialErr; err == nil {
			t.Cleanup(func() { c.Close() })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
}

func linkNamed(t *testing.T, n *testnet.Netns, name string) *link.Link {
	t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestGuardOfANICThatTheHostUses(t *testing.T) {
	file := func(h *Host, path, text string) {
		for _, root := range []string{h.Sys, h.Proc} {
			path := filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				panic(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				panic(err)
			}
		}
	}
	for name, c := range map[string]struct {
		use    func(t *testing.T, h *Host, host, wire *testnet.Netns)
		reason string
	}{
		"the host is a client": {func(t *testing.T, _ *Host, host, wire *testnet.Netns) {
			connect(t, host, "", wire, "10.0.0.1:0")
		}, "TCP connections by its address 10.0.0.5 (one to 10.0.0.1:"},
		"the host is a client over IPv6": {func(t *testing.T, _ *Host, host, wire *testnet.Netns) {
			connect(t, host, "fd00::5", wire, "[fd00::1]:0")
		}, "TCP connections by its address fd00::5 (one to [fd00::1]:"},
		"the host is a server": {func(t *testing.T, _ *Host, host, wire *testnet.Netns) {
			connect(t, wire, "", host, "10.0.0.5:0")
		}, "TCP connections by its address 10.0.0.5 (one to 10.0.0.1:"},
		"the host is a server by a socket of both families": {func(t *testing.T, _ *Host, host, wire *testnet.Netns) {
			connect(t, wire, "", host, ":0")
		}, "TCP connections by its address 10.0.0.5 (one to 10.0.0.1:"},
		"by its second address": {func(t *testing.T, _ *Host, host, wire *testnet.Netns) {
			connect(t, host, "10.0.0.6", wire, "10.0.0.1:0")
		}, "TCP connections by its address 10.0.0.6"},
		"a socket that only listens": {func(t *testing.T, _ *Host, host, _ *testnet.Netns) {
			host.Inside(func() {
				l, err := net.Listen("tcp", "10.0.0.5:0")
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { l.Close() })
			})
		}, ""},
		"a connection by another NIC": {func(t *testing.T, _ *Host, host, wire *testnet.Netns) {
			connect(t, host, "", wire, "10.1.0.1:0")
		}, ""},
		"a connection within the host": {func(t *testing.T, _ *Host, host, _ *testnet.Netns) {
			connect(t, host, "", host, "127.0.0.1:0")
		}, ""},
		"an NFS mount": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "thread-self/net/nfsfs/servers", "NV SERVER   PORT USE HOSTNAME\nv4 0a010001  801   2 other\nv4 0a000001  801   2 nas\n")
		}, "an NFS mount of the host has its server 10.0.0.1 behind it"},
		"an NFS mount over IPv6": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "thread-self/net/nfsfs/servers", "NV SERVER   PORT USE HOSTNAME\nv4 fd000000000000000000000000000001  801   2 nas\n")
		}, "an NFS mount of the host has its server fd00::1 behind it"},
		"an NFS mount by another NIC": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "thread-self/net/nfsfs/servers", "NV SERVER   PORT USE HOSTNAME\nv4 0a010001  801   2 nas\nv9\nv4 zz 1 1 x\n")
		}, ""},
		"an iSCSI session": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "class/iscsi_connection/connection1:0/address", "10.0.0.1\n")
		}, "an iSCSI session of the host has its server 10.0.0.1"},
		"an NVMe controller": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "class/nvme/nvme1/address", "traddr=10.0.0.1,trsvcid=4420\n")
		}, "an NVMe controller of the host has its server 10.0.0.1"},
		"an iSCSI session by a link-local address": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "class/iscsi_connection/connection1:0/persistent_address", "fe80::1%ens1\n")
		}, "an iSCSI session of the host has its server fe80::1%ens1"},
		"an NVMe controller by a link-local address and an altname": {func(_ *testing.T, h *Host, host, _ *testnet.Netns) {
			host.Batch(nil, "link property add dev ens1 altname storage1")
			file(h, "class/nvme/nvme1/address", "traddr=fe80::1%storage1,trsvcid=4420\n")
		}, "an NVMe controller of the host has its server fe80::1%storage1"},
		"an NVMe controller by a link-local address and an index": {func(t *testing.T, h *Host, host, _ *testnet.Netns) {
			file(h, "class/nvme/nvme1/address", fmt.Sprintf("traddr=fe80::1%%%d,trsvcid=4420\n", linkNamed(t, host, "ens1").Index))
		}, "an NVMe controller of the host has its server fe80::1%"},
		"an NVMe controller by a link-local address and an interface": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "class/nvme/nvme1/address", "traddr=fe80::1,trsvcid=4420,host_iface=ens1,src_addr=fe80::2\n")
		}, "an NVMe controller of the host has its server fe80::1%ens1"},
		"link-local addresses behind another NIC": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "class/iscsi_connection/connection1:0/persistent_address", "fe80::1%ens2\n")
			file(h, "class/nvme/nvme1/address", "traddr=fe80::1%ens2,trsvcid=4420\n")
			file(h, "class/nvme/nvme2/address", "traddr=fe80::1,trsvcid=4420,host_iface=ens2\n")
		}, ""},
		"link-local addresses behind a NIC that nothing tells": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "class/iscsi_connection/connection1:0/address", "fe80:0000:0000:0000:0000:0000:0000:0001\n")
			file(h, "class/nvme/nvme1/address", "traddr=fe80::1,trsvcid=4420\n")
			file(h, "thread-self/net/nfsfs/servers", "NV SERVER   PORT USE HOSTNAME\nv4 fe800000000000000000000000000001  801   2 nas\n")
		}, ""},
		"the node's address in the cluster": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			h.NodeIP = func() (netip.Addr, error) { return netip.MustParseAddr("10.0.0.6"), nil }
		}, "it has the node's address in the cluster, 10.0.0.6 (InternalIP)"},
		"the node's IPv6 address in the cluster": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			h.NodeIP = func() (netip.Addr, error) { return netip.MustParseAddr("fd00::5"), nil }
		}, "it has the node's address in the cluster, fd00::5 (InternalIP)"},
		"the node's address on another NIC": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			h.NodeIP = func() (netip.Addr, error) { return netip.MustParseAddr("10.1.0.5"), nil }
		}, ""},
		"a local NVMe controller": {func(_ *testing.T, h *Host, _, _ *testnet.Netns) {
			file(h, "class/nvme/nvme0/address", "0000:01:00.0\n")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			host, wire := testnet.NewNetns(t, "host"), testnet.NewNetns(t, "wire")
			host.NIC("ens1", wire)
			host.NIC("ens2", wire)
			host.Batch(nil, "addr add 10.0.0.5/24 dev ens1", "addr add 10.0.0.6/24 dev ens1", "addr add fd00::5/64 dev ens1 nodad", "addr add 10.1.0.5/24 dev ens2")
			wire.Batch(nil, "addr add 10.0.0.1/24 dev ens1-sw", "addr add fd00::1/64 dev ens1-sw nodad", "addr add 10.1.0.1/24 dev ens2-sw")
			h := &Host{Netns: host.Netns, Sys: t.TempDir(), Proc: t.TempDir()}
			c.use(t, h, host, wire)
			l := linkNamed(t, host, "ens1")
			err := h.Guard(viewOf(t, host, l), nil)
			if c.reason == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if failure.KindOf(err) != failure.NICProtected || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), `"allow": ["uplink"]`) {
				t.Errorf("error %v, want %q", err, c.reason)
			}
			if err := h.Guard(viewOf(t, host, l), []string{netconf.AllowUplink}); err != nil {
				t.Errorf("with its override: %v", err)
			}
		})
	}
}

// A link that the kernel does not move is refused first, and no key overrides
// that.
func TestGuardOfALinkThatTheKernelDoesNotMove(t *testing.T) {
	host := testnet.NewNetns(t, "host")
	host.Batch(nil, "link add br0 type bridge", "link add a0 type veth peer name b0")
	h := &Host{Netns: host.Netns, Sys: t.TempDir()}
	l, err := link.ByName(host.Netns, "br0")
	if err != nil {
		t.Fatal(err)
	}
	before := host.State()
	for _, allow := range [][]string{nil, netconf.Overrides} {
		err := h.Guard(viewOf(t, host, l), allow)
		if failure.KindOf(err) != failure.NICProtected || !strings.Contains(err.Error(), "netns-local") {
			t.Errorf("error %v", err)
		}
	}
	if l, err = link.ByName(host.Netns, "a0"); err != nil {
		t.Fatal(err)
	}
	if err := h.Guard(viewOf(t, host, l), nil); err != nil {
		t.Error(err)
	}
	if d := testnet.Diff(before, host.State()); d != "" {
		t.Errorf("looking changed the host:\n%s", d)
	}
}

func TestFunctionsBelowANIC(t *testing.T) {
	h := machine(t)
	functions := filepath.Join(h.Sys, "bus/pci/devices", pciPlain)
	pf := func() string { return h.functions(linkOf("pci", pciPlain)) }
	if got := pf(); got != "" {
		t.Errorf("without any: %q", got)
	}
	symlink(t, "../0000:3b:00.2", filepath.Join(functions, "virtfn0"))
	if got, want := pf(), "a virtual function or subfunction depends on it: 0000:3b:00.2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	symlink(t, "/dev/null", filepath.Join(functions, aux+"x", "sfnum"))
	h.Holder = func(device string) string {
		return map[string]string{"0000:3b:00.2": "pod a/b"}[device]
	}
	if got := pf(); !strings.HasPrefix(got, "2 virtual functions") || !strings.HasSuffix(got, "; 0000:3b:00.2 is lent to pod a/b") {
		t.Errorf("%q", got)
	}
	// A subfunction of a function with other subfunctions has no dependents
	// itself.
	symlink(t, "/dev/null", filepath.Join(h.Sys, "bus/pci/devices", pciKernel, aux, "sfnum"))
	if got := h.functions(linkOf("auxiliary", aux)); got != "" {
		t.Errorf("of a subfunction: %q", got)
	}
	if got := h.functions(linkOf("pci", pciKernel)); got == "" {
		t.Error("the function above it: none")
	}
}
