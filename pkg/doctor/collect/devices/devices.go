package devices

import (
	"context"
	"errors"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/procs"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/records"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Inventory are the facts from one inventory.
type Inventory struct {
	list     []fact.NIC
	others   fact.Fact[[]fact.HostInterface]
	problems fact.Fact[[]string]
	fabric   fact.Fact[string]
	pools    fact.Fact[[]fact.Pool]
}

// Reader reads the facts of NICs.
type Reader struct {
	*procs.Reader
	Records *records.Reader
	Held    []*ledger.Record // the records of this boot
	Sample  time.Duration    // between two reads of the counters, which are not read if it is not positive
}

// SetFacts adds to f what was read of NICs. tables is nil if the settings of functions were not to be read.
func SetFacts(f *fact.Facts, all *fact.Fact[Inventory], tables *fact.Fact[FunctionTables]) {
	if !all.OK() {
		err := errors.New(all.Error)
		f.NICs.List, f.NICs.Problems = fact.Failed[[]fact.NIC](all.Source, err), fact.Failed[[]string](all.Source, err)
		f.NICs.Others = fact.Failed[[]fact.HostInterface](all.Source, err)
		f.NICs.Fabric, f.Kubelet.Pools = fact.Failed[string](all.Source, err), fact.Failed[[]fact.Pool](all.Source, err)
		return
	}
	if tables != nil {
		addFunctions(all.Value.list, tables)
	}
	f.NICs.List = fact.Known(all.Value.list, "netlink, ethtool, sysfs and the ledger")
	f.NICs.Others = all.Value.others
	f.NICs.Problems, f.NICs.Fabric, f.Kubelet.Pools = all.Value.problems, all.Value.fabric, all.Value.pools
}

// ReadInventory reads the NICs once and their counters twice. Only root can read lent NICs, because they
// are in the network namespaces of pods.
func (c *Reader) ReadInventory(ctx context.Context) (Inventory, error) {
	if !c.Records.IsRoot {
		return Inventory{}, files.ErrRoot
	}
	before, err := hostLinks()
	if err != nil {
		return Inventory{}, err
	}
	list, err := inventory.NICs(c.Records.StateDir)
	if err != nil {
		return Inventory{}, err
	}
	found := Inventory{list: []fact.NIC{}}
	found.ofNodeFile(list)
	list.NICs = append(list.NICs, misplaced(c.Sys, list)...)
	targets := make([]target, len(list.NICs))
	func() {
		sps := &spaces{}
		defer sps.Close()
		for i := range list.NICs {
			n, t := c.nic(list, &list.NICs[i], sps)
			found.list, targets[i] = append(found.list, n), t
		}
		found.ofOthers(before, c.Held)
	}()
	if c.Sample > 0 {
		before, began := sample(targets), time.Now()
		ended := wait.For(ctx, c.Sample)
		after, seconds := sample(targets), time.Since(began).Seconds()
		for i := range found.list {
			if found.list[i].Rising = rising(before[i], after[i], seconds); ended != nil {
				found.list[i].Rising = fact.Failed[fact.Rising]("counters", ended)
			}
		}
	}
	return found, nil
}
