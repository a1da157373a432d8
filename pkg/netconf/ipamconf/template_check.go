package ipamconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/iprange"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
)

// addressesOf are the addresses that an expanded object hands out on one rail.
type addressesOf struct {
	rail    int
	ranges  []WhereaboutsRange
	gateway netip.Addr // invalid if there is none
}

// addresses reads an expanded object as whereabouts does.
func addresses(rail int, ipam map[string]any) (addressesOf, error) {
	text, err := json.Marshal(ipam)
	if err != nil {
		return addressesOf{}, err
	}
	var object whereaboutsIPAM
	if err := document.Decode(text, &object, `"ipam"`); err != nil {
		return addressesOf{}, err
	}
	var c Whereabouts
	if err := c.readRanges(&object); err != nil {
		return addressesOf{}, err
	}
	gateway, _ := sloppyAddr(object.Gateway) // whereabouts itself refuses a gateway that is not an address
	return addressesOf{rail, c.Ranges, gateway}, nil
}

// checkRanges returns an error if the gateway is not in a range of its family, or if the ranges
// differ by rail and the ranges of two rails overlap. It leaves errors in this rail's ranges to
// whereabouts. Ranges of another rail that cannot be read are an error only with "sameHost".
func (t *Template) checkRanges(ipam map[string]any, v Variables) error {
	rail := 0
	if v.Rail != nil {
		rail = *v.Rail
	}
	self, err := addresses(rail, ipam)
	if err != nil {
		if t.sameHost {
			return err
		}
		return nil
	}
	if err := self.checkGateway(); err != nil {
		return err
	}
	varying := t.varyingRanges()
	for _, other := range v.Rails {
		if other == rail || !slices.Contains(varying, true) {
			continue
		}
		ipam, err := t.with(&other, v.Node)
		if err != nil {
			return err
		}
		theirs, err := addresses(other, ipam)
		switch {
		case err == nil:
			err = t.compare(self, theirs, varying)
		case !t.sameHost:
			err = nil
		}
		if err != nil {
			return failure.Wrap(err, failure.InvalidConfig, "rail %d beside rail %d", rail, other)
		}
	}
	return nil
}

// varyingRanges returns whether each range differs by rail: first "range", if the object has it,
// and then each entry of "ipRanges".
func (t *Template) varyingRanges() []bool {
	var all []bool
	if text, ok := t.get(keyRange).(string); ok && text != "" {
		all = append(all, hasVariable([]any{text, t.get("range_start"), t.get("range_end")}, railVariable))
	}
	list, _ := t.get("ipRanges").([]any)
	for _, entry := range list {
		object, _ := entry.(map[string]any)
		block := &Template{ipam: object}
		all = append(all, hasVariable([]any{block.get("range"), block.get("range_start"), block.get("range_end")}, railVariable))
	}
	return all
}

// compare returns an error if ranges that differ by rail overlap. With "sameHost" it also returns
// an error if such ranges have unequal sizes.
func (t *Template) compare(self, theirs addressesOf, varying []bool) error {
	for i := range min(len(self.ranges), len(theirs.ranges), len(varying)) {
		first, other := self.ranges[i], theirs.ranges[i]
		if !varying[i] {
			continue
		}
		if first.Bounds().Overlaps(other.Bounds()) {
			return failure.New(failure.InvalidConfig, "the ranges %s and %s overlap", first.text(), other.text()).
				Cure("put ${rail} where it makes the ranges differ, within the prefix length")
		}
		if i == 0 && t.sameHost && first.place() != other.place() {
			return failure.New(failure.InvalidConfig, `"sameHost" needs ranges of equal size, but %s and %s differ in size`, first.text(), other.text()).
				Cure("give each rail a range with the same prefix length and the same bounds")
		}
	}
	return nil
}

// checkGateway returns an error if the gateway is not in the network of any range of the gateway's
// family.
func (a addressesOf) checkGateway() error {
	var outside *WhereaboutsRange
	for i := range a.ranges {
		r := &a.ranges[i]
		switch {
		case a.gateway.BitLen() != r.Prefix.Addr().BitLen():
		case r.Prefix.Contains(a.gateway):
			return nil
		default:
			outside = r
		}
	}
	if outside == nil {
		return nil
	}
	return failure.New(failure.InvalidConfig, "the gateway %s is not in the range %s", a.gateway, outside.Prefix).Cure(`correct "gateway" or "range"`)
}

// Bounds returns the addresses of the range. A bound that is missing, or is outside the prefix, does
// not count.
func (r *WhereaboutsRange) Bounds() iprange.Range {
	all := iprange.OfPrefix(r.Prefix)
	if r.Prefix.Contains(r.Start) {
		all.First = r.Start
	}
	if r.Prefix.Contains(r.End) {
		all.Last = r.End
	}
	return all
}

// text returns the range as "start-end/length", or as "network/length" if the range is the whole
// network.
func (r *WhereaboutsRange) text() string {
	bounds := r.Bounds()
	if bounds == iprange.OfPrefix(r.Prefix) {
		return r.Prefix.String()
	}
	return bounds.First.String() + "-" + netip.PrefixFrom(bounds.Last, r.Prefix.Bits()).String()
}

// place returns the position of the range in its prefix, in a form that can be compared.
func (r *WhereaboutsRange) place() string {
	bounds := r.Bounds()
	return fmt.Sprint(r.Prefix.Bits(), hostBits(bounds.First, r.Prefix.Bits()), hostBits(bounds.Last, r.Prefix.Bits()))
}

// unexpanded returns an error if a string of the "ipam" object still has a variable, because the
// plugin that calls the IPAM plugin has not replaced it.
func unexpanded(stdin []byte) error {
	if !bytes.Contains(stdin, []byte("${")) {
		return nil
	}
	t, _ := ParseTemplate("", stdin) // an unknown variable may be for another plugin
	if !t.rail && !t.node {
		return nil
	}
	name := railVariable
	if !t.rail {
		name = nodeVariable
	}
	return failure.New(failure.InvalidConfig, `"ipam" has the variable ${%s}, and no plugin has set its value`, name).
		Cure("replace the variable by its value, or use a plugin that sets the value: host-device or macvlan of rail-cni")
}
