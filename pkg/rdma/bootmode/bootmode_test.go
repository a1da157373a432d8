package bootmode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// node makes a root file system with these files.
func node(t *testing.T, files map[string]string) Boot {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return Boot{Root: root}
}

func release(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	return unix.ByteSliceToString(u.Release[:])
}

func TestModeAtBoot(t *testing.T) {
	builtIn := "/lib/modules/" + release(t) + "/modules.builtin"
	for name, c := range map[string]struct {
		files map[string]string
		mode  rdma.Mode
		where string // of the settings, in their order
	}{
		"an empty node": {nil, rdma.Shared, ""},
		"the usual file": {
			map[string]string{"/etc/modprobe.d/ib_core.conf": "# RDMA\n\noptions ib_core netns_mode=0\n", "/proc/cmdline": "quiet ro\n"},
			rdma.Exclusive, "/etc/modprobe.d/ib_core.conf:3",
		},
		"among others": {
			map[string]string{"/etc/modprobe.d/a.conf": "options mlx5_core netns_mode=1\noptions  ib-core\tother=1 netns-mode=N x=2\nalias ib_core netns_mode=1"},
			rdma.Exclusive, "/etc/modprobe.d/a.conf:2",
		},
		"over two lines": {
			map[string]string{"/etc/modprobe.d/a.conf": "blacklist x\noptions ib_core \\\n  netns_mode=0"},
			rdma.Exclusive, "/etc/modprobe.d/a.conf:2",
		},
		"by name, not by directory": {
			map[string]string{"/etc/modprobe.d/b.conf": "options ib_core netns_mode=0", "/usr/lib/modprobe.d/z.conf": "options ib_core netns_mode=1", "/lib/modprobe.d/a.conf": "options ib_core netns_mode=1"},
			rdma.Shared, "/lib/modprobe.d/a.conf:1 /etc/modprobe.d/b.conf:1 /usr/lib/modprobe.d/z.conf:1",
		},
		"a file hides those of its name": {
			map[string]string{"/etc/modprobe.d/b.conf": "", "/lib/modprobe.d/b.conf": "options ib_core netns_mode=0"},
			rdma.Shared, "",
		},
		"not what modprobe reads": {
			map[string]string{"/etc/modprobe.d/b.conf.bak": "options ib_core netns_mode=0", "/etc/modprobe.d/c.conf": "#options ib_core netns_mode=0\noptions ib_core\n"},
			rdma.Shared, "",
		},
		"the command line counts most": {
			map[string]string{"/etc/modprobe.d/b.conf": "options ib_core netns_mode=0", "/proc/cmdline": "root=/dev/sda1 ib_core.netns_mode mlx5_core.netns_mode=0"},
			rdma.Shared, "/etc/modprobe.d/b.conf:1 /proc/cmdline",
		},
		"built in": {
			map[string]string{"/etc/modprobe.d/b.conf": "options ib_core netns_mode=1", "/proc/cmdline": `"ib_core.netns_mode=off"`, builtIn: "kernel/drivers/infiniband/core/ib_core.ko\n"},
			rdma.Exclusive, "/proc/cmdline",
		},
		"no value of it": {
			map[string]string{"/etc/modprobe.d/b.conf": "options ib_core netns_mode=exclusive", "/etc/modprobe.d/c.conf": "options ib_core netns_mode=0"},
			"", "/etc/modprobe.d/b.conf:1 /etc/modprobe.d/c.conf:1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := node(t, c.files).Read()
			must(t, err)
			var where []string
			for _, s := range got.Settings {
				where = append(where, s.Where())
			}
			if got.Mode != c.mode || strings.Join(where, " ") != c.where || got.BuiltIn != (c.files[builtIn] != "") {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestSettingTheModeAtBoot(t *testing.T) {
	b := node(t, map[string]string{"/etc/modprobe.d/ib_core.conf": "options ib_core netns_mode=1\n"})
	file := filepath.Join(b.Root, File)
	for _, m := range []rdma.Mode{rdma.Exclusive, rdma.Exclusive, rdma.Shared} {
		if written, err := b.set(m); err != nil || !written {
			t.Errorf("%v, %v", written, err)
		}
		if got, err := b.Read(); err != nil || got.Mode != m {
			t.Errorf("set %s, read %+v, %v", m, got, err)
		}
	}
	info, err := os.Stat(file)
	must(t, err)
	if info.Mode().Perm() != 0o644 {
		t.Errorf("the file has mode %v", info.Mode())
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 2 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
	if _, err := b.set("both"); err == nil || !strings.Contains(err.Error(), `"both"`) {
		t.Errorf("%v", err)
	}
}

func TestSettingTheModeOfABareNodeMakesTheDirectory(t *testing.T) {
	b := node(t, nil)
	_, err := b.set(rdma.Exclusive)
	must(t, err)
	if got, err := b.Read(); err != nil || got.Mode != rdma.Exclusive || got.Settings[0].Where() != File+":2" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestASettingInVainIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a later file":     {map[string]string{"/etc/modprobe.d/zz.conf": "options ib_core netns_mode=1"}, "/etc/modprobe.d/zz.conf:1 sets netns_mode=1"},
		"the command line": {map[string]string{"/proc/cmdline": "ib_core.netns_mode=Y"}, "/proc/cmdline sets netns_mode=Y"},
		"a bad value":      {map[string]string{"/etc/modprobe.d/a.conf": "options ib_core netns_mode=x"}, "does not load ib_core"},
		"built in":         {map[string]string{"/lib/modules/" + release(t) + "/modules.builtin": "kernel/drivers/infiniband/core/ib_core.ko"}, "ib_core.netns_mode=0"},
		"not writable":     {map[string]string{"/etc/modprobe.d": "a file"}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			b := node(t, c.files)
			if _, err := b.set(rdma.Exclusive); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(filepath.Join(b.Root, File)); err == nil {
				t.Error("the file was written")
			}
		})
	}
	// A setting with the same mode does no harm, and a built-in ib_core needs no file.
	for _, files := range []map[string]string{
		{"/etc/modprobe.d/zz.conf": "options ib_core netns_mode=0"},
		{"/proc/cmdline": "ib_core.netns_mode=0", "/lib/modules/" + release(t) + "/modules.builtin": "x/ib_core.ko"},
	} {
		_, err := node(t, files).set(rdma.Exclusive)
		must(t, err)
	}
}

func TestTheInitramfsIsRebuiltWithWhatTheNodeHas(t *testing.T) {
	for program, want := range map[string]string{
		"/etc/passwd": "", "/usr/sbin/update-initramfs": "update-initramfs -u -k all",
		"/usr/bin/dracut": "dracut --force --regenerate-all", "/bin/mkinitcpio": "mkinitcpio -P",
	} {
		if got := node(t, map[string]string{program: ""}).RebuildInitramfs(); got != want {
			t.Errorf("with %s: %q", program, got)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
