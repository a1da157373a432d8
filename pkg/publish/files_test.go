package publish

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/pcie/pcietest"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// machineOf makes a machine with these functions.
func machineOf(t testing.TB, functions ...pcietest.Function) railinfo.Machine {
	t.Helper()
	tree, root := pcietest.Machine(t, functions...)
	return railinfo.Machine{Tree: tree, Root: root}
}

// rails returns the rails of a pod that has a NIC at 0000:00:05.0.
func rails(m railinfo.Machine) *railinfo.Rails {
	rail := 0
	l := railinfo.Rail{
		Rail: &rail, IfName: "net1", RDMA: "mlx5_0", Port: 1, LinkLayer: railinfo.Ethernet, State: "ACTIVE", PCI: "0000:00:05.0",
		SpeedMbps: 400000, MTU: 9000, ActiveMTU: 4096, MAC: "02:00:00:00:00:00", SysImageGUID: "5054:00ff:fe12:3400",
		CharDevices: []string{"/dev/infiniband/uverbs0"},
	}
	l.SetPlace(m.Tree, m.Tree.GPUs(), nil)
	return &railinfo.Rails{
		Schema: railinfo.Schema, Pod: railinfo.PodRef{UID: "0d6c", Namespace: "default", Name: "web-0", Node: "node-1"}, Rails: []railinfo.Rail{l},
	}
}

func filesIn(t *testing.T) (*files, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	return f, filepath.Join(dir, "pods")
}

// Containers of any user read the files through a mount of the directory, whatever the agent's
// umask is.
func TestFilesAreReadableForAll(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	f, dir := filesIn(t)
	m := machineOf(t, pcietest.Function{Path: "pci0000:00/0000:00:05.0", Class: pcietest.ClassRoCE})
	r := rails(m)
	if err := f.write("a", r, railinfo.SettingsOf(nil), m); err != nil {
		t.Fatal(err)
	}
	var names []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o644)
		if e.IsDir() {
			want = fs.ModeDir | 0o755
		} else {
			names = append(names, e.Name())
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"env.sh", "nccl.conf", "rails.json", "topo.xml"}; !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
}

// A mounted directory stays the same directory, and an open file keeps its content. So a reader
// sees either the old file or the new one.
func TestFilesAreReplacedInTheirDirectory(t *testing.T) {
	f, dir := filesIn(t)
	m := machineOf(t, pcietest.Function{Path: "pci0000:00/0000:00:05.0", Class: pcietest.ClassRoCE})
	r := rails(m)
	inode := func(name string) uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, "a", name), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	if err := f.write("a", r, railinfo.Settings{}, m); err != nil {
		t.Fatal(err)
	}
	directory, rails, env := inode(""), inode("rails.json"), inode("env.sh")
	open, err := os.Open(filepath.Join(dir, "a", "rails.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	before := string(r.JSON())
	r.Generation++
	if err := f.write("a", r, railinfo.Settings{}, m); err != nil {
		t.Fatal(err)
	}
	if inode("") != directory || inode("rails.json") == rails || inode("env.sh") != env {
		t.Error("the directory or an unchanged file is another one, or rails.json is not")
	}
	have := make([]byte, len(before)+10)
	if n, _ := open.Read(have); string(have[:n]) != before {
		t.Errorf("the open file has %s", have[:n])
	}
	r.Rails[0].PCI = "" // no topology any more
	if err := f.write("a", r, railinfo.Settings{}, m); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "a", "topo.xml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("topo.xml: %v", err)
	}
}

// Files that killed agents left are removed. Nothing outside is removed, and nothing that does not
// belong to a pod: a network of an earlier version may have had its state directory there.
func TestOnlyPodsKeepTheirDirectories(t *testing.T) {
	f, dir := filesIn(t)
	m := machineOf(t)
	r := rails(m)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	pcietest.Write(t, outside, "file", "x")
	for _, name := range []string{"a", "b"} {
		if err := f.write(name, r, railinfo.Settings{}, m); err != nil {
			t.Fatal(err)
		}
	}
	pcietest.Write(t, dir, "a/.0123", "half")
	pcietest.Write(t, dir, "attachments/c1@net1.json", "a record")
	if err := os.Mkdir(filepath.Join(dir, "nics"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	names, err := f.names()
	if err != nil || !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Fatal(names, err)
	}
	for _, name := range names {
		f.clean(name)
		if name == "a" {
			continue
		}
		if err := f.remove(name); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || !slices.Equal(left, []string{filepath.Join(dir, "a"), filepath.Join(dir, "attachments"), filepath.Join(dir, "nics")}) {
		t.Errorf("left: %q, %v", left, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "a", ".0123")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a half file: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error(err)
	}
}

// A link in the place of a pod's directory would lead out of the directory.
func TestLinkInPlaceOfADirectoryIsRefused(t *testing.T) {
	f, dir := filesIn(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	m := machineOf(t)
	if err := f.write("a", rails(m), railinfo.Settings{}, m); err == nil {
		t.Error("it was written")
	}
	if left, _ := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("outside: %v", left)
	}
}
