package keeper

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/loan"
)

// seconds are the bounds of the histogram of the duration of ends.
var seconds = []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10}

// stats counts the keeper's work.
type stats struct {
	looks  prometheus.Counter
	ended  *prometheus.HistogramVec // by plugin
	failed *prometheus.CounterVec   // tries, by plugin and code
}

func newStats() *stats {
	return &stats{
		looks: prometheus.NewCounter(prometheus.CounterOpts{Name: "rail_cni_looks_total", Help: "How often the agent looked for attachments without a pod."}),
		ended: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rail_cni_end_seconds", Help: "Time to end an attachment whose pod is gone, from when its NIC was there.", Buckets: seconds,
		}, []string{"plugin"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rail_cni_end_failures_total", Help: "Tries to end an attachment that failed, by the error's CNI code (docs/reference/errors.md).",
		}, []string{"plugin", "code"}),
	}
}

func (s *stats) end(plugin string, took time.Duration) {
	s.ended.WithLabelValues(plugin).Observe(took.Seconds())
}

func (s *stats) fail(plugin string, code uint) {
	s.failed.WithLabelValues(plugin, strconv.FormatUint(uint64(code), 10)).Inc()
}

// collect sends the metrics of the keeper.
func (k *Keeper) collect(ch chan<- prometheus.Metric) {
	k.stats.looks.Collect(ch)
	k.stats.ended.Collect(ch)
	k.stats.failed.Collect(ch)
	k.collectAttachments(ch)
	k.collectLinks(ch)
}

// collectAttachments counts the records by phase, and those that could not be
// ended.
func (k *Keeper) collectAttachments(ch chan<- prometheus.Metric) {
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
		component.Gauge(ch, "rail_cni_nics_not_returned", "Attachments whose pod is gone, and that could not be ended at the last try.", float64(notReturned), "state_dir", dir)
		changed, _ := d.node.Ledger.Returned() // the loop reports unreadable ones
		for _, r := range changed {
			component.Gauge(ch, "rail_cni_returned_changed", "Settings of a NIC that are not as they were before it was last lent.",
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
		component.Gauge(ch, "rail_cni_attachments", "Attachments of this node, by phase, and whether their pod is gone.",
			n, "state_dir", c.dir, "plugin", c.plugin, "phase", c.phase, "pod_netns", c.netns)
	}
	component.Gauge(ch, "rail_cni_nics_missing", "Attachments whose pod is alive and lacks the NIC that was lent to it.", float64(missing))
	component.Gauge(ch, "rail_cni_rdma_devices_missing", "Attachments whose pod is alive and lacks an RDMA device that was lent to it.", float64(lacking))
	component.Gauge(ch, "rail_cni_unreadable_records", "Records that are corrupt, or of a newer version.", float64(unreadable))
}

// collectLinks sends the state of the links of lent NICs, read in their pods now. Behind
// another plugin the record of the chained plugin rdma stands for the NIC.
func (k *Keeper) collectLinks(ch chan<- prometheus.Metric) {
	for _, d := range k.dirs {
		records, _ := d.node.Ledger.List() // rail_cni_unreadable_records counts the errors
		for _, r := range records {
			if !r.LendsNetdev() && r.HasInterface() || r.Phase != ledger.Lent {
				continue
			}
			var pod ledger.Pod
			if r.Pod != nil {
				pod = *r.Pod
			}
			labels := []string{"nic", r.NICName(), "ifname", r.IfName, "pod_namespace", pod.Namespace, "pod_name", pod.Name}
			if r.Link != nil {
				component.Gauge(ch, "rail_cni_link_wait_seconds", "How long ADD waited for the link of a lent NIC.", r.Link.Waited().Seconds(), labels...)
			}
			if up, known := loan.LinkUp(r); known {
				component.Gauge(ch, "rail_cni_link_up", "Whether a lent NIC is up in its pod, and has a carrier.", component.Bool(up), labels...)
			}
		}
	}
}
