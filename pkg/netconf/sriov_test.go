package netconf

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

func sriovWith(more map[string]any) []byte {
	conf := map[string]any{"cniVersion": "0.3.1", "name": "n", "type": "sriov", "deviceID": "0000:3b:02.1"}
	maps.Copy(conf, more)
	text, _ := json.Marshal(conf) // it can be
	return text
}

func TestSRIOVRefusesSettingsThatNoDriverTakes(t *testing.T) {
	for text, more := range map[string]map[string]any{
		`"vlan" is 4095`:           {"vlan": 4095},
		`"vlan" is -1`:             {"vlan": -1},
		`"vlan" is missing`:        {"vlanQoS": 3},
		`"vlanQoS" is 8`:           {"vlan": 5, "vlanQoS": 8},
		`"vlanProto" is "802.1x"`:  {"vlan": 5, "vlanProto": "802.1x"},
		`but "vlan" is 0`:          {"vlan": 0, "vlanProto": "802.1ad"},
		`"spoofchk" is "yes"`:      {"spoofchk": "yes"},
		`"trust" is "true"`:        {"trust": "true"},
		`"link_state" is "up"`:     {"link_state": "up"},
		`"min_tx_rate" is -5`:      {"min_tx_rate": -5},
		`only 100`:                 {"min_tx_rate": 200, "max_tx_rate": 100},
		`MAC address "02:00"`:      {"mac": "02:00"},
		`"vlan" cannot be a strin`: {"vlan": "5"},
	} {
		if _, err := ParseSRIOV(sriovWith(more), Args{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %q", more, err, text)
		}
	}
	for _, more := range []map[string]any{
		nil,
		{"vlan": 0, "vlanQoS": 0, "vlanProto": "802.1Q"},
		{"vlan": 4094, "vlanQoS": 7, "vlanProto": "802.1AD", "logLevel": "debug", "logFile": "/tmp/sriov.log"},
		{"spoofchk": "on", "trust": "off", "link_state": "auto", "min_tx_rate": 200, "max_tx_rate": 0},
	} {
		if _, err := ParseSRIOV(sriovWith(more), Args{}); err != nil {
			t.Errorf("%v: %v", more, err)
		}
	}
}

func TestSRIOVTakesTheMACOfThePod(t *testing.T) {
	more := map[string]any{"mac": "02:00:00:00:00:01"}
	for want, args := range map[string]Args{"02:00:00:00:00:01": {}, "02:00:00:00:00:02": {MAC: "02:00:00:00:00:02"}} {
		c, err := ParseSRIOV(sriovWith(more), args)
		if err != nil || c.MAC != want {
			t.Errorf("%+v: %q, %v", args, c.MAC, err)
		}
	}
	more["runtimeConfig"] = map[string]any{"mac": "02:00:00:00:00:03"}
	if c, err := ParseSRIOV(sriovWith(more), Args{MAC: "02:00:00:00:00:02"}); err != nil || c.MAC != "02:00:00:00:00:03" {
		t.Errorf("%q, %v", c.MAC, err)
	}
}
