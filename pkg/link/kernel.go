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

// OldestKernel is the oldest kernel that the tests boot. It is the first long-term kernel with
// everything that [CheckKernel] looks for.
const OldestKernel = "Linux 5.10"

// CheckKernel returns an error of kind NotAvailable if the running kernel lacks a feature without
// which a NIC cannot be lent and returned as promised. It tests for the features themselves,
// because the version in a vendor's release ("4.18.0-553.el8_10.x86_64") does not tell which
// features the vendor added. If CheckKernel cannot find out, it returns nil.
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

// mountAPI tests for fsopen(2), which Linux 5.2 added. Without it nobody can read the sysfs of a
// pod's namespace, which shows the parent devices, the RDMA devices and what a pod set on its NIC.
func mountAPI() error {
	config, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("the kernel cannot mount the sysfs of a network namespace (fsopen: %w)", err)
	}
	if err == nil {
		_ = unix.Close(config)
	}
	return nil // any other error has nothing to do with the version
}

// permanentMACs tests for IFLA_PERM_ADDRESS, which Linux 5.6 added: a kernel that knows the
// attribute refuses a request that has it (NLA_REJECT of ifla_policy), and an older kernel ignores
// the attribute. Without this attribute rail-cni cannot recognize a NIC that a pod has renamed and
// given another MAC.
//
// CheckKernel asks only kernels whose version is below 5.14, because their policy is known: a later
// kernel that no longer refuses the request must not be taken for an old one. A vendor's kernel
// with a lower version is asked as well, and its answer depends on its features.
func permanentMACs(n *netns.Netns, attribute int) error {
	refused, err := refuses(n, attribute, make([]byte, 6))
	if err != nil || refused {
		return nil
	}
	return errors.New("the kernel does not report the permanent MAC of a NIC (IFLA_PERM_ADDRESS)")
}

// KernelAtLeast reports whether the running kernel has at least this version, judging by its
// release. It returns false for a vendor's older kernel even if that kernel has the features of the
// version, and for a release that is not a version.
func KernelAtLeast(major, minor int) bool {
	v := version()
	return v.major > major || v.major == major && v.minor >= minor
}

// version is the version in the release of the running kernel, or zero if the release has none.
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
