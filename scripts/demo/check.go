package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// seen is an interface as ip(8) shows it.
type seen struct {
	Ifname    string
	Mtu       int
	Flags     []string
	Operstate string
	Altnames  []string
	AddrInfo  []seenAddress `json:"addr_info"`
}

type seenAddress struct {
	Family, Local, Broadcast, Scope string
	Prefixlen                       int
}

// ipv4 returns the IPv4 addresses.
func (s seen) ipv4() []seenAddress {
	return slices.DeleteFunc(slices.Clone(s.AddrInfo), func(a seenAddress) bool { return a.Family != "inet" })
}

// interfaces reads all interfaces of a namespace.
func interfaces(netns string) ([]seen, error) {
	var list []seen
	return list, ipJSON(netns, &list, "address", "show")
}

// expected is what a pod's interface must be.
type expected struct {
	ifname, altname string // altname is "" if none is wanted
	address         string
	broadcast       string
}

// check compares an interface with the expected one, and names every
// difference.
func (e expected) check(list []seen) error {
	i := slices.IndexFunc(list, func(s seen) bool { return s.Ifname == e.ifname })
	if i < 0 {
		return fmt.Errorf("%s does not exist", e.ifname)
	}
	s := list[i]
	var errs []error
	wrong := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(e.ifname+": "+format, args...))
		}
	}
	wrong(s.Mtu == jumbo, "MTU is %d, not the NIC's %d", s.Mtu, jumbo)
	for _, flag := range []string{"UP", "LOWER_UP", "BROADCAST", "MULTICAST"} {
		wrong(slices.Contains(s.Flags, flag), "lacks the flag %s (has %v)", flag, s.Flags)
	}
	wrong(e.altname == "" || slices.Contains(s.Altnames, e.altname), "altname %s is lost (has %v)", e.altname, s.Altnames)
	addresses := s.ipv4()
	if len(addresses) != 1 {
		wrong(false, "has the addresses %v, not %s alone", addresses, e.address)
		return errors.Join(errs...)
	}
	a := addresses[0]
	have := fmt.Sprintf("%s/%d", a.Local, a.Prefixlen)
	wrong(have == e.address, "address is %s, not %s", have, e.address)
	wrong(a.Broadcast == e.broadcast, "broadcast is %q, not %s", a.Broadcast, e.broadcast)
	wrong(a.Scope == "global", "scope is %s, not global", a.Scope)
	return errors.Join(errs...)
}

// checkAway fails if the node still has one of the rails.
func checkAway(node string) error {
	list, err := interfaces(node)
	if err != nil {
		return err
	}
	for _, s := range list {
		if slices.ContainsFunc(rails, func(r rail) bool { return r.name == s.Ifname || slices.Contains(s.Altnames, r.altname) }) {
			return fmt.Errorf("%s still has %s, which should be in the pod", node, s.Ifname)
		}
	}
	return nil
}

// checkResult compares a plugin's result with the pod's interface.
func (e expected) checkResult(r *result, gateway, sandbox string) error {
	if len(r.IPs) != 1 || r.IPs[0].Address != e.address || r.IPs[0].Gateway != gateway {
		return fmt.Errorf("%s: the result's addresses are %+v, not %s with gateway %q", e.ifname, r.IPs, e.address, gateway)
	}
	if len(r.Interfaces) != 1 || r.Interfaces[0].Name != e.ifname || r.Interfaces[0].Sandbox != sandbox {
		return fmt.Errorf("%s: the result's interfaces are %+v, not %s in %s alone", e.ifname, r.Interfaces, e.ifname, sandbox)
	}
	return nil
}

// flow is one direction in which two pods must reach each other.
type flow struct {
	from    pod
	ifname  string
	address string
}

// pingPayload fills a frame of 9000 bytes: less 20 of IPv4 and 8 of ICMP.
const pingPayload = jumbo - 20 - 8

// pingAll sends jumbo frames, which must not be fragmented, along all flows
// concurrently.
func pingAll(flows []flow) error {
	errs := make([]error, len(flows))
	var wait sync.WaitGroup
	for i, f := range flows {
		wait.Go(func() {
			_, errs[i] = run(inNetns(f.from.name, "ping", "-q", "-n", "-c", "2", "-i", "0.2", "-W", "3",
				"-M", "do", "-s", fmt.Sprint(pingPayload), "-I", f.ifname, f.address)...)
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// checkNothingHeld fails if the state directory still has a file of a
// container: a loan, an address or a lock.
func checkNothingHeld() error {
	var held []string
	err := filepath.WalkDir("/run/rail-cni", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) { // a dangling link
			err = nil
		}
		if strings.Contains(path, "cnitool-") || strings.Contains(string(data), "cnitool-") {
			held = append(held, path)
		}
		return err
	})
	if err == nil && len(held) > 0 {
		err = fmt.Errorf("still held after everything was detached:\n%s", strings.Join(held, "\n"))
	}
	return err
}
