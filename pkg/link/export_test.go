package link

import "golang.org/x/sys/unix"

// For tests of the ways to a namespace that FindNetns takes only where a
// quicker one fails.
var (
	Scan         = scan
	ScanUntil    = scanUntil
	OpenByHandle = openByHandle
	MountsOf     = mountsOf
)

// LinksOneByOne is how Links reads what the kernel cannot list.
var LinksOneByOne = (*Netns).linksOneByOne

// PortOf returns the address of the namespace's netlink socket.
func PortOf(n *Netns) uint32 {
	pid, err := n.socket[unix.NETLINK_ROUTE].Socket.GetPid()
	if err != nil {
		panic(err)
	}
	return pid
}
