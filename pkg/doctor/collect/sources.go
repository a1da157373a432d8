package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/devices"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/machine"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/objects"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/records"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// machineReader returns the reader of the machine's facts.
func (c *collector) machineReader() *machine.Reader {
	return &machine.Reader{Reader: c.procs, IsRoot: c.root, BinDir: c.BinDir, ConfDir: c.ConfDir, InstallDir: c.InstallDir}
}

// ofHost reads the facts about the machine.
func (c *collector) ofHost(ctx context.Context, h *fact.Host) {
	r := c.machineReader()
	proc := func(name string) string { return filepath.Join(c.Proc, name) }
	file := func(to *fact.Fact[string], name string) {
		take(ctx, c, to, proc(name), localTime, func(context.Context) (string, error) { return files.ReadText(proc(name)) })
	}
	file(&h.Kernel, "sys/kernel/osrelease")
	file(&h.CmdLine, "cmdline")
	take(ctx, c, &h.Hypervisor, proc("cpuinfo"), localTime, r.Hypervisor)
	take(ctx, c, &h.RDMAMode, "RDMA netlink", localTime, machine.RDMAMode)
	take(ctx, c, &h.Modules, filepath.Join(c.Sys, "module"), localTime, r.Modules)
	take(ctx, c, &h.MOFED, filepath.Join(c.Sys, "module/mlx_compat"), localTime, r.MOFED)
	if c.Sample >= 0 && (c.nvidia.Value || !c.nvidia.OK()) { // reading it needs 0.1 s of a CPU
		take(ctx, c, &h.DMABuf, proc("kallsyms"), localTime, r.DMABuf)
	}
	take(ctx, c, &h.NVIDIAOpen, proc("driver/nvidia/version"), localTime, r.NVIDIAOpen)
	take(ctx, c, &h.Origins, filepath.Join(c.Sys, "module/*/taint")+" and modules.dep", localTime, r.Origins)
	take(ctx, c, &h.CharDevices, r.HostPath("dev/infiniband"), localTime, r.CharDevices)
	take(ctx, c, &h.Uverbs, filepath.Join(c.Sys, "class/infiniband_verbs"), localTime, r.Uverbs)
	take(ctx, c, &h.Memlock, proc("*/limits"), localTime, r.DaemonLimits)
	take(ctx, c, &h.LimitsConf, r.HostPath("etc/security/limits.conf, limits.d"), localTime, r.LimitsConf)
	take(ctx, c, &h.Swaps, proc("swaps"), localTime, r.Swaps)
	take(ctx, c, &h.Sysctls, proc("sys"), localTime, r.Sysctls)
	take(ctx, c, &h.KernelLog, r.HostPath("dev/kmsg"), localTime, r.KernelLog)
}

// ofCNI reads the facts about the CNI directories.
func (c *collector) ofCNI(ctx context.Context, to *fact.CNI) {
	const bin, conf = "the CNI directory of plugins", "the CNI directory of configurations"
	r := c.machineReader()
	if c.Sample >= 0 { // only for slow rules: this reads and runs each plugin
		take(ctx, c, &to.Binaries, cmp.Or(c.BinDir, bin), localTime, r.Binaries)
	}
	take(ctx, c, &to.Primary, cmp.Or(c.ConfDir, conf), localTime, r.Primary)
	take(ctx, c, &to.Multus, cmp.Or(c.BinDir, bin), localTime, r.Multus)
}

// ofLedger reads the facts about the ledger.
func (c *collector) ofLedger(ctx context.Context, to *fact.Ledger) {
	take(ctx, c, &to.Attachments, c.StateDir+"/attachments", localTime, func(ctx context.Context) ([]fact.Attachment, error) {
		exists, err := c.records.HasLedger()
		if err != nil || !exists {
			return []fact.Attachment{}, err
		}
		return records.Settled(ctx, func() ([]fact.Attachment, error) { return c.records.Attachments(c.held) })
	})
	take(ctx, c, &to.Unreadable, c.StateDir+"/attachments", localTime, func(context.Context) ([]string, error) {
		return c.records.InLedger(func(l *ledger.Ledger) ([]string, error) {
			return records.Unreadable(l), nil
		})
	})
	take(ctx, c, &to.Changed, c.StateDir+"/returned", localTime, func(context.Context) ([]string, error) {
		return c.records.InLedger(func(l *ledger.Ledger) ([]string, error) {
			notes, errs := l.Returned()
			found := []string{}
			for _, n := range notes {
				found = append(found, fmt.Sprintf("%s: %v (%s)", n.NIC, n.Changed, n.File))
			}
			return found, errors.Join(errs...)
		})
	})
}

// ofNICs reads the facts about NICs and GPUs. It returns a function that completes the facts. The
// caller must call this function after all sources have ended.
func (c *collector) ofNICs(ctx context.Context, f *fact.Facts) func() {
	r := &devices.Reader{Reader: c.procs, Records: c.records, Held: c.held, Sample: c.Sample}
	take(ctx, c, &f.NICs.GPUs, filepath.Join(c.Sys, "bus/pci/devices"), localTime, func(context.Context) ([]fact.GPU, error) { return c.procs.GPUs() })
	var all fact.Fact[devices.Inventory]
	take(ctx, c, &all, "the inventory of NICs", localTime+max(c.Sample, 0), r.ReadInventory)
	var tables *fact.Fact[devices.FunctionTables]
	if c.Functions {
		tables = &fact.Fact[devices.FunctionTables]{}
		take(ctx, c, tables, devices.FunctionSource, localTime, r.ReadFunctions)
	}
	return func() { devices.SetFacts(f, &all, tables) }
}

// ofCluster reads the facts that the API server has about the node, its pods and the networks.
func (c *collector) ofCluster(ctx context.Context, f *fact.Facts) {
	c.podsByAPI = sync.OnceValues(func() (map[string]objects.Pod, error) { return c.objects.Pods(ctx) })
	node := sync.OnceValues(func() (*objects.Node, error) { return c.objects.Node(ctx) })
	source := c.objects.Source("nodes " + c.Node)
	counts := func(get func(*objects.Node) map[string]string) func(context.Context) (map[string]int64, error) {
		return func(context.Context) (map[string]int64, error) {
			n, err := node()
			if err != nil {
				return nil, err
			}
			return objects.DevicesOf(get(n)), nil
		}
	}
	k := f.Kubelet
	take(ctx, c, &k.Allocatable, source, objects.AnswerTime, counts(func(n *objects.Node) map[string]string { return n.Status.Allocatable }))
	take(ctx, c, &k.Capacity, source, objects.AnswerTime, counts(func(n *objects.Node) map[string]string { return n.Status.Capacity }))
	take(ctx, c, &k.Labels, source, objects.AnswerTime, func(context.Context) (map[string]string, error) {
		n, err := node()
		if err != nil {
			return nil, err
		}
		return n.NFDLabels(), nil
	})
	take(ctx, c, &f.Configs.Files, nodefile.Path(), localTime, machine.NodeFiles)
	if c.alone() {
		return // without a cluster there are no networks
	}
	take(ctx, c, &f.Configs.NADs, c.objects.Source("network-attachment-definitions"), objects.AnswerTime, c.objects.NADs)
	take(ctx, c, &f.Configs.Networks, c.objects.Source("nodes, servicecidrs"), objects.AnswerTime, c.objects.Networks)
	take(ctx, c, &f.Configs.Requests, c.objects.Source("pods"), objects.AnswerTime, func(ctx context.Context) (map[string][]string, error) {
		pods, err := c.objects.PodsWhere(ctx, c.objects.OnThisNode()+","+objects.NotEnded)
		return objects.Requests(pods), err
	})
}

// alone reports whether the machine belongs to no cluster.
func (c *collector) alone() bool { return c.Client == nil && !c.isNode() }
