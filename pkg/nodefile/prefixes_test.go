package nodefile

import (
	"reflect"
	"strings"
	"testing"
)

func TestPrefixesOfTheNodeFile(t *testing.T) {
	n := &File{}
	err := n.parse([]byte(`
prefixes:
- {rail: 0, prefix: 10.0.4.0/31, gateway: 10.0.4.0}
- {rail: 3, prefix: "fd00:3::/64", gateway: "fd00:3::1", exclude: ["fd00:3::ff", "fd00:3::100/120"]}
- {rail: 1, prefix: 10.1.4.9/32}
`))
	want := []Prefix{
		{Rail: 0, Prefix: "10.0.4.0/31", Gateway: "10.0.4.0"},
		{Rail: 3, Prefix: "fd00:3::/64", Gateway: "fd00:3::1", Exclude: []string{"fd00:3::ff", "fd00:3::100/120"}},
		{Rail: 1, Prefix: "10.1.4.9/32"},
	}
	if err != nil || !reflect.DeepEqual(n.Prefixes, want) {
		t.Errorf("%+v, %v", n.Prefixes, err)
	}
}

func TestPrefixesThatCannotWorkAreRefused(t *testing.T) {
	for entries, want := range map[string]string{
		`{rail: 0, prefix: 10.0.0.0}`:                                    `prefixes[0]: the prefix "10.0.0.0" is not a network/length`,
		`{rail: 0}`:                                                      `the prefix "" is not a network/length`,
		`{rail: 0, prefix: "::ffff:10.0.0.0/120"}`:                       "is not a network/length",
		`{rail: 0, prefix: 10.0.0.1/31}`:                                 "has host bits: write 10.0.0.0/31",
		`{rail: -1, prefix: 10.0.0.0/31}`:                                "the rail -1 is negative",
		`{prefix: 10.0.0.0/31}`:                                          `the entry has no "rail"`,
		`{rail: x, prefix: 10.0.0.0/31}`:                                 "cannot unmarshal",
		`{rail: 0, prefix: 10.0.0.0/31, gw: 10.0.0.0}`:                   "gateway",
		`{rail: 0, prefix: 10.0.0.0/31, gateway: 10.0.0.2}`:              `the gateway "10.0.0.2" is not an address in 10.0.0.0/31`,
		`{rail: 0, prefix: 10.0.0.0/31, gateway: x}`:                     `the gateway "x" is not an address`,
		`{rail: 0, prefix: 10.0.0.0/32, gateway: 10.0.0.0}`:              "the gateway is the only address",
		`{rail: 0, prefix: 10.0.0.0/24, exclude: [10.0.0.1-10.0.0.9]}`:   `exclude: "10.0.0.1-10.0.0.9" is not an address or CIDR in 10.0.0.0/24`,
		`{rail: 0, prefix: 10.0.0.0/24, exclude: [10.9.0.1]}`:            `exclude: "10.9.0.1" is no`,
		`{rail: 0, prefix: 10.0.0.0/31}, {rail: 0, prefix: 10.0.0.2/31}`: "prefixes[1]: rail 0 has the prefix 10.0.0.0/31 already",
		`{rail: 0, prefix: 10.0.0.0/24}, {rail: 1, prefix: 10.0.0.2/31}`: "prefixes[1]: 10.0.0.2/31 overlaps with 10.0.0.0/24 of rail 0",
		`{rail: 0, prefix: 10.0.0.0/31}, 10.0.0.2/31`:                    "expected a mapping",
	} {
		if _, err := Parse([]byte("prefixes: [" + entries + "]\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", entries, err, want)
		}
	}
}
