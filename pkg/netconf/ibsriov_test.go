package netconf

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

func ibSRIOVWith(more map[string]any) []byte {
	conf := map[string]any{"cniVersion": "0.3.1", "name": "n", "type": "ib-sriov", "deviceID": "0000:3b:02.1"}
	maps.Copy(conf, more)
	text, _ := json.Marshal(conf) // it can be
	return text
}

func cniArgs(guid, app any) map[string]any {
	return map[string]any{"args": map[string]any{"cni": map[string]any{"guid": guid, "mellanox.infiniband.app": app}}}
}

func TestIBSRIOVRefusesWhatCannotBe(t *testing.T) {
	for text, more := range map[string]map[string]any{
		`"link_state" is "up"`:                               {"link_state": "up"},
		`"pkey" cannot be`:                                   {"pkey": "red"},
		`"rdmaIsolation" moves the RDMA device`:              {"rdmaIsolation": true, "rdma": "off"},
		`"02:00:00:00:00:01" is not a valid port GUID`:       cniArgs("02:00:00:00:00:01", ""),
		`"00:00:00:00:00:00:00:00" is not a valid port GUID`: cniArgs("00:00:00:00:00:00:00:00", ""),
		`"ff:ff:ff:ff:ff:ff:ff:ff" is not a valid port GUID`: {"runtimeConfig": map[string]any{"infinibandGUID": "ff:ff:ff:ff:ff:ff:ff:ff"}},
		`"args.cni.guid" cannot be a number`:                 cniArgs(5, ""),
		`"vfioPciMode" cannot be a string`:                   {"vfioPciMode": "yes"},
		`dhcp cannot ask for an address on Infini`:           {"ipam": map[string]any{"type": "dhcp"}},
	} {
		if _, err := ParseIBSRIOV(ibSRIOVWith(more)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %q", more, err, text)
		}
	}
}

func TestGUIDOfThePod(t *testing.T) {
	both := cniArgs("02:00:00:00:00:00:00:01", "")
	both["runtimeConfig"] = map[string]any{"infinibandGUID": "02-00-00-00-00-00-00-02"}
	for _, c := range []struct {
		more map[string]any
		want uint64
		wait time.Duration
	}{
		{nil, 0, 0},
		{cniArgs("02:00:00:00:00:00:00:0A", ""), 0x020000000000000a, joinTimeout},
		{both, 0x0200000000000002, joinTimeout},
		{map[string]any{"linkTimeout": "1s"}, 0, time.Second},
	} {
		got, err := ParseIBSRIOV(ibSRIOVWith(c.more))
		if err != nil || got.GUID != c.want || got.LinkWait().Timeout != c.wait {
			t.Errorf("%v: %+v, %v", c.more, got, err)
		}
	}
}

func TestPodWaitsForIBKubernetes(t *testing.T) {
	const guid = "02:00:00:00:00:00:00:01"
	for _, c := range []struct {
		enabled   bool
		guid, app string
		waits     bool
	}{
		{false, "", "", false},
		{true, guid, "configured", false},
		{true, guid, "", true},
		{true, "", "configured", true},
		{true, guid, "CONFIGURED", true},
	} {
		more := cniArgs(c.guid, c.app)
		more["ibKubernetesEnabled"] = c.enabled
		conf, err := ParseIBSRIOV(ibSRIOVWith(more))
		if err != nil {
			t.Fatal(err)
		}
		if err := conf.Await(); (err != nil) != c.waits || err != nil && cnierr.Code(err) != cnierr.TryAgain {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
