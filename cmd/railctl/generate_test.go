package main

import (
	"strings"
	"testing"
)

func TestGenerateGivesEachFlagToTheNetworks(t *testing.T) {
	out, errOut, code := plainRun("generate", "nads", "--rails", "2,4", "--range", "10.{rail}.0.0/16", "--gateway", "10.{rail}.0.1", "--resource", "rdma/roce",
		"--name", "roce", "--namespace", "train", "--mtu", "9000", "--rdma", "required", "--one", "--same-host", "--pod")
	if code != 0 || errOut != "" {
		t.Fatalf("exit code %d, stderr %q", code, errOut)
	}
	contains(t, "the manifest", out, "name: roce\n", "namespace: train\n", `"mtu": 9000`, `"rdma": "required"`, `"range": "10.${rail}.0.0/16"`,
		`"gateway": "10.${rail}.0.1"`, `"sameHost": true`, "rdma/roce: 2\n", "name: roce-pod\n", `"type": "host-device"`)
	out, _, _ = plainRun("generate", "nads", "--rails", "2", "--range", "10.{rail}.0.0/16", "--type", "macvlan")
	contains(t, "the manifest", out, "name: rail-net-2\n", `"type": "macvlan"`, "# A pod needs in metadata.annotations:\n")
}

func TestGenerateRefusesWhatWouldNotWork(t *testing.T) {
	for text, args := range map[string][]string{
		`required flag(s) "rails"`: {"--range", "10.{rail}.0.0/16"},
		`required flag(s) "range"`: {"--rails", "0"},
		"--rails":                  {"--rails", "3-1", "--range", "10.{rail}.0.0/16"},
	} {
		out, errOut, code := plainRun(append([]string{"generate", "nads"}, args...)...)
		if code != 1 || out != "" || !strings.Contains(errOut, text) {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q, want %q", args, code, out, errOut, text)
		}
	}
}
