package owners

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// Manager is a network manager of a host, which owns its NICs.
type Manager struct {
	*Host
	*Daemon // nil before Begin
	daemon  func() *Daemon
	// configured reports whether the daemon has configured its NIC since Forget was called.
	configured func() bool
	// Forget is called before what makes the daemon configure its NIC anew.
	Forget func()
}

// Managers are the makers of managers, by name, whose daemons do not run yet, as owners of the
// NIC with a name.
var Managers = map[string]func(h *Host, nic string) *Manager{"systemd-networkd": NewNetworkd, "NetworkManager": NewNetworkManager}

// Loans are the kinds of loans of a NIC whose daemon runs: what happens to the daemon meanwhile. The
// daemon has done its work when a loan returns, or has ended.
var Loans = map[string]func(m *Manager, add, del func()){
	"running": func(m *Manager, add, del func()) {
		add()
		m.Forget()
		del()
		m.Configured()
	},
	"stopped": func(m *Manager, add, del func()) {
		m.Stop()
		add()
		del()
	},
	"ends during the loan": func(m *Manager, add, del func()) {
		add()
		m.Stop()
		del()
	},
	"begins during the loan": func(m *Manager, add, del func()) {
		m.Stop()
		add()
		m.Launch()
		m.Forget()
		del()
		m.Configured()
	},
}

// Lend lends the NIC again and again, and fails the test if the host's addresses, routes, rules
// and nexthop objects are not as before, with the daemon and without it. The daemon does not run
// yet; ready is called when it has configured the NIC.
func (m *Manager) Lend(count int, ready func(), loan func(m *Manager, add, del func()), add, del func()) {
	t := m.Host.t
	t.Helper()
	m.Begin()
	ready()
	before, nexthops := m.State(), m.IP("nexthop") // which State does not have
	unchanged := func() {
		t.Helper()
		if d := difference(m.Netns, before); d != "" {
			t.Errorf("the host is not as it was:\n%s", d)
		}
		if now := m.IP("nexthop"); now != nexthops {
			t.Errorf("the nexthop objects were %q, and are %q", nexthops, now)
		}
	}
	for round := range count {
		loan(m, add, del)
		unchanged()
		if m.Ended() != nil { // the daemon begins when all is done
			m.Begin()
			unchanged()
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// difference returns how a host with a manager differs from its state before, "" if it does not. The
// restore sets nodad on an address for a moment, and networkd, which may see that, sets the address
// once more with the flag.
func difference(host *testnet.Netns, before string) string {
	plain := func(state string) string { return strings.ReplaceAll(state, " nodad", "") }
	if d := host.Settled(before); d != "" && plain(host.State()) != plain(before) {
		return d
	}
	return ""
}

// networkdUnit configures a rail with all that a loan takes from it.
const networkdUnit = `[Match]
Name=%s

[Network]
LinkLocalAddressing=ipv6
IPv6AcceptRA=no

[Address]
Address=10.1.0.5/24
RouteMetric=500

[Address]
Address=10.2.0.5/24
AddPrefixRoute=no

[Address]
Address=fd00:1::5/64

[Route]
Destination=10.9.0.0/16
Gateway=10.1.0.1
Metric=101
MTUBytes=4000

[Route]
Destination=10.10.0.0/16
Gateway=10.1.0.1
Table=101

[Route]
Destination=10.2.0.0/24
Scope=link
PreferredSource=10.2.0.5
Metric=300

[Route]
Destination=fd00:9::/48
Gateway=fd00:1::1

[RoutingPolicyRule]
From=10.1.0.5
Table=101
Priority=2000

[RoutingPolicyRule]
From=fd00:1::5
Table=101
Priority=2001
`

// NewNetworkd returns systemd-networkd on the host, not running, as the owner of the NIC.
func NewNetworkd(h *Host, nic string) *Manager {
	h.t.Helper()
	h.Write("run/systemd/network/10-rail.network", fmt.Sprintf(networkdUnit, nic))
	links := filepath.Join(h.dir, "run/systemd/netif/links")
	return &Manager{
		Host:   h,
		daemon: func() *Daemon { return h.Start("lib/systemd/systemd-networkd") },
		configured: func() bool {
			l, err := link.ByName(h.Netns.Netns, nic)
			if err != nil {
				return false
			}
			about, err := os.ReadFile(filepath.Join(links, fmt.Sprint(l.Index)))
			return err == nil && strings.Contains(string(about), "ADMIN_STATE=configured\n")
		},
		Forget: func() {
			files, _ := filepath.Glob(links + "/*")
			for _, f := range files {
				_ = os.Remove(f) // the daemon removes that of a link that leaves, and writes it anew
			}
		},
	}
}

// bus is a configuration of dbus-daemon that allows everything.
const bus = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
<type>system</type>
<listen>unix:path=/run/bus</listen>
<auth>EXTERNAL</auth>
<policy context="default">
<allow user="*"/><allow own="*"/>
<allow send_type="method_call"/><allow send_type="signal"/><allow send_requested_reply="true"/>
<allow receive_type="method_call"/><allow receive_type="signal"/><allow receive_requested_reply="true"/>
</policy>
</busconfig>
`

const networkManagerConf = `[main]
plugins=keyfile
dns=none
rc-manager=unmanaged
auth-polkit=false
no-auto-default=*

[keyfile]
path=%s
unmanaged-devices=*,except:interface-name:%s
`

// networkManagerProfile configures a rail, as networkdUnit does.
const networkManagerProfile = `[connection]
id=%[1]s
uuid=8b1f5e2c-0d0b-4c3a-9a6e-0f6a2f3c1d11
type=ethernet
interface-name=%[1]s

[ipv4]
method=manual
address1=10.1.0.5/24
route1=10.9.0.0/16,10.1.0.1,150
route1_options=mtu=4000
route2=10.10.0.0/16,10.1.0.1
route2_options=table=101
routing-rule1=priority 2000 from 10.1.0.5 table 101

[ipv6]
method=manual
addr-gen-mode=0
address1=fd00:1::5/64
route1=fd00:9::/48,fd00:1::1
routing-rule1=priority 2001 from fd00:1::5 table 101
`

// NewNetworkManager returns NetworkManager on the host, not running, as the owner of the NIC. Its
// message bus runs until the test ends.
func NewNetworkManager(h *Host, nic string) *Manager {
	h.t.Helper()
	profiles := filepath.Join(h.dir, "profiles")
	if err := os.Chmod(h.Write("profiles/rail.nmconnection", fmt.Sprintf(networkManagerProfile, nic)), 0o600); err != nil {
		h.t.Fatal(err) // it reads no file that others can read
	}
	conf, none := h.Write("nm.conf", fmt.Sprintf(networkManagerConf, profiles, nic)), filepath.Join(h.dir, "none")
	messages := h.Start("usr/bin/dbus-daemon", "--config-file="+h.Write("bus.conf", bus), "--nofork", "--nopidfile")
	messages.await("the message bus", func() bool {
		_, err := os.Stat(filepath.Join(h.dir, "run/bus"))
		return err == nil
	})
	log, seen := filepath.Join(h.dir, "NetworkManager.log"), 0
	activations := func() int {
		text, _ := os.ReadFile(log)
		return strings.Count(string(text), "("+nic+"): Activation: successful, device activated.")
	}
	return &Manager{
		Host: h,
		daemon: func() *Daemon {
			return h.Start("usr/sbin/NetworkManager", "--debug", "--config="+conf, "--config-dir="+none, "--system-config-dir="+none,
				"--intern-config="+filepath.Join(none, "intern.conf"), "--state-file=/run/nm.state", "--pid-file=/run/nm.pid")
		},
		configured: func() bool { return activations() > seen },
		Forget:     func() { seen = activations() },
	}
}

// Launch starts the daemon.
func (m *Manager) Launch() {
	m.Host.t.Helper()
	m.Forget()
	m.Daemon = m.daemon()
}

// Begin starts the daemon, and waits until it has configured its NIC.
func (m *Manager) Begin() {
	m.Host.t.Helper()
	m.Launch()
	m.Configured()
}

// Configured waits until the daemon says that its NIC is configured.
func (m *Manager) Configured() {
	m.Host.t.Helper()
	m.await("the configuration", m.configured)
}
