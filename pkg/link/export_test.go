package link

import (
	"testing"

	"golang.org/x/sys/unix"
)

// For tests of the ways to a namespace that FindNetns tries only if a quicker
// one fails.
var (
	Scan         = scan
	ScanUntil    = scanUntil
	OpenByHandle = openByHandle
	MountsOf     = mountsOf
)

// UseHandles makes NetnsExists use file handles of namespaces first, or never,
// until t ends.
func UseHandles(t testing.TB, yes bool) {
	before := noHandles.Swap(!yes)
	t.Cleanup(func() { noHandles.Store(before) })
}

// LinksOneByOne is the fallback of Links for links that the kernel cannot list.
var LinksOneByOne = (*Netns).linksOneByOne

// PortOf returns the address of the namespace's netlink socket.
func PortOf(n *Netns) uint32 {
	pid, err := n.socket[unix.NETLINK_ROUTE].Socket.GetPid()
	if err != nil {
		panic(err)
	}
	return pid
}
