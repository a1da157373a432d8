package procs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

const (
	sandboxID = "5a00000000000000000000000000000000000000000000000000000000000000"
	trainerID = "aa00000000000000000000000000000000000000000000000000000000000000"
	otherID   = "bb00000000000000000000000000000000000000000000000000000000000000"
)

// machine has a pod with a sandbox and a container of two processes, and another pod.
func machine() map[string]string {
	limits := func(soft, hard string) string {
		return "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         " + soft + "              " + hard + "            bytes     \n"
	}
	files := map[string]string{"proc/self/ns/pid@": InitPIDNamespace}
	process := func(pid, comm, netns, cgroup string) {
		files["proc/"+pid+"/comm"], files["proc/"+pid+"/ns/net@"] = comm+"\n", "net:["+netns+"]"
		files["proc/"+pid+"/cgroup"] = "0::/kubepods.slice/" + cgroup + "\n"
		began := "100"
		if pid == "90" {
			began = "7000"
		}
		files["proc/"+pid+"/stat"] = pid + " (a) b) S" + strings.Repeat(" 1", 18) + " " + began + " 1 2 3\n"
	}
	process("1", "systemd", "1", "init.scope")
	process("300", "pause", "42", "cri-containerd-"+sandboxID+".scope")
	process("400", "python", "42", "cri-containerd-"+trainerID+".scope")
	process("401", "python", "42", "cri-containerd-"+trainerID+".scope")
	process("90", "sh", "42", "cri-containerd-"+trainerID+".scope") // by kubectl exec, with a PID that was used before
	process("500", "python", "43", "cri-containerd-"+otherID+".scope")
	process("600", "nsenter", "42", "user.slice")
	files["proc/400/limits"] = limits("8388608", "unlimited")
	files["proc/400/status"] = "Name:\tpython\nUid:\t1000\t1001\t1000\t1000\nCapEff:\t0000000000004000\nCapBnd:\t00000000a80465fb\n"
	files["proc/400/environ"] = "PATH=/bin\x00NCCL_IB_HCA=mlx5\x00SECRET_KEY=x\x00UCX_TLS=rc\x00"
	files["run/containerd/io.containerd.runtime.v2.task/k8s.io/"+trainerID+"/config.json"] = `{"annotations": {"io.kubernetes.cri.container-name": "trainer", "io.kubernetes.cri.container-type": "container"}}`
	return files
}

// withDevices makes the char devices of a container below a directory. This needs root.
func withDevices(t *testing.T, dir string, names ...string) {
	t.Helper()
	need.Root(t)
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))); err != nil {
			t.Fatal(err)
		}
	}
}

// procReaderIn returns a reader of the tree.
func procReaderIn(root string) *Reader {
	return NewReader(files.Roots{Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc"), Root: root})
}

func record() *ledger.Record {
	r := &ledger.Record{Key: ledger.Key{ContainerID: sandboxID, IfName: "net1"}}
	r.Netns.Inode = 42
	return r
}

func TestContainersOfAPod(t *testing.T) {
	dir := scratch.Tree(t, machine())
	withDevices(t, filepath.Join(dir, "proc/400/root/dev/infiniband"), "uverbs3", "rdma_cm")
	have, err := procReaderIn(dir).Containers(record())
	want := []fact.Container{{
		Name: "trainer", Memlock: fact.Memlock{Process: "python", PID: 400, Soft: 8388608, Hard: fact.Unlimited}, UID: 1001,
		Capabilities: 1 << 14, Permitted: 0xa80465fb, Env: map[string]string{"NCCL_IB_HCA": "mlx5", "UCX_TLS": "rc"},
		CharDevices: []string{"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs3"},
	}}
	if err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("containers %+v, %v\nnot %+v", have, err, want)
	}
}

// TestFactsOfAPodAreBounded: the containers of a pod may have as many variables and devices as the
// kernel allows. If only a part of them were read, the rest would count as missing.
func TestFactsOfAPodAreBounded(t *testing.T) {
	const containers = 40
	env := func(count int, value string) string {
		text := ""
		for n := range count {
			text += fmt.Sprintf("NCCL_%03d=%s\x00", n, value)
		}
		return text
	}
	for name, c := range map[string]struct {
		env     string
		devices int // with names of 206 bytes in /dev/infiniband
		err     string
	}{
		"a long variable":          {"NCCL_LONG=" + strings.Repeat("x", 100_000) + "\x00", 0, "bytes of variables"},
		"many variables":           {env(100, strings.Repeat("x", 1000)), 0, "bytes of variables"},
		"control characters":       {env(1, strings.Repeat("\x01", 1000)), 0, "bytes of variables"},
		"variables":                {env(20, "x"), 0, ""},
		"variables of other names": {strings.ReplaceAll(env(1000, "x"), "NCCL", "OTHER"), 0, ""},
		"many devices":             {"", 20, "names of devices"},
	} {
		t.Run(name, func(t *testing.T) {
			files := machine()
			for i := range containers {
				pid, id := strconv.Itoa(1000+i), fmt.Sprintf("%064x", i+1)
				for _, file := range []string{"comm", "ns/net@", "stat", "limits", "status"} {
					files["proc/"+pid+"/"+file] = files["proc/400/"+file]
				}
				files["proc/"+pid+"/cgroup"] = "0::/kubepods.slice/cri-containerd-" + id + ".scope\n"
				files["proc/"+pid+"/environ"] = c.env
			}
			dir := scratch.Tree(t, files)
			var names []string
			for n := range c.devices {
				names = append(names, fmt.Sprintf("uverbs%0200d", n))
			}
			for i := range containers {
				root := filepath.Join(dir, "proc", strconv.Itoa(1000+i), "root/dev")
				withDevices(t, root, "null")
				withDevices(t, filepath.Join(root, "infiniband"), names...)
			}
			withDevices(t, filepath.Join(dir, "proc/400/root/dev"), "null")
			have, err := procReaderIn(dir).Containers(record())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%d containers, %v", len(have), err)
				}
				return
			}
			text, also := json.Marshal(have)
			if err = errors.Join(err, also); err != nil || len(have) != containers+1 || len(text) > 256<<10 {
				t.Errorf("%d containers in %d bytes, %v", len(have), len(text), err)
			}
		})
	}
}

func TestLinksOfAContainerDoNotLeadOutOfIt(t *testing.T) {
	dir := scratch.Tree(t, machine())
	withDevices(t, filepath.Join(dir, "secret"), "uverbs9")
	root := filepath.Join(dir, "proc/400/root")
	for _, target := range []string{filepath.Join(dir, "secret"), "../../../../secret"} {
		if err := errors.Join(os.RemoveAll(root), os.MkdirAll(filepath.Join(root, "dev"), 0o755), os.Symlink(target, filepath.Join(root, "dev/infiniband"))); err != nil {
			t.Fatal(err)
		}
		have, err := procReaderIn(dir).Containers(record())
		if err != nil || len(have) != 1 || have[0].CharDevices != nil {
			t.Errorf("with a link to %s: %+v, %v", target, have, err)
		}
	}
}

func TestContainersAreUnknownWhereProcessesAreHidden(t *testing.T) {
	for name, change := range map[string]func(files map[string]string){
		"another PID namespace": func(files map[string]string) {
			files["proc/self/ns/pid@"] = "pid:[4026532000]"
			for file := range files {
				if strings.HasPrefix(file, "proc/3") || strings.HasPrefix(file, "proc/4") || strings.HasPrefix(file, "proc/6") || strings.HasPrefix(file, "proc/9") {
					delete(files, file)
				}
			}
		},
		"hidepid":   func(files map[string]string) { delete(files, "proc/1/comm") },
		"no status": func(files map[string]string) { files["proc/400/status"] = "Name:\tpython\n" },
	} {
		files := machine()
		change(files)
		dir := scratch.Tree(t, files)
		withDevices(t, filepath.Join(dir, "proc/400/root/dev"), "null")
		if have, err := procReaderIn(dir).Containers(record()); err == nil {
			t.Errorf("%s: %+v without an error", name, have)
		}
	}
}

func TestGPUsOfAPod(t *testing.T) {
	files := machine()
	for name, minor := range map[string]string{"0000:3B:00.0": "0", "0000:5e:00.0": "1"} {
		files["proc/driver/nvidia/gpus/"+name+"/information"] = "Model: \t\t NVIDIA H100\nDevice Minor: \t " + minor + "\n"
	}
	dir := scratch.Tree(t, files)
	withDevices(t, filepath.Join(dir, "proc/400/root/dev"), "nvidia0", "nvidiactl")
	have, err := procReaderIn(dir).GPUsOf(record())
	if err != nil || !reflect.DeepEqual(have, []string{"0000:3b:00.0"}) {
		t.Errorf("GPUs %v, %v", have, err)
	}
}

func TestLimitsOfDaemons(t *testing.T) {
	files := machine()
	files["proc/70/comm"], files["proc/70/limits"] = "kubelet\n", "Max locked memory         unlimited            unlimited            bytes\n"
	have, err := procReaderIn(scratch.Tree(t, files)).DaemonLimits(t.Context())
	if want := []fact.Memlock{{Process: "kubelet", PID: 70, Soft: fact.Unlimited, Hard: fact.Unlimited}}; err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("limits %+v, %v", have, err)
	}
	files["proc/self/ns/pid@"] = "pid:[4026532000]"
	delete(files, "proc/70/comm")
	if have, err := procReaderIn(scratch.Tree(t, files)).DaemonLimits(t.Context()); err == nil {
		t.Errorf("daemons in another PID namespace: %+v", have)
	}
}
