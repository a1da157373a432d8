package whereabouts

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// blocked returns the call of pod's net1 on a node, with this ipam config.
func blocked(t *testing.T, n *node, verb string, pod int, nodeName, ipam string) call {
	t.Helper()
	id, args := identity(pod)
	return call{binary: ours(t), verb: verb, id: id, ifname: "net1", args: args, node: nodeName, stdin: n.config(t, "1.0.0", ipam, "")}
}

func address(t *testing.T, c call) string {
	t.Helper()
	out, err := c.run()
	if err != nil {
		t.Fatal(err)
	}
	all, err := addresses(out)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	return all[0]
}

func TestNodesAssignAddressesOfTheirOwnBlocks(t *testing.T) {
	namespace := newNamespace(t)
	one, two := newNode(t, namespace), newNode(t, namespace)
	const ipam = `{"range":"10.0.0.0/24","gateway":"10.0.0.1","block_size":16}`
	var got []string
	for pod := range 6 {
		n, name := one, "node1"
		if pod%2 == 1 {
			n, name = two, "node2"
		}
		got = append(got, address(t, blocked(t, n, "ADD", pod, name, ipam)))
	}
	for _, a := range got {
		if !strings.HasSuffix(a, "/24") || a == "10.0.0.1/24" {
			t.Errorf("%s", a)
		}
	}
	if slices.Sort(got); len(slices.Compact(got)) != 6 {
		t.Errorf("an address twice: %q", got)
	}
	if _, reserved := holders(t, namespace); len(reserved) > 0 {
		t.Errorf("reservations %q", reserved)
	}
	status := blocked(t, one, "STATUS", 0, "node1", ipam)
	status.stdin = one.config(t, "1.1.0", ipam, "")
	if _, err := status.run(); err != nil {
		t.Error(err)
	}
	for pod := range 6 {
		n := one
		if pod%2 == 1 {
			n = two
		}
		del := blocked(t, n, "DEL", pod, "", ipam)
		del.args = "" // not each runtime has the pod's name by then
		for range 2 {
			if _, err := del.run(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, n := range []*node{one, two} {
		if left, err := filepath.Glob(filepath.Join(n.dir, "state", "ipam", "space", "10.0.0.0_24", "10.*")); len(left) > 0 || err != nil {
			t.Error(left, err)
		}
	}
}

// An address is freed by DEL with the config of today, whichever config ADD had.
func TestDelFreesAddressesWhetherOrNotTheNetworkHasBlocks(t *testing.T) {
	for _, tc := range []struct{ add, del string }{
		{`{"range":"10.0.0.0/24","block_size":16}`, `{"range":"10.0.0.0/24"}`},
		{`{"range":"10.0.0.0/24"}`, `{"range":"10.0.0.0/24","block_size":16}`},
		{`{"range":"10.0.0.0/24","block_size":16}`, `{"range":"10.0.0.0/24","block_size":17}`},
		{`{"range":"10.0.0.0/24","block_size":16}`, `{"range":"10.0.0.0/24","block_size":16,"kubernetes":{"kubeconfig":"DIR/missing"}}`},
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			namespace := newNamespace(t)
			n := newNode(t, namespace)
			address(t, blocked(t, n, "ADD", 1, "node1", tc.add))
			if _, err := blocked(t, n, "DEL", 1, "node1", tc.del).run(); err != nil {
				t.Error(err)
			}
			n.settleJournal(t)
			wantEmpty(t, namespace)
			if left, err := filepath.Glob(filepath.Join(n.dir, "state", "ipam", "space", "10.0.0.0_24", "10.*")); len(left) > 0 || err != nil {
				t.Error(left, err)
			}
		})
	}
}

// whereabouts knows no blocks. Its ADD fails, because the range of the guard is no CIDR.
func TestWhereaboutsCannotUseADividedPool(t *testing.T) {
	for _, family := range []string{"10.0.0.0/24", "fd00::/112"} {
		t.Run(family, func(t *testing.T) {
			namespace := newNamespace(t)
			n := newNode(t, namespace)
			address(t, blocked(t, n, "ADD", 1, "node1", `{"range":"`+family+`","block_size":16}`))
			add := blocked(t, n, "ADD", 2, "node1", `{"range":"`+family+`"}`)
			for name, binary := range map[string]string{"ours, without block_size": ours(t), "whereabouts": theirs(t)} {
				add.binary = binary
				out, err := add.run()
				if err == nil {
					t.Errorf("%s: %s", name, out)
				}
			}
			del := add
			del.verb, del.binary = "DEL", theirs(t)
			if _, err := del.run(); err != nil {
				t.Error(err)
			}
			wantEmpty(t, namespace)
		})
	}
}

func TestBlockSizesThatCannotWorkAreRefused(t *testing.T) {
	n := newNode(t, newNamespace(t))
	for ipam, want := range map[string]string{
		`{"range":"10.0.0.0/24","block_size":12}`:                                          "power of two",
		`{"range":"10.0.0.0/24","block_size":-2}`:                                          "power of two",
		`{"range":"10.0.0.0/24","block_size":"/28"}`:                                       "block_size",
		`{"range":"10.0.0.0/30","block_size":16}`:                                          "larger than the range 10.0.0.0/30",
		`{"range":"10.0.0.0/24","block_size":16,"node_slice_size":"/28"}`:                  "both divide the range",
		`{"range":"10.0.0.0/24","block_size":16,"store":"local"}`:                          "blocks need the Kubernetes store",
		`{"range":"10.0.0.0/24","block_size":16,"kubernetes":{"kubeconfig":"DIR/absent"}}`: "absent",
	} {
		if _, err := blocked(t, n, "ADD", 1, "node1", ipam).run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ipam, err, want)
		}
		if _, err := blocked(t, n, "DEL", 1, "node1", ipam).run(); err != nil {
			t.Errorf("DEL with %s: %v", ipam, err)
		}
	}
}

// Both work on another pool of the namespace, in turns, while nodes hold blocks. The two
// pools overlap by nothing, and whereabouts passes over the objects of blocks.
func TestWhereaboutsSharesAPoolBesideOneOfBlocks(t *testing.T) {
	namespace := newNamespace(t)
	n := newNode(t, namespace)
	const divided, shared = `{"range":"10.0.0.0/24","block_size":16}`, `{"range":"10.1.0.0/24"}`
	var calls []call
	for pod := range 9 {
		add := blocked(t, n, "ADD", pod, "node1", []string{divided, shared, shared}[pod%3])
		if pod%3 == 2 {
			add.binary = theirs(t)
		}
		got := address(t, add)
		if want := []string{"10.0.0.", "10.1.0.", "10.1.0."}[pod%3]; !strings.HasPrefix(got, want) {
			t.Errorf("pod %d has %s", pod, got)
		}
		if pod%3 > 0 {
			if want := fmt.Sprintf("10.1.0.%d/24", 2*(pod/3)+pod%3); got != want {
				t.Errorf("pod %d has %s, not the lowest free one, %s", pod, got, want)
			}
		}
		calls = append(calls, add)
	}
	// Either ends pods of the other.
	for i, del := range calls {
		del.verb = "DEL"
		if i%3 > 0 {
			del.binary = []string{theirs(t), ours(t)}[i%2]
		}
		if _, err := del.run(); err != nil {
			t.Errorf("DEL of pod %d by %s: %v", i, filepath.Base(filepath.Dir(del.binary)), err)
		}
	}
	wantEmpty(t, namespace)
}
