package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/rail-cni/rail-cni/integration/devices/fakekubelet"
	"github.com/rail-cni/rail-cni/integration/nri/fakeruntime"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// The NICs that no attacker gets: an innocent pod has the one all the time, and nobody has
// the other.
const heldNIC, spareNIC = 0, 1

// offered is the resource of the NICs that pods get, all but the masters of macvlans.
const offered = "rdma/attacked"

// answerTime bounds an answer to the kubelet and to the container runtime. The agent itself
// takes at most 3 s, for a NIC that is about to return.
const answerTime = 30 * time.Second

// beside are the programs that use the agent, and what they know of it.
type beside struct {
	dir     string // of their files
	kubelet *fakekubelet.Kubelet
	runtime *adaptation.Adaptation
	serving atomic.Int64 // the number of the agent that serves the runtime, 0 for none

	mu         sync.Mutex
	registered *fakekubelet.Registration // nil while the kubelet watches no device plugin
	devices    map[string][]string       // of pods
}

// startBeside starts a kubelet and a container runtime for the node.
func (l *lab) startBeside() {
	dir := scratch.Dir(l.t) // t.TempDir is too long for the path of a socket
	var err error
	l.beside = &beside{dir: dir, devices: map[string][]string{}}
	l.kubelet = fakekubelet.Start(l.t, filepath.Join(dir, "kubelet"), func(r fakekubelet.Registration) { go l.watchDevices(r) })
	if l.runtime, err = fakeruntime.Start(filepath.Join(dir, "nri.sock"), dir, l.long(answerTime)); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(l.runtime.Stop)
}

// nodeFile returns the node file: rails and a pool of the NICs that are lent. A veth has no
// PCI function, so it is no rail, and the pool is empty.
func (l *lab) nodeFile() string {
	var rails, names []string
	for nic := range modelNICs - masters {
		names = append(names, l.name(nic))
		if len(l.pci) > 0 {
			rails = append(rails, fmt.Sprintf("{id: %d, pci: %q}", nic, l.pci[nic]))
		}
	}
	return fmt.Sprintf("paths: [%q]\nrails: [%s]\nresources: {pools: [{name: %s, mode: exclusive, select: {ifNames: [%s]}}]}\n",
		l.state, strings.Join(rails, ", "), offered, strings.Join(names, ", "))
}

// socket returns the path of the agent's socket.
func (l *lab) socket() string { return filepath.Join(l.dir, "agent.sock") }

// agentArgs are the flags of an agent with all its parts. Its doctor runs as often as it can.
func (l *lab) agentArgs() []string {
	return []string{
		"--socket", l.socket(), "--doctor-interval", "1s", "--nri-socket", filepath.Join(l.dir, "nri.sock"), "--kubelet-dir", filepath.Join(l.dir, "kubelet"),
		"--devinfo-dir", filepath.Join(l.dir, "devinfo"), "--cdi-dir", "off",
	}
}

// watchDevices is what the kubelet does with a device plugin until its end. The NICs that no
// attacker gets must always be offered, and healthy.
func (l *lab) watchDevices(r fakekubelet.Registration) {
	conn, err := r.Connect()
	if err != nil {
		return // it was killed
	}
	defer conn.Close()
	stream, err := deviceplugin.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &deviceplugin.Empty{})
	if err != nil {
		return
	}
	for {
		list, err := stream.Recv()
		l.beside.mu.Lock()
		switch {
		case err == nil:
			l.registered = &r
		case l.registered == &r:
			l.registered = nil
		}
		l.beside.mu.Unlock()
		if err != nil {
			return
		}
		l.count("lists of devices", 1)
		if wrong := l.wronglyOffered(list.Devices); wrong != "" {
			l.violation(nil, "the device plugin offers %v: %s", list.Devices, wrong)
		}
	}
}

// wronglyOffered returns what is wrong with a list of devices, "" if nothing is. A pod cannot
// add a device, whatever it names its links.
func (l *lab) wronglyOffered(devices []*deviceplugin.Device) string {
	for _, d := range devices {
		if nic := slices.Index(l.pci, d.ID); nic < 0 || nic >= modelNICs-masters {
			return d.ID + " is no NIC that pods get"
		}
	}
	for nic, id := range l.pci {
		is := func(d *deviceplugin.Device) bool { return d.ID == id && d.Health == deviceplugin.Healthy }
		if nic <= spareNIC && !slices.ContainsFunc(devices, is) {
			return l.name(nic) + ", which no attacker gets, is not there or ill"
		}
	}
	return ""
}

// allocate allocates a NIC as the kubelet does for a container. ok: a device plugin is there,
// and has NICs.
func (l *lab) allocate(nic int) (ok bool, err error) {
	l.beside.mu.Lock()
	r := l.registered
	l.beside.mu.Unlock()
	if r == nil || len(l.pci) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.long(answerTime))
	defer cancel()
	conn, err := r.Connect()
	if err != nil {
		return true, err
	}
	defer conn.Close()
	id := l.pci[nic]
	answer, err := deviceplugin.NewDevicePluginClient(conn).Allocate(ctx,
		&deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{id}}}})
	if err != nil {
		return true, err
	}
	if got := answer.ContainerResponses[0].Envs["PCIDEVICE_RDMA_ATTACKED"]; got != id {
		return true, fmt.Errorf("the container is told of %q, not %s", got, id)
	}
	return true, nil
}

// admit makes the NIC of an attachment a device of its pod, if it is from the pool. A pod may
// not get it, for example because its link came up just now.
func (l *lab) admit(a *attachment) {
	if a.macvlan || len(l.pci) == 0 {
		return
	}
	if ok, err := l.allocate(a.nic); ok && err == nil {
		l.count("devices allocated", 1)
	} else if ok {
		l.count("allocations that were refused, or not answered because the agent was killed", 1)
	}
	l.beside.mu.Lock()
	defer l.beside.mu.Unlock()
	l.devices[a.ContainerID] = append(l.devices[a.ContainerID], l.pci[a.nic])
	l.kubelet.Give(a.ContainerID, map[string][]string{offered: slices.Clone(l.devices[a.ContainerID])})
}

// dismiss takes the devices of a pod that has ended.
func (l *lab) dismiss(pod string) {
	l.beside.mu.Lock()
	defer l.beside.mu.Unlock()
	delete(l.devices, pod)
	l.kubelet.Forget(pod)
}

// create makes a container in the pod of an attachment, as a runtime does after the ADD. The
// runtime must have an answer in time, also about an attacker. An innocent pod's container must
// be given the pod's files, with the truth, if an agent is there: it requires that.
func (l *lab) create(a *attachment, innocent bool) {
	annotations := map[string]string{railinfo.RequireAnnotation: fmt.Sprint(innocent)}
	for deadline := time.Now().Add(l.long(patience)); ; time.Sleep(50 * time.Millisecond) {
		agent, began := l.serving.Load(), time.Now()
		answer, err := l.runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
			Pod:       &api.PodSandbox{Id: a.ContainerID, Name: a.ContainerID, Namespace: podNamespace, Annotations: annotations},
			Container: &api.Container{Id: "c-" + a.ContainerID, PodSandboxId: a.ContainerID, Name: "c"},
		})
		l.count("containers", 1)
		if took := time.Since(began); took > l.long(answerTime) {
			l.violation(a.history(), "NRI: no answer about %s in %v", a, took)
			return
		}
		if agent == 0 || agent != l.serving.Load() {
			return // a runtime goes on without it
		}
		if err == nil && !innocent {
			return
		}
		if err == nil {
			err = l.told(a, answer.GetAdjust())
		}
		if err == nil {
			if !a.macvlan {
				l.count("containers of innocent pods with their files", 1)
			}
			return
		}
		if !innocent || time.Now().After(deadline) {
			l.violation(a.history(), "NRI: a container of %s: %v", a, err)
			return
		}
	}
}

// told returns an error unless the container gets the pod's files, and these have the
// attachment as the plugin made it. A pod that has only a macvlan without RDMA has no rail, and
// gets none.
func (l *lab) told(a *attachment, given *api.ContainerAdjustment) error {
	if a.macvlan {
		if n := len(given.GetMounts()) + len(given.GetEnv()); n > 0 {
			return fmt.Errorf("it has no rail, and is given %v", given)
		}
		return nil
	}
	at := slices.IndexFunc(given.GetMounts(), func(m *api.Mount) bool { return m.Destination == railinfo.MountPoint })
	if at < 0 {
		return fmt.Errorf("it is given no files: %v", given)
	}
	text, err := os.ReadFile(filepath.Join(given.Mounts[at].Source, "rails.json"))
	if err != nil {
		return err
	}
	var rails railinfo.Rails
	if err := json.Unmarshal(text, &rails); err != nil {
		return err
	}
	for _, r := range rails.Rails {
		if r.IfName != a.IfName {
			continue
		}
		if len(r.Addresses) == 0 || !strings.HasPrefix(r.Addresses[0], a.addr+"/") || r.MAC != a.mac {
			return fmt.Errorf("it is told of %v, %s, and has %s, %s", r.Addresses, r.MAC, a.addr, a.mac)
		}
		if l.rdma && !slices.ContainsFunc(given.GetEnv(), func(v *api.KeyValue) bool {
			return v.Key == "NCCL_IB_HCA" && r.RDMA != "" && strings.Contains(v.Value, r.RDMA)
		}) {
			return fmt.Errorf("it is given %v, and has the RDMA device %q", given.GetEnv(), r.RDMA)
		}
		return nil
	}
	return fmt.Errorf("it is told nothing of %s: %s", a.IfName, text)
}
