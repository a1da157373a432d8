package bootmode

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// ByArgument returns the instruction for setting the mode by [rdma.Argument] on this node, which is
// a cure for an error.
func (b Boot) ByArgument(m rdma.Mode) string {
	how, known := argumentOn[b.system()]
	if !known {
		how = func(rdma.Mode) string { return "in the boot loader's configuration" }
	}
	return fmt.Sprintf("give the kernel the argument %s (%s) and reboot", rdma.Argument(m), how(m))
}

// argumentOn returns where an immutable operating system takes a kernel argument from. The key is
// the result of [Boot.system]. Sources:
//
//   - Talos: siderolabs/talos#10519, #11145: since 1.10 a new installation boots
//     by systemd-boot, which ignores machine.install.extraKernelArgs
//   - Bottlerocket: bottlerocket.dev/en/os/latest/api/settings/boot
//   - RHEL CoreOS: the field kernelArguments of OpenShift's MachineConfig
//   - Fedora CoreOS: docs.fedoraproject.org/en-US/fedora-coreos/kernel-args
//   - Flatcar: flatcar.org/docs/latest/setup/customization/other-settings
var argumentOn = map[string]func(rdma.Mode) string{
	"talos": func(rdma.Mode) string {
		return "customization.extraKernelArgs of the Image Factory's schematic, and an upgrade to that image; if Talos boots by GRUB, machine.install.extraKernelArgs and an upgrade"
	},
	"bottlerocket": func(m rdma.Mode) string {
		return fmt.Sprintf(`settings.boot.kernel-parameters: "ib_core.netns_mode" = ["%d"], with settings.boot.reboot-to-reconcile = true`, m.Parameter())
	},
	"rhcos": func(rdma.Mode) string { return "kernelArguments of a MachineConfig" },
	"fedora-coreos": func(m rdma.Mode) string {
		return "rpm-ostree kargs --append=" + rdma.Argument(m)
	},
	"flatcar": func(m rdma.Mode) string {
		return fmt.Sprintf(`set linux_append="$linux_append %s" in grub.cfg of the OEM partition`, rdma.Argument(m))
	},
}

// Immutable reports whether the node's initramfs is part of an image that the node does not change.
// That is so on an ostree system, and on a system in argumentOn.
func (b Boot) Immutable() bool {
	if _, known := argumentOn[b.system()]; known {
		return true
	}
	_, err := os.Stat(b.path("/run/ostree-booted")) // ostree-booted(7)
	return err == nil
}

// Volatile reports whether the directory of [File] is in memory, so that a reboot removes the file
// (Bottlerocket, nodes without disks).
func (b Boot) Volatile() bool {
	for dir := filepath.Dir(b.path(File)); ; dir = filepath.Dir(dir) {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err == nil {
			return fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

// byArgument reports whether the mode comes from the kernel's command line.
func (m State) byArgument() bool {
	n := len(m.Settings)
	return n > 0 && m.Settings[n-1].File == commandLine
}

// system returns the node's ID from os-release(5), or "" if there is none. For a CoreOS variant it
// returns the key of the variant in [argumentOn].
func (b Boot) system() string {
	var text []byte
	for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		var err error
		if text, err = os.ReadFile(b.path(file)); err == nil {
			break
		}
	}
	values := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		key, value, _ := strings.Cut(strings.TrimSpace(s.Text()), "=")
		values[key] = strings.Trim(value, `"'`)
	}
	switch id := values["ID"]; {
	case values["VARIANT_ID"] != "coreos":
		return id
	case id == "fedora":
		return "fedora-coreos"
	default:
		return "rhcos" // the ID of RHEL CoreOS is rhel since OpenShift 4.19 (kubernetes-sigs/blob-csi-driver#2192)
	}
}
