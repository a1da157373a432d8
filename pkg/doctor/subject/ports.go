package subject

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// SortedPrefixes returns the keys of m, sorted by address and then by length.
func SortedPrefixes[V any](m map[netip.Prefix]V) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
}

// KnownState reports whether the state of a port was read. If it was not, KnownState notes in r that the
// fact name is missing.
func KnownState(r *rule.Report, name, state string) bool {
	if state != "" && state != "?" {
		return true
	}
	r.Lacks(name, "it could not be read")
	return false
}

// WithoutGID returns the addresses for which no table has a RoCE v2 GID. Addresses may have prefix
// lengths. Link-local addresses are not judged, because some drivers make GIDs for other link-local
// addresses than the interface has.
func WithoutGID(addresses []string, tables ...[]fact.GID) (missing []string) {
	has := map[netip.Addr]bool{}
	for _, gids := range tables {
		for i := range gids {
			if gids[i].IsRoCEv2() {
				has[gids[i].Address()] = true
			}
		}
	}
	for _, text := range addresses {
		bare, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(bare); err == nil && !a.IsLinkLocalUnicast() && !has[a.Unmap()] {
			missing = append(missing, text)
		}
	}
	return missing
}
