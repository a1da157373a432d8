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
func LinksOneByOne(n *Netns) (links []*Link, err error) {
	err = n.linksOneByOne(func(l *Link) { links = append(links, l) })
	return links, err
}

// ParentsInSysfs makes all reads take the parents of links from sysfs, as on a
// kernel that does not report them, until t ends.
func ParentsInSysfs(t testing.TB) {
	parents.Lock()
	defer parents.Unlock()
	known, reported := parents.known, parents.reported
	parents.known, parents.reported = true, false
	t.Cleanup(func() {
		parents.Lock()
		defer parents.Unlock()
		parents.known, parents.reported = known, reported
	})
}

// AddParents forgets the parents of these links, and sets them anew.
func AddParents(n *Netns, links ...*Link) error {
	for _, l := range links {
		l.ParentDev, l.ParentBus = "", ""
	}
	return n.addParents(links...)
}

// ReportsParents reports whether the kernel reports the parents of links.
var ReportsParents = (*Netns).reportsParents

// PortOf returns the address of the namespace's netlink socket.
func PortOf(n *Netns) uint32 {
	pid, err := n.sockets[unix.NETLINK_ROUTE].Socket.GetPid()
	if err != nil {
		panic(err)
	}
	return pid
}

// PermanentMACs and Release are parts of [Netns.CheckKernel].
var (
	PermanentMACs = (*Netns).permanentMACs
	Release       = release
)

// GenericHeader is the header of a request of generic netlink.
var GenericHeader = genericHeader

// Conf returns the sysctls of a link that its description has.
func Conf(n *Netns, name string) (map[string]string, error) {
	l, err := n.ByName(name)
	if err != nil {
		return nil, err
	}
	return conf(l.attrs), nil
}

// IfGone and IfNameGone find out whether an error means that a link has left.
var (
	IfGone     = (*Netns).ifGone
	IfNameGone = (*Netns).ifNameGone
)
