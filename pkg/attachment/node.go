package attachment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Bounds of waits. A runtime allows about four minutes for all interfaces of a sandbox, so each
// bound is much shorter.
const (
	lockWait = 60 * time.Second // for another process that works on the same attachment

	// returnWait is the shortest wait for a device that returns to the host when its pod netns
	// ends, and maxReturn is the longest, even if other devices return first. See waitFor and
	// Releasing.Await.
	returnWait = 5 * time.Second
	maxReturn  = 45 * time.Second

	// endWait bounds the time in which a sweep ends one attachment that has no slow device.
	endWait    = 10 * time.Second
	retryAfter = 30 * time.Second // until an ADD calls a failed IPAM plugin again
)

// SweepWait bounds the time that a sweep waits for everything that the kernel is about
// to return or delete after a pod's death.
const SweepWait = 2 * time.Second

// Node is the host of an attachment: its netns, its ledger, and the order in
// which attachments are released. Close it when done.
type Node struct {
	// Netns is the host netns.
	Netns *netns.Netns
	// Sys and Proc are the roots of sysfs and procfs: "/sys" and "/proc", except in tests.
	Sys, Proc string
	Ledger    *ledger.Ledger
	Log       *slog.Logger
	// File is the node file, which permits networks to use NICs. If File is nil, every NIC is
	// permitted that no guardrail protects. ADD and STATUS obey the node file. A DEL without a
	// record returns only a NIC that the node file permits.
	File *nodefile.File

	// CNIPath is the CNI_PATH of the current call, or "" in a program that is not called by a
	// runtime. An IPAM plugin is searched here if it is no longer in the recorded CNI_PATH.
	CNIPath string

	// Fault, if set, is called at every step of ADD with the step's name. If Fault returns an
	// error, the step fails. Tests use Fault to let each step fail in turn.
	Fault func(step string) error

	order ReleaseOrder

	first atomic.Bool // the machine's first process is known to be in the host netns
}

// Open opens the node. Its host netns is the netns of the calling thread, and its ledger is in
// stateDir. order has the parts of all attachments that the ledger can hold.
func Open(stateDir string, order ReleaseOrder) (*Node, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	l, err := ledger.Open(stateDir)
	if err != nil {
		host.Close()
		return nil, err
	}
	n := &Node{
		Netns: host, Sys: "/sys", Proc: "/proc", Ledger: l, order: order,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	host.Unread = func(index int, name string, err error) { warnUnread(n.Log, host, index, name, err) } // callers may change Log
	return n, nil
}

// warnUnread logs a link whose description by the kernel is damaged. The unreadable part of the
// description was ignored.
func warnUnread(log *slog.Logger, ns *netns.Netns, index int, name string, err error) {
	log.Warn("cannot read all attributes of a link", "link", name, "index", index, "linkNetns", ns.Path, "err", err)
}

// Close releases what Open opened.
func (n *Node) Close() {
	n.Ledger.Close()
	n.Netns.Close()
}

// Call is one call of the runtime: its environment, and the part of the
// configuration that all plugins have.
type Call struct {
	ledger.Key
	Netns string // CNI_NETNS
	Args  string // CNI_ARGS
	Path  string // CNI_PATH
	Conf  *netconf.Common
}

// callOf returns the Call of a plugin's arguments.
func callOf(args *skel.CmdArgs, conf *netconf.Common) *Call {
	return &Call{
		Key:   ledger.Key{ContainerID: args.ContainerID, IfName: args.IfName},
		Netns: args.Netns, Args: args.Args, Path: args.Path, Conf: conf,
	}
}

// step calls Fault at a step of ADD.
func (n *Node) step(name string) error {
	if n.Fault == nil {
		return nil
	}
	return n.Fault(name)
}

// LogOf returns the node's log with the attributes of an attachment.
func (n *Node) LogOf(r *ledger.Record) *slog.Logger {
	return n.Log.With("containerID", r.ContainerID, "ifname", r.IfName, "nic", r.NICName(), "netns", r.Netns.Path)
}

// lock takes the attachment's lock. It waits for an ADD that the runtime has given up but that
// still runs.
func (n *Node) lock(ctx context.Context, k ledger.Key) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	l, err := n.Ledger.LockAttachment(ctx, k)
	if err != nil {
		return nil, fmt.Errorf("attachment %s: %w", k, err)
	}
	return func() { _ = l.UnlockAndRemove() }, nil
}

// HostNetns returns the host netns in the form of a record. If the machine's first process is in
// the host netns, the path is that of the first process. Once that is known it is not checked
// again, because the check may have to enter the netns, and each [Node.Host] needs the result.
func (n *Node) HostNetns() ledger.Netns {
	host := ledger.Netns{ID: n.Netns.ID}
	if n.first.Load() || netns.Alive(host.ID, netns.InitPath) {
		n.first.Store(true)
		host.Path = netns.InitPath
	}
	return host
}

// Udev returns the directory of udev's state. It returns "" if the machine's first process is not
// in the host netns: udev runs in the netns of that process, and the kernel tells udev only about
// the NICs there.
func (n *Node) Udev() string {
	if n.HostNetns().Path == "" {
		return ""
	}
	return "/run/udev"
}

// Alive reports whether the record's pod netns exists.
func (n *Node) Alive(r *ledger.Record) bool {
	return n.Ledger.Alive(r)
}

// homeOf opens the host netns of the record. If that netns is gone (it belonged to a nested
// runtime), homeOf opens init_net, where the kernel moved the NIC. If init_net cannot be opened (in
// a runtime that runs in a confined container) and the attachment lends nothing, homeOf returns the
// caller's netns, because nothing has to return. The caller calls done.
func (n *Node) homeOf(r *ledger.Record) (home *netns.Netns, done func(), err error) {
	if r.HostNetns.Equal(n.Netns.ID) {
		return n.Netns, func() {}, nil
	}
	home, err = netns.Find(r.HostNetns.ID, r.HostNetns.Path)
	if home == nil && err == nil {
		home, err = netns.Open(netns.InitPath)
		if (errors.Is(err, netns.ErrNoNetns) || errors.Is(err, fs.ErrPermission)) && !lendsSomething(r) {
			return n.Netns, func() {}, nil
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return home, home.Close, nil
}

// lendsSomething reports whether something of the host must return from the pod.
func lendsSomething(r *ledger.Record) bool {
	return r.Loan != nil || r.RDMA != nil && slices.ContainsFunc(r.RDMA.Devices, func(d ledger.RDMADevice) bool { return d.Lent })
}

// AnotherHas reports whether has returns true for the record of an attachment other than r.
// Records that cannot be read are ignored.
func (n *Node) AnotherHas(r *ledger.Record, has func(*ledger.Record) bool) bool {
	others, _ := n.Ledger.Held(ledger.Anywhere, func(o *ledger.Record) bool { return o.Key != r.Key }) // a record that cannot be read proves nothing
	return slices.ContainsFunc(others, has)
}

// OthersIn returns the records of the attachments in the pod netns, except r.
func (n *Node) OthersIn(pod *netns.Netns, r *ledger.Record) []*ledger.Record {
	records, errs := n.Ledger.HeldIn(pod.ID)
	for _, err := range errs {
		n.Log.Warn("cannot read a record, which may be that of a link in the pod", "err", err)
	}
	return slices.DeleteFunc(records, func(o *ledger.Record) bool { return o.Key == r.Key })
}

// getOrSetAside returns the record of the attachment, or nil if there is no record or the record
// is corrupt. A corrupt record is moved aside. A record of a newer version is not corrupt: it
// stays, and getOrSetAside returns an error.
func (n *Node) getOrSetAside(k ledger.Key) (*ledger.Record, error) {
	r, err := n.Ledger.Get(k)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		return nil, nil
	case isCorrupt(err):
		n.Log.Warn("corrupt record was moved aside", "err", err)
		return nil, nil
	}
	return r, err
}
