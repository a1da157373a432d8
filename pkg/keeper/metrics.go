package keeper

import (
	"strconv"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// seconds has the bounds of the histogram of how long it takes to end an attachment.
var seconds = []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10}

// stats counts the keeper's work.
type stats struct {
	mu     sync.Mutex
	scans  uint64
	ended  map[string]*component.Histogram // by plugin
	failed map[pluginCode]float64          // tries that failed
}

type pluginCode struct {
	plugin string
	code   uint
}

func newStats() *stats {
	return &stats{ended: map[string]*component.Histogram{}, failed: map[pluginCode]float64{}}
}

func (s *stats) countScan() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scans++
}

func (s *stats) end(plugin string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended[plugin] == nil {
		s.ended[plugin] = component.NewHistogram(seconds...)
	}
	s.ended[plugin].Observe(took)
}

func (s *stats) fail(plugin string, code uint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[pluginCode{plugin, code}]++
}

func (s *stats) collect(out component.Metrics) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Counter("rail_cni_scans_total", "Scans for attachments without a pod.", float64(s.scans))
	for plugin, h := range s.ended {
		out.Histogram("rail_cni_release_duration_seconds", "Time to end an attachment whose pod is gone, from the moment when its NIC was back on the host.", h, "plugin", plugin)
	}
	for f, n := range s.failed {
		out.Counter("rail_cni_release_failures_total", "Failed tries to end an attachment, by the CNI code of the error (docs/reference/errors.md).", n,
			"plugin", f.plugin, "code", strconv.FormatUint(uint64(f.code), 10))
	}
}

// collect sends the metrics of the keeper.
func (k *Keeper) collect(out component.Metrics) {
	k.stats.collect(out)
	k.collectAttachments(out)
	k.collectLinks(out)
}

// collectAttachments sends the number of records by phase, and the number of attachments that could
// not be ended.
func (k *Keeper) collectAttachments(out component.Metrics) {
	type class struct{ dir, plugin, phase, netns string }
	counts := map[class]float64{}
	unreadable, lacking, missing := 0, 0, 0
	for _, d := range k.dirs {
		dir := d.node.Ledger.Dir()
		notReturned := 0
		d.mu.Lock()
		lacking += d.lacking
		missing += d.nicsMissing
		d.mu.Unlock()
		ending := map[ledger.Key]bool{}
		for _, u := range d.unended() {
			ending[u.record.Key] = true
			if u.err != nil {
				notReturned++
			}
		}
		out.Gauge("rail_cni_nics_not_returned", "Attachments whose pod is gone and which could not be ended at the last try.", float64(notReturned), "state_dir", dir)
		changed, _ := d.node.Ledger.Returned() // the loop reports notes that cannot be read
		for _, r := range changed {
			out.Gauge("rail_cni_returned_changed", "Settings of a NIC that are not as they were before the NIC was last lent.",
				float64(len(r.Changed)), "state_dir", dir, "nic", r.NIC)
		}
		records, errs := d.node.Ledger.List()
		unreadable += len(errs)
		for _, r := range records {
			netns := "alive"
			if ending[r.Key] {
				netns = "gone"
			}
			counts[class{dir, r.Plugin, string(r.Phase), netns}]++
		}
	}
	for c, n := range counts {
		out.Gauge("rail_cni_attachments", "Attachments of this node, by phase and by whether their pod is gone.",
			n, "state_dir", c.dir, "plugin", c.plugin, "phase", c.phase, "pod_netns", c.netns)
	}
	out.Gauge("rail_cni_nics_missing", "Attachments whose pod is alive but lacks the NIC that was lent to it.", float64(missing))
	out.Gauge("rail_cni_rdma_devices_missing", "Attachments whose pod is alive but lacks an RDMA device that was lent to it.", float64(lacking))
	out.Gauge("rail_cni_unreadable_records", "Records that are corrupt or of a newer version.", float64(unreadable))
}

// collectLinks sends the state of the links of lent NICs, which it reads in their pods. If another
// plugin made the interface, the record of the chained plugin rdma represents the NIC.
func (k *Keeper) collectLinks(out component.Metrics) {
	for _, d := range k.dirs {
		records, _ := d.node.Ledger.Held(ledger.Anywhere, func(r *ledger.Record) bool { // rail_cni_unreadable_records counts the errors
			return r.Phase == ledger.Lent && (r.LendsNetdev() || !r.HasInterface())
		})
		for _, r := range records {
			var pod ledger.Pod
			if r.Pod != nil {
				pod = *r.Pod
			}
			if r.Link != nil {
				out.Gauge("rail_cni_link_wait_seconds", "How long ADD waited for the link of a lent NIC.", r.Link.Waited().Seconds(),
					"nic", r.NICName(), "ifname", r.IfName, "pod_namespace", pod.Namespace, "pod_name", pod.Name)
			}
			if up, known := r.LinkUp(); known {
				out.Gauge("rail_cni_link_up", "Whether a lent NIC is up in its pod and has a carrier.", component.Bool(up),
					"nic", r.NICName(), "ifname", r.IfName, "pod_namespace", pod.Namespace, "pod_name", pod.Name)
			}
		}
	}
}
