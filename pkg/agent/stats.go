package agent

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// seconds are the bounds of the histogram of the duration of ends.
var seconds = []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10}

// stats counts the agent's work.
type stats struct {
	mu       sync.Mutex
	looks    uint64
	restored uint64
	ended    map[string]*took       // by plugin
	failed   map[pluginCode]float64 // tries
}

type took struct {
	counts []uint64 // by seconds, and above
	sum    float64
}

type pluginCode struct {
	plugin string
	code   uint
}

func (s *stats) count(what *uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*what++
}

func (s *stats) end(plugin string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = map[string]*took{}
	}
	t := s.ended[plugin]
	if t == nil {
		t = &took{counts: make([]uint64, len(seconds)+1)}
		s.ended[plugin] = t
	}
	i, _ := slices.BinarySearch(seconds, d.Seconds())
	t.counts[i]++
	t.sum += d.Seconds()
}

func (s *stats) fail(plugin string, code uint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = map[pluginCode]float64{}
	}
	s.failed[pluginCode{plugin, code}]++
}

// collect adds the agent's own metrics.
func (a *agent) collect(e *exposition) {
	a.stats.collect(e)
	a.collectAttachments(e)
	a.collectLinks(e)
	a.collectDevices(e)
	a.collectPublished(e)
	a.collectNRI(e)
	a.collectDoctor(e)
	a.collectPools(e)
	a.collectKubeconfig(e)
	if a.Journal != nil {
		waiting, _ := a.journal.get()
		e.add("rail_cni_journal_addresses", gauge, "Addresses that wait to be freed, because the API server was away at DEL.", float64(waiting), nil)
	}
	for _, b := range a.binaries.states() {
		ours := 0.0
		if b.State == "" {
			ours = 1
		}
		e.add("rail_cni_binary_ours", gauge, "Whether the plugin in the CNI directory is the agent's.", ours, labels{"path", b.Path})
	}
	e.add("rail_cni_agent_info", gauge, "Version of the agent.", 1, labels{"version", a.Version, "node_name", a.NodeName})
	process(e)
}

func (s *stats) collect(e *exposition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.add("rail_cni_looks_total", counter, "How often the agent looked for attachments without a pod.", float64(s.looks), nil)
	e.add("rail_cni_binaries_restored_total", counter, "Plugins that the agent put back into a CNI directory.", float64(s.restored), nil)
	for _, plugin := range slices.Sorted(maps.Keys(s.ended)) {
		t := s.ended[plugin]
		e.distribution("rail_cni_end_seconds", "Time to end an attachment whose pod is gone, from when its NIC was there.", seconds, t.counts, t.sum, labels{"plugin", plugin})
	}
	for f, n := range s.failed {
		e.add("rail_cni_end_failures_total", counter, "Tries to end an attachment that failed, by the error's CNI code (docs/reference/errors.md).",
			n, labels{"plugin", f.plugin, "code", strconv.FormatUint(uint64(f.code), 10)})
	}
}

// collectAttachments counts the records by phase, and those that could not be
// ended.
func (a *agent) collectAttachments(e *exposition) {
	type class struct{ dir, plugin, phase, netns string }
	counts, notReturned := map[class]float64{}, map[string]float64{}
	unreadable, lacking, missing := 0, 0, 0
	for _, k := range a.keepers {
		dir := k.node.Ledger.Dir()
		notReturned[dir] = 0
		k.mu.Lock()
		lacking += k.lacking
		missing += k.nicsMissing
		k.mu.Unlock()
		ending := map[any]bool{}
		for _, d := range k.unended() {
			ending[d.record.Key] = true
			if d.err != nil {
				notReturned[dir]++
			}
		}
		changed, _ := k.node.Ledger.Returned() // the keeper reports unreadable ones
		for _, r := range changed {
			e.add("rail_cni_returned_changed", gauge, "Settings of a NIC that are not as they were before it was last lent.",
				float64(len(r.Changed)), labels{"state_dir", dir, "nic", r.NIC})
		}
		records, errs := k.node.Ledger.List()
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
		e.add("rail_cni_attachments", gauge, "Attachments of this node, by phase, and whether their pod is gone.",
			n, labels{"state_dir", c.dir, "plugin", c.plugin, "phase", c.phase, "pod_netns", c.netns})
	}
	for dir, n := range notReturned {
		e.add("rail_cni_nics_not_returned", gauge, "Attachments whose pod is gone, and that could not be ended at the last try.", n, labels{"state_dir", dir})
		e.add("rail_cni_not_home", gauge, "Deprecated: use rail_cni_nics_not_returned.", n, labels{"state_dir", dir})
	}
	e.add("rail_cni_nics_missing", gauge, "Attachments whose pod is alive and lacks the NIC that was lent to it.", float64(missing), nil)
	e.add("rail_cni_rdma_devices_missing", gauge, "Attachments whose pod is alive and lacks an RDMA device that was lent to it.", float64(lacking), nil)
	e.add("rail_cni_unreadable_records", gauge, "Records that are corrupt, or of a newer version.", float64(unreadable), nil)
}

// process adds the process metrics of Prometheus' own libraries.
func process(e *exposition) {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		e.add("process_cpu_seconds_total", counter, "User and system CPU time.", cpu.Seconds(), nil)
	}
	e.add("process_resident_memory_bytes", gauge, "Resident memory.", float64(resident()), nil)
}

// resident returns the process' resident memory in bytes (proc_pid_statm(5)), 0
// if that cannot be read.
func resident() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.Atoi(string(fields[1]))
	return int64(pages * os.Getpagesize())
}
