package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// The API group of whereabouts' custom resources.
const (
	Group   = "whereabouts.cni.cncf.io"
	Version = "v1alpha1"
)

// Pools returns the resource of the IPPools in a namespace, or in all namespaces if
// namespace is "".
func Pools(namespace string) kube.Resource { return resource("ippools", namespace) }

// Reservations returns the resource of the OverlappingRangeIPReservations, like
// [Pools].
func Reservations(namespace string) kube.Resource {
	return resource("overlappingrangeipreservations", namespace)
}

// Slices returns the resource of the NodeSlicePools, like [Pools].
func Slices(namespace string) kube.Resource { return resource("nodeslicepools", namespace) }

func resource(plural, namespace string) kube.Resource {
	return kube.Resource{Group: Group, Version: Version, Plural: plural, Namespace: namespace}
}

// TypeMeta has the API version and the kind of an object.
type TypeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func typed(kind string) TypeMeta {
	return TypeMeta{APIVersion: Group + "/" + Version, Kind: kind}
}

// Entry is the value of one allocation in an IPPool. It names the holder of the address. An
// entry with an empty PodRef is a placeholder and must not be changed.
type Entry struct {
	ContainerID string `json:"id"`
	PodRef      string `json:"podref"`
	// IfName is empty in entries that whereabouts wrote before its version 0.8.
	IfName string `json:"ifname,omitempty"`
}

// NewEntry returns the entry for an address that o holds.
func NewEntry(o ipam.Owner) Entry {
	return Entry{ContainerID: o.ContainerID, PodRef: o.PodRef, IfName: o.IfName}
}

// Size returns the approximate number of bytes that the entry takes in the IPPool's JSON,
// without its key.
func (e Entry) Size() int {
	const frame = 37 // names, quotes, commas
	return len(e.ContainerID) + len(e.PodRef) + len(e.IfName) + frame
}

// Owner returns the holder that the entry names. Its Network is empty, because an IPPool
// does not store the network.
func (e Entry) Owner() ipam.Owner {
	return ipam.Owner{ContainerID: e.ContainerID, PodRef: e.PodRef, IfName: e.IfName}
}

// IPPool is the custom resource IPPool, in the form in which the server sends and receives
// it.
type IPPool struct {
	TypeMeta
	Metadata poolMeta   `json:"metadata"`
	Spec     IPPoolSpec `json:"spec"`
}

type poolMeta struct {
	kube.Meta
	ManagedFields []json.RawMessage `json:"managedFields,omitempty"`
}

// IPPoolSpec is the spec of an IPPool.
type IPPoolSpec struct {
	Range       string           `json:"range"`
	Allocations map[string]Entry `json:"allocations"`
}

// NewIPPool returns the object for a pool of the network cidr.
func NewIPPool(name, namespace, cidr string, allocations map[string]Entry) IPPool {
	return IPPool{
		TypeMeta: typed("IPPool"), Metadata: poolMeta{Meta: kube.Meta{Name: name, Namespace: namespace}},
		Spec: IPPoolSpec{Range: cidr, Allocations: allocations},
	}
}

// PoolState is an IPPool as it was read.
type PoolState struct {
	Name, Namespace string
	UID, Revision   string
	// Base is the address that the keys count from: the IP part of spec.range,
	// which may have host bits.
	Base    netip.Addr
	Prefix  netip.Prefix     // spec.range, masked
	Entries map[string]Entry // by key, as in the object
	Bytes   int              // size of the object as JSON
	// Managed is set if the object has metadata.managedFields: there the server records who
	// wrote each entry.
	Managed bool
	// NoMap is set if spec.allocations is missing or null: then a patch cannot add an entry
	// without making the map first.
	NoMap bool
	// Block is set if the object is a block of another pool. BlockSize is set if this pool
	// itself is divided into blocks: it is the number of addresses of a block, and the pool
	// has no entries.
	Block     *Block
	BlockSize int
	// SameHost is set if this pool is divided into blocks with sameHost: the blocks then
	// belong to the pool's [ipam.HostPool].
	SameHost bool
}

// ParsePool reads an IPPool from its JSON. It returns an error of kind BadRecord if the
// JSON is malformed, or if spec.range is neither a network nor the range of a guard.
func ParsePool(data []byte) (*PoolState, error) {
	var o IPPool
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, failure.From(err, failure.BadRecord, "IPPool %s/%s", o.Metadata.Namespace, o.Metadata.Name).Cure("correct or delete the object")
	}
	p := &PoolState{
		Name: o.Metadata.Name, Namespace: o.Metadata.Namespace,
		UID: o.Metadata.UID, Revision: o.Metadata.ResourceVersion,
		Entries: o.Spec.Allocations, Bytes: len(data), NoMap: o.Spec.Allocations == nil,
		Managed: len(o.Metadata.ManagedFields) > 0,
	}
	prefix, err := netip.ParsePrefix(bareRange(o.Spec.Range))
	if err != nil {
		return nil, failure.From(err, failure.BadRecord, "IPPool %s/%s", p.Namespace, p.Name).
			Cure("set spec.range to the network that the pool is named after")
	}
	p.Base, p.Prefix = prefix.Addr(), prefix.Masked()
	p.readAnnotations(o.Metadata.Annotations)
	if p.BlockSize == 0 && o.Spec.Range != bareRange(o.Spec.Range) {
		return nil, failure.New(failure.BadRecord, "IPPool %s/%s has the range %q, and lacks the annotation %s",
			p.Namespace, p.Name, o.Spec.Range, annotationBlockSize).
			Cure("set the annotation to the block size that the range names")
	}
	return p, nil
}

// Key returns the allocation key of addr: its distance from the pool's base, in decimal. It
// returns an error for an address below the base, because such an address has no key.
func (p *PoolState) Key(addr netip.Addr) (string, error) { return offset(p.Base, addr) }

// Addr returns the address that an allocation key stands for. It returns an error if key is
// not a number from 0 on, or if its address would be beyond the last one of the address
// family.
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

var errBelow = errors.New("the address is lower than the first address in spec.range")

func offset(base, addr netip.Addr) (string, error) {
	if base.Is4() != addr.Is4() || addr.Less(base) {
		return "", errBelow
	}
	a, b := new(big.Int).SetBytes(addr.AsSlice()), new(big.Int).SetBytes(base.AsSlice())
	return a.Sub(a, b).String(), nil
}

// Used returns the set of the addresses that have an entry, including
// placeholders. Malformed keys are ignored.
func (p *PoolState) Used() *ipam.Set {
	s := new(ipam.Set)
	for key := range p.Entries {
		if addr, err := p.Addr(key); err == nil {
			s.Add(addr)
		}
	}
	return s
}

// Find returns the entry for which match returns true, and its address. If match returns
// true for several entries, Find returns the one with the lowest address. It skips
// placeholders. It returns false if there is no such entry.
func (p *PoolState) Find(match func(netip.Addr, Entry) bool) (netip.Addr, Entry, bool) {
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

// ReadPool returns the pool with this name in client's namespace, or nil if there is none.
func ReadPool(ctx context.Context, client *kube.Client, name string) (*PoolState, error) {
	data, err := client.Get(ctx, Pools(client.Namespace()), name)
	if kube.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ParsePool(data)
}

// MaxEntries is the approximate number of addresses that one pool can hold: the size of its
// object is limited to 1.5 MiB, and one entry takes about 150 bytes.
const MaxEntries = 10_000
