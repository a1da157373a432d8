package nri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

const (
	nriSocket = cluster.NRISocket
	uverbs    = "/dev/infiniband/uverbs"
	rdmaCM    = "/dev/infiniband/rdma_cm"
	agentLog  = "/run/rail-agent.log" // on the node
	pods      = "/api/v1/namespaces/default/pods"
)

// patience bounds each wait. The long form has pods of 200 containers.
var patience = need.Either(3*time.Minute, 15*time.Minute)

// rails are the node's NICs, and the names of the networks that lend them.
var rails = []string{"ens1", "ens2"}

// lab is a cluster with one node.
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

// theLab returns the cluster with NRI, which the first test starts.
func theLab(t *testing.T) *lab {
	t.Helper()
	need.Cluster(t)
	bin := testnet.Bin(t)
	shared.Do(func() {
		if shared.dir, shared.err = scratch.MkdirTemp("nri"); shared.err != nil {
			return
		}
		shared.lab, shared.err = newLab(shared.dir, bin, true)
	})
	need.NoError(t, shared.err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(shared.lab.Report())
		}
	})
	return shared.lab
}

// newLab starts a cluster in the directory, with the networks of the rails.
func newLab(dir, bin string, speaksNRI bool) (*lab, error) {
	c, err := cluster.New(context.Background(), dir, cluster.Options{
		Nodes: 1, Rails: rails, Hardware: true, Multus: cluster.Thin, Plugins: cluster.OurPlugins(bin)[:1], NRI: speaksNRI,
		KubeletConfig: "registryPullQPS: 0",
	})
	if err != nil {
		return nil, err
	}
	l := &lab{c, c.Node(0)}
	for _, rail := range rails {
		config := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "host-device", "device": %q}`, rail, rail)
		object, err := json.Marshal(map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": map[string]any{"name": rail, "namespace": "default"}, "spec": map[string]any{"config": config},
		})
		if err == nil {
			err = l.Apply(context.Background(), object)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if err := l.makeDevices(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return l, nil
}

// endLab ends the shared cluster, if there is one.
func endLab() (err error) {
	if shared.lab != nil {
		err = shared.lab.Close()
	}
	return errors.Join(err, scratch.Remove(shared.dir))
}

// devices makes char devices that stand in for those of RDMA on the node: devices that a
// container's cgroup does not allow by itself (/dev/fuse, and /dev/loop-control). /dev is the
// machine's: it stays as it is below an overlay of the node's.
const devices = `old=/run/devices/old
mkdir -p $old /run/devices/upper /run/devices/work
mount --rbind /dev $old
mount -t overlay -o lowerdir=/dev,upperdir=/run/devices/upper,workdir=/run/devices/work overlay /dev
for dir in pts shm mqueue; do test ! -d /dev/$dir || mount --rbind $old/$dir /dev/$dir; done
mkdir -p /dev/infiniband
for k in 1 2 3; do mknod -m 666 /dev/infiniband/uverbs$k c 10 229; done
mknod -m 660 /dev/infiniband/rdma_cm c 10 237
chgrp 3000 /dev/infiniband/rdma_cm`

func (l *lab) makeDevices() error {
	_, err := l.node.Exec(context.Background(), "sh", "-ec", devices)
	return err
}

// startAgent starts rail-agent on the node, and waits until it is connected. It ends with
// the test.
func (l *lab) startAgent(t testing.TB) {
	t.Helper()
	must(t, l.node.StartDaemon(t.Context(), "rail-agent", nil, l.agentArgs(t), l.connected))
	t.Cleanup(func() { l.node.KillDaemon("rail-agent") })
}

func (l *lab) agentArgs(t testing.TB) []string {
	t.Helper()
	return []string{"sh", "-c", `exec "$0" --verbose run --kubelet-dir off 2>>` + agentLog, filepath.Join(testnet.Bin(t), "rail-agent")}
}

// startStandIn starts the stand-in on the node. It ends with the test.
func (l *lab) startStandIn(t testing.TB) {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	_ = os.Remove(l.node.Path(agentLog))
	args := []string{"sh", "-c", `exec "$0" 2>>` + agentLog, program}
	must(t, l.node.StartDaemon(t.Context(), "stand-in", []string{standInEnv + "=" + l.node.Name}, args, func(context.Context) error {
		text, err := os.ReadFile(l.node.Path(agentLog))
		if err == nil && !strings.Contains(string(text), "connected to NRI") {
			err = errors.New("it is not connected")
		}
		return err
	}))
	t.Cleanup(func() { l.node.KillDaemon("stand-in") })
}

// metric returns a metric of the agent without labels.
func (l *lab) metric(ctx context.Context, name string) (string, error) {
	socket := l.node.Path("/run/rail-cni/agent.sock")
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/metrics", nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (.*)$`).FindStringSubmatch(string(text))
	if m == nil {
		return "", fmt.Errorf("no metric %s", name)
	}
	return m[1], nil
}

// connected returns an error unless the agent is connected to NRI.
func (l *lab) connected(ctx context.Context) error {
	value, err := l.metric(ctx, "rail_cni_nri_connected")
	if err == nil && value != "1" {
		err = errors.New("the agent is not connected to NRI")
	}
	return err
}

// pod is a pod with one container, as a user writes it. Its container is of user 1000,
// without capabilities.
type pod struct {
	name        string
	networks    string // of Multus
	annotations map[string]string
	env         map[string]string
	root        bool // its container is as the runtime makes it
	inits       int  // containers that end at once, before the container
	limits      map[string]int
}

func (p pod) object() map[string]any {
	annotations := map[string]string{}
	if p.networks != "" {
		annotations[nadv1.NetworkAttachmentAnnot] = p.networks
	}
	for key, value := range p.annotations {
		annotations[key] = value
	}
	var env []any
	for name, value := range p.env {
		env = append(env, map[string]any{"name": name, "value": value})
	}
	container := func(name, command string) map[string]any {
		return map[string]any{"name": name, "image": cluster.ToolsImage, "imagePullPolicy": "Never", "command": []string{"/bin/sh", "-c", command}, "env": env}
	}
	c := container("c", "trap exit TERM; sleep 2147483647 & wait")
	c["resources"] = map[string]any{"limits": p.limits}
	spec := map[string]any{"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false}
	if !p.root {
		spec["securityContext"] = map[string]any{"runAsUser": 1000, "runAsGroup": 1000}
		c["securityContext"] = map[string]any{"allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []string{"ALL"}}}
	}
	spec["containers"] = []any{c}
	var inits []any
	for i := range p.inits {
		inits = append(inits, container(fmt.Sprintf("i%d", i), "exit 0"))
	}
	spec["initContainers"] = inits
	return map[string]any{"metadata": map[string]any{"name": p.name, "annotations": annotations}, "spec": spec}
}

// create makes a pod, which is deleted after the test at the latest.
func (l *lab) create(t testing.TB, p pod) {
	t.Helper()
	code, answer, err := l.Admin().Create(t.Context(), pods, p.object())
	if err != nil || code != http.StatusCreated {
		t.Fatalf("pod %s: %d, %v: %s", p.name, code, err, answer)
	}
	t.Cleanup(func() { l.delete(t, p.name) })
}

// delete deletes a pod, if it exists, and waits until it is gone.
func (l *lab) delete(t testing.TB, name string) {
	t.Helper()
	await(t, "end of "+name, func() error {
		code, answer, err := l.Admin().Delete(context.Background(), pods+"/"+name)
		if err == nil && code != http.StatusNotFound {
			err = fmt.Errorf("%d: %.300s", code, answer)
		}
		return err
	})
}

// podStatus is the part of a pod's status that the tests read.
type podStatus struct {
	Status struct {
		Phase                 string
		ContainerStatuses     []containerStatus
		InitContainerStatuses []containerStatus
	}
}

type containerStatus struct {
	Ready        bool
	RestartCount int
	State        struct {
		Waiting *struct{ Reason, Message string }
	}
}

func (l *lab) status(name string) (p podStatus, err error) {
	code, answer, err := l.Admin().Get(context.Background(), pods+"/"+name)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d: %s", code, answer)
	}
	if err == nil {
		err = json.Unmarshal(answer, &p)
	}
	return p, err
}

// run makes a pod and waits until it runs.
func (l *lab) run(t testing.TB, p pod) {
	t.Helper()
	l.create(t, p)
	l.running(t, p.name)
}

func (l *lab) running(t testing.TB, name string) {
	t.Helper()
	await(t, "start of "+name, func() error {
		p, err := l.status(name)
		if err == nil && (p.Status.Phase != "Running" || !p.Status.ContainerStatuses[0].Ready) {
			err = fmt.Errorf("%+v", p.Status)
		}
		return err
	})
}

// refused waits until the runtime has refused the pod's container, and returns why.
func (l *lab) refused(t testing.TB, name string) (message string) {
	t.Helper()
	await(t, "refusal of "+name, func() error {
		p, err := l.status(name)
		if err != nil {
			return err
		}
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && w.Reason == "CreateContainerError" {
				message = w.Message
				return nil
			}
		}
		return fmt.Errorf("%+v", p.Status)
	})
	return message
}

// sh runs a command in a pod, and returns what it printed, also where it failed.
func (l *lab) sh(t testing.TB, pod, command string) string {
	t.Helper()
	out, err := l.Exec(t.Context(), pod, "/bin/sh", "-c", "("+command+") 2>&1 || true")
	must(t, err)
	return strings.TrimSpace(out)
}

// await waits until done returns nil.
func await(t testing.TB, what string, done func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := done()
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("no %s: %v", what, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
