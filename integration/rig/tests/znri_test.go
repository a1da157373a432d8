//go:build machines

package tests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/verbs"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// whatIsPublished is the beginning of a script that finds its pod's rail. It uses only what the
// pod is told.
const whatIsPublished = `set -eu
given=$NCCL_IB_HCA
. /run/rail-cni/pod/env.sh
test "$given" = "$NCCL_IB_HCA"
rails=/run/rail-cni/pod/rails.json
port=${NCCL_IB_HCA#=} device=${port%:*} port=${port#*:}
index=$(sed -n 's/.*"gidIndexV2": \([0-9]*\).*/\1/p' $rails)
address=$(awk -F'"' '/"addresses"/ {getline; print $2; exit}' $rails)
address=${address%/*}
echo "user $(id -u) $(sed -n 's/^CapEff:.//p' /proc/self/status)"
echo "memlock $(ulimit -S -l) $(ulimit -H -l)"
own= opens=
for path in /dev/infiniband/*; do
	own="$own $path"
	(exec 3<>$path) 2>/dev/null && opens="$opens $path"
done
verbs=$(cd /sys/class/infiniband_verbs; grep -l "^$device\$" */ibdev)
echo "devices $own"
echo "opens $opens"
echo "verbs /dev/infiniband/${verbs%/ibdev}"
echo "address $address"
`

// tooLittle tries to register memory with the limit that the container runtime has.
const tooLittle = `if said=$(ulimit -S -l $LIMIT; timeout 60 ibv_rc_pingpong -d $device -i $port -g $index -s 1048576 2>&1); then exit 9; fi
echo "with $LIMIT KiB: $said"
`

const writeToPeer = `exec ib_write_bw -d $device -i $port -x $index -F -n 50 -s 65536 ${PEER:-}
`

// TestPodOfUser1000UsesItsRail starts a machine, and runs itself in it, with containerd 2. Two
// pods have a NIC with Soft-RoCE each, and rail-agent tells them of it by NRI. Unlike on many
// hosts of tests, root may raise limits in the machine.
func TestPodOfUser1000UsesItsRail(t *testing.T) {
	if os.Getenv(rig.Mark) != "" {
		podsUseTheirRails(t)
		return
	}
	out, err := boot(t, []string{"RIG_FILES=" + nriFiles(t), "RIG_MEMORY=2048"})
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}

// nriFiles returns a directory with containerd 2, the programs that it needs, and the image of
// all containers.
func nriFiles(t *testing.T) string {
	t.Helper()
	files := rig.Files(t.TempDir())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (run `make cluster-binaries`)", err)
		}
	}
	one, err := controlplane.Built("RAIL_CNI_RUNTIME", "tools", "runtime")
	if err != nil {
		t.Fatal(err)
	}
	two, err := controlplane.Built("RAIL_CNI_RUNTIME2", "tools", "runtime2")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2"} { // static
		must(files.Put(criPrograms+"/"+name, filepath.Join(two, name)))
	}
	for _, name := range []string{"ctr", "runc"} {
		must(files.PutProgram(criPrograms+"/"+name, filepath.Join(one, name)))
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := imageWithVerbs(filepath.Join(one, "busybox")).WriteFile(archive); err != nil {
		t.Fatal(err)
	}
	must(files.Put(criImage, archive))
	return string(files)
}

// imageWithVerbs is the image of all containers: busybox, and the programs for Soft-RoCE if this
// host has them. Without them there is no Soft-RoCE in the rig, and the machine says so.
func imageWithVerbs(busybox string) *cluster.Image {
	image := &cluster.Image{
		Name: verbsImage, Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"},
		Files: map[string]string{"/bin/busybox": busybox}, Links: map[string]string{},
	}
	for _, name := range []string{"awk", "grep", "id", "mknod", "rm", "sed", "sh", "sleep", "timeout"} {
		image.Links["/bin/"+name] = "busybox"
	}
	providers, _ := filepath.Glob("/usr/lib/*/libibverbs/librxe-rdmav*.so")
	for _, file := range append(providers, "/etc/libibverbs.d/rxe.driver") {
		if _, err := os.Stat(file); err == nil {
			image.Files[file] = file
		}
	}
	_ = errors.Join(image.AddProgram("ib_write_bw"), image.AddProgram("ibv_rc_pingpong"))
	return image
}

func podsUseTheirRails(t *testing.T) {
	nics := map[string]string{"first": nicName(0), "second": "ens21np0"}
	c := startContainerd(t, nics)
	for _, mode := range []rdma.Mode{rdma.Exclusive, rdma.Shared} {
		if mode == rdma.Shared && !need.Full() {
			continue // it takes as long again
		}
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "rdma=0")
			n.state = "/run/rail-cni"
			if err := kmod.SoftRoCE(); errors.Is(err, kmod.ErrNoSoftRoCE) {
				need.Skip(t, err)
			} else if err != nil {
				t.Fatal(err)
			}
			for runtime, nic := range nics {
				n.Batch(nil, "link set "+nic+" mtu 9000 up")
				n.Exec("rdma", "link", "add", "rxe_"+runtime, "type", "rxe", "netdev", nic)
			}
			n.carrier(slices.Collect(maps.Values(nics))...)
			n.keep("NRIFailed") // on a busy host a lookup may take too long; the pods wait for the next one
			c.await(t, "rail-agent", func(context.Context) error {
				if !slices.Contains(n.scrape(), "rail_cni_nri_connected 1\n") {
					return errors.New("it is not connected to NRI")
				}
				return nil
			})
			before, devices := n.State(), n.allRDMA()
			n.useRails(c)
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, devices)
			}
		})
	}
}

// useRails runs two pods with a rail each, which write to each other, and checks which char
// devices root in containers may open.
func (n *node) useRails(c *containerd) {
	n.t.Helper()
	t, limits := n.t, n.memlocks()
	first, second := c.sandbox(t, "one", "first"), c.sandbox(t, "two", "second")
	plain := c.sandbox(t, "plain", "runc")

	little := &cri.KeyValue{Key: "LIMIT", Value: fmt.Append(nil, criLimit)}
	server := first.start("server", whatIsPublished+tooLittle+writeToPeer, false, little)
	pid := server.pid()
	c.await(t, "server", func(ctx context.Context) error {
		if verbs.Listens(pid) {
			return nil
		}
		if _, err := server.ended(ctx); err == nil {
			t.Fatalf("the server has ended:\n%s", server.output())
		}
		return errors.New("it does not listen")
	})
	serves := facts(server.output())
	if !strings.Contains(server.output(), fmt.Sprintf("with %d KiB: Couldn't register MR", criLimit)) {
		t.Errorf("with the runtime's limit of locked memory the program could go on:\n%s", server.output())
	}
	client := second.start("client", whatIsPublished+writeToPeer, false, &cri.KeyValue{Key: "PEER", Value: []byte(serves["address"])})
	out := client.awaitEnd()
	server.awaitEnd()
	// It prints a line when all messages were written. By the clock of an emulated CPU the
	// bandwidth can be 0.
	bandwidth, err := verbs.Average(out)
	if err != nil {
		t.Errorf("ib_write_bw: %v", err)
	}
	t.Logf("ib_write_bw of user 1000: %.2f Gbit/s", bandwidth)

	chars := n.charDevices()
	own := map[string][]string{"plain": nil}
	for name, said := range map[string]map[string]string{"one": serves, "two": facts(out)} {
		if said["user"] != "1000 0000000000000000" || said["memlock"] != "unlimited unlimited" {
			t.Errorf("pod %s: %v", name, said)
		}
		if opens := strings.Fields(said["opens"]); !slices.Equal(opens, []string{connectionManager, said["verbs"]}) {
			t.Errorf("user 1000 in pod %s opens %v, not %s and %s", name, opens, connectionManager, said["verbs"])
		}
		own[name] = strings.Fields(said["devices"])
	}
	if shared := slices.DeleteFunc(slices.Clone(own["one"]), func(path string) bool {
		return path == connectionManager || !slices.Contains(own["two"], path)
	}); len(shared) > 0 {
		t.Errorf("both pods have %v", shared)
	}
	for _, s := range []*sandbox{first, second, plain} {
		s.opensOnly(chars, own[s.Metadata.Name])
	}
	if now := n.memlocks(); now != limits {
		t.Errorf("limits of the node's processes were\n%s\nand are\n%s", limits, now)
	}
	for _, s := range []*sandbox{first, second, plain} {
		s.remove()
	}
}

// facts returns the first lines of the output of whatIsPublished, by their first words.
func facts(out string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, there := found[key]; !there {
			found[key] = value
		}
	}
	return found
}

// opensOnly fails the test unless root in a container of the pod, who makes the files of all
// the node's char devices, can open those in own, and the kernel refuses the others.
func (s *sandbox) opensOnly(chars map[string]string, own []string) {
	s.t.Helper()
	var script strings.Builder
	for path, number := range chars {
		fmt.Fprintf(&script, "mknod /made c %s && { (exec 3<>/made) 2>/refused && echo %[2]s opens || echo %[2]s $(sed 's/.*: //' /refused); }; rm /made\n", number, path)
	}
	said := facts(s.start("root", script.String(), true).awaitEnd())
	for path := range chars {
		want := "Operation not permitted"
		if slices.Contains(own, path) {
			want = "opens"
		}
		if said[path] != want {
			s.t.Errorf("root in pod %s opens %s: %q, not %q", s.Metadata.Name, path, said[path], want)
		}
	}
}

const connectionManager = "/dev/infiniband/rdma_cm"

// charDevices returns the numbers, major and minor, of the node's char devices of RDMA, by
// path. There are those of two RDMA devices.
func (n *node) charDevices() map[string]string {
	n.t.Helper()
	paths, err := filepath.Glob("/dev/infiniband/*")
	must(n.t, err)
	numbers, uverbs := map[string]string{}, 0
	for _, path := range paths {
		var st unix.Stat_t
		must(n.t, unix.Stat(path, &st))
		numbers[path] = fmt.Sprintf("%d %d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		if strings.HasPrefix(path, "/dev/infiniband/uverbs") {
			uverbs++
		}
	}
	if uverbs != 2 {
		n.t.Fatalf("char devices %v: not two of verbs", paths)
	}
	return numbers
}

// memlocks returns the limits of locked memory of the first process, this one, the daemons and
// their children of the same name, and a program that is started now.
func (n *node) memlocks() string {
	n.t.Helper()
	var all strings.Builder
	for _, pid := range []string{"1", "self"} {
		limits, err := memlock(pid)
		must(n.t, err)
		fmt.Fprintln(&all, pid, limits)
	}
	for _, name := range []string{"containerd", "rail-agent"} {
		// rail-agent reads facts in a child, which may be there now, and gone in a moment.
		found := map[string]bool{}
		for pid := range strings.FieldsSeq(n.Exec("pidof", name)) {
			if limits, err := memlock(pid); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
				must(n.t, err)
				found[limits] = true
			}
		}
		fmt.Fprintln(&all, name, slices.Sorted(maps.Keys(found)))
	}
	return all.String() + n.Exec("sh", "-c", "ulimit -S -l; ulimit -H -l")
}

// memlock returns the limits of locked memory of a process, soft and hard, in bytes.
func memlock(pid string) (string, error) {
	text, err := os.ReadFile("/proc/" + pid + "/limits")
	_, after, _ := strings.Cut(string(text), "Max locked memory")
	limits, _, _ := strings.Cut(after, "\n")
	return strings.Join(strings.Fields(limits), " "), err
}
