package address

import (
	"errors"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/rails"
)

// expanded returns the configuration for the IPAM plugin, with the values that its "ipam"
// object leaves to the node and to the NIC. rail is nil if the NIC has none, or if the network
// does not need it; all are the node's rails.
func expanded(n *attachment.Node, c *netconf.Common, rail *int, all []int) ([]byte, error) {
	v := netconf.Variables{Rail: rail, Rails: all}
	if n.File != nil {
		v.Node = n.File.Node
		for i, p := range n.File.Prefixes { // a rail has one
			if rail != nil && p.Rail == *rail {
				v.Prefix = &n.File.Prefixes[i]
			}
		}
	}
	return c.Expanded(v)
}

// configurations returns the configurations for a verb that does not know the rail of the
// attachment. If the addresses depend on the rail, there is one for each rail that the network
// can have, because each rail has a pool of its own. A CHECK has that of the record. The error
// joins those of the rails that have none.
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
		// DEL must not fail for ever: an ADD fails in the same way, unless the node file has changed
		// since. After a reboot nothing is left in whereabouts' local store, as there is no record.
		// Otherwise the record may be lost, and an address held. The whereabouts of rail-cni frees
		// that of a configuration without values too, because it then looks for the container in all
		// pools of the node.
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

// recorded returns the configuration with the addresses of the attachment's record.
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

// ofEachRail returns the configuration for each rail that an attachment of the network can
// have, and joins the errors of the others.
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
