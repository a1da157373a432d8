package without

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Every kernel has generic netlink, so this test always runs itself again.
func TestFamilyIsHiddenFromTheProcess(t *testing.T) {
	const inside = "RAIL_CNI_TEST_WITHOUT"
	if os.Getenv(inside) == "" {
		t.Setenv(inside, t.TempDir()+"/ran")
		if family(t, unix.NETLINK_GENERIC) {
			t.Fatal("this kernel has no generic netlink")
		}
		if _, err := os.Stat(os.Getenv(inside)); err != nil {
			t.Error("the test was not run again, or not as on a kernel without it")
		}
		return
	}
	if !family(t, unix.NETLINK_GENERIC) {
		t.Fatal("the family is there still")
	}
	if _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE); err != nil {
		t.Error("another family is gone:", err)
	}
	if err := os.WriteFile(os.Getenv(inside), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
