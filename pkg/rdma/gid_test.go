package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestGIDsOfAddresses(t *testing.T) {
	for ip, want := range map[string]string{
		"10.0.0.1":          "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"::ffff:10.0.0.1":   "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"fd00:10::1":        "fd00:0010:0000:0000:0000:0000:0000:0001",
		"fe80::1":           "fe80:0000:0000:0000:0000:0000:0000:0001",
		"255.255.255.255":   "0000:0000:0000:0000:0000:ffff:ffff:ffff",
		"fe80::aa%net1":     "fe80:0000:0000:0000:0000:0000:0000:00aa",
		"0.0.0.0":           "0000:0000:0000:0000:0000:ffff:0000:0000",
		"2001:db8:a:b::c:d": "2001:0db8:000a:000b:0000:0000:000c:000d",
	} {
		g := GIDOf(netip.MustParseAddr(ip))
		if g.String() != want {
			t.Errorf("%s is %s, want %s", ip, g, want)
		}
		back, err := parseGID(want)
		if err != nil || back != g || back.Addr() != netip.MustParseAddr(ip).WithZone("").Unmap() {
			t.Errorf("%s is read as %s (%s), %v", want, back, back.Addr(), err)
		}
	}
	for _, bad := range []string{"", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "fe80", "zz"} {
		if g, err := parseGID(bad); err == nil {
			t.Errorf("%q is %s", bad, g)
		}
	}
}

func gidTree(size int, entries ...GIDEntry) map[string]string {
	const at = "class/infiniband/mlx5_0/ports/1/"
	tree := map[string]string{}
	for i := range size {
		tree[fmt.Sprintf("%sgids/%d", at, i)] = GID{}.String()
	}
	for _, e := range entries {
		tree[fmt.Sprintf("%sgids/%d", at, e.Index)] = e.GID.String()
		if e.Type != "" { // otherwise it was removed between two reads
			tree[fmt.Sprintf("%sgid_attrs/types/%d", at, e.Index)] = string(e.Type)
		}
		if e.Netdev != "" {
			tree[fmt.Sprintf("%sgid_attrs/ndevs/%d", at, e.Index)] = e.Netdev
		}
	}
	return tree
}

var device0 = Device{Name: "mlx5_0", Ports: 1}

func gidOf(ip string) GID { return GIDOf(netip.MustParseAddr(ip)) }

func TestGIDTable(t *testing.T) {
	c := offline(t, nil, sysfs(t, gidTree(
		16,
		GIDEntry{0, gidOf("fe80::3"), RoCEv1, "enp0s1"}, GIDEntry{1, gidOf("fe80::3"), RoCEv2, "enp0s1"},
		GIDEntry{10, gidOf("10.0.0.2"), RoCEv2, "net1"}, GIDEntry{9, gidOf("10.0.0.1"), RoCEv2, "net1"},
		GIDEntry{2, gidOf("10.0.0.1"), RoCEv1, "net1"}, GIDEntry{3, gidOf("10.0.0.7"), "", ""},
	)))
	table, err := c.GIDs(device0, 1)
	if err != nil || table.Size != 16 || len(table.Entries) != 5 || table.Free() != 11 {
		t.Fatalf("%+v, %v", table, err)
	}
	for i, want := range []int{0, 1, 2, 9, 10} {
		if table.Entries[i].Index != want {
			t.Errorf("entry %d has index %d", i, table.Entries[i].Index)
		}
	}
	e, err := c.FindGID(device0, 1, netip.MustParseAddr("10.0.0.1"), "net1")
	if want := (GIDEntry{9, gidOf("10.0.0.1"), RoCEv2, "net1"}); err != nil || e != want {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := c.GIDs(device0, 2); !errors.Is(err, ErrNotFound) {
		t.Errorf("a port that is not there: %v", err)
	}
	if _, err := c.GIDs(Device{Name: "mlx5_1"}, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestGIDsAreFoundByInterface(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.1")
	table := func(netdevs ...string) GIDTable {
		tab := GIDTable{Size: 8}
		for i, n := range netdevs {
			tab.Entries = append(tab.Entries, GIDEntry{2 * i, gidOf("10.0.0.1"), RoCEv1, n}, GIDEntry{2*i + 1, gidOf("10.0.0.1"), RoCEv2, n})
		}
		return tab
	}
	for _, c := range []struct {
		name  string
		table GIDTable
		index int
		text  string
	}{
		{"one", table("net1"), 1, ""},
		{"beside another's", table("enp0s1", "net1"), 3, ""},
		{"only another's", table("enp0s1"), 0, `mlx5_0 port 1 has the address 10.0.0.1 as GID of "enp0s1" (index 1), not of "net1"`},
		{"none", table(), 0, `mlx5_0 port 1 has no RoCE v2 GID for the address 10.0.0.1 of "net1"`},
		{"of two pods with one address the first alone, whose table has not got the second", table("net1"), 1, ""}, // limits.md
		{"two pods with one address", table("net1", "net1"), 0, `two interfaces named "net1" have the address 10.0.0.1 (GID indexes 1 and 3)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := pickGID(c.table, device0, 1, ip, "net1")
			switch {
			case c.text == "" && (err != nil || e.Index != c.index):
				t.Errorf("%+v, %v", e, err)
			case c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)):
				t.Errorf("%+v, %v", e, err)
			}
		})
	}
}

func TestWaitingForAGIDEndsAndSaysWhy(t *testing.T) {
	full := []GIDEntry{}
	for i := range 8 {
		full = append(full, GIDEntry{i, GID{15: byte(i + 1)}, RoCEv2, "net9"})
	}
	for want, tree := range map[string]map[string]string{
		"the table is full (8 of 8 entries)": gidTree(8, full...),
		"prefix length was changed":          gidTree(8),
	} {
		c := offline(t, nil, sysfs(t, tree))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		began := time.Now()
		_, err := c.AwaitGID(ctx, device0, 1, netip.MustParseAddr("10.0.0.1"), "net1")
		cancel()
		if err == nil || !errors.Is(err, errNoGID) || failure.KindOf(err) != failure.TryAgain || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}
