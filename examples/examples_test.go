package examples_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// parse reads a plugin's config with the plugin's own code, and its ipam
// section with that of our IPAM plugin.
func parse(config []byte) error {
	var conf struct {
		Type string
		IPAM struct{ Type string }
	}
	if err := json.Unmarshal(config, &conf); err != nil {
		return err
	}
	var err error
	switch conf.Type {
	case "host-device":
		_, err = netconf.ParseHostDevice(config)
	case "macvlan":
		_, err = netconf.ParseMacvlan(config, netconf.Args{})
	case "rdma":
		_, err = netconf.ParseRDMAChained(config)
	default:
		return fmt.Errorf("no plugin of this release has the type %q", conf.Type)
	}
	if err == nil && conf.IPAM.Type == "whereabouts" {
		_, err = netconf.ParseWhereabouts(config, "", nil)
	}
	return err
}

func TestNADsParse(t *testing.T) {
	names := map[string]int{"roce-nads.yaml": 8, "macvlan-nad.yaml": 1}
	for file, want := range names {
		networks, err := examples.Networks(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(networks) != want {
			t.Errorf("%s has %d networks, not %d", file, len(networks), want)
		}
		for _, n := range networks {
			if n.NAD == "" || n.Name == "" {
				t.Errorf("%s: a network without a name: %+v", file, n)
			}
			if err := parse(n.Config); err != nil {
				t.Errorf("%s, %s: %v", file, n.NAD, err)
			}
		}
	}
}

func TestPodsAskForNetworksThatExist(t *testing.T) {
	networks, err := examples.Networks("roce-nads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, n := range networks {
		exists[n.NAD] = true
	}
	pods, err := examples.Pods("roce-pods.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 2 {
		t.Fatalf("%d pods, not 2", len(pods))
	}
	for _, p := range pods {
		if len(p.NADs) != 8 {
			t.Errorf("%s asks for %d networks, not 8", p.Name, len(p.NADs))
		}
		for _, nad := range p.NADs {
			if !exists[nad] {
				t.Errorf("%s asks for %s, which no file has", p.Name, nad)
			}
		}
	}
}

// TestWhatTheNetworkOperatorRenders parses all configs for which this release
// has a plugin. It names the rest, so that a new plugin is noticed here.
func TestWhatTheNetworkOperatorRenders(t *testing.T) {
	data, err := examples.Files.ReadFile("network-operator-rendered.json")
	if err != nil {
		t.Fatal(err)
	}
	var rendered map[string]json.RawMessage
	if err := json.Unmarshal(data, &rendered); err != nil {
		t.Fatal(err)
	}
	later := map[string]string{"IPoIBNetwork": `"ipoib"`}
	for name, entry := range rendered {
		for _, config := range configsOf(t, entry) {
			err := parse(config)
			if missing := later[name]; missing != "" && err != nil {
				if !strings.Contains(err.Error(), missing) {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// configsOf returns the plugin configs of an entry: its "config", or the entry
// itself, or those of a list.
func configsOf(t *testing.T, entry json.RawMessage) []json.RawMessage {
	t.Helper()
	var wrapped struct{ Config json.RawMessage }
	if err := json.Unmarshal(entry, &wrapped); err != nil {
		t.Fatal(err)
	}
	if wrapped.Config != nil {
		entry = wrapped.Config
	}
	var list struct{ Plugins []json.RawMessage }
	if err := json.Unmarshal(entry, &list); err != nil {
		t.Fatal(err)
	}
	if list.Plugins != nil {
		return list.Plugins
	}
	return []json.RawMessage{entry}
}

func TestConflistsParse(t *testing.T) {
	files, err := fs.Glob(examples.Files, "cnitool/*.conflist")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conflists: %v", err)
	}
	for _, file := range files {
		data, err := examples.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Name    string
			Plugins []map[string]any
		}
		if err := json.Unmarshal(data, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if want := strings.TrimSuffix(filepath.Base(file), ".conflist"); list.Name != want {
			t.Errorf("%s: the network is named %q, not %q as the file", file, list.Name, want)
		}
		for _, plugin := range list.Plugins {
			plugin["cniVersion"], plugin["name"] = "1.1.0", list.Name
			config, err := json.Marshal(plugin)
			if err != nil {
				t.Fatal(err)
			}
			if err := parse(config); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// TestREADME runs the commands of README.md, as a reader would paste them, in
// namespaces of their own.
func TestREADME(t *testing.T) {
	need.Root(t)
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	blocks := strings.Split(string(readme), "```sh\n")[1:]
	for _, b := range blocks {
		commands, _, closed := strings.Cut(b, "```")
		if !closed {
			t.Fatal("README.md has a block that does not end")
		}
		script.WriteString(commands)
	}
	if len(blocks) < 3 {
		t.Fatalf("README.md has %d blocks of commands; are they marked as sh?", len(blocks))
	}
	const private = "mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib; ip link set lo up; set -x\n"
	cmd := exec.Command("unshare", "--mount", "--net", "bash", "-euo", "pipefail", "-c", private+script.String())
	cmd.Dir = ".." // the README's commands run at the top of the checkout
	cmd.Env = append(os.Environ(), "CNI_PATH="+testnet.Bin(t), "PATH="+withTool(t)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		`"address": "172.31.1.2/24"`, `"mtu": 8000`, // rail
		`"address": "192.168.111.10/24"`, `"address": "192.168.111.11/24"`, // shared
		"no RDMA",                      // rdma
		`"address": "198.51.100.7/24"`, // carried
		"nic0", "nic2", "no attachments",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// withTool returns a directory with railctl and cnitool, as after `make build`.
func withTool(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(testnet.Bin(t), "railctl"), filepath.Join(dir, "railctl")); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "cnitool"), "github.com/containernetworking/cni/cnitool")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build cnitool: %v\n%s", err, out)
	}
	return dir
}
