package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestREADMEHasEveryCommand(t *testing.T) {
	text := readme(t)
	for _, c := range newRoot().Commands() {
		contains(t, "README", text, "railctl "+c.Name())
	}
	root := newRoot()
	for _, m := range regexp.MustCompile(`(?m)^railctl ([a-z0-9]+)(?: (--[a-z-]+))?`).FindAllStringSubmatch(text, -1) {
		if m[1] == "completion" { // cobra adds it at run time
			continue
		}
		cmd, _, err := root.Find([]string{m[1]})
		if err != nil || cmd == root {
			t.Errorf("README: there is no command %q", m[0])
			continue
		}
		if m[2] != "" && cmd.Flags().Lookup(strings.TrimPrefix(m[2], "--")) == nil {
			t.Errorf("README: %s has no flag %s", m[1], m[2])
		}
	}
}

func TestREADMEHasEveryGuardrail(t *testing.T) {
	_, text, _ := strings.Cut(readme(t), "\n## Guardrails\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var have []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(text, -1) {
		have = append(have, m[1])
	}
	if !slices.Equal(have, netconf.Overrides) {
		t.Errorf("README: the override keys are %v, not %v", have, netconf.Overrides)
	}
}

// TestREADMEQuotesRealErrors searches the code for the texts that the README
// explains.
func TestREADMEQuotesRealErrors(t *testing.T) {
	for file, texts := range map[string][]string{
		"../../pkg/nic/guard.go":               {"must stay on the host", "a default route of the host leaves by it"},
		"../../pkg/part/loan/loan.go":          {"is lent to"},
		"../../pkg/part/netdev/return.go":      {"cannot come home: the host has another link named"},
		"../../pkg/part/rdmadev/rdmadev.go":    {"RDMA is in exclusive mode: a macvlan on", "cannot use its RDMA device", "the GID table of", "entries free", "are needed", `"rdma" is required, but`, "has no RDMA device in this netns"},
		"../../pkg/rdma/core.go":               {"no RDMA here: the kernel's RDMA core (module ib_core) is not loaded"},
		"../../pkg/rdma/gid.go":                {"as GID of", "has no RoCE v2 GID for the address"},
		"../../pkg/rdma/mode.go":               {"the kernel changes the RDMA mode only while no network namespace but its first exists"},
		"../../pkg/rdma/move.go":               {"its driver does not support moving it to a network namespace", "two devices of this node were moved at the same time"},
		"../../pkg/attachment/part.go":         {"not found in CNI_PATH"},
		"../../pkg/whereabouts/plugin/call.go": {"needs an address that is unique in its cluster, and no kubeconfig is configured"},
	} {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			contains(t, "README", readme(t), text)
			if !strings.Contains(string(code), text) {
				t.Errorf("%s no longer says %q, which the README explains", file, text)
			}
		}
	}
}

func TestREADMENamesTheFileOfTheMode(t *testing.T) {
	contains(t, "README", readme(t), rdma.BootFile)
}

func TestREADMELinksLeadSomewhere(t *testing.T) {
	text := readme(t)
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		kept := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors["#"+strings.ReplaceAll(kept, " ", "-")] = true
	}
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(m[1], "#") {
			if !anchors[m[1]] {
				t.Errorf("README: no heading for %s", m[1])
			}
			continue
		}
		if _, err := os.Stat("../../" + m[1]); err != nil {
			t.Errorf("README: %v", err)
		}
	}
}
