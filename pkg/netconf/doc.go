// Package netconf handles the user's input: CNI_ARGS, and the network configurations of the plugins
// as the runtime passes them on stdin, with the keys that Multus injects. The package parses this
// input, applies defaults, and checks everything that can be checked without the machine's state.
//
// It follows encoding/json: keys match in any case, and unknown keys are accepted, because users
// rely on both. The "ipam" object and whereabouts' keys are in package ipamconf. The package reads
// no file.
//
// To read the configuration of a plugin:
//
//	conf, err := netconf.ParseHostDevice(stdin)
package netconf
