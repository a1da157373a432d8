package pcie

import (
	"fmt"
	"slices"
)

// Distance is how far two PCI functions are apart. A smaller distance is nearer.
type Distance int

// The distances, with the abbreviations of `nvidia-smi topo -m`.
const (
	// PIX: at most one switch is between the functions.
	PIX Distance = iota
	// PXB: several switches are between the functions, but no host bridge.
	PXB
	// PHB: the host bridge is between the functions. It is usually in the CPU.
	PHB
	// NODE: several host bridges of one NUMA node are between the functions.
	NODE
	// SYS: the link between NUMA nodes is between the functions.
	SYS
)

var abbreviations = []string{"PIX", "PXB", "PHB", "NODE", "SYS"}

// String returns nvidia-smi's abbreviation of the distance.
func (d Distance) String() string { return abbreviations[d] }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Distance) UnmarshalText(text []byte) error {
	i := slices.Index(abbreviations, string(text))
	if i < 0 {
		return fmt.Errorf("%q is not one of %v", text, abbreviations)
	}
	*d = Distance(i)
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (d Distance) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Distance returns the distance between the functions at two addresses. If one of them does
// not exist, it returns SYS. If the functions are below different host bridges, it returns
// SYS if their NUMA nodes differ or only one of the NUMA nodes is known, and NODE if the
// NUMA nodes are the same or neither is known.
func (t *Tree) Distance(a, b string) Distance {
	x, y := t.devices[a], t.devices[b]
	switch {
	case x == nil || y == nil:
		return SYS
	case a == b:
		return PIX
	case len(x.Path) == 0 || len(y.Path) == 0 || x.Path[0] != y.Path[0]:
		if x.NUMA != y.NUMA {
			return SYS
		}
		return NODE
	}
	shared := 0
	for shared < min(len(x.Path), len(y.Path)) && x.Path[shared] == y.Path[shared] {
		shared++
	}
	// Behind one switch each path has at most one bridge that the other path does not have,
	// a downstream port. A further switch adds an upstream port and a downstream port.
	switch below := max(len(x.Path), len(y.Path)) - shared; {
	case shared == 1:
		return PHB
	case below <= 1:
		return PIX
	}
	return PXB
}
