package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma/bootmode"
)

const (
	railctlPage         = "docs/guide/railctl.md"
	hostDevicePage      = "docs/guide/host-device.md"
	rdmaModesPage       = "docs/guide/rdma-modes.md"
	troubleshootingPage = "docs/guide/troubleshooting.md"
)

func TestRailctlPageHasEveryCommand(t *testing.T) {
	text := docs.Page(t, railctlPage)
	for _, c := range newRoot().Commands() {
		contains(t, railctlPage, text, "railctl "+c.Name())
	}
}

// TestPagesNameRealCommands reads the command lines in the blocks of all guides.
func TestPagesNameRealCommands(t *testing.T) {
	line := regexp.MustCompile(`(?m)(?:^|[| /])railctl((?: [a-z0-9][a-z0-9-]*)+)([^\n#|>]*)`)
	flag := regexp.MustCompile(` --?([a-z][a-z-]*)`)
	seen := 0
	for _, page := range docs.CommandPages(t) {
		for _, b := range docs.Blocks(docs.Page(t, page)) {
			if b.Language != "sh" && b.Language != "console" {
				continue
			}
			for _, m := range line.FindAllStringSubmatch(b.Text, -1) {
				seen++
				cmd, rest, err := newRoot().Find(strings.Fields(m[1]))
				if cmd != nil && len(rest) > 0 && rest[0] == "completion" {
					continue // cobra adds it at run time
				}
				if err != nil || !cmd.HasParent() || cmd.HasSubCommands() && len(rest) > 0 {
					t.Errorf("%s: there is no command %q", page, m[0])
					continue
				}
				for _, f := range flag.FindAllStringSubmatch(m[2], -1) {
					short := len(f[1]) == 1 && cmd.Flags().ShorthandLookup(f[1]) != nil
					if !short && cmd.Flags().Lookup(f[1]) == nil && cmd.InheritedFlags().Lookup(f[1]) == nil {
						t.Errorf("%s: %q: %s has no flag %s", page, strings.TrimSpace(m[0]), cmd.CommandPath(), f[1])
					}
				}
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d commands are in the pages", seen)
	}
}

func TestCLIPageHasTheHelpOfRailctl(t *testing.T) {
	docs.Generated(t, "docs/reference/cli.md", "railctl", docs.Commands("railctl", func(args ...string) string {
		out, errOut, code := plainRun(args...)
		if code != 0 || errOut != "" {
			t.Fatalf("%v: exit code %d, stderr %q", args, code, errOut)
		}
		return out
	}))
}

func TestHostDevicePageHasEveryGuardrail(t *testing.T) {
	var have []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(docs.Section(t, hostDevicePage, "Guardrails"), -1) {
		have = append(have, m[1])
	}
	if !slices.Equal(have, netconf.Overrides) {
		t.Errorf("%s: the override keys are %v, not %v", hostDevicePage, have, netconf.Overrides)
	}
}

// TestTroubleshootingQuotesRealErrors searches the code for the texts that the page
// explains.
func TestTroubleshootingQuotesRealErrors(t *testing.T) {
	page := docs.Page(t, troubleshootingPage)
	for file, texts := range map[string][]string{
		"pkg/install/node/watch.go":         {"is not the plugin of rail-cni", "another program"},
		"pkg/agent/takeover.go":             {"another rail-agent answers at"},
		"pkg/attachment/part.go":            {"not found in CNI_PATH"},
		"pkg/install/node/uninstall.go":     {"the plugins stay while they are needed:"},
		"pkg/ipam/range.go":                 {"Could not allocate IP in range"},
		"pkg/kube/config.go":                {"names a program for the credentials"},
		"pkg/kube/error.go":                 {"allow it by a rule of a Role or ClusterRole"},
		"pkg/nodefile/paths.go":             {"not open to networks on this node"},
		"pkg/nic/guard.go":                  {"must stay on the host", "a default route of the host leaves by it", "the kernel cannot move it to another network namespace (netns-local)"},
		"pkg/nic/permit.go":                 {"not open to networks on this node"},
		"pkg/nic/use.go":                    {"the host has TCP connections by its address"},
		"pkg/ledger/record.go":              {"is lent to"},
		"pkg/part/rails/rails.go":           {"the network is for rail"},
		"pkg/part/macvlan/release.go":       {"but its macvlan", "is still up", "the pod moved its macvlan", "to another netns, where it is still up"},
		"pkg/part/netdev/netdev.go":         {"the network selects", "and the device id is another NIC"},
		"pkg/part/netdev/release.go":        {"cannot return", "the host has another link named"},
		"pkg/part/rdmadev/rdmadev.go":       {"RDMA is in exclusive mode: a pod cannot share the RDMA device of", "the GID table of", "entries free", "are needed", `"rdma" is required, but`, "has no RDMA device in this netns", "stays on the host with", "on which"},
		"pkg/rdma/core.go":                  {"no RDMA here: the kernel's RDMA core (module ib_core) is not loaded"},
		"pkg/rdma/gid.go":                   {"as GID of", "has no RoCE v2 GID for the address"},
		"pkg/rdma/mode.go":                  {"the kernel changes the RDMA mode only while no other network namespace exists"},
		"pkg/rdma/move.go":                  {"its driver does not support moving it to a network namespace", "two devices of this node were moved at the same time"},
		"pkg/whereabouts/plugin/call.go":    {"needs an address that is unique in its cluster, and no kubeconfig is configured"},
		"pkg/whereabouts/plugin/cluster.go": {"a step failed"},
		"pkg/whereabouts/store/store.go":    {"the address of pool", "is freed later"},
	} {
		code := docs.Page(t, file)
		for _, text := range texts {
			contains(t, troubleshootingPage, page, text)
			if !strings.Contains(code, text) {
				t.Errorf("%s no longer says %q, which %s explains", file, text, troubleshootingPage)
			}
		}
	}
}

func TestRDMAModesPageNamesTheFileOfTheMode(t *testing.T) {
	contains(t, rdmaModesPage, docs.Page(t, rdmaModesPage), bootmode.File)
}
