package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// The API group of whereabouts' custom resources.
const (
	Group   = "whereabouts.cni.cncf.io"
	Version = "v1alpha1"
)

// Pools names the IPPools of a namespace; with "" those of all namespaces.
func Pools(namespace string) kube.Resource { return resource("ippools", namespace) }

// Reservations names the OverlappingRangeIPReservations, as [Pools] does.
func Reservations(namespace string) kube.Resource {
	return resource("overlappingrangeipreservations", namespace)
}

// Slices names the NodeSlicePools, as [Pools] does.
func Slices(namespace string) kube.Resource { return resource("nodeslicepools", namespace) }

func resource(plural, namespace string) kube.Resource {
	return kube.Resource{Group: Group, Version: Version, Plural: plural, Namespace: namespace}
}

// typeMeta and objectMeta are the parts of every object that are written.
type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

type objectMeta struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace,omitempty"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// CreationTimestamp is by the server's clock, in whole seconds.
	CreationTimestamp time.Time `json:"creationTimestamp,omitzero"`
}

func typed(kind string) typeMeta {
	return typeMeta{APIVersion: Group + "/" + Version, Kind: kind}
}

// Entry is the value of a pool's allocation: who holds the address. Entries
// whose PodRef is empty are placeholders that nobody touches.
type Entry struct {
	ContainerID string `json:"id"`
	PodRef      string `json:"podref"`
	// IfName is empty in entries from before whereabouts 0.8.
	IfName string `json:"ifname,omitempty"`
}

func entryOf(o ipam.Owner) Entry {
	return Entry{ContainerID: o.ContainerID, PodRef: o.PodRef, IfName: o.IfName}
}

// bytes is about what the entry takes in the object, without its key.
func (e Entry) bytes() int {
	const frame = 37 // names, quotes, commas
	return len(e.ContainerID) + len(e.PodRef) + len(e.IfName) + frame
}

// Owner gives the holder, without the network, which pools do not keep.
func (e Entry) Owner() ipam.Owner {
	return ipam.Owner{ContainerID: e.ContainerID, PodRef: e.PodRef, IfName: e.IfName}
}

// ippool is an IPPool as the server has it.
type ippool struct {
	typeMeta
	Metadata poolMeta `json:"metadata"`
	Spec     poolSpec `json:"spec"`
}

type poolMeta struct {
	objectMeta
	ManagedFields []json.RawMessage `json:"managedFields,omitempty"`
}

type poolSpec struct {
	Range       string           `json:"range"`
	Allocations map[string]Entry `json:"allocations"`
}

// reservation is an OverlappingRangeIPReservation.
type reservation struct {
	typeMeta
	Metadata objectMeta      `json:"metadata"`
	Spec     reservationSpec `json:"spec"`
}

type reservationSpec struct {
	ContainerID string `json:"containerid,omitempty"` // whereabouts 0.7's CRD wants it
	PodRef      string `json:"podref"`
	IfName      string `json:"ifname,omitempty"`
}

// of says whether the reservation is owner's. Those from before whereabouts
// 0.8 have no interface name.
func (r reservationSpec) of(o ipam.Owner) bool {
	return r.PodRef == o.PodRef && (r.IfName == o.IfName || r.IfName == "")
}

// PoolState is what one read of an IPPool says.
type PoolState struct {
	Name, Namespace string
	UID, Revision   string
	// Base is the address that the keys count from: the IP part of spec.range,
	// with the host bits that somebody may have left in it.
	Base    netip.Addr
	Prefix  netip.Prefix     // spec.range, masked
	Entries map[string]Entry // by key, as in the object
	Bytes   int              // of the object as JSON
	// Managed says that the server keeps a note, in metadata.managedFields, of
	// who wrote each single entry.
	Managed bool
	// NoMap says that spec.allocations is missing or null: a patch cannot add
	// to it.
	NoMap bool
}

// ParsePool reads an IPPool. It fails with the code BadRecord if spec.range is
// no network.
func ParsePool(data []byte) (*PoolState, error) {
	var o ippool
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, cnierr.Wrap(err, cnierr.BadRecord, "correct or delete the object", "IPPool %s/%s", o.Metadata.Namespace, o.Metadata.Name)
	}
	p := &PoolState{
		Name: o.Metadata.Name, Namespace: o.Metadata.Namespace,
		UID: o.Metadata.UID, Revision: o.Metadata.ResourceVersion,
		Entries: o.Spec.Allocations, Bytes: len(data), NoMap: o.Spec.Allocations == nil,
		Managed: len(o.Metadata.ManagedFields) > 0,
	}
	prefix, err := netip.ParsePrefix(o.Spec.Range)
	if err != nil {
		return nil, cnierr.Wrap(err, cnierr.BadRecord, "write the network that the pool is named after into spec.range",
			"IPPool %s/%s", p.Namespace, p.Name)
	}
	p.Base, p.Prefix = prefix.Addr(), prefix.Masked()
	return p, nil
}

// Key gives the allocation key of addr: its distance from the pool's base, in
// decimal. It fails for an address below the base, which no key can name.
func (p *PoolState) Key(addr netip.Addr) (string, error) { return offset(p.Base, addr) }

// Addr gives the address that key names. It fails for what is no key of this
// pool.
func (p *PoolState) Addr(key string) (netip.Addr, error) {
	n, ok := new(big.Int).SetString(key, 10)
	if !ok || n.Sign() < 0 || n.String() != key {
		return netip.Addr{}, fmt.Errorf("the key %q is not a number from 0 on", key)
	}
	base := p.Base.AsSlice()
	sum := n.Add(n, new(big.Int).SetBytes(base))
	if sum.BitLen() > 8*len(base) {
		return netip.Addr{}, fmt.Errorf("the key %q is beyond the last address", key)
	}
	addr, _ := netip.AddrFromSlice(sum.FillBytes(base))
	return addr, nil
}

var errBelow = errors.New("the address lies below the one that spec.range begins with")

func offset(base, addr netip.Addr) (string, error) {
	if base.Is4() != addr.Is4() || addr.Less(base) {
		return "", errBelow
	}
	a, b := new(big.Int).SetBytes(addr.AsSlice()), new(big.Int).SetBytes(base.AsSlice())
	return a.Sub(a, b).String(), nil
}

// used gives the set of the addresses that have an entry, whoever's. Keys that
// name no address hold none.
func (p *PoolState) used() *ipam.Set {
	s := new(ipam.Set)
	for key := range p.Entries {
		if addr, err := p.Addr(key); err == nil {
			s.Add(addr)
		}
	}
	return s
}

// find gives the entry, of several that with the lowest address, for which
// match holds. Placeholders are nobody's.
func (p *PoolState) find(match func(netip.Addr, Entry) bool) (netip.Addr, Entry, bool) {
	var best netip.Addr
	var found Entry
	for key, e := range p.Entries {
		if e.PodRef == "" {
			continue
		}
		addr, err := p.Addr(key)
		if err != nil || best.IsValid() && !addr.Less(best) || !match(addr, e) {
			continue
		}
		best, found = addr, e
	}
	return best, found, best.IsValid()
}
