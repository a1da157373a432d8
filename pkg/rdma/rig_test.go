//go:build rig

package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// The tests named TestRig… need a kernel with an RDMA core to themselves, and
// eight NICs with a movable RDMA device each: the virtual machine of
// integration/rig. They are built with the tag "rig" only, as those in its
// tests/, and change the RDMA mode, so they do not run concurrently:
//
//	CGO_ENABLED=0 go test -tags rig -exec <integration/rig/exec> ./pkg/rdma

const nics = 8

// rig is the initial state of the tests: all devices are on the host, in a certain mode.
type rig struct {
	t    testing.TB
	ns   *netns.Netns
	host *Core
	devs []Device // of mlx5_0 … mlx5_7
}

func inRig(t testing.TB, m Mode) *rig {
	t.Helper()
	if os.Getenv("RAIL_CNI_RIG") == "" {
		t.Fatal("this test takes over the machine's NICs and RDMA mode: run it in the virtual machine of integration/rig (make test-rig)")
	}
	r := &rig{t: t, ns: current(t)}
	r.host = r.core(r.ns)
	r.mode(m)
	for i := range nics {
		name := fmt.Sprintf("mlx5_%d", i)
		d, err := r.host.awaitDevice(r.soon(), name, func(d Device) bool { return d.Name == name })
		if err != nil {
			t.Fatal(err)
		}
		r.devs = append(r.devs, d)
		l := r.netdev(r.ns, d)
		must(t, link.SetUp(r.ns, l.Index))
	}
	return r
}

func (r *rig) core(ns *netns.Netns) *Core {
	r.t.Helper()
	c, err := Open(ns)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// apart returns a Core of ns with a separate socket, like the Core of another process. All Cores of
// one Netns share its socket, which is busy while one of them moves a device.
func (r *rig) apart(ns *netns.Netns) *Core {
	r.t.Helper()
	var same *netns.Netns
	err := ns.Do(func() (err error) {
		same, err = netns.Current()
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(same.Close)
	same.Path = ns.Path
	return r.core(same)
}

// pod makes a namespace and the Core in it.
func (r *rig) pod(name string) (*netns.Netns, *Core) {
	r.t.Helper()
	ns := newNetns(r.t, name)
	c, err := Open(ns)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return ns, c
}

// soon returns a context for steps that take some time on a loaded machine.
func (r *rig) soon() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

// mode sets the mode once the namespaces of the previous test are gone. It returns the time that
// this took.
func (r *rig) mode(m Mode) time.Duration {
	r.t.Helper()
	began := time.Now()
	err := await(r.soon(), func() (bool, error) {
		err := r.host.SetMode(m)
		if errors.Is(err, ErrOtherNetns) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		r.t.Fatalf("set mode %s: %v", m, err)
	}
	if got, err := r.host.Mode(); err != nil || got != m {
		r.t.Fatalf("the mode is %q, %v", got, err)
	}
	return time.Since(began)
}

// netdev waits for the netdev of the device's NIC in a namespace.
func (r *rig) netdev(ns *netns.Netns, d Device) *link.Link {
	r.t.Helper()
	var found *link.Link
	err := await(r.soon(), func() (bool, error) {
		links, err := link.Links(ns)
		i := slices.IndexFunc(links, func(l *link.Link) bool { return l.ParentDev == d.ParentDev })
		if err != nil || i < 0 {
			return false, err
		}
		found = links[i]
		return true, nil
	})
	if err != nil {
		r.t.Fatalf("wait for the netdev of %s in netns %s: %v", d.ParentDev, ns.Path, err)
	}
	return found
}

func (r *rig) move(from *Core, d Device, to *Core) Moved {
	r.t.Helper()
	m, err := from.Move(r.soon(), d, to)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *rig) uverbs(c *Core, d Device) int {
	r.t.Helper()
	u, err := c.Uverbs(d)
	if err != nil {
		r.t.Fatal(err)
	}
	return u.number()
}

// delay makes each half of a move last longer.
func (r *rig) delay(d time.Duration) {
	r.t.Helper()
	set := func(ms int64) {
		must(r.t, os.WriteFile("/sys/module/fakerdma/parameters/move_delay_ms", []byte(strconv.FormatInt(ms, 10)), 0))
	}
	set(d.Milliseconds())
	r.t.Cleanup(func() { set(0) })
}

func namesOf(devs []Device) []string {
	var names []string
	for _, d := range devs {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return names
}

// openIn tries to open a device file from a thread of the namespace.
func openIn(ns *netns.Netns, path string) error {
	return ns.Do(func() error {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	})
}

// figures returns a summary of durations for the log.
func figures(took []time.Duration) string {
	slices.Sort(took)
	return fmt.Sprintf("%d times: min %v, median %v, max %v", len(took),
		took[0].Round(10*time.Microsecond), took[len(took)/2].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond))
}

func TestRigDevicesPortsAndCharDevices(t *testing.T) {
	r := inRig(t, Shared)
	all, err := r.host.Devices()
	must(t, err)
	var inSys []string
	entries, err := os.ReadDir("/sys/class/infiniband")
	must(t, err)
	for _, e := range entries {
		inSys = append(inSys, e.Name())
	}
	slices.Sort(inSys)
	if got := namesOf(all); len(got) < nics || !slices.Equal(got, inSys) {
		t.Errorf("listed %v, sysfs has %v", got, inSys)
	}
	owners, err := r.host.uverbsOwners()
	must(t, err)
	for _, d := range r.devs {
		r.checkDevice(d)
		u, err := r.host.Uverbs(d)
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Stat(u.Path(), &st))
		if unix.Major(st.Rdev) != u.Major || unix.Minor(st.Rdev) != u.Minor {
			t.Errorf("%s: %+v, the file is %d:%d", d.Name, u, unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		owner, err := r.host.ownerOfUverbs(u.number())
		if err != nil || owner != d.Name || owners[u.number()] != d.Name {
			t.Errorf("%s has %s, whose owner is %q or %q; %v", d.Name, u.Name, owner, owners[u.number()], err)
		}
		mad, err := r.host.umad(d, 1)
		must(t, err)
		if text, err := readLine(filepath.Join("/sys/class/infiniband_mad", mad.Name, "ibdev")); err != nil || text != d.Name {
			t.Errorf("%s has %+v, which is of %q; %v", d.Name, mad, text, err)
		}
		counters, err := r.host.Counters(d, 1)
		if err != nil || len(counters) == 0 {
			t.Errorf("%s: counters %v, %v", d.Name, counters, err)
		}
	}
	if _, err := r.host.umad(r.devs[0], 7); err == nil {
		t.Error("port 7 has a umad device")
	}
	for what, err := range map[string]error{
		"ByIndex": second(r.host.ByIndex(9999)), "ByName": second(r.host.ByName("mlx5_99")),
		"Port": second(r.host.Port(r.devs[0], 7)), "Uverbs": second(r.host.Uverbs(Device{Index: 9999})),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of what is not there: %v", what, err)
		}
	}
	if _, _, err := r.host.ByNetdev(1); !errors.Is(err, ErrNotFound) {
		t.Errorf("the loopback's RDMA device: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// checkDevice compares a device with sysfs, and the ways to find it.
func (r *rig) checkDevice(d Device) {
	r.t.Helper()
	at := filepath.Join("/sys/class/infiniband", d.Name)
	for file, want := range map[string]string{
		"node_guid": d.NodeGUID.String(), "sys_image_guid": d.SysImageGUID.String(),
		"fw_ver": d.FWVersion, "node_type": fmt.Sprintf("%d: %s", d.NodeType, d.NodeType),
		"ports/1/link_layer": "Ethernet",
	} {
		if got, err := readLine(filepath.Join(at, file)); got != want && !errors.Is(err, fs.ErrNotExist) || file == "node_guid" && got != want {
			r.t.Errorf("%s: sysfs' %s is %q, ours %q; %v", d.Name, file, got, want, err)
		}
	}
	if d.Protocol != "roce" || d.ParentBus != "pci" || d.Ports != 1 || d.NodeGUID == 0 {
		r.t.Errorf("%+v", d)
	}
	if got, err := r.host.ByIndex(d.Index); err != nil || got != d {
		r.t.Errorf("by index: %+v, %v", got, err)
	}
	if got, err := r.host.ByName(d.Name); err != nil || got != d {
		r.t.Errorf("by name: %+v, %v", got, err)
	}
	if got, err := r.host.ByParent(d.ParentDev); err != nil || len(got) != 1 || got[0] != d {
		r.t.Errorf("by parent: %+v, %v", got, err)
	}
	l := r.netdev(r.ns, d)
	got, port, err := r.host.ByNetdev(l.Index)
	if err != nil || got != d || port.Netdev != l.Index || port.NetdevName != l.Name || port.Number != 1 {
		r.t.Errorf("by netdev %s: %+v, %+v, %v", l.Name, got, port, err)
	}
	if port.State != PortActive || port.Phys != PhysLinkUp || port.LinkLayer != "Ethernet" {
		r.t.Errorf("%s: %+v", d.Name, port)
	}
}

func TestRigModeIsFixedWhileNetnsExist(t *testing.T) {
	r := inRig(t, Shared)
	ns := newNetns(t, "bystander")
	err := r.host.SetMode(Exclusive)
	if !errors.Is(err, ErrOtherNetns) || !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "options ib_core netns_mode=0") {
		t.Errorf("with another netns: %v", err)
	}
	must(t, r.host.SetMode(Shared)) // the one that it has
	ns.Close()
	t.Logf("exclusive accepted %v after the last other netns was closed", r.mode(Exclusive).Round(time.Millisecond))
	t.Logf("back to shared in %v", r.mode(Shared).Round(time.Millisecond))
}

func TestRigSharedModeMovesNothing(t *testing.T) {
	r := inRig(t, Shared)
	ns, pod := r.pod("pod")
	d := r.devs[0]
	_, err := r.host.Move(r.soon(), d, pod)
	if !errors.Is(err, ErrShared) || !strings.Contains(err.Error(), "options ib_core netns_mode=0") {
		t.Errorf("move: %v", err)
	}
	// Every netns sees all devices and can use them.
	theirs, err := pod.Devices()
	must(t, err)
	ours, err := r.host.Devices()
	must(t, err)
	if !slices.Equal(theirs, ours) {
		t.Errorf("the pod sees %v, the host %v", theirs, ours)
	}
	must(t, openIn(ns, fmt.Sprintf("/dev/infiniband/uverbs%d", r.uverbs(pod, d))))
	// The kernel names the netdev of a port only in its own netns.
	port, err := pod.Port(d, 1)
	if err != nil || port.Netdev != 0 || port.NetdevName != "" {
		t.Errorf("the pod sees %+v, %v", port, err)
	}
}

func TestRigThereAndBack(t *testing.T) {
	for name, rdmaFirst := range map[string]bool{"netdev first": false, "RDMA device first": true} {
		t.Run(name, func(t *testing.T) {
			r := inRig(t, Exclusive)
			ns, pod := r.pod("pod")
			d := r.devs[2]
			before := r.netdev(r.ns, d)
			number := r.uverbs(r.host, d)
			netdev := func(from, to *netns.Netns, name string) {
				must(t, link.Move(from, r.netdev(from, d).Index, to, name, ""))
			}
			if !rdmaFirst {
				netdev(r.ns, ns, "net1")
			}
			m := r.move(r.host, d, pod)
			if rdmaFirst {
				netdev(r.ns, ns, "net1")
			}
			if m.Device != d || m.Uverbs.number() != number {
				t.Errorf("moved %+v with uverbs%d: %+v", d, number, m)
			}
			r.checkInPod(d, ns, pod, number)
			// Move it again, although it is there already.
			if again, err := r.host.Move(r.soon(), d, pod); err != nil || again.Device != d {
				t.Errorf("again: %+v, %v", again, err)
			}
			if same, err := pod.Move(r.soon(), d, pod); err != nil || same.Device != d {
				t.Errorf("to where it is: %+v, %v", same, err)
			}
			r.move(pod, d, r.host)
			netdev(ns, r.ns, before.Name)
			must(t, link.SetUp(r.ns, r.netdev(r.ns, d).Index))
			r.checkDevice(d)
			if got := r.uverbs(r.host, d); got != number {
				t.Errorf("returned as uverbs%d, was uverbs%d", got, number)
			}
		})
	}
}

// checkInPod checks which namespaces see and can use a device whose NIC is in a
// pod.
func (r *rig) checkInPod(d Device, ns *netns.Netns, pod *Core, number int) {
	r.t.Helper()
	l := r.netdev(ns, d)
	must(r.t, link.SetUp(ns, l.Index))
	theirs, err := pod.Devices()
	if err != nil || len(theirs) != 1 || theirs[0] != d {
		r.t.Errorf("the pod sees %+v, %v", theirs, err)
	}
	if found, err := pod.ByParent(d.ParentDev); err != nil || len(found) != 1 {
		r.t.Errorf("by parent in the pod: %+v, %v", found, err)
	}
	got, port, err := pod.ByNetdev(l.Index)
	if err != nil || got != d || port.NetdevName != "net1" || port.State != PortActive {
		r.t.Errorf("by netdev in the pod: %+v, %+v, %v", got, port, err)
	}
	if _, err := r.host.ByIndex(d.Index); !errors.Is(err, ErrNotFound) {
		r.t.Errorf("the host by index: %v", err)
	}
	if ours, err := r.host.ByParent(d.ParentDev); err != nil || len(ours) != 0 {
		r.t.Errorf("the host by parent: %v, %v", ours, err)
	}
	if owner, err := r.host.ownerOfUverbs(number); err != nil || owner != d.Name {
		r.t.Errorf("the host sees uverbs%d as %q's, %v", number, owner, err)
	}
	own := fmt.Sprintf("/dev/infiniband/uverbs%d", number)
	foreign := fmt.Sprintf("/dev/infiniband/uverbs%d", r.uverbs(r.host, r.devs[5]))
	must(r.t, openIn(ns, own))
	must(r.t, openIn(r.ns, foreign))
	if err := openIn(ns, foreign); !errors.Is(err, unix.EPERM) {
		r.t.Errorf("the pod opens the host's %s: %v", foreign, err)
	}
	if err := openIn(r.ns, own); !errors.Is(err, unix.EPERM) {
		r.t.Errorf("the host opens the pod's %s: %v", own, err)
	}
}

func TestRigMoveTimes(t *testing.T) {
	r := inRig(t, Exclusive)
	_, pod := r.pod("pod")
	var there, back, list []time.Duration
	for range 25 {
		began := time.Now()
		r.move(r.host, r.devs[0], pod)
		there = append(there, time.Since(began))
		began = time.Now()
		r.move(pod, r.devs[0], r.host)
		back = append(back, time.Since(began))
		began = time.Now()
		_, err := r.host.Devices()
		must(t, err)
		list = append(list, time.Since(began))
	}
	t.Logf("moves to the pod, %s", figures(there))
	t.Logf("moves home, %s", figures(back))
	t.Logf("lists of all devices, %s", figures(list))
}

func TestRigADeviceInFlightIsWaitedFor(t *testing.T) {
	r := inRig(t, Exclusive)
	_, pod := r.pod("pod")
	other := r.apart(r.ns)
	d := r.devs[1]
	for delay := 300 * time.Millisecond; ; delay *= 3 {
		r.delay(delay)
		moved := make(chan error, 1)
		go func() { _, err := r.host.Move(r.soon(), d, pod); moved <- err }()
		must(t, await(r.soon(), func() (bool, error) {
			_, err := other.ByName(d.Name)
			return errors.Is(err, ErrNotFound), nil
		}))
		u, err := pod.Uverbs(d)
		inFlight := errors.Is(err, ErrNotFound) || errors.Is(err, ErrNoCharDev)
		// A second mover finds the device nowhere, or finds it incomplete, and waits.
		m, err := other.Move(r.soon(), d, pod)
		if errors.Is(err, ErrNotFound) {
			// The device left between the read and the request. The error asks the caller to try
			// again.
			m, err = other.Move(r.soon(), d, pod)
		}
		if err != nil || m.Device != d || m.Uverbs.Name == "" {
			t.Errorf("moved by another meanwhile: %+v, %v", m, err)
		}
		must(t, <-moved)
		r.delay(0)
		r.move(pod, d, r.host)
		if inFlight {
			return
		}
		// On a busy machine the time span may have passed.
		if delay > 2*time.Second {
			t.Fatalf("in flight, the pod had its %+v already", u)
		}
	}
}

func TestRigAMoveOfNothingEnds(t *testing.T) {
	r := inRig(t, Exclusive)
	_, pod := r.pod("pod")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	stranger := r.devs[0]
	stranger.NodeGUID++
	for _, d := range []Device{{Index: 9999, Name: "mlx5_99"}, stranger} {
		_, err := r.host.Move(ctx, d, pod)
		if !errors.Is(err, ErrNotFound) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "neither in netns host nor in netns pod") {
			t.Errorf("%v", err)
		}
	}
	r.checkDevice(r.devs[0])
}

func TestRigNames(t *testing.T) {
	r := inRig(t, Exclusive)
	_, pod := r.pod("pod")
	d := r.devs[0]
	r.move(r.host, r.devs[1], pod)
	// The name is taken by a device in any namespace.
	for _, taken := range []string{r.devs[1].Name, r.devs[2].Name} {
		if err := r.host.Rename(d, taken); !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "rename the device that has this name") {
			t.Errorf("rename to %s: %v", taken, err)
		}
	}
	r.move(r.host, d, pod)
	must(t, pod.Rename(d, "rail0"))
	m := r.move(pod, d, r.host)
	if m.Device.Name != "rail0" || !m.Device.Is(d) {
		t.Errorf("renamed in the pod, home as %+v", m.Device)
	}
	must(t, r.host.Rename(d, d.Name))
	r.move(pod, r.devs[1], r.host)
	r.checkDevice(d)
}

func TestRigNetnsDeathBringsDevicesHome(t *testing.T) {
	r := inRig(t, Exclusive)
	var rdmaBack, netBack []time.Duration
	for range 5 {
		ns, pod := r.pod("pod")
		var names []string
		for i, d := range r.devs {
			l := r.netdev(r.ns, d)
			names = append(names, l.Name)
			must(t, link.Move(r.ns, l.Index, ns, fmt.Sprintf("net%d", i+1), ""))
			r.move(r.host, d, pod)
		}
		began := time.Now()
		pod.Close()
		ns.Close()
		for _, d := range r.devs {
			home, err := r.host.awaitDevice(r.soon(), d.Name, func(x Device) bool { return x.ParentDev == d.ParentDev && x.NodeGUID == d.NodeGUID })
			if err != nil || home != d {
				t.Fatalf("%+v returned as %+v, %v", d, home, err)
			}
		}
		rdmaBack = append(rdmaBack, time.Since(began))
		for i, d := range r.devs {
			l := r.netdev(r.ns, d)
			must(t, link.Rename(r.ns, l.Index, names[i]))
			must(t, link.SetUp(r.ns, l.Index))
		}
		netBack = append(netBack, time.Since(began))
	}
	t.Logf("all 8 RDMA devices home after the netns was closed, %s", figures(rdmaBack))
	t.Logf("all 8 netdevs home and renamed, %s", figures(netBack))
	for _, d := range r.devs {
		r.checkDevice(d)
	}
}

// gidsOf returns the indexes of entries in the port's table, from the files.
func gidsOf(t *testing.T, d Device, g ibaddr.GID) (indexes []int) {
	t.Helper()
	at := filepath.Join("/sys/class/infiniband", d.Name, "ports/1")
	for i := range 255 {
		text, err := readLine(filepath.Join(at, "gids", strconv.Itoa(i)))
		if err != nil || text != g.String() {
			continue
		}
		if kind, err := readLine(filepath.Join(at, "gid_attrs/types", strconv.Itoa(i))); err == nil && kind == string(ibaddr.RoCEv2) {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

func address(text string) *net.IPNet {
	ip, n, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return n
}
