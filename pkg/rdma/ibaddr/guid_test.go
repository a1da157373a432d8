package ibaddr

import (
	"encoding/json"
	"testing"
)

func TestGUIDsReadAsInSysfs(t *testing.T) {
	const text = "bace:f6ff:fe00:0003"
	g, err := parseGUID(text)
	if err != nil || g != 0xbacef6fffe000003 || g.String() != text {
		t.Errorf("%v, %v", g, err)
	}
	out, err := json.Marshal(map[string]GUID{"nodeGUID": g})
	if err != nil || string(out) != `{"nodeGUID":"`+text+`"}` {
		t.Errorf("%s, %v", out, err)
	}
	var back map[string]GUID
	if err := json.Unmarshal(out, &back); err != nil || back["nodeGUID"] != g {
		t.Errorf("%v, %v", back, err)
	}
	for _, bad := range []string{"", "1:2:3:4", "bace:f6ff:fe00", "bace:f6ff:fe00:0003:0004", "bace:f6ff:fe00:000g", "+ace:f6ff:fe00:0003", "ba:ce:f6:ff:fe:00:00:03"} {
		if g, err := parseGUID(bad); err == nil {
			t.Errorf("%q is %v", bad, g)
		}
	}
}
