package sysctl

import (
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Conf returns the sysctls in the description of a link.
func Conf(n *netns.Netns, name string) (map[string]string, error) {
	l, err := link.ByName(n, name)
	if err != nil {
		return nil, err
	}
	attrs, err := link.AttrsOf(n, l)
	return OfAttrs(attrs), err
}
