package deviceplugin_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/migrate/deviceplugin"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
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

// migrated returns the output for a text.
func migrated(text, key string) (string, error) {
	found, err := deviceplugin.Find([]byte(text), key)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = found.Write(&out)
	return out.String(), err
}

// contains fails the test if the text does not contain all of wants.
func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
}

// TestMigratedResourcesAreEqual: the printed resources must be read as the same pools as the other
// device plugin's file.
func TestMigratedResourcesAreEqual(t *testing.T) {
	parseShared, parseSRIOV := resource.ParseSharedDevicePlugin, resource.ParseSRIOVDevicePlugin
	for name, c := range map[string]struct {
		text  string
		key   string
		json  string
		parse func([]byte) (*resource.Config, error)
		steps []string
	}{
		"shared, bare":              {sharedJSON, "", sharedJSON, parseShared, []string{"k8s-rdma-shared-dev-plugin", "rdma-devices", "devicePlugin.enabled=true"}},
		"shared, in a ConfigMap":    {configMapOf(map[string]string{"config.json": sharedJSON, "other": "x: y"}), "", sharedJSON, parseShared, []string{"delete daemonset"}},
		"SR-IOV, bare":              {sriovJSON, "", sriovJSON, parseSRIOV, []string{"sriov-network-device-plugin", "sriovdp-config"}},
		"SR-IOV, in a ConfigMap":    {configMapOf(map[string]string{"config.json": sriovJSON}), "", sriovJSON, parseSRIOV, nil},
		"behind another document":   {"kind: ServiceAccount\n---\n" + configMapOf(map[string]string{"config.json": sharedJSON}), "", sharedJSON, parseShared, nil},
		"in a list, as kubectl get": {"kind: List\nitems:\n- " + strings.ReplaceAll(configMapOf(map[string]string{"config.json": sriovJSON}), "\n", "\n  "), "", sriovJSON, parseSRIOV, nil},
		"by key":                    {configMapOf(map[string]string{"node-a": sriovJSON, "node-b": sharedJSON}), "node-b", sharedJSON, parseShared, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := migrated(c.text, c.key)
			if err != nil {
				t.Fatal(err)
			}
			file, err := nodefile.Parse([]byte(out))
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
			contains(t, out, c.steps...)
		})
	}
}

// shape returns the pools in a form in which missing lists and empty lists are equal.
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

func TestWhatHasNoEqualIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		texts []string
	}{
		"nothing":                  {"", []string{"no configuration of a device plugin", "configList", "resourceList"}},
		"another object":           {"kind: Pod\nmetadata: {name: x}\n", []string{"no configuration"}},
		"no YAML":                  {"\x00", []string{"neither YAML nor JSON"}},
		"two configurations":       {configMapOf(map[string]string{"a": sharedJSON, "b": sriovJSON}), []string{"rdma-devices/a", "rdma-devices/b", "--key"}},
		"both in one":              {`{"configList": [], "resourceList": []}`, []string{"one of the keys"}},
		"each refused key":         {`{"resourceList": [{"resourceName": "a", "selectors": {"needVhostNet": true}}, {"resourceName": "b", "selectors": {"ddpProfiles": ["0x1"]}}, {"resourceName": "c", "selectors": {"vendors": ["15b3"]}}]}`, []string{"needVhostNet", "ddpProfiles"}},
		"several selectors":        {`{"resourceList": [{"resourceName": "a", "selectors": [{"vendors": ["15b3"]}, {"vendors": ["8086"]}]}]}`, []string{"intel.com/a", "several", "sriovConfigFile"}},
		"additional information":   {`{"resourceList": [{"resourceName": "a", "additionalInfo": {"*": {"token": "x"}}, "selectors": {"vendors": ["15b3"]}}]}`, []string{"intel.com/a", "additionalInfo", "sriovConfigFile"}},
		"a pool without devices":   {`{"configList": [{"resourceName": "a", "rdmaHcaMax": 0, "selectors": {"ifNames": ["ens1"]}}]}`, []string{"max", "sharedConfigFile"}},
		"the same resource twice":  {`{"configList": [{"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifNames": ["x"]}}, {"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifNames": ["y"]}}]}`, []string{`"a"`}},
		"no such file of the list": {`{"configList": {}}`, []string{"configList"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := migrated(c.text, "")
			if err == nil || out != "" {
				t.Fatalf("%v:\n%s", err, out)
			}
			contains(t, err.Error(), c.texts...)
		})
	}
}

func TestSelectorsThatMatchNoNICAreProblems(t *testing.T) {
	nics := []resource.NIC{
		{PCI: "0000:1a:00.0", Names: []string{"ens11np0"}, Vendor: "15b3", LinkType: "ether", RDMA: []string{"mlx5_0"}, CharDevices: []string{"/dev/infiniband/uverbs0"}},
		{PCI: "0000:5d:00.0", Names: []string{"ens12np0"}, Vendor: "15b3", LinkType: "ether", RDMA: []string{"mlx5_1"}, CharDevices: []string{"/dev/infiniband/uverbs1"}},
	}
	p, err := deviceplugin.Find([]byte(sharedJSON), "")
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, problem := range p.Problems(nics) {
		texts = append(texts, problem.Message)
	}
	all := strings.Join(texts, "\n")
	contains(t, all, "example.com/hca_ib")
	if strings.Contains(all, "ens11np0") {
		t.Errorf("a NIC of the node is said to be missing:\n%s", all)
	}
	if p, err = deviceplugin.Find([]byte(strings.ReplaceAll(sharedJSON, "ens11np0", "ens99np0")), ""); err != nil {
		t.Fatal(err)
	}
	texts = nil
	for _, problem := range p.Problems(nics) {
		texts = append(texts, problem.Message)
	}
	contains(t, strings.Join(texts, "\n"), "ens99np0")
}
