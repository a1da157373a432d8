package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

const (
	// slow is the time between full checks if there is no notification. They are needed because a
	// notification may be lost, and because some changes have no notification.
	slow = 30 * time.Second
	// hung is the time after which the loop of a state directory counts as hung if it made no
	// check.
	hung = 4 * slow
)

// Options configures a keeper.
type Options struct {
	StateDirs []string // the state directories of the plugins, at least one
	// List is the list of state directories that the plugins read, see [KeptStateDirs].
	List   nodefile.StateDirs
	NodeIP netip.Addr // the address by which the cluster reaches the node; zero if not known

	// Leaving is set if the plugins are being removed in any case, so that an unreadable record
	// no longer makes the agent unready.
	Leaving bool
	// Uninstalling is set if the keeper must remove the list of state directories.
	Uninstalling bool

	Dirs   *notify.Dirs           // reports changes of records and of pods' netns; shared by the whole process
	Notify func(component.Notice) // passes notices on without blocking; if nil, they are only logged
	Log    *slog.Logger
}

// Keeper keeps the NICs of a node.
type Keeper struct {
	Options
	*component.Reporter
	host  *netns.Netns // for subscriptions; only for pkg/notify
	dirs  []*stateDir
	stats *stats
	began time.Time
}

// New returns a keeper. The keeper does nothing until its component runs. The calling thread must
// be in the host netns.
func New(o Options) (*Keeper, error) {
	k := &Keeper{Options: o, Reporter: component.NewReporter("keeper", o.Log, o.Notify), stats: newStats(), began: time.Now()}
	var err error
	if k.host, err = netns.Current(); err != nil {
		return nil, err
	}
	for _, path := range o.StateDirs {
		dir, err := newStateDir(k, path)
		if err != nil {
			k.Close()
			return nil, err
		}
		k.dirs = append(k.dirs, dir)
	}
	return k, nil
}

// Close closes what New has opened. It must not be called while the component runs.
func (k *Keeper) Close() {
	for _, d := range k.dirs {
		d.paths.Close()
		d.node.Close()
	}
	k.host.Close()
}

// Component returns the keeper as a component of the agent.
func (k *Keeper) Component() component.Component {
	return component.Component{
		Name: "keeper", Reporter: k.Reporter, Run: k.run, Collect: k.collect, Healthy: k.healthy, Ready: k.ready, Status: k.status,
	}
}

// run keeps the NICs until ctx ends.
func (k *Keeper) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	var links, devices []func() // functions to call after a change of links, or of RDMA devices
	for _, d := range k.dirs {
		recreated, missing, returns := newRecreatedWatch(d), newNICWatch(d), newReturnWatch(d)
		links = append(links, d.notice, missing.changed.Fire, returns.changed.Fire)
		devices = append(devices, recreated.changed.Fire)
		all.Go(func() { d.run(ctx) })
		all.Go(func() { newAnnouncer(d).run(ctx) })
		for _, loop := range []*component.Loop{recreated.loop(), missing.loop(), returns.loop()} {
			all.Go(func() { loop.Run(ctx) })
		}
	}
	devices = append(devices, links...)
	all.Go(func() { notify.Netlink(ctx, k.host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, k.Log, each(links)) })
	all.Go(func() { notify.Netlink(ctx, k.host, unix.NETLINK_RDMA, rdma.NotifyGroup, k.Log, each(devices)) })
	first, err := netns.Open(netns.InitPath)
	if err != nil {
		return
	}
	all.Go(func() {
		defer first.Close()
		if !first.ID.Equal(k.host.ID) { // the kernel moves NICs to init_net
			notify.Netlink(ctx, first, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, k.Log, each(links))
		}
	})
}

// each returns a function that calls all functions in all.
func each(all []func()) func() {
	return func() {
		for _, f := range all {
			f()
		}
	}
}

// status returns the state of the state directories.
func (k *Keeper) status() map[string]any {
	var dirs []local.StateDir
	for _, d := range k.dirs {
		state := local.StateDir{Path: d.node.Ledger.Dir(), Checked: d.lastScan(), Ending: []local.Ending{}}
		for _, u := range d.unended() {
			e := local.Ending{Key: u.record.Key, NIC: u.record.NICName(), Pod: u.record.Pod, Since: u.since, Tries: u.tries, Next: u.next}
			if u.err != nil {
				e.Error = u.err.Error()
			}
			state.Ending = append(state.Ending, e)
		}
		dirs = append(dirs, state)
	}
	return map[string]any{"stateDirs": dirs}
}

func (k *stateDir) lastScan() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.checked
}

// healthy returns an error if the loop of a state directory hangs.
func (k *Keeper) healthy() error {
	for _, d := range k.dirs {
		last := slices.MaxFunc([]time.Time{d.lastScan(), k.began}, time.Time.Compare)
		if since := time.Since(last); since > hung {
			return fmt.Errorf("%s: last searched %v ago", d.node.Ledger.Dir(), since.Round(time.Second))
		}
	}
	return nil
}

// ready returns an error unless every state directory has been checked and all its records can be
// read.
func (k *Keeper) ready() error {
	var errs []error
	for _, d := range k.dirs {
		d.mu.Lock()
		looked, unreadable := d.checked, d.unreadable
		d.mu.Unlock()
		switch {
		case looked.IsZero():
			errs = append(errs, fmt.Errorf("%s: not searched yet", d.node.Ledger.Dir()))
		case unreadable && !k.Leaving:
			errs = append(errs, fmt.Errorf("%s: there are records that cannot be read", d.node.Ledger.Dir()))
		}
	}
	return errors.Join(errs...)
}
