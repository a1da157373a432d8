package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"pgregory.net/rapid"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// operation is one of a step: its work on the node, concurrently with the
// step's others, and its effect on the model. The text is for the reader of a
// failing sequence.
type operation struct {
	text string
	// do returns the verdict, which is called when all operations of the step
	// are over, in their order: first of those that free NICs, then of those
	// that lend them. The model does not change before that.
	do func() (verdict func() (violation string))
}

// outright makes an operation that does not change the model.
func outright(text string, do func() (violation string)) operation {
	return operation{text, func() func() string {
		violation := do()
		return func() string { return violation }
	}}
}

// call makes an operation of a call of the plugin.
func (w *world) call(c modelCall, verdict func(out []byte, err error) (violation string)) operation {
	text := fmt.Sprintf("%s of %s, %s", c.verb, c.key, modelNIC(c.nic))
	if c.fuse > 0 {
		text += fmt.Sprintf(", killed after %v%s", c.fuse, map[bool]string{true: " without its children"}[c.alone])
	}
	return operation{text, func() func() string {
		out, err := w.run(c)
		return func() string {
			w.done[c.verb]++
			if errors.Is(err, errKilled) {
				w.done["killed"]++
			}
			return verdict(out, err)
		}
	}}
}

// holder returns an attachment that may have the NIC, as far as the model knows.
func (w *world) holder(nic int) *modeled {
	for _, m := range w.held {
		if m.nic == nic {
			return m
		}
	}
	return nil
}

// of returns the attachments of a pod.
func (w *world) of(pod *modelPod) (all []*modeled) {
	for _, m := range w.held {
		if m.pod == pod {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *modeled) int { return strings.Compare(a.IfName, b.IfName) })
	return all
}

// pod returns the pod of that number, and makes it if need be.
func (w *world) pod(number int) *modelPod {
	if w.pods[number] == nil {
		w.serial++
		w.pods[number] = &modelPod{Netns: testnet.NewNetns(w.t, "pod"), id: fmt.Sprintf("pod%d-%d", number, w.serial)}
	}
	return w.pods[number]
}

// add makes an ADD. busy: another operation of the step wants the same NIC.
func (w *world) add(c modelCall, busy bool) operation {
	before, holder := w.held[c.key], w.holder(c.nic)
	return w.call(c, func(out []byte, err error) string {
		attaches := before != nil && before.fate == attached // and must be refused
		switch {
		case errors.Is(err, errKilled):
			if !attaches {
				w.held[c.key] = &modeled{Key: c.key, nic: c.nic, pod: c.pod, fate: unknown}
			}
			return ""
		case err != nil && before != nil && before.fate == unknown:
			return "" // it may have ended the earlier one
		case err != nil && (before != nil || holder != nil || busy):
			if code := cnierr.Code(err); code != cnierr.NameTaken && code != cnierr.NICLent && code != cnierr.NICNotFound {
				return fmt.Sprintf("ADD %s of a NIC that another has: %v", c.key, err)
			}
			return ""
		case err != nil:
			return fmt.Sprintf("ADD %s of a free NIC: %v", c.key, err)
		case attaches:
			return fmt.Sprintf("ADD %s, which is attached, succeeded", c.key)
		}
		for k, m := range w.held {
			if m.nic != c.nic || k == c.key {
				continue
			}
			if m.fate == attached {
				return fmt.Sprintf("ADD %s got %s, which %s has", c.key, modelNIC(c.nic), k)
			}
			delete(w.held, k) // it was killed before that, or its pod is gone
		}
		w.held[c.key] = &modeled{Key: c.key, nic: c.nic, pod: c.pod, fate: attached, addr: address(out), result: out}
		return ""
	})
}

// del makes a DEL, with or without an attachment.
func (w *world) del(c modelCall) operation {
	return w.call(c, func(_ []byte, err error) string {
		m := w.held[c.key]
		switch {
		case errors.Is(err, errKilled):
			if m != nil && m.fate == attached {
				m.fate = unknown
			}
		case err != nil:
			return fmt.Sprintf("DEL %s: %v", c.key, err)
		default:
			delete(w.held, c.key)
		}
		return ""
	})
}

// check makes a CHECK of an attachment.
func (w *world) check(m *modeled) operation {
	c := modelCall{verb: "CHECK", key: m.Key, nic: m.nic, pod: m.pod, keys: map[string]any{"prevResult": json.RawMessage(m.result)}}
	return w.call(c, func(_ []byte, err error) string {
		switch {
		case err != nil && m.renamed == "":
			return fmt.Sprintf("CHECK %s: %v", m.Key, err)
		case err == nil && m.renamed != "":
			return fmt.Sprintf("CHECK %s does not miss the interface, which is named %s now", m.Key, m.renamed)
		}
		return ""
	})
}

// gc makes a GC of a NIC's network, with the list of its attachments.
func (w *world) gc(nic int, fuse time.Duration) operation {
	valid := []types.GCAttachment{}
	for _, m := range w.held {
		if m.fate == attached {
			valid = append(valid, types.GCAttachment{ContainerID: m.ContainerID, IfName: m.IfName})
		}
	}
	c := modelCall{verb: "GC", nic: nic, keys: map[string]any{"cni.dev/valid-attachments": valid}, fuse: fuse}
	return w.call(c, func(_ []byte, err error) string {
		if errors.Is(err, errKilled) {
			return ""
		}
		if err != nil {
			return fmt.Sprintf("GC: %v", err)
		}
		for k, m := range w.held {
			if m.fate == orphaned || m.fate == unknown && m.nic == nic {
				delete(w.held, k)
			}
		}
		return ""
	})
}

// sweep runs "railctl gc".
func (w *world) sweep() operation {
	return outright("railctl gc", func() string {
		out, err := exec.Command(filepath.Join(testnet.Bin(w.t), "railctl"), "--state-dir", w.state, "gc").CombinedOutput()
		if err != nil && !strings.Contains(string(out), "busy") {
			return fmt.Sprintf("railctl gc: %v: %s", err, out)
		}
		return ""
	})
}

// restartAgent ends a running rail-agent by the signal, some time after the
// step began, and starts it again if it is to run.
func (w *world) restartAgent(after time.Duration, signal syscall.Signal, again bool) operation {
	text := fmt.Sprintf("rail-agent, after %v: %v, started: %v", after, signal, again)
	return outright(text, func() (violation string) {
		time.Sleep(after)
		if w.agent != nil {
			violation = w.agent.end(signal)
			w.agent = nil
		}
		if again && violation == "" {
			w.agent = w.startAgent()
		}
		return violation
	})
}

// kill ends the pod. Its NICs, which are veths, end with it, and are made again
// at once: a NIC of hardware would return to the host.
func (w *world) kill(number int) operation {
	pod := w.pods[number]
	return outright("end of the netns of "+pod.id, func() string {
		links, err := link.Links(pod.Netns.Netns)
		if err != nil {
			w.t.Fatal(err)
		}
		pod.Delete()
		w.pods[number] = nil
		w.done["pods ended"]++
		for _, m := range w.of(pod) {
			m.fate = orphaned
		}
		for nic := range modelNICs {
			if !slices.ContainsFunc(links, func(l *link.Link) bool { return l.MAC.String() == modelMAC(nic) }) {
				continue
			}
			for err = nil; !errors.Is(err, link.ErrNotFound); time.Sleep(time.Millisecond) {
				_, err = link.ByName(w.wire.Netns, modelNIC(nic)+"-sw")
			}
			w.makeNIC(nic)
		}
		return ""
	})
}

// rename renames the interface in the pod.
func (w *world) rename(m *modeled) operation {
	from, to := m.IfName, "my"+m.IfName
	if m.renamed != "" {
		from, to = to, from
	}
	return operation{fmt.Sprintf("rename of %s in the pod to %s", m.Key, to), func() func() string {
		m.pod.Batch(nil, "link set "+from+" down", "link set "+from+" name "+to, "link set "+to+" up")
		return func() string {
			if m.renamed = to; to == m.IfName {
				m.renamed = ""
			}
			return ""
		}
	}}
}

// draw chooses a step: one operation that needs the node for itself, or some
// that run concurrently.
func (w *world) draw(rt *rapid.T) []operation {
	number := rapid.IntRange(0, modelPods-1).Draw(rt, "pod")
	switch rapid.IntRange(0, 9).Draw(rt, "kind") {
	case 0:
		w.pod(number)
		return []operation{w.kill(number)}
	case 1:
		fuse, _ := drawFuse(rt)
		return []operation{w.gc(rapid.IntRange(0, modelNICs-1).Draw(rt, "nic"), fuse)}
	}
	var ops []operation
	var adds []modelCall
	wanted := map[int]int{}
	agent := false
	for i := range rapid.IntRange(1, atOnce).Draw(rt, "at once") {
		pod := w.pod((number + i) % modelPods)
		has := w.of(pod)
		kind := rapid.IntRange(0, 12).Draw(rt, "verb")
		c := modelCall{verb: "DEL", pod: pod, nic: rapid.IntRange(0, modelNICs-1).Draw(rt, "nic")}
		c.key = ledger.Key{ContainerID: pod.id, IfName: fmt.Sprint("net", rapid.IntRange(1, 2).Draw(rt, "ifname"))}
		c.fuse, c.alone = drawFuse(rt)
		switch {
		case kind < 5 || len(has) == 0 && kind < 8:
			// Never ask for another NIC for an attachment that a killed ADD may
			// have made: the model could not know which of the two it had.
			if m := w.held[c.key]; m != nil {
				c.nic = m.nic
			}
			c.verb = "ADD"
			adds = append(adds, c)
			wanted[c.nic]++
		case kind == 8: // a runtime with an outdated list, or another runtime
			if len(has) > 0 {
				c.key, c.nic = has[0].Key, has[0].nic
			}
			c.key.ContainerID = "stray"
			ops = append(ops, w.del(c))
			wanted[c.nic]++
		case kind == 9:
			ops = append(ops, w.sweep())
		case kind == 12 && !agent && !calm: // one at a time
			agent = true
			ops = append(ops, w.drawRestart(rt))
		case len(has) == 0:
			ops = append(ops, w.del(c))
		case kind == 10 && has[0].fate == attached:
			ops = append(ops, w.rename(has[0]))
		case kind == 11 && has[0].fate == attached:
			ops = append(ops, w.check(has[0]))
		default:
			c.key, c.nic = has[0].Key, has[0].nic
			ops = append(ops, w.del(c))
			wanted[c.nic]++
		}
	}
	for _, c := range adds {
		ops = append(ops, w.add(c, wanted[c.nic] > 1))
	}
	return ops
}

// calm is true in a world in which nothing is killed by time.
var calm = os.Getenv(calmVar) == "true"

// drawFuse draws when a plugin is killed, mostly never, and whether its
// children survive.
func drawFuse(rt *rapid.T) (fuse time.Duration, alone bool) {
	if calm || rapid.IntRange(0, 3).Draw(rt, "killed") != 0 {
		return 0, false
	}
	return time.Duration(rapid.IntRange(1, 120).Draw(rt, "fuse")) * time.Millisecond, rapid.Bool().Draw(rt, "alone")
}

// drawRestart draws an operation on the agent.
func (w *world) drawRestart(rt *rapid.T) operation {
	signal := syscall.SIGKILL
	if rapid.IntRange(0, 3).Draw(rt, "asked") == 0 {
		signal = syscall.SIGTERM
	}
	after := time.Duration(rapid.IntRange(0, 60).Draw(rt, "agent after")) * time.Millisecond
	return w.restartAgent(after, signal, rapid.IntRange(0, 3).Draw(rt, "again") != 0)
}
