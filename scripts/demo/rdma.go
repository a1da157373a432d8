package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
)

// The RDMA modes of a node.
const (
	exclusive = "exclusive"
	together  = "shared" // the kernel's term
)

// demoRDMA is the second part: the same two pods on NICs with RDMA devices, in
// both modes of the RDMA core.
func demoRDMA(bin string) error {
	if os.Getenv(rig.Mark) == "" {
		return errors.New("-rdma unloads the NICs' driver and changes the RDMA mode, so it runs in the virtual machine of integration/rig only: scripts/demo.sh starts it there")
	}
	hasRDMA, compared = true, comparedWithRDMA
	if err := os.MkdirAll(confDir, 0o755); err != nil {
		return err
	}
	fmt.Printf("rail-cni demo, part 2: the same with RDMA, on the RDMA core of %s in a virtual machine.\n", kernelRelease())
	printLine("Its %d NICs are stand-ins: real PCI functions, netdevs and RDMA devices that move between", 2*len(rails))
	printLine("namespaces and have the GIDs that the kernel gives them; traffic comes last.")
	c := cni{bin: bin}
	wanted, err := annotations()
	if err != nil {
		return err
	}
	var nics []string
	for _, n := range wanted[0] {
		nics = append(nics, deviceOf(n))
	}
	for _, mode := range []string{exclusive, together} {
		if err := inMode(c, mode, nics); err != nil {
			return fmt.Errorf("%s mode: %w", mode, err)
		}
	}
	if err := infiniBand(c); err != nil {
		return fmt.Errorf("InfiniBand: %w", err)
	}
	return softRoCE(c)
}

// infiniBand lends two InfiniBand HCAs. In exclusive mode the kernel makes their interfaces anew with each move.
func infiniBand(c cni) error {
	if err := setMode(c, exclusive); err != nil {
		return err
	}
	fmt.Printf("\nOnce more on InfiniBand: two HCAs of a fabric with OpenSM, by the kernel's own ib_ipoib, in exclusive mode.\n")
	ports, end, err := makeFabric()
	if err != nil {
		return err
	}
	defer end()
	_, err = lendHostNICs(c, ports)
	return err
}

// makeFabric loads three NICs as InfiniBand HCAs, and starts a subnet manager on the last. It returns
// the interfaces of the others, which are up, and what ends the fabric.
func makeFabric() (ports []string, end func(), err error) {
	if err := kmod.ReloadNICs("link_layer=ib slots=11,12,18"); err != nil {
		return nil, nil, err
	}
	const slot18 = "0000:00:12.0"
	manager, err := opensm.StartOn(context.Background(), filepath.Join(workDir, "opensm"), slot18, opensm.OpenFabric)
	if err != nil {
		return nil, nil, err
	}
	ports = []string{"ib0", "ib1"}
	end = func() {
		for _, name := range ports {
			_ = runAll("ip link set " + name + " down") // while the manager answers, which shortens the driver's end
		}
		manager.Kill()
	}
	for _, name := range ports {
		if err := comesUp(name); err != nil {
			end()
			return nil, nil, err
		}
	}
	return ports, end, nil
}

// comesUp sets an interface of this host up, and waits for its carrier.
func comesUp(name string) error {
	if err := runAll("ip link set " + name + " up"); err != nil {
		return err
	}
	for deadline := time.Now().Add(settleTime); ; time.Sleep(50 * time.Millisecond) {
		state, err := os.ReadFile("/sys/class/net/" + name + "/operstate")
		if err != nil || strings.TrimSpace(string(state)) == "up" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has no carrier after %s", name, settleTime)
		}
	}
}

// softRoCE lends two NICs with a software RDMA device, which has a data path;
// the rig's NICs have none.
func softRoCE(c cni) error {
	nics := []string{fmt.Sprintf("ens%dnp0", firstSlot[nodes[0]]), fmt.Sprintf("ens%dnp0", firstSlot[nodes[1]])}
	err := setMode(c, exclusive)
	if err == nil {
		err = softNICs(nics...)
	}
	if errors.Is(err, kmod.ErrNoSoftRoCE) {
		chapter("Not shown: RDMA traffic")
		printLine("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Printf("\nOnce more with RDMA traffic: Soft-RoCE devices (patched for namespaces) on two NICs of one rail, as on a host with NICs to lend.\n")
	spoke, err := lendHostNICs(c, nics)
	if err == nil && spoke == 0 {
		err = errors.New("no RDMA traffic was shown")
	}
	return err
}

// softNICs makes the kernel find all NICs again without RDMA devices, and adds
// Soft-RoCE devices to these.
func softNICs(names ...string) error {
	if err := errors.Join(kmod.SoftRoCE(), kmod.ReloadNICs("rdma=0")); err != nil {
		return err
	}
	for i, name := range names {
		if err := runAll("ip link set "+name+" mtu 9000 up", fmt.Sprintf("rdma link add mlx5_%d type rxe netdev %s", i, name)); err != nil {
			return err
		}
	}
	return nil
}

func passedRDMA() string {
	return fmt.Sprintf("part 2 passed: %d NICs were lent to two pods, with their RDMA devices in exclusive mode and with their GIDs in shared mode, and were returned with their settings unchanged", 2*len(rails))
}

func kernelRelease() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "Linux"
	}
	return "Linux " + strings.TrimSpace(string(text))
}

// inMode is the workflow of examples/roce-nads.yaml in one RDMA mode.
func inMode(c cni, mode string, nics []string) error {
	chapter("Two nodes with eight RDMA NICs each, in " + mode + " mode")
	if err := setMode(c, mode); err != nil {
		return err
	}
	out, err := run(filepath.Join(c.bin, "railctl"), "rdma", "mode")
	if err != nil {
		return err
	}
	quote("railctl rdma mode", out)
	if err := makeRDMANodes(mode, nics); err != nil {
		return err
	}
	for _, node := range nodes {
		out, err := c.railctl(node, "ibdev2netdev")
		if err != nil {
			return err
		}
		quote("railctl ibdev2netdev      (on "+node+")", out)
	}
	numbers := map[string]string{}
	for _, node := range nodes {
		list, err := ibdevs(node)
		if err != nil {
			return err
		}
		for _, d := range list {
			numbers[d.name] = d.uverbs
		}
	}
	title := "The eight NADs of examples/roce-nads.yaml, unchanged, in " + mode + " mode"
	err = lendRails(c, title, func(pods []pod) error { return checkRDMA(c, mode, pods, numbers) })
	if err != nil {
		return err
	}
	return clearAway("pod1", "pod2")
}

// checkRDMA shows and checks the RDMA devices that the pods have and the nodes
// no longer have. numbers has the char device of each RDMA device on its node.
func checkRDMA(c cni, mode string, pods []pod, numbers map[string]string) error {
	chapter("Each RDMA device with its interface")
	devices := map[string][]string{}
	for i, p := range pods {
		for n := range rails {
			devices[p.name] = append(devices[p.name], fmt.Sprintf("mlx5_%d", i*len(rails)+n))
		}
		if err := showPairs(c, p, devices[p.name]); err != nil {
			return err
		}
	}
	printLine("(RDMA names are unique in a kernel, and both nodes are of one: so node2's count from %s)", devices["pod2"][0])
	for _, p := range pods {
		if err := leftBehind(c, mode, p, devices[p.name], numbers); err != nil {
			return err
		}
	}
	if mode == together {
		printLine("(in shared mode the RDMA devices stay visible to all; a port's interface is in one pod only)")
	}
	if err := whoOpens(mode, pods); err != nil {
		return err
	}
	if err := showGIDs(c, mode, pods); err != nil {
		return err
	}
	if err := pingRails(pods); err != nil {
		return err
	}
	chapter("What the node knows")
	return showNode(c, pods)
}

// showPairs prints ibdev2netdev of a pod, which must pair each device with the
// interface of the same place in the annotation.
func showPairs(c cni, p pod, devices []string) error {
	var want strings.Builder
	for i, d := range devices {
		fmt.Fprintf(&want, "%s port 1 ==> net%d (Up)\n", d, i+1)
	}
	out, err := c.railctl(p.node, "ibdev2netdev", "--netns", p.path())
	if err != nil {
		return err
	}
	quote("railctl ibdev2netdev --netns "+p.path()+"      (on "+p.node+")", out)
	if !slices.Equal(slices.Sorted(strings.Lines(out)), slices.Sorted(strings.Lines(want.String()))) {
		return fmt.Errorf("%s: ibdev2netdev should be\n%s", p.name, want.String())
	}
	return nil
}

// leftBehind shows what a pod's node still has of the pod's NICs, and checks
// the namespaces of their RDMA devices, and that these kept their char devices.
func leftBehind(c cni, mode string, p pod, devices []string, numbers map[string]string) error {
	for _, ns := range []string{p.node, p.name} {
		list, err := ibdevs(ns)
		if err != nil {
			return err
		}
		owned := 0
		for _, d := range list {
			if slices.Contains(devices, d.name) {
				owned++
			}
			if d.uverbs != numbers[d.name] {
				return fmt.Errorf("%s: the char device of %s is %s now, and was %s", ns, d.name, d.uverbs, numbers[d.name])
			}
		}
		want := map[string]int{p.name: len(devices)}[ns]
		if mode == exclusive && (owned != want || ns == p.name && len(list) != want) || mode == together && len(list) != len(numbers) {
			return fmt.Errorf("%s has the RDMA devices %v in %s mode", ns, names(list), mode)
		}
	}
	out, err := c.railctl(p.node, "ibdev2netdev")
	if err != nil {
		return err
	}
	for _, d := range devices {
		if strings.Contains("\n"+out, "\n"+d+" ") {
			return fmt.Errorf("%s still has a NIC with %s: %s", p.node, d, out)
		}
	}
	if out == "" {
		out = "(nothing)"
	}
	quote("railctl ibdev2netdev      (what is left on "+p.node+")", out)
	return nil
}

// whoOpens opens every uverbs device from both pods and their nodes.
func whoOpens(mode string, pods []pod) error {
	chapter("Who can open /dev/infiniband/uverbs*")
	for _, place := range slices.Compact([]string{pods[0].name, pods[0].node, pods[1].node, pods[1].name}) {
		list, err := ibdevs(place)
		if err != nil {
			return err
		}
		owned := map[string]bool{}
		for _, d := range list {
			owned[d.uverbs] = true
		}
		printed, err := openings(place)
		if err != nil {
			return err
		}
		var can, not []string
		for file, answer := range printed {
			switch {
			case answer == canOpen && owned[file]:
				can = append(can, file)
			case answer == refused && !owned[file] && mode == exclusive:
				not = append(not, file)
			default:
				return fmt.Errorf("%s opens %s: %s", place, file, answer)
			}
		}
		if len(can) != len(list) {
			return fmt.Errorf("%s opens %v, not those of its devices %v", place, can, names(list))
		}
		if len(can) > 0 {
			printLine("%-6s opens %s", place, spans(can))
		}
		if len(not) > 0 {
			printLine("%-6s does not open %s: %s", place, spans(not), refused)
		}
	}
	if mode == exclusive {
		printLine("each device kept the number that it had on its node: what a device plugin gave a container is still right")
	} else {
		printLine("shared mode does not isolate: what keeps a pod off the others' NICs is the device cgroup, by what its container was given")
	}
	return nil
}

// rdmaAttached is what railctl shows of an attachment's RDMA.
type rdmaAttached struct {
	IfName, PodNetns string
	Addresses        []string
	RDMA             struct {
		Mode    string
		Devices []struct {
			Name, State string
			Port        int
			GIDs        []rdmaGID
		}
	}
}

type rdmaGID struct {
	Address string
	Index   int
	Value   string
}

// showGIDs compares the GIDs in the plugin's record with sysfs.
func showGIDs(c cni, mode string, pods []pod) error {
	chapter("The GID of each address: what ib_write_bw -x and NCCL_IB_GID_INDEX want")
	for _, p := range pods {
		list, err := rdmaOf(c, p)
		if err != nil {
			return err
		}
		if err := showPodGIDs(mode, p, list); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	printLine("(each is of type RoCE v2 in the port's table, and of that interface, as sysfs says in the pod)")
	return nil
}

// rdmaOf returns the pod's attachments as the pod's node reports them.
func rdmaOf(c cni, p pod) ([]rdmaAttached, error) {
	out, err := c.railctl(p.node, "show", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list []rdmaAttached
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("railctl show -o json: %w", err)
	}
	return slices.DeleteFunc(list, func(a rdmaAttached) bool { return a.PodNetns != p.path() }), nil
}

func showPodGIDs(mode string, p pod, list []rdmaAttached) error {
	var files, want, lines []string
	for _, a := range list {
		if a.RDMA.Mode != mode || len(a.RDMA.Devices) != 1 || len(a.RDMA.Devices[0].GIDs) != 1 || a.RDMA.Devices[0].State != "ACTIVE" {
			return fmt.Errorf("railctl shows %+v, not one active device with one GID in %s mode", a, mode)
		}
		d := a.RDMA.Devices[0]
		g := d.GIDs[0]
		port := fmt.Sprintf("/sys/class/infiniband/%s/ports/%d/", d.Name, d.Port)
		for _, file := range []string{"gids", "gid_attrs/types", "gid_attrs/ndevs"} {
			files = append(files, fmt.Sprintf("%s%s/%d", port, file, g.Index))
		}
		value, err := gidOf(g.Address)
		if err != nil {
			return err
		}
		if g.Value != value || !slices.Contains(a.Addresses, g.Address+"/24") {
			return fmt.Errorf("%s has %v; the GID of %s is recorded as %s, and should be %s", a.IfName, a.Addresses, g.Address, g.Value, value)
		}
		want = append(want, value, "RoCE v2", a.IfName)
		lines = append(lines, fmt.Sprintf("%s %s  %-11s %-9s index %d  %s", p.name, a.IfName, g.Address, fmt.Sprintf("%s/%d", d.Name, d.Port), g.Index, value))
	}
	out, err := run(inNetns(p.name, append([]string{"cat"}, files...)...)...)
	if err != nil {
		return err
	}
	if have := strings.Split(strings.TrimSpace(out), "\n"); !slices.Equal(have, want) {
		return fmt.Errorf("sysfs has the GIDs\n%q, and they should be\n%q", have, want)
	}
	for _, line := range lines {
		printLine("%s", line)
	}
	return nil
}

// gidOf returns the GID of an address, as sysfs writes it.
func gidOf(address string) (string, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return "", err
	}
	var groups []string
	b := ip.As16()
	for i := 0; i < len(b); i += 2 {
		groups = append(groups, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	return strings.Join(groups, ":"), nil
}
