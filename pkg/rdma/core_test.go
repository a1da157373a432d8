package rdma

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/without"
	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestAKernelWithoutRDMASaysSo(t *testing.T) {
	need.Root(t)
	if !without.RDMA(t) {
		return
	}
	c, err := Open(current(t))
	if !errors.Is(err, ErrNoRDMA) {
		t.Fatalf("%v, %v", c, err)
	}
	if !strings.Contains(err.Error(), "ib_core") {
		t.Errorf("the text does not name the module: %v", err)
	}
	c.Close() // of nil: for "defer c.Close()" before the error is checked
}

func TestRefusedMovesSayWhy(t *testing.T) {
	d := Device{Name: "mlx5_0"}
	for _, c := range []struct {
		errno unix.Errno
		mode  Mode
		is    error
		text  string
	}{
		{unix.EOPNOTSUPP, Shared, ErrShared, "move RDMA device mlx5_0 from netns host to netns pod: RDMA is in shared mode"},
		{unix.EOPNOTSUPP, Shared, unix.EOPNOTSUPP, "options ib_core netns_mode=0"},
		{unix.EOPNOTSUPP, Exclusive, ErrImmovable, "its driver does not support"},
		{unix.EINVAL, Exclusive, ErrNotFound, "the device left netns host meanwhile"},
		{unix.ENODEV, Exclusive, ErrNotFound, "try again"},
		{unix.EBUSY, Exclusive, unix.EBUSY, "the device is being set up or removed"},
		{unix.EPERM, Exclusive, unix.EPERM, "CAP_NET_ADMIN"},
		{unix.ENOMEM, Exclusive, unix.ENOMEM, "cannot allocate memory"},
	} {
		err := moveError(c.errno, c.mode, d, "host", "pod")
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) || failure.KindOf(err) != failure.Kernel {
			t.Errorf("%v in %s mode: %v", c.errno, c.mode, err)
		}
	}
}

func TestRefusedModesSayWhy(t *testing.T) {
	for mode, option := range map[Mode]string{Exclusive: "netns_mode=0", Shared: "netns_mode=1"} {
		err := setModeError(unix.EBUSY, mode)
		if !errors.Is(err, ErrOtherNetns) || !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), option) {
			t.Errorf("%v", err)
		}
	}
	if err := setModeError(nil, Shared); err != nil {
		t.Errorf("%v", err)
	}
	if err := setModeError(unix.EPERM, Shared); !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("%v", err)
	}
	c := offline(t, nil, t.TempDir())
	if err := c.SetMode("private"); failure.KindOf(err) != failure.InvalidConfig {
		t.Errorf("%v", err)
	}
}

func TestAChangedNumberNamesItsHolder(t *testing.T) {
	for holder, want := range map[string]string{"mlx5_4": "a device named mlx5_4 in its own netns has uverbs4 now", "": "no device has uverbs4 now"} {
		err := error(&UverbsChanged{Device: "mlx5_4", Before: 4, After: 6, Holder: holder})
		var typed *UverbsChanged
		if !errors.As(fmt.Errorf("ADD: %w", err), &typed) || !strings.Contains(err.Error(), "and is uverbs6 now") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}

func TestNumbersOfCharDevices(t *testing.T) {
	for name, want := range map[string]int{"uverbs0": 0, "uverbs12": 12, "umad3": 3, "rdma_cm": -1, "abi_version": -1, "": -1, "uverbs": -1, "uverbs1x": -1} {
		if got := (CharDev{Name: name}).number(); got != want {
			t.Errorf("%q: %d", name, got)
		}
	}
}
