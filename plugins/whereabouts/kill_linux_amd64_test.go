package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// changes are the system calls that can alter the state directory. Killing a
// process when it enters each of them in turn leaves every state that a kill
// at any instant can leave.
func changes(regs *syscall.PtraceRegs) bool {
	switch regs.Orig_rax {
	case unix.SYS_OPENAT:
		return regs.R10 != 0 || regs.Rdx&(unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_RDWR) != 0
	case unix.SYS_MKDIRAT, unix.SYS_SYMLINKAT, unix.SYS_LINKAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2,
		unix.SYS_FTRUNCATE, unix.SYS_PWRITE64, unix.SYS_FCHMODAT, unix.SYS_FLOCK:
		return true
	case unix.SYS_WRITE:
		return regs.Rdi > 2 // not the answer itself
	}
	return false
}

// runKilled runs the plugin and kills it when it enters its nth changing
// system call. It says whether that happened before it ended by itself.
func runKilled(t *testing.T, env []string, stdin string, nth int) bool {
	t.Helper()
	// Only the thread that began a trace may go on with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	in, err := os.CreateTemp(t.TempDir(), "stdin")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := in.WriteString(stdin); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env, cmd.Stdin = env, in
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	const options = syscall.PTRACE_O_TRACESYSGOOD | syscall.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(pid, options); err != nil {
		t.Fatal(err)
	}
	if err := syscall.PtraceSyscall(pid, 0); err != nil {
		t.Fatal(err)
	}
	return followUntil(t, pid, nth)
}

// followUntil lets the threads of pid run from system call to system call.
func followUntil(t *testing.T, pid, nth int) bool {
	t.Helper()
	inside := map[int]bool{} // thread → is in a system call
	seen, killed := 0, false
	for {
		var status syscall.WaitStatus
		tid, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
		if err != nil {
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			t.Fatal(err)
		}
		if status.Exited() || status.Signaled() {
			if tid == pid {
				return killed
			}
			continue
		}
		deliver := 0
		switch sig := status.StopSignal(); {
		case sig == syscall.SIGTRAP|0x80:
			inside[tid] = !inside[tid]
			var regs syscall.PtraceRegs
			if inside[tid] && !killed && syscall.PtraceGetRegs(tid, &regs) == nil && changes(&regs) {
				if seen++; seen == nth {
					killed = true
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
					continue
				}
			}
		case sig != syscall.SIGTRAP && sig != syscall.SIGSTOP:
			deliver = int(sig)
		}
		// The thread may be gone already: that is what the next wait is for.
		_ = syscall.PtraceSyscall(tid, deliver)
	}
}

// TestKilledAtEachSystemCall kills ADD and DEL at each step. Whatever comes
// next, no address has two holders, and after the last DEL nothing is left.
func TestKilledAtEachSystemCall(t *testing.T) {
	const pod = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"
	was := attachment{id: "was", ifname: "net1", args: pod}
	a := attachment{id: "a", ifname: "net1", args: pod}
	const ipam = `{"range":"10.0.0.0/24","store":"local"}`
	const other = `{"range":"10.0.0.0/16","store":"local"}` // overlaps
	for _, tc := range []struct {
		name   string
		before func(n *node)
		verb   string
		then   []string // verbs of a
	}{
		{"first ADD then DEL", nil, "ADD", []string{"DEL"}},
		{"first ADD then ADD", nil, "ADD", []string{"ADD", "DEL"}},
		{"ADD in a used pool then DEL", func(n *node) {
			other := attachment{id: "x", ifname: "net1"}
			n.add(other, n.config(ipam))
			n.del(other, n.config(ipam))
		}, "ADD", []string{"DEL"}},
		{"ADD of a new container then DEL", func(n *node) { n.add(was, n.config(ipam)) }, "ADD", []string{"DEL"}},
		{"ADD of a new container then ADD", func(n *node) { n.add(was, n.config(ipam)) }, "ADD", []string{"ADD", "DEL"}},
		{"DEL then DEL", func(n *node) { n.add(a, n.config(ipam)) }, "DEL", []string{"DEL"}},
		{"DEL then ADD", func(n *node) { n.add(a, n.config(ipam)) }, "DEL", []string{"ADD", "DEL"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			steps := 0
			for nth := 1; ; nth++ {
				n := newNode(t)
				if tc.before != nil {
					tc.before(n)
				}
				if !runKilled(t, a.env(tc.verb), n.config(ipam), nth) {
					break
				}
				steps++
				when := fmt.Sprintf("killed at change %d: ", nth)
				held := map[string]string{}
				note := func(who attachment, config string) {
					addr, _, _ := strings.Cut(addresses(t, n.add(who, config))[0], "/")
					if other, taken := held[addr]; taken && other != who.id {
						t.Errorf("%s%s and %s both have %s", when, other, who.id, addr)
					}
					held[addr] = who.id
				}
				b, c := attachment{id: "b", ifname: "net1"}, attachment{id: "c", ifname: "net1"}
				note(b, n.config(other))
				for _, verb := range tc.then {
					if verb == "ADD" {
						note(a, n.config(ipam))
						note(c, n.config(ipam))
						note(b, n.config(other))
						continue
					}
					n.del(a, n.config(ipam))
				}
				n.del(was, n.config(ipam))
				n.del(b, n.config(other))
				n.del(c, n.config(ipam))
				n.settle(n.config(ipam), n.config(other))
				n.checkEmpty(when)
				if t.Failed() {
					return
				}
			}
			t.Logf("killed at each of %d steps", steps)
			if steps < 5 {
				t.Errorf("%s was killed only %d times", tc.verb, steps)
			}
		})
	}
}
