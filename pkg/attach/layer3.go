package attach

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// ipConfig is an address of a result.
type ipConfig = current.IPConfig

// layer3 is what an interface gets beside its name: addresses, routes, DNS.
type layer3 struct {
	ips    []*current.IPConfig
	routes []*types.Route
	dns    types.DNS

	// What useInterfaceNetwork carries from the host goes to the kernel as it
	// was there, not as the result describes it.
	carried     *link.Snapshot
	carriedIPs  []*current.IPConfig
	carriedTo   []*types.Route
	carriedRule []netlink.Rule
}

func (l3 *layer3) hasIPv6() bool {
	for _, list := range [][]*current.IPConfig{l3.ips, l3.carriedIPs} {
		for _, ip := range list {
			if ip.Address.IP.To4() == nil {
				return true
			}
		}
	}
	return false
}

// gateway gives the first gateway of the addresses in the family of ip.
func (l3 *layer3) gateway(ip net.IP) net.IP {
	for _, have := range l3.ips {
		if have.Gateway != nil && (have.Gateway.To4() == nil) == (ip.To4() == nil) {
			return have.Gateway
		}
	}
	return nil
}

// route gives the kernel's form of a result's route. A route without a gateway
// takes that of the address of its family, and is on the link if there is none.
func (l3 *layer3) route(r *types.Route) link.Route {
	route := link.Route{Dst: &r.Dst, Gateway: r.GW, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Scope: r.Scope}
	if r.Table != nil {
		route.Table = *r.Table
	}
	onLink := r.Scope != nil && *r.Scope >= int(netlink.SCOPE_LINK)
	if route.Gateway == nil && !onLink {
		route.Gateway = l3.gateway(r.Dst.IP)
	}
	return route
}

func (l3 *layer3) addRoutes(pod *link.Netns, index int) error {
	if l3.carried != nil {
		if lost := pod.ReplayRoutes(index, l3.carried); len(lost) > 0 {
			return fmt.Errorf("routes carried from the host: %w", lost[0])
		}
		if err := pod.AddRules(l3.carriedRule); err != nil {
			return err
		}
	}
	for _, r := range l3.routes {
		if err := pod.AddRoute(index, l3.route(r)); err != nil {
			return err
		}
	}
	return nil
}

// result gives the attachment's result in the version of the configuration,
// and notes the addresses in the record.
func (a *Adding) result(l3 *layer3) (types.Result, error) {
	r := a.Record
	iface := &current.Interface{Name: a.IfName, Mac: r.MAC, Sandbox: a.Netns}
	if a.Conf.AtLeast("1.1.0") {
		iface.Mtu = r.MTU
		if r.Loan != nil {
			iface.PciID = r.Loan.PCI
		}
	}
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{iface},
		IPs:        append(append([]*current.IPConfig{}, l3.carriedIPs...), l3.ips...),
		Routes:     append(append([]*types.Route{}, l3.carriedTo...), l3.routes...),
		DNS:        l3.dns,
	}
	r.Addresses = nil
	for _, ip := range result.IPs {
		ip.Interface = current.Int(0)
		r.Addresses = append(r.Addresses, ip.Address.String())
	}
	if len(result.IPs) == 0 && !a.Conf.AtLeast("0.3.0") {
		// These versions know nothing but addresses, and the library refuses
		// to convert a result without one.
		return &types020.Result{CNIVersion: a.Conf.CNIVersion, DNS: l3.dns}, nil
	}
	return result.GetAsVersion(a.Conf.CNIVersion)
}

// cniRoute gives the result's form of a kernel route.
func cniRoute(r link.Route) *types.Route {
	route := &types.Route{Dst: *r.Dst, GW: r.Gateway, Priority: r.Priority, Scope: r.Scope}
	if r.Table != 0 {
		route.Table = current.Int(r.Table)
	}
	return route
}
