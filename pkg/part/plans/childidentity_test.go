package plans_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/macvlan"
)

// disguises has changes that a pod can make to its macvlan net1, so that a DEL finds another
// link or no link, and the pod could keep the address.
var disguises = map[string]struct {
	commands []string
	left     []string // the links that the pod keeps, "lo" beside
	indexed  bool     // identified only by the index, which the record of a killed ADD lacks
}{
	"renamed": {[]string{"link set net1 down", "link set net1 name keep", "link set keep up"}, nil, false},
	"renamed, and a veth has its name": {[]string{
		"link set net1 down", "link set net1 name keep", "link add net1 type veth peer name p0", "link set keep up",
	}, []string{"net1", "p0"}, false},
	"another MAC": {[]string{"link set net1 address 02:00:00:00:00:99"}, nil, false},
	"another name and MAC": {[]string{
		"link set net1 down", "link set net1 name keep address 02:00:00:00:00:99", "link set keep up",
		"link add net1 type veth peer name p0",
	}, []string{"net1", "p0"}, true},
	"its name is an altname of another": {[]string{
		"link set net1 down", "link set net1 name keep", "link set keep up",
		"link add v0 type veth peer name p0", "link property add dev v0 altname net1",
	}, []string{"p0", "v0"}, false},
	"another macvlan on the master has its name, MAC and address": {[]string{
		"link add twin link net1 type macvlan mode bridge", "link set net1 down", "link set net1 name keep address 02:00:00:00:00:99",
		"link set twin name net1 address MAC", "link set keep up", "link set net1 up", "addr add 172.31.1.1/24 dev net1",
	}, nil, true},
	"a macvlan on a link of the pod's has its name and MAC": {[]string{
		"link set net1 down", "link set net1 name keep", "link set keep up", "link add v0 type veth peer name p0",
		"link add net1 link v0 address MAC type macvlan mode bridge",
	}, []string{"net1", "p0", "v0"}, false},
}

func TestMacvlanIsTakenWhateverThePodMadeOfIt(t *testing.T) {
	t.Parallel()
	for name, d := range disguises {
		for _, indexed := range []bool{true, false} {
			if d.indexed && !indexed {
				continue
			}
			t.Run(name+map[bool]string{false: ", by a record without an index"}[indexed], func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				before := b.node.State()
				config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
				b.node.MustRun(b.call("ADD", config))
				if !indexed {
					forge(t, b, func(r *ledger.Record) { r.Child.PodIndex = 0 }) // as if ADD had been killed
				}
				mac := b.records()[0].MAC
				commands := slices.Clone(d.commands)
				for i := range commands {
					commands[i] = strings.ReplaceAll(commands[i], "MAC", mac)
				}
				b.pod.Batch(nil, commands...)
				b.node.MustRun(b.call("DEL", config))
				links, err := link.Links(b.pod.Netns)
				if err != nil {
					t.Fatal(err)
				}
				var left []string
				for _, l := range links {
					if l.Encap != "loopback" && !strings.HasPrefix(l.Name, "ifb") {
						left = append(left, l.Name)
					}
				}
				slices.Sort(left)
				if !slices.Equal(left, d.left) {
					t.Errorf("the pod has %q, want %q", left, d.left)
				}
				b.untouched(before)
			})
		}
	}
}

func TestMacvlanThatThePodDeletedIsNoObstacle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	b.node.MustRun(b.call("ADD", config))
	b.pod.IP("link", "del", "net1")
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// Another attachment of the pod on the same NIC stays, even with the address of
// the ended one.
func TestMacvlanOfAnotherAttachmentStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	first, second := b.call("ADD", config), b.call("ADD", config)
	second.IfName = "net2"
	b.node.MustRun(first)
	b.node.MustRun(second)
	b.pod.IP("addr", "add", "172.31.1.1/24", "dev", "net2")
	b.node.MustRun(first.With("DEL"))
	if _, err := link.ByName(b.pod.Netns, "net2"); err != nil {
		t.Error(err)
	}
	b.node.MustRun(second.With("DEL"))
	b.untouched(before)
}

// A macvlan in a netns that was made inside the pod continues to answer. Its address must not
// be assigned again before the macvlan is silent.
func TestMacvlanThatThePodHidKeepsItsAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	b.node.MustRun(b.call("ADD", config))
	within := testnet.NewNetns(t, "within")
	b.pod.IP("link", "set", "net1", "netns", within.Name, "name", "keep")
	within.Batch(nil, "link set keep up", "addr add 172.31.1.1/24 dev keep")
	_, err := b.node.Run(b.call("DEL", config))
	fails(t, err, cnierr.NotReturned, "net1", nicName, "netns")
	if len(b.held()) == 0 {
		t.Error("its address is free, and the pod answers for it")
	}
	within.Delete()
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// Another pod's macvlan on the same NIC is no reason for the NIC to hear the hidden one's MAC.
func TestHiddenMacvlanBesideAnotherPodKeepsItsAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	second := b.call("ADD", config)
	second.ContainerID, second.Netns = "c2", testnet.NewNetns(t, "pod2").Path
	b.node.MustRun(b.call("ADD", config))
	first := b.records()[0]
	b.node.MustRun(second)
	within := testnet.NewNetns(t, "within")
	b.pod.IP("link", "set", "net1", "netns", within.Name, "name", "keep")
	within.IP("link", "set", "keep", "up")
	n := b.open()
	err := macvlan.Part{}.Release(t.Context(), &attachment.Releasing{Node: n, Record: first, Pod: b.pod.Netns, Home: n.Netns})
	if !errors.Is(err, attachment.ErrNowhere) {
		t.Errorf("its address would be free, and the pod answers for it: %v", err)
	}
}

// A macvlan that is down does not answer.
func TestMacvlanThatThePodHidAndSetDownIsNoObstacle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	b.node.MustRun(b.call("ADD", config))
	within := testnet.NewNetns(t, "within")
	b.pod.IP("link", "set", "net1", "netns", within.Name, "name", "keep")
	within.IP("link", "set", "keep", "down")
	b.node.MustRun(b.call("DEL", config))
	b.nothingHeld()
}

// A macvlan that a pod moved to a netns that outlives the pod's goes on answering.
func TestMacvlanThatOutlivesItsPodKeepsItsAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	b.node.MustRun(b.call("ADD", config))
	elsewhere := testnet.NewNetns(t, "elsewhere")
	b.pod.IP("link", "set", "net1", "netns", elsewhere.Name, "name", "keep")
	elsewhere.Batch(nil, "link set keep up", "addr add 172.31.1.1/24 dev keep")
	b.pod.Delete()
	_, err := b.node.Run(b.call("DEL", config))
	fails(t, err, cnierr.NotReturned, "net1", nicName, "netns")
	b.open().Sweep(t.Context())
	if len(b.held()) == 0 {
		t.Error("its address is free, and the dead pod answers for it")
	}
	elsewhere.Delete()
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// The pod netns may end while DEL waits for the macvlan that the pod hid. So the error
// itself, and not the life of the pod, decides that the address stays.
func TestMacvlanThatThePodHidIsNowhereEvenIfThePodEndsMeanwhile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})))
	within := testnet.NewNetns(t, "within")
	b.pod.IP("link", "set", "net1", "netns", within.Name, "name", "keep")
	within.IP("link", "set", "keep", "up")
	n := b.open()
	err := macvlan.Part{}.Release(t.Context(), &attachment.Releasing{Node: n, Record: b.records()[0], Pod: b.pod.Netns, Home: n.Netns})
	if !errors.Is(err, attachment.ErrNowhere) {
		t.Errorf("its address would be free, and the pod answers for it: %v", err)
	}
}

// If the parent cannot be asked, the macvlan of a dead pod may still answer.
func TestMacvlanOfADeadPodIsNowhereIfItsParentCannotBeAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})))
	n := b.open()
	home, err := netns.Open(n.Netns.Path)
	if err != nil {
		t.Fatal(err)
	}
	home.Close()
	err = macvlan.Part{}.Release(t.Context(), &attachment.Releasing{Node: n, Record: b.records()[0], Home: home})
	if !errors.Is(err, attachment.ErrNowhere) {
		t.Errorf("its address would be free: %v", err)
	}
}
