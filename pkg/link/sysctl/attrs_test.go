package sysctl_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
)

// Each setting is changed in turn: most settings have the same default value, which would hide a
// wrong number.
func TestSysctlsOfADescriptionAreThoseOfTheFiles(t *testing.T) {
	host := testnet.NewNetns(t, "host")
	host.NIC("ens1", testnet.NewNetns(t, "wire"))
	compare := func(changed string) {
		t.Helper()
		described, err := sysctl.Conf(host.Netns, "ens1")
		if err != nil {
			t.Fatal(err)
		}
		files, err := sysctl.Read(host.Netns, "ens1")
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range slices.Sorted(maps.Keys(described)) {
			if have, ok := files[key]; ok && have != described[key] {
				t.Errorf("after a change of %s: %s is %q in the description, %q in its file", changed, key, described[key], have)
			}
		}
	}
	compare("nothing")
	described, err := sysctl.Conf(host.Netns, "ens1")
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	for _, key := range slices.Sorted(maps.Keys(described)) {
		if strings.HasSuffix(key, "/disable_ipv6") {
			continue // last, because it hides the other settings
		}
		group, setting := filepath.Split(key)
		_ = host.Do(func() error {
			file := filepath.Join("/proc/sys/net", group, "ens1", setting)
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			was, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			for _, value := range []int{was + 1, was - 1, 1 - was} {
				if os.WriteFile(file, []byte(strconv.Itoa(value)), 0) == nil {
					changes++
					break
				}
			}
			compare(key)
			_ = os.WriteFile(file, text, 0)
			return nil
		})
	}
	if changes < 50 {
		t.Errorf("only %d settings could be changed", changes)
	}
}
