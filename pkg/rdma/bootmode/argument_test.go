package bootmode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// inMemory makes the node's /etc a tmpfs with these files. The tmpfs is read-only unless writable
// is true.
func inMemory(t *testing.T, b Boot, writable bool, files map[string]string) {
	t.Helper()
	etc := filepath.Join(b.Root, "etc")
	must(t, os.MkdirAll(etc, 0o755))
	must(t, unix.Mount("tmpfs", etc, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(etc, unix.MNT_DETACH)) })
	for path, text := range files {
		must(t, os.WriteFile(filepath.Join(b.Root, path), []byte(text), 0o644))
	}
	if !writable {
		must(t, unix.Mount("", etc, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
}

func TestOnAReadOnlyNodeTheCureIsTheKernelsArgument(t *testing.T) {
	need.Root(t)
	for name, c := range map[string]struct{ release, want string }{
		"no system at all": {"", "give the kernel the argument ib_core.netns_mode=0 (in the boot loader's configuration) and reboot"},
		"Debian":           {"ID=debian\n", "(in the boot loader's configuration)"},
		"Talos":            {"NAME=\"Talos\"\nID=talos\nVERSION_ID=v1.11.0\n", "customization.extraKernelArgs"},
		"Bottlerocket":     {"ID=bottlerocket\n", `"ib_core.netns_mode" = ["0"]`},
		"RHEL CoreOS":      {"ID=\"rhel\"\nVARIANT_ID=\"coreos\"\n", "kernelArguments of a MachineConfig"},
		"earlier":          {"ID='rhcos'\n", "kernelArguments of a MachineConfig"},
		"Fedora CoreOS":    {"ID=fedora\nVARIANT_ID=coreos\n", "rpm-ostree kargs --append=ib_core.netns_mode=0"},
		"Flatcar":          {"ID=flatcar\n", `set linux_append="$linux_append ib_core.netns_mode=0"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := node(t, nil)
			inMemory(t, b, false, map[string]string{"/etc/os-release": c.release})
			written, err := b.set(rdma.Exclusive)
			if written || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "read-only on this node") {
				t.Errorf("%v, %v", written, err)
			}
			if c := b.Change(rdma.Exclusive, true, false); c.AtBoot || c.Written || c.AtBootErr == nil {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestOnAReadOnlyNodeTheCommandLineIsEnough(t *testing.T) {
	need.Root(t)
	b := node(t, map[string]string{"/proc/cmdline": "quiet ib_core.netns_mode=0\n"})
	inMemory(t, b, false, nil)
	if c := b.Change(rdma.Exclusive, true, false); c != (Change{AtBoot: true}) {
		t.Errorf("%+v", c)
	}
	if c := b.Change(rdma.Shared, true, false); c.AtBoot || c.AtBootErr == nil || !strings.Contains(c.AtBootErr.Error(), "/proc/cmdline sets netns_mode=0") {
		t.Errorf("%+v", c)
	}
}

// Bottlerocket and RHEL CoreOS, after a user has followed the instruction of ByArgument.
func TestWhereAFileIsInVainTheCommandLineIsEnough(t *testing.T) {
	need.Root(t)
	for name, release := range map[string]string{"in memory": "ID=bottlerocket\n", "an image": "ID=rhcos\n"} {
		b := node(t, map[string]string{"/proc/cmdline": "quiet ib_core.netns_mode=0\n", "/usr/lib/os-release": release})
		if name == "in memory" {
			inMemory(t, b, true, nil)
		}
		if c := b.Change(rdma.Exclusive, true, false); c != (Change{AtBoot: true}) {
			t.Errorf("%s: %+v", name, c)
		}
		if c := b.Change(rdma.Shared, true, false); c.AtBoot || c.AtBootErr == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestAFileInMemoryIsKnown(t *testing.T) {
	need.Root(t)
	b := node(t, nil)
	inMemory(t, b, true, nil)
	if written, err := b.set(rdma.Exclusive); err != nil || !written || !b.Volatile() {
		t.Errorf("%v, %v, in memory: %v", written, err, b.Volatile())
	}
}

func TestAnImageHasItsOwnInitramfs(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"Debian":      {map[string]string{"/etc/os-release": "ID=debian"}, false},
		"Silverblue":  {map[string]string{"/etc/os-release": "ID=fedora", "/run/ostree-booted": ""}, true},
		"RHEL CoreOS": {map[string]string{"/usr/lib/os-release": "ID=rhcos"}, true},
	} {
		c.files["/usr/bin/dracut"] = ""
		b := node(t, c.files)
		if got := b.Immutable(); got != c.want || (b.RebuildInitramfs() == "") != c.want {
			t.Errorf("%s: %v, %q", name, got, b.RebuildInitramfs())
		}
	}
}
