package kubeletdir

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// listTime bounds a call of PodResources.
const listTime = 2 * time.Second

// retryLists is a service config of gRPC that repeats a call of PodResources if the kubelet refuses
// it. The kubelet permits 100 calls a second, and 10 at once, for all clients together (DefaultQPS
// and DefaultBurstTokens in pkg/kubelet/apis/podresources). So other clients can cause a refusal.
// All pauses together take 150 ms.
const retryLists = `{"methodConfig": [{
	"name": [{"service": "v1.PodResourcesLister"}],
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.08s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]
	}
}]}`

// maxList bounds an answer of PodResources, in bytes. The kubelet's own client has the same bound
// (DefaultPodResourcesMaxSize in pkg/kubelet/apis/podresources). The 4 MiB of gRPC are too few for
// a node with many pods and devices.
const maxList = 16 << 20

// Container has the devices that the kubelet has given to a container.
type Container struct {
	Namespace, Pod, Name string
	Devices              map[string][]string // IDs by resource, sorted
}

// PodResources asks the kubelet what it has given to containers. Its methods may be called concurrently.
type PodResources struct {
	dir  string
	mu   sync.Mutex
	conn *grpc.ClientConn
}

// NewPodResources returns a PodResources of the kubelet with this root directory, which is not connected.
func NewPodResources(kubeletDir string) *PodResources { return &PodResources{dir: kubeletDir} }

// Containers returns what the kubelet has given to containers.
func (p *PodResources) Containers(ctx context.Context) ([]Container, error) {
	conn, err := p.connected()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	list, err := containersOf(ctx, conn)
	if err != nil {
		p.Disconnect() // a connection that failed is tried again only after a pause
	}
	return list, err
}

// connected returns the connection to PodResources. If it is not connected, it begins to
// connect, because the kubelet waits for calls that need the connection.
func (p *PodResources) connected() (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		var err error
		if p.conn, err = Connect(filepath.Join(p.dir, ResourcesSocket), grpc.WithDefaultServiceConfig(retryLists), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxList))); err != nil {
			return nil, err
		}
	}
	p.conn.Connect()
	return p.conn, nil
}

// Connect begins to connect.
func (p *PodResources) Connect() error {
	_, err := p.connected()
	return err
}

// Disconnect ends the connection. The next call of Containers or Connect connects again.
func (p *PodResources) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// containersOf returns what the kubelet has given to containers (PodResources, List). The result
// has a pod that is being admitted, with the devices that it has got so far. It does not have init
// containers that end.
func containersOf(ctx context.Context, conn *grpc.ClientConn) ([]Container, error) {
	answer, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("the kubelet's PodResources: %w", err)
	}
	var list []Container
	for _, pod := range answer.GetPodResources() {
		for _, c := range pod.GetContainers() {
			found := Container{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Name: c.GetName(), Devices: map[string][]string{}}
			for _, d := range c.GetDevices() {
				name := d.GetResourceName()
				found.Devices[name] = append(found.Devices[name], d.GetDeviceIds()...)
			}
			for _, ids := range found.Devices {
				slices.Sort(ids)
			}
			list = append(list, found)
		}
	}
	return list, nil
}
