package base_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Node files that the parser reads. Together they have each key of the schema.
var goodNodeFiles = []string{
	`{nics: [{name: ens1}, {pci: "0000:3b:00.0"}, {driver: mlx5_core}], allow: [uplink], paths: [/srv/plugins]}`,
	`{rails: {auto: pciOrder}}`,
	`{rails: {auto: pciOrder, select: {vendors: ["15b3"], devices: ["1021"], drivers: [mlx5_core], rdma: true}}}`,
	`{rails: [{id: 0, pci: "0000:3b:00.0"}, {id: 1, name: ens2}, {id: 2, mac: "02:00:00:00:00:01"}, {id: 3, acpiIndex: 4}, {id: 4, rdma: mlx5_4}]}`,
	`{resources: {allowOverlap: true, cdi: false, health: {down: 10s, up: 1m}, sharedConfigFile: /etc/a.json, sriovConfigFile: /etc/b.json}}`,
	`{resources: {pools: [{name: example.com/a, mode: shared, max: 8, topology: true, umad: true, select: {rdma: true, linkTypes: [ether], pKeys: ["0x8001"]}}]}}`,
	`{resources: {pools: [{name: example.com/b, mode: perRail, select: {rails: all}}, {name: example.com/c, mode: exclusive, select: {rails: [0, 1]}}]}}`,
	`{resources: {pools: [{name: example.com/d, mode: exclusive, select: {vendors: ["15b3"], devices: ["1021"], drivers: [mlx5_core], ifNames: [ens1], pciAddresses: ["0000:3b:00.0"], acpiIndexes: ["4"], pfNames: [ens2#0-3], rootDevices: ["0000:3c:00.0"]}}]}}`,
	`{fabric: routed, node: 3}`,
	`{prefixes: [{rail: 0, prefix: 10.0.0.0/24, gateway: 10.0.0.1, exclude: [10.0.0.2/32]}]}`,
	`{publish: {env: [nccl, ucx, nvshmem, vllm], mount: true, memlock: false, devices: none, annotation: true, gidIndex: fixed}}`,
}

// Node files that the parser refuses, so that the agents would not start.
var badNodeFiles = []string{
	`{rails: {auto: pciorder}}`,
	`{rails: {auto: pciOrder, selects: {}}}`,
	`{rails: {auto: pciOrder, select: {vendor: ["15b3"]}}}`,
	`{rails: {select: {rdma: true}}}`,
	`{rails: [{pci: "0000:3b:00.0"}]}`,
	`{rails: [{id: 0}]}`,
	`{rails: [{id: -1, name: ens1}]}`,
	`{rails: [{id: 0, pci: "0000:3b:00.0", name: ens1}]}`,
	`{rails: [{id: 0, nic: ens1}]}`,
	`{resources: {pool: []}}`,
	`{resources: {sharedConfigFile: a.json}}`,
	`{resources: {health: {down: soon}}}`,
	`{resources: {health: {downs: 10s}}}`,
	`{resources: {pools: [{name: example.com/a, mode: share, select: {rdma: true}}]}}`,
	`{resources: {pools: [{name: example.com/a, mode: shared, max: 0, select: {rdma: true}}]}}`,
	`{resources: {pools: [{name: example.com/a, mode: exclusive}]}}`,
	`{resources: {pools: [{name: example.com/a, mode: exclusive, select: {rails: some}}]}}`,
	`{resources: {pools: [{name: example.com/a, mode: exclusive, select: {ifName: [ens1]}}]}}`,
	`{resources: {pools: [{name: example.com/a, mode: exclusive, select: {linkTypes: [roce]}}]}}`,
	`{prefixes: [{prefix: 10.0.0.0/24}]}`,
	`{prefixes: [{rail: 0, prefix: 10.0.0.0}]}`,
	`{prefixes: [{rail: 0, prefix: 10.0.0.0/24, gw: 10.0.0.1}]}`,
	`{publish: {env: [mpi]}}`,
	`{publish: {devices: all}}`,
	`{publish: {gidIndex: "3"}}`,
	`{publish: {mounts: true}}`,
	`{fabric: star}`,
	`{node: -1}`,
	`{prefixesFrom: [nv-ipam]}`,
	`{rail: {auto: pciOrder}}`,
}

// inPools writes values in which each node file is that of a pool of nodes, and returns the path.
func inPools(t *testing.T, nodeFiles []string) string {
	t.Helper()
	type pool struct {
		Name     string            `yaml:"name"`
		Selector map[string]string `yaml:"nodeSelector"`
		NodeFile any               `yaml:"nodeFile"`
	}
	var values struct {
		Pools []pool `yaml:"nodePools"`
	}
	for i, text := range nodeFiles {
		p := pool{Name: "p" + strconv.Itoa(i), Selector: map[string]string{"pool": strconv.Itoa(i)}}
		if err := yaml.Unmarshal([]byte(text), &p.NodeFile); err != nil {
			t.Fatal(err)
		}
		values.Pools = append(values.Pools, p)
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The chart refuses the node files that the agents would refuse, and no others.
func TestSchemaOfTheNodeFileIsThatOfItsParser(t *testing.T) {
	for _, text := range goodNodeFiles {
		if _, err := nodefile.Parse([]byte(text)); err != nil {
			t.Errorf("the parser refuses %s: %v", text, err)
		}
	}
	for _, text := range badNodeFiles {
		if _, err := nodefile.Parse([]byte(text)); err == nil {
			t.Errorf("the parser reads %s", text)
		}
	}
	helm := testnet.Tool(t, "helm", "tools")
	good := exec.Command(helm, "template", "rail-cni", chart, "--set", "devicePlugin.enabled=true", "--values", inPools(t, goodNodeFiles))
	if out, err := good.CombinedOutput(); err != nil {
		t.Errorf("the schema refuses what the parser reads: %v\n%s", err, out)
	}
	out, err := exec.Command(helm, "template", "rail-cni", chart, "--values", inPools(t, badNodeFiles)).CombinedOutput()
	if err == nil {
		t.Fatal("the schema accepts all node files that the parser refuses")
	}
	refused := regexp.MustCompile(`/?nodePools[/.]([0-9]+)[/.]nodeFile`).FindAllStringSubmatch(string(out), -1)
	for i, text := range badNodeFiles {
		if !slices.ContainsFunc(refused, func(m []string) bool { return m[1] == strconv.Itoa(i) }) {
			t.Errorf("the schema accepts %s", text)
		}
	}
}

// Each key of the schema is in a node file that the parser reads.
func TestSchemaHasNoKeyThatTheParserDoesNotKnow(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(goodNodeFiles, "\n")
	keys := 0
	var walk func(any)
	walk = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, n := range node {
				walk(n)
			}
		case map[string]any:
			if properties, ok := node["properties"].(map[string]any); ok {
				for key := range properties {
					keys++
					if !regexp.MustCompile(`[{ ]` + key + `:`).MatchString(all) {
						t.Errorf("no node file of the test has the key %s", key)
					}
				}
			}
			for _, n := range node {
				walk(n)
			}
		}
	}
	for _, of := range []string{"nodeFile", "rail", "pool"} {
		walk(schema.Definitions[of])
	}
	if keys < 40 {
		t.Errorf("the schema has only %d keys", keys)
	}
}
