package resource

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func TestConfigOfTheNodeFile(t *testing.T) {
	c := parse(t, `
pools:
- {name: rdma/hca_gpu, mode: shared, max: 8, select: {ifNames: [ens11np0], linkTypes: [ether]}}
- {name: example.com/nic, mode: exclusive, select: {vendors: [15b3], devices: [1021], rdma: true}, topology: false}
- {name: example.com/x, mode: perRail, select: {rails: all}}
- {name: example.com/y, mode: perRail, select: {rails: [0, 3], pfNames: ["ens1f0#0-3,6"], rootDevices: ["0000:99:00.1"], acpiIndexes: [101], pciAddresses: ["0000:0c:00.0"], drivers: [mlx5_core]}, topology: true}
sharedConfigFile: /etc/rail-cni/rdma.json
sriovConfigFile: /etc/rail-cni/sriov.json
allowOverlap: true
cdi: true
health: {down: 5s}
`)
	if len(c.PoolConfigs) != 4 || c.SharedConfigFile != "/etc/rail-cni/rdma.json" || c.SRIOVConfigFile != "/etc/rail-cni/sriov.json" || !c.AllowOverlap || !c.CDI {
		t.Errorf("%+v", c)
	}
	if c.Health != (Health{5 * time.Second, 30 * time.Second}) {
		t.Errorf("health %+v", c.Health)
	}
	for i, want := range []struct {
		mode     Mode
		max      int
		topology bool
		sel      string
	}{
		{Shared, 8, false, "ifNames ens11np0; linkTypes ether"},
		{Exclusive, 0, false, "vendors 15b3; devices 1021; rdma true"},
		{PerRail, 0, true, "rails all"},
		{PerRail, 0, true, "rails 0,3; drivers mlx5_core; pciAddresses 0000:0c:00.0; acpiIndexes 101; pfNames ens1f0#0-3,6; rootDevices 0000:99:00.1"},
	} {
		p := c.PoolConfigs[i]
		if p.Mode != want.mode || p.Max != want.max || p.Topology != want.topology || p.Select[0].String() != want.sel {
			t.Errorf("%+v, want %+v", p, want)
		}
	}
}

func TestDefaultsOfAnEmptyConfig(t *testing.T) {
	c := parse(t, "{}")
	if c.Health != (Health{10 * time.Second, 30 * time.Second}) || c.CDI || c.AllowOverlap || c.PoolConfigs != nil {
		t.Errorf("%+v", c)
	}
	if pools, problems := c.Pools(server(), nil); pools != nil || problems != nil {
		t.Error(pools, problems)
	}
	if pools, problems := (*Config)(nil).Pools(server(), nil); pools != nil || problems != nil {
		t.Error(pools, problems)
	}
}

func TestConfigWithMistakes(t *testing.T) {
	pool := func(text string) string { return "pools: [{name: a/b, " + text + "}]" }
	for text, want := range map[string]string{
		"pool: []":                    `resources: line 1: field pool not found; did you mean "pools"?`,
		"sharedConfig: /x":            `did you mean "sharedConfigFile"?`,
		"xyzzyxyzzy: 1":               "the keys are pools, sharedConfigFile",
		"pools: {}":                   "cannot unmarshal",
		"pools: [~]":                  "an entry has no value",
		"pools: [a]":                  "expected a mapping",
		"pools: [{}]":                 `mode is "", not shared, exclusive or perRail`,
		"sharedConfigFile: rdma.json": `resources.sharedConfigFile: "rdma.json" is not an absolute path`,
		"sriovConfigFile: /etc/../x":  "is not an absolute path",
		"sriovConfigFile: ''":         "is not an absolute path",
		"cdi: maybe":                  "cannot unmarshal",
		"health: {down: 10}":          `write a duration as "10s"`,
		"health: {down: -1s}":         "is not between 0s and 1h",
		"health: {up: 2h}":            "is not between 0s and 1h",
		"health: {donw: 1s}":          `did you mean "down"?`,

		pool("mode: Shared, max: 1"):               `mode is "Shared"`,
		pool("mode: shared, select: {rdma: true}"): "needs max",

		pool("mode: shared, max: 0, select: {rdma: true}"):                  "from 1 to 65536",
		pool("mode: shared, max: 2000000, select: {rdma: true}"):            "from 1 to 65536",
		pool("mode: exclusive, max: 1, select: {rdma: true}"):               "max is only for shared pools",
		pool("mode: exclusive"):                                             "has no select",
		pool("mode: exclusive, select: ~"):                                  "has no select",
		pool("mode: exclusive, select: {}"):                                 "select: it is empty",
		pool("mode: exclusive, select: {vendors: []}"):                      "vendors is empty",
		pool("mode: exclusive, select: {rails: []}"):                        "rails is empty",
		pool("mode: exclusive, select: {rails: every}"):                     "must be a list of rails, or all",
		pool("mode: exclusive, select: {rails: [256]}"):                     "256 is not from 0 to 255",
		pool("mode: exclusive, select: {vendor: [15b3]}"):                   `did you mean "vendors"?`,
		pool("mode: exclusive, select: {deviceIDs: ['1021']}"):              `did you mean "devices"?`,
		pool("mode: exclusive, select: {isRdma: true}"):                     `did you mean "rdma"?`,
		pool("mode: exclusive, select: {vendors: [mellanox]}"):              "is not four hexadecimal digits",
		pool("mode: exclusive, select: {vendors: ['+5b3']}"):                "is not four hexadecimal digits",
		pool("mode: exclusive, select: {pKeys: ['0x8000']}"):                `"0x8000" is not a partition key`,
		pool("mode: exclusive, select: {linkTypes: [eth]}"):                 `"eth" is neither "ether" nor "infiniband"`,
		pool("mode: exclusive, select: {pciAddresses: ['0c:00.0']}"):        "is not a PCI address",
		pool("mode: exclusive, select: {pciAddresses: ['0000:0c:00.0.1']}"): "is not a PCI address",
		pool("mode: exclusive, select: {acpiIndexes: [a]}"):                 "is not a positive number",
		pool("mode: exclusive, select: {acpiIndexes: [0]}"):                 "is not a positive number",
		pool("mode: exclusive, select: {ifNames: ['']}"):                    "a value is empty",
		pool("mode: exclusive, select: {pfNames: ['ens1#3-1']}"):            `the range "3-1" is empty`,
		pool("mode: exclusive, select: {pfNames: ['ens1#']}"):               `"" is not a number`,
		pool("mode: exclusive, select: {pfNames: ['ens1#1-2-3']}"):          `"2-3" is not a number`,
		pool("mode: exclusive, select: {pfNames: ['#1']}"):                  "does not name a physical function",
		pool("mode: exclusive, select: {rootDevices: ['ens1#1']}"):          "is not a PCI address",
		pool("mode: exclusive, select: {rdma: true}, topologie: true"):      `did you mean "topology"?`,

		"{pools: [{name: a/b, mode: exclusive, select: {rdma: true}}, {name: a/b, mode: exclusive, select: {rdma: true}}]}":      "two pools have the resource a/b",
		"{pools: [{name: a/b, mode: perRail, select: {rdma: true}}, {name: a/b_rail_3, mode: exclusive, select: {rdma: true}}]}": "two pools have the resource a/b_rail_3",
	} {
		var c Config
		if err := yaml.Unmarshal([]byte(text), &c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestNamesOfResources(t *testing.T) {
	long := strings.Repeat("x", 63)
	for _, c := range []struct {
		name string
		mode Mode
		want string // "" if the name is valid
	}{
		{"rdma/hca_gpu", Shared, ""},
		{"nvidia.com/Rail-0.a_b", Exclusive, ""},
		{"a/" + long, Exclusive, ""},
		{"a/" + long + "x", Exclusive, "its name is longer than 63 characters"},
		{"a/" + long[:54], PerRail, ""},
		{"a/" + long[:55], PerRail, `with "_rail_255" at its end`},
		{strings.Repeat("abc.", 61) + "/x", Shared, "DNS subdomain"},
		{strings.Repeat("abc.", 60) + "abcd/x", Shared, ""},
		{strings.Repeat("abc.", 60) + "abcde/x", Shared, "its prefix is longer than 244 characters"},
		{"", Shared, "it has no prefix"},
		{"hca", Shared, "it has no prefix"},
		{"/hca", Shared, "DNS subdomain"},
		{"rdma/", Shared, "with a letter or digit first and last"},
		{"rdma/a/b", Shared, "with a letter or digit first and last"},
		{"rdma/_a", Shared, "with a letter or digit first and last"},
		{"rdma/a.", Shared, "with a letter or digit first and last"},
		{"rdma/ä", Shared, "with a letter or digit first and last"},
		{"rdma/a b", Shared, "with a letter or digit first and last"},
		{"RDMA/a", Shared, "DNS subdomain of small letters"},
		{"example_prefix/a", Shared, "DNS subdomain"},
		{"a..b/a", Shared, "DNS subdomain"},
		{"-a/a", Shared, "DNS subdomain"},
		{"kubernetes.io/a", Shared, "belongs to Kubernetes"},
		{"x.kubernetes.io/a", Shared, "belongs to Kubernetes"},
		{"mykubernetes.io/a", Shared, "belongs to Kubernetes"}, // the kubelet searches for the text
		{"requests.a/b", Shared, "reserved for quotas"},
	} {
		err := checkName(c.name, c.mode)
		if c.want == "" && err != nil {
			t.Errorf("%q: %v", c.name, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "use a name such as")) {
			t.Errorf("%q: %v, want %q", c.name, err, c.want)
		}
	}
}

// FuzzConfig looks for accepted configurations whose pools the kubelet would refuse.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		"pools: [{name: rdma/a, mode: shared, max: 8, select: {rdma: true}}, {name: a/b, mode: perRail, select: {rails: all}}]",
		"{pools: [&a {name: rdma/a, mode: exclusive, select: {pfNames: ['a#0-3,6']}}, {<<: *a, name: rdma/b}], allowOverlap: true}",
		"health: {down: 1s}", "pools: *x", "{<<: [{pools: []}]}", "&a {<<: *a}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var c Config
		if yaml.Unmarshal(data, &c) == nil {
			checkPools(t, data, &c)
		}
	})
}

// checkPools evaluates the configuration, and reports what must not be, whatever it is.
func checkPools(t *testing.T, data []byte, c *Config) {
	t.Helper()
	rails, _ := (&Rails{Auto: true}).Assign(server())
	pools, problems := c.Pools(server(), rails)
	seen, lent := map[string]bool{}, map[string]string{}
	for _, p := range pools {
		if seen[p.Resource] || nameMistake(p.Resource) != "" {
			t.Errorf("%q makes the resource %q, which is there twice or invalid", data, p.Resource)
		}
		seen[p.Resource] = true
		ids := p.IDs()
		for _, id := range ids {
			if other := lent[id]; p.Mode != Shared && other != "" && !c.AllowOverlap {
				t.Errorf("%q offers %s as %s and %s", data, id, other, p.Resource)
			}
			if p.Mode != Shared {
				lent[id] = p.Resource
			}
		}
		for _, n := range p.NICs {
			if p.Mode != Shared && (n.Protected != "" || n.PCI == "") || p.Mode == Shared && len(n.CharDevices) == 0 {
				t.Errorf("%q offers %+v as %s", data, n, p.Resource)
			}
		}
		if (len(p.NICs) == 0) != (len(ids) == 0) && !(p.Mode == Shared && p.Devices == 0) {
			t.Errorf("%q: pool %+v has the IDs %v", data, p, ids)
		}
	}
	for _, p := range problems {
		if p.Reason == "" || p.Message == "" {
			t.Errorf("%q: a problem without text: %+v", data, p)
		}
	}
}

// Names of resources that differ in the place of the slash are one name of a CDI device.
func TestPoolsWithOneCDIDeviceAreRefused(t *testing.T) {
	const text = `{cdi: %s, pools: [{name: rdma/a-b, mode: shared, max: 4, select: {ifNames: [ens1]}}, {name: rdma-a/b, mode: %s, select: {ifNames: [ens2]}}]}`
	for cdi, modes := range map[string]map[string]bool{"true": {"shared, max: 4": false, "exclusive": true}, "false": {"shared, max: 4": true}} {
		for mode, accepted := range modes {
			err := yaml.Unmarshal(fmt.Appendf(nil, text, cdi, mode), &Config{})
			if accepted != (err == nil) || !accepted && !strings.Contains(err.Error(), "pool-rdma-a-b") {
				t.Errorf("cdi %s, %s: %v", cdi, mode, err)
			}
		}
	}
}
