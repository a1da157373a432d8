package nic

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

func TestGuardrailsForWhatTheHostDoesNotShow(t *testing.T) {
	for name, c := range map[string]struct {
		guard func(allow []string) error
		lift  string // the override key, "" = none
		want  []string
	}{
		"a pod's macvlan": {
			func(allow []string) error { return GuardPodLink("ens1", "macvlan", "pod default/a", allow) },
			netconf.AllowChildren,
			[]string{"ens1 must stay on the host", "a macvlan on it belongs to pod default/a"},
		},
		"an RDMA device of two NICs": {
			func(allow []string) error { return GuardSharedRDMA("mlx5_0", "ens1", "ens2", allow) },
			netconf.AllowSharedRDMA,
			[]string{"RDMA device mlx5_0 of ens1 (ens2)", "also serves another NIC", "ens2 may lose RDMA"},
		},
		"an RDMA device that the host uses": {
			func(allow []string) error {
				return GuardInUse("mlx5_0", "ens1", []string{"kernel module nvme_rdma", "process 7 (a)", "c", "d", "e", "f", "g"}, allow)
			},
			netconf.AllowInUse,
			[]string{"RDMA device mlx5_0 of ens1 must stay on the host: it is in use by kernel module nvme_rdma, process 7 (a), c, d, e and 2 more;"},
		},
	} {
		err := c.guard(nil)
		for _, text := range c.want {
			if failure.KindOf(err) != failure.NICProtected || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %v, want code %d and %q", name, err, cnierr.NICProtected, text)
			}
		}
		for _, override := range netconf.Overrides {
			if err := c.guard([]string{override}); (err == nil) != (override == c.lift) {
				t.Errorf("%s, with override %q: %v", name, override, err)
			}
		}
		if c.lift != "" && !strings.Contains(err.Error(), `"allow": ["`+c.lift+`"]`) {
			t.Errorf("%s: the error does not name the override: %v", name, err)
		}
	}
	if err := GuardInUse("mlx5_0", "ens1", nil, nil); err != nil {
		t.Errorf("without users: %v", err)
	}
	if err := GuardInUse("mlx5_0", "ens1", []string{"a"}, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("error %v", err)
	}
	if err := GuardSharedRDMA("mlx5_0", "ens1", "ens2", nil); !errors.Is(err, ErrSharedRDMA) {
		t.Errorf("error %v", err)
	}
}

func TestWhatMovesWithAnHCAIsGuarded(t *testing.T) {
	for key, guard := range map[string]func(allow []string) error{
		netconf.AllowSubnetManager: func(allow []string) error { return GuardSubnetManager("mlx5_0", "ib0", 1, allow) },
		netconf.AllowChildren:      func(allow []string) error { return GuardFarInterfaces("ib0", []uint32{71}, allow) },
		netconf.AllowSharedRDMA:    func(allow []string) error { return GuardOtherPort("mlx5_0", "ib0", "ib1", allow) },
	} {
		if err := guard(nil); failure.KindOf(err) != failure.NICProtected || !strings.Contains(err.Error(), fmt.Sprintf(`"allow": [%q]`, key)) {
			t.Errorf("%s: %v", key, err)
		}
		if err := guard([]string{key}); err != nil {
			t.Errorf("%s, overridden: %v", key, err)
		}
	}
	if err := GuardFarInterfaces("ib0", nil, nil); err != nil {
		t.Errorf("without any: %v", err)
	}
	if err := GuardOtherPort("mlx5_0", "ib0", "ib1", nil); !errors.Is(err, ErrSharedRDMA) {
		t.Errorf("%v", err)
	}
}

func TestNodeFilePermitsNICsAndOverrides(t *testing.T) {
	h := &Host{Sys: t.TempDir()}
	for name, c := range map[string]struct {
		file  string
		nic   NIC
		allow []string
		want  []string // parts of the error, none = it may be lent
	}{
		"all NICs":               {`nics: [{name: "*"}]`, NIC{Link: &link.Link{Name: "ens1"}}, []string{netconf.AllowUplink}, nil},
		"by name":                {"nics: [{name: ens*}]", NIC{Link: &link.Link{Name: "ens1"}}, nil, nil},
		"by altname":             {"nics: [{name: enp4*}]", NIC{Link: &link.Link{Name: "ens1", AltNames: []string{"enp4s0"}}}, nil, nil},
		"another name":           {"nics: [{name: eth*}]", NIC{Link: &link.Link{Name: "ens1"}}, nil, []string{"ens1 is not open to networks", `add this NIC to "nics" in`}},
		"without a netdev":       {"nics: [{name: eth*}]", NIC{PCI: pciPlain}, nil, []string{pciPlain + " is not open to networks"}},
		"by PCI address":         {`nics: [{pci: "0000:3b:*"}]`, NIC{PCI: pciPlain}, nil, nil},
		"an override":            {"allow: [bpf]", NIC{PCI: pciPlain}, []string{netconf.AllowBPF}, nil},
		"an override not opened": {"allow: [bpf]", NIC{PCI: pciPlain}, []string{netconf.AllowBPF, netconf.AllowUplink}, []string{`may not override the guardrail "uplink"`, `add it to "allow" in`}},
	} {
		file, err := nodefile.Parse([]byte(c.file))
		if err != nil {
			t.Fatal(err)
		}
		err = h.Permit(&c.nic, file, c.allow)
		if (err == nil) != (len(c.want) == 0) {
			t.Errorf("%s: error %v", name, err)
		}
		for _, text := range c.want {
			if failure.KindOf(err) != failure.NICProtected || err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %v, want code %d and %q", name, err, cnierr.NICProtected, text)
			}
		}
	}
	if err := h.Permit(&NIC{PCI: pciPlain}, nil, []string{netconf.AllowUplink}); err != nil {
		t.Errorf("without a node file: %v", err)
	}
}
