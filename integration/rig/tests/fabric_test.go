//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// managerRail is the rail with the port of the subnet manager.
const managerRail = 7

// openSM runs a subnet manager until the test ends.
func (n *node) openSM(partitions string) *opensm.Manager {
	n.t.Helper()
	began := time.Now()
	m, err := opensm.Start(n.t.Context(), n.t.TempDir(), n.portGUID(managerRail), partitions)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Logf("a fabric after %.1f s", time.Since(began).Seconds())
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("opensm:\n%s", m.Log())
		}
		n.leaveGroups()
		m.Kill()
	})
	return m
}

// leaveGroups sets the InfiniBand interfaces down while the subnet manager answers. Without an answer
// the kernel waits for many seconds before it removes their RDMA devices (mcast_remove_one).
func (n *node) leaveGroups() {
	n.t.Helper()
	links, err := link.Links(n.Netns.Netns)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, l := range links {
		if l.Encap == "infiniband" && l.IsUp() {
			n.IP("link", "set", l.Name, "down")
		}
	}
}

// hcaOf returns the name of the RDMA device of a rail.
func (n *node) hcaOf(rail int) string {
	n.t.Helper()
	found, err := filepath.Glob("/sys/bus/pci/devices/" + nicPCI(rail) + "/infiniband/*")
	if err != nil || len(found) != 1 {
		n.t.Fatalf("the RDMA devices of %s: %v, %v", nicPCI(rail), found, err)
	}
	return filepath.Base(found[0])
}

// portFile returns a file of the port of a rail in sysfs.
func (n *node) portFile(rail int, name string) string {
	n.t.Helper()
	return n.sysfs(n.hcaOf(rail), name)
}

// sysfs returns a file of the first port of an RDMA device.
func (n *node) sysfs(device, name string) string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/class/infiniband", device, "ports/1", name))
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// portGUID returns the GUID of the port of a rail, "0xb8cef6fffe0000xx".
func (n *node) portGUID(rail int) string {
	n.t.Helper()
	guid, err := opensm.PortGUID(nicPCI(rail))
	if err != nil {
		n.t.Fatal(err)
	}
	return guid
}

// pkeys returns the P_Key table of the port of a rail, up to its last key.
func (n *node) pkeys(rail int) string {
	n.t.Helper()
	var keys []string
	for i := range 32 {
		keys = append(keys, n.portFile(rail, fmt.Sprintf("pkeys/%d", i)))
	}
	for len(keys) > 0 && keys[len(keys)-1] == "0x0000" {
		keys = keys[:len(keys)-1]
	}
	return strings.Join(keys, " ")
}

// number returns the number in a file of the port of a rail, "0x1f", in decimal.
func (n *node) number(rail int, name string) string {
	n.t.Helper()
	var v int
	if _, err := fmt.Sscanf(n.portFile(rail, name), "0x%x", &v); err != nil {
		n.t.Fatal(err)
	}
	return fmt.Sprint(v)
}

// setKnob writes to a file of the NICs' driver, see module/knobs.c.
func (n *node) setKnob(rail int, name, value string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join("/sys/bus/pci/devices", nicPCI(rail), name), []byte(value), 0); err != nil {
		n.t.Fatal(err)
	}
}

// TestOpenSMMakesAFabric: no port is active before OpenSM starts, all 16 are after its first sweep, and
// ibstat, sminfo and ibnetdiscover agree with railctl.
func TestOpenSMMakesAFabric(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib slots=11,12,13,14,15,16,17,18,21,22,23,24,25,26,27,28")
	devices, err := filepath.Glob("/sys/class/infiniband/*")
	if err != nil || len(devices) != 16 {
		t.Fatalf("%v, %v", devices, err)
	}
	for i, d := range devices {
		devices[i] = filepath.Base(d)
		if state, lid := n.sysfs(devices[i], "state"), n.sysfs(devices[i], "lid"); state != "2: INIT" || lid != "0x0" {
			t.Errorf("%s is %s with LID %s before there is a subnet manager", devices[i], state, lid)
		}
	}
	n.openSM(opensm.OpenFabric)
	lids := map[string]bool{}
	for _, d := range devices {
		if state := n.sysfs(d, "state"); state != "4: ACTIVE" {
			t.Errorf("%s is %s", d, state)
		}
		lids[n.sysfs(d, "lid")] = true
	}
	if len(lids) != 16 || lids["0x0"] {
		t.Errorf("the LIDs: %v", lids)
	}
	if keys := n.pkeys(0); keys != "0xffff" {
		t.Errorf("the P_Keys: %s", keys)
	}
	var list []inventory.NIC
	out, errOut, code := n.railctl("nics", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 {
		t.Fatalf("%v, exit code %d, %s", err, code, errOut)
	}
	ports := 0
	for i := range list {
		for _, p := range list[i].Ports {
			ports++
			stat := n.Exec("ibstat", p.Device, fmt.Sprint(p.Port))
			if p.State != "ACTIVE" || !strings.Contains(stat, "State: Active") || list[i].LinkType != "infiniband" {
				t.Errorf("railctl: %s port %d is %s, of type %q; ibstat:\n%s", p.Device, p.Port, p.State, list[i].LinkType, stat)
			}
		}
	}
	if ports != 16 {
		t.Errorf("railctl lists %d ports", ports)
	}
	if said := n.Exec("sminfo", "-C", devices[0]); !strings.Contains(said, "sm lid "+n.number(managerRail, "lid")+" sm guid "+n.portGUID(managerRail)) {
		t.Errorf("sminfo, asked on %s: %s", devices[0], said)
	}
	if found := n.Exec("ibnetdiscover", "-C", devices[0], "-p"); strings.Count(found, "CA ") < 16 || !strings.Contains(found, "SW ") {
		t.Errorf("ibnetdiscover:\n%s", found)
	}
}

// TestInterfacesOfAnHCAWithTwoPorts: their addresses have the GUIDs of their ports, also in a pod.
func TestInterfacesOfAnHCAWithTwoPorts(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib slots=11,12,18 two_ports=11,12")
	n.openSM(opensm.OpenFabric)
	device := n.hcaOf(0)
	p := n.pod("pod1")
	n.Batch(nil, "link set ib0 up", "link set ib1 up", "link add child link ib1 type ipoib pkey 0xffff", "link set child netns "+p.Name+" name net1")
	n.carrier("ib0", "ib1")
	for flag, want := range map[string]string{
		"":     fmt.Sprintf("%[1]s port 1 ==> ib0 (Up)\n%[1]s port 2 ==> ib1 (Up)\n", device),
		p.Name: device + " port 2 ==> net1 (Down)\n",
	} {
		args := []string{"ibdev2netdev"}
		if flag != "" {
			args = append(args, "--netns", "/run/netns/"+flag)
		}
		out, errOut, code := n.railctl(args...)
		lines := ""
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, device+" ") {
				lines += line
			}
		}
		if lines != want || code != 0 || errOut != "" {
			t.Errorf("%v: exit code %d, %s\n%swant\n%s", args, code, errOut, out, want)
		}
	}
	var list []inventory.NIC
	out, _, _ := n.railctl("nics", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		wanted := map[string]uint32{"ib0": 1, "ib1": 2}[list[i].Name]
		if wanted != 0 && (len(list[i].Ports) != 1 || list[i].Ports[0].Port != wanted || list[i].Ports[0].Device != device) {
			t.Errorf("railctl nics: %s has the ports %+v, not port %d", list[i].Name, list[i].Ports, wanted)
		}
	}
}

// member is the IPoIB interface of a rail's port in a namespace of its own.
type member struct {
	*testnet.Netns
	rail int
}

// reaches reports whether an echo request from the member is answered.
func (m *member) reaches(address string, patience time.Duration) bool {
	return testnet.Within(patience, func() bool {
		return exec.Command("ip", "netns", "exec", m.Name, "ping", "-q", "-c", "1", "-W", "1", address).Run() == nil
	})
}

// TestPartitionsDecideWhoReachesWhom: two limited members do not reach each other, and a member of
// no common partition reaches nobody, each way, also after the manager has read other partitions.
func TestPartitionsDecideWhoReachesWhom(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib slots=11,12,13,18")
	guids := []any{n.portGUID(0), n.portGUID(1), n.portGUID(2)}
	const base = opensm.OpenFabric + "red=0x0001, ipoib, defmember=limited : %[1]s=%[4]s, %[2]s=%[5]s, %[3]s=%[6]s ;\n" +
		"blue=0x0002, ipoib : %[2]s=full, %[3]s=full ;\n"
	partitions := func(members ...any) string { return fmt.Sprintf(base, append(slices.Clone(guids), members...)...) }
	m := n.openSM(partitions("full", "limited", "limited"))
	for rail, want := range []string{"0xffff 0x8001", "0xffff 0x0001 0x8002", "0xffff 0x0001 0x8002"} {
		if keys := n.pkeys(rail); keys != want {
			t.Errorf("the P_Keys of rail %d are %s, not %s", rail, keys, want)
		}
	}
	var members []*member
	for rail := range 3 {
		p := &member{testnet.NewNetns(t, fmt.Sprintf("m%d", rail)), rail}
		n.IP("link", "set", n.ipoib(rail), "netns", p.Name, "name", "ib0")
		commands := []string{"link set ib0 up"}
		for i, key := range []string{"0x8001", "0x8002"} {
			commands = append(commands, fmt.Sprintf("link add name c%d link ib0 type ipoib pkey %s", i+1, key),
				fmt.Sprintf("addr add 10.%d.0.%d/24 dev c%d", i+1, rail+1, i+1), fmt.Sprintf("link set c%d up", i+1))
		}
		p.Batch(nil, commands...)
		members = append(members, p)
	}
	// Who reaches whom, by partition: the pairs of rails.
	check := func(want map[int][][2]int) {
		t.Helper()
		var all sync.WaitGroup
		defer all.Wait()
		for partition, pairs := range want {
			for from := range members {
				for to := range members {
					wanted := slices.ContainsFunc(pairs, func(p [2]int) bool {
						return p == [2]int{from, to} || p == [2]int{to, from}
					})
					if from == to {
						continue
					}
					all.Go(func() { // each that is not answered waits for a second
						patience := time.Duration(0)
						if wanted {
							patience = 40 * time.Second
						}
						if have := members[from].reaches(fmt.Sprintf("10.%d.0.%d", partition, to+1), patience); have != wanted {
							t.Errorf("partition %d, rail %d to rail %d: reached: %v", partition, from, to, have)
						}
					})
				}
			}
		}
	}
	check(map[int][][2]int{1: {{0, 1}, {0, 2}}, 2: {{1, 2}}})
	if err := m.SetPartitions(t.Context(), partitions("limited", "limited", "full")); err != nil {
		t.Fatal(err)
	}
	n.eventually("the new memberships", func() bool { return n.pkeys(0) == "0xffff 0x0001" && n.pkeys(2) == "0xffff 0x8001 0x8002" })
	check(map[int][][2]int{1: {{2, 0}, {2, 1}}, 2: {{1, 2}}})
	if err := m.SetPartitions(t.Context(), "red=0x0001 : PortGUID ;\n"); err == nil {
		t.Error("SetPartitions returned no error for a file that OpenSM rejects")
	}
}

// TestFabricFollowsCablesGUIDsAndManagers also shows that a port does not tell that its manager is
// gone.
func TestFabricFollowsCablesGUIDsAndManagers(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib slots=11,12,18")
	m := n.openSM(opensm.OpenFabric)
	active := func() bool { return n.portFile(0, "state") == "4: ACTIVE" }
	n.setKnob(0, "port_state", "DOWN")
	if state := n.portFile(0, "state"); state != "1: DOWN" {
		t.Errorf("without a cable: %s", state)
	}
	n.setKnob(0, "port_state", "auto")
	n.eventually("the port is active again", active)
	n.setKnob(0, "guid", "b8cef60000c0ffee")
	n.setKnob(0, "recreate_rdma", "1")
	if guid := n.portGUID(0); guid != "0xb8cef60000c0ffee" {
		t.Errorf("the GUID is %s", guid)
	}
	n.eventually("the port with the new GUID is active", active)
	ib := n.ipoib(0)
	n.IP("link", "set", ib, "up")
	n.carrier(ib)
	before := n.portFile(0, "sm_lid")
	answers := func() bool { return exec.Command("sminfo", "-C", n.hcaOf(0), "-t", "200").Run() == nil }
	n.setKnob(managerRail, "deaf", "1")
	if answers() {
		t.Error("the manager answers, though its port is deaf")
	}
	n.setKnob(managerRail, "deaf", "0")
	n.eventually("the manager answers again", answers)
	m.Kill()
	time.Sleep(3 * time.Second) // more than a sweep
	if state, lid := n.portFile(0, "state"), n.portFile(0, "sm_lid"); state != "4: ACTIVE" || lid != before {
		t.Errorf("after the manager's death: %s, manager's LID %s, not %s", state, lid, before)
	}
	n.setKnob(0, "pkeys", "0x7fff 0 0x8010")
	if keys := n.pkeys(0); keys != "0x7fff 0x0000 0x8010" {
		t.Errorf("the P_Keys: %s", keys)
	}
}

// TestPodIsToldItsPlaceInTheFabric: in the default partition the port is a limited member, as after a
// partitions.conf without a line Default.
func TestPodIsToldItsPlaceInTheFabric(t *testing.T) {
	for _, mode := range []rdma.Mode{rdma.Shared, rdma.Exclusive} {
		t.Run(string(mode), func(t *testing.T) { podIsToldItsPlace(t, mode) })
	}
}

func podIsToldItsPlace(t *testing.T, mode rdma.Mode) {
	n := newRDMANode(t, mode, "link_layer=ib slots=11,18")
	n.openSM("red=0x0001, ipoib, defmember=full : " + n.portGUID(0) + " ;\n")
	ib := n.ipoib(0)
	setIPoIB(n.Netns, ib, "connected", 0)
	lid, portGUID, keys := n.number(0, "lid"), n.portGUID(0), strings.Fields(n.pkeys(0)) // in exclusive mode the host does not see them later
	p, config := n.pod("pod1"), n.config(0, map[string]any{"device": ib, "linkTimeout": "0s"})
	call := p.call("ADD", "net1", config)
	call.Args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=trainer;K8S_POD_UID=u1"
	result := n.MustRun(call)
	out, errOut, code := n.railctl("pod", "default/trainer", "-o", "json")
	var told railinfo.Rails
	if err := json.Unmarshal([]byte(out), &told); err != nil || code != 0 || len(told.Rails) != 1 {
		t.Fatalf("%v, exit code %d, %s\n%s", err, code, errOut, out)
	}
	l := &told.Rails[0]
	guid := "0x" + strings.ReplaceAll(l.GUID, ":", "")
	if fmt.Sprint(l.LID) != lid || guid != portGUID || l.Mode != "connected" || l.State != "ACTIVE" {
		t.Errorf("LID %d, GUID %s, %s, %s", l.LID, l.GUID, l.Mode, l.State)
	}
	if l.PKeyIndex == nil || keys[*l.PKeyIndex] != l.PKey || l.PKey != "0x7fff" {
		t.Errorf("P_Key %s at index %v of %s", l.PKey, l.PKeyIndex, keys)
	}
	for _, path := range l.CharDevices {
		if !strings.HasPrefix(filepath.Base(path), "uverbs") {
			t.Errorf("the pod would get %s", path)
		}
	}
	if mode == rdma.Shared { // in exclusive mode the knob is not the host's
		check := p.call("CHECK", "net1", n.config(0, map[string]any{"device": ib, "prevResult": json.RawMessage(result)}))
		check.Args = call.Args
		n.MustRun(check)
		n.setKnob(0, "pkeys", "0x8010")
		n.eventually("CHECK notices another partition", func() bool {
			_, err := n.Run(check)
			return err != nil && strings.Contains(err.Error(), "is in the partition 0x8010")
		})
		n.setKnob(0, "pkeys", strings.Join(keys, " "))
	}
	if _, said, err := n.RunSaying(call.With("DEL")); err != nil || said != "" {
		t.Errorf("DEL: %v, %s", err, said)
	}
}

// TestDoctorFindsDefectsOfAFabric plants them one after another, with a real subnet manager.
func TestDoctorFindsDefectsOfAFabric(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib slots=11,18")
	file := filepath.Join(t.TempDir(), "node.yaml")
	write(t, file, fmt.Sprintf("rails:\n- {id: 0, pci: %q}\n- {id: 7, pci: %q}\n", nicPCI(0), nicPCI(7)))
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(nodefile.PathEnv, file)
	s := &railNode{node: n, nodeFile: file}
	only := []string{"--only", "IB-NAD-PKEY,IB-MTU,IB-SM,IB-SM-LENT,IB-LID,IB-PKEY,IB-GUID-ZERO,IB-ORPHAN-CHILD"}
	wants := func(want map[string]string) {
		t.Helper()
		found, missing := s.judged(want, only...)
		s.compare(found, missing, want)
	}
	wants(map[string]string{"IB-SM": "waits for a subnet manager (state INIT)"})
	manager := n.openSM(opensm.OpenFabric)
	const rule = "IB-SM-LENT"
	found := "a subnet manager runs on port 1 of " + n.hcaOf(managerRail)
	wants(map[string]string{rule: found})

	// The rig has no API server with networks.
	ib, port := n.ipoib(0), "port 1 of "+n.hcaOf(0)
	n.IP("link", "set", ib, "up")
	n.carrier(ib)
	network := func(keys string, want map[string]string) {
		t.Helper()
		f := n.collected(50 * time.Millisecond)
		text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "fabric", "type": "ipoib", "master": %q, %s}`, ib, keys)
		f.Configs.NADs = fact.Known([]fact.Config{{Kind: fact.NADConfig, Name: "default/fabric", Text: text}}, "test")
		want[rule] = found
		judged, missing := s.judgedFacts(f, only...)
		s.compare(judged, missing, want)
	}
	network(`"pkey": "0x7fff", "mtu": 2044`, map[string]string{})
	network(`"pkey": "0x8001"`, map[string]string{"IB-NAD-PKEY": "NAD default/fabric: " + port + " (" + ib + ") is not a member of partition 0x1"})
	n.setKnob(0, "pkeys", "0xffff 0x8001")
	network(`"pkey": "0x8001"`, map[string]string{})
	// Without "mtu" in partitions.conf the group's packets have 2048 bytes.
	network(`"mtu": 4092`, map[string]string{"IB-MTU": "NAD default/fabric: its mtu is 4092, but the MTU of " + ib + " is 2044"})

	n.IP("link", "set", ib, "down") // without a LID it would have no carrier
	lid := n.number(0, "lid")
	n.setKnob(0, "lid", "0")
	wants(map[string]string{rule: found, "IB-LID": "NIC " + ib + ": " + port + " is active and has no LID"})
	n.setKnob(0, "lid", lid)
	wants(map[string]string{rule: found})

	// As ipoib-cni does it; then the pod is killed.
	p := n.pod("killed")
	n.IP("link", "add", "link", n.ipoib(0), "name", "orphan", "type", "ipoib")
	n.IP("link", "set", "orphan", "netns", p.Name, "name", "net1", "up")
	p.Kill()
	n.eventually("the child is on the host", func() bool { return len(n.children(n.Netns)) == 1 })
	wants(map[string]string{rule: found, "IB-ORPHAN-CHILD": "it is a child of an InfiniBand interface, it is down"})
	n.IP("link", "delete", n.children(n.Netns)[0])

	n.setKnob(0, "pkeys", "0x7fff 0x8001")
	wants(map[string]string{rule: found, "IB-PKEY": "index 0 of the partition keys of port 1 of " + n.hcaOf(0) + " is 0x7fff"})
	n.leaveGroups()
	manager.Kill() // its next sweep would make the port active
	n.setKnob(0, "guid", "0xffffffffffffffff")
	n.setKnob(0, "recreate_rdma", "1")
	wants(map[string]string{"IB-GUID-ZERO": "is ffff:ffff:ffff:ffff", "IB-SM": "waits for a subnet manager"})
}
