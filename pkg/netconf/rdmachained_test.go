package netconf

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
)

// A configuration in the form of rdma-cni's users, and in the form in which Multus passes it on.
var chainedConfigs = []string{
	`{"cniVersion":"0.3.1","type":"rdma","name":"sriov-rdma-net"}`,
	`{"cniVersion":"0.3.1","type":"rdma","name":"n","args":{"cni":{"debug":true}},"deviceID":"0000:3b:00.2","pciBusID":"0000:3b:00.2","prevResult":{"cniVersion":"0.3.1"}}`,
	`{"cniVersion":"1.1.0","type":"rdma","name":"n","runtimeConfig":{"deviceID":"mlx5_core.sf.4"},"deviceID":"0","rdma":"auto","gidTimeout":"500ms","allow":["shared-rdma"]}`,
	`{"type":"rdma","prevResult":null,"ipam":{"type":"whereabouts"}}`,
}

func TestChainedRDMAIsRequiredUnlessToldOtherwise(t *testing.T) {
	for i, want := range []struct {
		policy string
		wait   time.Duration
		ids    []string
		prev   bool
	}{
		{RDMARequired, 2 * time.Second, nil, false},
		{RDMARequired, 2 * time.Second, []string{"0000:3b:00.2", "0000:3b:00.2"}, true},
		{RDMAAuto, 500 * time.Millisecond, []string{"mlx5_core.sf.4", "0"}, false},
		{RDMARequired, 2 * time.Second, nil, false},
	} {
		c, err := ParseRDMAChained([]byte(chainedConfigs[i]))
		if err != nil {
			t.Fatal(err)
		}
		if c.RDMA.RDMA != want.policy || c.Wait() != want.wait || !slices.Equal(c.IDs(), want.ids) || c.IPAM.Type != "" {
			t.Errorf("%s\nis read as %+v", chainedConfigs[i], c)
		}
		err = c.NeedPrevResult()
		if (err == nil) != want.prev {
			t.Errorf("%s\nprevResult: %v", chainedConfigs[i], err)
		}
		if err != nil && (failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), "Required prevResult missing")) {
			t.Errorf("code %d: %v", cnierr.Code(err), err)
		}
	}
}

func TestChainedRDMARefusesWhatItCannotMean(t *testing.T) {
	for config, code := range map[string]uint{
		`{"rdma":"yes"}`:       cnierr.InvalidConfig,
		`{"gidTimeout":"2"}`:   cnierr.InvalidConfig,
		`{"gidTimeout":"-2s"}`: cnierr.InvalidConfig,
		`{"allow":["none"]}`:   cnierr.InvalidConfig,
		`{"deviceID":7}`:       cnierr.Decode,
		`[]`:                   cnierr.Decode,
		``:                     cnierr.Decode,
	} {
		if c, err := ParseRDMAChained([]byte(config)); c != nil || cnierr.Code(err) != code {
			t.Errorf("%s: %+v, %v", config, c, err)
		}
	}
}

func FuzzParseRDMAChained(f *testing.F) {
	for _, s := range chainedConfigs {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		c, err := ParseRDMAChained(config)
		if (c == nil) == (err == nil) {
			t.Fatalf("%v and %v", c, err)
		}
		if err != nil {
			if code := cnierr.Code(err); code != cnierr.Decode && code != cnierr.InvalidConfig {
				t.Errorf("code %d: %v", code, err)
			}
			return
		}
		checkCommon(t, &c.Common)
		if !slices.Contains([]string{RDMAAuto, RDMARequired, RDMAOff}, c.RDMA.RDMA) || c.Wait() < 0 || slices.Contains(c.IDs(), "") {
			t.Errorf("%s\nis read as %+v", config, c)
		}
	})
}
