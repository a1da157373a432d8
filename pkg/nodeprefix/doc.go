// Package nodeprefix reads and writes the file of the prefixes that another IPAM has allocated
// to the node. rail-agent writes it; host-device and macvlan read it at ADD. So an ADD chooses
// an address of such a prefix without a request.
//
// The file is prefixes/nv-ipam.json below the state directory. rail-agent writes it while the
// node file has "prefixesFrom: [nv-ipam]", and removes it otherwise. The file stays as it is
// while the API server does not answer. The directory may be on tmpfs: after a reboot there is no
// file until rail-agent has written it.
//
// The package knows the file, and no cluster: that is pkg/nvipam.
package nodeprefix
