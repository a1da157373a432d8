package ipamconf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestRangesOfAllRails(t *testing.T) {
	for _, tc := range []struct{ ipam, want string }{
		{`{"range":"10.1.0.0/24","sameHost":true,"railRanges":["10.0.0.0/24","10.1.0.0/24"]}`, "[10.0.0.0/24 10.1.0.0/24]"},
		{`{"range":"10.1.0.7/24","sameHost":true,"railRanges":["10.10.0.7/24","10.1.0.7/24"]}`, "[10.1.0.0/24 10.10.0.0/24]"},
		{`{"range":"fd00:1::/64","sameHost":true,"railRanges":["fd00::/64","fd00:1::/64"]}`, "[fd00::/64 fd00:1::/64]"},
		{`{"range":"10.1.0.5-10.1.0.9/24","sameHost":true,"railRanges":["10.0.0.5-10.0.0.9/24","10.1.0.5-10.1.0.9/24"]}`, "[10.0.0.0/24 10.1.0.0/24]"},
		{`{"range":"10.1.0.0/24","sameHost":true,"block_size":16,"store":"kubernetes","railRanges":["10.1.0.0/24"]}`, "[10.1.0.0/24]"},
		{`{"range":"10.1.0.0/24","railRanges":["nonsense"]}`, "[]"}, // without sameHost
		{`{"range":"10.1.0.0/24","sameHost":false,"railRanges":["10.0.0.0/24"]}`, "[]"},
	} {
		c, err := ParseWhereabouts(network(tc.ipam), "", nil)
		if err != nil || fmt.Sprint(c.SameHost) != tc.want {
			t.Errorf("%s: %v, %v, want %s", tc.ipam, c.SameHost, err, tc.want)
		}
	}
}

func TestSameHostThatCannotWorkIsRefused(t *testing.T) {
	for ipam, want := range map[string]string{
		`"range":"10.0.0.0/24"`:                                                                       `"sameHost" has no "railRanges"`,
		`"railRanges":["10.0.0.0/24"]`:                                                                `"sameHost" has no "range"`,
		`"ipRanges":[{"range":"10.0.0.0/24"}]`:                                                        `the network has "ipRanges"`,
		`"range":"10.0.0.0/24","node_slice_size":"/26"`:                                               `"sameHost" and "node_slice_size" exclude each other`,
		`"range":"10.0.0.0/31","prefix":"node","store":"local"`:                                       `"sameHost" and "prefix": "node" both choose`,
		`"range":"10.0.0.0/24","railRanges":["x"]`:                                                    "invalid CIDR x",
		`"range":"10.0.0.0/24","railRanges":["10.1.0.0/24"]`:                                          `the range 10.0.0.0/24 is not one of "railRanges"`,
		`"range":"10.0.0.0/24","railRanges":["10.0.0.0/24","fd00::/64"]`:                              "differ in size",
		`"range":"10.0.0.0/24","railRanges":["10.0.0.0/24","10.1.0.0/25"]`:                            "the ranges 10.0.0.0/24 and 10.1.0.0/25 of two rails differ in size",
		`"range":"10.0.0.0/24","railRanges":["10.0.0.0/24","10.0.0.0/24"]`:                            "the ranges of two rails overlap in 10.0.0.0/24; write ${rail}",
		`"range":"10.0.0.5-10.0.0.9/24","railRanges":["10.0.0.5-10.0.0.9/24","10.1.0.6-10.1.0.9/24"]`: "has other host parts than 10.0.0.5-10.0.0.9",
	} {
		_, err := ParseWhereabouts(network(`{"sameHost":true,`+ipam+`}`), "", nil)
		if failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ";") {
			t.Errorf("%s: %v, want %q and a cure", ipam, err, want)
		}
	}
}

func TestPrefixOfTheNode(t *testing.T) {
	c, err := ParseWhereabouts(network(`{"range":"10.0.0.0/31","gateway":"10.0.0.0","store":"local","prefix":"node"}`), "", nil)
	if err != nil || !c.NodePrefix || c.Ranges[0].Prefix.String() != "10.0.0.0/31" {
		t.Errorf("%+v, %v", c, err)
	}
	for ipam, want := range map[string]string{
		`{"range":"10.0.0.0/31","store":"local","prefix":"nodes"}`:     `unknown prefix "nodes"; use "prefix": "node"`,
		`{"prefix":"nv-ipam/rail-0"}`:                                  `unknown prefix "nv-ipam/rail-0"; use "prefix": "node"`,
		`{"store":"local","prefix":"node"}`:                            `needs the node's "range"`,
		`{"range":"10.0.0.0/31","store":"kubernetes","prefix":"node"}`: `not "store": "kubernetes"`,
		`{"range":"10.0.0.0/31","prefix":"node"}`:                      `not "store": ""`,
	} {
		if _, err := ParseWhereabouts(network(ipam), "", nil); failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ipam, err, want)
		}
	}
}
