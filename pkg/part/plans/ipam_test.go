package plans_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// answering returns a directory with an IPAM plugin "spy" that runs a shell
// script, beside the project's plugins.
func (b *bench) answering(script string) (path string) {
	b.t.Helper()
	path = pluginDir(b.t)
	writeExecutable(b.t, filepath.Join(path, "spy"), "#!/bin/sh\n"+script+"\n")
	return path
}

const spyResult = `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`

// TestIPAMPluginDiesWithTheADD kills an ADD as runtimes do, without its
// children: these would go on and assign an address after the DEL.
func TestIPAMPluginDiesWithTheADD(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	pidFile := filepath.Join(t.TempDir(), "pid")
	path := b.answering(`[ "$CNI_COMMAND" = ADD ] || exit 0; echo $$ >` + pidFile + `; exec sleep 60`)
	c := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
	c.Path = path
	cmd := exec.Command("ip", "netns", "exec", b.node.Name, filepath.Join(path, "host-device"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+c.ContainerID, "CNI_IFNAME="+c.IfName, "CNI_NETNS="+c.Netns, "CNI_PATH="+path)
	cmd.Stdin = strings.NewReader(c.Config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	for deadline := time.Now().Add(20 * time.Second); child == 0; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(pidFile)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		if time.Now().After(deadline) {
			t.Fatal("the IPAM plugin was not called")
		}
	}
	_ = cmd.Process.Kill() // "ip" has executed the plugin
	_ = cmd.Wait()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Fatal("the IPAM plugin lives on")
		}
	}
	b.node.MustRun(c.With("DEL"))
	b.untouched(before)
}

// TestWhatAnIPAMPluginLeavesRunningIsNotWaitedFor uses one that leaves a
// process with its stdout behind.
func TestWhatAnIPAMPluginLeavesRunningIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	c := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
	// The process ends after the test, when its file goes.
	c.Path = b.answering(`while [ -e "$0" ]; do sleep 1; done & echo '` + spyResult + `'`)
	for _, verb := range []string{"ADD", "DEL"} {
		began := time.Now()
		b.node.MustRun(c.With(verb))
		timing.Check(t, verb, time.Since(began), 3*time.Second)
	}
	b.untouched(before)
}

func TestResultsWithHolesAreErrors(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	holes := []string{
		"null", `{"ips":null}`, `{"ips":[null]}`, `{"cniVersion":"0.4.0","ips":[null]}`, `{"cniVersion":"1.0.0","interfaces":[null],"ips":[{"address":"10.1.2.3/24"}]}`,
		`{"cniVersion":"0.3.1","routes":[null],"ips":[{"version":"4","address":"10.1.2.3/24"}]}`,
	}
	for _, hole := range holes {
		c := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
		c.Path = b.answering(`[ "$CNI_COMMAND" = ADD ] && echo '` + hole + `' || true`)
		if err := b.answered(c); err == nil {
			t.Errorf("an IPAM plugin answers %s, and ADD succeeds", hole)
		}
		b.untouched(before)
	}
	add := b.call("ADD", b.config(nil))
	b.node.MustRun(add)
	for _, hole := range holes {
		c := b.call("CHECK", b.withPrevResult(b.config(nil), []byte(hole)))
		if err := b.answered(c); err == nil {
			t.Errorf("prevResult is %s, and CHECK succeeds", hole)
		}
	}
	b.node.MustRun(add.With("DEL"))
}

// TestAddressThatIsStillToBeFreedKeepsItsRecord reuses the attachment's name
// while the IPAM plugin is not installed.
func TestAddressThatIsStillToBeFreedKeepsItsRecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	b.path = pluginDir(t)
	c := b.call("ADD", b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")}))
	c.Path = b.path
	b.node.MustRun(c)
	b.hideIPAM(t)
	b.node.MustRun(c.With("DEL"))
	again := c
	again.Config = b.config(map[string]any{"ipam": map[string]any{}})
	_, err := b.node.Run(again)
	fails(t, err, cnierr.TryAgain, "an earlier attachment", "install it again")
	if r := b.records(); len(r) != 1 || len(b.held()) == 0 {
		t.Errorf("%d records, held: %v", len(r), b.held())
	}
	if err := os.Rename(filepath.Join(b.path, "hidden"), filepath.Join(b.path, "whereabouts")); err != nil {
		t.Fatal(err)
	}
	b.node.MustRun(again)
	b.node.MustRun(again.With("DEL"))
	b.untouched(before)
}

// TestGCWithoutAListFreesNothing has an IPAM plugin that mistakes a missing list for an empty list
// (host-local of plugins v1.10.0).
func TestGCWithoutAListFreesNothing(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]map[string]any{"none": nil, "null": {"cni.dev/valid-attachments": json.RawMessage("null")}} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(plugin+", "+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				log := filepath.Join(t.TempDir(), "log")
				path := b.answering("echo $CNI_COMMAND >>" + log + "; [ $CNI_COMMAND != ADD ] || echo '" + spyResult + "'")
				config := b.of(plugin, map[string]any{"ipam": map[string]any{"type": "spy"}})
				for _, call := range []testnet.Call{b.call("ADD", config), b.call("GC", b.of(plugin, merged(map[string]any{"ipam": map[string]any{"type": "spy"}}, list)))} {
					call.Path = path
					b.node.MustRun(call)
				}
				if text, err := os.ReadFile(log); err != nil || string(text) != "ADD\n" {
					t.Errorf("IPAM was called with %q, %v", text, err)
				}
			})
		}
	}
}

// An IPAM plugin knows the pod, or the requested address, by the arguments. A DEL, a GC and a sweep have
// none of this attachment.
func TestIPAMPluginGetsTheArgumentsOfADDAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := filepath.Join(t.TempDir(), "log")
	add := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
	add.Path = b.answering("echo $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS >>" + log +
		"; [ $CNI_COMMAND != ADD ] || echo '" + spyResult + "'")
	add.Args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=one"
	b.node.MustRun(add)
	del := add.With("DEL")
	del.Args = ""
	b.node.MustRun(del)
	const want = " c1 net1 K8S_POD_NAMESPACE=default;K8S_POD_NAME=one\n"
	if text, err := os.ReadFile(log); err != nil || string(text) != "ADD"+want+"DEL"+want {
		t.Errorf("IPAM was called with %q, %v", text, err)
	}
}

func merged(all ...map[string]any) map[string]any {
	m := map[string]any{}
	for _, one := range all {
		maps.Copy(m, one)
	}
	return m
}

// TestAddressIsFreedWhereTheCNIDirectoryMoved upgrades a node whose CNI directory has a new name
// in each version (k3s).
func TestAddressIsFreedWhereTheCNIDirectoryMoved(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bench, c testnet.Call){
		"DEL": func(b *bench, c testnet.Call) { b.node.MustRun(c.With("DEL")) },
		"GC": func(b *bench, c testnet.Call) {
			gc := gcAll(c)
			gc.Path = c.Path
			b.node.MustRun(gc)
		},
		"DEL without it, then railctl gc": func(b *bench, c testnet.Call) {
			without := c.With("DEL")
			without.Path = pluginDir(b.t)
			b.node.MustRun(without)
			b.pod.Delete()
			b.node.Exec("env", "CNI_PATH="+c.Path, filepath.Join(testnet.Bin(b.t), "railctl"), "gc", "--state-dir", b.state)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			log := filepath.Join(t.TempDir(), "log")
			c := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
			c.Path = b.answering("echo $CNI_COMMAND $CNI_PATH >>" + log + "; [ $CNI_COMMAND != ADD ] || echo '" + spyResult + "'")
			b.node.MustRun(c)
			moved := filepath.Join(t.TempDir(), "moved")
			if err := os.Rename(c.Path, moved); err != nil {
				t.Fatal(err)
			}
			c.Path = moved
			end(b, c)
			if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "DEL "+moved+"\n") {
				t.Errorf("IPAM was called with %q, %v", text, err)
			}
		})
	}
}
