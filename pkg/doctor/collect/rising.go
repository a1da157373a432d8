package collect

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strconv"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// target is where the counters of a NIC are.
type target struct {
	record *ledger.Record // of the pod that has the interface, nil if it is on the host
	name   string         // of the interface there, "" for none
	ports  []portAt
}

// portAt is where the counters of a port are.
type portAt struct {
	record *ledger.Record // of the pod that has the device, nil if it is on the host
	device string
	port   uint32
}

// The counters that count errors, and not traffic: of interfaces (statistics and ethtool -S),
// and of ports (the InfiniBand Architecture's and the drivers').
var (
	linkErrors = []string{
		"rx_crc_errors", "rx_errors", "rx_fifo_errors", "rx_frame_errors", "rx_length_errors", "rx_missed_errors", "rx_over_errors",
		"tx_aborted_errors", "tx_carrier_errors", "tx_errors", "tx_fifo_errors", "tx_window_errors",
	}
	driverErrors = regexp.MustCompile(`^(rx_discards_phy|tx_discards_phy|rx_crc_errors_phy|rx_symbol_err_phy|rx_in_range_len_errors_phy|` +
		`rx_pcs_symbol_err_phy|link_down_events_phy|rx_prio\d+_discards|tx_prio\d+_discards|rx_prio\d+_buf_discard|rx_out_of_buffer|` +
		`tx_pause_storm_(warning|error)_events|dev_out_of_buffer|module_bad_shorted|module_bus_stuck|module_high_temp)$`)
	portErrors = []string{
		"VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery", "local_link_integrity_errors",
		"port_rcv_constraint_errors", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors",
		"port_xmit_constraint_errors", "port_xmit_discards", "symbol_error",
		"duplicate_request", "implied_nak_seq_err", "local_ack_timeout_err", "out_of_buffer", "out_of_sequence", "packet_seq_err",
		"req_cqe_error", "req_remote_access_errors", "req_remote_invalid_request", "req_transport_retries_exceeded", "resp_cqe_error",
		"resp_local_length_error", "resp_remote_access_errors", "rnr_nak_retry_err", "roce_adp_retrans", "roce_adp_retrans_to",
		"roce_slow_restart", "roce_slow_restart_trans", "rx_icrc_encapsulated",
	}
)

// counters are the error counters of a NIC, or why they are not known.
type counters struct {
	values map[string]uint64
	err    error
}

// sample reads the counters of all targets.
func sample(targets []target) []counters {
	at := spaces{}
	defer at.close()
	all := make([]counters, len(targets))
	for i := range targets {
		all[i].values, all[i].err = targets[i].read(at)
	}
	return all
}

// read returns the counters of a NIC, added over its ports.
func (t *target) read(at spaces) (map[string]uint64, error) {
	found := map[string]uint64{}
	if t.name != "" {
		sp := at.of(t.record)
		for _, name := range linkErrors {
			value, err := number(sp.file("class", "net", t.name, "statistics", name))
			if err != nil {
				return nil, err
			}
			found[name] = value
		}
		driver, err := sp.ns.Driver(t.name)
		if err != nil {
			return nil, err
		}
		for name, value := range driver.Stats {
			if driverErrors.MatchString(name) {
				found[name] = value
			}
		}
	}
	for _, p := range t.ports {
		if err := p.read(at, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// read adds the port's counters. A driver has only some of them.
func (p *portAt) read(at spaces, to map[string]uint64) error {
	sp := at.of(p.record)
	dir := []string{"class", "infiniband", p.device, "ports", strconv.Itoa(int(p.port))}
	for _, group := range []string{"counters", "hw_counters"} {
		names, err := sp.listed(append(slices.Clone(dir), group)...)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !slices.Contains(portErrors, name) {
				continue
			}
			// A virtual function may list counters that it cannot read.
			if value, err := number(sp.file(append(slices.Clone(dir), group, name)...)); err == nil {
				to[name] += value
			}
		}
	}
	return nil
}

// rising returns the counters that grew. One that is smaller than before was reset.
func rising(before, after counters, seconds float64) doctor.Fact[doctor.Rising] {
	const source = "counters in sysfs and of ethtool"
	if err := cmp.Or(before.err, after.err); err != nil {
		return doctor.Failed[doctor.Rising](source, err)
	}
	grown := map[string]uint64{}
	for name, value := range after.values {
		if old, ok := before.values[name]; ok && value > old {
			grown[name] = value - old
		}
	}
	if seconds <= 0 {
		return doctor.Failed[doctor.Rising](source, errors.New("the clock stands still"))
	}
	return doctor.Known(doctor.Rising{Seconds: seconds, Counters: grown}, source)
}
