package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// contender is one way to attach something to a pod (a NIC, a macvlan, an
// address) and to detach it. Each has a NIC and a pod of its own.
type contender struct {
	id    string
	group string
	title string
	base  string // id of the contender that a ratio is taken to
	floor string // id of the floor of its group
	goals goals

	nic, address string // to be ready before ADD
	device       string // RDMA device that goes with the NIC; empty if none does
	pod          string // network namespace
	add, del     []step
	// others are the ADDs of the other attachments on the same NIC, by pod, which last
	// for the whole run.
	others map[string]step
}

// goals are upper limits of a contender's median relative to that of its base
// and of its floor; 0 is no goal.
type goals struct {
	base, floor float64
}

// places holds the paths of binaries and state directories.
type places struct {
	bin, peers string // directories of binaries
	ip         string // ip(8)
	rdma       string // rdma(8); only in the rig
	state      string // on the node's tmpfs
	disk       string // on the file system of the output; may be empty
}

const ifName = "net1"

var (
	noIPAM     map[string]any
	staticIPAM = map[string]any{
		"type":      "static",
		"addresses": []any{map[string]any{"address": "198.51.100.10/24", "gateway": "198.51.100.1"}},
		"routes":    []any{map[string]any{"dst": "203.0.113.0/24", "gw": "198.51.100.1"}},
	}
	localIPAM = map[string]any{"type": "whereabouts", "range": "198.51.100.0/24", "store": "local"}
	largeIPAM = map[string]any{"type": "whereabouts", "range": "198.18.0.0/20", "store": "local"}
)

// hostLocalIPAM keeps its state where ours does, on tmpfs, although its default
// is a directory on disk.
func hostLocalIPAM(state, subnet string) map[string]any {
	return map[string]any{
		"type":    "host-local",
		"ranges":  []any{[]any{map[string]any{"subnet": subnet}}},
		"dataDir": filepath.Join(state, "host-local"),
	}
}

// Groups, as the report names them.
const (
	groupHostDevice = "host-device: a NIC with one address, up"
	groupMacvlan    = "macvlan: a child of a NIC"
	groupCrowd      = "macvlan, beside 300 others on the same NIC"
	groupIPAM       = "IPAM plugin alone"
)

// crowd is the number of other attachments in groupCrowd.
const crowd = 300

// contenders returns all contenders, in the order of the report.
func contenders(p places) []*contender {
	b := builder{places: p}
	goal := goals{base: 0.5, floor: 1.5}

	b.floorMove("hd-floor", "floor: bare ip link set … netns … name …")
	// Not the floor of the goals, but the least that a plugin must do.
	b.floorMove("hd-floor-up", "the same, and up: ip link set … up", "up")
	b.hostDevice("hd-up", "upstream", p.peers, noIPAM, "", "hd-floor", "", goals{})
	b.hostDevice("hd", "ours", p.bin, noIPAM, "hd-up", "hd-floor", p.state, goal)
	b.hostDevice("hd-up-static", "upstream + static", p.peers, staticIPAM, "", "hd-floor", "", goals{})
	b.hostDevice("hd-static", "ours + static", p.bin, staticIPAM, "hd-up-static", "hd-floor", p.state, goals{})
	b.hostDevice("hd-up-local", "upstream + host-local", p.peers, hostLocalIPAM(p.state, "198.51.100.0/24"), "", "hd-floor", "", goals{})
	b.hostDevice("hd-local", "ours + whereabouts, local store", p.bin, localIPAM, "hd-up-local", "hd-floor", p.state, goals{})
	if p.disk != "" {
		b.hostDevice("hd-disk", "ours + whereabouts, state on disk", p.bin, localIPAM, "hd-up-local", "hd-floor", p.disk, goals{})
	}

	b.floorChild("mv-floor", "floor: bare ip link add … netns … type macvlan")
	b.macvlan("mv-up", "upstream + host-local", p.peers, hostLocalIPAM(p.state, "198.51.100.0/24"), "", "mv-floor", "", goals{})
	b.macvlan("mv", "ours + whereabouts, local store", p.bin, localIPAM, "mv-up", "mv-floor", p.state, goals{base: 0.8})

	// State of their own, in which the other rows need not look for dead pods.
	crowded := p.state + "-crowded"
	b.crowd("mv-crowd-up", "upstream + host-local", p.peers, hostLocalIPAM(crowded, "198.18.0.0/20"), "", "", goals{})
	b.crowd("mv-crowd", "ours + whereabouts, local store", p.bin, largeIPAM, "mv-crowd-up", crowded, goals{})

	b.ipam("ip-up", "upstream host-local", filepath.Join(p.peers, "host-local"), hostLocalIPAM(p.state, "198.51.100.0/24"), "", "")
	b.ipam("ip", "ours whereabouts, local store", filepath.Join(p.bin, "whereabouts"), localIPAM, "ip-up", p.state)
	b.ipam("ip-static", "upstream static", filepath.Join(p.peers, "static"), staticIPAM, "", "")
	return b.list
}

type builder struct {
	places
	list []*contender
}

// next adds a contender with a NIC and a pod of its own.
func (b *builder) next(group, id, title, base, floor string, g goals) *contender {
	n := len(b.list)
	c := &contender{
		group: group, id: id, title: title, base: base, floor: floor, goals: g,
		nic: fmt.Sprintf("rail%d", n), address: fmt.Sprintf("192.0.2.%d/24", n+1), pod: fmt.Sprintf("pod%d", n),
	}
	b.list = append(b.list, c)
	return c
}

func (b *builder) hostDevice(id, title, bin string, ipam map[string]any, base, floor, state string, g goals) {
	c := b.next(groupHostDevice, id, title, base, floor, g)
	b.plugin(c, filepath.Join(bin, "host-device"), map[string]any{"type": "host-device", "device": c.nic}, ipam, state)
}

func (b *builder) macvlan(id, title, bin string, ipam map[string]any, base, floor, state string, g goals) {
	c := b.next(groupMacvlan, id, title, base, floor, g)
	b.plugin(c, filepath.Join(bin, "macvlan"), map[string]any{"type": "macvlan", "master": c.nic, "mode": "bridge"}, ipam, state)
}

// crowd adds a contender whose NIC has many macvlans already.
func (b *builder) crowd(id, title, bin string, ipam map[string]any, base, state string, g goals) {
	c := b.next(groupCrowd, id, title, base, "", g)
	c.others = map[string]step{}
	for i := range crowd {
		c.others[fmt.Sprintf("%s-%d", c.pod, i)] = nil
	}
	b.plugin(c, filepath.Join(bin, "macvlan"), map[string]any{"type": "macvlan", "master": c.nic, "mode": "bridge"}, ipam, state)
}

func (b *builder) ipam(id, title, path string, ipam map[string]any, base, state string) {
	c := b.next(groupIPAM, id, title, base, "", goals{})
	b.plugin(c, path, map[string]any{"type": "bench"}, ipam, state)
}

// plugin sets the commands of a contender that is a CNI plugin.
func (b *builder) plugin(c *contender, path string, conf, ipam map[string]any, state string) {
	conf["cniVersion"] = "1.0.0"
	conf["name"] = "bench-" + c.id
	if ipam != nil {
		conf["ipam"] = ipam
	}
	if state != "" {
		conf["stateDir"] = state
	}
	b.chain(c, path, conf)
}

// chain adds a plugin to the contender's attachment: the last at ADD, the first
// at DEL. As from a runtime, it gets the result of the previous plugin, if
// there is one, and at DEL the result of the whole ADD.
func (b *builder) chain(c *contender, path string, conf map[string]any) {
	call := func(verb, pod string) step {
		env := []string{
			"CNI_COMMAND=" + verb,
			"CNI_CONTAINERID=" + pod,
			"CNI_NETNS=" + filepath.Join(netnsDir, pod),
			"CNI_IFNAME=" + ifName,
			// Our directory first: each plugin finds the IPAM plugin of its
			// config.
			"CNI_PATH=" + b.bin + ":" + b.peers,
			"PATH=" + os.Getenv("PATH"),
			nodeFileEnv(),
		}
		return func(result []byte) (command, error) {
			conf := maps.Clone(conf)
			if len(result) > 0 {
				conf["prevResult"] = json.RawMessage(result)
			}
			stdin, err := json.Marshal(conf)
			return command{path: path, env: env, stdin: stdin}, err
		}
	}
	c.add = append(c.add, call("ADD", c.pod))
	c.del = append([]step{call("DEL", c.pod)}, c.del...)
	for pod := range c.others {
		c.others[pod] = call("ADD", pod)
	}
}

func (b *builder) floorMove(id, title string, more ...string) {
	c := b.next(groupHostDevice, id, title, "", "", goals{})
	if len(more) > 0 {
		c.floor = "hd-floor"
	}
	b.move(c, more...)
}

// move has ip(8) move the contender's NIC.
func (b *builder) move(c *contender, more ...string) {
	add := append([]string{"link", "set", c.nic, "netns", c.pod, "name", ifName}, more...)
	del := append([]string{"link", "set", ifName, "netns", nodeName, "name", c.nic}, more...)
	c.add = append(c.add, always(command{path: b.ip, args: add}))
	// Started inside the pod's namespace: "ip -n" would remount /sys as well.
	c.del = append([]step{always(command{path: b.ip, args: del, netns: c.pod})}, c.del...)
}

func (b *builder) floorChild(id, title string) {
	c := b.next(groupMacvlan, id, title, "", "", goals{})
	b.child(c, "type", "macvlan", "mode", "bridge")
}

// child has ip(8) make a child of the contender's NIC, of this type, in the pod.
func (b *builder) child(c *contender, kind ...string) {
	add := append([]string{"link", "add", "link", c.nic, "name", ifName, "netns", c.pod}, kind...)
	c.add = []step{always(command{path: b.ip, args: add})}
	c.del = []step{always(command{path: b.ip, args: []string{"link", "delete", ifName}, netns: c.pod})}
}

// binary is one file whose start, memory and size are measured.
type binary struct {
	title, path string
	sizeGoal    int64 // bytes, 0 is none
	rssGoal     int64
	railCNI     bool
	plugin      bool // answers VERSION
}

const (
	mega = 1_000_000
	mebi = 1 << 20
)

func binaries(p places) []*binary {
	newBinary := func(name string, size int64, plugin bool) *binary {
		b := &binary{title: "ours " + name, path: filepath.Join(p.bin, name), sizeGoal: size, railCNI: true, plugin: plugin}
		if plugin {
			b.rssGoal = 16 * mebi
		}
		return b
	}
	list := []*binary{
		newBinary("host-device", 7*mega, true),
		newBinary("macvlan", 7*mega, true),
		newBinary("whereabouts", 16*mega, true),
		newBinary("railctl", 0, false),
	}
	for _, name := range []string{"host-device", "macvlan", "host-local", "static"} {
		list = append(list, &binary{title: "upstream " + name, path: filepath.Join(p.peers, name), plugin: true})
	}
	return list
}

// versionCommand asks a plugin for its versions: a process that starts and
// ends.
func versionCommand(path string) command {
	return command{path: path, env: []string{"CNI_COMMAND=VERSION", "CNI_PATH=" + filepath.Dir(path)}, stdin: []byte(`{"cniVersion":"1.0.0"}`)}
}

// setUp makes the NICs and the pods of all contenders, and the other attachments on
// their NICs.
func setUp(s *scratch, list []*contender) error {
	for _, c := range list {
		if err := addNIC(c.nic); err != nil {
			return err
		}
		if len(c.others) > 0 {
			if err := ip("link", "set", c.nic, "up"); err != nil {
				return err
			}
		}
		for pod, add := range c.others {
			if err := ip("netns", "add", pod); err != nil {
				return err
			}
			if _, _, err := s.perform([]step{add}, nil); err != nil {
				return fmt.Errorf("the attachments beside %q: %w", c.title, err)
			}
		}
	}
	return addPods(list)
}

func addPods(list []*contender) error {
	for _, c := range list {
		if err := ip("netns", "add", c.pod); err != nil {
			return err
		}
	}
	return nil
}

// find returns the contender with this ID, or nil.
func find(list []*contender, id string) *contender {
	i := slices.IndexFunc(list, func(c *contender) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return list[i]
}
