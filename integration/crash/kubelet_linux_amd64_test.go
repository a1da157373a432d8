package crash

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/rail-cni/rail-cni/integration/devices/fakekubelet"
	"github.com/rail-cni/rail-cni/integration/scratch"
)

// kubelet uses a device plugin that is killed: it accepts its registration, allocates two of
// its devices to a container, ends the container, and then asks the device plugin to end.
// With the real kubelet of integration/devices each point would take seconds.
type kubelet struct {
	*fakekubelet.Kubelet

	dir  string     // its root directory
	once chan error // gets the outcome of each registration's scenario

	scenarios sync.WaitGroup

	mu    sync.Mutex
	quiet bool // it only watches
}

const deviceResource, deviceCount = "rdma/killed", 8

// newKubelet starts a kubelet that ends with the test.
func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	dir := scratch.Dir(t) // t.TempDir is too long for a socket's path
	k := &kubelet{dir: dir, once: make(chan error, 100)}
	k.Kubelet = fakekubelet.Start(t, dir, func(r fakekubelet.Registration) {
		k.scenarios.Go(func() { k.once <- k.scenario(r) })
	})
	return k
}

// give makes the devices those of the container.
func (k *kubelet) give(ids []string) {
	k.Give("p", map[string][]string{deviceResource: ids})
}

// watchOnly makes it watch device plugins and not use them, from now on.
func (k *kubelet) watchOnly() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.quiet = true
}

// scenario uses the device plugin once, and asks it to end.
func (k *kubelet) scenario(r fakekubelet.Registration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := r.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	plugin := deviceplugin.NewDevicePluginClient(conn)
	if _, err := plugin.GetDevicePluginOptions(ctx, &deviceplugin.Empty{}); err != nil {
		return err
	}
	stream, err := plugin.ListAndWatch(ctx, &deviceplugin.Empty{})
	if err != nil {
		return err
	}
	list, err := stream.Recv()
	if err != nil {
		return err
	}
	var healthy []string
	for _, d := range list.Devices {
		if d.Health == deviceplugin.Healthy {
			healthy = append(healthy, d.ID)
		}
	}
	slices.Sort(healthy)
	if len(healthy) != deviceCount {
		return fmt.Errorf("the device plugin has %d healthy devices, not %d: %v", len(healthy), deviceCount, list.Devices)
	}
	k.mu.Lock()
	quiet := k.quiet
	k.mu.Unlock()
	if quiet {
		_, err := stream.Recv() // until the device plugin is killed
		return err
	}
	ids := healthy[2:4]
	answer, err := plugin.Allocate(ctx, &deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err == nil {
		if given := answer.ContainerResponses[0]; given.Envs["PCIDEVICE_RDMA_KILLED"] != ids[0]+","+ids[1] || len(given.CdiDevices) != len(ids) {
			err = fmt.Errorf("allocated: %v", given)
		}
	}
	k.give(ids)
	time.Sleep(300 * time.Millisecond) // several looks of the device plugin
	k.give(nil)
	time.Sleep(300 * time.Millisecond)
	if killErr := syscall.Kill(r.PID, syscall.SIGTERM); err == nil {
		err = killErr
	}
	return err
}
