// Package netconf is the user's input: the network configurations of the
// plugins as the runtime passes them on stdin, with the keys that Multus
// injects, and CNI_ARGS. It parses them, applies defaults, and checks everything
// that can be checked without the machine's state.
//
// It follows encoding/json: keys match in any case, and unknown keys are
// accepted, because users rely on both. The only file that it reads is
// whereabouts' flat file.
//
// To read the configuration of a plugin:
//
//	conf, err := netconf.ParseHostDevice(stdin)
package netconf
