package crash

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// settleTime bounds asynchronous work, such as a carrier that returns.
const settleTime = 10 * time.Second

// stepTime bounds the asynchronous work after a step of the model: also a record that a GC skipped
// because the agent had its lock. It takes milliseconds. On a busy machine the agent may fail two
// or three times, and it pauses 1 s, 2 s and 4 s after that. An agent may take as long to end: so
// long the kubelet waits.
const stepTime = 30 * time.Second

// violations compares the node with the model when all operations are over.
func (w *world) violations() []string {
	for deadline := time.Now().Add(stepTime); ; time.Sleep(5 * time.Millisecond) {
		found := w.look()
		if len(found) == 0 || time.Now().After(deadline) {
			return found
		}
	}
}

func (w *world) look() (found []string) {
	links, err := link.Links(w.node.Netns)
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
		if l, err := link.ByName(m.pod.Netns.Netns, name); err != nil || l.MAC.String() != modelMAC(m.nic) {
			found = append(found, fmt.Sprintf("%s does not have %s: %+v, %v", k, modelNIC(m.nic), l, err))
		}
	}
	for nic := range modelNICs {
		if w.holder(nic) != nil {
			continue
		}
		now := w.snapshot(nic)
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

// end ends all attachments as a runtime and the node would, and checks that
// everything was returned. Living pods go on without attachments.
func (w *world) end() (found []string) {
	for k, m := range w.held {
		if m.fate == orphaned {
			continue
		}
		if v := w.del(modelCall{verb: "DEL", key: k, nic: m.nic, pod: m.pod}).do()(); v != "" {
			found = append(found, v)
		}
	}
	clear(w.held)
	if w.agent == nil { // no agent does it
		if v := w.sweep().do()(); v != "" {
			found = append(found, v)
		}
	}
	found = append(found, w.violations()...)
	if v := w.restartAgent(0, syscall.SIGTERM, false).do()(); v != "" {
		found = append(found, v)
	}
	for _, pod := range w.pods {
		if pod == nil {
			continue
		}
		links, err := link.Links(pod.Netns.Netns)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(links) != 1 {
			found = append(found, fmt.Sprintf("pod %s has a link still: %+v", pod.id, links[1]))
		}
	}
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
