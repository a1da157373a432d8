package all_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// earlier has the records of an earlier commit's plugins; its README.md
// describes how they were made.
const earlier = "testdata/7f4f9bb"

// The possible states of an attachment in the kernel.
type kernelState string

const (
	untouched kernelState = "untouched"
	inPodDown kernelState = "the interface in the pod, down"
	inPod     kernelState = "the interface in the pod, up"
	fallen    kernelState = "the NIC on the host under the pod's name" // the kernel moves it there when its netns ends
	moved     kernelState = "the NIC on the host, not restored"
)

// onHost reports whether the NIC is on the host. A veth that is not ends with its pod.
func (s kernelState) onHost() bool { return s == untouched || s == fallen || s == moved }

// spareNIC is lent to another pod.
const spareNIC = "ens13np0"

// The programs that end an attachment.
const (
	byDel      = "DEL"
	byLateDel  = "DEL after the pod's end"
	byOtherAdd = "ADD of another pod"
	byGC       = "railctl gc"
)

func TestRecordsOfAnEarlierVersionAreEnded(t *testing.T) {
	t.Parallel()
	for file, states := range map[string][]kernelState{
		"host-device-lending":           {untouched, inPodDown, inPod, fallen},
		"host-device-lent":              {inPod, fallen},
		"host-device-returning":         {inPodDown, fallen, moved, untouched},
		"host-device-freeing":           {untouched},
		"host-device-no-ipam-lending":   {untouched, inPodDown},
		"host-device-no-ipam-lent":      {inPod, fallen},
		"host-device-no-ipam-returning": {inPodDown, moved},
		"host-device-userspace-lending": {untouched},
		"host-device-userspace-lent":    {untouched},
		"macvlan-lending":               {untouched, inPodDown, inPod},
		"macvlan-lent":                  {inPod},
		"macvlan-returning":             {inPodDown, untouched},
		"macvlan-freeing":               {untouched},
		"macvlan-no-ipam-lending":       {untouched, inPodDown},
		"macvlan-no-ipam-lent":          {inPod},
		"macvlan-in-pod-lending":        {untouched, inPodDown},
		"macvlan-in-pod-lent":           {inPod},
		"macvlan-in-pod-returning":      {inPodDown, untouched},
		"macvlan-in-pod-freeing":        {untouched},
		"rdma-exclusive-lending":        {untouched},
		"rdma-exclusive-lent":           {untouched},
		"rdma-exclusive-returning":      {untouched},
		"rdma-shared-lending":           {untouched},
		"rdma-shared-lent":              {untouched},
		"rdma-shared-returning":         {untouched},
	} {
		for _, state := range states {
			for _, end := range []string{byDel, byLateDel, byOtherAdd, byGC} {
				if end != byDel && strings.HasPrefix(file, "host-device") && !state.onHost() {
					continue
				}
				t.Run(file+"/"+string(state)+"/"+end, func(t *testing.T) {
					t.Parallel()
					b := newEarlier(t, file)
					if end == byOtherAdd {
						b.node.NIC(spareNIC, b.wire)
					}
					before := b.node.State()
					b.place()
					b.set(state)
					if end != byDel {
						b.pod.Delete()
					}
					b.end(end)
					b.untouched(before)
					b.ended(end == byDel)
				})
			}
		}
	}
}

// earlierBench is a bench in which an earlier version was at work.
type earlierBench struct {
	*bench
	file       string
	plugin     string
	record     map[string]any
	deviceInfo string
}

func newEarlier(t *testing.T, file string) *earlierBench {
	t.Helper()
	b := &earlierBench{bench: newBench(t), file: file}
	if err := json.Unmarshal(readFile(t, filepath.Join(earlier, file+".json")), &b.record); err != nil {
		t.Fatal(err)
	}
	b.plugin, _ = b.record["plugin"].(string)
	if b.linkInContainer() {
		b.pod.NIC("eth0", b.wire)
	}
	if b.plugin != "host-device" {
		return b
	}
	// The NIC of the records.
	const mac, linkLocal = "02:00:00:00:00:17", "fe80::ff:fe00:17/64"
	b.node.Batch(nil, "link set "+nicName+" down", "link set "+nicName+" address "+mac, "link set "+nicName+" up")
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(b.node.IP("-6", "addr", "show", "dev", nicName), linkLocal); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s has no address %s", nicName, linkLocal)
		}
	}
	b.furnish()
	return b
}

func (b *earlierBench) linkInContainer() bool { return strings.HasPrefix(b.file, "macvlan-in-pod") }

func (b *earlierBench) del() testnet.Call {
	b.t.Helper()
	switch b.plugin {
	case "macvlan":
		return b.call("DEL", b.macvlanConfig(nil))
	case "rdma":
		return b.call("DEL", b.rdmaConfig(nil))
	default:
		return b.call("DEL", b.config(nil))
	}
}

// place writes the state directory of the earlier version, adapted to this
// machine.
func (b *earlierBench) place() {
	b.t.Helper()
	r := b.record
	r["podNetns"] = map[string]any{"inode": b.pod.ID.Inode, "cookie": b.pod.ID.Cookie, "path": "/run/netns/" + b.pod.Name}
	r["hostNetns"] = map[string]any{"inode": b.node.ID.Inode, "cookie": b.node.ID.Cookie, "path": ""}
	bootID := strings.TrimSpace(string(readFile(b.t, "/proc/sys/kernel/random/boot_id")))
	r["bootID"] = bootID
	const name = "c1@net1.json"
	b.mkdir("attachments")
	if loan, ok := r["loan"].(map[string]any); ok {
		nic := b.node.ID.String() + " " + nicName
		loan["nic"] = nic
		b.symlink(name, "nics/"+statefile.Name(nic))
		if snapshot, ok := loan["snapshot"].(map[string]any); ok {
			b.placeSnapshot(loan, snapshot)
		}
	}
	if _, ok := r["deviceInfo"]; ok {
		b.deviceInfo = "/var/run/k8s.cni.cncf.io/devinfo/cni/test-" + b.pod.Name
		r["deviceInfo"] = b.deviceInfo
		if err := errors.Join(os.MkdirAll(filepath.Dir(b.deviceInfo), 0o755), os.WriteFile(b.deviceInfo, nil, 0o600)); err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { _ = os.Remove(b.deviceInfo) })
	}
	if ipam, ok := r["ipam"].(map[string]any); ok {
		ipam["path"] = testnet.Bin(b.t)
		b.object(ipam, "config")["stateDir"] = b.state
		b.placePool(bootID)
	}
	text, err := json.Marshal(r)
	if err != nil {
		b.t.Fatal(err)
	}
	b.write("attachments/"+name, string(text)+"\n")
	if len(b.records()) != 1 {
		b.t.Fatal("the record was not placed")
	}
}

// object returns the object in of that key.
func (b *earlierBench) object(in map[string]any, key string) map[string]any {
	b.t.Helper()
	found, ok := in[key].(map[string]any)
	if !ok {
		b.t.Fatalf("the record has no %q", key)
	}
	return found
}

func (b *earlierBench) placeSnapshot(loan, snapshot map[string]any) {
	b.t.Helper()
	index, err := b.node.Index(nicName)
	if err != nil {
		b.t.Fatal(err)
	}
	b.object(loan, "identity")["index"], snapshot["index"] = index, index
	sysctls, err := b.node.Sysctls(nicName)
	if err != nil {
		b.t.Fatal(err)
	}
	for key, value := range b.object(snapshot, "sysctls") {
		if sysctls[key] != value {
			b.t.Fatalf("%s of the bench's NIC is %q, the record has %q", key, sysctls[key], value)
		}
	}
	snapshot["sysctls"] = sysctls
}

// placePool writes the local store with the record's address.
func (b *earlierBench) placePool(bootID string) {
	b.t.Helper()
	const pool = "ipam/space/172.31.1.0_24/"
	address := string(readFile(b.t, earlier+"/pool/172.31.1.1.json"))
	network, _ := b.record["network"].(string)
	page := make([]byte, 8192)
	page[0x20] = 2
	b.mkdir(pool)
	for file, text := range map[string]string{
		"ipam/boot": bootID + "\n", "ipam/boot.lock": "", "ipam/space/reserved.lock": "", pool + "lock": "", pool + "busy": "idle\n",
		pool + "pool.json":       string(readFile(b.t, earlier+"/pool/pool.json")),
		pool + "172.31.1.1.json": strings.Replace(address, "roce-net1", network, 1),
		pool + "map-172.31.0.0":  string(page),
	} {
		b.write(file, text)
	}
	b.symlink("../172.31.1.1.json", pool+"by-attachment/c1@net1")
	b.symlink("../172.31.1.1.json", pool+"by-pod/apps%2Ftrainer-0@net1")
	b.symlink("../172.31.1.0_24/172.31.1.1.json", "ipam/space/reserved/172.31.1.1")
	if len(b.held()) != 2 {
		b.t.Fatalf("the pool was not placed: %v", b.held())
	}
}

func (b *earlierBench) mkdir(name string) {
	b.t.Helper()
	if err := os.MkdirAll(filepath.Join(b.state, name), 0o700); err != nil {
		b.t.Fatal(err)
	}
}

func (b *earlierBench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.state, name), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *earlierBench) symlink(target, name string) {
	b.t.Helper()
	b.mkdir(filepath.Dir(name))
	if err := os.Symlink(target, filepath.Join(b.state, name)); err != nil {
		b.t.Fatal(err)
	}
}

// set brings the kernel to a state of an earlier version's attachment.
func (b *earlierBench) set(s kernelState) {
	b.t.Helper()
	if s == untouched {
		return
	}
	if child, ok := b.record["child"].(map[string]any); ok {
		add := fmt.Sprintf("link add net1 link %v", child["master"])
		if mac, ok := b.record["mac"]; ok {
			add += fmt.Sprintf(" address %v", mac)
		}
		if b.linkInContainer() {
			b.pod.Batch(nil, add+" type macvlan mode bridge")
		} else {
			b.node.Batch(nil, add+" netns "+b.pod.Name+" type macvlan mode bridge")
		}
	} else {
		b.node.Batch(nil, "link set "+nicName+" down", "link set "+nicName+" netns "+b.pod.Name+" name net1 alias "+nicName)
	}
	if s == inPodDown {
		return
	}
	b.pod.Batch(nil, "link set net1 mtu 4000 up", "addr add 172.31.1.1/24 dev net1")
	switch s {
	case fallen:
		b.pod.IP("link", "set", "net1", "netns", b.node.Name)
	case moved:
		b.pod.IP("link", "set", "net1", "netns", b.node.Name, "name", nicName, "alias", "rail 1 of leaf 7")
	}
}

// end has a program end the attachment. The kernel deletes a macvlan some time
// after its pod netns. A program that runs earlier leaves the record to the
// next.
func (b *earlierBench) end(by string) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := b.tryEnd(by)
		later := b.plugin == "macvlan" && by != byDel && time.Now().Before(deadline)
		if err != nil && !later {
			b.t.Fatal(err)
		}
		if err == nil && len(b.records()) == 0 || !later {
			return
		}
	}
}

func (b *earlierBench) tryEnd(by string) error {
	b.t.Helper()
	switch by {
	case byOtherAdd:
		other := b.call("ADD", b.config(map[string]any{"device": spareNIC}))
		other.ContainerID, other.Netns = "c2", "/run/netns/"+testnet.NewNetns(b.t, "pod2").Name
		b.node.MustRun(other)
		b.node.MustRun(other.With("DEL"))
		return nil
	case byGC:
		var err error
		b.node.Inside(func() {
			_, err = exec.Command(filepath.Join(testnet.Bin(b.t), "railctl"), "gc", "--state-dir", b.state).Output()
		})
		return err
	default:
		_, err := b.node.Run(b.del())
		return err
	}
}

// ended fails the test if something of the attachment is left beside the host's
// own.
func (b *earlierBench) ended(podLives bool) {
	b.t.Helper()
	if podLives && b.pod.Has("net1") {
		b.t.Error("the pod still has the interface")
	}
	if podLives && b.linkInContainer() && !b.pod.Has("eth0") {
		b.t.Error("the pod has lost eth0")
	}
	if b.deviceInfo != "" {
		if _, err := os.Lstat(b.deviceInfo); err == nil {
			b.t.Error("the device information is left")
		}
	}
	for _, pattern := range []string{"nics/*", "attachments/*"} {
		if left, _ := filepath.Glob(filepath.Join(b.state, pattern)); len(left) > 0 {
			b.t.Errorf("left: %q", left)
		}
	}
}
