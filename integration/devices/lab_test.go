package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
)

// lab is the cluster of all tests: one node, without Multus and without NICs.
type lab struct {
	*cluster.Cluster
	node *cluster.Node
}

var shared struct {
	sync.Once
	lab *lab
	dir string
	err error
}

// theLab returns the cluster, which the first test starts.
func theLab(t *testing.T) *lab {
	t.Helper()
	need.Cluster(t)
	shared.Do(func() {
		began := time.Now()
		if shared.dir, shared.err = scratch.MkdirTemp("devices"); shared.err != nil {
			return
		}
		var c *cluster.Cluster
		// The kubelet tells the API server of changed devices when it next sends its
		// node's status, by default after up to 10 s.
		c, shared.err = cluster.New(context.Background(), shared.dir, cluster.Options{
			Nodes: 1, Rails: []string{}, KubeletConfig: "nodeStatusUpdateFrequency: " + statusPeriod.String(),
		})
		if shared.err == nil {
			shared.lab = &lab{Cluster: c, node: c.Node(0)}
			shared.err = shared.lab.makeDevices()
			t.Logf("the cluster is up after %v", time.Since(began).Round(time.Millisecond))
		}
	})
	need.NoError(t, shared.err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(shared.lab.Report())
		}
		// Its pods are deleted by now.
		await(t, "the end of all pods", func() error {
			var list struct {
				Items []struct{ Metadata struct{ Name string } }
			}
			err := shared.lab.get(pods, &list)
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d are left: %v", len(list.Items), list.Items)
			}
			return err
		})
	})
	return shared.lab
}

// devices makes the NICs' char devices on the node, for containers that run. They are null
// devices. /dev is the machine's: it stays as it is below an overlay of the node's.
const devices = `old=/run/devices/old
mkdir -p $old /run/devices/upper /run/devices/work
mount --rbind /dev $old
mount -t overlay -o lowerdir=/dev,upperdir=/run/devices/upper,workdir=/run/devices/work overlay /dev
for dir in pts shm mqueue; do test ! -d /dev/$dir || mount --rbind $old/$dir /dev/$dir; done
mkdir -p /dev/infiniband
for name in "$@"; do mknod -m 666 $name c 1 3; done`

func (l *lab) makeDevices() error {
	args := []string{"sh", "-ec", devices, "sh", "/dev/infiniband/rdma_cm"}
	for i := range nicplugin.NICs {
		args = append(args, nicplugin.CharDevice(i))
	}
	_, err := l.node.Exec(context.Background(), args...)
	return err
}

// endLab ends the cluster, if there is one.
func endLab() (err error) {
	if shared.lab != nil {
		err = shared.lab.Close()
	}
	return errors.Join(err, scratch.Remove(shared.dir))
}

const (
	statusPeriod = time.Second
	patience     = 90 * time.Second // bounds each wait
	// pause is between the tries of a wait. The kubelet answers 100 questions about pods'
	// resources in a second, also those of the device plugin, and refuses others.
	pause = 40 * time.Millisecond
	pods  = "/api/v1/namespaces/default/pods"
)

func (l *lab) kubeletDir() string { return l.node.Path("/var/lib/kubelet") }

// start makes a device plugin for the node, and starts it.
func (l *lab) start(t testing.TB, file, text string) *nicplugin.Plugin {
	t.Helper()
	p := nicplugin.New(t, l.kubeletDir(), l.node.Path(""), file, text)
	p.Start()
	return p
}

// await waits until done returns nil, and returns how long that took.
func await(t testing.TB, what string, done func() error) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		err := done()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > patience {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(pause)
	}
}

func (l *lab) get(path string, into any) error {
	code, answer, err := l.Admin().Get(context.Background(), path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("GET %s: %d: %s", path, code, answer)
	}
	if err == nil {
		err = json.Unmarshal(answer, into)
	}
	return err
}

// nodeObject is the part of a Node that the tests read.
type nodeObject struct {
	Status struct {
		Allocatable map[string]string
		Conditions  []struct{ LastHeartbeatTime string }
	}
}

// allocatable returns the number of devices of a resource that the scheduler counts on,
// -1 if the node has no such resource.
func (n *nodeObject) allocatable(resource string) int {
	count, err := strconv.Atoi(n.Status.Allocatable[resource])
	if err != nil {
		return -1
	}
	return count
}

// awaitAllocatable waits until the node offers this number of devices.
func (l *lab) awaitAllocatable(t testing.TB, resource string, count int) time.Duration {
	t.Helper()
	return await(t, fmt.Sprintf("%s: %d", resource, count), func() error {
		var n nodeObject
		err := l.get("/api/v1/nodes/"+l.node.Name, &n)
		if err == nil && n.allocatable(resource) != count {
			err = fmt.Errorf("allocatable is %d", n.allocatable(resource))
		}
		return err
	})
}

// awaitReports waits until the kubelet has reported the node's status so many times more.
func (l *lab) awaitReports(t testing.TB, count int) {
	t.Helper()
	last := ""
	await(t, "the node's status", func() error {
		var n nodeObject
		if err := l.get("/api/v1/nodes/"+l.node.Name, &n); err != nil {
			return err
		}
		if now := n.Status.Conditions[0].LastHeartbeatTime; now != last {
			last = now
			count--
		}
		if count >= 0 { // the first of them is from before
			return fmt.Errorf("%d reports are missing", count+1)
		}
		return nil
	})
}

// sample is a state of the Node object.
type sample struct {
	at    time.Time
	count int
}

// watchAllocatable returns a function that ends the watch, and returns each number of
// devices of the resource that the API server had for the node meanwhile.
func (l *lab) watchAllocatable(t testing.TB, resource string) (end func() []sample) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var samples []sample
	var watchErr error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watchErr = l.Admin().Watch(ctx, "/api/v1/nodes?fieldSelector=metadata.name="+l.node.Name, func(_ string, object json.RawMessage) bool {
			var n nodeObject
			if json.Unmarshal(object, &n) == nil {
				samples = append(samples, sample{time.Now(), n.allocatable(resource)})
			}
			return true
		})
	}()
	return func() []sample {
		early := ctx.Err() == nil && isClosed(ended)
		cancel()
		<-ended
		if early {
			t.Errorf("the watch of the node ended: %v", watchErr)
		}
		return samples
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pod is a pod of one container that asks for devices.
type pod struct {
	name      string
	resources map[string]int // number of devices, by resource
	// admitted: the kubelet admits the pod, which does not run. It waits for a volume
	// that does not exist, and so ends at once.
	admitted bool
}

func (p pod) object() map[string]any {
	limits := map[string]any{}
	for resource, count := range p.resources {
		limits[resource] = count
	}
	container := map[string]any{
		"name": "c", "image": cluster.ToolsImage, "resources": map[string]any{"limits": limits},
		"command": []string{"/bin/sh", "-c", "trap exit TERM; sleep 2147483647 & wait"},
	}
	spec := map[string]any{"containers": []any{container}, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false}
	if p.admitted {
		spec["volumes"] = []any{map[string]any{"name": "v", "configMap": map[string]any{"name": "there-is-none"}}}
		container["volumeMounts"] = []any{map[string]any{"name": "v", "mountPath": "/v"}}
	}
	return map[string]any{"metadata": map[string]any{"name": p.name}, "spec": spec}
}

// create makes a pod, which is deleted after the test at the latest.
func (l *lab) create(t testing.TB, p pod) {
	t.Helper()
	code, answer, err := l.Admin().Create(t.Context(), pods, p.object())
	if err != nil || code != http.StatusCreated {
		t.Fatalf("pod %s: %d, %v: %s", p.name, code, err, answer)
	}
	t.Cleanup(func() {
		l.deleteOne(t, p.name, p.admitted)
	})
}

// delete deletes a pod as users do, and waits until it is gone.
func (l *lab) delete(t testing.TB, name string) {
	t.Helper()
	l.deleteOne(t, name, false)
	await(t, "the end of "+name, func() error {
		code, answer, err := l.Admin().Get(context.Background(), pods+"/"+name)
		if err == nil && code != http.StatusNotFound {
			err = fmt.Errorf("%d: %.300s", code, answer)
		}
		return err
	})
}

// deleteOne deletes a pod, if it exists. A pod that has no container may be deleted at
// once: the kubelet then frees its devices as soon as it hears of it.
func (l *lab) deleteOne(t testing.TB, name string, atOnce bool) {
	t.Helper()
	query := ""
	if atOnce {
		query = "?gracePeriodSeconds=0"
	}
	code, answer, err := l.Admin().Delete(context.Background(), pods+"/"+name+query)
	if err != nil || code != http.StatusOK && code != http.StatusNotFound {
		t.Fatalf("deleting %s: %d, %v: %s", name, code, err, answer)
	}
}

// podObject is the part of a Pod that the tests read.
type podObject struct {
	Status struct {
		Phase, Reason, Message string
		Conditions             []struct{ Type, Status, Reason, Message string }
		ContainerStatuses      []struct {
			Ready                    bool
			State                    json.RawMessage
			AllocatedResourcesStatus []struct {
				Name      string
				Resources []struct{ ResourceID, Health, Message string }
			}
		}
	}
}

func (l *lab) pod(name string) (p podObject, err error) {
	return p, l.get(pods+"/"+name, &p)
}

// running waits until the pod runs, and returns how long that took.
func (l *lab) running(t testing.TB, name string) time.Duration {
	t.Helper()
	return await(t, name+" runs", func() error {
		p, err := l.pod(name)
		if err == nil && p.Status.Phase == "Failed" {
			t.Fatalf("%s: %s: %s", name, p.Status.Reason, p.Status.Message)
		}
		if err == nil && (p.Status.Phase != "Running" || !p.Status.ContainerStatuses[0].Ready) {
			text, _ := json.Marshal(p.Status)
			err = errors.New(string(text))
		}
		return err
	})
}

// health returns what the pod's status says of a device.
func (p *podObject) health(id string) string {
	for _, c := range p.Status.ContainerStatuses {
		for _, r := range c.AllocatedResourcesStatus {
			for _, device := range r.Resources {
				if device.ResourceID == id {
					return device.Health
				}
			}
		}
	}
	return ""
}

// kubelet returns a client of the kubelet's PodResources API, and closes it after the
// test.
func (l *lab) kubelet(t testing.TB) podresources.PodResourcesListerClient {
	t.Helper()
	// Tests and the device plugin share the 100 calls a second that the kubelet permits. A
	// refused call would fail a test that asks once.
	const retry = `{"methodConfig": [{"name": [{"service": "v1.PodResourcesLister"}], "retryPolicy": {"maxAttempts": 5,
		"initialBackoff": "0.02s", "maxBackoff": "0.2s", "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`
	connection, err := grpc.NewClient("unix:"+l.kubeletDir()+"/pod-resources/kubelet.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(retry))
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() }) // nothing is pending
	return podresources.NewPodResourcesListerClient(connection)
}

// offered returns the number of healthy devices of a resource that the kubelet knows, in
// use or not.
func offered(ctx context.Context, kubelet podresources.PodResourcesListerClient, resource string) (count int, err error) {
	answer, err := kubelet.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return 0, err
	}
	for _, d := range answer.Devices {
		if d.ResourceName == resource {
			count += len(d.DeviceIds)
		}
	}
	return count, nil
}

// awaitOffered waits until the kubelet has this number of healthy devices, and returns
// how long that took.
func awaitOffered(t testing.TB, kubelet podresources.PodResourcesListerClient, resource string, count int) time.Duration {
	t.Helper()
	return await(t, fmt.Sprintf("the kubelet has %d of %s", count, resource), func() error {
		n, err := offered(t.Context(), kubelet, resource)
		if err == nil && n != count {
			err = fmt.Errorf("it has %d", n)
		}
		return err
	})
}

// held returns the IDs of the devices that a pod has, by resource and by the kubelet's
// word.
func held(ctx context.Context, kubelet podresources.PodResourcesListerClient, pod string) (ids map[string][]string, err error) {
	answer, err := kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	ids = map[string][]string{}
	for _, p := range answer.PodResources {
		if p.Name != pod {
			continue
		}
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				ids[d.ResourceName] = append(ids[d.ResourceName], d.DeviceIds...)
			}
		}
	}
	for _, list := range ids {
		slices.Sort(list)
	}
	return ids, nil
}

// awaitHeld waits until the pod has these numbers of devices, and returns their IDs.
func awaitHeld(t testing.TB, kubelet podresources.PodResourcesListerClient, pod string, wanted map[string]int) (ids map[string][]string) {
	t.Helper()
	await(t, fmt.Sprintf("%s has %v", pod, wanted), func() error {
		var err error
		if ids, err = held(t.Context(), kubelet, pod); err != nil {
			return err
		}
		counts := map[string]int{}
		for resource, list := range ids {
			counts[resource] = len(list)
		}
		if !maps.Equal(counts, wanted) {
			return fmt.Errorf("it has %v", ids)
		}
		return nil
	})
	return ids
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
