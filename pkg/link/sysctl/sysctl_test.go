package sysctl_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
)

func TestSetSysctls(t *testing.T) {
	for _, c := range []struct {
		name     string
		link     string
		settings map[string]string
		changed  map[string]string
		fails    []string // parts of the error, one for each failure
	}{
		{"a value that differs", "nic", map[string]string{"ipv4/conf/arp_ignore": "2"}, map[string]string{"ipv4/conf/arp_ignore": "2"}, nil},
		{"a value that it has", "nic", map[string]string{"ipv4/conf/arp_ignore": "0"}, nil, nil},
		{"one that this kernel does not have", "nic", map[string]string{"ipv4/conf/of_the_future": "1"}, nil, nil},
		{"a link that is not there", "nobody", map[string]string{"ipv4/conf/arp_ignore": "1"}, nil, []string{`no such link "nobody"`}},
		{
			"it goes on after a failure", "nic",
			map[string]string{"ipv4/conf/arp_ignore": "nonsense", "ipv6/conf/hop_limit": "9"},
			map[string]string{"ipv6/conf/hop_limit": "9"},
			[]string{"ipv4/conf/arp_ignore of nic: invalid argument"},
		},
		{"read-only", "nic", map[string]string{"ipv4/conf/mc_forwarding": "1"}, nil, []string{"ipv4/conf/mc_forwarding of nic"}},
		{"up", "nic", map[string]string{"ipv4/conf/../all/arp_ignore": "1"}, nil, []string{`"ipv4/conf/../all/arp_ignore" is not a sysctl`}},
		{"up and out", "nic", map[string]string{"../../kernel/core_pattern": "x"}, nil, []string{"is not a sysctl"}},
		{"no setting", "nic", map[string]string{"ipv4/conf/": "1"}, nil, []string{"is not a sysctl"}},
		{"the directory", "nic", map[string]string{"ipv4/conf/..": "1", "ipv4/conf/.": "1"}, nil, []string{`"ipv4/conf/.."`, `"ipv4/conf/."`}},
		{"another tree", "nic", map[string]string{"core/somaxconn": "1"}, nil, []string{"is not a sysctl"}},
		{"absolute", "nic", map[string]string{"/ipv4/conf/arp_ignore": "1"}, nil, []string{"is not a sysctl"}},
		{"all links", "all", map[string]string{"ipv4/conf/arp_ignore": "1"}, nil, []string{`"all" is not the name`}},
		{"links to come", "default", map[string]string{"ipv4/conf/arp_ignore": "1"}, nil, []string{`"default" is not the name`}},
		{"a name that climbs", "../conf/all", map[string]string{"ipv4/conf/arp_ignore": "1"}, nil, []string{"is not the name"}},
		{"no name", "", map[string]string{"ipv4/conf/arp_ignore": "1"}, nil, []string{"is not the name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := testnet.NewNetns(t, "n")
			n.IP("link", "add", "nic", "type", "ifb")
			read := func() map[string]map[string]string {
				all := map[string]map[string]string{}
				for _, name := range []string{"nic", "lo", "all", "default"} {
					settings, err := sysctl.Read(n.Netns, name)
					if err != nil {
						t.Fatal(err)
					}
					all[name] = settings
				}
				return all
			}
			want := read()
			if len(want["nic"]) < 100 {
				t.Fatalf("only %d settings were read: %v", len(want["nic"]), want["nic"])
			}
			maps.Copy(want["nic"], c.changed)
			err := sysctl.Set(n.Netns, c.link, c.settings)
			if (err != nil) != (len(c.fails) > 0) {
				t.Errorf("error %v", err)
			}
			for _, text := range c.fails {
				if err != nil && !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not say %q", err, text)
				}
			}
			for name, settings := range read() {
				for key, value := range settings {
					if want[name][key] != value {
						t.Errorf("%s of %s is %q, want %q", key, name, value, want[name][key])
					}
				}
			}
		})
	}
}

func TestSysctlsOfALinkWithADotInItsName(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	n.IP("link", "add", "ens1.100", "type", "ifb")
	if err := sysctl.Set(n.Netns, "ens1.100", map[string]string{"ipv4/conf/arp_ignore": "1"}); err != nil {
		t.Fatal(err)
	}
	if got, err := sysctl.Read(n.Netns, "ens1.100"); err != nil || got["ipv4/conf/arp_ignore"] != "1" {
		t.Errorf("%v, %v", got["ipv4/conf/arp_ignore"], err)
	}
}
