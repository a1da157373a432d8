//go:build machines

package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

func init() { drives = true }

// The machine of the first boot is killed, as by a power failure, when it
// prints this text.
const powerMayFail = "the power may fail now"

// TestNICsComeHomeWhenThePowerFails runs itself in two boots of a machine with
// one disk, which has the state directory: the first one lends, and is killed.
// The API server runs on the host, without interruption.
func TestNICsComeHomeWhenThePowerFails(t *testing.T) {
	switch os.Getenv("RIG_BOOT") {
	case "1":
		lendUntilThePowerFails(t)
		return
	case "2":
		findAfterTheReset(t)
		return
	}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 64<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", disk).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	plane := controlplane.Start(t, controlplane.Options{})
	credential, err := plane.CertificateFor("reset", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	// The server's certificate does not have the address at which machines see it.
	form := controlplane.Form{Path: filepath.Join(files, apiAccount), Namespace: "kube-system", Server: "https://" + wire.Reached, SkipVerify: true}
	if _, err := plane.Kubeconfig(credential, form); err != nil {
		t.Fatal(err)
	}
	env := []string{"RIG_DISK=" + disk, "RIG_FILES=" + files, "RIG_REACH=" + strings.TrimPrefix(plane.Server(), "https://")}
	out, err := boot(t, append(env, "RIG_BOOT=1"))
	if err == nil || !strings.Contains(out, powerMayFail) {
		t.Fatalf("the first boot: %v\n%s", err, out)
	}
	if n := held(t, plane); n != 1 {
		t.Errorf("%d addresses are held in the cluster when the power fails, want 1", n)
	}
	if out, err = boot(t, append(env, "RIG_BOOT=2")); err != nil {
		t.Errorf("the second boot: %v\n%s", err, out)
	}
	if n := held(t, plane); n != 0 {
		t.Errorf("%d addresses are held in the cluster after the reset", n)
	}
}

// held returns the number of addresses in the cluster's pools.
func held(t *testing.T, plane *controlplane.Plane) (n int) {
	t.Helper()
	var pools struct {
		Items []struct {
			Spec struct{ Allocations map[string]any }
		}
	}
	path := fmt.Sprintf("/apis/%s/%s/namespaces/kube-system/ippools", api.Group, api.Version)
	code, answer, err := plane.Admin().Get(t.Context(), path)
	if err == nil {
		err = json.Unmarshal(answer, &pools)
	}
	if err != nil || len(pools.Items) == 0 {
		t.Fatalf("the pools: %d, %v\n%s", code, err, answer)
	}
	for _, pool := range pools.Items {
		n += len(pool.Spec.Allocations)
	}
	return n
}

// boot runs this test in a machine, and kills that at powerMayFail.
func boot(t *testing.T, env []string) (string, error) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := rig.FindRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	said := &listener{heard: kill}
	// The machine must not outlive the program.
	limit := need.Either("5m", "50m")
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "tools", "rig"), program, "-test.v", "-test.run=^"+t.Name()+"$", "-test.timeout="+limit)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = said, said
	err = cmd.Run()
	return string(said.text), err
}

// listener keeps the output, and closes a channel at powerMayFail.
type listener struct {
	text  []byte
	heard func()
}

func (l *listener) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	if strings.Contains(string(l.text), powerMayFail) {
		l.heard()
	}
	return len(p), nil
}

// diskNode is a node whose state directory outlives the machine.
func diskNode(t *testing.T) *node {
	t.Helper()
	if err := kmod.Disk("/disk"); err != nil {
		t.Fatal(err)
	}
	if err := kmod.LoadAll(wire.Devices); err != nil {
		t.Fatal(err)
	}
	n := newRDMANode(t, rdma.Exclusive, "")
	n.Batch(nil, "link set eth0 up", "address add "+wire.Address+" dev eth0")
	n.carrier("eth0")
	n.state = "/disk/state"
	n.writePools()
	n.furnish(rails)
	return n
}

// diskLoan holds the facts about a loan of the first boot that the second
// needs.
type diskLoan struct{ Config, Netns string }

const (
	diskLoans   = "/disk/loans.json"
	firstAddr   = "172.31.1.1"
	rebootedPod = "trainer"
	apiAccount  = "/kubeconfig" // of the machine, for its way to the API server
)

func (n *node) diskConfig(rail int) string {
	n.t.Helper()
	more := map[string]any{"rdma": "required", "ipam": map[string]any{
		"type": "whereabouts", "store": "local", "range": fmt.Sprintf("172.31.%d.0/24", rail+1),
	}}
	if _, allocated := holders[rail]; allocated { // what Multus makes of the NAD
		maps.Copy(more, map[string]any{"device": nil, "rail": rail, "deviceID": nicPCI(rail)})
	}
	return n.config(rail, more)
}

// lendUntilThePowerFails lends all rails, two of them by what the device plugin allocated,
// ends and repeats some loans, and lets a DEL wait for an unreachable API server.
func lendUntilThePowerFails(t *testing.T) {
	n := diskNode(t)
	n.allocateHolders()
	p := n.pod(rebootedPod)
	var loans []diskLoan
	for rail := range rails {
		c := p.call("ADD", podName(rail), n.diskConfig(rail))
		if holder, allocated := holders[rail]; allocated {
			c = n.pod(holder).call("ADD", podName(rail), n.diskConfig(rail))
			c.Args = argsOf(holder)
		}
		n.MustRun(c)
		loans = append(loans, diskLoan{c.Config, c.Netns})
	}
	// The record of the last rail replaces an older one.
	last := p.call("DEL", podName(rails-1), loans[rails-1].Config)
	n.MustRun(last)
	n.MustRun(last.With("ADD"))
	// The DEL of a pod with an address of the cluster cannot reach the server.
	// No NIC has this interface name: its DEL after the reset would release
	// the address too.
	c := p.call("ADD", "cluster0", n.config(0, map[string]any{"device": nil, "ipam": map[string]any{
		"type": "whereabouts", "range": "172.31.99.0/24", "kubernetes": map[string]any{"kubeconfig": apiAccount},
	}}))
	c.Plugin, c.Args = "whereabouts", "IgnoreUnknown=1;K8S_POD_NAMESPACE=apps;K8S_POD_NAME="+rebootedPod
	n.MustRun(c)
	n.IP("link", "set", "eth0", "down")
	if _, err := n.Run(c.With("DEL")); err != nil {
		t.Fatalf("DEL while the API server is away: %v", err)
	}
	text, err := json.Marshal(loans)
	if err != nil {
		t.Fatal(err)
	}
	// The plugins sync their own files; this one is ours.
	f, err := os.Create(diskLoans)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(powerMayFail)
	select {}
}

// findAfterTheReset runs on the node after the reset: its NICs are as its
// drivers and its administrator make them, and they are still lent in the
// ledger.
func findAfterTheReset(t *testing.T) {
	n := diskNode(t)
	before, devices := n.State(), n.allRDMA()
	var loans []diskLoan
	text, err := os.ReadFile(diskLoans)
	if err = errors.Join(err, json.Unmarshal(text, &loans)); err != nil {
		t.Fatal(err)
	}
	if got := n.records(); len(got) != rails {
		t.Fatalf("%d records outlived the reset, want %d", len(got), rails)
	}
	for _, r := range n.records() {
		if r.RDMA == nil || len(r.Addresses) != 1 || r.Phase != ledger.Lent {
			t.Errorf("the record of %s is not whole: %+v", r.Key, r)
		}
	}
	// The runtime ends the attachments that it remembers; the pods' netns no
	// longer exist.
	for rail := range rails / 2 {
		n.MustRun(testnet.Call{
			Plugin: "host-device", Verb: "DEL", ContainerID: rebootedPod, IfName: podName(rail),
			Netns: loans[rail].Netns, Config: loans[rail].Config,
		})
	}
	left := n.records()
	for _, r := range left {
		if slices.Contains([]string{"net1", "net2", "net3", "net4"}, r.IfName) {
			t.Errorf("%s is recorded after its DEL", r.Key)
		}
	}
	// The local store forgets all addresses at its first use after a boot.
	if held := testnet.Leftovers(t, filepath.Join(n.state, "ipam")); len(left) != rails/2 || len(held) > 0 {
		t.Errorf("after %d DELs: %d records, and addresses %v", rails/2, len(left), held)
	}
	n.as(before, devices)
	// The agent ends the others, and frees the addresses that waited for the
	// API server; the next ADD gets a free NIC.
	if n.waiting() != 1 {
		t.Errorf("%d frees wait for the API server, want 1", n.waiting())
	}
	k := n.offerAfterTheReset()
	testnet.Within(20*time.Second, func() bool { return len(n.records())+n.waiting() == 0 })
	n.untouched(before)
	if n.waiting() != 0 {
		t.Errorf("%d frees wait for the API server, which is there", n.waiting())
	}
	n.devicesAfterTheReset(k, before)
	p := n.pod("next")
	add := p.call("ADD", "net1", loans[0].Config)
	if out := string(n.MustRun(add)); !strings.Contains(out, firstAddr+"/24") {
		t.Errorf("the next pod does not get %s: %s", firstAddr, out)
	}
	n.MustRun(add.With("DEL"))
	n.untouched(before)
	n.as(before, devices)
	if held := testnet.Leftovers(t, filepath.Join(n.state, "ipam")); len(held) > 0 {
		t.Errorf("addresses are held: %v", held)
	}
}

// waiting returns the number of entries in the journal.
func (n *node) waiting() int {
	n.t.Helper()
	frees, err := store.Journal{Path: filepath.Join(n.state, "ipam-journal")}.Waiting()
	if err != nil {
		n.t.Fatal(err)
	}
	return len(frees)
}

// as fails the test unless links and RDMA devices are as before.
func (n *node) as(before string, devices map[string]string) {
	n.t.Helper()
	if d := n.Settled(before); d != "" {
		n.t.Errorf("the host is not as it was:\n%s", d)
	}
	if now := n.allRDMA(); !maps.Equal(now, devices) {
		n.t.Errorf("RDMA devices:\n%v\nbefore:\n%v", now, devices)
	}
}
