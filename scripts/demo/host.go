package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/rig/verbs"
)

// hostNIC is a NIC of this host, with its RDMA device.
type hostNIC struct {
	name, device string
	infiniband   bool // its port is InfiniBand, and has no RoCE GIDs
}

// trainTime bounds the wait for the links of hardware: a NIC that its driver closes
// for the move trains its link again.
const trainTime = time.Minute

// hostDemo lends NICs of this host to two pods: every second one to the second
// pod, and each pair in a network of its own. NICs that are not named are only
// read. Its state is the node's own, so it respects other users of rail-cni on
// this host. If the demo is killed, delete its pods' netns: `railctl gc` then
// restores the NICs.
type hostDemo struct {
	c           cni
	node        string // name of the host's netns
	pods        []pod
	nics        []hostNIC
	mode        string
	numbers     map[string]string // the char device of each RDMA device
	before      state             // of the NICs
	others      []string          // links and RDMA devices that are not named
	lent        []hostLoan
	spoke       int // number of pairs with RDMA traffic
	interrupted chan os.Signal
}

// hostLoan is one NIC in one pod.
type hostLoan struct {
	hostNIC
	p       pod
	ifname  string
	address string
}

func (n hostNIC) network() string { return "rail-cni-demo-" + n.name }

// demoHost is the second part on NICs of this host, which its owner has named
// by interface or RDMA device, in the host's current RDMA mode.
func demoHost(bin string, names []string) error {
	if os.Geteuid() != 0 {
		return errors.New("the demo moves NICs between network namespaces, which needs root")
	}
	fmt.Printf("rail-cni demo, part 2: on %s of this host (%s).\n", strings.Join(names, ", "), kernelRelease())
	_, err := lendHostNICs(cni{bin: bin}, names)
	return err
}

// lendHostNICs lends the NICs and returns them to the host. It returns the
// number of pairs between which there was RDMA traffic.
func lendHostNICs(c cni, names []string) (spoke int, err error) {
	hasRDMA, compared = true, comparedWithRDMA
	h := &hostDemo{c: c, node: "demo-host", pods: []pod{{"demo-pod1", "demo-host", 2}, {"demo-pod2", "demo-host", 3}}, interrupted: make(chan os.Signal, 1)}
	// The signal interrupts the child too: its command fails, and then all NICs
	// are returned.
	signal.Notify(h.interrupted, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(h.interrupted)
	if err := h.begin(names); err != nil {
		return 0, errors.Join(err, h.clear())
	}
	err = h.show()
	return h.spoke, errors.Join(err, h.home(), h.clear())
}

// begin records the host's state and makes the pods.
func (h *hostDemo) begin(names []string) error {
	if err := os.MkdirAll(confDir, 0o755); err != nil {
		return err
	}
	if err := runAll(fmt.Sprintf("ip netns attach %s %d", h.node, os.Getpid())); err != nil {
		return fmt.Errorf("%w (left by a demo that was killed? `ip netns delete` for %s and the demo-pods)", err, h.node)
	}
	for _, p := range h.pods {
		if err := runAll("ip netns add "+p.name, "ip -n "+p.name+" link set lo up"); err != nil {
			return err
		}
	}
	for _, name := range names {
		n, err := h.find(name)
		if err != nil {
			return err
		}
		if slices.Contains(h.nics, n) {
			return fmt.Errorf("%s is named twice", n.name)
		}
		h.nics = append(h.nics, n)
	}
	devices, err := ibdevs(h.node)
	if err != nil {
		return err
	}
	h.numbers = map[string]string{}
	for _, d := range devices {
		h.numbers[d.name] = d.uverbs
	}
	// An address is tentative for a second after its NIC came up.
	for deadline := time.Now().Add(settleTime); ; time.Sleep(100 * time.Millisecond) {
		if h.before, h.others, err = h.scan(); err != nil {
			return err
		}
		if !strings.Contains(strings.Join(h.before, "\n"), `"tentative":true`) || time.Now().After(deadline) {
			break
		}
	}
	out, err := run("rdma", "system", "show")
	if err != nil {
		return err
	}
	h.mode = together
	if strings.Contains(out, exclusive) {
		h.mode = exclusive
	}
	return nil
}

// find finds a NIC by its name, altname or RDMA device.
func (h *hostDemo) find(name string) (hostNIC, error) {
	n := hostNIC{name: name}
	if found, _ := filepath.Glob("/sys/class/infiniband/" + name + "/device/net/*"); len(found) == 1 {
		n.name = filepath.Base(found[0])
	}
	var links []seen
	if err := ipJSON(h.node, &links, "link", "show", "dev", n.name); err != nil || len(links) != 1 {
		return n, fmt.Errorf("this host has no NIC %s, and no RDMA device of that name with one NIC", name)
	}
	n.name = links[0].Ifname
	devices, _ := filepath.Glob("/sys/class/net/" + n.name + "/device/infiniband/*")
	if len(devices) != 1 {
		return n, fmt.Errorf("the NIC %s has %d RDMA devices, and the demo wants one", n.name, len(devices))
	}
	n.device = filepath.Base(devices[0])
	layer, err := os.ReadFile("/sys/class/infiniband/" + n.device + "/ports/1/link_layer")
	n.infiniband = strings.TrimSpace(string(layer)) == "InfiniBand"
	return n, err
}

// scan returns the state of the NICs, and the names of all others.
func (h *hostDemo) scan() (st state, others []string, err error) {
	all, err := readState(h.node)
	if err != nil {
		return nil, nil, err
	}
	var words []string
	for _, n := range h.nics {
		words = append(words, regexp.QuoteMeta(n.name), regexp.QuoteMeta(n.device))
	}
	named := regexp.MustCompile(`(^|[^\w.-])(` + strings.Join(words, "|") + `)($|[^\w.-])`)
	other := regexp.MustCompile(`^(link|rdma) (\S+):`)
	for _, line := range all {
		if named.MatchString(line) {
			st = append(st, line)
		} else if m := other.FindString(line); m != "" {
			others = append(others, m)
		}
	}
	return st, slices.Compact(others), nil
}

// show lends the NICs and shows them in the pods.
func (h *hostDemo) show() error {
	chapter(fmt.Sprintf("%d NICs of this host, for two pods; RDMA is in %s mode", len(h.nics), h.mode))
	out, err := h.c.railctl(h.node, "ibdev2netdev")
	if err != nil {
		return err
	}
	quote("railctl ibdev2netdev", out)
	devices := map[string][]string{}
	for i, n := range h.nics {
		l, err := h.lend(n, h.pods[i%2], i/2+1)
		if err != nil {
			return err
		}
		devices[l.p.name] = append(devices[l.p.name], n.device)
		printLine("%s: %s is %s, with %s", l.p.name, n.name, l.ifname, l.address)
	}
	if err := h.awaitLinks(); err != nil {
		return err
	}
	for _, p := range h.pods {
		if err := showPairs(h.c, p, devices[p.name]); err != nil {
			return err
		}
		if err := leftBehind(h.c, h.mode, p, devices[p.name], h.numbers); err != nil {
			return err
		}
	}
	if err := whoOpens(h.mode, h.pods); err != nil {
		return err
	}
	if slices.ContainsFunc(h.nics, func(n hostNIC) bool { return n.infiniband }) {
		return h.reachByIPoIB()
	}
	if err := showGIDs(h.c, h.mode, h.pods); err != nil {
		return err
	}
	return h.speak()
}

// awaitLinks waits until all links in the pods are up, for at most trainTime, and
// prints how long that took. showPairs reports links that are still down.
func (h *hostDemo) awaitLinks() error {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		var all strings.Builder
		for _, p := range h.pods {
			out, err := h.c.railctl(p.node, "ibdev2netdev", "--netns", p.path())
			if err != nil {
				return err
			}
			all.WriteString(out)
		}
		took := time.Since(began)
		if down := strings.Count(all.String(), "(Down)"); down == 0 || took > trainTime {
			printLine("after %.1f s %d of %d links are down", took.Seconds(), down, len(h.lent))
			return nil
		}
	}
}

// lend lends one NIC. It records the loan first.
func (h *hostDemo) lend(n hostNIC, p pod, number int) (hostLoan, error) {
	l := hostLoan{hostNIC: n, p: p, ifname: fmt.Sprintf("net%d", number)}
	if len(h.interrupted) > 0 {
		return l, errors.New("interrupted")
	}
	config, err := json.Marshal(map[string]any{
		"cniVersion": "0.3.1", "name": n.network(), "type": "host-device", "device": n.name, "rdma": "required",
		"ipam": map[string]any{
			"type": "whereabouts", "store": "local", "network_name": "rail-cni-demo",
			"range": fmt.Sprintf("172.31.%d.0/24", number), "gateway": fmt.Sprintf("172.31.%d.1", number),
		},
	})
	if err != nil {
		return l, err
	}
	if err := writeConfs([]examples.Network{{NAD: n.network(), Config: config}}); err != nil {
		return l, err
	}
	h.lent = append(h.lent, l)
	r, err := h.c.add(n.network(), l.ifname, p)
	if err != nil {
		return l, fmt.Errorf("ADD of %s: %w", n.name, err)
	}
	if len(r.IPs) != 1 {
		return l, fmt.Errorf("ADD of %s gave the addresses %v, not one", n.name, r.IPs)
	}
	l.address, _, _ = strings.Cut(r.IPs[0].Address, "/")
	h.lent[len(h.lent)-1] = l
	return l, nil
}

// reachByIPoIB sends pings between the pods, from port to port of each pair. The programs of [converse] are for RoCE.
func (h *hostDemo) reachByIPoIB() error {
	chapter("IP over InfiniBand between the pods (not shown: RDMA traffic)")
	for i := 0; i+1 < len(h.lent); i += 2 {
		a, b := h.lent[i], h.lent[i+1]
		if !reaches(b, a) {
			printLine("%s and %s do not reach each other by ping", a.name, b.name)
			continue
		}
		printLine("%s %s ⇄ %s %s at %s", b.p.name, b.ifname, a.p.name, a.ifname, a.address)
	}
	return nil
}

// reaches reports whether one NIC gets an answer from the other.
func reaches(from, to hostLoan) bool {
	_, err := run(inNetns(from.p.name, "ping", "-q", "-n", "-c", "1", "-W", "3", "-I", from.ifname, to.address)...)
	return err == nil
}

// speak sends RDMA between the pods, from NIC to NIC of each pair. It is no
// error if the NICs of a pair are not connected.
func (h *hostDemo) speak() error {
	chapter("RDMA traffic between the pods")
	for i := 0; i+1 < len(h.lent); i += 2 {
		a, b := h.lent[i], h.lent[i+1]
		if !reaches(b, a) {
			printLine("%s and %s do not reach each other by ping, so there is no traffic to show", a.name, b.name)
			continue
		}
		for _, program := range []string{"ibv_rc_pingpong", "ib_write_bw"} {
			if _, err := exec.LookPath(program); err != nil {
				printLine("this host has no %s (packages ibverbs-utils and perftest)", program)
				return nil
			}
		}
		server, err := h.end(a)
		if err != nil {
			return err
		}
		client, err := h.end(b)
		if err != nil {
			return err
		}
		if err := converse(server, client); err != nil {
			return err
		}
		h.spoke++
	}
	return nil
}

// converse shows the output of the usual programs for RDMA between two pods.
func converse(server, client verbs.End) error {
	ctx := context.Background()
	turns, err := verbs.PingPong(ctx, 20, server, client)
	if err != nil {
		return err
	}
	bandwidth, err := verbs.Bandwidth(ctx, 50, server, client)
	if err != nil {
		return err
	}
	printLine("%s: ibv_rc_pingpong -d %s -g %d", server.Netns, server.Device, server.GID)
	printLine("%s: ibv_rc_pingpong -d %s -g %d %s      %s", client.Netns, client.Device, client.GID, server.Address, turns)
	printLine("%s: ib_write_bw -d %s -x %d", server.Netns, server.Device, server.GID)
	printLine("%s: ib_write_bw -d %s -x %d %s      BW average %.2f Gb/s", client.Netns, client.Device, client.GID, server.Address, bandwidth)
	return nil
}

// end returns the node's record of a NIC's RDMA.
func (h *hostDemo) end(l hostLoan) (verbs.End, error) {
	list, err := rdmaOf(h.c, l.p)
	if err != nil {
		return verbs.End{}, err
	}
	for _, a := range list {
		for _, d := range a.RDMA.Devices {
			if a.IfName == l.ifname && len(d.GIDs) > 0 {
				return verbs.End{Netns: l.p.name, Device: d.Name, GID: d.GIDs[0].Index, Address: l.address}, nil
			}
		}
	}
	return verbs.End{}, fmt.Errorf("railctl show has no GID of %s in %s", l.ifname, l.p.name)
}

// home ends all attachments, including failed ones, and compares the host with
// its first state.
func (h *hostDemo) home() error {
	chapter("Detach: every NIC is returned")
	var errs []error
	for _, l := range slices.Backward(h.lent) {
		if err := h.c.del(l.network(), l.ifname, l.p); err != nil {
			errs = append(errs, fmt.Errorf("DEL of %s: %w (`railctl gc` will bring it home)", l.name, err))
		}
	}
	list, err := h.c.attachments(h.node)
	for _, a := range list {
		if slices.ContainsFunc(h.pods, func(p pod) bool { return p.path() == a.PodNetns }) {
			errs = append(errs, fmt.Errorf("an attachment is left: %+v", a))
		}
	}
	return errors.Join(append(errs, err, h.unchanged())...)
}

// unchanged compares the host with its first state, after waiting for the NICs'
// carriers and addresses.
func (h *hostDemo) unchanged() error {
	var lines []string
	for deadline := time.Now().Add(trainTime); ; time.Sleep(100 * time.Millisecond) {
		st, others, err := h.scan()
		if err != nil {
			return err
		}
		lines = append(diff(h.before, st), diff(h.others, others)...)
		if len(lines) == 0 {
			printLine("%s, of %d NICs:", compared, len(h.nics))
			printLine("diff before and after: empty (%d lines compared); %d other links and RDMA devices are where they were", len(st), len(others))
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the host is not as it was:\n%s", strings.Join(lines, "\n"))
		}
	}
}

// clear removes everything that the demo made beside the attachments.
func (h *hostDemo) clear() error {
	var errs []error
	for _, netns := range []string{h.pods[0].name, h.pods[1].name, h.node} {
		if _, err := os.Stat("/run/netns/" + netns); err == nil {
			errs = append(errs, runAll("ip netns delete "+netns))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(confDir))...)
}
