package install_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/install"
)

// node is a CNI directory and the record of what is installed in it.
type node struct {
	t *testing.T
	*install.Node
	bin, record string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, bin: t.TempDir(), record: filepath.Join(t.TempDir(), "install")}
	n.Node = install.Open(n.record)
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.bin, name) }

// want puts a file. It fails the test if the outcome is another one.
func (n *node) want(outcome install.Outcome, f install.File) {
	n.t.Helper()
	got, err := n.Put(n.t.Context(), f)
	if err != nil || got != outcome {
		n.t.Errorf("%s: %q, %v; not %q", f.Path, got, err, outcome)
	}
}

func (n *node) wantRemoved(outcome install.Outcome, name string) {
	n.t.Helper()
	got, err := n.Remove(n.path(name))
	if err != nil || got != outcome {
		n.t.Errorf("%s: %q, %v; not %q", name, got, err, outcome)
	}
}

// write writes a file whose modification time is an hour ago.
func (n *node) write(name, text string, mode fs.FileMode) {
	n.t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(os.WriteFile(n.path(name), []byte(text), mode), os.Chmod(n.path(name), mode), os.Chtimes(n.path(name), old, old)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) wantContent(name, text string) {
	n.t.Helper()
	if got, err := os.ReadFile(n.path(name)); err != nil || string(got) != text {
		n.t.Errorf("%s is %q, %v; not %q", name, got, err, text)
	}
}

func TestWhatWasThereBeforeIsThereAfter(t *testing.T) {
	need.Root(t)
	n := newNode(t)
	long := time.Date(2020, 2, 3, 4, 5, 6, 7, time.UTC)
	n.write("host-device", "upstream's", 0o4751)
	if err := errors.Join(os.Chown(n.path("host-device"), 7, 8), os.Chmod(n.path("host-device"), fs.ModeSetuid|0o751),
		os.Chtimes(n.path("host-device"), long, long), os.Symlink("/opt/macvlan", n.path("macvlan"))); err != nil {
		t.Fatal(err)
	}
	before := testnet.Tree(t, n.bin)
	for _, version := range []string{"v1", "v2", "v2", "v1"} { // upgrade, the same again, rollback
		for _, name := range []string{"host-device", "macvlan", "rdma", "whereabouts.d/conf"} {
			if _, err := n.Put(t.Context(), install.File{Path: n.path(name), Content: []byte(version), Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
			n.wantContent(name, version)
		}
		n.want(install.Same, install.File{Path: n.path("rdma"), Content: []byte(version), Mode: 0o755})
	}
	n.wantRemoved(install.Restored, "host-device")
	n.wantRemoved(install.Restored, "macvlan")
	n.wantRemoved(install.Removed, "rdma")
	n.wantRemoved(install.Removed, "whereabouts.d/conf")
	n.wantRemoved("", "rdma")
	if after := testnet.Tree(t, n.bin); after != before {
		t.Errorf("it was\n%sand is\n%s", before, after)
	}
	if _, err := os.Stat(n.record); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is there: %v", err)
	}
}

func TestOursIsNeverBackedUpOverWhatWasThere(t *testing.T) {
	n := newNode(t)
	n.write("macvlan", "upstream's", 0o755)
	f := func(version string) install.File {
		return install.File{Path: n.path("macvlan"), Content: []byte(version), Mode: 0o755}
	}
	n.want(install.Replaced, f("v1"))
	n.want(install.Replaced, f("v2"))
	n.write("macvlan", "v1", 0o755) // another's old copy of ours
	n.want(install.Replaced, f("v2"))
	n.write("macvlan", "a newer one of upstream", 0o755)
	n.want(install.Replaced, f("v2"))
	n.wantRemoved(install.Restored, "macvlan")
	n.wantContent("macvlan", "upstream's")

	// The first plugin was copied by hand, and the second is installed later.
	ours := filepath.Join(testnet.Bin(t), "macvlan")
	if err := install.Copy(ours, n.path("macvlan"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.want(install.Installed, f("v1"))
	n.write("macvlan", "upstream's, installed after us", 0o755)
	n.want(install.Replaced, f("v1"))
	n.wantRemoved(install.Restored, "macvlan")
	n.wantContent("macvlan", "upstream's, installed after us")
}

func TestTheSameFileInTwoDirectories(t *testing.T) {
	n := newNode(t)
	if err := os.Mkdir(n.path("other"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"macvlan", "other/macvlan"} {
		n.write(name, "upstream's", 0o755)
	}
	before := testnet.Tree(t, n.bin)
	for _, name := range []string{"macvlan", "other/macvlan"} {
		n.want(install.Replaced, install.File{Path: n.path(name), Content: []byte("v1"), Mode: 0o755})
	}
	for _, name := range []string{"macvlan", "other/macvlan"} {
		n.wantRemoved(install.Restored, name)
	}
	if after := testnet.Tree(t, n.bin); after != before {
		t.Errorf("it was\n%sand is\n%s", before, after)
	}
}

func TestWhatTookOurPlaceStays(t *testing.T) {
	n := newNode(t)
	n.write("macvlan", "upstream's", 0o755)
	n.want(install.Replaced, install.File{Path: n.path("macvlan"), Content: []byte("v1"), Mode: 0o755})
	n.write("macvlan", "newer", 0o755)
	n.wantRemoved(install.Yielded, "macvlan")
	n.wantContent("macvlan", "newer")

	n.want(install.Installed, install.File{Path: n.path("rdma"), Content: []byte("v1"), Mode: 0o755})
	if err := os.Remove(n.path("rdma")); err != nil {
		t.Fatal(err)
	}
	n.wantRemoved(install.Removed, "rdma")
}

func TestFileThatYields(t *testing.T) {
	n := newNode(t)
	f := install.File{Path: n.path("conf"), Content: []byte("ours"), Mode: 0o600, Yield: true}
	n.write("conf", "theirs", 0o644)
	n.want(install.Yielded, f)
	n.wantContent("conf", "theirs")
	if entries, err := n.Entries(); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
	f.Yield = false
	n.want(install.Replaced, f)
	f.Yield = true
	f.Content = []byte("ours, renewed")
	n.want(install.Replaced, f)
	n.wantContent("conf", "ours, renewed")
	n.wantRemoved(install.Restored, "conf")
	n.wantContent("conf", "theirs")
}

// TestFileWithWrongModeIsCorrected: a credential that others can read, or a plugin that is not
// executable, must be replaced even if its content is right.
func TestFileWithWrongModeIsCorrected(t *testing.T) {
	n := newNode(t)
	for name, mode := range map[string]fs.FileMode{"kubeconfig": 0o600, "plugin": 0o755} {
		f := install.File{Path: n.path(name), Content: []byte(name), Mode: mode}
		n.want(install.Installed, f)
		n.want(install.Same, f)
		n.write(name, name, 0o644)
		n.want(install.Installed, f)
		if info, err := os.Stat(f.Path); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v, %v", name, info.Mode(), mode, err)
		}
		n.want(install.Same, f)
		n.wantRemoved(install.Removed, name)
	}
}

func TestOnlyWhatIsInstalledIsPutBack(t *testing.T) {
	n := newNode(t)
	f := install.File{Path: n.path("rdma"), Content: []byte("v1"), Mode: 0o755}
	if outcome, err := n.PutBack(t.Context(), f); err != nil || outcome != "" {
		t.Errorf("%q, %v", outcome, err)
	}
	n.want(install.Installed, f)
	if err := os.Remove(f.Path); err != nil {
		t.Fatal(err)
	}
	if outcome, err := n.PutBack(t.Context(), f); err != nil || outcome != install.Installed {
		t.Errorf("%q, %v", outcome, err)
	}
}

func TestRecordOrBackupThatIsSpoiltChangesNothing(t *testing.T) {
	n := newNode(t)
	n.write("macvlan", "upstream's", 0o755)
	n.want(install.Replaced, install.File{Path: n.path("macvlan"), Content: []byte("v1"), Mode: 0o755})
	entries, err := n.Entries()
	if err != nil || len(entries) != 1 || entries[0].Before == nil {
		t.Fatal(entries, err)
	}
	backup := filepath.Join(n.record, entries[0].Before.Backup)
	if err := os.WriteFile(backup, []byte("upstr"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Remove(n.path("macvlan")); err == nil || !strings.Contains(err.Error(), backup) {
		t.Error(err)
	}
	n.wantContent("macvlan", "v1")
	for _, text := range []string{"{", `{"version": 2}`, `[]`} {
		if err := os.WriteFile(filepath.Join(n.record, "record.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Remove(n.path("macvlan")); err == nil {
			t.Errorf("%s is a record", text)
		}
		if _, err := n.Put(t.Context(), install.File{Path: n.path("macvlan"), Content: []byte("v2"), Mode: 0o755}); err == nil {
			t.Errorf("%s is a record", text)
		}
		n.wantContent("macvlan", "v1")
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	n := newNode(t)
	if err := os.Mkdir(n.path("rdma"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{n.path("rdma"), "rdma"} {
		if _, err := n.Put(t.Context(), install.File{Path: path, Content: []byte("x"), Mode: 0o755}); err == nil {
			t.Errorf("%s was installed", path)
		}
	}
}

// TestKilledAtAnyInstantItEndsAsItWas repeatedly kills an installer and an uninstaller that run in
// another process.
func TestKilledAtAnyInstantItEndsAsItWas(t *testing.T) {
	if spec := os.Getenv("RAIL_CNI_TEST_INSTALL"); spec != "" {
		var n struct{ Record, Bin string }
		if err := json.Unmarshal([]byte(spec), &n); err != nil {
			t.Fatal(err)
		}
		fmt.Println("begun")
		for i := 0; ; i++ {
			for _, name := range []string{"a", "b"} {
				path := filepath.Join(n.Bin, name)
				if _, err := install.Open(n.Record).Put(t.Context(), install.File{Path: path, Content: fmt.Appendf(nil, "v%d", i), Mode: 0o755}); err != nil {
					fmt.Println(err)
					os.Exit(3)
				}
				if i%3 == 2 {
					if _, err := install.Open(n.Record).Remove(path); err != nil {
						fmt.Println(err)
						os.Exit(3)
					}
				}
			}
		}
	}
	n := newNode(t)
	n.write("a", "upstream's", 0o755)
	before := testnet.Tree(t, n.bin)
	spec, err := json.Marshal(map[string]string{"Record": n.record, "Bin": n.bin})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const kills = 60
	installed := 0
	for i := range kills {
		cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "RAIL_CNI_TEST_INSTALL="+string(spec))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		output := bufio.NewReader(out)
		begun, err := output.ReadString('\n') // a busy machine takes a while to start it
		time.Sleep(time.Duration(i) * 1370 * time.Microsecond)
		_ = cmd.Process.Kill()
		said, _ := io.ReadAll(output)
		if ended := cmd.Wait(); err != nil || ended != nil && strings.Contains(ended.Error(), "exit status") {
			t.Fatalf("%v, %v: %s%s", err, ended, begun, said)
		}
		if entries, err := n.Entries(); err != nil {
			t.Fatal(err)
		} else if len(entries) > 0 {
			installed++
		}
	}
	t.Logf("%d of %d kills left something installed", installed, kills)
	if installed == 0 {
		t.Error("nothing was ever installed")
	}
	for _, name := range []string{"a", "b"} {
		if _, err := n.Remove(n.path(name)); err != nil {
			t.Error(err)
		}
	}
	left, err := filepath.Glob(n.path(".rail-cni-*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("unfinished files are left: %q", left)
	}
	if after := testnet.Tree(t, n.bin); after != before {
		t.Errorf("it was\n%sand is\n%s", before, after)
	}
}

// TestUnfinishedFilesGoWithTheLastOfTheDirectory: after the last entry of a directory has left the
// record, no later call looks into the directory.
func TestUnfinishedFilesGoWithTheLastOfTheDirectory(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"a", "b"} {
		n.want(install.Installed, install.File{Path: n.path(name), Content: []byte("ours"), Mode: 0o755})
	}
	n.write(".rail-cni-123", "half", 0o600) // by an installation that was killed a moment ago
	for _, name := range []string{"a", "b"} {
		_, before := os.Lstat(n.path(".rail-cni-123"))
		if _, err := n.Remove(n.path(name)); err != nil || before != nil {
			t.Fatal(err, before)
		}
	}
	if left, err := os.ReadDir(n.bin); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestCopyPutsAFileInPlaceInOneStep(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, []byte("new"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(to) // as the kernel has it open while it runs
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := install.Copy(from, to, 0o755); err != nil {
		t.Fatal(err)
	}
	was := make([]byte, 3)
	if _, err := old.Read(was); err != nil || string(was) != "old" {
		t.Errorf("the old file has %q, %v", was, err)
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
	if err := install.Copy(filepath.Join(dir, "none"), to, 0o755); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := install.Copy(from, filepath.Join(dir, "none", "to"), 0o755); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
}

// TestFileThatIsBeingWrittenIsBackedUpWhole has another installer that slowly overwrites the file.
func TestFileThatIsBeingWrittenIsBackedUpWhole(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile(n.path("a"), []byte("the first half, "), 0o755); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(700 * time.Millisecond)
		f, err := os.OpenFile(n.path("a"), os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString("the second")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Error(err)
		}
	}()
	f := install.File{Path: n.path("a"), Content: []byte("ours"), Mode: 0o755}
	if _, err := n.Put(t.Context(), f); failure.KindOf(err) != failure.TryAgain {
		t.Errorf("a half written file is taken for a whole one: %v", err)
	}
	n.want(install.Replaced, f)
	n.wantRemoved(install.Restored, "a")
	n.wantContent("a", "the first half, the second")
}

// TestWhatLiesInADirectoryThatIsNotThereIsNotForgotten: the directory may be
// missing in a container.
func TestWhatLiesInADirectoryThatIsNotThereIsNotForgotten(t *testing.T) {
	n := newNode(t)
	n.want(install.Installed, install.File{Path: n.path("a"), Content: []byte("ours"), Mode: 0o755})
	hidden := n.bin + ".hidden"
	if err := os.Rename(n.bin, hidden); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Remove(n.path("a")); err == nil || !strings.Contains(err.Error(), "the directory "+n.bin+", for") {
		t.Errorf("removed: %v", err)
	}
	if err := n.Visible(); err == nil {
		t.Error("it counts as visible")
	}
	if err := n.Visible(n.bin); err != nil {
		t.Error(err)
	}
	if err := os.Rename(hidden, n.bin); err != nil {
		t.Fatal(err)
	}
	n.wantRemoved(install.Removed, "a")
}

// TestDirectoryOfAnImageIsNotThatOfTheNode runs in another process whose root is an overlay. The
// overlay is either the root of a container that sees the node's processes, or the node's own root.
func TestDirectoryOfAnImageIsNotThatOfTheNode(t *testing.T) {
	need.Root(t)
	if root := os.Getenv("RAIL_CNI_TEST_OVERLAY"); root != "" {
		enterOverlay(t, root)
		n := install.Open("/node/record")
		for _, path := range []string{"/node/made/a", "/image/a", "/image/made/a"} {
			if _, err := n.Put(t.Context(), install.File{Path: path, Content: []byte("ours"), Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount("tmpfs", "/image/made", "tmpfs", 0, ""); err != nil { // it is the mount itself
			t.Fatal(err)
		}
		err := n.Visible()
		if os.Getpid() == 1 {
			if err != nil {
				t.Errorf("the node's directories are refused: %v", err)
			}
			return
		}
		if text := fmt.Sprint(err); strings.Count(text, "the container's image") != 1 || !strings.Contains(text, "/image, the directory for") {
			t.Error(text)
		}
		if err := unix.Unmount("/image/made", 0); err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(n.Visible()); !strings.Contains(text, "/image/made, the directory for") {
			t.Error(text)
		}
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]uintptr{"in a container": unix.CLONE_NEWNS, "on the node": unix.CLONE_NEWNS | unix.CLONE_NEWPID} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(exe, "-test.run=^TestDirectoryOfAnImageIsNotThatOfTheNode$")
			cmd.Env = append(os.Environ(), "RAIL_CNI_TEST_OVERLAY="+t.TempDir())
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// enterOverlay makes an overlay below dir and makes it the root of this process, which must have
// its own mount namespace. At /node another file system is mounted.
func enterOverlay(t *testing.T, dir string) {
	t.Helper()
	root := filepath.Join(dir, "root")
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	for _, of := range []string{"root", "lower/proc", "lower/node", "lower/image", "lower/tmp", "upper", "work"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, of), 0o755))
	}
	if err := errors.Join(err,
		unix.Mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)),
		unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""), unix.Mount("tmpfs", filepath.Join(root, "node"), "tmpfs", 0, ""),
		unix.Chroot(root), os.Chdir("/"),
	); err != nil {
		t.Fatal(err)
	}
}

// TestWaitForAFileThatIsBeingWrittenEndsWithTheContext ends the context of an
// installation that waits.
func TestWaitForAFileThatIsBeingWrittenEndsWithTheContext(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile(n.path("a"), []byte("just written"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Put(ctx, install.File{Path: n.path("a"), Content: []byte("ours"), Mode: 0o755}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	n.wantContent("a", "just written")
}
