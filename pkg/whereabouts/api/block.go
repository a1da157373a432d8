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

// The annotations of blocks and guards. Each block has the first five.
const (
	annotationNode      = "rail-cni/node"
	annotationMachine   = "rail-cni/machine"
	annotationBoot      = "rail-cni/boot"
	annotationClaim     = "rail-cni/claim"
	annotationRevoked   = "rail-cni/revoked"
	annotationBlockSize = "rail-cni/block-size"
	// annotationHostBlocks has the block size of a pool with sameHost. It differs from
	// annotationBlockSize so that versions which do not know sameHost refuse the pool.
	annotationHostBlocks = "rail-cni/host-block-size"
)

const (
	// BlockUsableFor is how long a node may assign addresses of a block after the server
	// has confirmed that the node holds the block.
	BlockUsableFor = time.Hour
	// BlockFreeAfter is how long a block must have been revoked before it is freed. After
	// that time its holder no longer assigns addresses of the block.
	BlockFreeAfter = BlockUsableFor + 10*time.Minute
)

// Holder is a node that holds a block. The zero Holder means that no node holds it.
type Holder struct {
	Node    string
	Machine string // content of /etc/machine-id, "" if the node has no such file
	Boot    string // the node's boot ID at the time when it took the block
	// Claim is a random text that is new for each claim, or "" if no node holds the block.
	// Each patch of a block tests the claim, so that the patch fails if the block has been
	// claimed anew.
	Claim string
}

// Block has the contents of the annotations of a block's IPPool. A block is a part of a
// pool, and one node assigns its addresses. The entries in the block's IPPool are those
// that this node has published: only the node itself knows which addresses are taken.
type Block struct {
	Holder
	// Revoked is a mark. The reconciler sets it if the holder seems to be gone, or if the
	// holder was rebooted and has not taken the block again. A holder that still uses the
	// block removes the mark. If the mark stays, the block is freed.
	Revoked string
}

// BlockName returns the name of the IPPool for a block of pool. If two pools of one address
// space overlap, a block that both contain has the same name in both.
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
	// onAllRails ends the spec.range of a guard with sameHost.
	onAllRails = " on all rails"
)

// readAnnotations sets Block, BlockSize and SameHost from the annotations of the object.
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

// ReadBlock returns the block with this name, or nil if there is no such IPPool.
func ReadBlock(ctx context.Context, client *kube.Client, name string) (*PoolState, error) {
	p, err := ReadPool(ctx, client, name)
	if err == nil && p != nil && p.Block == nil {
		return nil, failure.New(failure.BadRecord, "IPPool %s/%s lacks the annotation %s of a block", client.Namespace(), name, annotationClaim).
			Cure("delete the IPPool when no pod uses its addresses")
	}
	return p, err
}

// HeldBlocks returns the holders of the held blocks in client's namespace, by block name.
// It does not read the entries of the blocks. If the account may not list IPPools, it
// returns no holders and no error, because the search for a free block works without them,
// too.
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

// TakeBlock makes h the holder of a block, and removes its entries. It returns false if the
// block no longer has the claim and the mark of was.
func TakeBlock(ctx context.Context, client *kube.Client, name string, was Block, h Holder) (bool, error) {
	ops := []kube.PatchOp{{Op: "add", Path: "/spec/allocations", Value: map[string]Entry{}}}
	for key, value := range h.annotations() {
		ops = append(ops, annotate(key, value))
	}
	return was.patch(ctx, client, name, ops...)
}

// FreeBlock removes the holder and the entries of a block. Like [TakeBlock], it returns
// false if the block has changed.
func FreeBlock(ctx context.Context, client *kube.Client, name string, was Block) (bool, error) {
	return TakeBlock(ctx, client, name, was, Holder{})
}

// RevokeBlock sets the mark of a block, or removes the mark if mark is "". Like
// [TakeBlock], it returns false if the block has changed.
func RevokeBlock(ctx context.Context, client *kube.Client, name string, was Block, mark string) (bool, error) {
	return was.patch(ctx, client, name, annotate(annotationRevoked, mark))
}

// PublishBlock replaces the entries of a block. Like [TakeBlock], it returns false if the
// block has changed.
func PublishBlock(ctx context.Context, client *kube.Client, name string, was Block, entries map[string]Entry) (bool, error) {
	return was.patch(ctx, client, name, kube.PatchOp{Op: "add", Path: "/spec/allocations", Value: entries})
}

// patch applies ops to the block if it still has the claim and the mark of was. Otherwise
// it changes nothing and returns false.
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

// bareRange returns the network in text. If text is the range of a guard, it cuts off the
// part that describes the blocks.
func bareRange(text string) string {
	bare, _, _ := strings.Cut(text, inBlocks)
	return bare
}

func annotate(key, value string) kube.PatchOp {
	return kube.PatchOp{Op: "add", Path: "/metadata/annotations/" + kube.Escape(key), Value: value}
}

// Guard marks the pool as divided into blocks of size addresses, unless it is marked
// already. It returns an error of kind InvalidConfig if networks without blocks use the
// pool, or if the pool is divided into blocks of another size.
//
// The guard is the pool's own IPPool. It has an annotation with the block size, and its
// range is not a CIDR. So a program that does not know blocks refuses the object:
// whereabouts does, and earlier versions of this store do. A CIDR of the other address
// family would not suffice, because whereabouts v0.9.4 answers an ADD with an address
// although it could not store the address.
func Guard(ctx context.Context, client *kube.Client, pool ipam.Pool, size int) error {
	return guard(ctx, client, pool, size, false)
}

// GuardRail is like [Guard] for a network with sameHost. pool is the pool of one rail, and
// its blocks belong to its [ipam.HostPool].
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
		return failure.New(failure.InvalidConfig, "the network has block_size, but IPPool %s/%s belongs to networks without block_size (%d addresses are taken)",
			client.Namespace(), now.Name, len(now.Entries)).
			Cure("end the pods of those networks and delete the IPPool, or give this network another range or network_name")
	case now.SameHost != sameHost:
		with := map[bool]string{true: "with", false: "without"}
		return failure.New(failure.InvalidConfig, "this is a network %s sameHost, but IPPool %s/%s belongs to networks %s sameHost",
			with[sameHost], client.Namespace(), now.Name, with[now.SameHost]).
			Cure("give all networks of this range the same value of sameHost, or give this network another range or network_name")
	}
	scope := "of this range"
	if sameHost || pool.Node == ipam.HostNode { // such networks share the blocks, even if their ranges differ
		scope = fmt.Sprintf("of this network_name with sameHost and ranges of the length /%d", pool.Prefix.Bits())
	}
	return failure.New(failure.InvalidConfig, "the network has block_size %d, but IPPool %s/%s is divided into blocks of %d",
		size, client.Namespace(), now.Name, now.BlockSize).
		Cure("give all networks %s the same block_size, or give this network another network_name", scope)
}

// Guarded returns an error if the pool is divided into blocks, and nil otherwise. It is for
// a network without blocks, which cannot use a divided pool.
func (p *PoolState) Guarded() error {
	if p.BlockSize == 0 {
		return nil
	}
	return failure.New(failure.InvalidConfig, "IPPool %s/%s is divided into blocks of %d addresses, but the network has no block_size",
		p.Namespace, p.Name, p.BlockSize).
		Cure("give all networks of this range the same block_size, or give this network another range or network_name")
}
