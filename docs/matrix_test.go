package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const matrixPage = "docs/reference/matrix.md"

// feature is a row of the matrix. An empty cell needs no more than the platform.
type feature struct {
	what                                      string
	kubernetes, runtime, multus, kernel, mode string
	// tests are those that run the feature. Without one it is only expected to work, or
	// not supported.
	tests []string
	// but is what the tests leave out, and what a reader has to know without them.
	but string
	// part is set if the tests run a part of it only, and but says which; no if the feature
	// is not supported.
	part, no bool
}

// How features are described in several rows.
const (
	anyMode   = ""
	rigKernel = "run on 6.12"
)

var features = []feature{
	// NICs
	{
		what:   "[`host-device`](../guide/host-device.md): a NIC is lent, and returns as it was",
		kernel: "run on all",
		tests:  []string{"TestNICIsLentAndComesHomeAsItWas", "TestPodsBehindThinMultus"},
	},
	{
		what:   "`host-device`, with the RDMA device only in the pod",
		kernel: rigKernel, mode: "exclusive",
		tests: []string{"TestRDMADevicesGoWithTheirNICsInExclusiveMode", "TestPodHasItsRailsWithRDMA"},
		but:   "the driver [must be able to move its device](kernels.md#rdma-drivers)",
	},
	{
		what:   "`host-device`, with the RDMA device in the pod and on the host",
		kernel: rigKernel, mode: "shared",
		tests: []string{"TestGIDsOfAPodAreFoundInSharedMode"},
	},
	{
		what:   "[`macvlan`](../guide/macvlan.md) without RDMA",
		kernel: "run on all",
		tests:  []string{"TestMacvlanOnANIC", "TestPodsBehindThinMultus"},
	},
	{
		what:   "[`macvlan` with RDMA](../guide/macvlan.md#rdma)",
		kernel: "run on 6.12", mode: "shared",
		tests: []string{"TestMacvlanPodsOfOneNICHaveTheirGIDs"},
	},
	{what: "`macvlan` with RDMA", mode: "exclusive", no: true, but: "the pod has no RDMA; with `\"rdma\": \"required\"` ADD fails"},
	{
		what:   "[`host-device` of an InfiniBand HCA](../guide/infiniband.md)",
		kernel: rigKernel,
		tests:  []string{"TestHCAIsLentInExclusiveModeAndComesHomeAsItWas", "TestWhatHappensToEachKindOfDevice"},
		but:    "in exclusive mode the pod gets the whole HCA, with all ports",
	},
	{
		what:   "[`ipoib`](../guide/infiniband.md) with RDMA",
		kernel: rigKernel, mode: "shared",
		tests: []string{"TestPodsShareAnInfiniBandPort"},
	},
	{
		what:   "[`sriov`](../guide/sriov.md): a virtual function with its settings",
		kernel: rigKernel,
		tests:  []string{"TestSettingsOfAVirtualFunctionComeHome", "TestSettingsOfIGBsFunctionsComeHome"},
	},
	{
		what:   "[`ib-sriov`](../guide/ib-sriov.md): a virtual function with a GUID",
		kernel: rigKernel,
		tests:  []string{"TestGUIDOfAVirtualFunctionComesHome", "TestAnnotationOfIBKubernetes"},
		but:    "ib-kubernetes and UFM themselves were not run",
	},
	{
		what:   "[`rdma`](../guide/rdma-modes.md#rdma-behind-another-plugin) behind another plugin",
		kernel: rigKernel,
		tests:  []string{"TestChainedRDMAMovesTheDeviceBehindUpstreamsHostDevice", "TestChainedRDMAInSharedModeAwaitsTheGIDs"},
	},
	{
		what:   "[One network for all rails](../guide/rails.md)",
		multus: "4.3 for a fixed order",
		tests:  []string{"TestPodOfOneNetworkRequestsADeviceForEachUse", "TestThinMultus"},
	},
	{what: "Pods in a user namespace", kernel: rigKernel, tests: []string{"TestPodsInAUserNamespaceGetAndReturnNICsWithRDMA"}},
	// Addresses
	{
		what:  "[`whereabouts`](../guide/addresses.md) in the cluster",
		tests: []string{"TestConformance", "TestMixedWritersShareAPool"},
		but:   "needs whereabouts' CRDs, which the chart contains",
	},
	{
		what:  "[Blocks of addresses](../guide/address-blocks.md)",
		tests: []string{"TestNodesAssignAddressesOfTheirOwnBlocks"},
		but:   "needs the file with the node's name, which rail-agent writes",
	},
	{
		what:       "[Limit for patches of pools](../guide/large-clusters.md)",
		kubernetes: "1.29",
		tests:      []string{"TestPatchesOfPoolsHaveALevelOfTheirOwn"},
	},
	{
		what:       "Tokens bound to their node, and [admission policies](../../deployments/README.md#what-a-node-may-do)",
		kubernetes: "1.31",
		tests:      []string{"TestAdmissionPolicyKeepsANodeToItsOwn"},
	},
	// Devices and what containers get
	{
		what:  "[Device plugin](../guide/devices.md)",
		tests: []string{"TestPodWhoseRailIsTakenIsPending", "TestNICsAreNearThePodsGPUs"},
		but:   "a program stands in for the GPUs",
	},
	{
		what:       "[CDI](../guide/devices.md#what-a-container-gets)",
		kubernetes: "1.31", runtime: "with CDI",
		tests: []string{"TestCDIDevicesReplaceCharDevices"},
		but:   "only the CDI specification was checked; no runtime read it",
		part:  true,
	},
	{what: "Health of devices in the status of pods", kubernetes: "1.36", tests: []string{"TestHealthOfANICIsInThePodsStatus"}},
	{
		what:    "[NRI](../guide/nccl.md#nri): variables, files and locked memory",
		runtime: "containerd 2",
		tests:   []string{"TestPodWithRailsHasWhatItNeeds"},
	},
	{what: "NRI with containerd 1.7 or CRI-O", runtime: "NRI turned on"},
	{
		what:    "Pods that [wait for the agent](../guide/nccl.md#when-the-agent-is-not-running)",
		runtime: "containerd 2.2",
		tests:   []string{"TestPodThatRequiresWhatCannotBeGivenWaits", "TestPodsWithoutTheAgent"},
	},
	{
		what:   "GPUDirect RDMA",
		kernel: "5.12 for dma-buf",
		but:    "needs hardware. The rule [HOST-PEERMEM](doctor-rules.md#host-peermem) checks what a node has",
	},
	{what: "Claims of Dynamic Resource Allocation (DRA)", no: true, but: "use the device plugin"},
	{what: "Creation of virtual functions", no: true, but: "use sriov-network-operator, or write to `sriov_numvfs`"},
	// Operation
	{what: "[Install, upgrade, roll back, uninstall](../guide/install.md)", tests: []string{"TestInstallUpgradeRollbackAndUninstall"}},
	{what: "A node with read-only `/etc` and `/usr`", tests: []string{"TestNodeWithAReadOnlyEtcAndUsr"}},
	{what: "[`railctl verify`](../guide/verify.md), levels 0 and 1", tests: []string{"TestHealthyRailsOfAClusterAreHealthy"}},
	{what: "`railctl verify`, levels 2 and 3", kernel: rigKernel, tests: []string{"TestVerifyMeasuresRDMA"}, but: "run over Soft-RoCE"},
	{
		what:       "[The doctor](../guide/doctor.md) knows the networks of services",
		kubernetes: "1.33",
		tests:      []string{"TestHealthyClusterHasNoFindings"},
	},
	{what: "cgroup v2", tests: []string{"TestPodHasItsRailsWithRDMA"}, part: true, but: "run on [one node](kubernetes.md#cgroups), not in a cluster of several nodes"},
	{what: "arm64", tests: []string{"TestProgramsStart"}, part: true, but: "run in an emulated machine, without RDMA"},
	{what: "SELinux, AppArmor"},
}

// state returns the last cells of the feature's row: its state, and the tests and the rest.
func (f *feature) state(t *testing.T, exists map[string]int) (state, by string) {
	var words []string
	for _, name := range f.tests {
		if exists[name] == 0 {
			t.Errorf("%s: there is no test %s", f.what, name)
		}
		words = append(words, "`"+name+"`")
	}
	by = strings.Join(words, ", ")
	if f.but != "" {
		by += "; " + f.but
	}
	switch {
	case f.no:
		state = "not supported"
	case f.part && len(f.tests) > 0 && f.but != "":
		state = "in part"
	case len(f.tests) > 0:
		state = "tested"
	default:
		state = "expected"
	}
	return state, strings.TrimPrefix(by, "; ")
}

// TestMatrixIsMadeOfWhatIsTested writes the matrix from the table above, and the platforms
// from the pages that the tests of the platforms are compared with.
func TestMatrixIsMadeOfWhatIsTested(t *testing.T) {
	exists := tests(t)
	var b strings.Builder
	b.WriteString("| feature | Kubernetes | runtime | Multus | kernel | RDMA mode | state | by |\n|---|---|---|---|---|---|---|---|\n")
	for _, f := range features {
		state, by := f.state(t, exists)
		if f.mode == anyMode {
			f.mode = "both"
		}
		if state == "expected" && by == "" {
			by = "–"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", f.what, f.kubernetes, f.runtime, f.multus, f.kernel, f.mode, state, by)
	}
	Generated(t, matrixPage, "features", strings.ReplaceAll(b.String(), "|  ", "| "))

	var releases []string
	for _, row := range Rows(Section(t, kubernetesPage, "Releases that tests run on")) {
		releases = append(releases, row[0])
	}
	beside := map[string]string{}
	for _, row := range Rows(Section(t, kubernetesPage, "Other programs in these tests")) {
		beside[row[0]] = row[1]
	}
	floor := regexp.MustCompile(`kubeVersion: ">=([0-9.]+)\.0-0"`).FindStringSubmatch(Page(t, "deployments/helm/rail-cni/Chart.yaml"))
	kernels, _, _ := strings.Cut(Section(t, "docs/reference/kernels.md", "What you get"), "|---")
	header := regexp.MustCompile(`\| \| Linux ([0-9. |]+) \|`).FindStringSubmatch(kernels)
	multus := regexp.MustCompile(`has Multus ([0-9.]+) or newer`).FindStringSubmatch(Page(t, "docs/reference/doctor-rules.md"))
	if floor == nil || header == nil || multus == nil || beside["containerd"] == "" || beside["Multus, thin and thick"] == "" {
		t.Fatal("a page has no versions: ", floor, header, multus, beside)
	}
	run := strings.Split(header[1], " | ")
	want := "| | tested | expected | not supported |\n|---|---|---|---|\n" +
		fmt.Sprintf("| Kubernetes | %s | %s and newer | before %s |\n", strings.Join(releases, ", "), floor[1], floor[1]) +
		fmt.Sprintf("| container runtime | containerd %s | other releases of containerd, CRI-O | |\n", beside["containerd"]) +
		fmt.Sprintf("| Multus | %s, thin and thick | %s and newer | before %s |\n", beside["Multus, thin and thick"], multus[1], multus[1]) +
		fmt.Sprintf("| Linux | Debian's %s | %s and newer, of any vendor | kernels without [two features](kernels.md#what-is-refused) of %s |\n", strings.Join(run, ", "), run[0], run[0]) +
		"| RDMA mode | shared and exclusive, on Debian's 6.12 with emulated NICs | both modes on real NICs | |\n" +
		"| machine | amd64; arm64 in an emulated machine, without RDMA | arm64 | others |\n"
	Generated(t, matrixPage, "platforms", want)
}

const kubernetesPage = "docs/reference/kubernetes.md"

// TestKubernetesPageHasTheVersionsBesideIt holds the page to the modules that pin the
// programs. Debian pins its containerd.
func TestKubernetesPageHasTheVersionsBesideIt(t *testing.T) {
	modules := map[string][2]string{
		"Multus, thin and thick":         {"integration/controlplane/binaries/kubernetes", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"},
		"containerd":                     {"integration/controlplane/binaries/containerd", "github.com/containerd/containerd/v2"},
		"plugins of containernetworking": {"integration/peers/plugins", "github.com/containernetworking/plugins"},
		"whereabouts":                    {"integration/peers", "github.com/k8snetworkplumbingwg/whereabouts"},
		"rdma-cni":                       {"integration/peers/rdma-cni", "github.com/k8snetworkplumbingwg/rdma-cni"},
		"k8s-rdma-shared-dev-plugin":     {"integration/peers/shared-device-plugin", "github.com/Mellanox/k8s-rdma-shared-dev-plugin"},
	}
	rows := Rows(Section(t, kubernetesPage, "Other programs in these tests"))
	for _, row := range rows {
		module, ok := modules[row[0]]
		if !ok {
			t.Errorf("%s: no module is known for %s", kubernetesPage, row[0])
			continue
		}
		m := regexp.MustCompile(`(?m)\b` + regexp.QuoteMeta(module[1]) + ` v(\S+)`).FindStringSubmatch(Page(t, module[0]+"/go.mod"))
		if m == nil || !slices.Contains(strings.Fields(row[1]), m[1]) {
			t.Errorf("%s says %q of %s, and %s/go.mod has %q", kubernetesPage, row[1], row[0], module[0], m)
		}
	}
	if len(rows) != len(modules) {
		t.Errorf("%s has %d programs, want %d", kubernetesPage, len(rows), len(modules))
	}
}
