package nri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// memlockHere returns what "ulimit -l" prints in a container that may lock memory without
// limit. A machine whose root may not raise limits (CAP_SYS_RESOURCE) passes on its own hard
// limit; the rig has the other case.
func memlockHere(t testing.TB) string {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	m := regexp.MustCompile(`(?m)^CapEff:\s*([0-9a-f]+)$`).FindSubmatch(status)
	if m == nil {
		t.Fatal("no CapEff")
	}
	effective, err := strconv.ParseUint(string(m[1]), 16, 64)
	must(t, err)
	var own unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &own))
	if effective&(1<<unix.CAP_SYS_RESOURCE) != 0 || own.Max == unix.RLIM_INFINITY {
		return "unlimited"
	}
	t.Logf("this machine's root may not raise limits: containers get its own, %d KiB", own.Max>>10)
	return strconv.FormatUint(own.Max>>10, 10)
}

// environment returns the variables of a pod's container.
func (l *lab) environment(t testing.TB, pod string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line := range strings.Lines(l.sh(t, pod, "tr '\\0' '\\n' </proc/1/environ")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	return env
}

// infiniband lists the char devices of RDMA in a pod's container.
func (l *lab) infiniband(t testing.TB, pod string) []string {
	t.Helper()
	return strings.Fields(l.sh(t, pod, "ls -d /dev/infiniband/* 2>/dev/null"))
}

const mountLine = "grep ' " + railinfo.MountPoint + " ' /proc/mounts"

// TestPodWithRailsHasWhatItNeeds: a pod of user 1000 without capabilities, for which nobody
// wrote a setting.
func TestPodWithRailsHasWhatItNeeds(t *testing.T) {
	l := theLab(t)
	l.startStandIn(t)
	limits := func() (text string) {
		for _, name := range []string{"containerd", "kubelet"} {
			// A child that is about to be another program may be gone.
			out, err := l.node.Exec(t.Context(), "sh", "-c", `for pid in $(pidof `+name+`); do grep -s "Max locked" /proc/$pid/limits; done | sort -u`)
			must(t, err)
			text += out
		}
		return text
	}
	before := limits()
	l.run(t, pod{name: "trainer", networks: "ens1,ens2", env: map[string]string{"UCX_NET_DEVICES": "mine", "NCCL_DEBUG": "INFO"}})

	if id := l.sh(t, "trainer", "id -u; grep CapEff /proc/self/status"); id != "1000\nCapEff:\t0000000000000000" {
		t.Errorf("the container is not what the test needs: %q", id)
	}
	want := memlockHere(t)
	if got := l.sh(t, "trainer", "ulimit -S -l; ulimit -H -l"); got != want+"\n"+want {
		t.Errorf("it may lock %q KiB, not %s", got, want)
	}
	if after := limits(); after != before {
		t.Errorf("limits of the node's daemons were\n%s and are\n%s", before, after)
	}

	env := l.environment(t, "trainer")
	if env["NCCL_IB_HCA"] != "=mlx5_1:1,mlx5_2:1" || env["UCX_NET_DEVICES"] != "mine" || env["NCCL_DEBUG"] != "INFO" {
		t.Errorf("environment %v", env)
	}
	if list := env["RAIL_CNI_ENV"]; !strings.Contains(list, "NCCL_IB_HCA") || strings.Contains(list, "UCX_NET_DEVICES") {
		t.Errorf("RAIL_CNI_ENV=%s", list)
	}

	if got := l.infiniband(t, "trainer"); !slices.Equal(got, []string{rdmaCM, uverbs + "1", uverbs + "2"}) {
		t.Errorf("it has %v", got)
	}
	if out := l.sh(t, "trainer", "exec 3<>"+uverbs+"1 && echo open"); out != "open" {
		t.Error(out)
	}
	if out := l.sh(t, "trainer", "stat -c '%a %g %t:%T' "+rdmaCM); out != "660 3000 a:ed" { // as on the node
		t.Errorf("%s is %s", rdmaCM, out)
	}

	if line := l.sh(t, "trainer", mountLine); !strings.Contains(line, " ro,") {
		t.Errorf("mount %q", line)
	}
	if out := l.sh(t, "trainer", "touch "+railinfo.MountPoint+"/x"); !strings.Contains(out, "Read-only file system") {
		t.Errorf("writing: %q", out)
	}
	if out := l.sh(t, "trainer", "cat "+railinfo.MountPoint+"/rails.json"); !strings.Contains(out, railinfo.Schema) || !strings.Contains(out, `"net2"`) {
		t.Errorf("rails.json is %q", out)
	}
}

// TestPodWithoutRailsIsLeftAlone, and cannot open the devices of the others even as root.
func TestPodWithoutRailsIsLeftAlone(t *testing.T) {
	l := theLab(t)
	plain := pod{name: "plain", root: true, annotations: map[string]string{railinfo.RequireAnnotation: "true"}}
	l.run(t, plain)
	look := func(name string) string {
		return l.sh(t, name, "ulimit -l; env | grep -v HOSTNAME | sort; ls /dev; cut -d' ' -f2,4 /proc/mounts | grep -v ^/run/containerd | grep -v lowerdir")
	}
	before := look("plain")
	l.delete(t, "plain")
	l.startStandIn(t)
	l.run(t, plain)
	if after := look("plain"); after != before {
		t.Errorf("without NRI it is\n%s\nand with it\n%s", before, after)
	}
	if out := l.sh(t, "plain", "mknod /tmp/d c 10 229 && exec 3<>/tmp/d && echo open"); !strings.Contains(out, "ot permitted") {
		t.Errorf("opening a device that nobody gave it: %q", out)
	}
	l.run(t, pod{name: "silent", networks: "ens1", annotations: map[string]string{railinfo.PublishAnnotation: "none"}})
	if out := l.sh(t, "silent", mountLine) + strings.Join(l.infiniband(t, "silent"), " "); out != "" {
		t.Errorf("the pod wants nothing, and has %s", out)
	}
}

// hookTimes returns how long the plugin took for each container of a pod, in their order.
func (l *lab) hookTimes(t testing.TB, pod string) (times []time.Duration) {
	t.Helper()
	text, err := os.ReadFile(l.node.Path(agentLog))
	must(t, err)
	for _, m := range regexp.MustCompile(`msg="container was handled" pod=default/`+pod+` .*took=(\S+)`).FindAllSubmatch(text, -1) {
		took, err := time.ParseDuration(string(m[1]))
		must(t, err)
		times = append(times, took)
	}
	return times
}

func percentile(times []time.Duration, p int) time.Duration { return times[(len(times)-1)*p/100] }

// TestHookTakesLittleTime prints the figures of 200 containers with rails and of 200
// without, and of the first of a pod, whose files are written then.
func TestHookTakesLittleTime(t *testing.T) {
	l := theLab(t)
	l.startAgent(t)
	containers := need.Either(10, 200)
	for name, networks := range map[string]string{"with": "ens1,ens2", "without": ""} {
		l.run(t, pod{name: name, networks: networks, inits: containers - 1})
		times := l.hookTimes(t, name)
		if len(times) != containers {
			t.Fatalf("%d answers for %d containers", len(times), containers)
		}
		first := times[0]
		slices.Sort(times)
		t.Logf("%d containers %s rails: the first %v, p50 %v, p99 %v, longest %v", containers, name,
			first, percentile(times, 50), percentile(times, 99), times[len(times)-1])
		timing.Check(t, "half of the hooks", percentile(times, 50), 100*time.Millisecond)
		l.delete(t, name)
	}
	memory, err := l.metric(t.Context(), "process_resident_memory_bytes")
	must(t, err)
	t.Logf("resident memory of the agent: %s bytes", memory)
}

// TestKilledAgentKeepsNoContainerFromStarting kills the agent while 100 containers start.
func TestKilledAgentKeepsNoContainerFromStarting(t *testing.T) {
	l := theLab(t)
	containers := need.Either(10, 100)
	l.startAgent(t)
	began := time.Now()
	l.create(t, pod{name: "killed", networks: "ens1", inits: containers - 1})
	kills := 0
	for {
		p, err := l.status("killed")
		must(t, err)
		if p.Status.Phase == "Running" && p.Status.ContainerStatuses[0].Ready {
			break
		}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if w := c.State.Waiting; c.RestartCount > 0 || w != nil && w.Reason == "CreateContainerError" {
				t.Fatalf("a container did not start: %+v", c)
			}
		}
		if time.Since(began) > patience {
			t.Fatalf("%+v", p.Status)
		}
		l.node.KillDaemon("rail-agent")
		kills++
		time.Sleep(time.Duration(50+37*kills%200) * time.Millisecond)
		l.startAgent(t)
	}
	t.Logf("%d containers, %d kills, %v", containers, kills, time.Since(began).Round(time.Millisecond))
}

func TestPluginIsBackAfterTheRestartOfContainerd(t *testing.T) {
	l := theLab(t)
	l.startAgent(t)
	for i := range 3 {
		l.node.KillContainerd()
		await(t, "end of the connection", func() error {
			if err := l.connected(t.Context()); err == nil {
				return errors.New("it is connected")
			}
			return nil
		})
		must(t, l.node.StartContainerd(t.Context()))
		began := time.Now()
		await(t, "connection", func() error { return l.connected(t.Context()) })
		t.Logf("connected %v after containerd answered", time.Since(began).Round(time.Millisecond))
		name := fmt.Sprint("after-", i)
		l.run(t, pod{name: name, networks: "ens1"})
		if line := l.sh(t, name, mountLine); line == "" {
			t.Error("the pod has no mount")
		}
		l.delete(t, name)
	}
}

// TestPodsWithoutTheAgent: what NRI does for a plugin that is not connected. containerd
// starts containers without it, also those whose pod requires what it gives; the pod's
// annotation for NRI's own validator makes them wait.
func TestPodsWithoutTheAgent(t *testing.T) {
	l := theLab(t)
	l.run(t, pod{name: "requires", networks: "ens1", annotations: map[string]string{railinfo.RequireAnnotation: "true"}})
	if line := l.sh(t, "requires", mountLine); line != "" {
		t.Errorf("there is no agent, but a mount: %s", line)
	}
	l.create(t, pod{name: "waits", networks: "ens2", annotations: map[string]string{"required-plugins.noderesource.dev": `["rail-cni"]`}})
	if message := l.refused(t, "waits"); !strings.Contains(message, `required plugin "rail-cni" not present`) {
		t.Error(message)
	}
	l.startAgent(t)
	began := time.Now()
	l.running(t, "waits")
	t.Logf("it runs %v after the agent's start", time.Since(began).Round(time.Millisecond))
	if line := l.sh(t, "waits", mountLine); line == "" {
		t.Error("it has no mount")
	}
}

// TestPodThatRequiresWhatCannotBeGivenWaits: a char device of its rail is missing.
func TestPodThatRequiresWhatCannotBeGivenWaits(t *testing.T) {
	l := theLab(t)
	l.startStandIn(t)
	device := l.node.Path(uverbs + "1")
	must(t, os.Rename(device, device+"-away"))
	back := func() error { return os.Rename(device+"-away", device) }
	t.Cleanup(func() { _ = back() })

	l.run(t, pod{name: "content", networks: "ens1"})
	if line := l.sh(t, "content", mountLine); line == "" {
		t.Error("it did not get what there is")
	}
	l.delete(t, "content")
	l.create(t, pod{name: "strict", networks: "ens1", annotations: map[string]string{railinfo.RequireAnnotation: "true"}})
	if message := l.refused(t, "strict"); !strings.Contains(message, "char device "+uverbs+"1") || !strings.Contains(message, "default/strict") {
		t.Error(message)
	}
	must(t, back())
	l.running(t, "strict")
	if got := l.infiniband(t, "strict"); !slices.Contains(got, uverbs+"1") {
		t.Errorf("it has %v", got)
	}
}

// TestSamePodWithoutNRI runs on Debian's containerd, which has none: the pod starts, and has
// its NIC.
func TestSamePodWithoutNRI(t *testing.T) {
	need.Cluster(t)
	l, err := newLab(t.TempDir(), testnet.Bin(t), false)
	need.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.Report())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, l.node.StartDaemon(t.Context(), "rail-agent", nil, l.agentArgs(t), func(ctx context.Context) error {
		value, err := l.metric(ctx, "rail_cni_nri_connected")
		if err == nil && value != "0" {
			err = errors.New("it is connected")
		}
		return err
	}))
	l.run(t, pod{name: "trainer", networks: "ens1", annotations: map[string]string{railinfo.RequireAnnotation: "true"}})
	if out := l.sh(t, "trainer", mountLine+"; ip -o link show net1 | wc -l"); out != "1" {
		t.Errorf("without NRI: %q", out)
	}
	l.node.KillDaemon("rail-agent")
	text, err := os.ReadFile(l.node.Path(agentLog))
	must(t, err)
	if n := strings.Count(string(text), "no NRI socket, so containers are not changed"); n != 1 || strings.Contains(string(text), "level=ERROR") {
		t.Errorf("the agent said it %d times:\n%s", n, text)
	}
}
