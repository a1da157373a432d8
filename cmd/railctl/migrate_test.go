package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

const sharedJSON = `{
  "periodicUpdateInterval": 300,
  "configList": [
    {"resourceName": "hca_gpu", "rdmaHcaMax": 8, "selectors": {"ifNames": ["ens11np0", "ens12np0"]}},
    {"resourceName": "hca_ib", "resourcePrefix": "example.com", "rdmaHcaMax": 63, "selectors": {"vendors": ["15b3"], "deviceIDs": ["1021"], "drivers": ["mlx5_core"], "linkTypes": ["infiniband"]}}
  ]
}`

const sriovJSON = `{"resourceList": [
  {"resourceName": "rail0", "resourcePrefix": "nvidia.com", "selectors": {"vendors": ["15b3"], "pfNames": ["ens11np0#0-3"], "isRdma": true}},
  {"resourceName": "all", "excludeTopology": true, "selectors": [{"rootDevices": ["0000:1a:00.0"]}]}
]}`

// configMapOf returns a ConfigMap with these values.
func configMapOf(values map[string]string) string {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: rdma-devices\n  namespace: kube-system\ndata:\n"
	for key, value := range values {
		text += "  " + key + ": |\n    " + strings.ReplaceAll(value, "\n", "\n    ") + "\n"
	}
	return text
}

// migrated runs the command on a text.
func migrated(t *testing.T, text string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return plainRun(append([]string{"migrate", "devices", "-f", file}, args...)...)
}

// The printed resources are read as the same pools that the other plugin's file is read as.
func TestMigratedResourcesAreEqual(t *testing.T) {
	parseShared, parseSRIOV := resource.ParseSharedDevicePlugin, resource.ParseSRIOVDevicePlugin
	for name, c := range map[string]struct {
		text  string
		args  []string
		json  string
		parse func([]byte) (*resource.Config, error)
		steps []string
	}{
		"shared, bare":              {sharedJSON, nil, sharedJSON, parseShared, []string{"k8s-rdma-shared-dev-plugin", "rdma-devices", "devicePlugin.enabled=true"}},
		"shared, in a ConfigMap":    {configMapOf(map[string]string{"config.json": sharedJSON, "other": "x: y"}), nil, sharedJSON, parseShared, []string{"delete daemonset"}},
		"SR-IOV, bare":              {sriovJSON, nil, sriovJSON, parseSRIOV, []string{"sriov-network-device-plugin", "sriovdp-config"}},
		"SR-IOV, in a ConfigMap":    {configMapOf(map[string]string{"config.json": sriovJSON}), nil, sriovJSON, parseSRIOV, nil},
		"behind another document":   {"kind: ServiceAccount\n---\n" + configMapOf(map[string]string{"config.json": sharedJSON}), nil, sharedJSON, parseShared, nil},
		"in a list, as kubectl get": {"kind: List\nitems:\n- " + strings.ReplaceAll(configMapOf(map[string]string{"config.json": sriovJSON}), "\n", "\n  "), nil, sriovJSON, parseSRIOV, nil},
		"by key":                    {configMapOf(map[string]string{"node-a": sriovJSON, "node-b": sharedJSON}), []string{"--key", "node-b"}, sharedJSON, parseShared, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := migrated(t, c.text, c.args...)
			if code != 0 {
				t.Fatalf("exit code %d, stderr %s", code, errOut)
			}
			file, err := netconf.ParseNodeFile([]byte(out))
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			want, err := c.parse([]byte(c.json))
			if err != nil {
				t.Fatal(err)
			}
			if have, want := shape(file.Resources), shape(want); !reflect.DeepEqual(have, want) {
				t.Errorf("the pools are\n%s\nnot\n%s\nin\n%s", have, want, out)
			}
			contains(t, "stdout", out, c.steps...)
		})
	}
}

// shape returns pools in a form that does not tell missing lists from empty ones.
func shape(c *resource.Config) []string {
	var all []string
	for _, p := range c.PoolConfigs {
		all = append(all, fmt.Sprintf("%s %s %d %v", p.Name, p.Mode, p.Max, p.Topology))
		for i := range p.Select {
			all = append(all, p.Select[i].String())
		}
	}
	return all
}

func TestMigrateNamesWhatHasNoEqual(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		texts []string
	}{
		"nothing":                  {"", []string{"no configuration of a device plugin", "configList", "resourceList"}},
		"another object":           {"kind: Pod\nmetadata: {name: x}\n", []string{"no configuration"}},
		"no YAML":                  {"\x00", []string{"neither YAML nor JSON"}},
		"two configurations":       {configMapOf(map[string]string{"a": sharedJSON, "b": sriovJSON}), []string{"rdma-devices/a", "rdma-devices/b", "--key"}},
		"both in one":              {`{"configList": [], "resourceList": []}`, []string{"one of the keys"}},
		"each refused key":         {`{"resourceList": [{"resourceName": "a", "selectors": {"needVhostNet": true}}, {"resourceName": "b", "selectors": {"pKeys": ["0x1"]}}, {"resourceName": "c", "selectors": {"vendors": ["15b3"]}}]}`, []string{"needVhostNet", "pKeys"}},
		"several selectors":        {`{"resourceList": [{"resourceName": "a", "selectors": [{"vendors": ["15b3"]}, {"vendors": ["8086"]}]}]}`, []string{"intel.com/a", "several", "sriovConfigFile"}},
		"additional information":   {`{"resourceList": [{"resourceName": "a", "additionalInfo": {"*": {"token": "x"}}, "selectors": {"vendors": ["15b3"]}}]}`, []string{"intel.com/a", "additionalInfo", "sriovConfigFile"}},
		"a pool without devices":   {`{"configList": [{"resourceName": "a", "rdmaHcaMax": 0, "selectors": {"ifNames": ["ens1"]}}]}`, []string{"max", "sharedConfigFile"}},
		"the same resource twice":  {`{"configList": [{"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifNames": ["x"]}}, {"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifNames": ["y"]}}]}`, []string{`"a"`}},
		"no such file of the list": {`{"configList": {}}`, []string{"configList"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := migrated(t, c.text)
			if code != 1 || out != "" {
				t.Errorf("exit code %d, stdout:\n%s", code, out)
			}
			contains(t, "stderr", errOut, c.texts...)
		})
	}
}

func TestMigrateWarnsOfWhatMatchesNoNIC(t *testing.T) {
	p, err := findDevicePlugin([]byte(sharedJSON), "")
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, problem := range p.problems(someNICs()) {
		texts = append(texts, problem.Message)
	}
	all := strings.Join(texts, "\n")
	contains(t, "the warnings", all, "example.com/hca_ib")
	if strings.Contains(all, "ens11np0") {
		t.Errorf("a NIC of the node is said to be missing:\n%s", all)
	}
	if p, err = findDevicePlugin([]byte(strings.ReplaceAll(sharedJSON, "ens11np0", "ens99np0")), ""); err != nil {
		t.Fatal(err)
	}
	texts = nil
	for _, problem := range p.problems(someNICs()) {
		texts = append(texts, problem.Message)
	}
	contains(t, "the warnings", strings.Join(texts, "\n"), "ens99np0")
}

func TestMigrateReadsStdin(t *testing.T) {
	in, err := os.CreateTemp(t.TempDir(), "in")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := in.WriteString(sharedJSON); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if text, err := readInput(in, "-"); err != nil || string(text) != sharedJSON {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := readInput(strings.NewReader(strings.Repeat("x", mostInput+1)), "-"); err == nil {
		t.Error("an endless input is read")
	}
}
