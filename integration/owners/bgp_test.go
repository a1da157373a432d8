package owners

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// fabric is a host with two rails, each to a switch that speaks BGP.
type fabric struct {
	*rail
	router   *Router
	switches [2]*Router
	nics     [2]string
}

const bgpHead = `router bgp %d
 bgp router-id 10.255.0.%d
 no bgp ebgp-requires-policy
 no bgp network import-check
 bgp bestpath as-path multipath-relax
 timers bgp 5 60
`

// neighbor are the lines for a session to an address or by an interface.
func neighbor(to string) string {
	remote := "external"
	if !strings.Contains(to, ".") {
		to = "neighbor " + to + " interface"
	} else {
		to = "neighbor " + to
	}
	peer := strings.TrimSuffix(to, " interface")
	return fmt.Sprintf(" %s remote-as %s\n %s timers connect 1\n %s advertisement-interval 0\n", to, remote, peer, peer)
}

// newFabric starts FRRouting on the host and both switches. The first switch announces 10.7, the
// second 10.8, and both 10.9.
func newFabric(t *testing.T, numbered bool, acceptRA string) *fabric {
	t.Helper()
	f := &fabric{rail: newRail(t), nics: [2]string{nicName, "ens13np0"}}
	host := fmt.Sprintf(bgpHead, 65000, 9)
	for i, nic := range f.nics {
		h := NewHost(t, testnet.NewNetns(t, "switch"))
		f.NIC(nic, h.Netns)
		f.Sysctl("ipv6/conf/"+nic+"/accept_ra", acceptRA)
		peer, own := nic, nic+"-sw"
		if numbered {
			peer, own = fmt.Sprintf("10.0.%d.2", i), fmt.Sprintf("10.0.%d.1", i)
			f.IP("addr", "add", own+"/30", "dev", nic)
			h.IP("addr", "add", peer+"/30", "dev", nic+"-sw")
		}
		host += neighbor(peer)
		config := fmt.Sprintf(bgpHead, 65001+i, i+1) + neighbor(own) + " address-family ipv4 unicast\n"
		for _, network := range []int{7 + i, 9} {
			config += fmt.Sprintf("  network 10.%d.0.0/16\n", network)
		}
		f.switches[i] = NewRouter(h, config+" exit-address-family\n")
	}
	f.router = NewRouter(f.Host, host)
	f.has(map[string]string{"10.7.0.0/16": nicName, "10.8.0.0/16": "ens13np0", "10.9.0.0/16": nicName + " ens13np0"})
	return f
}

// routes returns the NICs of each route of BGP, "" for the routes that are not there.
func (f *fabric) routes() map[string]string {
	found := map[string]string{}
	to := ""
	for line := range strings.Lines(f.IP("route", "show", "proto", "bgp")) {
		if !strings.HasPrefix(line, "\t") {
			to = strings.Fields(line)[0]
			found[to] += "" // a route whose hops follow
		}
		if _, dev, ok := strings.Cut(line, " dev "); ok {
			hops := append(strings.Fields(found[to]), strings.Fields(dev)[0])
			slices.Sort(hops)
			found[to] = strings.Join(hops, " ")
		}
	}
	return found
}

// has waits until the host has these routes of BGP, and no others: each once, by these NICs.
func (f *fabric) has(want map[string]string) {
	f.rail.t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
		if now := fmt.Sprint(f.routes()); now == fmt.Sprint(want) {
			return
		} else if time.Now().After(deadline) {
			f.rail.t.Fatalf("the host has the routes %s, not %v:\n%s", now, want, f.IP("route"))
		}
	}
}

// announce makes a switch announce a network, or withdraw it ("no ").
func (f *fabric) announce(i int, no, network string) {
	f.switches[i].Configure(fmt.Sprintf("router bgp %d", 65001+i), "address-family ipv4 unicast", no+"network "+network)
}

// TestRoutesOfBGPAreTheDaemons lends a rail with a BGP session. A route that its switch withdrew
// meanwhile does not come back; one that the other switch has now is there once; one
// that stayed is brought back by the daemon, also by one that ended during the loan.
func TestRoutesOfBGPAreTheDaemons(t *testing.T) {
	t.Parallel()
	for name, daemonEnds := range map[string]bool{"the daemon runs": false, "the daemon ends during the loan": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFabric(t, true, "0")
			f.announce(0, "", "10.5.0.0/16") // will be withdrawn
			f.announce(0, "", "10.6.0.0/16") // will be the other switch's
			f.has(map[string]string{
				"10.5.0.0/16": nicName, "10.6.0.0/16": nicName, "10.7.0.0/16": nicName, "10.8.0.0/16": "ens13np0", "10.9.0.0/16": nicName + " ens13np0",
			})
			uplink := map[string]any{"allow": []string{"uplink"}}
			f.MustRun(f.call("ADD", nicName, uplink))
			f.announce(0, "no ", "10.5.0.0/16")
			f.announce(0, "no ", "10.6.0.0/16")
			f.announce(1, "", "10.6.0.0/16")
			f.has(map[string]string{"10.6.0.0/16": "ens13np0", "10.8.0.0/16": "ens13np0", "10.9.0.0/16": "ens13np0"})
			if daemonEnds {
				f.router.Stop()
			}
			_, said, err := f.RunSaying(f.call("DEL", nicName, uplink))
			if err != nil || strings.Contains(said, "cannot restore") {
				t.Errorf("DEL: %v, %s", err, said)
			}
			if daemonEnds {
				if now := f.routes(); strings.Contains(fmt.Sprint(now), nicName) {
					t.Errorf("without the daemon the host has %v", now)
				}
				f.router.Begin()
			}
			f.has(map[string]string{
				"10.6.0.0/16": "ens13np0", "10.7.0.0/16": nicName, "10.8.0.0/16": "ens13np0", "10.9.0.0/16": nicName + " ens13np0",
			})
		})
	}
}

// TestGuardrailAndBGP holds what the guide says: a session by an address of the NIC refuses the
// loan, one by a link-local address does not, unless the host accepts the
// neighbor's router advertisements.
func TestGuardrailAndBGP(t *testing.T) {
	t.Parallel()
	t.Run("numbered", func(t *testing.T) {
		t.Parallel()
		f := newFabric(t, true, "0")
		_, err := f.Run(f.call("ADD", nicName, nil))
		if err == nil || !strings.Contains(err.Error(), "TCP connections by its address 10.0.0.1") {
			t.Errorf("ADD: %v", err)
		}
	})
	t.Run("unnumbered", func(t *testing.T) {
		t.Parallel()
		f := newFabric(t, false, "0")
		f.MustRun(f.call("ADD", nicName, nil))
		f.has(map[string]string{"10.8.0.0/16": "ens13np0", "10.9.0.0/16": "ens13np0"})
		f.MustRun(f.call("DEL", nicName, nil))
		f.has(map[string]string{"10.7.0.0/16": nicName, "10.8.0.0/16": "ens13np0", "10.9.0.0/16": nicName + " ens13np0"})
	})
	t.Run("unnumbered, with router advertisements", func(t *testing.T) {
		t.Parallel()
		f := newFabric(t, false, "1")
		_, err := f.Run(f.call("ADD", nicName, nil))
		if err == nil || !strings.Contains(err.Error(), "default route") {
			t.Errorf("ADD: %v", err)
		}
	})
}
