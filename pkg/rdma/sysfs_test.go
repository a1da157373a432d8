package rdma

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sysfs writes a tree of files. A text that begins with "->" becomes a link.
func sysfs(t *testing.T, tree map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range tree {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if len(text) > 2 && text[:2] == "->" {
			err = os.Symlink(text[2:], at)
		} else {
			err = os.WriteFile(at, []byte(text+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// offline returns a Core without RDMA netlink, which this machine may lack.
func offline(t *testing.T, ns *netns.Netns, sys string) *Core {
	t.Helper()
	if ns == nil {
		ns = current(t)
	}
	c := &Core{Sys: sys, ns: ns}
	t.Cleanup(c.Close)
	return c
}

func current(t testing.TB) *netns.Netns {
	t.Helper()
	need.Root(t)
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	ns.Path = "host"
	return ns
}

// newNetns makes a namespace that only its result keeps alive.
func newNetns(t testing.TB, name string) *netns.Netns {
	t.Helper()
	need.Root(t)
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(home)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace (this needs root): %v", err)
	}
	ns, err := netns.Current()
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		t.Fatal(back) // and the thread ends with the goroutine
	}
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	ns.Path = name
	t.Cleanup(ns.Close)
	return ns
}

func TestTheParentComesFromSysfs(t *testing.T) {
	const pci, aux = "devices/pci0000:3a/0000:3b:00.0", "devices/pci0000:3a/0000:3b:00.0/mlx5_core.sf.4"
	c := offline(t, nil, sysfs(t, map[string]string{
		"class/infiniband/mlx5_0":              "->../../" + pci + "/infiniband/mlx5_0",
		pci + "/infiniband/mlx5_0/device":      "->../../../0000:3b:00.0",
		pci + "/subsystem":                     "->../../../bus/pci",
		"class/infiniband/mlx5_1":              "->../../" + aux + "/infiniband/mlx5_1",
		aux + "/infiniband/mlx5_1/device":      "->../../../mlx5_core.sf.4",
		aux + "/subsystem":                     "->../../../../bus/auxiliary",
		"class/infiniband/rxe0":                "->../../devices/virtual/infiniband/rxe0",
		"devices/virtual/infiniband/rxe0/uid":  "x",
		"bus/pci/devices/0000:3b:00.0":         "->../../../" + pci,
		"bus/auxiliary/devices/mlx5_core.sf.4": "->../../../" + aux,
		"bus/pci/devices/0000:3c:00.0/class":   "0x020000",
	}))
	for parent, want := range map[string]struct {
		bus   string
		names []string
	}{
		"0000:3b:00.0": {"pci", []string{"mlx5_0"}}, "mlx5_core.sf.4": {"auxiliary", []string{"mlx5_1"}},
		"0000:3c:00.0": {"pci", nil}, "virtio3": {}, "": {}, ".": {}, "../devices": {},
	} {
		bus, names, err := c.children(parent)
		if err != nil || bus != want.bus || !slices.Equal(names, want.names) {
			t.Errorf("%q has %v on %q, %v", parent, names, bus, err)
		}
	}
	for name, want := range map[string][2]string{"mlx5_0": {"0000:3b:00.0", "pci"}, "mlx5_1": {"mlx5_core.sf.4", "auxiliary"}, "rxe0": {"", ""}} {
		dev, bus, err := c.parent(name)
		if err != nil || dev != want[0] || bus != want[1] {
			t.Errorf("%s: %q on %q, %v", name, dev, bus, err)
		}
	}
	if _, _, err := c.parent("mlx5_9"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a device that is not there: %v", err)
	}
	for _, bad := range []string{"..", "../net", "", "/etc", "a/b"} {
		if dev, bus, err := c.parent(bad); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %q on %q, %v", bad, dev, bus, err)
		}
	}
	names, err := c.names()
	if err != nil || !slices.Equal(slices.Sorted(maps.Keys(names)), []string{"mlx5_0", "mlx5_1", "rxe0"}) {
		t.Errorf("names: %v, %v", names, err)
	}
}

func TestUverbsOwnersComeFromSysfs(t *testing.T) {
	c := offline(t, nil, sysfs(t, map[string]string{
		"class/infiniband_verbs/abi_version":    "6",
		"class/infiniband_verbs/uverbs0/ibdev":  "mlx5_0",
		"class/infiniband_verbs/uverbs4/ibdev":  "mlx5_6",
		"class/infiniband_verbs/uverbs12/ibdev": "mlx5_4",
		"class/infiniband_verbs/uverbs5/dev":    "231:197", // half destroyed
	}))
	owners, err := c.uverbsOwners()
	if want := map[int]string{0: "mlx5_0", 4: "mlx5_6", 12: "mlx5_4"}; err != nil || !maps.Equal(owners, want) {
		t.Errorf("owners: %v, %v", owners, err)
	}
	for n, want := range map[int]string{4: "mlx5_6", 5: "", 6: ""} {
		if owner, err := c.ownerOfUverbs(n); err != nil || owner != want {
			t.Errorf("uverbs%d: %q, %v", n, owner, err)
		}
	}
	empty := offline(t, nil, t.TempDir())
	if owners, err := empty.uverbsOwners(); err != nil || len(owners) != 0 {
		t.Errorf("without RDMA: %v, %v", owners, err)
	}
}

// The sysfs that a Core mounts belongs to the Core's namespace, even if the reading process has the
// sysfs of another namespace in /sys.
func TestASysfsIsTheOneOfItsNetns(t *testing.T) {
	pod := offline(t, newNetns(t, "pod"), "")
	host := offline(t, nil, "")
	for _, c := range []*Core{pod, host} {
		links, err := link.Links(c.ns)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []string
		for _, l := range links {
			want = append(want, l.Name)
		}
		err = c.inNetns(func() (err error) { got, err = c.list("class/net"); return err })
		got = slices.DeleteFunc(got, func(s string) bool { return s == "bonding_masters" })
		slices.Sort(want)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("sysfs of %s has %v, rtnetlink has %v; %v", c.ns.Path, got, want, err)
		}
	}
}

// Root in a pod can name its RDMA device "../../x", and put files there that lead anywhere.
func TestNameOfADeviceDoesNotLeadOutOfSysfs(t *testing.T) {
	root := sysfs(t, map[string]string{
		"sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
		"evil/ports/1/link_layer":                        "a secret",
		"evil/ports/1/gids/0":                            "fe80:0000:0000:0000:0000:0000:0000:0001",
		"evil/ports/1/gid_attrs/types/0":                 "RoCE v2",
	})
	c := offline(t, nil, filepath.Join(root, "sys"))
	for name, want := range map[string]string{"mlx5_0": "InfiniBand", "../../../evil": "Ethernet"} {
		d := Device{Name: name, Protocol: "roce"}
		layer, err := c.linkLayer(d, 1)
		if err != nil || layer != want {
			t.Errorf("%s: link layer %q, %v; want %q", name, layer, err, want)
		}
		if table, err := c.GIDs(d, 1); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: GIDs %+v, %v", name, table, err)
		}
	}
}
