package block

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/local"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// confirmAfter is the age of a confirmation at which an ADD asks the server again, if
	// rail-agent has not asked before.
	confirmAfter = 10 * time.Minute
	// askAgain is how long ADDs do not ask the server again. After the server had no free
	// block, ADDs that need one fail for this time. After the server did not answer, ADDs
	// with a usable block do not ask for this time.
	askAgain = 30 * time.Second
	// betweenTries is about how long an ADD waits before it asks again, if it cannot go on
	// without the server's answer.
	betweenTries = time.Second
	// optionalWait bounds how long an ADD that has a usable block waits for a
	// confirmation.
	optionalWait = 2 * time.Second
	// RetryFor is the RetryFor of the [kube.Config] of the client: how long one request is
	// repeated.
	RetryFor = 5 * time.Second
)

// Options configures a [Store].
type Options struct {
	Client *kube.Client // opened with [RetryFor]
	// Kubeconfig is the kubeconfig that Client was opened with. FlatFile is the network's
	// flat file, or "" if the network has none. rail-agent opens its own client with both.
	Kubeconfig, FlatFile string
	StateDir             string // the node's state directory, an absolute path
	Node                 string // the node's name, which must be unique in the cluster
	Size                 int    // number of addresses in a block, a power of two
	// Gone returns an error if the pod that Allocate is called for has ended. nil means
	// that it never ends.
	Gone func() error
	// Warn is called with errors that do not fail a call; it may be nil.
	Warn func(err error)
}

// Store assigns addresses of the node's blocks. It is safe for concurrent use by
// goroutines and processes. Close it when done.
type Store struct {
	client               *kube.Client
	kubeconfig, flatFile string
	size                 int
	self                 api.Holder // without a claim
	gone                 func() error
	warn                 func(error)
	now                  func() moment

	local *local.Store
	dir   *statefile.Dir
}

var _ ipam.Store = (*Store)(nil)

// New opens the node's side of the store and makes its directories. It makes no request.
func New(o Options) (*Store, error) {
	s := &Store{
		client: o.Client, kubeconfig: o.Kubeconfig, flatFile: o.FlatFile, size: o.Size,
		gone: o.Gone, warn: o.Warn, now: now, local: local.New(o.StateDir),
	}
	var err error
	if s.self, err = identity(o.Node); err != nil {
		return nil, err
	}
	server := statefile.Name(o.Client.Server(), o.Client.Namespace())
	s.dir, err = statefile.Open(filepath.Join(o.StateDir, storeDir, server, blocksDir))
	return s, err
}

// identity returns this node as a holder without a claim.
func identity(node string) (api.Holder, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return api.Holder{}, failure.From(err, failure.IO, "cannot tell this boot from the last one").Cure("mount /proc")
	}
	machine, _ := os.ReadFile("/etc/machine-id") // minimal systems have none
	return api.Holder{Node: node, Machine: strings.TrimSpace(string(machine)), Boot: strings.TrimSpace(string(boot))}, nil
}

// Close closes the directory.
func (s *Store) Close() error { return s.dir.Close() }

func (s *Store) warnIf(err error) {
	if err != nil && s.warn != nil {
		s.warn(err)
	}
}

func (s *Store) pool(id ipam.Pool) *pool { return &pool{Store: s, Pool: id, size: s.size} }

// Allocate implements [ipam.Store].
func (s *Store) Allocate(ctx context.Context, owner ipam.Owner, claims []ipam.Claim) ([]netip.Prefix, error) {
	var got []netip.Prefix
	var pools []ipam.Pool
	for _, c := range claims {
		addr, err := s.poolOf(c).allocate(ctx, owner, c)
		if err != nil {
			return nil, errors.Join(err, s.undo(ctx, owner, pools))
		}
		pools, got = append(pools, c.Pool), append(got, addr)
	}
	return got, nil
}

func (s *Store) undo(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) error {
	if len(pools) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return s.local.Release(ctx, owner, pools)
}

var (
	// errNoRoom means that no usable block has a free address for a claim.
	errNoRoom = errors.New("no block of this node has a free address")
	// errNoGuard means that this node has not yet seen the guard of a rail's pool.
	errNoGuard = errors.New("the pool of the rail may be used without blocks")
)

// allocate assigns an address of the node's blocks. If none of them has a free address, it
// claims one more block. If the server does not answer, allocate asks again until ctx ends.
func (p *pool) allocate(ctx context.Context, owner ipam.Owner, c ipam.Claim) (netip.Prefix, error) {
	if why := c.Range.Why(c.Want); c.Want.IsValid() && why != "" {
		return netip.Prefix{}, failure.New(failure.IPAM, "cannot give %s the requested address %s: %s", owner.PodRef, c.Want, why).
			Cure("ask for another address, or let the pool choose")
	}
	for asked := false; ; {
		if err := ctx.Err(); err != nil {
			return netip.Prefix{}, failure.From(err, failure.TryAgain, "choosing an address of %s", c.Pool.Prefix).Cure("try again")
		}
		got, confirm, err := p.choose(ctx, owner, c, asked)
		switch {
		case confirm:
			asked = true
			err = p.confirm(ctx)
		case errors.Is(err, errNoGuard):
			err = p.guardRail(ctx, c)
		case errors.Is(err, errNoRoom):
			err = p.claim(ctx, c)
		default:
			return got, err
		}
		if err != nil && (!api.IsTransient(err) || wait.For(ctx, betweenTries/2+rand.N(betweenTries)) != nil) {
			return netip.Prefix{}, err
		}
	}
}

// choose assigns an address of the usable blocks. It returns confirm and no address if the
// server should first be asked to confirm the blocks. asked means that this ADD has asked
// already: choose then goes on with the usable blocks, if there are any. The error is
// errNoRoom if no block has a free address, and errNoGuard if this node has not yet seen
// the guard of the rail's pool.
func (p *pool) choose(ctx context.Context, owner ipam.Owner, c ipam.Claim, asked bool) (got netip.Prefix, confirm bool, err error) {
	err = p.locked(ctx, func(f *file) (bool, error) {
		if p.gone != nil {
			if err := p.gone(); err != nil {
				return false, err
			}
		}
		if c.SameHost != nil && !slices.Contains(f.Rails, c.Pool) {
			return false, errNoGuard
		}
		now := p.now()
		usable := f.usable(now)
		if confirm = f.asks(now) && (!asked || len(usable) == 0); confirm {
			return false, nil
		}
		got, err = p.assign(ctx, owner, c, blocksFor(c, usable))
		return false, err
	})
	return got, confirm, err
}

// assign assigns the first free address of blocks, which must be parts of the claim's pool.
// If owner already has an address of blocks, assign returns that address.
func (p *pool) assign(ctx context.Context, owner ipam.Owner, c ipam.Claim, blocks []netip.Prefix) (netip.Prefix, error) {
	isOwn := func(a netip.Addr) bool {
		return slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(a) })
	}
	part, some := c.Range.Within(blocks)
	if !some || c.Want.IsValid() && !isOwn(c.Want) {
		return netip.Prefix{}, errNoRoom
	}
	c.Range = part
	for {
		got, err := p.local.Allocate(ctx, owner, []ipam.Claim{c})
		switch full := (*ipam.ExhaustedError)(nil); {
		case errors.As(err, &full):
			return netip.Prefix{}, errNoRoom
		case err != nil:
			return netip.Prefix{}, err
		case isOwn(got[0].Addr()):
			return got[0], nil
		}
		// The address is of a block that the node has lost, or that the server did not confirm.
		if err := p.undo(ctx, owner, []ipam.Pool{c.Pool}); err != nil {
			return netip.Prefix{}, err
		}
	}
}

// Release implements [ipam.Store]. It makes no request: rail-agent tells the server.
func (s *Store) Release(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) error {
	return s.local.Release(ctx, owner, pools)
}

// Check implements [ipam.Store].
func (s *Store) Check(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) ([]netip.Prefix, error) {
	return s.local.Check(ctx, owner, pools)
}

// GC implements [ipam.Store].
func (s *Store) GC(ctx context.Context, network string, pools []ipam.Pool, valid []ipam.Attachment) error {
	return s.local.GC(ctx, network, pools, valid)
}

// Status implements [ipam.Store]. If no block of the node has a free address, it asks the
// server whether the pool can be divided into blocks.
func (s *Store) Status(ctx context.Context, claims []ipam.Claim) error {
	for _, c := range claims {
		if err := s.poolOf(c).status(ctx, c); err != nil {
			return failure.Wrap(err, failure.NotAvailable, "no address can be assigned")
		}
	}
	return nil
}

func (p *pool) status(ctx context.Context, c ipam.Claim) error {
	f, err := p.peek(ctx)
	switch {
	case err != nil:
		return err
	case p.hasFree(ctx, c, f):
		return nil
	case f.full(p.hosts(c), p.now()):
		return p.fullError(c)
	}
	return p.guard(ctx, c)
}
