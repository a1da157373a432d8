package ipamconf

import (
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/iprange"
)

// Gateways returns the addresses that must not be assigned: the gateway and the gateways of routes.
// With allow_gateway it returns none.
func (c *Whereabouts) Gateways() []netip.Addr {
	if c.AllowGateway {
		return nil
	}
	var gws []netip.Addr
	if c.Gateway.IsValid() {
		gws = append(gws, c.Gateway)
	}
	for _, r := range c.Routes {
		if gw := iprange.AddrOf(r.GW); gw.IsValid() {
			gws = append(gws, gw)
		}
	}
	return gws
}
