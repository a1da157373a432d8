// Package whereaboutscni pins whereabouts, the IPAM plugin whose pools ours
// shares; "make peers" builds it into bin/peers/kubernetes. Its module has the
// versions of the release's build; the oracles in ../whereabouts have others.
package whereaboutscni
