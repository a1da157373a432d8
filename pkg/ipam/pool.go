package ipam

import (
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Pool identifies a pool: one network in one address space. Equal pools are
// the same pool, whichever network attachment names them.
type Pool struct {
	Space string // network_name, "" for the unnamed address space
	// Node names the node whose slice Prefix is, "" where nodes share the pool.
	Node   string
	Prefix netip.Prefix // masked
}

// longestSpace leaves room, in the 253 characters that a Kubernetes name may
// have, for the longest network that follows.
const longestSpace = 190

// Name returns the pool's name as whereabouts has it:
// "[space-][node-]network-length", with '-' for every ':'.
func (p Pool) Name() string {
	name := dashed(p.Prefix.String())
	if p.Node != "" {
		name = p.Node + "-" + name
	}
	return p.inSpace(name)
}

// ReservationName returns the name of the reservation of addr in the pool's
// address space as whereabouts has it: "[space-]address", with '-' for every
// ':' and a final "0" where the name would end in one.
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

// CheckSpace returns an error unless space can be an address space: with it the names of
// pools and reservations must be those of Kubernetes objects (RFC 1123
// subdomains). Saying so early is kinder than an API error per pod.
func CheckSpace(space string) error {
	if space == "" {
		return nil
	}
	if len(space) > longestSpace || !subdomain(space) {
		return failure.WithCure(failure.New(failure.InvalidConfig, "network_name %q cannot be part of a Kubernetes name", space),
			"use lower case letters, digits, '-' and '.', beginning and ending with a letter or digit, at most 190 characters")
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
