package netconf

import (
	"encoding/json"
	"math"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Common is the part of a network configuration that every plugin has.
type Common struct {
	CNIVersion string    `json:"cniVersion"`
	Name       string    `json:"name"`
	Type       string    `json:"type"`
	IPAM       IPAM      `json:"ipam"`
	DNS        types.DNS `json:"dns"`
	// StateDir is an absolute path. It must be the same for every plugin on a node.
	StateDir string `json:"stateDir"`
	// PrevResult is the result of the plugin before this one. For CHECK and DEL it is the
	// attachment's result.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	// RuntimeConfig has the runtime's values for declared capabilities.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig"`
	document.Attachments

	// Raw is the whole configuration, unchanged.
	Raw []byte `json:"-"`

	parsed func() (*ipamconf.Template, error) // returns the parsed form of Raw
}

// IPAM is the part of the "ipam" object that the calling plugin needs. Without
// a type the interface gets no address.
type IPAM struct {
	Type string `json:"type"`
}

// RuntimeConfig holds the capability arguments that the suite knows
// (CNI CONVENTIONS.md, "Dynamic Plugin specific fields").
type RuntimeConfig struct {
	DeviceID          string   `json:"deviceID"`
	CNIDeviceInfoFile string   `json:"CNIDeviceInfoFile"`
	MAC               string   `json:"mac"`
	IPs               []string `json:"ips"`
	InfinibandGUID    string   `json:"infinibandGUID"` // for ib-sriov
}

// AtLeast reports whether the configuration's version is v or newer.
func (c *Common) AtLeast(v string) bool {
	ok, err := version.GreaterThanOrEqualTo(c.CNIVersion, v)
	return err == nil && ok
}

// parse decodes a configuration into conf, and applies the defaults. common must be the Common that
// is embedded in conf.
func parse(stdin []byte, conf any, common *Common) error {
	if err := document.Decode(stdin, conf, "the network configuration"); err != nil {
		return err
	}
	return common.complete(stdin)
}

// checkMTU returns an error for an impossible MTU. The kernel would take the number modulo 2³².
func checkMTU(mtu int) error {
	if mtu < 0 || mtu > math.MaxInt32 {
		return failure.New(failure.InvalidConfig, "invalid MTU %d", mtu).Cure("give a size in bytes, or leave the key out")
	}
	return nil
}

func (c *Common) complete(stdin []byte) error {
	c.Raw = stdin
	t, mistake := ipamconf.ParseTemplate(c.IPAM.Type, stdin)
	c.parsed = func() (*ipamconf.Template, error) { return t, mistake }
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0" // the meaning of a missing version in the CNI SPEC
	}
	dir, err := nodefile.StateDir(c.StateDir)
	if err == nil {
		c.StateDir = dir
	}
	return err
}

// Lenient reads only the parts of a configuration that are needed to end an attachment. It ignores
// keys that cannot be read, because a DEL must end an attachment even if the ADD with the same
// configuration failed.
func Lenient(stdin []byte) *Common {
	var keys struct {
		CNIVersion json.RawMessage `json:"cniVersion"`
		Name       json.RawMessage `json:"name"`
		Type       json.RawMessage `json:"type"`
		IPAM       json.RawMessage `json:"ipam"`
		StateDir   json.RawMessage `json:"stateDir"`
	}
	c := &Common{}
	_ = json.Unmarshal(stdin, &keys)
	for _, k := range []struct {
		raw json.RawMessage
		to  any
	}{{keys.CNIVersion, &c.CNIVersion}, {keys.Name, &c.Name}, {keys.Type, &c.Type}, {keys.IPAM, &c.IPAM}, {keys.StateDir, &c.StateDir}} {
		_ = json.Unmarshal(k.raw, k.to)
	}
	if err := c.complete(stdin); err != nil {
		c.StateDir = nodefile.DefaultStateDir
	}
	return c
}

// Kept returns the part of the configuration that is kept to end the attachment, as
// [document.Kept] does.
func (c *Common) Kept() (json.RawMessage, error) { return document.Kept(c.Raw) }
