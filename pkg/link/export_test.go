package link

import (
	"testing"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// LinksOneByOne is the fallback of Links for links that the kernel cannot list.
func LinksOneByOne(n *netns.Netns) (links []*Link, err error) {
	err = linksOneByOne(n, func(l *Link) { links = append(links, l) })
	return links, err
}

// ParentsInSysfs makes all reads take the parents of links from sysfs until t ends, as on a kernel
// that does not report parents.
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

// AddParents forgets the parents of these links, and reads them again.
func AddParents(n *netns.Netns, links ...*Link) error {
	for _, l := range links {
		l.ParentDev, l.ParentBus = "", ""
	}
	return addParents(n, links...)
}

// ReportsParents reports whether the kernel reports the parents of links.
var ReportsParents = reportsParents

// PermanentMACs calls permanentMACs, which is a part of [CheckKernel].
var PermanentMACs = permanentMACs

// Release returns the name and release of the running kernel.
var Release = release
