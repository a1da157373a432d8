package nvipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nodeprefix"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Times of the keeper.
const (
	look     = 30 * time.Second // between looks at the node file, and after a failure
	watchFor = 5 * time.Minute  // for one watch; after it come the node file and the written files
	listFor  = time.Minute      // for one list, with its repetitions
	lasting  = time.Second      // of a watch: one that ends earlier is followed by a pause
	patience = time.Minute      // with an unavailable server until that is reported
)

// patientFor is the number of watches in a row that may end at once before the pools are listed
// after each.
const patientFor = 3

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
	Tell func(component.Notice)
}

// Keeper writes this node's prefixes of nv-ipam's pools while the node file asks for them.
type Keeper struct {
	Options
	pools   map[string]nodeprefix.Pool // by namespace and name; nil until they are listed
	version string                     // of the list, or of the last event
	told    string                     // the last failure that was reported, "" after a success

	ended   int       // watches in a row that ended at once, and one that failed later
	expired int       // watches in a row whose version the server had forgotten
	failing time.Time // when the first of the watches in a row failed that found the server unavailable

	// before has the content of the files before their first change since the last watch began,
	// by state directory, and moved the messages about them.
	before map[string]*nodeprefix.Pools
	moved  map[string]bool
}

// NewKeeper returns a Keeper. Run must be called once.
func NewKeeper(o Options) *Keeper {
	return &Keeper{Options: o, before: map[string]*nodeprefix.Pools{}, moved: map[string]bool{}}
}

// Run keeps the files until ctx ends. It starts again after a panic, which does not end the
// process.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = wait.For(ctx, k.step(ctx)) // the loop checks ctx
	}
}

// step looks at the node file and, if it asks for prefixes, watches the pools for a while. It
// returns the pause until the next step.
func (k *Keeper) step(ctx context.Context) (pause time.Duration) {
	defer func() {
		if r := recover(); r != nil {
			k.Log.Error("panic in the reader of prefixes", "panic", r, "stack", string(debug.Stack()))
			k.pools, pause = nil, look
		}
	}()
	wanted, err := k.Wanted()
	switch {
	case err != nil:
		return look // every ADD says what is wrong with the node file
	case !wanted:
		k.pools = nil
		k.report(k.remove())
		return look
	case k.Client == nil:
		k.report(failure.WithCure(errors.New("rail-agent has no cluster to read nv-ipam's pools from"), `give it one by --kubeconfig, or remove "prefixesFrom" from the node file`))
		return look
	}
	err = k.follow(ctx)
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		k.report(err)
		return look
	}
	return pauseAfter(k.ended)
}

// pauseAfter returns the pause after so many watches in a row that ended at once. It is random,
// because all nodes of a cluster lose their watches at the same time.
func pauseAfter(ended int) time.Duration {
	if ended == 0 {
		return 0
	}
	pause := min(2*time.Second<<min(ended-1, 10), look)
	return pause - rand.N(pause/2)
}

// follow lists the pools unless they are known, and watches them for a while. The error is to be
// reported: after one that is not, k.ended says how long to pause.
func (k *Keeper) follow(ctx context.Context) error {
	if k.pools == nil {
		if err := k.list(ctx); err != nil {
			return err
		}
	}
	k.lookAgain()
	if err := k.write(); err != nil { // also if somebody has removed the file
		return err
	}
	long := watchFor
	if k.ended > 0 {
		long = look // so that a server that stays away is reported soon
	}
	// A connection may be dead without an end: so the client has a limit too.
	watching, cancel := context.WithTimeout(ctx, long+time.Minute)
	defer cancel()
	began := time.Now()
	err := k.Client.Watch(watching, pools, kube.ListOptions{ResourceVersion: k.version, Timeout: long}, k.event)
	return k.judge(err, time.Since(began))
}

// judge records how a watch ended. It returns err if a user must know of it, else nil.
func (k *Keeper) judge(err error, lasted time.Duration) error {
	if lasted >= lasting {
		k.ended = 0
		if err == nil {
			k.works()
			return nil
		}
	}
	k.ended++
	switch {
	case err == nil: // a proxy ends the stream
		if k.ended > patientFor { // perhaps before each event: lists see the changes
			k.pools = nil
		}
		return nil
	case errors.Is(err, kube.ErrExpired):
		k.pools = nil
		k.expired++
		return nil
	case !kube.IsUnavailable(err):
		k.pools = nil
		return explain(err)
	case k.failing.IsZero():
		k.failing = time.Now()
	case time.Since(k.failing) >= patience:
		return explain(err)
	}
	return nil // the next watch begins where this one ended
}

// works ends a row of failures, because the server has answered the watch.
func (k *Keeper) works() {
	k.expired, k.failing = 0, time.Time{}
	k.report(nil)
}

// list reads all pools. It is an error if the server does not know the kind: one that has just
// started may not know it yet, and then the files must stay.
func (k *Keeper) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	found := map[string]nodeprefix.Pool{}
	// Any state that the server has cached will do: the watch begins with it. But if the cache of
	// one server is behind what another one remembers, only the newest state helps.
	options := kube.ListOptions{ResourceVersion: "0"}
	if k.expired > 1 {
		options.ResourceVersion = ""
	}
	version, err := k.Client.List(ctx, pools, options, func(item []byte) error {
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

// event applies one event of the watch to the pools.
func (k *Keeper) event(e kube.Event) error {
	if e.Type == "BOOKMARK" {
		var o struct {
			Metadata kube.Meta `json:"metadata"`
		}
		if err := json.Unmarshal(e.Object, &o); err != nil {
			return err
		}
		k.version = o.Metadata.ResourceVersion
		k.works()
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
	if err := k.write(); err != nil {
		return err
	}
	k.works()
	return nil
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
		before, err := nodeprefix.Read(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.Log.Warn("unreadable file of prefixes replaced", "stateDir", dir, "err", err)
		}
		now := k.current()
		if failed := now.Write(dir); failed != nil {
			errs = append(errs, failed) // so the next step finds the change again
			continue
		}
		if err != nil || before.Node != k.Node {
			continue
		}
		k.reportMoved(dir, before, now)
		if k.before[dir] == nil && !slices.EqualFunc(before.Pools, now.Pools, func(a, b nodeprefix.Pool) bool { return a.Name == b.Name && a.Prefix == b.Prefix }) {
			k.before[dir] = before
		}
	}
	return errors.Join(errs...)
}

// current returns the content of the files.
func (k *Keeper) current() *nodeprefix.Pools {
	return &nodeprefix.Pools{Node: k.Node, Pools: slices.Collect(maps.Values(k.pools))}
}

// lookAgain reports prefixes that have changed, for pods whose ADD had read the file just before
// it was changed.
func (k *Keeper) lookAgain() {
	for dir, before := range k.before {
		k.reportMoved(dir, before, k.current())
	}
	clear(k.before)
	clear(k.moved)
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
// addresses of the former one, unless it has done so for the last change. Their DEL still frees
// the addresses, because the records have the former prefix.
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
		message := fmt.Sprintf("nv-ipam's CIDRPool %s/%s gives this node %s and no longer %s, but pods still have addresses of the former prefix, which another node may get: %s; delete these pods, or give the node its former prefix by the pool's staticAllocations",
			was.Namespace, was.Name, current, former, strings.Join(holders, "; "))
		if k.moved[message] {
			continue
		}
		k.moved[message] = true
		k.tell(component.Notice{Reason: "PrefixMoved", Summary: "prefix of the node has moved", Warning: true, Message: message})
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
	if err == nil {
		k.told = ""
		return
	}
	what := err.Error()
	if kube.IsUnavailable(err) {
		what = "unavailable" // the text has the number of tries, and ports
	}
	if k.told != what {
		k.told = what
		k.tell(component.Notice{Reason: "PrefixesNotRead", Summary: "prefixes of the node not read", Message: err.Error() + "; ADD uses those that were read before", Warning: true})
	}
}

func (k *Keeper) tell(n component.Notice) {
	n.Write(k.Log)
	if k.Tell != nil {
		k.Tell(n)
	}
}
