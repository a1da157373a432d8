package plans_test

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// flood sends messages to every netlink socket in the namespace until stop is called,
// as a process of a pod can do.
func flood(t *testing.T, n *testnet.Netns) (stop func()) {
	t.Helper()
	var flooding sync.WaitGroup
	ended := make(chan struct{})
	flooding.Go(func() {
		_ = n.Do(func() error {
			for {
				select {
				case <-ended:
					return nil
				default:
					sendToAll()
				}
			}
		})
	})
	return func() { close(ended); flooding.Wait() }
}

// sendToAll sends one message to each netlink socket in the calling thread's
// namespace.
func sendToAll() {
	table, _ := os.ReadFile("/proc/thread-self/net/netlink")
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line) // address, family, port, …
		family, err := strconv.Atoi(fields[1])
		port, _ := strconv.ParseUint(fields[2], 10, 32)
		if err != nil || port == 0 {
			continue
		}
		s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
		if err != nil {
			continue
		}
		message := make([]byte, unix.SizeofNlMsghdr)
		message[0], message[4] = byte(len(message)), unix.NLMSG_NOOP
		_ = unix.Sendto(s, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: uint32(port)})
		_ = unix.Close(s)
	}
}

func TestPodCannotKeepNICBySendingToThePluginsSockets(t *testing.T) {
	t.Parallel()
	for plugin, config := range map[string]func(*bench, map[string]any) string{
		"host-device": (*bench).config, "macvlan": (*bench).macvlanConfig,
	} {
		t.Run(plugin, func(t *testing.T) {
			b := newBench(t)
			before := b.node.State()
			call := b.call("ADD", config(b, map[string]any{"ipam": localIPAM("10.77.0.0/24")}))
			stop := flood(t, b.pod)
			defer stop()
			for range 3 {
				b.node.MustRun(call)
				b.node.MustRun(call.With("DEL"))
			}
			b.untouched(before)
		})
	}
}
