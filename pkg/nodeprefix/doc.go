// Package nodeprefix has the file in which rail-agent writes the node's prefixes that another
// IPAM has allocated, and which host-device and macvlan read at ADD. So an ADD chooses an
// address from such a prefix without a request.
//
// The file is prefixes/nv-ipam.json below the state directory. rail-agent writes it while the
// node file has "prefixesFrom: [nv-ipam]", and removes it without that. It stays as it is while
// the API server does not answer. The directory may be on tmpfs: after a reboot there is no
// file until rail-agent has written it.
//
// The package knows the file, and no cluster: that is pkg/nvipam.
package nodeprefix
