package devices

import (
	"context"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
)

// FunctionTables has the settings of virtual functions, by the PCI address of their physical
// function.
type FunctionTables map[string]fact.Fact[[]fact.Function]

// FunctionSource is the source of the settings of virtual functions.
const FunctionSource = "the settings of virtual functions (rtnetlink)"

// ReadFunctions reads the settings of all virtual functions whose physical function has its interface on the host. It
// asks the kernel once for each physical function. The records are read both before and after the settings: while a pod
// has a function with other settings, a record holds the function, from before the settings are made until they are
// restored.
func (c *Reader) ReadFunctions(context.Context) (FunctionTables, error) {
	if !c.Records.IsRoot {
		return nil, files.ErrRoot
	}
	before, err := c.heldFunctions()
	if err != nil {
		return nil, err
	}
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	links, err := link.Links(host)
	if err != nil {
		return nil, err
	}
	found, h := FunctionTables{}, &nic.Host{Sys: c.Sys, Netns: host}
	for _, l := range links {
		if _, read := found[l.ParentDev]; l.ParentDev == "" || read || h.IsRepresentor(l) {
			continue
		}
		addresses, err := h.VirtualFunctions(l.ParentDev)
		if len(addresses) == 0 && err == nil {
			continue
		}
		var table []fact.Function
		if err == nil {
			table, err = readFunctions(host, l.Index, addresses)
		}
		found[l.ParentDev] = fact.From(table, FunctionSource, err)
	}
	after, err := c.heldFunctions()
	for _, table := range found {
		for i := range table.Value {
			f := &table.Value[i]
			f.Held = before[f.PCI] || after[f.PCI]
		}
	}
	return found, err
}

// readFunctions reads the settings that the physical function with this interface index keeps. addresses are the PCI
// addresses of its virtual functions, by their numbers.
func readFunctions(host *netns.Netns, index int, addresses map[int]string) ([]fact.Function, error) {
	all, err := sriov.Functions(host, index)
	table := []fact.Function{}
	for _, settings := range all {
		s, ok := sriov.StateOf(settings)
		if !ok {
			continue
		}
		f := fact.Function{Number: s.Number, PCI: addresses[s.Number], SpoofCheck: s.SpoofCheck, Trust: s.Trust}
		if s.VLAN.ID != 0 {
			f.VLAN = s.VLAN.String()
		}
		table = append(table, f)
	}
	return table, err
}

// heldFunctions returns the PCI addresses of the NICs that records hold. It returns an error if a record cannot be
// read, because such a record may hold any NIC.
func (c *Reader) heldFunctions() (map[string]bool, error) {
	exists, err := c.Records.HasLedger()
	if err != nil || !exists {
		return nil, err
	}
	l, err := ledger.Open(c.Records.StateDir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	records, errs := l.Held(ledger.Anywhere, func(r *ledger.Record) bool { return r.Loan != nil })
	held := map[string]bool{}
	for _, r := range records {
		held[r.Loan.PCI] = true
	}
	return held, errors.Join(errs...)
}

// addFunctions sets the fact Functions of each physical function that has virtual functions.
func addFunctions(list []fact.NIC, tables *fact.Fact[FunctionTables]) {
	for i := range list {
		n := &list[i]
		table, read := tables.Value[n.PCI]
		switch {
		case n.Kind != "pf" || n.VFs.Value.Count == 0:
		case !tables.OK():
			n.Functions = fact.Failed[[]fact.Function](tables.Source, errors.New(tables.Error))
		case read:
			n.Functions = table
		default:
			n.Functions = fact.Known([]fact.Function{}, "the physical function has no interface on the host")
		}
	}
}
