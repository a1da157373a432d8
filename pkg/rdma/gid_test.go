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
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

func gidTree(size int, entries ...ibaddr.GIDEntry) map[string]string {
	const at = "class/infiniband/mlx5_0/ports/1/"
	tree := map[string]string{}
	for i := range size {
		tree[fmt.Sprintf("%sgids/%d", at, i)] = ibaddr.GID{}.String()
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

func gidOf(ip string) ibaddr.GID { return ibaddr.GIDOf(netip.MustParseAddr(ip)) }

func TestGIDTable(t *testing.T) {
	c := offline(t, nil, sysfs(t, gidTree(
		16,
		ibaddr.GIDEntry{Index: 0, GID: gidOf("fe80::3"), Type: ibaddr.RoCEv1, Netdev: "enp0s1"},
		ibaddr.GIDEntry{Index: 1, GID: gidOf("fe80::3"), Type: ibaddr.RoCEv2, Netdev: "enp0s1"},
		ibaddr.GIDEntry{Index: 10, GID: gidOf("10.0.0.2"), Type: ibaddr.RoCEv2, Netdev: "net1"},
		ibaddr.GIDEntry{Index: 9, GID: gidOf("10.0.0.1"), Type: ibaddr.RoCEv2, Netdev: "net1"},
		ibaddr.GIDEntry{Index: 2, GID: gidOf("10.0.0.1"), Type: ibaddr.RoCEv1, Netdev: "net1"},
		ibaddr.GIDEntry{Index: 3, GID: gidOf("10.0.0.7"), Type: "", Netdev: ""},
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
	if want := (ibaddr.GIDEntry{Index: 9, GID: gidOf("10.0.0.1"), Type: ibaddr.RoCEv2, Netdev: "net1"}); err != nil || e != want {
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
	table := func(netdevs ...string) ibaddr.GIDTable {
		tab := ibaddr.GIDTable{Size: 8}
		for i, n := range netdevs {
			tab.Entries = append(tab.Entries, ibaddr.GIDEntry{Index: 2 * i, GID: gidOf("10.0.0.1"), Type: ibaddr.RoCEv1, Netdev: n},
				ibaddr.GIDEntry{Index: 2*i + 1, GID: gidOf("10.0.0.1"), Type: ibaddr.RoCEv2, Netdev: n})
		}
		return tab
	}
	for _, c := range []struct {
		name  string
		table ibaddr.GIDTable
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
	full := []ibaddr.GIDEntry{}
	for i := range 8 {
		full = append(full, ibaddr.GIDEntry{Index: i, GID: ibaddr.GID{15: byte(i + 1)}, Type: ibaddr.RoCEv2, Netdev: "net9"})
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
