package keeper

import (
	"cmp"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor"
)

// remembered is how long losses of a carrier are remembered: the time that NIC-FLAP judges.
const remembered = 12 * time.Hour

// flaps remembers how often each NIC lost its carrier while it was up and nobody moved it.
type flaps struct {
	nics   map[string]*carrier // by PCI address, else by name
	before time.Time           // when a record was written, before the last observation
	time   time.Time           // the last observation
}

// carrier is what is known of the carrier of a NIC.
type carrier struct {
	since  time.Time // the first observation
	time   time.Time // the last one
	count  uint64
	holder string
	up     bool
	// waiting are losses of the last observation. A NIC of a pod that died comes to the host
	// before its record is removed: so they count if no record changes until the next one.
	waiting int
	losses  []loss
}

type loss struct {
	time  time.Time
	count int
}

// reading is when facts were read, and when a record was last written as of then.
type reading struct{ began, ended, changedBefore, changedAfter time.Time }

// observe compares the facts with those of the last observation, and sets the fact Flaps of each
// NIC. All losses between two observations are dropped if a record changed: each move of a NIC
// counts as a loss in the kernel, and of which NIC it was is not known later.
//
// Several readings may run at a time, and their facts arrive in any order. Facts of which the
// reading began before the last observation may be older than that, so they are not compared.
func (f *flaps) observe(r reading, nics *doctor.NICs) {
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
		n.Flaps = doctor.Known(c.flaps(r.ended), "rail-agent's memory of carrier_down_count")
	}
	if !late {
		f.nics, f.before, f.time = seen, r.changedBefore, r.ended
	}
}

func (c *carrier) observe(at time.Time, n *doctor.NIC, quiet bool) {
	same := quiet && c.holder == n.Holder && c.up && n.AdminUp.Value && !c.time.IsZero()
	if same && c.waiting > 0 {
		c.losses = append(c.losses, loss{c.time, c.waiting})
	}
	c.waiting = 0
	if lost := n.CarrierDown.Value; same && lost > c.count {
		c.waiting = int(min(lost-c.count, 1000))
	}
	c.time, c.count, c.holder, c.up = at, n.CarrierDown.Value, n.Holder, n.AdminUp.Value
	for len(c.losses) > 0 && at.Sub(c.losses[0].time) > remembered {
		c.losses = c.losses[1:]
	}
}

// flaps returns the losses of the last 12 hours, or since the first observation.
func (c *carrier) flaps(at time.Time) doctor.Flaps {
	total := 0
	for _, l := range c.losses {
		total += l.count
	}
	return doctor.Flaps{Count: total, Seconds: min(at.Sub(c.since), remembered).Seconds()}
}
