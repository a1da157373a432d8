package ipam

import (
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Pool identifies a pool: one network in one address space. Equal pools are the
// same pool, even if several networks use them.
type Pool struct {
	Space string // network_name, "" for the unnamed address space
	// Node is the name of a node if Prefix is the slice of that node, or "" if nodes share
	// the pool. In a [HostPool] it is [HostNode].
	Node   string
	Prefix netip.Prefix // masked
}

// BlockNode takes the place of the node in the names of IPPools that are blocks of a pool.
const BlockNode = "rail-cni-block"

// maxSpace leaves room, in the 253 characters of a Kubernetes name, for the
// longest network.
const maxSpace = 190

// Name returns the pool's name in whereabouts' form:
// "[space-][node-]network-length", with '-' for every ':'.
func (p Pool) Name() string {
	name := dashed(p.Prefix.String())
	if p.Node != "" {
		name = p.Node + "-" + name
	}
	return p.inSpace(name)
}

// ReservationName returns the name of the reservation of addr in the pool's address space,
// in whereabouts' form: "[space-]address", with '-' for every ':'. If the address ends with
// ':', a "0" is appended to it.
func (p Pool) ReservationName(addr netip.Addr) string {
	text := addr.String()
	if strings.HasSuffix(text, ":") {
		text += "0"
	}
	return p.inSpace(dashed(text))
}

func (p Pool) inSpace(name string) string {
	if p.Space == "" {
		return name
	}
	return p.Space + "-" + name
}

func dashed(s string) string {
	return strings.NewReplacer(":", "-", "/", "-").Replace(s)
}

// CheckSpace returns an error if space cannot be an address space. The names of pools and
// reservations contain the space, and they must be names of Kubernetes objects (RFC 1123
// subdomains). Otherwise the API server would refuse each pod's ADD.
func CheckSpace(space string) error {
	if space == "" {
		return nil
	}
	for _, node := range []string{BlockNode, HostNode} {
		if space == node || strings.HasSuffix(space, "-"+node) {
			return failure.New(failure.InvalidConfig, "network_name %q is reserved for the IPPools of blocks", space).Cure("use another network_name")
		}
	}
	if len(space) > maxSpace || !subdomain(space) {
		return failure.New(failure.InvalidConfig, "network_name %q cannot be part of a Kubernetes name", space).
			Cure("use lower case letters, digits, '-' and '.', beginning and ending with a letter or digit, at most 190 characters")
	}
	return nil
}

// subdomain follows RFC 1123, section 2.1, as Kubernetes reads it: labels of
// lower case letters, digits and inner dashes, joined by dots.
func subdomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
				return false
			}
		}
	}
	return true
}
