package netconf

import (
	"encoding/json"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
)

// template returns the configuration's "ipam" object. It returns an error if a string of the object
// has an unknown variable. The object is parsed only once, with the configuration.
func (c *Common) template() (*ipamconf.Template, error) {
	if c.parsed == nil { // no parser has set it, or the parser has removed the IPAM plugin
		return ipamconf.ParseTemplate(c.IPAM.Type, c.Raw)
	}
	return c.parsed()
}

// checkVariables returns an error if a string of the "ipam" object has an unknown variable, or if
// keys of the object contradict each other.
func (c *Common) checkVariables() error {
	t, err := c.template()
	if err != nil {
		return err
	}
	return t.Check()
}

// VariesByRail reports whether the addresses depend on the rail of the NIC.
func (c *Common) VariesByRail() bool {
	t, err := c.template()
	return err == nil && t.NeedsRail()
}

// OfLocalPrefix reports whether the addresses are from a prefix of the node, in the local store of
// rail-cni's whereabouts.
func (c *Common) OfLocalPrefix() bool {
	t, err := c.template()
	return err == nil && t.OfLocalPrefix()
}

// Varies reports whether [Common.Expanded] changes the configuration.
func (c *Common) Varies() bool {
	t, err := c.template()
	return err != nil || t.Varies()
}

// Expanded returns the configuration with the variables in its "ipam" object replaced by their
// values, as [ipamconf.Template.Expanded] does.
func (c *Common) Expanded(v ipamconf.Variables) ([]byte, error) {
	t, err := c.template()
	if err != nil {
		return c.Raw, err
	}
	return t.Expanded(c.Raw, v)
}

// ExpandedAs returns the configuration with the "ipam" object of an earlier call, from kept, which
// [Common.Kept] returned. If there is nothing to expand, it returns the configuration unchanged.
func (c *Common) ExpandedAs(kept json.RawMessage) ([]byte, error) {
	if !c.Varies() {
		return c.Raw, nil
	}
	var earlier struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	if err := json.Unmarshal(kept, &earlier); err != nil || len(earlier.IPAM) == 0 {
		return nil, failure.New(failure.BadRecord, `the recorded configuration has no "ipam" object`)
	}
	return ipamconf.Replaced(c.Raw, earlier.IPAM)
}
