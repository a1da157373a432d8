package link

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// OldestKernel is the oldest kernel that the tests boot, and the first long-term kernel
// with all that [CheckKernel] looks for.
const OldestKernel = "Linux 5.10"

// CheckKernel returns an error of kind NotAvailable if the running kernel lacks a
// feature without which a NIC cannot be lent and returned as promised. It looks for the
// features: the version in a vendor's release ("4.18.0-553.el8_10.x86_64") does not
// tell which of them were added. If it cannot find out, the kernel is accepted.
func CheckKernel(n *netns.Netns) error {
	err := mountAPI()
	if err == nil && !KernelAtLeast(5, 14) {
		err = permanentMACs(n, unix.IFLA_PERM_ADDRESS)
	}
	if err == nil {
		return nil
	}
	return failure.From(err, failure.NotAvailable, "%s is too old for rail-cni", release()).Cure("boot " + OldestKernel + " or newer")
}

// mountAPI looks for fsopen(2), Linux 5.2. Without it the sysfs of a pod's namespace
// cannot be read: neither parent devices nor RDMA devices, nor what a pod set on its
// NIC.
func mountAPI() error {
	config, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("it cannot mount the sysfs of a network namespace (fsopen: %w)", err)
	}
	if err == nil {
		_ = unix.Close(config)
	}
	return nil // another error is not about the version
}

// permanentMACs looks for IFLA_PERM_ADDRESS, Linux 5.6: the kernel refuses a request
// that has the attribute (NLA_REJECT of ifla_policy), and an older kernel ignores it.
// Without it a NIC that a pod renamed, and gave another MAC, is not known any more.
//
// It is asked only of kernels before 5.14, whose policy is known: a later kernel that
// no longer refuses the request must not pass for an old one. A vendor's kernel with a
// lower number is asked as well, and has the answer of its features.
func permanentMACs(n *netns.Netns, attribute int) error {
	refused, err := refuses(n, attribute, make([]byte, 6))
	if err != nil || refused {
		return nil
	}
	return errors.New("it does not report the permanent MAC of a NIC (IFLA_PERM_ADDRESS)")
}

// KernelAtLeast reports whether the release of the running kernel is this version or a later one.
// It returns false for a vendor's older kernel that has the features of that version, and
// for a release that is not a version.
func KernelAtLeast(major, minor int) bool {
	v := version()
	return v.major > major || v.major == major && v.minor >= minor
}

// version is the version in the release of the running kernel, zero if there is none.
var version = sync.OnceValue(func() (v struct{ major, minor int }) {
	_, text, _ := strings.Cut(release(), " ")
	if _, err := fmt.Sscanf(text, "%d.%d", &v.major, &v.minor); err != nil {
		v.major = 0
	}
	return v
})

// release returns the name and release of the running kernel.
func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "this kernel"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}
