//go:build machines

package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// Paths in the machine of the files that nriFiles returns, and the image in one of them.
const (
	criPrograms = "/runtime/bin"
	criImage    = "/runtime/image.tar"
	verbsImage  = "localhost/verbs:1"
)

const (
	criSocket = "/run/containerd/containerd.sock"
	criLogs   = "/run/logs"
	// criLimit is the daemon's limit of locked memory, in KiB. It is the kernel's default
	// before Linux 5.16, and less than ib_write_bw needs.
	criLimit = 64
)

// criPatience bounds each wait.
const criPatience = 3 * time.Minute

// containerdConf is that of containerd 2: for each NIC a runtime whose first network lends
// it. There is no pivot_root(2), which an initramfs does not allow.
//
// The machine is slow, and the default of 2 s may be too short for the agent's answer:
// containerd would go on without it.
const containerdConf = `version = 3
[plugins."io.containerd.nri.v1.nri"]
  plugin_registration_timeout = "60s"
  plugin_request_timeout = "60s"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = "/etc/cni/net.d"
    use_internal_loopback = true
`

const runtimeConf = `  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%[1]s]
    runtime_type = "io.containerd.runc.v2"
    cni_conf_dir = %[2]q
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%[1]s.options]
      BinaryName = %[3]q
      NoPivotRoot = true
`

// containerd is containerd 2 on the machine. It is called by CRI, as the kubelet does.
type containerd struct {
	daemon *process.Process
	cri.RuntimeServiceClient
	images cri.ImageServiceClient
}

// startContainerd starts containerd. nics maps names of runtimes to the NICs that the pods
// of each get. The runtime "runc" is for pods of the host's netns.
func startContainerd(t *testing.T, nics map[string]string) *containerd {
	t.Helper()
	must(t, kmod.LoadAll(wire.Devices)) // with overlay
	for _, dir := range []string{"/var/lib/containerd", criLogs, "/etc/cni/net.d"} {
		must(t, os.MkdirAll(dir, 0o755))
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	}
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	conf := fmt.Sprintf(containerdConf, verbsImage, wire.Binaries) + fmt.Sprintf(runtimeConf, "runc", "", criPrograms+"/runc")
	for name, nic := range nics {
		dir := "/etc/cni/" + name
		conf += fmt.Sprintf(runtimeConf, name, dir, criPrograms+"/runc")
		must(t, os.MkdirAll(dir, 0o755))
		network := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "rail", "plugins": [{"type": "host-device", "device": %q, "rdma": "required",
			"ipam": {"type": "whereabouts", "store": "local", "range": "172.31.1.0/24"}}]}`, nic)
		must(t, os.WriteFile(filepath.Join(dir, "10-rail.conflist"), []byte(network), 0o600))
	}
	must(t, os.WriteFile("/run/containerd.toml", []byte(conf), 0o600))
	c := &containerd{}
	var err error
	c.daemon, err = process.Start(process.Spec{
		Name: "containerd", Log: criLogs + "/containerd.log", Env: []string{"PATH=" + criPrograms + ":" + os.Getenv("PATH")},
		Args: []string{"sh", "-c", fmt.Sprintf("ulimit -l %d; exec %s/containerd --config /run/containerd.toml", criLimit, criPrograms)},
	})
	must(t, err)
	t.Cleanup(func() {
		c.daemon.Kill()
		if t.Failed() {
			t.Logf("%s", process.Tail(criLogs+"/containerd.log", 60))
		}
	})
	conn, err := grpc.NewClient("unix://"+criSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	c.RuntimeServiceClient, c.images = cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	c.await(t, "containerd", func(ctx context.Context) error {
		_, err := c.Version(ctx, &cri.VersionRequest{})
		return err
	})
	if out, err := exec.Command(criPrograms+"/ctr", "--namespace", "k8s.io", "images", "import", criImage).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.await(t, "image", func(ctx context.Context) error {
		found, err := c.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: verbsImage}})
		if err == nil && found.Image == nil {
			err = errors.New("it is not there")
		}
		return err
	})
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits until done returns nil.
func (c *containerd) await(t *testing.T, what string, done func(context.Context) error) {
	t.Helper()
	var err, ended error
	testnet.Within(criPatience, func() bool {
		err, ended = done(t.Context()), c.daemon.Ended()
		return err == nil || ended != nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, errors.Join(err, ended))
	}
}

// sandbox is a pod.
type sandbox struct {
	t  *testing.T
	c  *containerd
	id string
	*cri.PodSandboxConfig
}

// sandbox makes a pod in the netns of the host, or with the NIC of a runtime. It is removed
// with the test at the latest.
func (c *containerd) sandbox(t *testing.T, name, runtime string) *sandbox {
	t.Helper()
	network, hostname := cri.NamespaceMode_POD, name
	if runtime == "runc" {
		network, hostname = cri.NamespaceMode_NODE, ""
	}
	s := &sandbox{t: t, c: c, PodSandboxConfig: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-of-" + name}, Hostname: hostname,
		Annotations:  map[string]string{railinfo.RequireAnnotation: "true"},
		LogDirectory: t.TempDir(), DnsConfig: &cri.DNSConfig{},
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: network, Pid: cri.NamespaceMode_CONTAINER},
		}},
	}}
	answer, err := c.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: s.PodSandboxConfig, RuntimeHandler: runtime})
	if err != nil {
		t.Fatalf("pod %s: %v", name, err)
	}
	s.id = answer.PodSandboxId
	t.Cleanup(s.remove)
	return s
}

// remove ends the pod and its containers.
func (s *sandbox) remove() {
	s.t.Helper()
	if s.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), criPatience)
	defer cancel()
	_, err := s.c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.id})
	if err == nil {
		_, err = s.c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.id})
	}
	if err != nil {
		s.t.Errorf("removing pod %s: %v", s.Metadata.Name, err)
	}
	s.id = ""
}

// container is a container of a pod.
type container struct {
	s    *sandbox
	name string
	id   string
}

// start starts a container that runs a script: of user 1000 without capabilities, or as root
// with those that a runtime gives.
func (s *sandbox) start(name, script string, root bool, env ...*cri.KeyValue) *container {
	s.t.Helper()
	security := &cri.LinuxContainerSecurityContext{NamespaceOptions: s.Linux.SecurityContext.NamespaceOptions}
	if !root {
		security.RunAsUser, security.RunAsGroup = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 1000}
		security.Capabilities, security.NoNewPrivs = &cri.Capability{DropCapabilities: []string{"ALL"}}, true
	}
	request := &cri.CreateContainerRequest{
		PodSandboxId: s.id, SandboxConfig: s.PodSandboxConfig,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: verbsImage}, Envs: env,
			Command: []string{"/bin/sh", "-c", script}, LogPath: name + ".log", Linux: &cri.LinuxContainerConfig{SecurityContext: security},
		},
	}
	var made *cri.CreateContainerResponse
	s.c.await(s.t, "container "+name, func(ctx context.Context) (err error) { // as the kubelet, again after a refusal
		made, err = s.c.CreateContainer(ctx, request)
		if err != nil && !strings.Contains(err.Error(), "took longer than") {
			s.t.Fatalf("container %s: %v", name, err)
		}
		return err
	})
	_, err := s.c.StartContainer(s.t.Context(), &cri.StartContainerRequest{ContainerId: made.ContainerId})
	if err != nil {
		s.t.Fatalf("container %s: %v", name, err)
	}
	return &container{s, name, made.ContainerId}
}

// output returns what the container has printed.
func (c *container) output() string {
	text, err := os.ReadFile(filepath.Join(c.s.LogDirectory, c.name+".log"))
	if err != nil {
		return ""
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) { // the time, the stream, F or P, and the text
		if f := strings.SplitN(line, " ", 4); len(f) == 4 {
			out.WriteString(f[3])
		}
	}
	return out.String()
}

// pid returns the process ID of the container's first process.
func (c *container) pid() int {
	c.s.t.Helper()
	answer, err := c.s.c.ContainerStatus(c.s.t.Context(), &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	must(c.s.t, err)
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.Pid == 0 {
		c.s.t.Fatalf("%s has no process: %v: %v", c.name, err, answer)
	}
	return info.Pid
}

// ended returns an error unless the container has ended.
func (c *container) ended(ctx context.Context) (*cri.ContainerStatus, error) {
	answer, err := c.s.c.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.id})
	if err == nil && answer.Status.State != cri.ContainerState_CONTAINER_EXITED {
		err = fmt.Errorf("%s, it printed\n%s", answer.Status.State, c.output())
	}
	return answer.GetStatus(), err
}

// awaitEnd waits until the container has ended, and returns what it printed. The test fails
// unless the exit code is 0.
func (c *container) awaitEnd() string {
	c.s.t.Helper()
	var status *cri.ContainerStatus
	c.s.c.await(c.s.t, "end of "+c.name, func(ctx context.Context) (err error) {
		status, err = c.ended(ctx)
		return err
	})
	if status.ExitCode != 0 {
		c.s.t.Fatalf("%s ended with %d:\n%s", c.name, status.ExitCode, c.output())
	}
	return c.output()
}
