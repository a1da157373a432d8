//go:build rig

package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// The names that udev sets: those of NICs are in .link files, as netplan writes them;
// those of RDMA devices are made by rdma-core's rule from the PCI address.
func udevName(rail int) string { return fmt.Sprintf("roce%d", rail) }
func udevRDMA(rail int) string { return fmt.Sprintf("rocep0s%d", 11+rail) }

// udevRails is the number of NICs that udev names.
const udevRails = 4

// newUdevNode returns a node on which udev runs, and has named the first NICs and their
// RDMA devices.
func newUdevNode(t *testing.T, mode rdma.Mode) *node {
	t.Helper()
	startUdev(t)
	n := newRDMANode(t, mode, "")
	n.udevSettled()
	var commands, names []string
	for rail := range udevRails {
		names = append(names, udevName(rail))
		commands = append(commands, fmt.Sprintf("link set %s mtu 9000 up", udevName(rail)),
			fmt.Sprintf("addr add 10.%d.0.1/24 dev %s", 10+rail, udevName(rail)))
	}
	n.Batch(nil, commands...)
	n.carrier(names...)
	n.udevSettled()
	devices := n.allRDMA()
	for rail := range udevRails {
		if !strings.Contains(devices[udevRDMA(rail)], nicPCI(rail)) {
			t.Fatalf("udev did not name the RDMA devices: %v", devices)
		}
	}
	return n
}

// startUdev runs udev until the test ends.
func startUdev(t *testing.T) {
	t.Helper()
	const links = "/etc/systemd/network"
	if err := os.MkdirAll(links, 0o755); err != nil {
		t.Fatal(err)
	}
	for rail := range udevRails {
		text := fmt.Sprintf("[Match]\nPath=pci-%s\n\n[Link]\nName=%s\nMTUBytes=9000\n", nicPCI(rail), udevName(rail))
		if err := os.WriteFile(fmt.Sprintf("%s/10-netplan-rail%d.link", links, rail), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	cmd := exec.Command("/bin/udevadm")
	cmd.Args[0] = "systemd-udevd" // it is the same program
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("udev: %v\n%s", err, said.Bytes())
		}
		if err := os.RemoveAll(links); err != nil {
			t.Error(err)
		}
	})
	var out []byte
	var err error
	if !testnet.Within(20*time.Second, func() bool {
		out, err = exec.Command("udevadm", "control", "--ping").CombinedOutput()
		return err == nil
	}) {
		t.Fatalf("udev does not answer: %v\n%s", err, out)
	}
}

// udevSettled waits until udev has handled all events.
func (n *node) udevSettled() {
	n.t.Helper()
	n.Exec("udevadm", "settle", "--timeout=30")
}

func (n *node) udevConfig(rail int) string {
	return n.config(rail, map[string]any{"device": udevName(rail), "rdma": "required"})
}

// udevUntouched fails the test unless all is as before when udev is done.
func (n *node) udevUntouched(before string, devices map[string]string) {
	n.t.Helper()
	n.udevSettled()
	n.untouched(before)
	n.rdmaAll(devices)
}

// udevModes runs a test in both RDMA modes.
func udevModes(t *testing.T, test func(t *testing.T, n *node)) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) { test(t, newUdevNode(t, mode)) })
	}
}

// TestNICsThatUdevNamesComeHome has udev, which handles each NIC that comes to the host as
// a new one, and names it while it is restored.
func TestNICsThatUdevNamesComeHome(t *testing.T) {
	udevModes(t, func(t *testing.T, n *node) {
		before, devices := n.State(), n.allRDMA()
		for _, way := range []string{"DEL", "death, then DEL", "death, then railctl gc"} {
			for round := range rounds(t, 2) {
				p := n.pod("trainer")
				var loans []loan
				var calls []testnet.Call
				for rail := range udevRails {
					call := p.call("ADD", podName(rail), n.udevConfig(rail))
					var conf map[string]any
					if err := json.Unmarshal([]byte(call.Config), &conf); err != nil {
						t.Fatal(err)
					}
					conf["prevResult"] = json.RawMessage(n.MustRun(call))
					text, err := json.Marshal(conf)
					if err != nil {
						t.Fatal(err)
					}
					check := call.With("CHECK")
					check.Config = string(text)
					n.MustRun(check)
					loans, calls = append(loans, loan{p, rail, podName(rail)}), append(calls, call.With("DEL"))
				}
				if way != "DEL" {
					p.Kill()
				}
				if way == "death, then railctl gc" {
					n.fallen(loans)
					n.gc()
				} else {
					for _, c := range calls {
						n.MustRun(c)
					}
				}
				if n.udevUntouched(before, devices); t.Failed() {
					t.Fatalf("%s, round %d", way, round)
				}
			}
		}
	})
}

// TestAddsAndDelsBesideUdev lends and returns each NIC again and again, all at once, while
// udev still handles the events of the time before.
func TestAddsAndDelsBesideUdev(t *testing.T) {
	udevModes(t, func(t *testing.T, n *node) {
		before, devices := n.State(), n.allRDMA()
		var all sync.WaitGroup
		for rail := range udevRails {
			p, config := n.pod(fmt.Sprintf("pod%d", rail)), n.udevConfig(rail)
			all.Go(func() {
				for round := range rounds(t, 3) {
					for _, verb := range []string{"ADD", "DEL"} {
						if _, err := n.Run(p.call(verb, "net1", config)); err != nil {
							t.Errorf("%s of %s, round %d: %v", verb, udevName(rail), round, err)
							return
						}
					}
				}
			})
		}
		all.Wait()
		n.udevUntouched(before, devices)
	})
}

// TestNICThatIsMadeAnewIsLentWhileUdevNamesIt has a NIC that its driver makes anew, and an
// ADD that may find it under the kernel's name or under udev's.
func TestNICThatIsMadeAnewIsLentWhileUdevNamesIt(t *testing.T) {
	udevModes(t, func(t *testing.T, n *node) {
		names := slices.Sorted(maps.Keys(n.allRDMA()))
		p := n.pod("trainer")
		config := n.config(0, map[string]any{"device": nil, "pciBusID": nicPCI(0), "rdma": "required"})
		for round := range rounds(t, 4) {
			write(t, driver+"unbind", nicPCI(0))
			write(t, driver+"bind", nicPCI(0))
			time.Sleep(time.Duration(round) * 15 * time.Millisecond) // udev is a step further each time
			if _, err := n.Run(p.call("ADD", "net1", config)); err != nil {
				t.Errorf("round %d: ADD: %v", round, err)
			}
			if _, err := n.Run(p.call("DEL", "net1", config)); err != nil {
				t.Errorf("round %d: DEL: %v", round, err)
			}
			n.udevSettled()
			if l, err := link.ByName(n.Netns.Netns, udevName(0)); err != nil || l.ParentDev != nicPCI(0) {
				t.Fatalf("round %d: %s is %+v, %v", round, udevName(0), l, err)
			}
			if now := n.allRDMA(); !slices.Equal(slices.Sorted(maps.Keys(now)), names) {
				t.Errorf("round %d: RDMA devices %v, before: %v", round, now, names)
			}
		}
		for _, r := range n.records() {
			t.Errorf("a record is left: %s, phase %s", r.Holder(), r.Phase)
		}
	})
}
