package devices

import (
	"cmp"
	"errors"
	"slices"
	"strconv"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/nics"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
)

// target is the place of the counters of a NIC.
type target struct {
	record *ledger.Record // of the pod that has the interface, nil if it is on the host
	name   string         // the name of the interface at that place, "" if there is none
	ports  []portAt
}

// portAt is the place of the counters of a port.
type portAt struct {
	record *ledger.Record // of the pod that has the device, nil if it is on the host
	device string
	port   uint32
}

// wanted has the names of the counters that become facts.
var wanted = func() map[string]bool {
	names := map[string]bool{}
	for _, name := range nics.WantedCounters() {
		names[name] = true
	}
	return names
}()

// counters are the error counters of a NIC, or the error why they are not known.
type counters struct {
	values map[string]uint64
	err    error
}

// sample reads the counters of all targets.
func sample(targets []target) []counters {
	sps := &spaces{}
	defer sps.Close()
	all := make([]counters, len(targets))
	for i := range targets {
		all[i].values, all[i].err = targets[i].read(sps)
	}
	return all
}

// read returns the counters of a NIC. A counter of its ports is the sum over all ports.
func (t *target) read(sps *spaces) (map[string]uint64, error) {
	found := map[string]uint64{}
	if t.name != "" {
		sp := sps.podNetns(t.record)
		if err := sp.count(found, "class", "net", t.name, "statistics"); err != nil {
			return nil, err
		}
		driver, err := device.ReadDriver(sp.Netns, t.name)
		if errors.Is(err, link.ErrNotFound) {
			return nil, errMoving
		}
		if err != nil {
			return nil, err
		}
		for name, value := range driver.Stats {
			if wanted[name] {
				found[name] = value
			}
		}
	}
	for _, p := range t.ports {
		if err := p.read(sps, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// read adds the port's counters to the map to. A driver has only some of the counters.
func (p *portAt) read(sps *spaces, to map[string]uint64) error {
	sp := sps.podNetns(p.record)
	for _, group := range []string{"counters", "hw_counters"} {
		if err := sp.count(to, "class", "infiniband", p.device, "ports", strconv.Itoa(int(p.port)), group); err != nil {
			return err
		}
	}
	return nil
}

// count adds the wanted counters in a directory of sysfs to the map to.
func (sp *space) count(to map[string]uint64, dir ...string) error {
	names, err := sp.listed(dir...)
	for _, name := range names {
		if !wanted[name] {
			continue
		}
		// A virtual function may list counters that it cannot read.
		if value, err := files.Number(sp.file(append(slices.Clone(dir), name)...)); err == nil {
			to[name] += value
		}
	}
	return err
}

// rising returns the counters that grew between the two reads. A counter that is smaller than
// before was reset, so it is left out.
func rising(before, after counters, seconds float64) fact.Fact[fact.Rising] {
	const source = "counters in sysfs and of ethtool"
	if err := cmp.Or(before.err, after.err); err != nil {
		return fact.Failed[fact.Rising](source, err)
	}
	grown := map[string]uint64{}
	for name, value := range after.values {
		if old, ok := before.values[name]; ok && value > old {
			grown[name] = value - old
		}
	}
	if seconds <= 0 {
		return fact.Failed[fact.Rising](source, errors.New("no time passed between the two reads of the counters"))
	}
	return fact.Known(fact.Rising{Seconds: seconds, Counters: grown}, source)
}
