package netconf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

func TestRailOfANetwork(t *testing.T) {
	hostDevice := func(config string) (Rail, error) {
		c, err := ParseHostDevice([]byte(config))
		if err != nil {
			return Rail{}, err
		}
		return c.Rail, nil
	}
	macvlan := func(config string) (Rail, error) {
		c, err := ParseMacvlan([]byte(config), Args{})
		if err != nil {
			return Rail{}, err
		}
		return c.Rail, nil
	}
	for _, c := range []struct {
		keys string
		want string // the rail
		code uint   // of the error
		text string
	}{
		{``, "none", 0, ""},
		{`, "rail": null`, "none", 0, ""},
		{`, "rail": 0`, "0", 0, ""},
		{`, "rail": 7`, "7", 0, ""},
		{`, "rail": -1`, "", cnierr.InvalidConfig, `"rail": -1 is negative`},
		{`, "rail": "auto"`, "auto", 0, ""},
		{`, "rail": "7"`, "", cnierr.Decode, `"rail" cannot be "7"`},
		{`, "rail": "Auto"`, "", cnierr.Decode, `"auto"`},
		{`, "rail": ""`, "", cnierr.Decode, "a whole number"},
		{`, "rail": true`, "", cnierr.Decode, "a whole number"},
		{`, "rail": {"auto": true}`, "", cnierr.Decode, "a whole number"},
		{`, "rail": 99999999999999999999`, "", cnierr.Decode, "a whole number"},
		{`, "rail": 1.5`, "", cnierr.Decode, "a whole number"},
		{`, "rail": [1]`, "", cnierr.Decode, "a whole number"},
	} {
		for plugin, parse := range map[string]func(string) (Rail, error){"host-device": hostDevice, "macvlan": macvlan} {
			rail, err := parse(`{"name": "n", "type": "` + plugin + `"` + c.keys + `}`)
			if c.code != 0 {
				if err == nil || cnierr.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s, %s: %v, want code %d and %q", plugin, c.keys, err, c.code, c.text)
				}
				continue
			}
			have := "none"
			switch {
			case rail.Auto:
				have = "auto"
			case rail.Number != nil:
				have = fmt.Sprint(*rail.Number)
			}
			if rail.IsZero() != (have == "none") {
				t.Errorf("%s, %s: IsZero is %v", plugin, c.keys, rail.IsZero())
			}
			if err != nil || have != c.want {
				t.Errorf("%s, %s: rail %s, %v, want %s", plugin, c.keys, have, err, c.want)
			}
		}
	}
	_, err := macvlan(`{"name": "n", "type": "macvlan", "master": "net1", "linkInContainer": true, "rail": 1}`)
	if err == nil || cnierr.Code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), "linkInContainer") {
		t.Errorf("a rail of a master in the pod: %v", err)
	}
}

func TestNetworksThatNeedTheRail(t *testing.T) {
	for keys, want := range map[string]bool{
		``: false, `, "rail": null`: false, `, "rail": 0`: true, `, "rail": "auto"`: true,
		`, "ipam": {"type": "whereabouts", "range": "10.0.0.0/16"}`:                         false,
		`, "ipam": {"type": "whereabouts", "range": "10.0.${node}.0/24"}`:                   false,
		`, "ipam": {"type": "whereabouts", "range": "10.${rail}.0.0/16"}`:                   true,
		`, "ipam": {"type": "whereabouts", "range": "10.${rail}.0.0/16", "sameHost": true}`: true,
		`, "ipam": {"type": "whereabouts", "prefix": "node"}`:                               true,
		`, "ipam": {"type": "static", "addresses": [{"address": "10.0.${rail}.1/24"}]}`:     true,
		`, "dns": {"domain": "${rail}"}`:                                                    false,
	} {
		host, err := ParseHostDevice([]byte(`{"name": "n", "type": "host-device"` + keys + `}`))
		if err != nil || host.NeedsRail() != want {
			t.Errorf("host-device, %s: %v, %v", keys, host.NeedsRail(), err)
		}
		macvlan, err := ParseMacvlan([]byte(`{"name": "n", "type": "macvlan"`+keys+`}`), Args{})
		if err != nil || macvlan.NeedsRail() != want {
			t.Errorf("macvlan, %s: %v, %v", keys, macvlan.NeedsRail(), err)
		}
	}
}

func TestRailsThatANetworkCanHave(t *testing.T) {
	for config, want := range map[string]string{
		`{}`: "[0 2 5]", `{"rail": "auto"}`: "[0 2 5]", `{"rail": 2}`: "[2]", `{"rail": 0}`: "[0]", `{"rail": 1}`: "[]",
		`{"rail": []}`: "[0 2 5]", `{`: "[0 2 5]",
	} {
		if got := fmt.Sprint(Lenient([]byte(config)).PossibleRails([]int{0, 2, 5})); got != want {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}
