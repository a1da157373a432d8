package address

import (
	"errors"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/part/rails"
)

// expanded returns the configuration for the IPAM plugin. It fills in the values that the "ipam"
// object leaves to the node and to the NIC. rail is nil if the NIC has no rail or if the network
// does not need the rail. all has the rails of the node.
func expanded(n *attachment.Node, c *netconf.Common, rail *int, all []int) ([]byte, error) {
	v := ipamconf.Variables{Rail: rail, Rails: all}
	if n.File != nil {
		v.Node = n.File.Node
		for i, p := range n.File.Prefixes { // a rail has at most one prefix
			if rail != nil && p.Rail == *rail {
				v.Prefix = &n.File.Prefixes[i]
			}
		}
	}
	return c.Expanded(v)
}

// configurations returns the configurations for a verb that does not know the rail of the
// attachment. If the addresses depend on the rail, it returns one configuration for each rail that
// the network can have, because each rail has its own pool. For a CHECK it returns the
// configuration of the record. If some rails have no configuration, configurations returns those of
// the other rails, and err joins the errors.
func configurations(n *attachment.Node, c *attachment.Call, verb string) ([][]byte, error) {
	if !c.Conf.Varies() {
		return [][]byte{c.Conf.Raw}, nil
	}
	if verb == "CHECK" {
		config, err := recorded(n, c)
		if err != nil {
			return nil, err
		}
		return [][]byte{config}, nil
	}
	configs, err := ofEachRail(n, c.Conf)
	switch {
	case err != nil && verb == "DEL":
		// DEL must not fail forever. Usually no address is held: an ADD fails in the same way,
		// unless the node file has changed since, and after a reboot neither the record nor
		// whereabouts' local store exists any more. But if the record was lost in another way, an
		// address may still be held. The whereabouts of rail-cni frees such an address even by a
		// configuration without the values, because it then looks for the container in all pools of
		// the node.
		n.Log.Warn("cannot free the addresses on every rail", "containerID", c.ContainerID, "ifname", c.IfName, "err", err)
		err = nil
		if c.Conf.OfLocalPrefix() {
			configs = append(configs, c.Conf.Raw)
		}
	case verb == "STATUS":
		err = failure.Wrap(err, failure.NotAvailable, "network %q", c.Conf.Name)
	}
	return configs, err
}

// recorded returns the configuration, expanded with the values in the attachment's record.
func recorded(n *attachment.Node, c *attachment.Call) ([]byte, error) {
	r, err := n.Ledger.Get(c.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord) || err == nil && r.IPAM == nil:
		return nil, attachment.Mismatch("%s has no record of its addresses", c.Key)
	case err != nil:
		return nil, err
	}
	return c.Conf.ExpandedAs(r.IPAM.Config)
}

// ofEachRail returns the configuration for each rail that an attachment of the network can have.
// err joins the errors of the rails for which there is no configuration.
func ofEachRail(n *attachment.Node, c *netconf.Common) (configs [][]byte, err error) {
	if !c.VariesByRail() {
		config, err := expanded(n, c, nil, nil)
		if err != nil {
			return nil, err
		}
		return [][]byte{config}, nil
	}
	ofNode, err := rails.Read(n, n.Host())
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, rail := range c.PossibleRails(ofNode.Numbers()) {
		config, err := expanded(n, c, &rail, ofNode.Numbers())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		configs = append(configs, config)
	}
	return configs, errors.Join(errs...)
}
