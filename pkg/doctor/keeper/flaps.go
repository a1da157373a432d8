package keeper

import (
	"cmp"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// remembered is how long losses of a carrier are remembered. The rule NIC-FLAP judges this time.
const remembered = 12 * time.Hour

// flaps remembers how often each NIC lost its carrier while the NIC was up and was not moved.
type flaps struct {
	nics   map[string]*carrier // by PCI address, or by name if the NIC has no PCI address
	before time.Time           // when a record was last written, as of the last observation
	time   time.Time           // the last observation
}

// carrier is what is known about the carrier of one NIC.
type carrier struct {
	since  time.Time // the first observation
	time   time.Time // the last observation
	count  uint64
	holder string
	up     bool
	// waiting is the number of losses that the last observation found. They count only if no record
	// changes until the next observation: the NIC of a dead pod returns to the host, which looks
	// like a loss, before its record is removed.
	waiting int
	losses  []loss
}

type loss struct {
	time  time.Time
	count int
}

// reading has the times when a reading of the facts began and ended, and the time of the last
// change of a record as of the beginning and as of the end.
type reading struct{ began, ended, changedBefore, changedAfter time.Time }

// observe compares the facts about NICs with the last observation, and sets the fact Flaps of each
// NIC. If a record changed between two observations, all losses between them are dropped. The
// reason is that the kernel counts each move of a NIC as a loss, and it is not known later which
// NIC was moved.
//
// Several readings may run at the same time, and their facts arrive in any order. If a reading
// began before the last observation, its facts may be older than the observation, so they are not
// compared.
func (f *flaps) observe(r reading, nics *fact.NICs) {
	if nics == nil || !nics.List.OK() {
		return
	}
	late := r.began.Before(f.time)
	quiet := r.changedAfter.Equal(f.before)
	seen := map[string]*carrier{}
	for i := range nics.List.Value {
		n := &nics.List.Value[i]
		key := cmp.Or(n.PCI, n.Name)
		if !n.CarrierDown.OK() || !n.AdminUp.OK() || key == "" {
			continue
		}
		c := f.nics[key]
		if c == nil {
			c = &carrier{since: r.ended, count: n.CarrierDown.Value}
		}
		if !late {
			c.observe(r.ended, n, quiet)
		}
		seen[key] = c
		n.Flaps = fact.Known(c.flaps(r.ended), "rail-agent's memory of carrier_down_count")
	}
	if !late {
		f.nics, f.before, f.time = seen, r.changedBefore, r.ended
	}
}

func (c *carrier) observe(now time.Time, n *fact.NIC, quiet bool) {
	same := quiet && c.holder == n.Holder && c.up && n.AdminUp.Value && !c.time.IsZero()
	if same && c.waiting > 0 {
		c.losses = append(c.losses, loss{c.time, c.waiting})
	}
	c.waiting = 0
	if lost := n.CarrierDown.Value; same && lost > c.count {
		c.waiting = int(min(lost-c.count, 1000))
	}
	c.time, c.count, c.holder, c.up = now, n.CarrierDown.Value, n.Holder, n.AdminUp.Value
	for len(c.losses) > 0 && now.Sub(c.losses[0].time) > remembered {
		c.losses = c.losses[1:]
	}
}

// flaps returns the losses of the last 12 hours. If the first observation is more recent, it
// returns the losses since then.
func (c *carrier) flaps(now time.Time) fact.Flaps {
	total := 0
	for _, l := range c.losses {
		total += l.count
	}
	return fact.Flaps{Count: total, Seconds: min(now.Sub(c.since), remembered).Seconds()}
}
