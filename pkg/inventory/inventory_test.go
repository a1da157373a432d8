package inventory_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// lab is a node with a NIC that pods share.
type lab struct {
	t     *testing.T
	node  *testnet.Netns
	state string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, node: testnet.NewNetns(t, "node"), state: filepath.Join(t.TempDir(), "state")}
	l.node.NIC("ens1", testnet.NewNetns(t, "wire"))
	return l
}

// pod makes a pod with a macvlan.
func (l *lab) pod(name, containerID string) *testnet.Netns {
	l.t.Helper()
	pod := testnet.NewNetns(l.t, "pod")
	l.node.MustRun(testnet.Call{
		Plugin: "macvlan", Verb: "ADD", ContainerID: containerID, IfName: "net1", Netns: pod.Path,
		Args:   "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name,
		Config: fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "ens1", "stateDir": %q}`, l.state),
	})
	return pod
}

// unreadable writes an unreadable record into the ledger.
func (l *lab) unreadable() {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.state, "attachments", "x@net1.json"), []byte("{"), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func collect(t *testing.T, in *testnet.Netns, stateDir string, all bool) *inventory.List {
	t.Helper()
	var list *inventory.List
	var err error
	in.Inside(func() { list, err = inventory.Collect(stateDir, all) })
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (l *lab) end(dryRun bool) ([]inventory.Ending, []error) {
	l.t.Helper()
	var endings []inventory.Ending
	var left []error
	var err error
	l.node.Inside(func() {
		endings, left, err = inventory.EndStale(l.t.Context(), l.state, slog.New(slog.DiscardHandler), dryRun)
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return endings, left
}

func TestCollectShowsAllThatCanBeRead(t *testing.T) {
	l := newLab(t)
	l.pod("lives", "c1")
	l.pod("dies", "c2").Delete()
	l.unreadable()
	list := collect(t, l.node, l.state, false)
	states := map[string]string{}
	for _, a := range list.Attachments {
		states[a.Pod] = a.NIC + " " + a.State
	}
	if len(states) != 2 || states["default/lives"] != "ens1 alive" || states["default/dies"] != "ens1 gone" {
		t.Errorf("there are %v", states)
	}
	if len(list.Errors) != 1 || !strings.Contains(list.Errors[0].Error(), "x@net1.json") {
		t.Errorf("the errors are %v", list.Errors)
	}
}

func TestCollectCountsAttachmentsOfOtherHosts(t *testing.T) {
	l := newLab(t)
	l.pod("web-0", "c1")
	other := testnet.NewNetns(t, "node")
	if list := collect(t, other, l.state, false); len(list.Attachments) != 0 || list.Others != 1 {
		t.Errorf("%+v", list)
	}
	if list := collect(t, other, l.state, true); len(list.Attachments) != 1 || list.Others != 0 || list.Attachments[0].HostNetns != l.node.ID.String() {
		t.Errorf("all: %+v", list)
	}
}

func TestEndStaleTellsWhatBecameOfEach(t *testing.T) {
	l := newLab(t)
	l.pod("lives", "c1")
	first, second := l.pod("dies-0", "dead0"), l.pod("dies-1", "dead1")
	first.Delete() // after the last ADD, which would end it
	second.Delete()
	outcomes := func(endings []inventory.Ending) []string {
		var found []string
		for _, e := range endings {
			found = append(found, e.Pod+" "+e.Outcome)
		}
		return slices.Sorted(slices.Values(found))
	}
	endings, left := l.end(true)
	if have, want := outcomes(endings), []string{"default/dies-0 would be ended", "default/dies-1 would be ended"}; !slices.Equal(have, want) || len(left) != 0 {
		t.Errorf("a dry run: %q, %v", have, left)
	}
	records, err := ledger.Open(l.state)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	lock, err := records.TryLockAttachment(ledger.Key{ContainerID: "dead1", IfName: "net1"})
	if err != nil {
		t.Fatal(err)
	}
	endings, left = l.end(false)
	if have, want := outcomes(endings), []string{"default/dies-0 ended", "default/dies-1 busy"}; !slices.Equal(have, want) || len(left) != 1 {
		t.Errorf("with one of them locked: %q, %v", have, left)
	}
	_ = lock.Unlock()
	endings, left = l.end(false)
	if have, want := outcomes(endings), []string{"default/dies-1 ended"}; !slices.Equal(have, want) || len(left) != 0 {
		t.Errorf("unlocked: %q, %v", have, left)
	}
	if list := collect(t, l.node, l.state, false); len(list.Attachments) != 1 || list.Attachments[0].Pod != "default/lives" {
		t.Errorf("left: %+v", list)
	}
}

func TestFindNetns(t *testing.T) {
	l := newLab(t)
	if ns, err := inventory.FindNetns(l.state, inventory.Holder{Container: "c1"}); err == nil {
		t.Errorf("without a ledger it is %v", ns.ID)
	}
	pod := l.pod("web-0", "c1234")
	l.pod("web-1", "c2")
	l.pod("web-1", "c3").Delete()
	for _, h := range []inventory.Holder{{Pod: "default/web-0"}, {Container: "c1234"}, {Container: "c12"}} {
		ns, err := inventory.FindNetns(l.state, h)
		if err != nil {
			t.Fatal(err)
		}
		if !ns.ID.Equal(pod.ID) {
			t.Errorf("%s leads to %v, not %v", h, ns.ID, pod.ID)
		}
		ns.Close()
	}
	for h, want := range map[inventory.Holder]string{
		{Container: "c"}:       "container c matches several containers",
		{Container: "c3"}:      "container c3 has no living attachment",
		{Pod: "default/web-2"}: "pod default/web-2 has no living attachment",
		{Pod: "web-1"}:         "write it as NAMESPACE/NAME",
	} {
		if ns, err := inventory.FindNetns(l.state, h); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", h, ns, err)
		}
	}
	l.unreadable()
	if _, err := inventory.FindNetns(l.state, inventory.Holder{Container: "x"}); err == nil || !strings.Contains(err.Error(), "x@net1.json") {
		t.Errorf("the record that cannot be read may be the one: %v", err)
	}
}
