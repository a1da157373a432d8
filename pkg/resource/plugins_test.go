package resource

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestTheUsersSharedConfiguration(t *testing.T) {
	c, err := ParseSharedDevicePlugin(read(t, "rdma-devices.json"))
	if err != nil {
		t.Fatal(err)
	}
	pools, problems := c.Pools(server(), nil)
	if len(pools) != 1 || len(problems) != 0 {
		t.Fatal(pools, problems)
	}
	p := pools[0]
	if p.Resource != "rdma/hca_gpu" || p.Mode != Shared || p.Devices != 8 || len(p.IDs()) != 8 || p.Topology {
		t.Errorf("%+v", p)
	}
	if got := names(p); got != "ens12np0 ens11np0 ens13np0 ens14np0 ens16np0 ens15np0 ens17np0 ens18np0" {
		t.Errorf("NICs %s", got)
	}
	// The trap: after an update of the kernel or firmware the names are others.
	var renamed []NIC
	for _, n := range server() {
		n.Names = []string{"eth" + n.PCI}
		renamed = append(renamed, n)
	}
	pools, problems = c.Pools(renamed, nil)
	if len(pools[0].IDs()) != 0 || len(problems) != 1 || problems[0].Reason != NothingSelected || problems[0].Resource != "rdma/hca_gpu" || !strings.Contains(problems[0].Message, "ens17np0") {
		t.Error(describe(pools, problems))
	}
}

func TestSharedConfigurations(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"selectors of all kinds": {
			`{"configList":[{"resourceName":"a","resourcePrefix":"example.com","rdmaHcaMax":1000,"selectors":{"vendors":["15b3"],"deviceIDs":["1021"],"drivers":["mlx5_core"],"ifNames":["ens12np0"],"linkTypes":["ether"]}}]}`,
			"example.com/a shared: ens12np0\n",
		},
		"devices": {
			`{"periodicUpdateInterval":0,"configList":[{"resourceName":"a","rdmaHcaMax":1,"devices":["ens12np0"]}]}`,
			"rdma/a shared: ens12np0\nDeprecated: resource \"rdma/a\": \"devices\" is deprecated by k8s-rdma-shared-dev-plugin; write it as selectors.ifNames\n",
		},
		"empty selectors beside devices": {
			`{"configList":[{"resourceName":"a","devices":["ens12np0"],"selectors":{"vendors":[]}}]}`,
			"rdma/a shared: ens12np0\nDeprecated: resource \"rdma/a\": \"devices\" is deprecated by k8s-rdma-shared-dev-plugin; write it as selectors.ifNames\n",
		},
		"keys in another case, and unknown ones": {
			`{"ConfigList":[{"ResourceName":"a","rdmaHcaMax":1,"selectors":{"IFNAMES":["ens12np0"],"vendor":["x"]},"comment":""}],"log":1}`,
			"rdma/a shared: ens12np0\n" +
				`UnknownKey: configuration of k8s-rdma-shared-dev-plugin: the key "log" is unknown: the keys are periodicUpdateInterval, configList; it has no effect` + "\n" +
				`UnknownKey: configuration of k8s-rdma-shared-dev-plugin: the key "configList[0].comment" is unknown: the keys are resourceName, resourcePrefix, rdmaHcaMax, devices, selectors; it has no effect` + "\n" +
				`UnknownKey: configuration of k8s-rdma-shared-dev-plugin: the key "configList[0].selectors.vendor" is unknown: did you mean "vendors"?; it has no effect` + "\n",
		},
		"two pools of one NIC": {
			`{"configList":[{"resourceName":"a","selectors":{"ifNames":["ens12np0"]}},{"resourceName":"b","resourcePrefix":"x","selectors":{"deviceIDs":["1021"],"ifNames":["ens12np0"]}}]}`,
			"rdma/a shared: ens12np0\nx/b shared: ens12np0\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := ParseSharedDevicePlugin([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(config.Pools(server(), nil)); got != c.want {
				t.Errorf("\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestSharedConfigurationsWithMistakes(t *testing.T) {
	one := func(text string) string { return `{"configList":[{` + text + `}]}` }
	for text, want := range map[string]string{
		``:                                "it is not a JSON object",
		`[]`:                              "it is not a JSON object",
		`{} {}`:                           "it is not a JSON object",
		`null`:                            "configList has no resource",
		`{}`:                              "configList has no resource",
		`{"configList":[]}`:               "configList has no resource",
		`{"configList":{}}`:               `the value of "configList" is of the wrong type, object`,
		`{"configList":[null]}`:           "may have only letters, digits",
		`{"periodicUpdateInterval":-1}`:   "periodicUpdateInterval is -1; remove the key",
		`{"periodicUpdateInterval":"60"}`: `the value of "periodicUpdateInterval" is of the wrong type, string`,
		one(`"resourceName":"a-b","devices":["x"]`):                                                           `resourceName "a-b" may have only letters, digits and "_"`,
		one(`"resourceName":"","devices":["x"]`):                                                              `resourceName "" may have`,
		one(`"resourceName":"_a","devices":["x"]`):                                                            "with a letter or digit first and last",
		one(`"resourceName":"a","resourcePrefix":"example_prefix","devices":["x"]`):                           "is not a DNS subdomain",
		one(`"resourceName":"a","rdmaHcaMax":-1,"devices":["x"]`):                                             "rdmaHcaMax is -1; set a number from 0",
		one(`"resourceName":"a","rdmaHcaMax":9000000000,"devices":["x"]`):                                     "rdmaHcaMax is 9000000000",
		one(`"resourceName":"a","rdmaHcaMax":1e99,"devices":["x"]`):                                           "of the wrong type",
		one(`"resourceName":"a","rdmaHcaMax":1`):                                                              "configList[0]: resource \"rdma/a\": it has neither selectors nor devices",
		one(`"resourceName":"a","selectors":{}`):                                                              "it has neither selectors nor devices",
		one(`"resourceName":"a","devices":["x"],"selectors":{"vendors":["15b3"]}`):                            "it has both selectors and devices; move devices into selectors.ifNames",
		one(`"resourceName":"a","devices":["x"]},{"resourceName":"a","resourcePrefix":"b.c","devices":["x"]`): `two resources have the resourceName "a"`,
	} {
		c, err := ParseSharedDevicePlugin([]byte(text))
		if c != nil && err != nil {
			t.Errorf("%s: a configuration beside an error", text)
		}
		if kind := failure.KindOf(err); err == nil || !strings.Contains(err.Error(), want) || kind != failure.InvalidConfig && kind != failure.Decode {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestSRIOVConfiguration(t *testing.T) {
	c, err := ParseSRIOVDevicePlugin(read(t, "sriov.json"))
	if err != nil {
		t.Fatal(err)
	}
	nics := append(server(), NIC{PCI: "0000:aa:00.0", Names: []string{"ens9"}, ACPIIndex: 101})
	got := describe(c.Pools(nics, nil))
	want := `intel.com/rails exclusive: ens12np0 ens11np0 ens13np0 ens14np0 ens16np0 ens15np0 ens17np0 ens18np0
example.com/vfs exclusive: ens1f0v0 ens1f0v1 ens1f0v3 ens9
`
	if got != want {
		t.Errorf("\n%swant\n%s", got, want)
	}
	rails, vfs := c.PoolConfigs[0], c.PoolConfigs[1]
	if !rails.Topology || vfs.Topology || rails.AdditionalInfo["*"]["fabric"] != "a" || rails.AdditionalInfo["0000:0c:00.0"]["rail"] != "0" || vfs.AdditionalInfo != nil {
		t.Errorf("%+v", c.PoolConfigs)
	}
}

// The first resource that selects a NIC has it, as with sriov-network-device-plugin.
func TestTheFirstSRIOVResourceHasTheNIC(t *testing.T) {
	c, err := ParseSRIOVDevicePlugin([]byte(`{"resourceList":[{"resourceName":"a","selectors":{"pfNames":["ens1f0#0"]}},{"resourceName":"b","selectors":[{"pfNames":["ens1f0#0-1"]},{"pfNames":["ens1f0#1"]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	got := describe(c.Pools(server(), nil))
	want := "intel.com/a exclusive: ens1f0v0\nintel.com/b exclusive: ens1f0v1\nOverlap: "
	if !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 3 {
		t.Errorf("\n%swant\n%s", got, want)
	}
}

func TestSRIOVConfigurationsThatAreRefused(t *testing.T) {
	one := func(text string) string { return `{"resourceList":[{"resourceName":"a",` + text + `}]}` }
	sel := func(text string) string { return one(`"selectors":{` + text + `}`) }
	for text, want := range map[string]string{
		`x`:                   "it is not a JSON object",
		`{}`:                  "resourceList has no resource",
		`{"configList":[{}]}`: `the key "configList" is unknown`,
		`{"resourceList":[{},{}],"ResourceList":[{}]}`:             "has no selectors",
		`{"resourceList":[{}],"ResourceList":[{},{}]}`:             "has no selectors",
		one(`"selectors":null`):                                    "it has no selectors",
		`{"resourceList":[{"resourceName":"a"}]}`:                  "it has no selectors",
		one(`"selectors":[]`):                                      "its list of selectors is empty",
		one(`"selectors":"x"`):                                     "selectors: it is not a JSON object",
		one(`"selectors":[3]`):                                     "selectors: it is not a JSON object",
		one(`"deviceType":"accelerator","selectors":{}`):           `deviceType "accelerator" is not offered`,
		one(`"deviceType":"auxNetDevice","selectors":{}`):          `deviceType "auxNetDevice" is not offered, only netDevice; keep`,
		one(`"isRdma":true,"selectors":{}`):                        `the key "resourceList[0].isRdma" is not in selectors; move the key into selectors`,
		one(`"exclude":1,"selectors":{}`):                          `the key "resourceList[0].exclude" is unknown`,
		one(`"excludeTopolgy":true,"selectors":{}`):                `did you mean "excludeTopology"?`,
		one(`"additionalInfo":{"*":"x"},"selectors":{}`):           "additionalInfo",
		sel(`"ddpProfiles":["GTPv1"]`):                             `the key "resourceList[0].selectors[0].ddpProfiles" is refused`,
		sel(`"vdpaType":"vhost"`):                                  "vdpaType\" is refused",
		sel(`"NeedVhostNet":true`):                                 "NeedVhostNet\" is refused",
		sel(`"auxTypes":["sf"]`):                                   "auxTypes\" is refused",
		sel(`"vendor":["15b3"]`):                                   `did you mean "vendors"?`,
		sel(`"isRdma":"yes"`):                                      `the value of "isRdma" is of the wrong type, string`,
		one(`"selectors":[{},{"vdpaType":"vhost"}]`):               "selectors[1].vdpaType",
		`{"resourceList":[{"resourceName":"a b","selectors":{}}]}`: "with a letter or digit first and last",
		`{"resourceList":[{"resourceName":"a","selectors":{}},{"resourceName":"a","resourcePrefix":"intel.com","selectors":{}}]}`: "two pools have the resource intel.com/a",
	} {
		c, err := ParseSRIOVDevicePlugin([]byte(text))
		if c != nil && err != nil {
			t.Errorf("%s: a configuration beside an error", text)
		}
		if kind := failure.KindOf(err); err == nil || !strings.Contains(err.Error(), want) || kind != failure.InvalidConfig && kind != failure.Decode {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestMergedConfigurations(t *testing.T) {
	c := parse(t, `pools: [{name: rdma/a, mode: shared, max: 1, select: {rails: all}}]`)
	other, err := ParseSharedDevicePlugin([]byte(`{"configList":[{"resourceName":"b","devices":["ens12np0"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Merge(other); err != nil || len(c.PoolConfigs) != 2 || len(c.Warnings) != 1 {
		t.Errorf("%v, %+v", err, c)
	}
	if err := c.Merge(other); err == nil || len(c.PoolConfigs) != 2 || !strings.Contains(err.Error(), "two pools have the resource rdma/b") {
		t.Errorf("%v, %+v", err, c)
	}
}

// FuzzSharedDevicePlugin looks for accepted configurations whose pools the kubelet would
// refuse.
func FuzzSharedDevicePlugin(f *testing.F) {
	for _, seed := range []string{
		`{"periodicUpdateInterval":300,"configList":[{"resourceName":"hca_gpu","rdmaHcaMax":8,"selectors":{"ifNames":["ens12np0"]}}]}`,
		`{"configList":[{"resourceName":"a","resourcePrefix":"b.c","devices":["ens12np0"]},{"resourceName":"b","selectors":{"vendors":["15b3"]}}]}`,
		`{"configList":[{"configList":[{}]}],"configlist":null}`, `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := ParseSharedDevicePlugin(data); err == nil {
			checkPools(t, data, c)
		}
	})
}

// FuzzSRIOVDevicePlugin looks for accepted configurations whose pools the kubelet would
// refuse.
func FuzzSRIOVDevicePlugin(f *testing.F) {
	for _, seed := range []string{
		`{"resourceList":[{"resourceName":"a","selectors":{"vendors":["15b3"],"isRdma":true}},{"resourceName":"b","resourcePrefix":"x.y","selectors":[{"pfNames":["ens1f0#0-3,6"]},{}]}]}`,
		`{"resourceList":[{"resourceName":"a","additionalInfo":{"*":{"a":"b"}},"selectors":{"rootDevices":["0000:99:00.1#0"]}}]}`,
		`{"resourceList":[null],"ResourceList":[{"selectors":[null]}]}`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := ParseSRIOVDevicePlugin(data); err == nil {
			checkPools(t, data, c)
		}
	})
}
