package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"pgregory.net/rapid"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

const (
	modelNICs = 8
	modelPods = 20
	atOnce    = 4 // operations of a step, each on another pod
	sequence  = 24
)

// fate is what the model knows of an attachment.
type fate string

const (
	attached fate = "attached" // its ADD said so
	unknown  fate = "unknown"  // a process that worked on it was killed, or its DEL failed
	orphaned fate = "orphaned" // its pod is gone
)

// modelled is an attachment in the model. What is not there is free.
type modelled struct {
	ledger.Key
	nic     int
	pod     *modelPod
	fate    fate
	addr    string
	result  []byte
	renamed string // the pod's own name for the interface
}

// modelPod is a pod: another one, with another id, each time it comes back.
type modelPod struct {
	*testnet.Netns
	id string
}

// world is a node with its pods, and the model beside it.
type world struct {
	t      *testing.T
	node   *testnet.Netns
	wire   *testnet.Netns
	state  string
	whole  string   // the node's state with all NICs at home
	home   []string // and the snapshot of each NIC
	pods   [modelPods]*modelPod
	serial int

	mu   sync.Mutex
	held map[ledger.Key]*modelled
}

func modelNIC(nic int) string { return fmt.Sprintf("rail%d", nic) }

func modelMAC(nic int) string { return fmt.Sprintf("02:00:00:00:03:%02x", nic) }

func newWorld(t *testing.T) *world {
	w := &world{t: t, node: testnet.NewNetns(t, "node"), wire: testnet.NewNetns(t, "wire"), held: map[ledger.Key]*modelled{}}
	// No address that comes by itself, so that there is nothing to wait for.
	w.node.Sysctl("ipv6/conf/default/addr_gen_mode", "1")
	for nic := range modelNICs {
		w.makeNIC(nic)
	}
	w.whole = w.node.State()
	for nic := range modelNICs {
		w.home = append(w.home, w.snapshot(nic))
	}
	return w
}

// makeNIC makes a NIC as it is at home, always with the same MAC.
func (w *world) makeNIC(nic int) {
	name := modelNIC(nic)
	w.node.Batch(nil,
		fmt.Sprintf("link add %s mtu 9000 address %s type veth peer name %s-sw mtu 9000 netns %s", name, modelMAC(nic), name, w.wire.Name),
		fmt.Sprintf("link property add dev %s altname enp%ds0np0", name, nic),
		fmt.Sprintf("addr add 10.7.%d.1/24 dev %s", nic, name),
		"link set "+name+" up")
	w.wire.IP("link", "set", name+"-sw", "up")
}

// snapshot gives the NIC's state on the host, "" if it is not there.
func (w *world) snapshot(nic int) string {
	w.t.Helper()
	l, err := w.node.ByName(modelNIC(nic))
	if errors.Is(err, link.ErrNotFound) {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := w.node.Snapshot(l)
	if err != nil {
		return err.Error() // it is on its way
	}
	s.Taken, s.Index, s.Routes = time.Time{}, 0, nil // routes name indexes; the end of a sequence compares them
	for i := range s.Addresses {
		s.Addresses[i].Raw = nil // has the time that it was given
	}
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// modelCall is one execution of the plugin.
type modelCall struct {
	verb  string
	key   ledger.Key
	nic   int
	netns string
	keys  map[string]any // more of the configuration
	fuse  time.Duration  // until it is killed; 0 is never
	alone bool           // its children are not killed with it
}

// run runs the plugin. A killed one ends with errKilled; by then its children
// have ended as well.
func (w *world) run(c modelCall) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "net-" + modelNIC(c.nic), "type": "host-device", "device": modelNIC(c.nic), "stateDir": w.state,
		"ipam": map[string]any{"type": "whereabouts", "range": "10.60.0.0/24", "store": "local"},
	}
	for k, v := range c.keys {
		conf[k] = v
	}
	text, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	bin := testnet.Bin(w.t)
	cmd := exec.Command("ip", "netns", "exec", w.node.Name, filepath.Join(bin, "host-device"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.verb, "CNI_CONTAINERID="+c.key.ContainerID, "CNI_IFNAME="+c.key.IfName,
		"CNI_NETNS="+c.netns, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=apps;K8S_POD_NAME="+c.key.ContainerID, "CNI_PATH="+bin)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if c.fuse > 0 {
		target := -cmd.Process.Pid
		if c.alone {
			target = cmd.Process.Pid
		}
		defer time.AfterFunc(c.fuse, func() { _ = syscall.Kill(target, syscall.SIGKILL) }).Stop()
	}
	err = cmd.Wait()
	for syscall.Kill(-cmd.Process.Pid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
	if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return nil, errKilled
	}
	if err == nil {
		return stdout.Bytes(), nil
	}
	said := &types.Error{}
	if json.Unmarshal(stdout.Bytes(), said) == nil && said.Code != 0 {
		return nil, said
	}
	return nil, fmt.Errorf("%w: %s%s", err, stdout.Bytes(), stderr.Bytes())
}

var errKilled = errors.New("killed")

// operation is one of a step: what it does to the node, and what it then says
// to the model. The text is for who reads a failing sequence.
type operation struct {
	text string
	do   func() (violation string)
}

// holder gives the attachment that has the NIC, as far as the model knows.
func (w *world) holder(nic int) *modelled {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.held {
		if m.nic == nic {
			return m
		}
	}
	return nil
}

func (w *world) set(m *modelled) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[m.Key] = m
}

func (w *world) free(k ledger.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, k)
}

func (w *world) of(pod *modelPod) (all []*modelled) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.held {
		if m.pod == pod {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *modelled) int { return strings.Compare(a.IfName, b.IfName) })
	return all
}

// pod gives the pod of that number, and makes it if need be.
func (w *world) pod(number int) *modelPod {
	if w.pods[number] == nil {
		w.serial++
		w.pods[number] = &modelPod{Netns: testnet.NewNetns(w.t, "pod"), id: fmt.Sprintf("pod%d-%d", number, w.serial)}
	}
	return w.pods[number]
}

// add makes an ADD of the NIC. busy says that another operation of the step
// wants the same NIC.
func (w *world) add(pod *modelPod, ifName string, nic int, busy bool, fuse time.Duration, alone bool) operation {
	k := ledger.Key{ContainerID: pod.id, IfName: ifName}
	w.mu.Lock()
	before := w.held[k]
	w.mu.Unlock()
	holder := w.holder(nic)
	return operation{fmt.Sprintf("ADD %s of %s, killed after %v (alone: %v)", k, modelNIC(nic), fuse, alone), func() string {
		out, err := w.run(modelCall{verb: "ADD", key: k, nic: nic, netns: "/run/netns/" + pod.Name, fuse: fuse, alone: alone})
		switch {
		case errors.Is(err, errKilled):
			switch {
			case before != nil && before.fate == attached: // it had to be refused: nothing has changed
			default:
				w.set(&modelled{Key: k, nic: nic, pod: pod, fate: unknown})
			}
			return ""
		case err != nil && before != nil && before.fate == unknown:
			return "" // it ended the former, or not
		case err != nil && (before != nil || holder != nil || busy):
			if code := cnierr.Code(err); code != cnierr.NameTaken && code != cnierr.NICLent && code != cnierr.NICNotFound {
				return fmt.Sprintf("ADD %s of a NIC that another has: %v", k, err)
			}
			return ""
		case err != nil:
			return fmt.Sprintf("ADD %s of a free NIC: %v", k, err)
		case before != nil && before.fate == attached:
			return fmt.Sprintf("ADD %s, which is attached, succeeded", k)
		}
		if now := w.holder(nic); now != nil && now.fate == attached && now.Key != k {
			return fmt.Sprintf("ADD %s got %s, which %s has", k, modelNIC(nic), now.Key)
		} else if now != nil && now.Key != k {
			w.free(now.Key) // the killed one had not come so far, or its pod is gone
		}
		w.set(&modelled{Key: k, nic: nic, pod: pod, fate: attached, addr: address(out), result: out})
		return ""
	}}
}

// del makes a DEL of an attachment, or of one that is none.
func (w *world) del(pod *modelPod, k ledger.Key, nic int, netns string, fuse time.Duration, alone bool) operation {
	return operation{fmt.Sprintf("DEL %s with netns %q, killed after %v (alone: %v)", k, netns, fuse, alone), func() string {
		_, err := w.run(modelCall{verb: "DEL", key: k, nic: nic, netns: netns, fuse: fuse, alone: alone})
		w.mu.Lock()
		defer w.mu.Unlock()
		m := w.held[k]
		switch {
		case errors.Is(err, errKilled):
			if m != nil && m.fate == attached {
				m.fate = unknown
			}
		case err != nil:
			return fmt.Sprintf("DEL %s: %v", k, err)
		default:
			delete(w.held, k)
		}
		return ""
	}}
}

// check makes a CHECK of an attachment.
func (w *world) check(m *modelled) operation {
	return operation{fmt.Sprintf("CHECK %s", m.Key), func() string {
		_, err := w.run(modelCall{
			verb: "CHECK", key: m.Key, nic: m.nic, netns: "/run/netns/" + m.pod.Name, keys: map[string]any{"prevResult": json.RawMessage(m.result)},
		})
		if err != nil && m.renamed == "" {
			return fmt.Sprintf("CHECK %s: %v", m.Key, err)
		}
		if err == nil && m.renamed != "" {
			return fmt.Sprintf("CHECK %s does not miss the interface, which is named %s now", m.Key, m.renamed)
		}
		return ""
	}}
}

// gc makes a GC of a NIC's network, which knows what is attached.
func (w *world) gc(nic int, fuse time.Duration) operation {
	return operation{fmt.Sprintf("GC of %s, killed after %v", modelNIC(nic), fuse), func() string {
		valid := []types.GCAttachment{}
		for _, m := range w.held {
			if m.fate == attached {
				valid = append(valid, types.GCAttachment{ContainerID: m.ContainerID, IfName: m.IfName})
			}
		}
		_, err := w.run(modelCall{verb: "GC", nic: nic, keys: map[string]any{"cni.dev/valid-attachments": valid}, fuse: fuse})
		if err != nil {
			if errors.Is(err, errKilled) {
				return ""
			}
			return fmt.Sprintf("GC: %v", err)
		}
		for k, m := range w.held {
			if m.fate == orphaned || m.fate == unknown && m.nic == nic {
				delete(w.held, k)
			}
		}
		return ""
	}}
}

// sweep runs "railctl gc".
func (w *world) sweep() operation {
	return operation{"railctl gc", func() string {
		out, err := exec.Command("ip", "netns", "exec", w.node.Name, filepath.Join(testnet.Bin(w.t), "railctl"), "--state-dir", w.state, "gc").CombinedOutput()
		if err != nil && !strings.Contains(string(out), "busy") {
			return fmt.Sprintf("railctl gc: %v: %s", err, out)
		}
		return ""
	}}
}

// kill ends the pod. Its NICs, which are veths, end with it, and are made again
// at once: a NIC of hardware would fall home.
func (w *world) kill(number int) operation {
	pod := w.pods[number]
	return operation{fmt.Sprintf("end of the netns of %s", pod.id), func() string {
		links, err := pod.Links()
		if err != nil {
			w.t.Fatal(err)
		}
		pod.Delete()
		w.pods[number] = nil
		for _, m := range w.of(pod) {
			m.fate = orphaned
		}
		for nic := range modelNICs {
			if !slices.ContainsFunc(links, func(l *link.Link) bool { return l.MAC.String() == modelMAC(nic) }) {
				continue
			}
			for err = nil; !errors.Is(err, link.ErrNotFound); time.Sleep(time.Millisecond) {
				_, err = w.wire.ByName(modelNIC(nic) + "-sw")
			}
			w.makeNIC(nic)
		}
		return ""
	}}
}

// rename gives the interface another name in the pod.
func (w *world) rename(m *modelled) operation {
	return operation{fmt.Sprintf("rename of %s in the pod", m.Key), func() string {
		from, to := m.IfName, "my"+m.IfName
		if m.renamed != "" {
			from, to = to, from
		}
		m.pod.Batch(nil, "link set "+from+" down", "link set "+from+" name "+to, "link set "+to+" up")
		m.renamed = map[bool]string{true: "", false: to}[m.renamed != ""]
		return ""
	}}
}

// draw chooses a step: one operation that wants the node for itself, or some
// that run at the same time.
func (w *world) draw(rt *rapid.T) []operation {
	fuse := func() (time.Duration, bool) {
		if rapid.IntRange(0, 3).Draw(rt, "killed") != 0 {
			return 0, false
		}
		return time.Duration(rapid.IntRange(1, 120).Draw(rt, "fuse")) * time.Millisecond, rapid.Bool().Draw(rt, "alone")
	}
	number := rapid.IntRange(0, modelPods-1).Draw(rt, "pod")
	switch rapid.IntRange(0, 9).Draw(rt, "kind") {
	case 0:
		w.pod(number)
		return []operation{w.kill(number)}
	case 1:
		d, _ := fuse()
		return []operation{w.gc(rapid.IntRange(0, modelNICs-1).Draw(rt, "nic"), d)}
	}
	var ops []operation
	wanted := map[int]int{}
	type wish struct {
		pod    *modelPod
		ifName string
		nic    int
		fuse   time.Duration
		alone  bool
	}
	var adds []wish
	for i := range rapid.IntRange(1, atOnce).Draw(rt, "at once") {
		pod := w.pod((number + i) % modelPods)
		has := w.of(pod)
		d, alone := fuse()
		kind := rapid.IntRange(0, 11).Draw(rt, "verb")
		ifName := fmt.Sprint("net", rapid.IntRange(1, 2).Draw(rt, "ifname"))
		nic := rapid.IntRange(0, modelNICs-1).Draw(rt, "nic")
		switch {
		case kind < 5 || len(has) == 0 && kind < 8:
			// Of an attachment that a killed ADD may have made nobody asks for
			// another NIC; which of the two it had then could not be known.
			for _, m := range has {
				if m.IfName == ifName {
					nic = m.nic
				}
			}
			wanted[nic]++
			adds = append(adds, wish{pod, ifName, nic, d, alone})
		case kind == 8: // a runtime that has lost count, or another runtime
			if len(has) > 0 {
				ifName, nic = has[0].IfName, has[0].nic
			}
			wanted[nic]++
			ops = append(ops, w.del(pod, ledger.Key{ContainerID: "stray", IfName: ifName}, nic, "/run/netns/"+pod.Name, d, alone))
		case kind == 9:
			ops = append(ops, w.sweep())
		case len(has) == 0:
			ops = append(ops, w.del(pod, ledger.Key{ContainerID: pod.id, IfName: ifName}, nic, "/run/netns/"+pod.Name, d, alone))
		case kind == 10 && has[0].fate == attached:
			ops = append(ops, w.rename(has[0]))
		case kind == 11 && has[0].fate == attached:
			ops = append(ops, w.check(has[0]))
		default:
			ops = append(ops, w.del(pod, has[0].Key, has[0].nic, "/run/netns/"+pod.Name, d, alone))
			wanted[has[0].nic]++
		}
	}
	for _, a := range adds {
		ops = append(ops, w.add(a.pod, a.ifName, a.nic, wanted[a.nic] > 1, a.fuse, a.alone))
	}
	return ops
}

// violations compares the node with the model, when nothing runs.
func (w *world) violations() (found []string) {
	links, err := w.node.Links()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range links {
		known := l.Name == "lo"
		for nic := range modelNICs {
			known = known || l.Name == modelNIC(nic) && l.MAC.String() == modelMAC(nic)
		}
		if !known {
			found = append(found, fmt.Sprintf("the host has a link %s (%s)", l.Name, l.MAC))
		}
	}
	addrs := map[string]ledger.Key{}
	for k, m := range w.held {
		if m.fate != attached {
			continue
		}
		if other, taken := addrs[m.addr]; taken {
			found = append(found, fmt.Sprintf("%s and %s both have %s", k, other, m.addr))
		}
		addrs[m.addr] = k
		name := k.IfName
		if m.renamed != "" {
			name = m.renamed
		}
		if l, err := m.pod.ByName(name); err != nil || l.MAC.String() != modelMAC(m.nic) {
			found = append(found, fmt.Sprintf("%s does not have %s: %+v, %v", k, modelNIC(m.nic), l, err))
		}
	}
	for nic := range modelNICs {
		if w.holder(nic) != nil {
			continue
		}
		var now string
		for range 100 {
			if now = w.snapshot(nic); now == w.home[nic] {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if now != w.home[nic] {
			found = append(found, fmt.Sprintf("%s is free, and not home as it was:\n%s", modelNIC(nic), testnet.Diff(w.home[nic], now)))
		}
	}
	return append(found, w.wrongRecords()...)
}

// wrongRecords compares the ledger with the model.
func (w *world) wrongRecords() (found []string) {
	l, err := ledger.Open(w.state)
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	records, errs := l.List()
	for _, err := range errs {
		found = append(found, err.Error())
	}
	lent := map[ledger.Key]bool{}
	for _, r := range records {
		lent[r.Key] = r.Phase == ledger.Lent
		if w.held[r.Key] == nil {
			found = append(found, fmt.Sprintf("the ledger has %s, which has ended, in phase %s", r.Key, r.Phase))
		}
	}
	for k, m := range w.held {
		if m.fate == attached && !lent[k] {
			found = append(found, fmt.Sprintf("the ledger lacks %s", k))
		}
	}
	return found
}

// end ends everything as a runtime and the node would, and wants all back.
func (w *world) end() (found []string) {
	for k, m := range w.held {
		netns := "/run/netns/" + m.pod.Name
		if m.fate == orphaned {
			continue
		}
		if v := w.del(m.pod, k, m.nic, netns, 0, false).do(); v != "" {
			found = append(found, v)
		}
	}
	for number, pod := range w.pods {
		if pod != nil {
			pod.Kill()
			w.pods[number] = nil
		}
	}
	if v := w.sweep().do(); v != "" {
		found = append(found, v)
	}
	clear(w.held)
	found = append(found, w.violations()...)
	if d := w.node.Settled(w.whole); d != "" {
		found = append(found, "the host is not as it was:\n"+d)
	}
	for _, path := range testnet.Leftovers(w.t, filepath.Join(w.state, "ipam")) {
		if strings.HasSuffix(path, ".json") || strings.Contains(path, "/reserved/") {
			found = append(found, "the pool has "+path)
		}
	}
	return found
}

// TestNodeDoesAsTheModelSays runs random sequences of steps, and compares the
// node with the model after each: no NIC in two pods, none on the host under another's
// name, all that is free at home as it was, no address twice, no record too
// many or too few. RAIL_CNI_MODEL_STEPS says for how many steps.
func TestNodeDoesAsTheModelSays(t *testing.T) {
	steps := 96
	if n, err := strconv.Atoi(os.Getenv("RAIL_CNI_MODEL_STEPS")); err == nil {
		steps = n
	}
	for name, value := range map[string]string{
		"rapid.checks": strconv.Itoa((steps + sequence - 1) / sequence), "rapid.seed": strconv.FormatUint(seed, 10), "rapid.nofailfile": "true",
	} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	var w *world
	done, ops := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		if w == nil {
			w = newWorld(t)
		}
		w.state = filepath.Join(t.TempDir(), "state")
		violated := func(found []string) {
			if len(found) > 0 {
				w = nil // what a failed sequence leaves is of no use
				rt.Fatalf("%s", strings.Join(found, "\n"))
			}
		}
		for step := range sequence {
			all := w.draw(rt)
			var wg sync.WaitGroup
			found := make([]string, len(all))
			for i, op := range all {
				rt.Logf("%d: %s", step, op.text)
				wg.Go(func() { found[i] = op.do() })
			}
			wg.Wait()
			done, ops = done+1, ops+len(all)
			found = slices.DeleteFunc(found, func(s string) bool { return s == "" })
			violated(append(found, w.violations()...))
		}
		rt.Logf("the end")
		violated(w.end())
	})
	t.Logf("%d steps, %d operations, RAIL_CNI_CRASH_SEED=%d", done, ops, seed)
}
