package whereabouts

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// nodePrefix returns the ipam object of a network with the node's own prefix, as the plugin in
// front writes it.
func nodePrefix(prefix, more string) string {
	return fmt.Sprintf(`{"range":%q,"store":"local","prefix":"node"%s}`, prefix, more)
}

func TestAddressesOfANodesPrefix(t *testing.T) {
	for _, tc := range []struct {
		name, prefix, more string
		want               []string // of the pods, "" for none
	}{
		{"the other side of a link", "10.0.4.8/31", `,"gateway":"10.0.4.8"`, []string{"10.0.4.9/31", ""}},
		{"its other side", "10.0.4.8/31", `,"gateway":"10.0.4.9"`, []string{"10.0.4.8/31", ""}},
		{"no gateway", "10.0.4.8/31", ``, []string{"10.0.4.8/31", "10.0.4.9/31", ""}},
		{"one address", "10.0.4.8/32", ``, []string{"10.0.4.8/32", ""}},
		{"IPv6", "fd00:4::/127", `,"gateway":"fd00:4::"`, []string{"fd00:4::1/127", ""}},
		{"one address of IPv6", "fd00:4::7/128", ``, []string{"fd00:4::7/128", ""}},
		{"a larger one", "10.0.4.0/29", `,"gateway":"10.0.4.1","exclude":["10.0.4.3","10.0.4.4/31"]`, []string{"10.0.4.2/29", "10.0.4.6/29", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, newNamespace(t))
			began := time.Now()
			run := func(verb string, pod int) (string, error) {
				id, args := identity(pod)
				c := call{binary: ours(t), verb: verb, id: id, ifname: "net1", args: args, stdin: n.config(t, "1.0.0", nodePrefix(tc.prefix, tc.more), "")}
				out, err := c.run()
				if err != nil || verb != "ADD" {
					return "", err
				}
				if gw := strings.TrimPrefix(tc.more, `,"gateway":`); strings.HasPrefix(tc.more, `,"gateway"`) && !strings.Contains(strings.ReplaceAll(out, " ", ""), `"gateway":`+strings.SplitN(gw, ",", 2)[0]) {
					t.Errorf("the result has another gateway than %s: %s", gw, out)
				}
				all, err := addresses(out)
				return strings.Join(all, " "), err
			}
			for pod, want := range tc.want {
				got, err := run("ADD", pod)
				switch {
				case want == "" && (err == nil || !strings.Contains(err.Error(), "Could not allocate IP in range")):
					t.Errorf("pod %d: %s, %v, want none", pod, got, err)
				case want != "" && (err != nil || got != want):
					t.Errorf("pod %d: %s, %v, want %s", pod, got, err, want)
				}
			}
			if _, err := run("DEL", 0); err != nil {
				t.Error(err)
			}
			if got, err := run("ADD", 7); err != nil || got != tc.want[0] {
				t.Errorf("after the DEL: %s, %v, want %s at once", got, err, tc.want[0])
			}
			requests, err := plane.Requests(t.Context(), began)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range requests {
				if strings.HasPrefix(r.UserAgent, "rail-cni") {
					t.Errorf("a request to the API server: %s %s", r.Verb, r.URI)
				}
			}
		})
	}
}
