package attachment

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// Layer3 is the configuration of the interface, for example its addresses, routes and DNS.
type Layer3 struct {
	IPs    []*current.IPConfig
	Routes []*types.Route
	DNS    types.DNS

	// Carried has the addresses and routes that the NIC had on the host and keeps in the pod,
	// with the rules in CarriedRules. CarriedIPs and CarriedRoutes describe them for the result.
	Carried       *nicstate.Snapshot
	CarriedRules  []netlink.Rule
	CarriedIPs    []*current.IPConfig
	CarriedRoutes []*types.Route
	// CarriedPeers are the routes to the other ends of point-to-point addresses, which the
	// kernel adds to the main table.
	CarriedPeers []link.Route

	// Sysctls are further settings of the interface: "ipv4/conf/arp_ignore" → "1".
	Sysctls map[string]string
	// Table is the routing table of the interface, or 0 if the interface has no table of its
	// own. Own has the routes of the table in addition to Routes. The result omits the routes
	// in Own.
	Table int
	Own   []link.Route
	// InTable has the carried routes of the main table, converted to routes of Table.
	InTable *nicstate.Snapshot
}

// AllIPs returns all addresses. The addresses from the host come first.
func (l3 *Layer3) AllIPs() []*current.IPConfig {
	return append(append([]*current.IPConfig{}, l3.CarriedIPs...), l3.IPs...)
}

// Addresses returns the interface's addresses without their subnets.
func (l3 *Layer3) Addresses() []netip.Addr {
	var found []netip.Addr
	for _, ip := range l3.AllIPs() {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			found = append(found, addr.Unmap())
		}
	}
	return found
}

// HasIPv6 reports whether one of the addresses is IPv6.
func (l3 *Layer3) HasIPv6() bool {
	for _, addr := range l3.Addresses() {
		if addr.Is6() {
			return true
		}
	}
	return false
}

// OnSubnet reports whether an address is in the subnet of one of ips.
func OnSubnet(address net.IP, ips []*current.IPConfig) bool {
	return slices.ContainsFunc(ips, func(ip *current.IPConfig) bool { return ip.Address.Contains(address) })
}

// result returns the attachment's result. It also notes the addresses in tx.Record.
func (tx *Tx) result() *current.Result {
	r := tx.Record
	iface := &current.Interface{Name: tx.IfName, Mac: r.MAC, Sandbox: tx.Netns}
	if tx.Conf.AtLeast("1.1.0") {
		iface.Mtu = r.MTU
		if r.Loan != nil {
			iface.PciID = r.Loan.PCI
		}
	}
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{iface},
		// The addresses of IPAM come first, as in upstream's host-device.
		IPs:    slices.Concat(tx.Layer3.IPs, tx.Layer3.CarriedIPs),
		Routes: slices.Concat(tx.Layer3.Routes, tx.Layer3.CarriedRoutes),
		DNS:    tx.Layer3.DNS,
	}
	r.Addresses = nil
	for _, ip := range tx.Layer3.AllIPs() { // in the order of the kernel
		ip.Interface = current.Int(0)
		r.Addresses = append(r.Addresses, ip.Address.String())
	}
	r.Gateways = GatewaysOf(tx.Layer3.AllIPs())
	return result
}

// GatewaysOf returns the gateways of addresses, each once, in the order of the addresses.
func GatewaysOf(ips []*current.IPConfig) []string {
	var gateways []string
	for _, ip := range ips {
		if text := ip.Gateway.String(); ip.Gateway != nil && !ip.Gateway.IsUnspecified() && !slices.Contains(gateways, text) {
			gateways = append(gateways, text)
		}
	}
	return gateways
}

// encode returns the result as JSON, in the CNI version of the configuration.
func (c *Call) encode(result *current.Result) (json.RawMessage, error) {
	if len(result.IPs) == 0 && !c.Conf.AtLeast("0.3.0") {
		// A result of these versions can have only addresses, and the library refuses to
		// convert a result without an address.
		return json.Marshal(&types020.Result{CNIVersion: c.Conf.CNIVersion, DNS: result.DNS})
	}
	converted, err := result.GetAsVersion(c.Conf.CNIVersion)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(converted, "", "    ")
}

// prevResult returns the configuration's prevResult, converted to the newest CNI version.
func (c *Call) prevResult() (*current.Result, error) {
	if len(c.Conf.PrevResult) == 0 {
		return nil, failure.New(failure.InvalidConfig, "Required prevResult missing").Cure("the runtime must pass the result of ADD")
	}
	// A prevResult may lack the version. Then it has the version of the configuration.
	raw, err := c.prevKeys()
	if err != nil {
		return nil, err
	}
	if _, ok := raw["cniVersion"]; !ok {
		raw["cniVersion"], _ = json.Marshal(c.Conf.CNIVersion)
	}
	bytes, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	result, err := create.CreateFromBytes(bytes)
	if err != nil {
		return nil, failure.Wrap(err, failure.Decode, "prevResult")
	}
	return current.NewResultFromResult(result)
}

// prevKeys returns the keys of prevResult.
func (c *Call) prevKeys() (map[string]json.RawMessage, error) {
	var keys map[string]json.RawMessage
	err := netconf.WholeResult(c.Conf.PrevResult)
	if err == nil {
		err = json.Unmarshal(c.Conf.PrevResult, &keys)
	}
	return keys, failure.Wrap(err, failure.Decode, "prevResult")
}

// unchanged returns prevResult as a chained plugin's result. It returns the same text if prevResult
// has the CNI version of the configuration, as it should have.
func (c *Call) unchanged() (json.RawMessage, error) {
	var named struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(c.Conf.PrevResult, &named); err != nil {
		return nil, failure.Wrap(err, failure.Decode, "prevResult")
	}
	switch named.CNIVersion {
	case c.Conf.CNIVersion:
		return c.Conf.PrevResult, nil
	case "":
		keys, err := c.prevKeys()
		if err != nil {
			return nil, err
		}
		keys["cniVersion"], _ = json.Marshal(c.Conf.CNIVersion) // a string always marshals
		return json.Marshal(keys)
	}
	result, err := c.prevResult()
	if err != nil {
		return nil, err
	}
	converted, err := result.GetAsVersion(c.Conf.CNIVersion)
	if err != nil {
		return nil, failure.Wrap(err, failure.Decode, "prevResult")
	}
	return json.Marshal(converted)
}

// addressesOf returns the addresses of prevResult that belong to the interface.
func (c *Call) addressesOf(result *current.Result) []*current.IPConfig {
	var added []*current.IPConfig
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && (*i < 0 || *i >= len(result.Interfaces) ||
			result.Interfaces[*i].Name != c.IfName || result.Interfaces[*i].Sandbox == "") {
			continue // the address of another interface
		}
		added = append(added, ip)
	}
	return added
}
