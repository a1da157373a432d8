//go:build rig

package tests

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// setDriver sets a parameter of the NICs' driver.
func setDriver(t *testing.T, parameter, value string) {
	t.Helper()
	write(t, "/sys/module/fakerdma/parameters/"+parameter, value)
}

// TestAddEndsWhenTheLinkIsUp has NICs that are slow to close and whose links train, as
// those of 200 Gbit/s do after each move.
func TestAddEndsWhenTheLinkIsUp(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	n.peerUp()
	heard := n.Announced(n.spare)
	before := n.State()
	setDriver(t, "stop_ms", "200")
	setDriver(t, "link_delay_ms", "1500")
	more := func(policy, timeout string) map[string]any {
		m := map[string]any{"rdma": policy, "ipam": map[string]any{"type": "whereabouts", "range": "172.31.1.0/24"}}
		if timeout != "" {
			m["linkTimeout"] = timeout
		}
		return m
	}
	p, config := n.pod("pod1"), n.config(0, more("required", ""))
	n.MustRun(p.call("ADD", "net1", config))
	if state := p.portState(t); state != rdma.PortActive {
		t.Errorf("the port is %s after ADD", state)
	}
	r := n.records()[0]
	if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || !l.HasCarrier() {
		t.Errorf("net1 has no carrier after ADD: %v", err)
	}
	if r.Link == nil || !r.Link.Up || r.Link.Waited() < time.Second {
		t.Errorf("link in the record: %+v", r.Link)
	}
	if r.MovedMS < 200 {
		t.Errorf("the record says that the moves took %d ms at most", r.MovedMS)
	}
	n.announced(heard, "172.31.1.1 is at "+r.MAC)
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)

	p, config = n.pod("pod2"), n.config(0, more("required", "300ms"))
	_, err := n.Run(p.call("ADD", "net1", config))
	mustFail(t, err, cnierr.TryAgain, `"rdma" is required`, "interface net1 ("+nicName(0)+") has no carrier", "after it was set up", "cable", `"linkTimeout"`)
	n.untouched(before)

	setDriver(t, "link_delay_ms", "0")
	setDriver(t, "port_down", "Y")
	_, err = n.Run(p.call("ADD", "net1", config))
	mustFail(t, err, cnierr.TryAgain, `"rdma" is required`, "port 1 of mlx5_0 is DOWN", "cable", `"linkTimeout"`)
	n.untouched(before)
	for policy, timeout := range map[string]string{"auto": "", "required": "0s"} {
		p := n.pod("pod-" + policy)
		config := n.config(0, more(policy, timeout))
		_, said, err := n.RunSaying(p.call("ADD", "net1", config))
		if err != nil || !strings.Contains(said, "pod starts while its link is down") || !strings.Contains(said, "port 1 of mlx5_0 is DOWN") {
			t.Errorf("rdma %s: %v, %s", policy, err, said)
		}
		if r := n.records()[0]; r.Link == nil || r.Link.Up {
			t.Errorf("rdma %s: link in the record: %+v", policy, r.Link)
		}
		n.MustRun(p.call("DEL", "net1", config))
		n.untouched(before)
	}
}

// The node's administrator sees that a lent NIC has lost its link.
func TestStateOfALentLinkIsTold(t *testing.T) {
	for _, mode := range []rdma.Mode{rdma.Exclusive, rdma.Shared} {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.up(1)
			n.keep()
			p, config := n.pod("pod"), n.config(0, map[string]any{"rdma": "required"})
			n.MustRun(p.call("ADD", "net1", config))
			told := func(link, port, shown string) {
				t.Helper()
				const labels = `{ifname="net1",nic="ens11np0"`
				all := n.scrape()
				for _, want := range []string{
					"rail_cni_link_up" + labels + "} " + link, `rail_cni_port_active` + labels + `,port="1",rdma_device="mlx5_0"} ` + port,
				} {
					if !slices.Contains(all, want+"\n") {
						t.Errorf("no %s in\n%s", want, strings.Join(all, ""))
					}
				}
				out, errOut, code := n.railctl("show")
				if fields := strings.Join(strings.Fields(out), " "); code != 0 || !strings.Contains(fields, shown) {
					t.Errorf("railctl show lacks %q: %s%s", shown, out, errOut)
				}
			}
			told("1", "1", "9000 up - mlx5_0/1 ACTIVE")
			setDriver(t, "port_down", "Y")
			told("1", "0", "9000 up - mlx5_0/1 DOWN")
			setDriver(t, "port_down", "N")
			p.IP("link", "set", "net1", "carrier", "off")
			told("0", "0", "9000 down - mlx5_0/1 DOWN")
			n.MustRun(p.call("DEL", "net1", config))
		})
	}
}

// A NIC fails while its pod has it: metrics, railctl show and CHECK tell so at once, and
// that it has recovered.
func TestWhatHappensToALentNICIsTold(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	before := n.State()
	n.keep()
	p := n.pod("trainer")
	add := p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "required", "ipam": map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}},
	}}))
	check := add.With("CHECK")
	check.Config = withResult(t, add.Config, n.MustRun(add))
	n.MustRun(check)
	const labels = `{ifname="net1",nic="ens11np0"`
	shows := func(shown string) {
		t.Helper()
		out, errOut, code := n.railctl("show")
		if fields := strings.Join(strings.Fields(out), " "); code != 0 || !strings.Contains(fields, shown) {
			t.Errorf("railctl show lacks %q: %s%s", shown, out, errOut)
		}
	}
	for state, shown := range map[string]string{"DOWN": "mlx5_0/1 DOWN", "INIT": "mlx5_0/1 INIT"} {
		write(t, function(0, "port_state"), state)
		n.exported(`rail_cni_port_active` + labels + `,port="1",rdma_device="mlx5_0"} 0`)
		n.exported("rail_cni_link_up" + labels + "} 1")
		shows("9000 up 172.31.1.9/24 " + shown)
		_, err := n.Run(check)
		mustFail(t, err, cnierr.Mismatch, "port 1 of mlx5_0 is "+state)
	}
	write(t, function(0, "port_state"), "auto")
	n.exported(`rail_cni_port_active` + labels + `,port="1",rdma_device="mlx5_0"} 1`)
	n.MustRun(check)

	write(t, function(0, "carrier"), "0")
	n.exported("rail_cni_link_up" + labels + "} 0")
	shows("9000 down 172.31.1.9/24 mlx5_0/1 DOWN")
	_, err := n.Run(check)
	mustFail(t, err, cnierr.Mismatch, "port 1 of mlx5_0 is DOWN")
	write(t, function(0, "carrier"), "1")
	n.exported("rail_cni_link_up" + labels + "} 1")

	write(t, function(0, "port_counter"), "out_of_sequence 42")
	write(t, function(0, "speed"), "100000")
	for _, want := range []string{"rdma_out_of_sequence_total{…} 42", "rdma_vport_speed_mbps_total{…} 100000"} {
		name, value, _ := strings.Cut(want, "{…}")
		n.eventually(want, func() bool {
			return slices.ContainsFunc(n.metrics(), func(l string) bool {
				return strings.HasPrefix(l, name+"{") && strings.HasSuffix(l, "}"+value+"\n") && hasLabels(l, `node_name="rig"`, `ifname="mlx5_0"`, `net_dev_name="net1"`)
			})
		})
	}
	write(t, function(0, "speed"), "200000")

	// The hardware's GID table takes no more, when the kernel adds the GID again.
	write(t, function(0, "refuse_gids"), "1")
	p.IP("address", "del", "172.31.1.9/24", "dev", "net1")
	p.IP("address", "add", "172.31.1.9/24", "dev", "net1")
	n.eventually("CHECK tells of the GID", func() bool {
		_, err := n.Run(check)
		return err != nil && strings.Contains(err.Error(), "GID")
	})
	n.MustRun(add.With("DEL"))
	n.untouched(before)
	// Nor does the next pod's ADD pass over it.
	_, err = n.Run(add)
	mustFail(t, err, cnierr.TryAgain, "RDMA device mlx5_0", "GID", `"gidTimeout"`)
	n.untouched(before)
	write(t, function(0, "refuse_gids"), "0")
	n.MustRun(add)
	n.MustRun(add.With("DEL"))
	n.untouched(before)
}

// The link trains for longer than ADD lasts. Then the agent announces the addresses.
func TestAgentAnnouncesAddressesWhenTheCarrierComesAfterAdd(t *testing.T) {
	n := newNode(t)
	n.up(1)
	n.peerUp()
	heard := n.Announced(n.spare)
	n.keep()
	setDriver(t, "link_delay_ms", "10000")
	p, config := n.pod("pod"), n.config(0, map[string]any{"linkTimeout": "100ms", "ipam": map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}, {"address": "fd31::9/64"}},
	}})
	n.MustRun(p.call("ADD", "net1", config))
	r := n.records()[0]
	if r.Link == nil || r.Link.Up {
		t.Fatalf("ADD has waited for the carrier: %+v", r.Link)
	}
	for _, ip := range []string{"172.31.1.9", "fd31::9"} {
		if said := heard(); slices.Contains(said, ip+" is at "+r.MAC) {
			t.Errorf("announced without a carrier: %q", said)
		}
	}
	for _, ip := range []string{"172.31.1.9", "fd31::9"} {
		n.announced(heard, ip+" is at "+r.MAC)
	}
	setDriver(t, "link_delay_ms", "0")
	n.MustRun(p.call("DEL", "net1", config))
}

// Duplicate address detection begins with the carrier.
func TestDuplicateAddressIsNoticedAlthoughTheCarrierComesLate(t *testing.T) {
	n := newNode(t)
	n.up(1)
	n.peerUp()
	n.IP("address", "add", "fd31::9/64", "dev", n.spare, "nodad")
	before := n.State()
	setDriver(t, "link_delay_ms", "5000") // longer than earlier versions waited
	config := func(address string) string {
		return n.config(0, map[string]any{"linkTimeout": "30s", "ipam": map[string]any{
			"type": "static", "addresses": []map[string]any{{"address": address}},
		}})
	}
	p := n.pod("pod")
	p.Sysctl("ipv6/conf/default/accept_dad", "1")
	_, err := n.Run(p.call("ADD", "net1", config("fd31::9/64")))
	if err == nil || !strings.Contains(err.Error(), "duplicate address") || !strings.Contains(err.Error(), "fd31::9") {
		t.Errorf("ADD of a duplicate: %v", err)
	}
	n.untouched(before)
	n.MustRun(p.call("ADD", "net1", config("fd31::8/64")))
	if left := p.IP("-6", "address", "show", "dev", "net1", "scope", "global", "tentative"); left != "" {
		t.Errorf("not checked after ADD: %s", left)
	}
	n.MustRun(p.call("DEL", "net1", config("fd31::8/64")))
	n.untouched(before)
}

// peerUp sets the spare NIC up, which is on the same switch.
func (n *node) peerUp() {
	n.t.Helper()
	n.IP("link", "set", n.spare, "up")
	n.carrier(n.spare)
}

// portState returns the state of the port of the pod's only RDMA device.
func (p *pod) portState(t *testing.T) rdma.PortState {
	t.Helper()
	core, err := rdma.Open(p.Netns.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	devices, err := core.Devices()
	if err != nil || len(devices) != 1 {
		t.Fatalf("RDMA devices of the pod: %v, %v", devices, err)
	}
	port, err := core.Port(devices[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	return port.State
}

// announced waits until an announcement is heard.
func (n *node) announced(heard func() []string, want string) {
	n.t.Helper()
	if !testnet.Within(30*time.Second, func() bool { return slices.Contains(heard(), want) }) {
		n.t.Fatalf("never heard that %s, only %q", want, heard())
	}
}
