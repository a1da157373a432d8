package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestAttachmentsOfPodsThatDieAreEndedAtOnce(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	a := l.start()
	var took []time.Duration
	for i := range 5 {
		// A veth is destroyed with its pod. A macvlan is destroyed as well, but the host gets no
		// message about it.
		veth := fmt.Sprint("ens2", i) // the kernel destroys the last one's peer later
		l.node.NIC(veth, l.wire)
		before := l.node.State()
		pod := testnet.NewNetns(t, fmt.Sprint("pod", i))
		l.node.MustRun(l.call("host-device", "ADD", veth, pod, "net1"))
		l.node.MustRun(l.call("macvlan", "ADD", "ens1", pod, "net2"))
		if n := len(l.records()); n != 2 {
			t.Fatalf("%d records", n)
		}
		pod.Kill()
		took = append(took, await(t, "the records' end", 5*time.Second, func() bool { return len(l.records()) == 0 }))
		if l.node.State() == before {
			t.Fatal("the veth was returned")
		}
	}
	t.Logf("from the pod's death to two attachments' end: %v", took)
	addressOf(t, l.node.MustRun(l.call("macvlan", "ADD", "ens1", testnet.NewNetns(t, "last"), "net1")), "10.9.0.1/24")
	if n, _ := a.metric("rail_cni_release_duration_seconds_count"); n != 10 {
		t.Errorf("%v attachments ended", n)
	}
	if w := a.said("level=WARN"); len(w) > 1 { // one warning of pkg/part/netdev for each destroyed veth
		for _, line := range w {
			if !strings.Contains(line, "no longer exists") {
				t.Error(line)
			}
		}
	}
}

// TestNICsThatFellHomeAreRestoredAtOnce moves virtual NICs to the host, down
// and under the names that the pod gave them (each other's as well), as the
// kernel moves real ones when a pod dies (tested in integration/rig).
func TestNICsThatFellHomeAreRestoredAtOnce(t *testing.T) {
	l := newLab(t)
	const rails = 8
	for i := range rails {
		name := fmt.Sprint("ens1", i)
		l.node.NIC(name, l.wire)
		l.node.IP("link", "property", "add", "dev", name, "altname", "enp4s"+fmt.Sprint(i))
		l.node.IP("addr", "add", fmt.Sprintf("10.%d.0.1/24", 20+i), "dev", name)
		l.node.Sysctl("ipv4/conf/"+name+"/arp_ignore", "1")
	}
	before := l.node.State()
	l.start()
	var took []time.Duration
	for round := range 6 {
		pod := testnet.NewNetns(t, fmt.Sprint("pod", round))
		var fall []string
		for i := range rails {
			ifName := fmt.Sprint("net", i+1)
			if round%2 == 1 { // the name that another one needs on the host, in pairs or in a cycle
				ifName = fmt.Sprint("ens1", []int{i ^ 1, (i + 1) % rails}[round/2%2])
			}
			l.node.MustRun(l.call("host-device", "ADD", fmt.Sprint("ens1", i), pod, ifName))
			fall = append(fall, "link set "+ifName+" netns "+l.node.Name)
		}
		pod.Batch(nil, fall...)
		died := time.Now()
		pod.Kill()
		await(t, "all NICs to be usable", 10*time.Second, func() bool {
			links, err := link.Links(l.node.Netns)
			if err != nil {
				t.Fatal(err)
			}
			up := 0
			for _, k := range links {
				if strings.HasPrefix(k.Name, "ens1") && k.IsUp() {
					up++
				}
			}
			return up == rails
		})
		took = append(took, time.Since(died).Round(time.Millisecond))
		await(t, "the records' end", 10*time.Second, func() bool { return len(l.records()) == 0 })
		if d := l.node.Settled(before); d != "" {
			t.Fatalf("the host is not as it was:\n%s", d)
		}
	}
	t.Logf("from a pod's death to %d NICs named and up: %v", rails, took)
}

func TestLivingPodsAndThoseThatAPluginWorksOnAreLeftAlone(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	lives, dies := testnet.NewNetns(t, "lives"), testnet.NewNetns(t, "dies")
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", lives, "net1"))
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", dies, "net1"))
	d, err := ledger.Open(l.state)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	lock, err := d.TryLockAttachment(ledger.Key{ContainerID: dies.Name, IfName: "net1"})
	if err != nil {
		t.Fatal(err)
	}
	a := l.start()
	dies.Kill()
	await(t, "the agent to know of the pod's end", busy, func() bool {
		n, _ := a.metric("rail_cni_attachments", `pod_netns="gone"`)
		return n == 1
	})
	known, _ := a.metric("rail_cni_scans_total")
	await(t, "two more looks", busy, func() bool {
		n, _ := a.metric("rail_cni_scans_total")
		return n >= known+2
	})
	if left := l.records(); len(left) != 2 {
		t.Errorf("%d records are left while a plugin works", len(left))
	}
	_ = lock.Unlock()
	await(t, "the record's end", 3*time.Second, func() bool { return len(l.records()) == 1 })
	if _, err := link.ByName(lives.Netns, "net1"); err != nil {
		t.Error(err)
	}
	if n, _ := a.metric("rail_cni_release_failures_total"); n != 0 {
		t.Errorf("waiting for a plugin counts as %v failures", n)
	}
}

func TestAgentDoesAtItsStartWhatWasLeft(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	before := l.node.State()
	pods := []*testnet.Netns{testnet.NewNetns(t, "pod1"), testnet.NewNetns(t, "pod2")}
	for _, p := range pods {
		l.node.MustRun(l.call("macvlan", "ADD", "ens1", p, "net1"))
		p.Delete()
	}
	l.start()
	await(t, "the records' end", 5*time.Second, func() bool { return len(l.records()) == 0 })
	if d := l.node.Settled(before); d != "" {
		t.Error(d)
	}
}

// TestRecordsOfAnotherBootAreSettled has records that a reboot leaves behind if the state directory
// is on a disk. The objects of these records no longer exist, although other objects may look the
// same.
func TestRecordsOfAnotherBootAreSettled(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	l.node.NIC("ens2", l.wire)
	pod := testnet.NewNetns(t, "pod")
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", pod, "net1"))
	l.node.MustRun(l.call("host-device", "ADD", "ens2", pod, "net2"))
	files, err := filepath.Glob(filepath.Join(l.state, "attachments", "*.json"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r map[string]any
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		if r["bootID"] == nil {
			t.Fatalf("%s is on a tmpfs; this test needs TMPDIR on a disk", l.state)
		}
		r["bootID"] = "11111111-2222-3333-4444-555555555555"
		if text, err = json.Marshal(r); err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	host, inPod := l.node.State(), pod.State()
	l.start()
	await(t, "the records' end", 5*time.Second, func() bool { return len(l.records()) == 0 })
	if d := l.node.Settled(host) + pod.Settled(inPod); d != "" {
		t.Errorf("something was touched:\n%s", d)
	}
	addressOf(t, l.node.MustRun(l.call("macvlan", "ADD", "ens1", testnet.NewNetns(t, "next"), "net1")), "10.9.0.1/24")
}

func TestWhatCannotBeEndedIsToldOnceAndDoneLater(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	bin := t.TempDir()
	for _, name := range []string{"macvlan", "whereabouts"} {
		copyFile(t, filepath.Join(testnet.Bin(t), name), filepath.Join(bin, name))
	}
	l.path = bin
	pod := testnet.NewNetns(t, "pod")
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", pod, "net1"))
	if err := os.Rename(filepath.Join(bin, "whereabouts"), filepath.Join(bin, "away")); err != nil {
		t.Fatal(err)
	}
	a := l.start()
	pod.Kill()
	await(t, "three tries", 20*time.Second, func() bool {
		n, _ := a.metric("rail_cni_release_failures_total", `plugin="macvlan"`)
		return n >= 3
	})
	if told := a.said("reason=NotReturned"); len(told) != 1 || !strings.Contains(told[0], "not installed") {
		t.Errorf("it told %d times: %s", len(told), strings.Join(told, "\n"))
	}
	if n, _ := a.metric("rail_cni_nics_not_returned"); n != 1 {
		t.Errorf("%v NICs are not returned", n)
	}
	// A record that is unreadable for a while does not mean that the NIC was
	// returned.
	record := filepath.Join(l.state, "attachments", pod.Name+"@net1.json")
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	put := func(text []byte) {
		if err := os.WriteFile(record, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put([]byte("{"))
	l.node.IP("link", "add", "wakes", "type", "bridge")
	await(t, "the agent to see that", 10*time.Second, func() bool { return len(a.said("reason=UnreadableRecord")) == 1 })
	put(text)
	if told := a.said("reason=Returned"); len(told) != 0 {
		t.Errorf("it told %q", told)
	}
	if s := a.status(); len(s.StateDirs) != 1 || len(s.StateDirs[0].Ending) != 1 || s.StateDirs[0].Ending[0].Error == "" || s.StateDirs[0].Ending[0].ContainerID != pod.Name {
		t.Errorf("status: %+v", s)
	}
	if err := os.Rename(filepath.Join(bin, "away"), filepath.Join(bin, "whereabouts")); err != nil {
		t.Fatal(err)
	}
	await(t, "the record's end", 20*time.Second, func() bool { return len(l.records()) == 0 })
	await(t, "the agent to say so", time.Second, func() bool { return len(a.said("reason=Returned")) == 1 })
	if n, lines := a.metric("rail_cni_nics_not_returned"); n != 0 || lines != 1 {
		t.Errorf("%v NICs are not returned, in %d lines", n, lines)
	}
}

// addressOf fails the test if the result does not have this address. It must be the lowest address,
// which shows that all lower addresses were freed.
func addressOf(t *testing.T, result []byte, want string) {
	t.Helper()
	if !bytes.Contains(result, []byte(want)) {
		t.Errorf("the address is not %s: %s", want, result)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestWhatHasNoEndInAPluginsPlaceIsReplaced puts a FIFO and a link to a device in the place of
// plugins. The agent must not wait for the FIFO, and must not read the device to its end.
func TestWhatHasNoEndInAPluginsPlaceIsReplaced(t *testing.T) {
	l := newLab(t)
	l.alone = true
	own, bin := t.TempDir(), t.TempDir()
	for _, name := range []string{"macvlan", "rdma"} {
		copyFile(t, filepath.Join(testnet.Bin(t), name), filepath.Join(own, name))
	}
	if err := errors.Join(syscall.Mkfifo(filepath.Join(bin, "macvlan"), 0o755), os.Symlink("/dev/zero", filepath.Join(bin, "rdma"))); err != nil {
		t.Fatal(err)
	}
	a := l.start("--own", own, "--cni-bin", bin, "--restore-binaries")
	await(t, "both to be restored", 5*time.Second, func() bool { return len(a.said("reason=PluginRestored")) == 2 })
	for _, name := range []string{"macvlan", "rdma"} {
		if info, err := os.Lstat(filepath.Join(bin, name)); err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestPluginsThatAreReplacedAreToldOfOrRestored(t *testing.T) {
	for _, restore := range []bool{false, true} {
		t.Run(fmt.Sprintf("restore=%v", restore), func(t *testing.T) {
			l := newLab(t)
			l.alone = true
			own, bin := t.TempDir(), t.TempDir()
			for _, name := range []string{"macvlan", "rdma"} {
				copyFile(t, filepath.Join(testnet.Bin(t), name), filepath.Join(own, name))
				copyFile(t, filepath.Join(testnet.Bin(t), name), filepath.Join(bin, name))
			}
			a := l.start("--own", own, "--cni-bin", bin, fmt.Sprintf("--restore-binaries=%v", restore))
			ours := func(name string) float64 {
				n, lines := a.metric("rail_cni_plugin_matches", bin+"/"+name+`"`)
				if lines > 1 {
					t.Errorf("%d lines of %s", lines, name)
				}
				return n
			}
			await(t, "the first comparison", 5*time.Second, func() bool { return ours("macvlan")+ours("rdma") == 2 })
			if n, lines := a.metric("rail_cni_plugin_matches"); n != 2 || lines != 2 {
				t.Errorf("%v of %d plugins are ours", n, lines)
			}
			// One installer overwrites the file, and another one renames a new file over it.
			if err := os.WriteFile(filepath.Join(bin, "macvlan"), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(bin, "rdma")); err != nil {
				t.Fatal(err)
			}
			if restore {
				await(t, "both to be restored", 5*time.Second, func() bool { return len(a.said("reason=PluginRestored")) == 2 })
				for _, name := range []string{"macvlan", "rdma"} {
					want, err := os.ReadFile(filepath.Join(own, name))
					if err != nil {
						t.Fatal(err)
					}
					got, err := os.ReadFile(filepath.Join(bin, name))
					if err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s was not restored: %d bytes, %v", name, len(got), err)
					}
					if info, err := os.Stat(filepath.Join(bin, name)); err != nil || info.Mode() != 0o755 {
						t.Error(info.Mode(), err)
					}
				}
				if files, err := os.ReadDir(bin); err != nil || len(files) != 2 {
					t.Error(files, err)
				}
				await(t, "both to be ours", 5*time.Second, func() bool { return ours("macvlan")+ours("rdma") == 2 })
				for i := range 3 { // something that installs its own each time
					if err := os.WriteFile(filepath.Join(bin, "macvlan"), []byte("#!/bin/sh\n"), 0o755); err != nil {
						t.Fatal(err)
					}
					await(t, "an answer", 5*time.Second, func() bool {
						return len(a.said("PluginRestored"))+len(a.said("again and again")) == 3+i
					})
				}
				if n := len(a.said("again and again")); n != 1 {
					t.Errorf("it told %d times that it gives up", n)
				}
				return
			}
			await(t, "both to be told of", 5*time.Second, func() bool { return len(a.said("reason=PluginReplaced")) == 2 })
			if n := ours("macvlan") + ours("rdma"); n != 0 {
				t.Errorf("%v of them are ours", n)
			}
			copyFile(t, filepath.Join(own, "macvlan"), filepath.Join(bin, "macvlan"))
			await(t, "the plugin to match again", 5*time.Second, func() bool { return len(a.said("reason=PluginMatches")) == 1 })
		})
	}
}

func TestSocketIsForRootAndForOneAgent(t *testing.T) {
	l := newLab(t)
	a := l.start()
	info, err := os.Stat(a.socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if code, body := a.get("/healthz"); code != http.StatusOK {
		t.Error(code, body)
	}
	if s := a.status(); s.Node == "" || len(s.StateDirs) != 1 || s.StateDirs[0].Path != l.state || s.MemoryBytes == 0 {
		t.Errorf("status: %+v", s)
	}
	second := l.launch()
	select {
	case <-second.ended:
	case <-time.After(10 * time.Second):
		t.Error("a second agent takes the socket of the first")
	}
	await(t, "its reason", time.Second, func() bool { return len(second.said("another rail-agent answers")) == 1 })
	// A killed agent's leftovers do not prevent the next start.
	a.end(syscall.SIGKILL)
	if _, err := os.Stat(a.socket); err != nil {
		t.Fatal(err)
	}
	l.start()
}

func TestCorruptRecordIsToldOfAndKeepsNothingElseAway(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	pod := testnet.NewNetns(t, "pod")
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", pod, "net1"))
	bad := filepath.Join(l.state, "attachments", "c1@net1.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := l.launch()
	await(t, "the agent to tell", 10*time.Second, func() bool { return len(a.said("reason=UnreadableRecord")) == 1 })
	if code, _ := a.get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", code)
	}
	pod.Kill()
	await(t, "the other record's end", 5*time.Second, func() bool {
		files, err := filepath.Glob(filepath.Join(l.state, "attachments", "*.json"))
		return err == nil && len(files) == 1
	})
	if n, _ := a.metric("rail_cni_unreadable_records"); n != 1 {
		t.Errorf("%v records cannot be read", n)
	}
}

// TestAgentRestsWhenNothingHappens measures for a few seconds. The promised figures are the same
// for any time.
func TestAgentRestsWhenNothingHappens(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	l.alone = true
	a := l.start("--cni-bin", testnet.Bin(t), "--own", testnet.Bin(t))
	a.rests()
}

// rests checks that the agent does nothing for some seconds: it does not look for changes, and it
// needs almost no CPU time. It also checks that the agent's memory is limited.
func (a *running) rests() {
	a.t.Helper()
	looks := func() float64 { n, _ := a.metric("rail_cni_scans_total"); return n }
	const span = 5 * time.Second
	// After an event, the agent looks several times, and the last time a second later.
	began, since := looks(), time.Now()
	await(a.t, "the last look", busy, func() bool {
		if n := looks(); n != began {
			began, since = n, time.Now()
		}
		return time.Since(since) > span/2
	})
	before, _ := a.metric("process_cpu_seconds_total")
	time.Sleep(span) // the measurement
	after, _ := a.metric("process_cpu_seconds_total")
	memory, _ := a.metric("process_resident_memory_bytes")
	timing.Check(a.t, fmt.Sprintf("the agent's work in a rest of %v", span), time.Duration((after-before)*float64(time.Second)), 50*time.Millisecond)
	a.t.Logf("resident: %.1f MiB", memory/(1<<20))
	if n := looks(); n > began+1 { // one may be due
		a.t.Errorf("it looked %v times in %v", n-began, span)
	}
	if memory > 40<<20 {
		a.t.Errorf("%.1f MiB are resident", memory/(1<<20))
	}
}

func TestNICWithTheNodesAddressInTheClusterIsNotLent(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	l.node.IP("addr", "add", "10.7.0.5/24", "dev", "ens1")
	pod := testnet.NewNetns(t, "pod")
	add := l.call("host-device", "ADD", "ens1", pod, "net1")
	a := l.start("--node-ip", "10.7.0.5")
	before := l.node.State()
	if _, err := l.node.Run(add); err == nil || !strings.Contains(err.Error(), "the node's address in the cluster, 10.7.0.5") {
		t.Error(err)
	}
	if d := l.node.Settled(before); d != "" {
		t.Error(d)
	}
	a.end(syscall.SIGTERM) // it would write the file again
	file := filepath.Join(l.state, "node-ip")
	if err := os.WriteFile(file, []byte("10.7.0.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.node.Run(add); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "rail-agent writes the file again") {
		t.Errorf("with a file that has no address: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	l.node.MustRun(add)
	l.node.MustRun(add.With("DEL"))
	wrong := l.launch("--node-ip", "rail-1.example")
	<-wrong.ended
	if said := wrong.said("--node-ip"); len(said) != 1 {
		t.Errorf("of an address that is none it says %q", wrong.said(""))
	}
}

// TestAgentHasOneInotifyInstance: the kernel limits the number of inotify instances of each user
// (fs.inotify.max_user_instances). The agent shares root's limit with the kubelet and the runtime.
func TestAgentHasOneInotifyInstance(t *testing.T) {
	l, kubelet := newLab(t), scratch.Dir(t)
	a := l.start("--cni-bin", t.TempDir(), "--own", testnet.Bin(t), "--kubelet-dir", kubelet, "--nri-socket", filepath.Join(kubelet, "nri.sock"))
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && to == "anon_inode:inotify" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d inotify instances", n)
	}
}
