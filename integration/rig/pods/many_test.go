//go:build machines

package pods

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// podsVariable sets the number of pods of [node.manyPods]. A round of eight takes about
// four minutes.
const podsVariable = "RIG_PODS"

// podCount returns the number of pods of [node.manyPods]: the value of the variable, or
// enough for two rounds.
func podCount() (int, error) {
	text := os.Getenv(podsVariable)
	if text == "" {
		return 10, nil
	}
	count, err := strconv.Atoi(text)
	if err == nil && count < 1 {
		err = fmt.Errorf("%s=%s is no number of pods", podsVariable, text)
	}
	return count, err
}

var podResource = kube.Resource{Version: "v1", Plural: "pods", Namespace: "default"}

// manyPods makes pods of one rail each, as many at a time as there are rails, and compares
// what everybody says of the NIC of each. rail-agent must keep no file and no descriptor of
// them.
func (n *node) manyPods() {
	n.t.Helper()
	count, err := podCount()
	n.must(err)
	nics := n.inSlots("0x0200")
	for rail := range nics {
		n.railNetwork(rail)
	}
	before, devices := n.State(), n.devices()
	var ready []time.Duration
	var rounds []process.Usage // after each, without pods
	for made := 0; made < count; made += len(nics) {
		var rails []int
		for rail := range min(len(nics), count-made) {
			rails = append(rails, rail)
		}
		ready = append(ready, n.podsOfRails(fmt.Sprint("many-", made/len(nics)), rails)...)
		n.asBefore(before, devices)
		usage, err := n.agent.Usage()
		n.must(err)
		rounds = append(rounds, usage)
		n.t.Logf("%d pods: rail-agent has %d KiB and %d descriptors, and has used %v of CPU time", len(ready), usage.RSS, usage.Descriptors, usage.CPU)
	}
	slices.Sort(ready)
	n.t.Logf("%d pods, %d at a time, from their creation to Running: median %d ms, longest %d ms",
		len(ready), len(nics), ready[len(ready)/2].Milliseconds(), ready[len(ready)-1].Milliseconds())
	first, last := rounds[0], rounds[len(rounds)-1]
	if more := len(rounds) - 1; more > 0 {
		n.t.Logf("rail-agent: median CPU time of a round %d ms; RSS %d KiB after the first round, %d KiB after the last; descriptors %d, %d",
			medianCPU(rounds).Milliseconds(), first.RSS, last.RSS, first.Descriptors, last.Descriptors)
	}
	n.nothingLeft(first)
}

// medianCPU returns the median of the CPU times between the samples.
func medianCPU(samples []process.Usage) time.Duration {
	var each []time.Duration
	for i := range samples[1:] {
		each = append(each, samples[i+1].CPU-samples[i].CPU)
	}
	slices.Sort(each)
	return each[len(each)/2]
}

// nothingLeft waits until rail-agent has no more descriptors than it had, and until there
// is no device information file. It keeps each for a minute, because the kubelet shows an
// allocation late.
func (n *node) nothingLeft(had process.Usage) {
	n.t.Helper()
	n.await("no file and no descriptor is left", func() error {
		for _, dir := range []string{devInfo, filepath.Join(filepath.Dir(devInfo), "cni")} {
			files, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) || len(files) > 0 {
				return fmt.Errorf("%s has %v (%w)", dir, files, err)
			}
		}
		now, err := n.agent.Usage()
		if err == nil && now.Descriptors > had.Descriptors {
			err = fmt.Errorf("rail-agent has %d descriptors, and had %d", now.Descriptors, had.Descriptors)
		}
		return err
	})
}

// podsOfRails makes a pod of each rail, compares them and deletes them. The pods' names begin
// with prefix. It returns how long each took from its creation to Running.
func (n *node) podsOfRails(prefix string, rails []int) (ready []time.Duration) {
	n.t.Helper()
	nics := n.inSlots("0x0200")
	names := make([]string, len(rails))
	created := make([]time.Time, len(rails))
	for i, rail := range rails {
		pod := podOf(fmt.Sprint(prefix, "-", rail), []string{railName(rail)}, map[string]any{railResource(rail): "1"})
		names[i], created[i] = here(pod), time.Now()
		_, err := n.api.Create(n.t.Context(), podResource, pod)
		n.must(err)
	}
	pods, since := n.running(names)
	ready = make([]time.Duration, len(rails))
	for i := range ready {
		ready[i] = since[i].Sub(created[i])
	}
	processes, lent := n.processes(), n.lentTo()
	for i, name := range names {
		rail, pod := rails[i], pods[name]
		nic := nics[rail : rail+1]
		inPod := inContainer(processes[pod.container()], rail)
		for who, got := range map[string]string{
			"the variable in the container": inPod.variable, "the device information file": strings.Join(n.deviceInfo(rails[i:i+1], nic), ","),
			"network-status": pod.networkStatus(), "the ledger": lent[name], "the NIC in the pod": inPod.nic,
		} {
			if got != nic[0] {
				n.t.Errorf("%s: %s: %q, not %s", name, who, got, nic[0])
			}
		}
		if inPod.err != nil {
			n.t.Errorf("%s: %v", name, inPod.err)
		}
	}
	n.end(names)
	return ready
}

// running waits until the pods run. It returns them, and since when each was seen to.
func (n *node) running(names []string) (pods map[string]runningPod, since []time.Time) {
	n.t.Helper()
	since = make([]time.Time, len(names))
	n.awaitLong("the pods", len(names), func() error {
		pods = n.pods()
		var waiting []string
		for i, name := range names {
			if pod := pods[name]; !pod.ready() {
				waiting = append(waiting, fmt.Sprintf("%s %+v", name, pod.Status))
			} else if since[i].IsZero() {
				since[i] = time.Now()
			}
		}
		if len(waiting) > 0 {
			return errors.New(strings.Join(waiting, "\n"))
		}
		return nil
	})
	return pods, since
}

// end deletes the pods, and waits until there is none on the node.
func (n *node) end(names []string) {
	n.t.Helper()
	for _, name := range names {
		n.must(n.api.Delete(n.t.Context(), podResource, name, kube.Preconditions{}))
	}
	n.awaitLong("the pods' end", len(names), func() error {
		if left := n.pods(); len(left) > 0 {
			return fmt.Errorf("%d are left: %+v", len(left), left)
		}
		return nil
	})
}

// awaitLong waits for something that each of count pods takes its time for. It looks
// rarely: each look takes time from the pods.
func (n *node) awaitLong(what string, count int, done func() error) {
	n.t.Helper()
	for deadline := time.Now().Add(time.Duration(count) * patience / 2); ; time.Sleep(time.Second) {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: %v\n%s", what, err, n.logs())
		}
	}
}

// runningPod is the part of a Pod that [node.manyPods] reads.
type runningPod struct {
	Metadata struct {
		Name        string
		Annotations map[string]string
	}
	Status struct {
		Phase, Reason, Message string
		ContainerStatuses      []struct {
			ContainerID string
			Ready       bool
		}
	}
}

func (p runningPod) ready() bool {
	return p.Status.Phase == "Running" && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
}

func (p runningPod) container() string {
	return strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
}

// networkStatus returns the PCI addresses in the annotation.
func (p runningPod) networkStatus() string {
	var entries []nadv1.NetworkStatus
	if err := json.Unmarshal([]byte(p.Metadata.Annotations[nadv1.NetworkStatusAnnot]), &entries); err != nil {
		return err.Error()
	}
	var addresses []string
	for _, e := range entries {
		if e.DeviceInfo != nil && e.DeviceInfo.Pci != nil {
			addresses = append(addresses, e.DeviceInfo.Pci.PciAddress)
		}
	}
	return strings.Join(addresses, ",")
}

// pods returns the pods by their names. It ends the test if one has failed.
func (n *node) pods() map[string]runningPod {
	n.t.Helper()
	found := map[string]runningPod{}
	_, err := n.api.List(n.t.Context(), podResource, kube.ListOptions{}, func(item []byte) error {
		var pod runningPod
		err := json.Unmarshal(item, &pod)
		found[pod.Metadata.Name] = pod
		return err
	})
	n.must(err)
	for name, pod := range found {
		if pod.Status.Phase == "Failed" {
			n.t.Fatalf("%s failed: %+v\n%s", name, pod.Status, n.logs())
		}
	}
	return found
}

// processes returns the first process of each container.
func (n *node) processes() map[string]int {
	n.t.Helper()
	out, err := exec.Command(programs+"/ctr", "--namespace", "k8s.io", "tasks", "ls").Output()
	n.must(err)
	found := map[string]int{}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] != "TASK" {
			found[fields[0]], err = strconv.Atoi(fields[1])
			n.must(err)
		}
	}
	return found
}

// inside is what a container has of a rail.
type inside struct {
	variable string // the value of PCIDEVICE_…
	nic      string // the PCI address of net1
	err      error
}

// inContainer looks into the container with this first process.
func inContainer(pid, rail int) (found inside) {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return inside{err: err}
	}
	for variable := range strings.SplitSeq(string(env), "\x00") {
		if value, is := strings.CutPrefix(variable, fmt.Sprintf("PCIDEVICE_RDMA_ROCE_RAIL_%d=", rail)); is {
			found.variable = value
		}
	}
	netns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		found.err = err
		return found
	}
	defer netns.Close()
	l, err := link.ByName(netns, "net1")
	if err != nil {
		found.err = err
		return found
	}
	found.nic = l.ParentDev
	return found
}

// lentTo returns the PCI addresses of lent NICs by the names of the pods that have them.
func (n *node) lentTo() map[string]string {
	n.t.Helper()
	l, err := ledger.Open("/run/rail-cni")
	n.must(err)
	defer l.Close()
	records, errs := l.List()
	n.must(errors.Join(errs...))
	slices.SortFunc(records, func(a, b *ledger.Record) int { return cmp.Compare(a.IfName, b.IfName) })
	lent := map[string]string{}
	for _, r := range records {
		if r.Loan != nil && r.Pod != nil {
			lent[r.Pod.Name] += r.Loan.PCI
		}
	}
	return lent
}
