package examples_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/resource"
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
	case "ipoib":
		_, err = netconf.ParseIPoIB(config, netconf.Args{})
	case "sriov":
		_, err = netconf.ParseSRIOV(config, netconf.Args{})
	case "ib-sriov":
		_, err = netconf.ParseIBSRIOV(config)
	case "macvlan":
		_, err = netconf.ParseMacvlan(config, netconf.Args{})
	case "rdma":
		_, err = netconf.ParseRDMAChained(config)
	default:
		return fmt.Errorf("no plugin of this release has the type %q", conf.Type)
	}
	if err == nil && conf.IPAM.Type == "whereabouts" {
		rail := 1
		if config, err = netconf.Lenient(config).Expanded(ipamconf.Variables{Rail: &rail, Rails: []int{0, rail}}); err == nil {
			_, err = ipamconf.ParseWhereabouts(config, "", nil)
		}
	}
	return err
}

func TestNADsParse(t *testing.T) {
	names := map[string]int{"roce-nads.yaml": 8, "macvlan-nad.yaml": 1, "rails-nads.yaml": 8, "rail-nad.yaml": 1, "try/networks.yaml": 8}
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
	for file, c := range map[string]struct {
		networks string
		counts   []int // networks of each pod
	}{
		"roce-pods.yaml":   {"roce-nads.yaml", []int{8, 8}},
		"rails-pods.yaml":  {"rails-nads.yaml", []int{8, 2}},
		"rail-pod.yaml":    {"rail-nad.yaml", []int{8}},
		"nccl-pod.yaml":    {"rail-nad.yaml", []int{8}},
		"macvlan-pod.yaml": {"macvlan-nad.yaml", []int{1}},
		"try/pods.yaml":    {"try/networks.yaml", []int{8, 8}},
	} {
		networks, err := examples.Networks(c.networks)
		if err != nil {
			t.Fatal(err)
		}
		exists := map[string]bool{}
		for _, n := range networks {
			exists[n.NAD] = true
		}
		pods, err := examples.Pods(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(pods) != len(c.counts) {
			t.Fatalf("%s: %d pods, not %d", file, len(pods), len(c.counts))
		}
		for i, p := range pods {
			if len(p.NADs) != c.counts[i] {
				t.Errorf("%s asks for %d networks, not %d", p.Name, len(p.NADs), c.counts[i])
			}
			for _, nad := range p.NADs {
				if !exists[nad] {
					t.Errorf("%s asks for %s, which no file has", p.Name, nad)
				}
			}
		}
	}
}

// nics returns the NICs of the node that node.yaml is for.
func nics() []resource.NIC {
	list := []resource.NIC{{
		PCI: "0000:01:00.0", Names: []string{"ens2f0"}, Vendor: "15b3", Device: "1017", LinkType: "ether",
		CharDevices: []string{"/dev/infiniband/uverbs8"},
	}}
	for rail := range 8 {
		list = append(list, resource.NIC{
			PCI: fmt.Sprintf("0000:%02x:00.0", 0x1a+rail), Names: []string{fmt.Sprintf("ens%dnp0", 11+rail)}, Vendor: "15b3", Device: "1021",
			LinkType: "ether", CharDevices: []string{fmt.Sprintf("/dev/infiniband/uverbs%d", rail)},
		})
	}
	return list
}

// Each resource that a pod requests is one that the node file makes, and that the NAD of
// the same pod names. NADs with a rail are for the resource of that rail.
func TestPodsRequestTheResourcesOfTheirNetworks(t *testing.T) {
	text, err := examples.Files.ReadFile("node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	node, err := nodefile.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	rails, problems := node.Rails.Assign(nics())
	pools, more := node.Resources.Pools(nics(), rails)
	for _, p := range append(problems, more...) {
		t.Errorf("node.yaml: %+v", p)
	}
	offered := map[string]*int{}
	for _, p := range pools {
		offered[p.Resource] = p.Rail
	}
	if len(pools) != 9 {
		t.Errorf("node.yaml makes %d resources: %v", len(pools), offered)
	}
	for pods, networks := range map[string]string{"rails-pods.yaml": "rails-nads.yaml", "macvlan-pod.yaml": "macvlan-nad.yaml"} {
		named := map[string]string{} // resource by NAD
		for _, o := range objects(t, networks) {
			r := o.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"]
			named[o.Metadata.Name] = r
			rail, ok := offered[r]
			if !ok {
				t.Errorf("%s: the node file makes no resource %q", o.Metadata.Name, r)
			}
			conf, err := netconf.ParseHostDevice([]byte(o.Spec.Config))
			if err != nil {
				t.Fatal(err)
			}
			if number := conf.Rail.Number; conf.Type == "host-device" && (number == nil || rail == nil || *number != *rail) {
				t.Errorf("%s: it is for rail %v, and %s for rail %v", o.Metadata.Name, number, r, rail)
			}
		}
		list, err := examples.Pods(pods)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range objects(t, pods) {
			limits, wanted := o.Spec.Containers[0].Resources.Limits, 0
			for _, nad := range list[i].NADs {
				wanted++
				if fmt.Sprint(limits[named[nad]]) != "1" {
					t.Errorf("%s has the network %s and not its resource %s: %v", o.Metadata.Name, nad, named[nad], limits)
				}
			}
			delete(limits, "nvidia.com/gpu")
			if len(limits) != wanted {
				t.Errorf("%s requests %v", o.Metadata.Name, limits)
			}
		}
	}
}

// The pod of the one network for all rails requests as many devices of its resource as it
// names the network, and the node file offers one for each rail.
func TestPodOfOneNetworkRequestsADeviceForEachUse(t *testing.T) {
	text, err := examples.Files.ReadFile("rail-node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	node, err := nodefile.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	rails, problems := node.Rails.Assign(nics())
	pools, more := node.Resources.Pools(nics(), rails)
	if problems = append(problems, more...); len(problems) > 0 || len(pools) != 1 || len(pools[0].IDs()) != 8 {
		t.Fatalf("rail-node.yaml: %+v, %+v", pools, problems)
	}
	nad, pod := objects(t, "rail-nad.yaml")[0], objects(t, "rail-pod.yaml")[0]
	r := nad.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"]
	list, err := examples.Pods("rail-pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if n := fmt.Sprint(pod.Spec.Containers[0].Resources.Limits[r]); r != pools[0].Resource || n != fmt.Sprint(len(list[0].NADs)) {
		t.Errorf("the pod names %d networks and requests %s of %q; the node offers %q", len(list[0].NADs), n, r, pools[0].Resource)
	}
}

// The NICs that try/ names are those of the cluster's nodes, whose names are from the other
// examples, and nothing in it asks for hardware.
func TestTryAsksForNoHardware(t *testing.T) {
	nics := map[string]map[string]bool{}
	for _, file := range []string{"roce-nads.yaml", "try/networks.yaml"} {
		networks, err := examples.Networks(file)
		if err != nil {
			t.Fatal(err)
		}
		nics[file] = map[string]bool{}
		for _, n := range networks {
			conf, err := netconf.ParseHostDevice(n.Config)
			if err != nil {
				t.Fatal(err)
			}
			nics[file][conf.Device] = true
		}
	}
	if here, there := nics["try/networks.yaml"], nics["roce-nads.yaml"]; len(here) != 8 || !maps.Equal(here, there) {
		t.Errorf("try/networks.yaml has %v, and roce-nads.yaml %v", here, there)
	}
	for _, name := range []string{"try/pods.yaml", "try/shared.yaml"} {
		for _, o := range objects(t, name) {
			for _, c := range o.Spec.Containers {
				if len(c.Resources.Limits) > 0 {
					t.Errorf("%s: %s asks for %v", name, o.Metadata.Name, c.Resources.Limits)
				}
			}
			if r := o.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"]; r != "" {
				t.Errorf("%s: %s is for the resource %s", name, o.Metadata.Name, r)
			}
		}
	}
}

// manifest is a Kubernetes object, with what these tests read.
type manifest struct {
	Metadata struct {
		Name        string
		Annotations map[string]string
	}
	Spec struct {
		Config     string
		Containers []struct {
			Resources struct{ Limits map[string]any }
		}
	}
}

func objects(t *testing.T, file string) []manifest {
	t.Helper()
	text, err := examples.Files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []manifest
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// The NADs of rails are what the commands in the guides print.
func TestRailNetworksAreThoseOfRailctl(t *testing.T) {
	for page, c := range map[string]struct {
		file, without string // flags that the file does not have
	}{
		"docs/guide/host-device.md": {"rails-nads.yaml", ""},
		"docs/guide/rails.md":       {"rail-nad.yaml", " --pod"},
	} {
		command := docs.Scripts(t, page)[0]
		if !strings.Contains(command, c.without) {
			t.Errorf("%s: %q lacks %q", page, command, c.without)
		}
		cmd := exec.Command("sh", "-ec", strings.Replace(command, c.without, "", 1))
		cmd.Env = append(os.Environ(), "PATH="+testnet.Bin(t)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", page, err, out)
		}
		text, err := examples.Files.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		if string(out) != string(text) {
			t.Errorf("%s: railctl prints\n%s", c.file, out)
		}
	}
}

// TestPluginsArePutInPlaceByHand runs the commands of the guide, and then those that replace
// plugins while pods start, in a mount namespace of its own.
func TestPluginsArePutInPlaceByHand(t *testing.T) {
	need.Root(t)
	script := strings.Join(docs.Scripts(t, "docs/guide/install.md"), "") + strings.Join(docs.Scripts(t, "deployments/README.md"), "")
	const private = "mount -t tmpfs tmpfs /opt; mkdir -p /opt/cni/bin; mount -t tmpfs tmpfs /usr/local; mkdir /usr/local/sbin\n"
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", private+script+"ls -A /opt/cni/bin /usr/local/sbin")
	cmd.Dir = t.TempDir()
	if err := os.Symlink(testnet.Bin(t), filepath.Join(cmd.Dir, "bin")); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if want := "/opt/cni/bin:\nhost-device\nmacvlan\nrdma\nwhereabouts\n\n/usr/local/sbin:\nrailctl\n"; err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// TestWhatTheNetworkOperatorRenders parses all configs.
func TestWhatTheNetworkOperatorRenders(t *testing.T) {
	data, err := examples.Files.ReadFile("network-operator-rendered.json")
	if err != nil {
		t.Fatal(err)
	}
	var rendered map[string]json.RawMessage
	if err := json.Unmarshal(data, &rendered); err != nil {
		t.Fatal(err)
	}
	for name, entry := range rendered {
		for _, config := range configsOf(t, entry) {
			if err := parse(config); err != nil {
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
	script := strings.Join(docs.Scripts(t, "examples/README.md"), "")
	const private = "mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib; ip link set lo up; set -x\n"
	cmd := exec.Command("unshare", "--mount", "--net", "bash", "-euo", "pipefail", "-c", private+script)
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
