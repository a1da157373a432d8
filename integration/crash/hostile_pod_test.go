package crash

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/crash/attacker"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// hostile is a pod in which an attacker lives.
type hostile struct {
	l    *lab
	r    *rand.Rand
	id   string
	pod  *testnet.Netns
	cmd  *exec.Cmd
	said bytes.Buffer // its standard error
	over chan struct{}
	dead bool // died before its time, see die

	mu   sync.Mutex
	last []string // its attacks
	done []string // what was done to it
	has  []*attachment
}

// remembered is how many of its last attacks a violation prints.
const remembered = 40

// note records an action on the pod.
func (h *hostile) note(format string, args ...any) { h.remember(&h.done, fmt.Sprintf(format, args...)) }

func (h *hostile) remember(list *[]string, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*list = append(*list, fmt.Sprintf("%s %s: %s", time.Now().Format(clock), h.id, what))
	*list = (*list)[max(0, len(*list)-remembered):]
}

func (h *hostile) history() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(slices.Values(slices.Concat(h.last, h.done)))
}

// attack is the life of a hostile pod: it gets NICs and macvlans, loses one and
// gets another while it attacks them, and ends in one of the ways of pods.
func (l *lab) attack(worker uint64, number int) {
	h := &hostile{l: l, r: rand.New(rand.NewPCG(seed, worker+1+uint64(number)<<16)), id: fmt.Sprintf("hostile%d-%d", worker, number), over: make(chan struct{})}
	h.start(attacker.Plan{Seed: h.r.Uint64(), Plain: l.plain, Only: os.Getenv(hostileOnlyVar), Hardware: l.rdma})
	l.count("hostile pods", 1)
	always := func() bool { return true }
	for i := range 2 + h.r.IntN(3) {
		if h.dead {
			break
		}
		h.lend(fmt.Sprint("net", i+1), i)
		pause(h.r, 300*time.Millisecond, always)
	}
	for range h.r.IntN(3) {
		pause(h.r, 2*time.Second, always)
		if len(h.has) > 0 {
			h.detach(h.r.IntN(len(h.has)))
		}
		if h.dead {
			break
		}
		h.lend(fmt.Sprint("net", 8+h.r.IntN(10)), h.r.IntN(2))
	}
	if !h.dead {
		pause(h.r, 2*time.Second, always)
	}
	h.end()
}

// start starts the attacker: in a pod that the test makes, or in one that the
// attacker makes with its user namespace.
func (h *hostile) start(p attacker.Plan) {
	l := h.l
	h.cmd = exec.Command("/proc/self/exe")
	h.cmd.Env = append(os.Environ(), p.Environment())
	h.cmd.Stderr = &h.said
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if p.Plain {
		h.pod = l.newPod()
		err = h.pod.Do(h.cmd.Start)
	} else {
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
		h.cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNET
		h.cmd.SysProcAttr.UidMappings, h.cmd.SysProcAttr.GidMappings = ids, ids
		h.cmd.SysProcAttr.Credential = &syscall.Credential{}
		err = h.cmd.Start()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		l.t.Fatalf("the attacker did not begin: %v: %s", h.cmd.Wait(), h.said.Bytes())
	}
	if !p.Plain {
		h.pod = testnet.OfProcess(l.t, h.cmd.Process.Pid)
		h.pod.IP("link", "set", "lo", "up")
	}
	go func() {
		defer close(h.over)
		for lines.Scan() {
			var d attacker.Done
			if json.Unmarshal(lines.Bytes(), &d) == nil {
				h.did(d)
			}
		}
	}()
}

func (h *hostile) did(d attacker.Done) {
	h.remember(&h.last, fmt.Sprintf("%s on %s: %s", d.Attack, d.Link, d.Err))
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	if d.Err == "" {
		h.l.succeeded[d.Attack]++
	} else if !strings.Contains(h.l.refused[d.Attack], unix.EOPNOTSUPP.Error()) { // an exhausted netns has other reasons
		h.l.refused[d.Attack] = d.Err
	}
}

// kill ends all processes of the pod.
func (h *hostile) kill() {
	_ = h.cmd.Process.Kill() // it may have ended
	<-h.over
	err := h.cmd.Wait()
	if status, is := h.cmd.ProcessState.Sys().(syscall.WaitStatus); !is || !status.Signaled() {
		h.l.violation(h.history(), "the attacker ended by itself: %v: %s", err, h.said.Bytes())
	}
	h.note("killed")
}

// die ends the pod as a runtime does, with its processes and its namespace: links that
// it put on a NIC, and kept elsewhere during the DEL, may be back in there.
func (h *hostile) die() {
	if h.dead {
		return
	}
	h.dead = true
	h.kill()
	h.l.killNetns(h.pod)
}

// lend has the plugin attach a NIC, or a macvlan, while the attacker watches.
// The ADD may fail; after a DEL it must then leave nothing.
func (h *hostile) lend(ifName string, kind int) {
	nic, ok := modelNICs-1-h.r.IntN(masters), true
	if kind%2 == 0 {
		nic, ok = h.l.take(h.r)
	}
	if !ok {
		return
	}
	for _, a := range h.has {
		if a.IfName == ifName {
			ifName += "b"
		}
	}
	a := h.l.newAttachment(h.id, ifName, nic)
	a.pod, a.history = h.pod, h.history
	h.l.admit(a)
	err := h.l.add(a)
	h.note("ADD of %s: %v", a, err)
	h.has = append(h.has, a)
	if err != nil {
		h.l.count("ADDs that attackers broke", 1)
		h.detach(len(h.has) - 1)
		return
	}
	h.l.create(a, false)
}

// hindered is how long a living pod may delay a successful DEL.
const hindered = 5 * time.Second

// detach has the plugin end an attachment while the attacker lives. The
// attacker may hinder the DEL, but must not gain anything.
func (h *hostile) detach(i int) {
	a := h.has[i]
	for deadline := time.Now().Add(hindered); ; time.Sleep(50 * time.Millisecond) {
		err := h.l.del(a, a.path())
		h.note("DEL of %s: %v", a, err)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			h.l.count(fmt.Sprintf("DELs that attackers hindered for %v", hindered), 1)
			return
		}
	}
	if !h.l.rdma && !h.l.node.Has(h.l.name(a.nic)) {
		return // it is in a namespace within the pod's, or was destroyed with that
	}
	h.has = append(h.has[:i], h.has[i+1:]...)
	h.l.count("attackers' NICs that returned while they lived", 1)
	h.l.returned(a, h.die)
}

// end ends the pod, and checks that everything was returned.
func (h *hostile) end() {
	l := h.l
	defer l.dismiss(h.id)
	for _, a := range h.has {
		l.forget(a) // from here on any sweep may free it
	}
	path := "/run/netns/" + h.pod.Name
	switch how := h.r.IntN(4); {
	case h.dead:
		h.settle(path)
	case how == 0:
		h.note("end: its DELs come while it lives")
		for i := len(h.has) - 1; i >= 0 && !h.dead; i-- {
			h.detach(i)
		}
		if !h.dead {
			h.kill()
		}
		h.settle(path)
		if !h.dead {
			l.killNetns(h.pod)
		}
	case how == 1:
		h.note("end: it is killed, then its DELs come")
		h.kill()
		h.settle(path)
		l.killNetns(h.pod)
	case how == 2:
		h.note("end: it is killed, and its namespace ends")
		h.kill()
		l.killNetns(h.pod)
		h.settle(path)
	case how == 3:
		h.note("end: it is killed, and a socket keeps its namespace")
		held := h.socket()
		h.kill()
		h.pod.Kill()
		time.AfterFunc(time.Duration(h.r.IntN(2000))*time.Millisecond, func() {
			_ = unix.Close(held)
			l.netnsEnded(h.pod)
		})
		h.settle(path)
	}
	for _, a := range h.has {
		l.returned(a, nil)
	}
}

// socket opens a socket in the pod's namespace that outlives the pod, like one
// that was passed to another pod.
func (h *hostile) socket() (s int) {
	if err := h.pod.Do(func() (err error) {
		s, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		h.l.t.Fatal(err)
	}
	return s
}

// settle ends the attachments of a pod without processes: by DELs, by "railctl
// gc", or by waiting for an agent.
func (h *hostile) settle(path string) {
	l, how := h.l, h.r.IntN(4)
	for _, a := range h.has {
		var err error
		for deadline := time.Now().Add(l.long(patience)); l.recorded(a.Key); time.Sleep(100 * time.Millisecond) {
			_, statErr := os.Stat(path)
			switch late := time.Now().After(deadline.Add(-l.long(patience) / 2)); {
			case how == 0 && errors.Is(statErr, os.ErrNotExist) && !late && !l.unattended.Load():
				err = errors.New("nobody but an agent could have ended it") // or the ADD of an innocent pod
			case how == 1 && errors.Is(statErr, os.ErrNotExist):
				var out []byte
				if out, err = exec.Command(filepath.Join(testnet.Bin(l.t), "railctl"), "--state-dir", l.state, "gc").CombinedOutput(); err != nil {
					err = fmt.Errorf("railctl gc: %w: %s", err, out)
				}
			default:
				err = l.del(a, path)
				h.note("DEL of %s: %v", a, err)
			}
			if time.Now().After(deadline) {
				l.violation(h.history(), "%s has not ended %v after its pod: %v", a, l.long(patience), err)
				break
			}
		}
	}
}
