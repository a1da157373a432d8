package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/verbs"
)

// traffic is the bandwidth in Gbit/s that ib_write_bw measured between two NICs
// of one rail: with one on the node and one on another, and with both lent to
// pods.
type traffic struct {
	Host []float64 `json:"hostGbits"`
	Pod  []float64 `json:"podGbits"`
	Why  string    `json:"notMeasured,omitempty"`
}

const (
	// trafficGoal is the least ratio of the pods' median to the hosts'.
	trafficGoal = 0.98
	// messages of 64 KiB, so that one measurement takes one to two seconds in
	// emulation.
	messages      = 200
	trafficRounds = 12
	// trafficSettle is the pause for the first second's work of an interface
	// that has just come up: duplicate address detection, multicast reports.
	// Without it pods had 0.94 of the hosts' bandwidth, with it 0.99.
	trafficSettle = 1500 * time.Millisecond
)

// trafficNICs are two NICs of one rail in the rig, with the addresses that they
// have on their hosts.
var trafficNICs = []struct{ nic, device, address string }{
	{"ens11np0", "soft0", "192.0.2.1"},
	{"ens21np0", "soft1", "192.0.2.2"},
}

// measureTraffic measures hosts and pods in turn. It leaves the node in
// exclusive mode, without RDMA devices of its NICs.
func measureTraffic(p places, s *scratch) *traffic {
	t := &traffic{}
	if err := t.measure(p, s); err != nil {
		t.Why = err.Error()
	}
	return t
}

func (t *traffic) measure(p places, s *scratch) error {
	if err := errors.Join(kmod.SoftRoCE(), setMode(modeExclusive), kmod.ReloadNICs("rdma=0")); err != nil {
		return err
	}
	var pods []*contender
	b := builder{places: p}
	for i, n := range trafficNICs {
		if err := rdmaCommand("link", "add", n.device, "type", "rxe", "netdev", n.nic); err != nil {
			return err
		}
		c := b.next(groupExclusive, fmt.Sprintf("traffic%d", i), "", "", "", goals{})
		c.nic, c.device = n.nic, n.device
		b.plugin(c, filepath.Join(p.bin, "host-device"), map[string]any{"type": "host-device", "device": n.nic, "rdma": "required"},
			map[string]any{"type": "static", "addresses": []any{map[string]any{"address": fmt.Sprintf("198.51.100.%d/24", i+1)}}}, p.state)
		pods = append(pods, c)
	}
	if err := errors.Join(ip("netns", "add", farName), addPods(pods)); err != nil {
		return err
	}
	for range trafficRounds {
		if err := t.round(s, pods); err != nil {
			return err
		}
	}
	errs := []error{ip("netns", "delete", farName)} // setMode needs that no other namespace is left
	for _, c := range pods {
		errs = append(errs, ip("netns", "delete", c.pod))
	}
	return errors.Join(errs...)
}

// round measures each once.
func (t *traffic) round(s *scratch, pods []*contender) error {
	other := trafficNICs[1]
	if err := errors.Join(ip("link", "set", other.nic, "netns", farName), rdmaCommand("dev", "set", other.device, "netns", farName)); err != nil {
		return err
	}
	var hosts []verbs.End
	for i, netns := range []string{nodeName, farName} {
		n := trafficNICs[i]
		if err := errors.Join(ip("-n", netns, "address", "replace", n.address+"/24", "dev", n.nic), ip("-n", netns, "link", "set", n.nic, "mtu", "9000", "up")); err != nil {
			return err
		}
		hosts = append(hosts, verbs.End{Netns: netns, Device: n.device, Address: n.address})
	}
	if err := converse(hosts, &t.Host); err != nil {
		return fmt.Errorf("between hosts: %w", err)
	}
	err := within(farName, func() error {
		return errors.Join(rdmaCommand("dev", "set", other.device, "netns", nodeName), ip("link", "set", other.nic, "netns", nodeName))
	})
	if err != nil {
		return err
	}
	var ends []verbs.End
	var results [][]byte
	for i, c := range pods {
		_, result, err := s.perform(c.add, nil)
		if err == nil {
			err = c.check(true)
		}
		if err != nil {
			return err
		}
		results = append(results, result)
		ends = append(ends, verbs.End{Netns: c.pod, Device: c.device, Address: fmt.Sprintf("198.51.100.%d", i+1)})
	}
	if err := converse(ends, &t.Pod); err != nil {
		return fmt.Errorf("between pods: %w", err)
	}
	for i, c := range pods {
		if _, _, err := s.perform(c.del, results[i]); err != nil {
			return err
		}
	}
	return nil
}

// converse measures from the second end to the first.
func converse(ends []verbs.End, into *[]float64) error {
	for i := range ends {
		var err error
		if ends[i].GID, err = gidIndex(ends[i]); err != nil {
			return err
		}
	}
	time.Sleep(trafficSettle)
	bandwidth, err := verbs.Bandwidth(context.Background(), messages, ends[0], ends[1])
	*into = append(*into, bandwidth)
	return err
}

// findGID prints the index of the RoCE v2 GID that ends with $2, in the sysfs
// of the namespace.
const findGID = `
cd "/sys/class/infiniband/$1/ports/1"
for file in gids/*; do
	read -r gid <"$file" || continue
	case $gid in
	0000:0000:0000:0000:0000:ffff:$2) ;;
	*) continue ;;
	esac
	read -r kind <"gid_attrs/types/${file#*/}"
	if [ "$kind" = "RoCE v2" ]; then echo "${file#*/}"; exit; fi
done
exit 1`

// gidIndex returns the index of the GID of an end's address, which appears a
// moment after the address.
func gidIndex(e verbs.End) (int, error) {
	var a, b, c, d byte
	if _, err := fmt.Sscanf(e.Address, "%d.%d.%d.%d", &a, &b, &c, &d); err != nil {
		return 0, err
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		out, err := exec.Command("ip", "netns", "exec", e.Netns, "sh", "-c", findGID, "sh", e.Device, fmt.Sprintf("%02x%02x:%02x%02x", a, b, c, d)).Output()
		if err == nil {
			index := 0
			_, err := fmt.Sscan(string(out), &index)
			return index, err
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%s of %s has no GID for %s: %w", e.Device, e.Netns, e.Address, err)
		}
	}
}

// rdmaCommand runs rdma(8) in the thread's namespace.
func rdmaCommand(args ...string) error {
	if out, err := exec.Command("rdma", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("rdma %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// err returns why the traffic was not measured.
func (t *traffic) err() error {
	if t.Why == "" {
		return nil
	}
	return errors.New(t.Why)
}

// table returns the table of the traffic.
func (t *traffic) table() table {
	tab := table{title: "RDMA writes of 64 KiB by Soft-RoCE, in Gbit/s", head: []string{"", "median", "p10", "p90", "×hosts"}}
	for _, row := range []struct {
		title   string
		samples []float64
	}{{"from host to host", t.Host}, {"from pod to pod", t.Pod}} {
		if t.err() != nil {
			tab.missing(row.title, t.err())
			continue
		}
		cells := []string{row.title}
		for _, q := range []float64{0.5, 0.1, 0.9} {
			cells = append(cells, fmt.Sprintf("%.3f", quantile(row.samples, q)))
		}
		tab.rows = append(tab.rows, append(cells, fmt.Sprintf("%.2f", ratio(row.samples, t.Host))))
	}
	return tab
}

// verdict compares the traffic with the goal.
func (t *traffic) verdict() verdict {
	v := judge("RDMA writes, from pod to pod over from host to host", trafficGoal, ratio(t.Pod, t.Host), "×", t.err())
	v.AtLeast, v.Met = true, t.err() == nil && v.Measured >= trafficGoal
	return v
}
