// Package netconf is the user's input: the network configurations of the
// plugins as the runtime passes them on stdin, with the keys that Multus
// injects, CNI_ARGS, and the administrator's node file. It parses them, applies
// defaults, and checks everything that can be checked without the machine's
// state.
//
// It follows encoding/json: keys match in any case, and unknown keys are
// accepted, because users rely on both. It reads files only for the node file,
// for what that names, and for the flat file.
//
// To read the configuration of a plugin:
//
//	conf, err := netconf.ParseHostDevice(stdin)
package netconf
