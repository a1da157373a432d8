package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// rdmaPart is what an attachment has of RDMA.
type rdmaPart struct {
	Mode    string       `json:"mode"` // of the machine when the NIC was attached
	Devices []rdmaDevice `json:"devices"`
}

// rdmaDevice is an RDMA device of an attachment: as the record has it, and,
// once [live] has looked, as it is.
type rdmaDevice struct {
	Name        string `json:"name"` // on the host
	NodeGUID    string `json:"nodeGUID"`
	Parent      string `json:"parent"`              // its PCI function or auxiliary device
	Port        uint32 `json:"port,omitempty"`      // of the interface
	State       string `json:"state,omitempty"`     // of the port now; "?" if that cannot be read
	PhysState   string `json:"physState,omitempty"` // likewise
	Uverbs      string `json:"uverbs,omitempty"`
	UverbsAtADD string `json:"uverbsAtADD,omitempty"` // only if it was another one
	Lent        bool   `json:"lent"`                  // it is in the pod netns, and nowhere else
	GIDs        []gid  `json:"gids,omitempty"`
}

// gid is the RoCE v2 GID of an address.
type gid struct {
	Address string `json:"address"`
	Index   int    `json:"index"`
	Value   string `json:"value"`
	Missing bool   `json:"missing,omitempty"` // it was there at ADD, and is not found now
}

// unknown stands where something cannot be read.
const unknown = "?"

func describeRDMA(r *ledger.RDMA) *rdmaPart {
	if r == nil {
		return nil
	}
	p := &rdmaPart{Mode: r.Mode, Devices: []rdmaDevice{}}
	for _, d := range r.Devices {
		shown := rdmaDevice{
			Name: d.Name, NodeGUID: d.NodeGUID.String(), Parent: d.ParentDev, Port: d.Port, Uverbs: d.Uverbs, Lent: d.Lent,
		}
		for _, g := range r.GIDs {
			if g.Device == d.Name {
				shown.GIDs = append(shown.GIDs, gid{Address: g.Address, Index: g.Index, Value: g.Value})
			}
		}
		p.Devices = append(p.Devices, shown)
	}
	return p
}

// cells gives the columns of the table; several devices or addresses share one.
func (p *rdmaPart) cells(wide bool) []string {
	var names, states, indexes, values, uverbs []string
	mode := ""
	if p != nil {
		mode = p.Mode
		for _, d := range p.Devices {
			name := d.Name
			if d.Port != 0 {
				name = fmt.Sprintf("%s/%d", d.Name, d.Port)
			}
			names, states, uverbs = append(names, name), append(states, d.State), append(uverbs, d.Uverbs)
			for _, g := range d.GIDs {
				index := strconv.Itoa(g.Index)
				if g.Missing {
					index = unknown
				}
				indexes, values = append(indexes, index), append(values, g.Value)
			}
		}
	}
	cells := []string{cell(names), cell(states), cell(indexes)}
	if wide {
		cells = append(cells, cell(values), cell(uverbs), mode)
	}
	return cells
}

// cell joins what one cell has. A gap among several shows as one.
func cell(parts []string) string {
	if !slices.ContainsFunc(parts, func(s string) bool { return s != "" }) {
		return ""
	}
	text := make([]string, len(parts))
	for i, s := range parts {
		text[i] = cmp.Or(s, "-")
	}
	return strings.Join(text, ",")
}

// live reads how the RDMA devices of attachments are now. It looks into each
// network namespace once.
type live struct {
	host  *link.Netns
	views map[string]*view
}

// view is the RDMA core as one namespace sees it.
type view struct {
	ns      *link.Netns // to be closed; nil for the host's
	core    *rdma.Core
	devices []rdma.Device
	err     error // why the others are not there
}

func (l *live) close() {
	for _, v := range l.views {
		v.core.Close()
		v.ns.Close()
	}
}

// fill completes what is shown of the record's RDMA devices. An error says what
// could not be read, which is shown as unknown.
func (l *live) fill(p *rdmaPart, r *ledger.Record) []error {
	var errs []error
	for i := range p.Devices {
		d := &p.Devices[i]
		if err := l.device(d, r, &r.RDMA.Devices[i]); err != nil {
			if d.State == "" {
				d.State = unknown
			}
			errs = append(errs, fmt.Errorf("%s: RDMA device %s: %w", r.Holder(), d.Name, err))
		}
	}
	return errs
}

func (l *live) device(shown *rdmaDevice, r *ledger.Record, recorded *ledger.RDMADevice) error {
	v := l.of(r, recorded)
	if v.err != nil {
		return v.err
	}
	d, err := v.find(recorded)
	if err != nil {
		return err
	}
	if port := portOf(recorded, d); port != 0 {
		p, err := v.core.Port(d, port)
		if err != nil {
			return err
		}
		shown.Port, shown.State, shown.PhysState = port, p.State.String(), p.Phys.String()
	}
	u, err := v.core.Uverbs(d)
	if err != nil && !errors.Is(err, rdma.ErrNoCharDev) {
		return err
	}
	if u.Name != shown.Uverbs {
		shown.Uverbs, shown.UverbsAtADD = u.Name, shown.Uverbs
	}
	var errs []error
	for i := range shown.GIDs {
		errs = append(errs, shown.GIDs[i].look(v.core, d, shown.Port, r.IfName))
	}
	return errors.Join(errs...)
}

// portOf gives the port of the attachment, 0 if nobody knows which of several.
func portOf(recorded *ledger.RDMADevice, d rdma.Device) uint32 {
	if recorded.Port == 0 && d.Ports == 1 {
		return 1
	}
	return recorded.Port
}

// look finds the index that the GID has now: the kernel may give it another
// one, as when the interface was down for a moment.
func (g *gid) look(core *rdma.Core, d rdma.Device, port uint32, ifName string) error {
	address, err := netip.ParseAddr(g.Address)
	if err != nil {
		return err
	}
	e, err := core.FindGID(d, port, address, ifName)
	if err != nil {
		g.Missing = true
		return err
	}
	g.Index, g.Value = e.Index, e.GID.String()
	return nil
}

// of gives the namespace from which the device is seen: the pod's if the
// device is lent, the host's if it is shared.
func (l *live) of(r *ledger.Record, d *ledger.RDMADevice) *view {
	if !d.Lent {
		return l.see("host", func() (*link.Netns, error) { return nil, nil })
	}
	return l.see(r.Netns.NetnsID.String()+r.Netns.Path, func() (*link.Netns, error) {
		ns, err := link.FindNetns(r.Netns.NetnsID, r.Netns.Path)
		if err == nil && ns == nil {
			err = fmt.Errorf("the pod netns %s has just gone", r.Netns.Path)
		}
		return ns, err
	})
}

func (l *live) see(key string, open func() (*link.Netns, error)) *view {
	if v := l.views[key]; v != nil {
		return v
	}
	v := &view{}
	if v.ns, v.err = open(); v.err == nil {
		ns := v.ns
		if ns == nil {
			ns = l.host
		}
		v.core, v.err = rdma.Open(ns)
	}
	if v.err == nil {
		v.devices, v.err = v.core.Devices()
	}
	if l.views == nil {
		l.views = map[string]*view{}
	}
	l.views[key] = v
	return v
}

func (v *view) find(recorded *ledger.RDMADevice) (rdma.Device, error) {
	for _, d := range v.devices {
		if d.NodeGUID == recorded.NodeGUID && d.ParentDev == recorded.ParentDev {
			return d, nil
		}
	}
	where := "on the host"
	if recorded.Lent {
		where = "in the pod netns"
	}
	return rdma.Device{}, fmt.Errorf("%w %s: it was unplugged, its driver was unloaded, or it is just being moved", rdma.ErrNotFound, where)
}
