package testnet

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/rail-cni/rail-cni/integration/scratch"
)

// Starting ip(8) takes longer than most of what it does here, ten times as long in the rig:
// what the tests do for each namespace and each look at it, they do themselves.

// shared has ip(8) make the directory of the namespaces' names, and a shared mount of it, so
// that a name which is removed here goes from other mount namespaces as well (ip-netns(8)).
var shared = sync.OnceValue(func() error {
	name, err := scratch.Name("first")
	if err != nil {
		return err
	}
	_, err = exec.Command("ip", "netns", "add", name).Output()
	return errors.Join(err, scratch.RemoveNetns(name))
})

// addNamed makes a network namespace with a name, as "ip netns add" does.
func addNamed(t testing.TB, name string) {
	t.Helper()
	if err := errors.Join(shared(), inThread(func() error {
		current, err := netns.Get()
		if err != nil {
			return err
		}
		defer current.Close()
		made, err := netns.NewNamed(name) // and this thread is in it
		if err == nil {
			err = made.Close()
		}
		return errors.Join(err, netns.Set(current))
	})); err != nil {
		t.Fatalf("make the network namespace %s: %v", name, err)
	}
}

// inThread runs f in a thread of its own while f runs. If f fails nothing else ever runs
// there: it may be in another namespace.
func inThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := f()
		if err == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// ipv6Address is an address of a link, as /proc/net/if_inet6 tells it.
type ipv6Address struct {
	address string // 32 hexadecimal digits
	index   uint32 // of the link
	name    string // of the link
	flags   uint64 // IFA_F_*
}

// ipv6Addresses returns the namespace's IPv6 addresses.
func (n *Netns) ipv6Addresses() (addresses []ipv6Address) {
	n.t.Helper()
	// net/ipv6/addrconf.c, if6_seq_show: address, index, prefix length, scope, flags, name
	for _, f := range n.procNet("if_inet6", 6) {
		index, _ := strconv.ParseUint(f[1], 16, 32)
		flags, _ := strconv.ParseUint(f[4], 16, 8)
		addresses = append(addresses, ipv6Address{f[0], uint32(index), f[5], flags})
	}
	return addresses
}

// procNet returns the lines of a file in /proc/net of the namespace, those that have so many
// fields.
func (n *Netns) procNet(file string, fields int) (lines [][]string) {
	n.t.Helper()
	err := n.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/" + file)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == fields {
				lines = append(lines, f)
			}
		}
		return err
	})
	if err != nil {
		n.t.Fatalf("%s of %s: %v", file, n.Name, err)
	}
	return lines
}
