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
	"golang.org/x/sys/unix"

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
		own, err := netns.Get()
		if err != nil {
			return err
		}
		defer own.Close()
		made, err := netns.NewNamed(name) // and this thread is in it
		if err == nil {
			err = made.Close()
		}
		return errors.Join(err, netns.Set(own))
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

// ipv6Addresses reports whether a link with this name, or any link if it is empty, has a
// link-local address, and whether it has a tentative one.
func (n *Netns) ipv6Addresses(name string) (linkLocal, tentative bool) {
	n.t.Helper()
	err := n.Do(func() error {
		// net/ipv6/addrconf.c, if6_seq_show: address, index, prefix length, scope, flags, name
		text, err := os.ReadFile("/proc/thread-self/net/if_inet6")
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) != 6 || name != "" && f[5] != name {
				continue
			}
			linkLocal = linkLocal || f[3] == "20"
			flags, _ := strconv.ParseUint(f[4], 16, 8)
			tentative = tentative || flags&unix.IFA_F_TENTATIVE != 0
		}
		return err
	})
	if err != nil {
		n.t.Fatalf("the IPv6 addresses in %s: %v", n.Name, err)
	}
	return linkLocal, tentative
}
