package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outcome is what the guest prints on its stdout, for the host.
type outcome struct {
	Machine  about              `json:"machine"`
	Results  map[string]*result `json:"results"`
	Failures map[string]string  `json:"failures"` // why a result has no figures
	Traffic  *traffic           `json:"traffic"`
}

// benchInRig runs this program in the rig, and reports.
func benchInRig(o options) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	before, err := loadAverage()
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "measuring with RDMA in the virtual machine, %d rounds in each mode: a few minutes …\n", o.rounds)
	cmd := exec.Command(o.rig, self, "-guest", fmt.Sprintf("-rounds=%d", o.rounds), fmt.Sprintf("-settle=%v", o.settle))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	// Without KVM everywhere, so that tables of several machines can be compared.
	cmd.Env = append(os.Environ(), "RAIL_CNI_BIN="+o.bin, "RAIL_CNI_PEERS="+o.peers, "RIG_ACCEL=tcg")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGTERM}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("in the rig: %w", err)
	}
	var found outcome
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		return fmt.Errorf("what the guest printed: %w: %s", err, out.Bytes())
	}
	a := found.Machine
	// The guest has no other load.
	a.LoadBefore = before
	if a.LoadAfter, err = loadAverage(); err != nil {
		return err
	}
	a.Label, a.Rounds = o.label, o.rounds
	if a.Against, err = against("%s and %s", o.peers, "host-device", "rdma"); err != nil {
		return err
	}
	a.State = "IN EMULATION: a virtual machine without KVM, NICs and RDMA devices of the rig's own driver;\n" +
		"no time here is that of a real machine, only ratios mean something. What a process computes counts for more than\n" +
		"elsewhere, and what the kernel waits for counts for less: nearly all of the floor is ip(8) and rdma(8), which load\n" +
		"shared libraries. State of all plugins on tmpfs (no fsync)"
	m := &measurement{results: found.Results, traffic: found.Traffic}
	for id, why := range found.Failures {
		m.results[id].Err = errors.New(why)
	}
	var list []*contender
	for _, mode := range []string{modeExclusive, modeShared} {
		list = append(list, rdmaContenders(places{}, mode)...)
	}
	list = append(list, ipoibContenders(places{})...)
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return newReport(a, list, nil, m).publish(o.out, "rdma")
}

// guest measures, inside the rig's machine, which is the node as it is.
func guest(o options) error {
	a, err := machine()
	if err != nil {
		return err
	}
	p := places{state: "/run/rail-cni", bin: os.Getenv("RAIL_CNI_BIN"), peers: os.Getenv("RAIL_CNI_PEERS")}
	for name, path := range map[string]*string{"ip": &p.ip, "rdma": &p.rdma} {
		if *path, err = exec.LookPath(name); err != nil {
			return err
		}
	}
	if err := nameOwnNetns(nodeName); err != nil {
		return err
	}
	s, err := newScratch("/run")
	if err != nil {
		return err
	}
	found := outcome{Results: map[string]*result{}, Failures: map[string]string{}}
	for _, mode := range []string{modeShared, modeExclusive} {
		err := setMode(mode)
		if err == nil {
			err = found.measure(s, rdmaContenders(p, mode), pace{o.rounds, o.settle, printsProgress(mode+" mode", o.rounds)})
		}
		if err != nil {
			return fmt.Errorf("%s mode: %w", mode, err)
		}
	}
	fmt.Fprintln(os.Stderr, "  RDMA traffic …")
	found.Traffic = measureTraffic(p, s)
	manager, err := fabric("/run")
	if err == nil {
		defer manager.Kill()
		err = found.measure(s, ipoibContenders(p), pace{o.rounds, o.settle, printsProgress("InfiniBand", o.rounds)})
	}
	if err != nil {
		return fmt.Errorf("InfiniBand: %w", err)
	}
	for id, r := range found.Results {
		if r.Err != nil {
			found.Failures[id] = r.Err.Error()
		}
	}
	found.Machine = a
	return json.NewEncoder(os.Stdout).Encode(found)
}

// measure measures contenders that have the rig's NICs as they are now.
func (o *outcome) measure(s *scratch, list []*contender, p pace) error {
	names := []string{"default"}
	for _, c := range list {
		names = append(names, c.nic)
	}
	for _, name := range names { // see enterNode
		if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "accept_dad"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if err := addPods(list); err != nil {
		return err
	}
	maps.Copy(o.Results, run(s, list, nil, p).results)
	for _, c := range list {
		if err := ip("netns", "delete", c.pod); err != nil {
			return err
		}
	}
	return nil
}

// setMode changes the mode of the RDMA core. The kernel refuses until the last
// other namespace is gone, which takes some time.
func setMode(mode string) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.Command("rdma", "system", "set", "netns", mode).CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("rdma system set netns %s: %w: %s", mode, err, bytes.TrimSpace(out))
		}
	}
}

// printsProgress returns a function that prints the progress now and then.
func printsProgress(what string, rounds int) func(int) {
	return func(round int) {
		if round%5 == 0 && round > 0 {
			fmt.Fprintf(os.Stderr, "  %s: round %d of %d\n", what, round, rounds)
		}
	}
}
