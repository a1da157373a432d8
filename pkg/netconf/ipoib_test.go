package netconf

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"
)

// ipoibWith returns a configuration of ipoib with these keys.
func ipoibWith(more map[string]any) []byte {
	conf := map[string]any{"cniVersion": "1.0.0", "name": "n", "type": "ipoib", "master": "ib0"}
	maps.Copy(conf, more)
	text, _ := json.Marshal(conf)
	return text
}

func TestPartitionOfIPoIBIsReadInEachForm(t *testing.T) {
	for text, want := range map[string]PKey{
		`"0x8001"`: 1, `"0x1"`: 1, `"1"`: 1, `1`: 1, `32769`: 1, `"0xffff"`: 0x7fff, `"0x7fff"`: 0x7fff, `""`: 0, `null`: 0,
	} {
		c, err := ParseIPoIB(ipoibWith(map[string]any{"pkey": json.RawMessage(text)}), Args{})
		if err != nil || c.PKey != want {
			t.Errorf("pkey %s: %+v, %v, want %#x", text, c, err, want)
		}
	}
	for _, text := range []string{`"0x8000"`, `"0"`, `0`, `"0x10001"`, `-1`, `1.5`, `true`, `[1]`, `"storage"`} {
		_, err := ParseIPoIB(ipoibWith(map[string]any{"pkey": json.RawMessage(text)}), Args{})
		if err == nil || !strings.Contains(err.Error(), `"pkey" cannot be`) {
			t.Errorf("pkey %s: %v", text, err)
		}
	}
}

func TestInvalidIPoIBConfigIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		more map[string]any
		args Args
		text string
	}{
		"unknown mode":             {more: map[string]any{"mode": "bridge"}, text: `unknown mode: "bridge"`},
		"connected mode":           {more: map[string]any{"mode": "connected"}, text: "cannot safely make a child in connected mode"},
		"MTU above a datagram's":   {more: map[string]any{"mode": "datagram", "mtu": 4093}, text: "at most 4092"},
		"negative MTU":             {more: map[string]any{"mtu": -1}, text: "invalid MTU -1"},
		"dhcp":                     {more: map[string]any{"ipam": map[string]any{"type": "dhcp"}}, text: "Ethernet frames"},
		"the pod's MAC":            {args: Args{MAC: "02:00:00:00:00:01"}, text: "cannot be given a MAC"},
		"the runtime's MAC":        {more: map[string]any{"runtimeConfig": map[string]any{"mac": "02:00:00:00:00:01"}}, text: "cannot be given a MAC"},
		"the network's MAC":        {more: map[string]any{"MAC": "02:00:00:00:00:01"}, text: "cannot be given a MAC"},
		"keepAddress":              {more: map[string]any{"keepAddress": true}, text: `"keepAddress" is for host-device`},
		"an invalid linkTimeout":   {more: map[string]any{"linkTimeout": "soon"}, text: `"linkTimeout"`},
		"an unknown value of rdma": {more: map[string]any{"rdma": "yes"}, text: "rdma"},
		"an unknown routing mode":  {more: map[string]any{"routing": map[string]any{"mode": "best"}}, text: "best"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseIPoIB(ipoibWith(c.more), c.args)
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %q", err, c.text)
			}
		})
	}
}

func TestIPoIBWaitsUntilItHasJoined(t *testing.T) {
	for name, c := range map[string]struct {
		more map[string]any
		want LinkWait
	}{
		"by default":    {nil, LinkWait{Timeout: joinTimeout}},
		"RDMA required": {map[string]any{"rdma": "required"}, LinkWait{Timeout: defaultLinkTimeout, Required: true}},
		"not at all":    {map[string]any{"linkTimeout": "0s"}, LinkWait{}},
		"linkTimeout":   {map[string]any{"linkTimeout": "2s"}, LinkWait{Timeout: 2 * time.Second}},
	} {
		conf, err := ParseIPoIB(ipoibWith(c.more), Args{})
		if err != nil || conf.LinkWait() != c.want {
			t.Errorf("%s: %v, %v", name, conf, err)
		}
	}
}
