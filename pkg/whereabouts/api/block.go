package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// The annotations of blocks and guards. A block has all of the first five.
const (
	annotationNode      = "rail-cni/node"
	annotationMachine   = "rail-cni/machine"
	annotationBoot      = "rail-cni/boot"
	annotationClaim     = "rail-cni/claim"
	annotationRevoked   = "rail-cni/revoked"
	annotationBlockSize = "rail-cni/block-size"
	// annotationHostBlocks has the same for a pool with sameHost. It is another annotation, so
	// that versions which do not know sameHost refuse the pool.
	annotationHostBlocks = "rail-cni/host-block-size"
)

const (
	// BlockUsableFor is how long a node assigns addresses of a block after the server has
	// confirmed that the block is its own.
	BlockUsableFor = time.Hour
	// BlockFreeAfter is how long a block must have been revoked before it is freed: by
	// then its holder no longer assigns its addresses.
	BlockFreeAfter = BlockUsableFor + 10*time.Minute
)

// Holder is a node that holds a block. The zero Holder is none.
type Holder struct {
	Node    string
	Machine string // of /etc/machine-id, "" if the node has none
	Boot    string // its boot ID when it took the block
	// Claim is a random text, new for each claim, "" if no node holds the block. A patch
	// tests it, so that it changes no other claim's block.
	Claim string
}

// Block has what the annotations of a block's IPPool say. A block is a part of a pool of
// which one node assigns the addresses. Its entries are those that the node has
// published; the node alone knows which addresses are taken.
type Block struct {
	Holder
	// Revoked is set by the reconciler if the holder seems to be gone, or was rebooted and
	// has not taken the block again. A holder that still uses the block removes it.
	// Otherwise the block is freed.
	Revoked string
}

// BlockName returns the name of the IPPool that is a block of the pool. Pools of one
// address space that overlap have the same names for the same blocks.
func BlockName(pool ipam.Pool, block netip.Prefix) string {
	return ipam.Pool{Space: pool.Space, Node: ipam.BlockNode, Prefix: block}.Name()
}

func (h Holder) annotations() map[string]string {
	return map[string]string{
		annotationNode: h.Node, annotationMachine: h.Machine, annotationBoot: h.Boot,
		annotationClaim: h.Claim, annotationRevoked: "",
	}
}

const (
	// inBlocks stands between the range and the size in a guard's spec.range.
	inBlocks = " in blocks of "
	// onAllRails ends a guard's spec.range with sameHost.
	onAllRails = " on all rails"
)

// readAnnotations sets Block and BlockSize.
func (p *PoolState) readAnnotations(a map[string]string) {
	if claim, ok := a[annotationClaim]; ok {
		p.Block = &Block{
			Holder:  Holder{Node: a[annotationNode], Machine: a[annotationMachine], Boot: a[annotationBoot], Claim: claim},
			Revoked: a[annotationRevoked],
		}
	}
	for _, key := range []string{annotationBlockSize, annotationHostBlocks} {
		if size, err := strconv.Atoi(a[key]); err == nil && size > 0 {
			p.BlockSize, p.SameHost = size, key == annotationHostBlocks
		}
	}
}

// CreateBlock makes a block that h holds. It returns false if the block exists.
func CreateBlock(ctx context.Context, client *kube.Client, name string, block netip.Prefix, h Holder) (bool, error) {
	o := NewIPPool(name, client.Namespace(), block.String(), map[string]Entry{})
	o.Metadata.Annotations = h.annotations()
	_, err := client.Create(ctx, Pools(client.Namespace()), o)
	if kube.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}

// ReadBlock returns a block, nil if there is none of this name.
func ReadBlock(ctx context.Context, client *kube.Client, name string) (*PoolState, error) {
	p, err := ReadPool(ctx, client, name)
	if err == nil && p != nil && p.Block == nil {
		return nil, failure.New(failure.BadRecord, "IPPool %s/%s lacks the annotation %s of a block", client.Namespace(), name, annotationClaim).
			Cure("delete it when no pod uses its addresses")
	}
	return p, err
}

// HeldBlocks returns the holders of the held blocks in client's namespace, by block name.
// It does not read their entries. If the account may not list IPPools it returns no holders
// and no error, because the search also works without them.
func HeldBlocks(ctx context.Context, client *kube.Client) (map[string]Holder, error) {
	held := map[string]Holder{}
	_, err := client.List(ctx, Pools(client.Namespace()), kube.ListOptions{MetadataOnly: true, Limit: firstPools, PageBytes: poolsPage}, func(item []byte) error {
		var o struct {
			Metadata struct {
				Name        string            `json:"name"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(item, &o); err != nil {
			return err
		}
		var p PoolState
		if p.readAnnotations(o.Metadata.Annotations); p.Block != nil && p.Block.Claim != "" {
			held[o.Metadata.Name] = p.Block.Holder
		}
		return nil
	})
	if kube.IsForbidden(err) {
		return held, nil
	}
	return held, err
}

// TakeBlock makes h the holder of a block, and removes its entries. It returns false if
// the block is no longer as it was.
func TakeBlock(ctx context.Context, client *kube.Client, name string, was Block, h Holder) (bool, error) {
	ops := []kube.PatchOp{{Op: "add", Path: "/spec/allocations", Value: map[string]Entry{}}}
	for key, value := range h.annotations() {
		ops = append(ops, annotate(key, value))
	}
	return was.patch(ctx, client, name, ops...)
}

// FreeBlock makes a block one without a holder or entries, like [TakeBlock].
func FreeBlock(ctx context.Context, client *kube.Client, name string, was Block) (bool, error) {
	return TakeBlock(ctx, client, name, was, Holder{})
}

// RevokeBlock sets the mark of a block, or removes it if mark is "", like [TakeBlock].
func RevokeBlock(ctx context.Context, client *kube.Client, name string, was Block, mark string) (bool, error) {
	return was.patch(ctx, client, name, annotate(annotationRevoked, mark))
}

// PublishBlock replaces the entries of a block, like [TakeBlock].
func PublishBlock(ctx context.Context, client *kube.Client, name string, was Block, entries map[string]Entry) (bool, error) {
	return was.patch(ctx, client, name, kube.PatchOp{Op: "add", Path: "/spec/allocations", Value: entries})
}

// patch changes a block that still has the claim and the mark of was.
func (was Block) patch(ctx context.Context, client *kube.Client, name string, ops ...kube.PatchOp) (bool, error) {
	tests := []kube.PatchOp{annotate(annotationClaim, was.Claim), annotate(annotationRevoked, was.Revoked)}
	for i := range tests {
		tests[i].Op = "test"
	}
	_, err := client.Patch(ctx, Pools(client.Namespace()), name, append(tests, ops...))
	if IsLostRace(err) {
		return false, nil
	}
	return err == nil, err
}

// bareRange returns the text of a guard's range without its blocks, or text itself.
func bareRange(text string) string {
	bare, _, _ := strings.Cut(text, inBlocks)
	return bare
}

func annotate(key, value string) kube.PatchOp {
	return kube.PatchOp{Op: "add", Path: "/metadata/annotations/" + kube.Escape(key), Value: value}
}

// Guard marks the pool as divided into blocks of size addresses. This is done once for each
// pool. If networks without blocks use it, or blocks of another size, it
// returns an error of kind InvalidConfig.
//
// The guard is the pool's own IPPool, with the annotation of the size and a range that is
// no CIDR: programs that know no blocks refuse the object, earlier versions of this store
// as well as whereabouts. A CIDR of the other address family would not do, because
// whereabouts v0.9.4 answers an ADD with an address although it could not store it.
func Guard(ctx context.Context, client *kube.Client, pool ipam.Pool, size int) error {
	return guard(ctx, client, pool, size, false)
}

// GuardRail is [Guard] for the pool of a rail of networks with sameHost: its blocks are those
// of its [ipam.HostPool].
func GuardRail(ctx context.Context, client *kube.Client, pool ipam.Pool, size int) error {
	return guard(ctx, client, pool, size, true)
}

func guard(ctx context.Context, client *kube.Client, pool ipam.Pool, size int, sameHost bool) error {
	now, err := ReadPool(ctx, client, pool.Name())
	if err != nil {
		return err
	}
	if now == nil {
		key, text := annotationBlockSize, fmt.Sprintf("%s%s%d", pool.Prefix, inBlocks, size)
		if sameHost {
			key, text = annotationHostBlocks, text+onAllRails
		}
		o := NewIPPool(pool.Name(), client.Namespace(), text, map[string]Entry{})
		o.Metadata.Annotations = map[string]string{key: strconv.Itoa(size)}
		_, err := client.Create(ctx, Pools(client.Namespace()), o)
		if !kube.IsAlreadyExists(err) {
			return err
		}
		if now, err = ReadPool(ctx, client, pool.Name()); err != nil || now == nil {
			return err
		}
	}
	switch {
	case now.BlockSize == size && now.SameHost == sameHost:
		return nil
	case now.BlockSize == 0:
		return failure.New(failure.InvalidConfig, "the network has block_size, but IPPool %s/%s belongs to networks without it (%d addresses are taken)",
			client.Namespace(), now.Name, len(now.Entries)).
			Cure("end their pods and delete the IPPool, or give this network another range or network_name")
	case now.SameHost != sameHost:
		with := map[bool]string{true: "with", false: "without"}
		return failure.New(failure.InvalidConfig, "this is a network %s sameHost, but IPPool %s/%s belongs to networks %s it",
			with[sameHost], client.Namespace(), now.Name, with[now.SameHost]).
			Cure("give all networks of this range the same sameHost, or this one another range or network_name")
	}
	of := "of this range"
	if sameHost || pool.Node == ipam.HostNode { // they share the blocks, whatever their ranges are
		of = fmt.Sprintf("of this network_name with sameHost and ranges of the length /%d", pool.Prefix.Bits())
	}
	return failure.New(failure.InvalidConfig, "the network has block_size %d, but IPPool %s/%s is divided into blocks of %d",
		size, client.Namespace(), now.Name, now.BlockSize).
		Cure("give all networks %s the same block_size, or this one another network_name", of)
}

// Guarded returns the error of a network without blocks whose pool is divided into them,
// or nil.
func (p *PoolState) Guarded() error {
	if p.BlockSize == 0 {
		return nil
	}
	return failure.New(failure.InvalidConfig, "IPPool %s/%s is divided into blocks of %d addresses, but the network has no block_size",
		p.Namespace, p.Name, p.BlockSize).
		Cure("give all networks of this range the same block_size, or this one another range or network_name")
}
