package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
)

// Bounds of waiting. A runtime gives a sandbox about four minutes for all of
// its interfaces, so none of these may come near.
const (
	lockWait = 60 * time.Second // for another process that works on the same attachment
	homeWait = 5 * time.Second  // for a NIC to fall home from a netns that died
	dadWait  = 5 * time.Second  // for duplicate address detection

	sweepWait = 10 * time.Second // for ending one attachment of another pod in passing
	freeAgain = 30 * time.Second // until an ADD asks a failed IPAM plugin again
)

// Node is what a verb works on: this host, its ledger, and the way to its IPAM
// plugins. Close it when done.
type Node struct {
	Host   nic.Host
	Ledger *ledger.Ledger
	Log    *slog.Logger
	// File is what the node's administrator opens to networks; nil opens all
	// that no guardrail protects. Only ADD and STATUS ask it.
	File *netconf.NodeFile

	// Fault, if set, is asked before every step of ADD, by the step's name; an
	// error fails the step. Tests use it to fail each in turn.
	Fault func(step string) error
}

// Open opens the node whose host netns is the calling thread's, with the
// ledger at stateDir.
func Open(stateDir string) (*Node, error) {
	host, err := link.CurrentNetns()
	if err != nil {
		return nil, err
	}
	l, err := ledger.Open(stateDir)
	if err != nil {
		host.Close()
		return nil, err
	}
	n := &Node{
		Host:   nic.Host{Netns: host, Sys: "/sys", Proc: "/proc"},
		Ledger: l,
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	n.Host.Holder = n.holderOfDevice
	host.Unread = func(l *link.Link) { warnUnread(n.Log, host, l) } // callers may change Log
	return n, nil
}

// warnUnread logs a link whose description is damaged. What cannot be read of it
// was ignored.
func warnUnread(log *slog.Logger, ns *link.Netns, l *link.Link) {
	log.Warn("link cannot be read in full", "link", l.Name, "index", l.Index, "of", ns.Path, "err", l.Damage)
}

// Close releases what Open opened.
func (n *Node) Close() {
	n.Ledger.Close()
	n.Host.Netns.Close()
}

// Call is one call of the runtime: its environment, and the part of the
// configuration that the pipeline needs.
type Call struct {
	ledger.Key
	Netns string // CNI_NETNS
	Args  string // CNI_ARGS
	Path  string // CNI_PATH
	Conf  *netconf.Common
}

// CallOf makes a Call of what skel gives.
func CallOf(args *skel.CmdArgs, conf *netconf.Common) *Call {
	return &Call{
		Key:   ledger.Key{ContainerID: args.ContainerID, IfName: args.IfName},
		Netns: args.Netns, Args: args.Args, Path: args.Path, Conf: conf,
	}
}

// step asks Fault before a step of ADD.
func (n *Node) step(name string) error {
	if n.Fault == nil {
		return nil
	}
	return n.Fault(name)
}

// permit fails when the node file does not open the NIC to networks, or one of
// the guardrails that the configuration overrides.
func (n *Node) permit(what *nic.NIC, allow []string) error {
	name, names := what.PCI, []string(nil)
	if what.Link != nil {
		name, names = what.Link.Name, what.Link.Names()
	}
	if !n.File.OpensNIC(names, what.PCI, n.Host.DriverOf(what)) {
		return cnierr.New(cnierr.NICProtected, fmt.Sprintf(`choose another NIC, or add it to "nics" in %s`, n.File.Path),
			"%s is not open to networks on this node", name)
	}
	for _, key := range allow {
		if !n.File.OpensOverride(key) {
			return cnierr.New(cnierr.NICProtected, fmt.Sprintf(`remove it from "allow", or add it to "allow" in %s`, n.File.Path),
				"%s: networks may not override the guardrail %q on this node", name, key)
		}
	}
	return nil
}

func (n *Node) log(r *ledger.Record) *slog.Logger {
	return n.Log.With("containerID", r.ContainerID, "ifname", r.IfName, "nic", r.NICName(), "netns", r.Netns.Path)
}

// lock takes the attachment's lock, waiting for an ADD that the runtime gave
// up on but that still runs.
func (n *Node) lock(ctx context.Context, k ledger.Key) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	l, err := n.Ledger.LockAttachment(ctx, k)
	if err != nil {
		return nil, fmt.Errorf("attachment %s: %w", k, err)
	}
	return func() { _ = l.UnlockAndRemove() }, nil
}

// hostNetns is the host netns as a record has it. Its path is that of the
// machine's first process, if that is where we are.
func (n *Node) hostNetns() ledger.Netns {
	host := ledger.Netns{NetnsID: n.Host.Netns.ID}
	if link.NetnsAlive(host.NetnsID, initNetns) {
		host.Path = initNetns
	}
	return host
}

// alive says whether the record's pod netns still exists.
func (n *Node) alive(r *ledger.Record) bool {
	return n.Ledger.OfThisBoot(r) && link.NetnsExists(r.Netns.NetnsID, r.Netns.Path)
}

// undo is a stack of what takes back the steps of an ADD.
type undo struct{ steps []func() error }

func (u *undo) push(f func() error) { u.steps = append(u.steps, f) }

// run takes everything back, the last step first. It goes on after a failure
// and joins the errors.
func (u *undo) run() error {
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		errs = append(errs, u.steps[i]())
	}
	u.steps = nil
	return errors.Join(errs...)
}

// failed joins the reason of a failed ADD with what could not be taken back.
func failed(reason, undoErr error) error {
	if undoErr == nil {
		return reason
	}
	return fmt.Errorf("%w (and taking it back failed: %w; a DEL of the attachment or `railctl gc` tries again)", reason, undoErr)
}
