package plans_test

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// batch runs commands of ip(8) in the pod as a process of the pod would.
type batch func(b *bench, commands ...string)

func inNetns(b *bench, commands ...string) { b.pod.Batch(nil, commands...) }

// inUserNetns moves the pod into a netns that belongs to a user namespace. It returns a function
// that runs commands there as root of that user namespace.
func inUserNetns(t *testing.T, b *bench) batch {
	t.Helper()
	holder := exec.Command("unshare", "--user", "--map-root-user", "--net", "sleep", "1000")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	pid := strconv.Itoa(holder.Process.Pid)
	for deadline := time.Now().Add(answerTime); ; time.Sleep(time.Millisecond) {
		name, _ := exec.Command("cat", "/proc/"+pid+"/comm").Output()
		if strings.TrimSpace(string(name)) == "sleep" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("unshare does not come to its command")
		}
	}
	b.pod = testnet.OfProcess(t, holder.Process.Pid)
	return func(b *bench, commands ...string) {
		cmd := exec.Command("nsenter", "--target", pid, "--user", "--net", "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.t.Fatalf("%v: %s", err, out)
		}
	}
}

// manyAltnames are commands that make the description of net1 longer than the
// 64 KiB that programs receive netlink messages into.
func manyAltnames() (commands []string) {
	for i := range 490 {
		commands = append(commands, fmt.Sprintf("link property add dev net1 altname a%04d%s", i, strings.Repeat("x", 122)))
	}
	return commands
}

// A pod makes the description of its interface malformed, or so long that many programs cannot
// read the description. The interface must still be returned, and meanwhile other pods must get
// their interfaces.
func TestALinkThatIsHardToReadComesHomeAndHindersNobody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config  func(*bench, map[string]any) string
		user    bool
		falls   bool
		sources int  // so many source addresses get the pod's macvlan
		child   bool // or one that the pod makes on its NIC
		does    []string
	}{
		"host-device, altnames":                           {config: (*bench).config, does: manyAltnames()},
		"host-device, altnames, in a user namespace":      {config: (*bench).config, does: manyAltnames(), user: true},
		"host-device, altnames, the kernel returned it":   {config: (*bench).config, does: manyAltnames(), falls: true},
		"host-device, a child that cannot be read":        {config: (*bench).config, sources: 6000, child: true},
		"macvlan, altnames":                               {config: (*bench).macvlanConfig, does: manyAltnames()},
		"macvlan, altnames, in a user namespace":          {config: (*bench).macvlanConfig, does: manyAltnames(), user: true},
		"macvlan that cannot be read":                     {config: (*bench).macvlanConfig, sources: 6000},
		"macvlan whose master cannot be read":             {config: (*bench).macvlanConfig, sources: 11500},
		"macvlan whose master cannot be read, renamed":    {config: (*bench).macvlanConfig, sources: 11500, does: []string{"link set net1 down", "link set net1 name mine"}},
		"macvlan that cannot be read, renamed":            {config: (*bench).macvlanConfig, sources: 6000, does: []string{"link set net1 down", "link set net1 name mine"}},
		"macvlan that cannot be read, altnames beside it": {config: (*bench).macvlanConfig, sources: 6000, does: manyAltnames()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			run := batch(inNetns)
			if c.user {
				run = inUserNetns(t, b)
			}
			b.node.NIC("ens13np0", b.wire)
			before := b.node.State()
			config := c.config(b, map[string]any{"ipam": localIPAM("10.77.0.0/24")})
			b.node.MustRun(b.call("ADD", config))
			switch {
			case c.child:
				b.pod.IP("link", "add", "link", "net1", "name", "odd", "type", "macvlan", "mode", "source")
				b.pod.Damage("odd", c.sources)
			case c.sources > 0:
				b.pod.IP("link", "set", "net1", "type", "macvlan", "mode", "source")
				b.pod.Damage("net1", c.sources)
			}
			run(b, c.does...)
			if c.falls {
				b.pod.IP("link", "set", "net1", "netns", b.node.Name)
				b.pod.Delete()
			}

			other := *b
			other.pod = testnet.NewNetns(t, "other")
			call := other.call("ADD", b.config(map[string]any{"device": "ens13np0"}))
			call.ContainerID = "c2"
			b.node.MustRun(call)
			b.node.MustRun(call.With("DEL"))

			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
		})
	}
}
