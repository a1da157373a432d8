// Package whereaboutscni pins whereabouts, the IPAM plugin whose pools ours
// shares; "make peers" builds it into bin/peers/kubernetes. Its module holds
// the versions that the release itself was built from; the oracles in
// ../whereabouts have others.
package whereaboutscni
