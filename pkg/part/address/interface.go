package address

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/part/linkwait"
)

// dadWait bounds the wait for duplicate address detection. It also bounds the wait before that, for
// the carrier, without which the detection does not begin.
const dadWait = 5 * time.Second

// Interface is the part that configures the link in the pod. The order makes sure that even the
// first packet is right: first it sets the settings and addresses, then it sets the link up, then
// it adds the routes. All of this ends with the link, so it is not released.
type Interface struct {
	attachment.Base
	Wait netconf.LinkWait // for the carrier
}

// Name implements [attachment.Part].
func (Interface) Name() string { return "interface" }

// Apply configures tx.Link, and notes it in the record. It does nothing for a NIC that a userspace
// driver holds, because such a NIC has no link.
func (p Interface) Apply(ctx context.Context, tx *attachment.Tx) error {
	if tx.Link == nil {
		return nil
	}
	index := tx.Link.Index
	for _, s := range []struct {
		name string
		do   func(context.Context, *attachment.Tx, int) error
	}{
		{"sysctl", setSysctls},
		{"address", addAddresses},
		{"up", setUp},
		{"link", p.awaitCarrier},
		{"route", addRoutes},
		{"dad", awaitDAD},
	} {
		if err := errors.Join(tx.Step(s.name), s.do(ctx, tx, index)); err != nil {
			return err
		}
	}
	// An InfiniBand interface gets its final MTU when it joins its broadcast group (ipoib_mcast_join_finish).
	if tx.Link.Kind == link.KindIPoIB {
		l, err := link.ByIndex(tx.Pod, index)
		if err != nil {
			return err
		}
		tx.Link = l
	}
	tx.Record.MAC, tx.Record.MTU = tx.Link.MAC.String(), tx.Link.MTU
	return nil
}

// setSysctls sets the sysctls of the interface. It runs before the interface is set up. With
// arp_notify the kernel announces the new holder of an IPv4 address to the neighbors when the
// interface is set up. With ndisc_notify the kernel announces an IPv6 address when it has checked
// that address.
func setSysctls(_ context.Context, tx *attachment.Tx, _ int) error {
	settings := map[string]string{"ipv4/conf/arp_notify": "1", "ipv6/conf/ndisc_notify": "1"}
	if tx.Layer3.HasIPv6() {
		settings["ipv6/conf/disable_ipv6"] = "0"
		// Upstream sets this too: otherwise the kernel removes the addresses when the pod sets the
		// interface down.
		settings["ipv6/conf/keep_addr_on_down"] = "1"
		// The pod reaches its own address through lo.
		if err := sysctl.Set(tx.Pod, "lo", map[string]string{"ipv6/conf/disable_ipv6": "0"}); err != nil {
			return err
		}
	}
	maps.Copy(settings, tx.Layer3.Sysctls)
	return sysctl.Set(tx.Pod, tx.IfName, settings)
}

func addAddresses(_ context.Context, tx *attachment.Tx, index int) error {
	if carried := tx.Layer3.Carried; carried != nil {
		if lost := nicstate.ReplayAddresses(tx.Pod, index, carried); len(lost) > 0 {
			return fmt.Errorf("addresses carried from the host: %w", errors.Join(lost...))
		}
	}
	for _, ip := range tx.Layer3.IPs {
		if err := link.AddAddress(tx.Pod, index, &ip.Address); err != nil {
			return failure.From(err, failure.Kernel, "interface %s", tx.IfName).Cure("find what else uses the address in the pod")
		}
	}
	return setMetrics(tx, index)
}

// setMetrics sets the metric of the routes in the main table that the kernel adds for the subnets
// of the addresses. The metric is the number of the interface's table. So if several interfaces are
// in the same subnet, always the same interface comes first. The kernel adds the routes when the
// interface is up.
func setMetrics(tx *attachment.Tx, index int) error {
	l3 := &tx.Layer3
	if l3.Table == 0 {
		return nil
	}
	for _, ip := range l3.AllIPs() {
		if err := link.SetAddressMetric(tx.Pod, index, &ip.Address, l3.Table); err != nil {
			return failure.From(err, failure.Kernel, "interface %s", tx.IfName).Cure(`set "table" in "routing" to a smaller number`)
		}
	}
	return nil
}

func setUp(_ context.Context, tx *attachment.Tx, index int) error {
	err := link.SetUp(tx.Pod, index)
	if errors.Is(err, unix.EADDRINUSE) { // macvlan_open
		return failure.From(err, failure.InvalidConfig, "another macvlan on the same NIC has the MAC %s of %s", tx.Link.MAC, tx.IfName).
			Cure("set a different MAC for each pod, or set none")
	}
	return failure.From(err, failure.Kernel, "set %s up", tx.IfName).Cure("see the kernel log for the driver's reason")
}

// awaitCarrier waits for the carrier. It runs before awaitDAD, because duplicate address detection
// begins only when there is a carrier.
func (p Interface) awaitCarrier(ctx context.Context, tx *attachment.Tx, index int) error {
	return linkwait.Carrier(ctx, tx, p.Wait, index)
}

func addRoutes(ctx context.Context, tx *attachment.Tx, index int) error {
	l3 := &tx.Layer3
	if l3.Carried != nil {
		// A carried IPv6 route may name a source, which must not be tentative.
		if err := awaitDAD(ctx, tx, index); err != nil {
			return err
		}
	}
	return failure.From(addAllRoutes(tx.Pod, index, l3), failure.Kernel, "interface %s", tx.IfName).Cure("check the routes and gateways of the network")
}

func addAllRoutes(pod *netns.Netns, index int, l3 *attachment.Layer3) error {
	if l3.Carried != nil {
		if lost := nicstate.ReplayRoutes(pod, index, l3.Carried); len(lost) > 0 {
			return fmt.Errorf("routes carried from the host: %w", lost[0])
		}
		if err := link.AddRules(pod, l3.CarriedRules); err != nil {
			return err
		}
	}
	for _, peer := range l3.CarriedPeers {
		if peer.Dst.IP.To4() == nil {
			// The kernel adds the route when duplicate address detection ends. For an address
			// without detection (IFA_F_NODAD) it adds the route right after the address, but not
			// while the interface is down.
			if err := link.AddRoute(pod, index, peer); err != nil {
				return err
			}
		}
	}
	for _, r := range l3.Own {
		if err := link.AddRoute(pod, index, r); err != nil {
			return err
		}
	}
	if l3.InTable != nil {
		if lost := nicstate.ReplayRoutes(pod, index, l3.InTable); len(lost) > 0 {
			return fmt.Errorf("routes carried from the host, in table %d: %w", l3.Table, lost[0])
		}
	}
	for _, r := range l3.Routes {
		route := routeOf(r, l3.IPs)
		// If the interface has a table, its rules allow no other route to the gateway.
		route.OnLink = l3.Table != 0 && route.Table == l3.Table && route.Gateway != nil && !attachment.OnSubnet(route.Gateway, l3.AllIPs())
		if err := link.AddRoute(pod, index, route); err != nil {
			return err
		}
	}
	return nil
}

// awaitDAD waits until duplicate address detection is over. The detection begins only when there is
// a carrier, which a NIC does not have for a moment after it is set up. So awaitDAD first waits for
// the carrier, within the bounds of the pod ([linkwait.OfPod], [linkwait.LastWait]).
func awaitDAD(ctx context.Context, tx *attachment.Tx, index int) error {
	if !tx.Layer3.HasIPv6() {
		return nil
	}
	err := linkwait.CarrierWhile(ctx, tx, dadWait, index, func() (bool, error) {
		tentative, err := link.Tentative(tx.Pod, index)
		return tentative != nil, err
	})
	if err == nil {
		err = checkDAD(ctx, tx, index)
	}
	if errors.Is(err, link.ErrNoCarrier) {
		tx.Node.Log.Warn("IPv6 addresses are not checked for duplicates", "interface", tx.IfName, "err", err,
			"cure", `check the NIC's cable and the switch port; "linkTimeout" makes ADD wait longer for the link, as long as the pod has time`)
		return nil
	}
	return failure.From(err, failure.Kernel, "interface %s", tx.IfName).
		Cure("find the other holder of the address, or exclude it from the range")
}

// checkDAD waits until the detection is over. The error wraps [link.ErrNoCarrier] if an address
// could not be checked, and [link.ErrDuplicateAddress] if another host has an address.
func checkDAD(ctx context.Context, tx *attachment.Tx, index int) error {
	if !tx.Record.Link.Up {
		tentative, err := link.Tentative(tx.Pod, index)
		if err == nil && tentative != nil {
			err = fmt.Errorf("%w: address %s is not checked", link.ErrNoCarrier, tentative)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dadWait)
	defer cancel()
	return link.AwaitDAD(ctx, tx.Pod, index)
}

// routeOf returns a route of a result in the form of the kernel. If the route has no gateway, it
// gets the first gateway of the addresses in its family. If there is no such gateway, the route is
// on the link. A route whose gateway is 0.0.0.0 or :: is on the link too, because IPAM plugins mean
// that by it.
func routeOf(r *types.Route, ips []*current.IPConfig) link.Route {
	route := link.Route{Dst: &r.Dst, Gateway: r.GW, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Scope: r.Scope}
	if r.Table != nil {
		route.Table = *r.Table
	}
	onLink := r.Scope != nil && *r.Scope >= int(netlink.SCOPE_LINK)
	switch {
	case r.GW.IsUnspecified():
		route.Gateway = nil
	case r.GW == nil && !onLink:
		route.Gateway = gatewayFor(r.Dst.IP, ips)
	}
	return route
}

// gatewayFor returns the first gateway of the addresses in the family of ip.
func gatewayFor(ip net.IP, ips []*current.IPConfig) net.IP {
	for _, have := range ips {
		if have.Gateway != nil && !have.Gateway.IsUnspecified() && (have.Gateway.To4() == nil) == (ip.To4() == nil) {
			return have.Gateway
		}
	}
	return nil
}

// Check compares the interface with prevResult: up, MAC, addresses, routes.
func (Interface) Check(_ context.Context, c *attachment.Checking) error {
	if c.Link == nil {
		return nil
	}
	if err := checkLink(c); err != nil {
		return err
	}
	have, err := link.Addresses(c.Pod, c.Link.Index)
	if err != nil {
		return err
	}
	ips := c.IPs()
	for _, ip := range ips {
		if !slices.ContainsFunc(have, func(a *net.IPNet) bool { return a.String() == ip.Address.String() }) {
			return attachment.Mismatch("interface %s lacks address %s", c.IfName, ip.Address.String())
		}
	}
	for _, r := range c.Result.Routes {
		if err := checkRoute(c, routeOf(r, ips)); err != nil {
			return err
		}
	}
	return nil
}

// checkRoute returns an error unless the pod has the route r of prevResult. A later plugin of the
// chain may have moved the route from the main table to another table: sbr moves the route and adds
// a rule, and vrf moves the whole interface.
func checkRoute(c *attachment.Checking, r link.Route) error {
	anywhere := r.Table == 0 || r.Table == unix.RT_TABLE_MAIN
	if anywhere {
		r.Table = 0
	}
	tables, err := link.TablesWith(c.Pod, c.Link.Index, r)
	if err != nil {
		return err
	}
	if len(tables) == 0 {
		return attachment.Mismatch("the route to %s by %s is gone", r.Dst, c.IfName)
	}
	if !anywhere || c.Link.Master != 0 { // a VRF has its own rules
		return nil
	}
	used, err := link.HasRuleFor(c.Pod, tables)
	if err == nil && !used {
		err = attachment.Mismatch("the route to %s by %s is in table %d, but no rule leads to that table", r.Dst, c.IfName, tables[0])
	}
	return err
}

func checkLink(c *attachment.Checking) error {
	iface, err := inResult(c)
	switch {
	case err != nil:
		return err
	case !c.Link.IsUp():
		return attachment.Mismatch("interface %s is down", c.IfName)
	case iface.Mac != "" && !strings.EqualFold(iface.Mac, c.Link.MAC.String()):
		return attachment.Mismatch("interface %s has MAC %s, not %s", c.IfName, c.Link.MAC, iface.Mac)
	}
	return nil
}

// inResult returns this attachment's interface in prevResult. It compares the netns of the sandbox
// and not the text of its path, because /run/netns/x and /var/run/netns/x are the same netns.
func inResult(c *attachment.Checking) (*current.Interface, error) {
	for _, i := range c.Result.Interfaces {
		if i.Name == c.IfName && (i.Sandbox == c.Netns || netns.Alive(c.Pod.ID, i.Sandbox)) {
			return i, nil
		}
	}
	return nil, attachment.Mismatch("prevResult has no interface %s in netns %s", c.IfName, c.Netns)
}

// CNIRoute returns a kernel route in the form of a CNI result.
func CNIRoute(r link.Route) *types.Route {
	route := &types.Route{Dst: *r.Dst, GW: r.Gateway, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Scope: r.Scope}
	if r.Table != 0 {
		route.Table = current.Int(r.Table)
	}
	return route
}
