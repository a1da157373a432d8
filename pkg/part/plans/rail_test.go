package plans_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
)

// The NICs of a railBench by rail, as "rails: {auto: pciOrder}" numbers them. The order of
// the names is another.
var railNICs = []struct{ pci, name string }{
	{"0000:1a:00.0", nicName}, {"0000:3b:00.0", "ens11np0"}, {"0001:02:00.0", "ens14np0"},
}

const gpuPCI = "0000:3c:00.0"

// railBench is a bench with three NICs in a sysfs of its own, and a GPU. (Virtual links have
// no parent in rtnetlink, like all links before Linux 5.14, so the code uses sysfs.)
type railBench struct {
	*bench
	opened *attachment.Node
}

func newRailBench(t *testing.T, nodeFile string) *railBench {
	t.Helper()
	b := &railBench{bench: newBench(t)}
	for _, n := range railNICs[1:] {
		b.node.NIC(n.name, b.wire)
	}
	b.opened = b.open()
	b.opened.Log = slog.New(slog.DiscardHandler)
	b.opened.Sys = t.TempDir()
	for i, n := range railNICs {
		dir := filepath.Join(b.opened.Sys, "bus/pci/devices", n.pci)
		// sysfs keeps the directory of the char devices while the NIC is lent.
		for _, below := range []string{"net/" + n.name, fmt.Sprintf("infiniband_verbs/uverbs%d", i)} {
			if err := os.MkdirAll(filepath.Join(dir, below), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, device := range []string{gpuPCI, "0000:50:00.0"} {
		if err := os.MkdirAll(filepath.Join(b.opened.Sys, "bus/pci/devices", device), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// pcie reads where a device is from the links of this directory.
	for i, device := range []string{railNICs[0].pci, railNICs[1].pci, railNICs[2].pci, gpuPCI, "0000:50:00.0"} {
		at := filepath.Join(b.opened.Sys, "bus/pci/devices", device)
		real := filepath.Join(b.opened.Sys, "devices/pci0000:00", device)
		if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at, real); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../devices/pci0000:00/"+device, at); err != nil {
			t.Fatal(err)
		}
		class := "0x020000\n"
		if i == 3 {
			class = "0x030200\n"
		}
		if err := os.WriteFile(filepath.Join(real, "class"), []byte(class), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if nodeFile != "" {
		file, err := nodefile.Parse([]byte(nodeFile))
		if err != nil {
			t.Fatal(err)
		}
		file.Path = nodefile.DefaultPath
		b.opened.File = file
	}
	return b
}

const railsInOrder = "rails: {auto: pciOrder}"

// railsListed are the same rails by three kinds of selectors.
var railsListed = fmt.Sprintf(`rails: [{id: 0, name: enp4s0np0}, {id: 1, pci: "%s"}, {id: 2, name: %s}]`, railNICs[1].pci, railNICs[2].name)

// plan returns the call and the plan of a configuration for a container.
func (b *railBench) plan(container, ifName, config string) (*attachment.Call, *attachment.Plan) {
	b.t.Helper()
	c := &attachment.Call{Key: ledger.Key{ContainerID: container, IfName: ifName}, Netns: "/run/netns/" + b.pod.Name}
	if strings.Contains(config, `"macvlan"`) {
		conf, err := netconf.ParseMacvlan([]byte(config), netconf.Args{})
		if err != nil {
			b.t.Fatal(err)
		}
		c.Conf = &conf.Common
		return c, plans.MacvlanPlan(conf)
	}
	conf, err := netconf.ParseHostDevice([]byte(config))
	if err != nil {
		b.t.Fatal(err)
	}
	c.Conf = &conf.Common
	return c, plans.HostDevicePlan(conf)
}

// add adds an interface and returns the name of the NIC that it got.
func (b *railBench) add(container, ifName, config string) (nic string, err error) {
	b.t.Helper()
	c, p := b.plan(container, ifName, config)
	if _, err := b.opened.Add(context.Background(), c, p); err != nil {
		return "", err
	}
	for _, r := range b.records() {
		if r.Key == c.Key {
			return r.NICName(), nil
		}
	}
	b.t.Fatalf("no record of %s", c.Key)
	return "", nil
}

// hasPCI adds to the record of a lent NIC the PCI address that rtnetlink reports of a NIC
// of hardware.
func (b *railBench) hasPCI(name, pci string) {
	b.t.Helper()
	for _, r := range b.records() {
		if r.NICName() != name {
			continue
		}
		whole, err := b.opened.Ledger.Get(r.Key) // a list has no configurations
		if err != nil {
			b.t.Fatal(err)
		}
		whole.Loan.PCI = pci
		if err := b.opened.Ledger.Put(whole); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *railBench) del(container, ifName, config string) {
	b.t.Helper()
	c, p := b.plan(container, ifName, config)
	if err := b.opened.Del(context.Background(), c, p); err != nil {
		b.t.Errorf("DEL: %v", err)
	}
}

func TestNICIsThatOfTheDeviceIDAndTheRail(t *testing.T) {
	t.Parallel()
	first, second, third := railNICs[0], railNICs[1], railNICs[2]
	for name, c := range map[string]struct {
		rails string // of the node file
		more  map[string]any
		nic   string // that is lent
		code  uint   // or of the error
		texts []string
	}{
		"an id alone":                       {more: map[string]any{"device": nil, "deviceID": second.pci, "pciBusID": second.pci}, nic: second.name},
		"the runtime's id alone":            {more: map[string]any{"device": nil, "runtimeConfig": map[string]any{"deviceID": second.pci}}, nic: second.name},
		"the runtime's id before the NAD's": {more: map[string]any{"device": nil, "pciBusID": third.pci, "runtimeConfig": map[string]any{"deviceID": second.pci}}, nic: second.name},
		"nothing": {
			more: map[string]any{"device": nil}, code: cnierr.InvalidConfig,
			texts: []string{"no device plugin has allocated one", "k8s.v1.cni.cncf.io/resourceName", "have the pod request that resource", `specify either "device"`, `"rail"`},
		},
		"a shared plugin's number alone": {more: map[string]any{"device": nil, "deviceID": "3"}, code: cnierr.NICNotFound, texts: []string{`"3"`, "shared"}},

		"a selector and its id":                 {more: map[string]any{"deviceID": first.pci}, nic: first.name},
		"an altname and its id":                 {more: map[string]any{"device": "enp4s0np0", "deviceID": first.pci}, nic: first.name},
		"a selector and a number":               {more: map[string]any{"deviceID": "3", "pciBusID": "3"}, nic: first.name},
		"a selector and an unplugged device":    {more: map[string]any{"deviceID": "0000:99:00.0"}, nic: first.name},
		"a selector and a GPU":                  {more: map[string]any{"deviceID": gpuPCI}, nic: first.name},
		"a selector and another NIC":            {more: map[string]any{"deviceID": second.pci}, code: cnierr.InvalidConfig, texts: []string{nicName, `device "` + nicName + `"`, second.pci, "resourceName"}},
		"a selector and the runtime's NIC":      {more: map[string]any{"pciBusID": first.pci, "runtimeConfig": map[string]any{"deviceID": second.pci}}, code: cnierr.InvalidConfig, texts: []string{second.pci}},
		"a selector and a NIC without a netdev": {more: map[string]any{"deviceID": "0000:50:00.0"}, code: cnierr.InvalidConfig, texts: []string{"0000:50:00.0"}},
		"a kernelpath and another NIC": {
			more: map[string]any{"device": nil, "kernelpath": "/sys/devices/pci0000:00/" + first.pci, "deviceID": second.pci},
			code: cnierr.InvalidConfig, texts: []string{"kernelpath", second.pci},
		},

		"a rail alone, in PCI order":  {rails: railsInOrder, more: map[string]any{"device": nil, "rail": 2}, nic: third.name},
		"a rail alone, by name":       {rails: railsListed, more: map[string]any{"device": nil, "rail": 0}, nic: first.name},
		"a rail alone, by PCI":        {rails: railsListed, more: map[string]any{"device": nil, "rail": 1}, nic: second.name},
		"a rail and a number":         {rails: railsInOrder, more: map[string]any{"device": nil, "rail": 1, "deviceID": "0"}, nic: second.name},
		"a rail and its id":           {rails: railsInOrder, more: map[string]any{"device": nil, "rail": 1, "deviceID": second.pci}, nic: second.name},
		"a rail and its selector":     {rails: railsListed, more: map[string]any{"rail": 0}, nic: first.name},
		"a rail and another's id":     {rails: railsInOrder, more: map[string]any{"device": nil, "rail": 1, "deviceID": third.pci}, code: cnierr.InvalidConfig, texts: []string{"for rail 1", third.name + " " + third.pci + " has rail 2", "resource of rail 1"}},
		"a rail and another selector": {rails: railsListed, more: map[string]any{"rail": 2}, code: cnierr.InvalidConfig, texts: []string{"for rail 2", nicName, "has rail 0"}},
		"a NIC without a rail": {
			rails: `rails: [{id: 4, pci: "0000:1a:00.0"}]`, more: map[string]any{"device": nil, "rail": 4, "deviceID": second.pci},
			code: cnierr.InvalidConfig, texts: []string{second.name, "has no rail", "railctl rails discover"},
		},
		"a rail that no NIC has":  {rails: railsInOrder, more: map[string]any{"device": nil, "rail": 9}, code: cnierr.NICNotFound, texts: []string{"rail 9", "rails 0, 1, 2", nodefile.DefaultPath, "railctl rails discover"}},
		"no rails":                {rails: "allow: []", more: map[string]any{"device": nil, "rail": 1}, code: cnierr.InvalidConfig, texts: []string{"no rails", "railctl rails discover"}},
		"no node file":            {more: map[string]any{"rail": 0}, code: cnierr.InvalidConfig, texts: []string{"no rails", "railctl rails discover"}},
		"a NIC that is not open":  {rails: railsInOrder + "\nnics: [{name: ens14np0}]", more: map[string]any{"device": nil, "rail": 1}, code: cnierr.NICProtected, texts: []string{second.name}},
		"macvlan, by rail":        {rails: railsInOrder, more: map[string]any{"type": "macvlan", "device": nil, "rail": 1}, nic: second.name},
		"macvlan, wrong master":   {rails: railsInOrder, more: map[string]any{"type": "macvlan", "device": nil, "master": nicName, "rail": 1}, code: cnierr.InvalidConfig, texts: []string{"for rail 1", nicName, "has rail 0"}},
		"macvlan, its own master": {rails: railsInOrder, more: map[string]any{"type": "macvlan", "device": nil, "master": nicName, "rail": 0}, nic: nicName},
		"macvlan, no such rail":   {rails: railsInOrder, more: map[string]any{"type": "macvlan", "device": nil, "rail": 9}, code: cnierr.NICNotFound, texts: []string{"rail 9"}},
		"macvlan, no rails":       {more: map[string]any{"type": "macvlan", "device": nil, "rail": 0}, code: cnierr.InvalidConfig, texts: []string{"no rails"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRailBench(t, c.rails)
			before := b.node.State()
			config := b.config(c.more)
			call, plan := b.plan("c1", "net1", config)
			if err := b.opened.Status(context.Background(), call, plan); (err != nil) != (c.code != 0) && name != "nothing" {
				t.Errorf("STATUS: %v", err)
			}
			got, err := b.add("c1", "net1", config)
			if c.code != 0 {
				fails(t, err, c.code, c.texts...)
				b.untouched(before)
				return
			}
			if err != nil || got != c.nic {
				t.Fatalf("the NIC is %q, %v, want %s", got, err, c.nic)
			}
			b.del("c1", "net1", config)
			b.untouched(before)
		})
	}
}

// The rails are the same whichever NICs are lent, and a NIC that is lent is named.
func TestRailsStayWhileNICsAreLent(t *testing.T) {
	t.Parallel()
	for _, rails := range []string{railsInOrder, railsListed} {
		for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
			t.Run(fmt.Sprint(rails, order), func(t *testing.T) {
				b := newRailBench(t, rails)
				before := b.node.State()
				config := func(rail int) string {
					return b.config(map[string]any{"device": nil, "rail": rail, "name": fmt.Sprintf("rail-net-%d", rail)})
				}
				for _, rail := range order {
					if got, err := b.add("c1", fmt.Sprintf("net%d", rail), config(rail)); err != nil || got != railNICs[rail].name {
						t.Fatalf("rail %d is %q, %v", rail, got, err)
					}
					b.hasPCI(railNICs[rail].name, railNICs[rail].pci)
				}
				other := testnet.NewNetns(t, "pod2")
				for rail := range railNICs {
					call, plan := b.plan("c2", "net1", config(rail))
					call.Netns = "/run/netns/" + other.Name
					_, err := b.opened.Add(context.Background(), call, plan)
					fails(t, err, cnierr.NICLent, railNICs[rail].name+" is lent to", fmt.Sprintf("interface net%d", rail))
				}
				for rail := range railNICs {
					b.del("c1", fmt.Sprintf("net%d", rail), config(rail))
				}
				b.untouched(before)
			})
		}
	}
}
