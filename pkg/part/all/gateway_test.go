package all_test

import (
	"strings"
	"testing"
)

func TestRouteTakesTheGatewayOfItsFamily(t *testing.T) {
	t.Parallel()
	const routes = `"routes":[{"dst":"172.16.0.0/12"},{"dst":"fd16::/16"}]`
	for name, c := range map[string]struct{ ips, v4, v6 string }{
		"both have one": {
			`{"address":"10.1.2.3/24","gateway":"10.1.2.1"},{"address":"fd01::3/64","gateway":"fd01::1"}`, "via 10.1.2.1", "via fd01::1",
		},
		"IPv6 first":      {`{"address":"fd01::3/64","gateway":"fd01::1"},{"address":"10.1.2.3/24","gateway":"10.1.2.1"}`, "via 10.1.2.1", "via fd01::1"},
		"only IPv4":       {`{"address":"10.1.2.3/24","gateway":"10.1.2.1"},{"address":"fd01::3/64"}`, "via 10.1.2.1", ""},
		"only IPv6":       {`{"address":"10.1.2.3/24"},{"address":"fd01::3/64","gateway":"fd01::1"}`, "", "via fd01::1"},
		"the second IPv4": {`{"address":"10.1.2.3/24"},{"address":"10.1.3.3/24","gateway":"10.1.3.1"},{"address":"fd01::3/64"}`, "via 10.1.3.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			call := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
			call.Path = b.answering(`[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[` + c.ips + `],` + routes + `}' || true`)
			b.node.MustRun(call)
			for dst, want := range map[string]string{"172.16.0.0/12": c.v4, "fd16::/16": c.v6} {
				family := "-4"
				if strings.Contains(dst, ":") {
					family = "-6"
				}
				got := b.pod.IP(family, "route", "show", dst)
				if !strings.Contains(got, "dev net1") || !strings.Contains(got, want) || want == "" && strings.Contains(got, "via") {
					t.Errorf("the route to %s is %q, want %q", dst, got, want)
				}
			}
			b.node.MustRun(call.With("DEL"))
		})
	}
}
