package attach

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

func validIfName(name string) bool { return utils.ValidateInterfaceName(name) == nil }

func mismatch(format string, args ...any) error {
	return cnierr.New(cnierr.Mismatch, "recreate the pod", format, args...)
}

// Check compares the attachment with what ADD made: the interface is there, up,
// with its MAC, addresses and routes, and it is the NIC of the record, or a
// macvlan as the configuration has it. What a later plugin of the chain added, or
// changed in prevResult, is its own affair; so is the MTU, which upstream's
// tuning changes without a word in prevResult.
func (n *Node) Check(ctx context.Context, c *Call, p Provision) error {
	result, err := c.prevResult()
	if err != nil {
		return err
	}
	if err := c.ipamVerb(ctx, "CHECK"); err != nil {
		return err
	}
	pod, err := link.OpenNetns(c.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	r, err := n.Ledger.Get(c.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		r = nil // made by upstream's plugin before the switch-over
	case err != nil:
		return err
	case !r.Netns.Equal(pod.ID):
		return mismatch("%s was attached to netns %s, which %s no longer is", c.Key, r.Netns.NetnsID, c.Netns)
	}
	if r != nil && r.Loan != nil && r.Loan.Driver != "" {
		return nil // a userspace driver holds the NIC: there is nothing to see
	}
	l, err := pod.ByName(c.IfName)
	if err != nil {
		return cnierr.Wrap(err, cnierr.Mismatch, "recreate the pod", "interface %s", c.IfName)
	}
	var conf netconf.RDMA
	var kind error
	switch p := p.(type) {
	case LendNIC:
		conf = p.Conf.RDMA
	case MakeChild:
		conf, kind = p.Conf.RDMA, p.checkKind(l)
	}
	return errors.Join(checkLink(c, l, r, result), kind, checkLayer3(pod, l, result), n.checkRDMA(r, pod, l, conf))
}

func (c *Call) prevResult() (*current.Result, error) {
	if len(c.Conf.PrevResult) == 0 {
		return nil, cnierr.New(cnierr.InvalidConfig, "the runtime must pass the result of ADD", "Required prevResult missing")
	}
	// A prevResult may lack the version that the configuration has.
	var raw map[string]json.RawMessage
	if err := errors.Join(netconf.WholeResult(c.Conf.PrevResult), json.Unmarshal(c.Conf.PrevResult, &raw)); err != nil {
		return nil, cnierr.Wrap(err, cnierr.Decode, "", "prevResult")
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
		return nil, cnierr.Wrap(err, cnierr.Decode, "", "prevResult")
	}
	return current.NewResultFromResult(result)
}

func checkLink(c *Call, l *link.Link, r *ledger.Record, result *current.Result) error {
	iface, err := c.ours(result)
	if err != nil {
		return err
	}
	switch {
	case !l.IsUp():
		return mismatch("interface %s is down", l.Name)
	case iface.Mac != "" && !strings.EqualFold(iface.Mac, l.MAC.String()):
		return mismatch("interface %s has MAC %s, not %s", l.Name, l.MAC, iface.Mac)
	case r == nil:
		return nil
	case r.Loan != nil && (l.ParentDev != r.Loan.Identity.ParentDev || l.Kind != r.Loan.Identity.Kind):
		return mismatch("interface %s is not the NIC %s that was lent", l.Name, r.Loan.Name)
	}
	return nil
}

// checkKind fails unless the interface is such a macvlan as ADD makes.
func (p MakeChild) checkKind(l *link.Link) error {
	switch {
	case l.Kind != "macvlan":
		return mismatch("interface %s is no macvlan but a %s", l.Name, l.Kind)
	case l.Mode != p.Conf.Mode:
		return mismatch("interface %s is a macvlan in mode %s, not %s", l.Name, l.Mode, p.Conf.Mode)
	}
	return nil
}

// ours finds this attachment's interface in the result. Its sandbox is known
// by netns, not by text: /run/netns/x is /var/run/netns/x.
func (c *Call) ours(result *current.Result) (*current.Interface, error) {
	here, err := link.OpenNetns(c.Netns)
	if err != nil {
		return nil, err
	}
	defer here.Close()
	for _, i := range result.Interfaces {
		if i.Name == c.IfName && (i.Sandbox == c.Netns || link.NetnsAlive(here.ID, i.Sandbox)) {
			return i, nil
		}
	}
	return nil, mismatch("prevResult has no interface %s in netns %s", c.IfName, c.Netns)
}

func checkLayer3(pod *link.Netns, l *link.Link, result *current.Result) error {
	have, err := pod.Addresses(l.Index)
	if err != nil {
		return err
	}
	index := slices.IndexFunc(result.Interfaces, func(i *current.Interface) bool { return i.Name == l.Name && i.Sandbox != "" })
	l3 := &layer3{}
	for _, ip := range result.IPs {
		if ip.Interface != nil && *ip.Interface != index {
			continue // another interface's
		}
		l3.ips = append(l3.ips, ip)
		if !slices.ContainsFunc(have, func(a *net.IPNet) bool { return a.String() == ip.Address.String() }) {
			return mismatch("interface %s lacks address %s", l.Name, ip.Address.String())
		}
	}
	for _, r := range result.Routes {
		ok, err := hasRoute(pod, l, l3, r)
		if err != nil {
			return err
		}
		if !ok {
			return mismatch("the route to %s by %s is gone", r.Dst.String(), l.Name)
		}
	}
	return nil
}

func hasRoute(pod *link.Netns, l *link.Link, l3 *layer3, r *types.Route) (bool, error) {
	return pod.HasRoute(l.Index, l3.route(r))
}
