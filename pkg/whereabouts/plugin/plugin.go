package plugin

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/local"
	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// addTimeout and timeout are the time limits of one call, the same as in whereabouts. All
// ADDs of a sandbox together have another limit, see [store.Deadline].
const (
	addTimeout = 2 * time.Minute
	timeout    = time.Minute
)

// Plugin has what the verbs need from the process.
type Plugin struct {
	Version   string   // for the API server's log
	FlatFiles []string // whereabouts' flat files of the node
	// Stdout gets results, and Stderr the warnings that the runtime keeps.
	Stdout, Stderr io.Writer
}

// Funcs returns the verbs. Each has a time limit.
func (p *Plugin) Funcs(ctx context.Context) skel.CNIFuncs {
	verb := func(name string, limit time.Duration, do func(context.Context, *call) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			c := &call{Plugin: p, args: args}
			var fileErr error
			c.file, fileErr = nodefile.Read(nodefile.Path())
			if fileErr != nil { // it may forbid any path
				c.file = &nodefile.File{Path: nodefile.Path(), Paths: []string{}}
			}
			if name != "ADD" && name != "STATUS" {
				c.file = c.file.Ending()
			}
			c.conf, c.confErr = ipamconf.ParseWhereaboutsOn(c.file, args.StdinData, args.Args, p.FlatFiles)
			switch {
			case name == "ADD" || name == "STATUS":
				c.refuse(fileErr)
			case fileErr != nil && c.closed():
				return cnierr.ToCNI(fileErr)
			}
			defer c.openLog(name)()
			err := do(ctx, c)
			c.logEnd(err)
			return cnierr.ToCNI(err)
		}
	}
	return skel.CNIFuncs{
		Add:    verb("ADD", addTimeout, add),
		Del:    verb("DEL", timeout, del),
		Check:  verb("CHECK", timeout, check),
		GC:     verb("GC", timeout, gc),
		Status: verb("STATUS", timeout, status),
	}
}

// refuse adds to c.confErr the reasons for which only ADD and STATUS refuse a config: a
// config that is too large, a node file that cannot be read, paths that the node file
// forbids, and keys that the store cannot carry out.
func (c *call) refuse(fileErr error) {
	if c.confErr != nil {
		return
	}
	c.confErr = errors.Join(document.CheckSize(c.args.StdinData), fileErr, c.conf.Closed)
	if c.confErr == nil && c.entryByEntry() {
		c.confErr = c.conf.CheckEntryByEntry()
	}
}

// closed reports whether the network names paths that the node file forbids. ADD has
// refused such a network, so the verbs that end or check an attachment ignore those paths.
// But if the node file is unreadable, the paths may have been permitted, and these verbs
// fail.
func (c *call) closed() bool {
	if c.confErr != nil {
		return !c.file.OpensPath(nodefile.KeyStateDir, netconf.Lenient(c.args.StdinData).StateDir)
	}
	return c.conf.Closed != nil
}

// add checks the call, and assigns the addresses. It has the time that the other ADDs of
// the pod's sandbox have left.
func add(ctx context.Context, c *call) error {
	if c.confErr != nil {
		return c.confErr
	}
	if err := errors.Join(netconf.CheckEnv(c.args.ContainerID, c.args.IfName, c.args.Args), c.foreignNetns()); err != nil {
		return err
	}
	if c.storeName() == ipamconf.StoreKubernetes && c.conf.Pod.Name == "" {
		return failure.New(failure.InvalidEnv, "there is no pod name, but an address of a cluster's pool must belong to a pod").
			Cure(`pass K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS, or use "store": "local"`)
	}
	if c.storeName() != ipamconf.StoreKubernetes {
		return c.assign(ctx)
	}
	end := store.Deadline(c.conf.StateDir, c.podNetns(), c.owner())
	if limit, ok := ctx.Deadline(); end.IsZero() || ok && limit.Before(end) {
		return c.assign(ctx)
	}
	bounded, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	err := c.assign(bounded)
	// An error of kind IPAM has another cause: the time ended while the failed ADD was undone.
	if err != nil && bounded.Err() != nil && ctx.Err() == nil && failure.KindOf(err) != failure.IPAM {
		err = failure.Wrap(err, failure.TryAgain, "all ADDs of a pod's sandbox together have %s to get addresses", store.SandboxTime)
	}
	return err
}

// assign assigns the addresses and prints the result. If it cannot print the result, it
// frees the addresses again.
func (c *call) assign(ctx context.Context) error {
	store, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	claims, err := plan.Claims(c.conf, c.slice)
	if err != nil {
		return err
	}
	got, err := store.Allocate(ctx, c.owner(), claims)
	if err != nil {
		return err
	}
	if err := c.print(c.masked(got)); err != nil {
		err = failure.Wrap(err, failure.Internal, "cannot return the result in version %q", c.conf.CNIVersion)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		return errors.Join(err, store.Release(ctx, c.owner(), pools(claims)))
	}
	return nil
}

// print writes the result: the dynamic addresses, then the static ones.
func (c *call) print(dynamic []netip.Prefix) error {
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Routes:     c.conf.Routes,
		DNS:        c.conf.DNS,
	}
	for _, a := range dynamic {
		ip := &current.IPConfig{Address: ipNet(a)}
		if gw := c.conf.Gateway; gw.IsValid() && gw.Is4() == a.Addr().Is4() {
			ip.Gateway = gw.AsSlice()
		}
		result.IPs = append(result.IPs, ip)
	}
	for _, s := range c.conf.Static {
		result.IPs = append(result.IPs, &current.IPConfig{Address: ipNet(s.Address), Gateway: s.Gateway.AsSlice()})
	}
	asked, err := result.GetAsVersion(c.conf.CNIVersion)
	if err != nil {
		return err
	}
	return asked.PrintTo(c.Stdout)
}

// del frees the attachment's addresses in the local store and in the cluster, because the
// config may have been changed since ADD. It frees them even if the config cannot be read,
// or if ADD refused it.
func del(ctx context.Context, c *call) error {
	if c.confErr != nil {
		c.warn("cannot read the configuration; addresses are freed by container ID and interface", c.confErr)
		dir := netconf.Lenient(c.args.StdinData).StateDir
		if !c.file.OpensPath(nodefile.KeyStateDir, dir) {
			dir = nodefile.DefaultStateDir
		}
		return errors.Join(c.releaseNoted(ctx, dir), local.New(dir).Release(ctx, c.owner(), nil))
	}
	err := local.New(c.conf.StateDir).Release(ctx, c.owner(), c.pools())
	if c.entryByEntry() {
		err = errors.Join(err, c.releaseCluster(ctx))
	}
	return errors.Join(err, c.releaseNoted(ctx, c.conf.StateDir))
}

// check verifies that the attachment still holds the addresses in prevResult.
func check(ctx context.Context, c *call) error {
	if c.confErr != nil {
		return c.confErr
	}
	store, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	prev, err := readPrevResult(c.args.StdinData)
	if err != nil {
		return err
	}
	held, err := store.Check(ctx, c.owner(), c.pools())
	if err != nil {
		return err
	}
	held = c.masked(held)
	for _, s := range c.conf.Static {
		held = append(held, s.Address)
	}
	for _, a := range held {
		if !contains(prev, a) {
			return failure.New(failure.Mismatch, "the attachment has %s, which prevResult does not list", a).
				Cure("delete the pod, so that it is attached again")
		}
	}
	return nil
}

// gc frees the addresses of the attachments that are not in the runtime's list. Without a
// list it does nothing: the store does not know the network namespaces, so it cannot tell
// which attachments are gone.
func gc(ctx context.Context, c *call) error {
	if c.confErr != nil {
		return c.confErr
	}
	list, sent := c.conf.Valid()
	if !sent {
		return nil
	}
	store, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	valid := make([]ipam.Attachment, 0, len(list))
	for _, a := range list {
		valid = append(valid, ipam.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return store.GC(ctx, c.conf.Name, c.pools(), valid)
}

// status returns the reason why an ADD would fail, or nil.
func status(ctx context.Context, c *call) error {
	unavailable := func(err error) error {
		return failure.Wrap(err, failure.NotAvailable, "network %s", c.name())
	}
	if c.confErr != nil {
		return unavailable(c.confErr)
	}
	store, done, err := c.open(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer done()
	claims, err := plan.Claims(c.conf, c.slice)
	if err != nil {
		return unavailable(err)
	}
	return store.Status(ctx, claims)
}

// contains reports whether the result has the address with the same mask.
func contains(r *current.Result, a netip.Prefix) bool {
	for _, ip := range r.IPs {
		ones, _ := ip.Address.Mask.Size()
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok && addr.Unmap() == a.Addr() && ones == a.Bits() {
			return true
		}
	}
	return false
}
