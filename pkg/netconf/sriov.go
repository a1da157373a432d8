package netconf

import (
	"cmp"
	"errors"
	"math"
	"net"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// SRIOV is the configuration of the plugin sriov. It has the keys of host-device, and the settings
// of the virtual function under the keys of sriov-cni.
type SRIOV struct {
	HostDevice
	// VLAN is the VLAN of the function's packets, 0 to 4094. 0 means no VLAN. With nil the setting
	// is not changed.
	VLAN *int `json:"vlan"`
	// VLANQoS is the VLAN's priority, 0 to 7.
	VLANQoS *int `json:"vlanQoS"`
	// VLANProto is "802.1q" (also when nil) or "802.1ad".
	VLANProto *string `json:"vlanProto"`
	// MAC of the function and of its interface. runtimeConfig.mac and the MAC of CNI_ARGS override it.
	MAC string `json:"mac"`
	// SpoofChk and Trust are "on", "off", or "" to leave the setting unchanged.
	SpoofChk string `json:"spoofchk"`
	Trust    string `json:"trust"`
	// LinkState is "auto", "enable", "disable", or "" to leave the setting unchanged.
	LinkState string `json:"link_state"`
	// MinTxRate and MaxTxRate are in Mbit/s, with 0 for no limit. With nil the settings are not
	// changed.
	MinTxRate *int `json:"min_tx_rate"`
	MaxTxRate *int `json:"max_tx_rate"`
	// LogLevel and LogFile are accepted but not used: messages go to stderr, like the messages of the other
	// rail-cni plugins.
	LogLevel string `json:"logLevel"`
	LogFile  string `json:"logFile"`
}

// linkStates are the values of "link_state".
var linkStates = []string{"auto", "enable", "disable"}

// ParseSRIOV reads the configuration of sriov. args are the CNI_ARGS.
func ParseSRIOV(stdin []byte, args Args) (*SRIOV, error) {
	c := &SRIOV{}
	if err := parse(stdin, c, &c.Common); err != nil {
		return nil, err
	}
	c.MAC = cmp.Or(c.RuntimeConfig.MAC, args.MAC, c.MAC)
	if err := errors.Join(c.check(), c.HostDevice.complete()); err != nil {
		return nil, err
	}
	return c, nil
}

// HardwareAddr returns the requested MAC, or nil.
func (c *SRIOV) HardwareAddr() (net.HardwareAddr, error) { return parseMAC(c.MAC) }

// check returns an error for settings that no driver accepts.
func (c *SRIOV) check() error {
	_, err := c.HardwareAddr()
	return errors.Join(err, c.checkVLAN(), oneOf("spoofchk", c.SpoofChk, "on", "off"), oneOf("trust", c.Trust, "on", "off"),
		oneOf("link_state", c.LinkState, linkStates...), c.checkRates())
}

func (c *SRIOV) checkVLAN() error {
	qos, proto := 0, "802.1q"
	if c.VLANQoS != nil {
		qos = *c.VLANQoS
	}
	if c.VLANProto != nil {
		proto = strings.ToLower(*c.VLANProto)
	}
	switch {
	case c.VLAN == nil && (c.VLANQoS != nil || c.VLANProto != nil):
		return failure.New(failure.InvalidConfig, `"vlanQoS" and "vlanProto" need a VLAN, but "vlan" is missing`).Cure(`set "vlan", or remove the two keys`)
	case c.VLAN == nil:
		return nil
	case *c.VLAN < 0 || *c.VLAN > 4094:
		return failure.New(failure.InvalidConfig, `"vlan" is %d`, *c.VLAN).Cure("use 1 to 4094, or 0 for none")
	case qos < 0 || qos > 7:
		return failure.New(failure.InvalidConfig, `"vlanQoS" is %d`, qos).Cure("use 0 to 7")
	case proto != "802.1q" && proto != "802.1ad":
		return failure.New(failure.InvalidConfig, `"vlanProto" is %q`, proto).Cure(`use "802.1q" or "802.1ad"`)
	case *c.VLAN == 0 && (qos != 0 || proto != "802.1q"):
		return failure.New(failure.InvalidConfig, `"vlanQoS" and "vlanProto" need a VLAN, but "vlan" is 0`).Cure(`set "vlan", or remove the two keys`)
	}
	return nil
}

func (c *SRIOV) checkRates() error {
	lowest, highest := 0, 0
	for key, rate := range map[string]struct{ from, to *int }{"min_tx_rate": {c.MinTxRate, &lowest}, "max_tx_rate": {c.MaxTxRate, &highest}} {
		if rate.from == nil {
			continue
		}
		if *rate.to = *rate.from; *rate.to < 0 || *rate.to > math.MaxInt32 {
			return failure.New(failure.InvalidConfig, `%q is %d`, key, *rate.to).Cure("use a rate in Mbit/s, or 0 for no limit")
		}
	}
	if highest != 0 && lowest > highest {
		return failure.New(failure.InvalidConfig, `"min_tx_rate" is %d, but "max_tx_rate" is only %d`, lowest, highest).Cure(`lower "min_tx_rate", or raise "max_tx_rate"`)
	}
	return nil
}

// oneOf returns an error if word is neither "" nor one of words.
func oneOf(key, word string, words ...string) error {
	if word == "" || slices.Contains(words, word) {
		return nil
	}
	return failure.New(failure.InvalidConfig, "%q is %q", key, word).Cure("use %s", strings.Join(words, ", "))
}
