package ipamconf

import (
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// maxRails is the number of rails that a node file can name.
const maxRails = 256

// readRails reads "prefix", "sameHost" and "railRanges". Call it after the ranges have been read.
func (c *Whereabouts) readRails(keys *whereaboutsIPAM) error {
	if err := c.readPrefix(keys); err != nil || !keys.SameHost {
		return err
	}
	refuse := func(what string) error {
		return failure.New(failure.InvalidConfig, `"sameHost" %s`, what).
			Cure(`use it in a network of host-device or macvlan of rail-cni, with the range 10.${rail}.0.0/16, or remove it`)
	}
	switch {
	case c.NodePrefix:
		return refuse(`and "prefix": "node" both choose the addresses`)
	case len(keys.IPRanges) > 0:
		return refuse(`is for one range, but the network has "ipRanges"`)
	case c.NodeSliceSize != 0:
		return refuse(`and "node_slice_size" exclude each other; "block_size" also divides the range among the nodes`)
	case len(c.Ranges) == 0:
		return refuse(`has no "range"`)
	case len(keys.RailRanges) == 0: // the plugin that calls whereabouts writes them
		return refuse(`has no "railRanges", the ranges of the node's rails`)
	}
	return c.readSameHost(keys.RailRanges)
}

// CheckEntryByEntry returns an error if keys of the network cannot be used with pools whose entries
// all nodes share. Only the caller knows whether its store has such pools.
func (c *Whereabouts) CheckEntryByEntry() error {
	if c.SameHost == nil || c.BlockSize != 0 {
		return nil
	}
	return failure.New(failure.InvalidConfig, `network %s has "sameHost", which cannot be used with pools whose entries all nodes share`, c.Name).
		Cure(`give the network a "block_size", or use the local store ("store": "local")`)
}

// readPrefix reads "prefix".
func (c *Whereabouts) readPrefix(keys *whereaboutsIPAM) error {
	switch {
	case keys.Prefix == "":
		return nil
	case keys.Prefix != prefixOfNode:
		return failure.New(failure.InvalidConfig, "unknown prefix %.80q", keys.Prefix).Cure(`use "prefix": "node"`)
	case keys.Range == "":
		return failure.New(failure.InvalidConfig, `"prefix": "node" needs the node's "range"`).
			Cure(`use "prefix": "node" in a network of host-device or macvlan of rail-cni, which write the range`)
	case c.Store != StoreLocal:
		return failure.New(failure.InvalidConfig, `"prefix": "node" needs a store of this node only, not "store": %q`, c.Store).
			Cure(`write "store": "local"`)
	}
	c.NodePrefix = true
	return nil
}

// readSameHost reads the ranges of all rails.
func (c *Whereabouts) readSameHost(texts []string) error {
	if len(texts) > maxRails {
		return failure.New(failure.InvalidConfig, `"railRanges" has %d ranges, but a node has at most %d rails`, len(texts), maxRails)
	}
	first := &c.Ranges[0]
	for _, text := range texts {
		r, err := readRange(text, netip.Addr{}, netip.Addr{}, nil)
		if err != nil {
			return failure.Wrap(err, failure.InvalidConfig, "railRanges")
		}
		if r.Prefix.Bits() != first.Prefix.Bits() || r.Prefix.Addr().BitLen() != first.Prefix.Addr().BitLen() {
			return failure.New(failure.InvalidConfig, `"sameHost": the ranges %s and %s of two rails differ in size`, first.Prefix, r.Prefix).
				Cure(`give the networks of all rails the same prefix length, or remove "sameHost"`)
		}
		for _, other := range c.SameHost {
			if other.Overlaps(r.Prefix) {
				return failure.New(failure.InvalidConfig, `"sameHost": the ranges of two rails overlap in %s`, r.Prefix).
					Cure("write ${rail} into the network part of the range")
			}
		}
		length := r.Prefix.Bits()
		if r.Start.IsValid() && (hostBits(r.Start, length) != hostBits(first.Start, length) || hostBits(r.End, length) != hostBits(first.End, length)) {
			return failure.New(failure.InvalidConfig, `"sameHost": the range %s of another rail has other host parts than %s-%s`, text, first.Start, first.End).
				Cure("let the ranges of all rails begin with the same host part and end with the same host part")
		}
		c.SameHost = append(c.SameHost, r.Prefix)
	}
	if !slices.Contains(c.SameHost, first.Prefix) {
		return failure.New(failure.InvalidConfig, `"sameHost": the range %s is not one of "railRanges"`, first.Prefix).
			Cure("write the ranges of all rails of the node")
	}
	slices.SortFunc(c.SameHost, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return nil
}

// hostBits returns the part of an address after its first bits bits.
func hostBits(a netip.Addr, bits int) string {
	host := a.AsSlice()
	for bit := range min(bits, 8*len(host)) {
		host[bit/8] &^= 0x80 >> (bit % 8)
	}
	return string(host)
}
