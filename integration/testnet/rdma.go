package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// SetRDMAMode sets the machine's RDMA mode, in the rig. It waits until the
// kernel has destroyed the namespaces of ended pods: only then does it change
// the mode.
func (n *Netns) SetRDMAMode(t testing.TB, m rdma.Mode) {
	t.Helper()
	core, err := rdma.Open(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	Within(20*time.Second, func() bool {
		err = core.SetMode(m)
		return !errors.Is(err, rdma.ErrOtherNetns)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// From rdma/rdma_netlink.h.
const (
	rdmaGet         = 1  // RDMA_NLDEV_CMD_GET
	rdmaStatGet     = 17 // RDMA_NLDEV_CMD_STAT_GET
	rdmaStatStatus  = 24 // RDMA_NLDEV_CMD_STAT_GET_STATUS
	rdmaDeviceIndex = 1  // RDMA_NLDEV_ATTR_DEV_INDEX
	rdmaDeviceName  = 2  // RDMA_NLDEV_ATTR_DEV_NAME
	rdmaPortIndex   = 3  // RDMA_NLDEV_ATTR_PORT_INDEX
)

// RDMA sends one request to the RDMA core (RDMA_NLDEV_CMD_…) and returns the
// attributes of the answers.
func (n *Netns) RDMA(command uint16, flags int, attributes ...[]byte) ([][]byte, error) {
	n.t.Helper()
	const nldev = 5 << 10 // RDMA_NL_NLDEV
	return n.ask(unix.NETLINK_RDMA, nldev|command, flags, slices.Concat(attributes...))
}

// RDMADevice returns the name of the link's first RDMA device in the namespace, "" if
// there is none, and the attribute that identifies it in a request.
func (n *Netns) RDMADevice(nic string) (name string, device []byte) {
	n.t.Helper()
	n.Sysfs(nic, func(dir string) {
		if found, err := os.ReadDir(dir + "/device/infiniband"); err == nil && len(found) > 0 {
			name = found[0].Name()
		}
	})
	if name == "" {
		return "", nil
	}
	answers, err := n.RDMA(rdmaGet, unix.NLM_F_DUMP)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, a := range answers {
		if string(Find(a, rdmaDeviceName)) == name+"\x00" {
			return name, Attribute(rdmaDeviceIndex, Find(a, rdmaDeviceIndex))
		}
	}
	n.t.Fatalf("netlink has no RDMA device %s", name)
	return "", nil
}

// RDMASysfs calls f with the directory of an RDMA device below /sys/class/infiniband,
// as seen in the namespace.
func (n *Netns) RDMASysfs(nic string, f func(dir string)) {
	n.t.Helper()
	name, _ := n.RDMADevice(nic)
	n.Sysfs(nic, func(dir string) { f(dir + "/device/infiniband/" + name) })
}

// rdmaState returns the settings of the link's RDMA device: all of its attributes, the
// counter mode of its first port, and every writable file.
func (n *Netns) rdmaState(b *strings.Builder, nic string) {
	name, device := n.RDMADevice(nic)
	if name == "" {
		return
	}
	port := Attribute(rdmaPortIndex, binary.NativeEndian.AppendUint32(nil, 1))
	for _, ask := range []struct {
		what    string
		command uint16
		attrs   [][]byte
	}{
		{"device", rdmaGet, nil},
		{"counter mode", rdmaStatGet, [][]byte{port, Attribute(74, words(0)), Attribute(75, words(19))}}, // STAT_MODE, STAT_RES of QPs
		{"counters", rdmaStatStatus, [][]byte{port}},
	} {
		answers, err := n.RDMA(ask.command, 0, append([][]byte{device}, ask.attrs...)...)
		if err != nil || len(answers) != 1 {
			fmt.Fprintf(b, "rdma %s: %d answers, %v\n", ask.what, len(answers), err)
			continue
		}
		var text strings.Builder
		dump(&text, "", answers[0], func(string) bool { return false }, []string{"80", "80.81"})
		for line := range strings.Lines(text.String()) {
			fmt.Fprintf(b, "rdma %s %s", ask.what, line)
		}
	}
	n.RDMASysfs(nic, func(dir string) { sysfsState(b, dir) })
}

// VerbsContext makes a context of an RDMA device in the namespace, as ibv_open_device
// does, and keeps it until the test ends.
func (n *Netns) VerbsContext(t testing.TB, uverbs rdma.CharDev) {
	t.Helper()
	err := n.onThread(t, func() error {
		fd, err := unix.Open(uverbs.Path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		// struct ib_uverbs_cmd_hdr and ib_uverbs_get_context; sizes are in words.
		var answer [2]uint32 // file descriptor of events, number of vectors
		b := binary.NativeEndian.AppendUint32(nil, 0)
		b = binary.NativeEndian.AppendUint16(b, 4)
		b = binary.NativeEndian.AppendUint16(b, 2)
		b = binary.NativeEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&answer[0]))))
		_, err = unix.Write(fd, b)
		runtime.KeepAlive(&answer)
		if err == nil {
			t.Cleanup(func() { _ = unix.Close(int(answer[0])) })
		}
		return err
	})
	if err != nil {
		t.Fatalf("context of %s: %v", uverbs.Name, err)
	}
}

// onThread runs f in the namespace, on a thread that stays until the test ends: the kernel knows
// the user of a context by the thread that made it, not by the process (rdma_restrack_attach_task).
func (n *Netns) onThread(t testing.TB, f func() error) error {
	done, end := make(chan error), make(chan struct{})
	t.Cleanup(func() { close(end) })
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- n.Do(f)
		<-end
	}()
	return <-done
}
