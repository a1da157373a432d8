package nvipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nodeprefix"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Times of the keeper.
const (
	look     = 30 * time.Second // between looks at the node file, and after a failure
	watchFor = 5 * time.Minute  // then the node file and the written files are looked at
	listFor  = time.Minute      // for one list, with its repetitions
)

// pools are nv-ipam's CIDRPools of all namespaces. nv-ipam uses those of its own namespace,
// which the agent does not know.
var pools = kube.Resource{Group: "nv-ipam.nvidia.com", Version: "v1alpha1", Plural: "cidrpools"}

// Options are those of a [Keeper].
type Options struct {
	StateDirs []string     // of the plugins; each gets the file
	Node      string       // its name in the cluster
	Client    *kube.Client // nil if there is no cluster
	// Wanted reports whether the node file asks for the prefixes.
	Wanted func() (bool, error)
	Log    *slog.Logger
	// Tell passes on notices, if it is not nil.
	Tell func(agent.Notice)
}

// Keeper writes this node's prefixes of nv-ipam's pools while the node file asks for them.
type Keeper struct {
	Options
	pools   map[string]nodeprefix.Pool // by namespace and name; nil until they are listed
	version string                     // of the list, or of the last event
	told    string                     // the last failure that was reported
}

// NewKeeper returns a Keeper. Run must be called once.
func NewKeeper(o Options) *Keeper { return &Keeper{Options: o} }

// Run keeps the files until ctx ends. It starts again after a panic, which does not end the
// process.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if k.step(ctx) {
			_ = wait.For(ctx, look)
		}
	}
}

// step looks at the node file and, if it asks for prefixes, watches the pools for a while. It
// reports whether to pause.
func (k *Keeper) step(ctx context.Context) (pause bool) {
	defer func() {
		if r := recover(); r != nil {
			k.Log.Error("panic in the reader of prefixes", "panic", r, "stack", string(debug.Stack()))
			k.pools, pause = nil, true
		}
	}()
	wanted, err := k.Wanted()
	switch {
	case err != nil:
		return true // every ADD says what is wrong with the node file
	case !wanted:
		k.pools = nil
		k.report(k.remove())
		return true
	case k.Client == nil:
		k.report(failure.WithCure(errors.New("rail-agent has no cluster to read nv-ipam's pools from"), `give it one by --kubeconfig, or remove "prefixesFrom" from the node file`))
		return true
	}
	err = k.follow(ctx)
	if ctx.Err() == nil {
		k.report(err)
	}
	return err != nil
}

// follow lists the pools unless they are known, and watches them for a while.
func (k *Keeper) follow(ctx context.Context) error {
	if k.pools == nil {
		if err := k.list(ctx); err != nil {
			return err
		}
	}
	if err := k.write(); err != nil { // also if somebody has removed the file
		return err
	}
	k.report(nil)
	err := k.Client.Watch(ctx, pools, kube.ListOptions{ResourceVersion: k.version, Timeout: watchFor}, k.event)
	switch {
	case errors.Is(err, kube.ErrExpired):
		k.pools, err = nil, nil
	case err != nil:
		k.pools = nil
	}
	return explain(err)
}

// list reads all pools. It is an error if the server does not know the kind: one that has just
// started may not know it yet, and then the files must stay.
func (k *Keeper) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	found := map[string]nodeprefix.Pool{}
	// Any state that the server has cached will do: the watch begins with it.
	version, err := k.Client.List(ctx, pools, kube.ListOptions{ResourceVersion: "0"}, func(item []byte) error {
		pool, _, err := parse(item, k.Node)
		found[pool.Namespace+"/"+pool.Name] = pool
		return err
	})
	if err != nil {
		return explain(err)
	}
	k.pools, k.version = found, version
	return nil
}

// event takes over one event of the watch.
func (k *Keeper) event(e kube.Event) error {
	if e.Type == "BOOKMARK" {
		var o struct {
			Metadata kube.Meta `json:"metadata"`
		}
		if err := json.Unmarshal(e.Object, &o); err != nil {
			return err
		}
		k.version = o.Metadata.ResourceVersion
		return nil
	}
	pool, version, err := parse(e.Object, k.Node)
	if err != nil {
		return err
	}
	k.version = version
	name := pool.Namespace + "/" + pool.Name
	if e.Type == "DELETED" {
		delete(k.pools, name)
	} else {
		k.pools[name] = pool
	}
	return k.write()
}

// explain adds the cure of a missing permission.
func explain(err error) error {
	err = failure.Wrap(err, failure.Internal, "nv-ipam's CIDRPools")
	if kube.IsForbidden(err) {
		return failure.WithCure(err, `set the chart's value "readCIDRPools", or add the component deployments/kustomize/nv-ipam`)
	}
	return err
}

// write writes the files, and reports prefixes that have changed while pods have addresses of
// them.
func (k *Keeper) write() error {
	var errs []error
	for _, dir := range k.StateDirs {
		now := &nodeprefix.Pools{Node: k.Node, Pools: slices.Collect(maps.Values(k.pools))}
		before, err := nodeprefix.Read(dir)
		if err == nil && before.Node == k.Node {
			k.reportMoved(dir, before, now)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.Log.Warn("file of prefixes written again", "stateDir", dir, "err", err)
		}
		errs = append(errs, now.Write(dir))
	}
	return errors.Join(errs...)
}

// remove removes the files.
func (k *Keeper) remove() error {
	var errs []error
	for _, dir := range k.StateDirs {
		errs = append(errs, nodeprefix.Remove(dir))
	}
	return errors.Join(errs...)
}

// reportMoved reports each pool whose prefix is another one, or none, while attachments have
// addresses of the former one. Their DEL frees the addresses as ever: the records have the
// former prefix.
func (k *Keeper) reportMoved(stateDir string, before, now *nodeprefix.Pools) {
	is := map[string]nodeprefix.Pool{}
	for _, p := range now.Pools {
		is[p.Namespace+"/"+p.Name] = p
	}
	for _, was := range before.Pools {
		p := is[was.Namespace+"/"+was.Name]
		former, err := netip.ParsePrefix(was.Prefix)
		if err != nil || p.Prefix == was.Prefix {
			continue
		}
		holders := holdersOf(stateDir, former)
		if len(holders) == 0 {
			continue
		}
		current := "no prefix"
		if p.Prefix != "" {
			current = p.Prefix
		}
		k.tell(agent.Notice{
			Reason: "PrefixMoved", Summary: "prefix of the node has moved", Warning: true,
			Message: fmt.Sprintf("nv-ipam's CIDRPool %s/%s gives this node %s and no longer %s, and pods have addresses of that, which another node may get: %s; delete these pods, or give the node its former prefix by the pool's staticAllocations",
				was.Namespace, was.Name, current, former, strings.Join(holders, "; ")),
		})
	}
}

// holdersOf returns the attachments that have an address in the prefix, with the addresses.
func holdersOf(stateDir string, prefix netip.Prefix) []string {
	l, err := ledger.Open(stateDir)
	if err != nil {
		return nil
	}
	defer l.Close()
	records, _ := l.List() // the keeper of NICs reports what cannot be read
	var holders []string
	for _, r := range records {
		for _, text := range r.Addresses {
			if a, err := netip.ParsePrefix(text); err == nil && prefix.Contains(a.Addr()) {
				holders = append(holders, a.Addr().String()+" of "+r.Holder())
			}
		}
	}
	return holders
}

// report reports a failure once.
func (k *Keeper) report(err error) {
	switch {
	case err == nil:
		k.told = ""
	case k.told != err.Error():
		k.told = err.Error()
		k.tell(agent.Notice{Reason: "PrefixesNotRead", Summary: "prefixes of the node not read", Message: err.Error() + "; ADD uses those that were read before", Warning: true})
	}
}

func (k *Keeper) tell(n agent.Notice) {
	n.Write(k.Log)
	if k.Tell != nil {
		k.Tell(n)
	}
}
