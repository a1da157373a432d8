package netns_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// ports returns the ports of a netlink family in the calling thread's namespace, except
// the kernel's.
func ports(t *testing.T, family int) (found []uint32) {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line) // address, family, port, …
		port, err := strconv.ParseUint(fields[2], 10, 32)
		if err == nil && port != 0 && fields[1] == strconv.Itoa(family) {
			found = append(found, uint32(port))
		}
	}
	return found
}

// A process of a pod that sends to the port of a plugin's socket must not make
// its requests fail.
func TestOnlyTheKernelCanSendToTheSocketsOfANetns(t *testing.T) {
	made := testnet.NewNetns(t, "n")
	made.IP("link", "add", "nic", "type", "ifb")
	n, err := netns.Open("/run/netns/" + made.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	l, err := link.ByName(n, "nic")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.Read(n, l); err != nil { // opens generic netlink
		t.Fatal(err)
	}
	for _, family := range []int{unix.NETLINK_ROUTE, unix.NETLINK_GENERIC} {
		made.Inside(func() {
			open := ports(t, family)
			if len(open) == 0 {
				t.Errorf("family %d: no socket of the netns is found", family)
			}
			s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(s)
			for _, port := range open {
				message := make([]byte, unix.SizeofNlMsghdr)
				message[0], message[4] = byte(len(message)), unix.NLMSG_NOOP
				err := unix.Sendto(s, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("family %d: sent to port %d (%v)", family, port, err)
				}
			}
		})
	}
	if err := link.SetUp(n, l.Index); err != nil {
		t.Error(err)
	}
	if _, err := link.Addresses(n, l.Index); err != nil {
		t.Error(err)
	}
}
