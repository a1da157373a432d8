package sriovcni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/vf"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Dir is the directory in which sriov-cni keeps one file for each attachment, named <container id>-<ifname>. Its
// subdirectory "pci" has one file for each virtual function in use (see pkg/config and pkg/utils of sriov-cni v2.10).
const Dir = "/var/lib/cni/sriov"

// kept is the content of an attachment's file: the configuration, and the earlier settings of the
// virtual function.
type kept struct {
	DeviceID    string
	MAC         string
	VLAN        *int `json:"vlan"`
	SpoofChk    string
	Trust       string
	LinkState   string `json:"link_state"`
	MinTxRate   *int   `json:"min_tx_rate"`
	MaxTxRate   *int   `json:"max_tx_rate"`
	OrigVfState struct {
		HostIFName             string
		SpoofChk, Trust        bool // old versions do not write Trust; then it was off
		AdminMAC, EffectiveMAC string
		Vlan, VlanQoS          int
		VlanProto              int
		MinTxRate, MaxTxRate   int
		LinkState              uint32
		MTU                    int // 0 if sriov-cni did not change the MTU, or if its version does not write it
	}
}

// Parts returns the two parts. first marks the interface with the name that it had on the host, so that the part of the
// NIC can return it. last then restores the settings. dir is [Dir] except in tests.
func Parts(dir string) (first, last attachment.Part) { return name{dir: dir}, settings{dir: dir} }

type name struct {
	attachment.Base
	dir string
}

// Name implements [attachment.Part].
func (name) Name() string { return "sriov-cni" }

// TakeOver sets the alias of the interface. The reference plugin host-device sets such an alias,
// but sriov-cni does not. If the pod is dead, TakeOver waits until the kernel has moved the
// interface to the host.
func (p name) TakeOver(ctx context.Context, u *attachment.Upstream) error {
	k := read(p.dir, u)
	if k == nil || held(u, k.DeviceID) {
		return nil
	}
	if u.Pod != nil {
		return k.markInPod(u)
	}
	places := []*netns.Netns{u.Node.Netns}
	if first, err := netns.Open(netns.InitPath); err == nil { // the namespace to which the kernel moves the interface
		defer first.Close()
		places = append(places, first)
	}
	ctx, cancel := context.WithTimeout(ctx, returnWait)
	defer cancel()
	err := wait.Until(ctx, 10*time.Millisecond, func() (done bool, err error) {
		for _, ns := range places {
			if done, err = k.mark(ns, u.IfName); done || err != nil {
				return true, err
			}
		}
		return !u.Node.Host().HasNetdev(k.DeviceID), nil
	})
	if wait.Ended(ctx, err) {
		return nil // another pod may have the interface
	}
	return err
}

// returnWait is how long to wait for an interface that the kernel moves to the host.
const returnWait = 5 * time.Second

// mark sets the alias if the virtual function's interface is in ns. There the interface has the name that it had in the
// pod, or a name from the kernel if that name was taken. mark reports whether the interface is in ns.
func (k *kept) mark(ns *netns.Netns, inPod string) (found bool, err error) {
	links, err := link.Links(ns)
	for _, l := range links {
		if l.ParentDev != k.DeviceID {
			continue
		}
		if l.Name == inPod || l.Name == fmt.Sprintf("dev%d", l.Index) {
			err = link.SetAlias(ns, l.Index, k.OrigVfState.HostIFName)
		}
		return true, err
	}
	return false, err
}

// markInPod marks the interface in the pod. The pod may have renamed the interface.
func (k *kept) markInPod(u *attachment.Upstream) error {
	l, err := interfaceIn(u.Pod, k.DeviceID)
	if l == nil || err != nil {
		return err
	}
	if l.Name != u.IfName {
		if err := link.Rename(u.Pod, l.Index, u.IfName); err != nil {
			return failure.From(err, failure.NotReturned, "the interface of sriov-cni's virtual function %s is %s in the pod", k.DeviceID, l.Name).Cure("a DEL tries again")
		}
	}
	return link.SetAlias(u.Pod, l.Index, k.OrigVfState.HostIFName)
}

type settings struct {
	attachment.Base
	dir string
}

// Name implements [attachment.Part].
func (settings) Name() string { return "sriov-cni's settings" }

// TakeOver restores the settings of the virtual function as soon as its interface is on the host. Then it removes
// sriov-cni's files.
func (p settings) TakeOver(ctx context.Context, u *attachment.Upstream) error {
	k := read(p.dir, u)
	if k == nil {
		return nil
	}
	host := u.Node.Host()
	if _, exists := host.FunctionNumber(host.PhysicalFunction(k.DeviceID), k.DeviceID); !exists || held(u, k.DeviceID) || p.usedByAnother(u, k) {
		return p.forget(u, "")
	}
	l, err := k.returned(u)
	if err != nil {
		return err
	}
	if l == nil && host.HasNetdev(k.DeviceID) {
		return p.forget(u, "") // another pod has the virtual function
	}
	err = vf.Set(ctx, host, k.DeviceID, k.original())
	if mac, macErr := net.ParseMAC(k.OrigVfState.EffectiveMAC); err == nil && l != nil && k.MAC != "" && macErr == nil {
		err = link.SetMAC(u.Node.Netns, l.Index, mac)
	}
	if mtu := k.OrigVfState.MTU; err == nil && l != nil && mtu != 0 {
		if err := link.SetMTU(u.Node.Netns, l.Index, mtu); err != nil { // the physical function may have a lower MTU now
			u.Node.Log.Warn("cannot restore the virtual function's MTU", "device", k.DeviceID, "mtu", mtu, "err", err)
		}
	}
	if err != nil {
		return failure.From(err, failure.NotReturned, "restore the settings of sriov-cni's virtual function %s", k.DeviceID).Cure("a DEL tries again")
	}
	return p.forget(u, k.DeviceID)
}

// returned returns the interface on the host. It returns nil if the interface is not on the host, and an error if it is
// still in the pod of this DEL.
func (k *kept) returned(u *attachment.Upstream) (*link.Link, error) {
	if u.Pod != nil {
		l, err := interfaceIn(u.Pod, k.DeviceID)
		if l != nil && err == nil {
			err = failure.New(failure.NotReturned, "sriov-cni's virtual function %s is still in the pod, as %s", k.DeviceID, l.Name).
				Cure("set \"deviceID\" of the network to it, and open it in the node file; a DEL tries again")
		}
		if err != nil {
			return nil, err
		}
	}
	return interfaceIn(u.Node.Netns, k.DeviceID)
}

// usedByAnother reports whether sriov-cni has given the virtual function to another pod that still
// exists.
func (p settings) usedByAnother(u *attachment.Upstream, k *kept) bool {
	netns, err := os.ReadFile(filepath.Join(p.dir, "pci", k.DeviceID)) // [read] has checked the name
	if err != nil || string(netns) == u.Netns {
		return false
	}
	_, err = os.Stat(string(netns))
	return err == nil
}

// interfaceIn returns the interface of the device in ns. It returns nil if the interface is not
// there.
func interfaceIn(ns *netns.Netns, device string) (*link.Link, error) {
	links, err := link.Links(ns)
	for _, l := range links {
		if l.ParentDev == device {
			return l, nil
		}
	}
	return nil, err
}

// held reports whether an attachment of rail-cni has the virtual function. Then this DEL is late.
func held(u *attachment.Upstream, device string) bool {
	return u.Node.AnotherHas(&ledger.Record{Key: u.Key}, func(r *ledger.Record) bool { return r.Loan != nil && r.Loan.PCI == device })
}

// original returns the settings that sriov-cni has changed, with their earlier values.
func (k *kept) original() *sriov.Settings {
	was := &k.OrigVfState
	w := &sriov.Settings{}
	if k.VLAN != nil {
		w.VLAN = &sriov.VLAN{ID: uint32(was.Vlan), QoS: uint32(was.VlanQoS), Proto: unix.ETH_P_8021Q}
		if was.VlanProto == unix.ETH_P_8021AD {
			w.VLAN.Proto = unix.ETH_P_8021AD
		}
	}
	if mac, err := net.ParseMAC(was.AdminMAC); err == nil { // a trusted pod may also have changed the MAC
		w.MAC = mac
	}
	if k.SpoofChk != "" {
		w.SpoofCheck = &was.SpoofChk
	}
	if k.Trust != "" {
		w.Trust = &was.Trust
	}
	if k.LinkState != "" {
		w.LinkState = &was.LinkState
	}
	if k.MinTxRate != nil || k.MaxTxRate != nil {
		lowest, highest := uint32(was.MinTxRate), uint32(was.MaxTxRate)
		w.MinRate, w.MaxRate = &lowest, &highest
	}
	return w
}

// read returns what sriov-cni has kept about the attachment. It returns nil if there is nothing
// that can be used.
func read(dir string, u *attachment.Upstream) *kept {
	k := &kept{}
	if !load(dir, u, "sriov-cni", k) {
		return nil
	}
	if k.OrigVfState.HostIFName == "" && u.Node.Host().HasNetdev(k.DeviceID) {
		u.Node.Log.Warn("cannot use the file that another plugin kept", "plugin", "sriov-cni", "file", file(u))
		return nil
	}
	return k
}

// device returns the PCI address of the virtual function.
func (k *kept) device() string           { return k.DeviceID }
func (k *keptInfiniBand) device() string { return k.DeviceID }

// load reads the attachment's file in the directory of a project's plugin into k. It reports whether the content can be
// used.
func load(dir string, u *attachment.Upstream, project string, k interface{ device() string }) bool {
	err := decode(dir, file(u), k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false // the plugin did not make this attachment
	case err == nil && !u.Node.Host().IsPCI(k.device()):
		err = fmt.Errorf("%q is not a PCI address", k.device())
	}
	if err != nil {
		u.Node.Log.Warn("cannot use the file that another plugin kept", "plugin", project, "file", file(u), "err", err)
	}
	return err == nil
}

// decode reads a JSON file in dir into the value into.
func decode(dir, name string, into any) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	data, err := root.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// file returns the name of the attachment's file.
func file(u *attachment.Upstream) string { return u.ContainerID + "-" + u.IfName }

// forget removes the attachment's file. If released is not "", it also removes the mark that this virtual function is
// in use.
func (p settings) forget(u *attachment.Upstream, released string) error {
	if released == "" {
		return forget(p.dir, u)
	}
	return forget(p.dir, u, filepath.Join("pci", released))
}

// forget removes the attachment's file in dir, and the files in more.
func forget(dir string, u *attachment.Upstream, more ...string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	names := append([]string{file(u)}, more...)
	var errs []error
	for _, name := range names {
		if err := root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
