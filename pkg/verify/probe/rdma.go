package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/netdevs"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

const (
	serverTime = 5 * time.Second  // the time limit until a server listens
	clientTime = 20 * time.Second // the time limit of a client
	maxOutput  = 64 << 10         // the maximum size of a program's output, in bytes
)

// rdmaTests runs the programs of all tests at the same time. Before that it ends the servers of
// earlier requests.
func (p *Prober) rdmaTests(ctx context.Context, tests []verify.RDMATest) (*verify.Answer, error) {
	if len(tests) > len(p.rails) {
		return nil, fmt.Errorf("%d RDMA tests, and %d rails", len(tests), len(p.rails))
	}
	for _, t := range tests {
		if t.Rail < 0 || t.Rail >= len(p.rails) || p.rails[t.Rail].link == nil || verify.RDMAPrograms[t.Program] == nil || !t.From.IsValid() || t.Port < 1024 {
			return nil, fmt.Errorf("RDMA test %d is not possible", t.ID)
		}
		if _, err := exec.LookPath(t.Program); err != nil {
			return nil, fmt.Errorf("%s is not there: install perftest, or name an image that has it with --rdma-image", t.Program)
		}
	}
	if p.noRDMA() {
		return nil, errors.New("no rail has an RDMA device in its network namespace: give pods RDMA devices by NRI, or by a device plugin whose resource the networks name")
	}
	if len(tests) > 0 && !tests[0].To.IsValid() {
		p.endServers()
	}
	a := &verify.Answer{RDMA: make([]verify.RDMAOutcome, len(tests))}
	var all sync.WaitGroup
	for i := range tests {
		all.Go(func() { a.RDMA[i] = p.rdmaTest(ctx, &tests[i]) })
	}
	all.Wait()
	return a, nil
}

func (p *Prober) rdmaTest(ctx context.Context, t *verify.RDMATest) verify.RDMAOutcome {
	o := verify.RDMAOutcome{ID: t.ID}
	args, err := p.perftest(t)
	if err != nil {
		o.Error, o.Own = short(err.Error()), true
		return o
	}
	if !t.To.IsValid() {
		return p.server(t, args)
	}
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	c := start(ctx, append(args, t.To.String()))
	<-c.ended
	if err = c.err; err != nil {
		err = fmt.Errorf("%s: %w: %s", t.Program, err, c.output.last())
	} else {
		o.Value, err = verify.ParsePerftest(t.Program, c.output.String())
	}
	if err != nil {
		o.Error = short(err.Error())
	}
	return o
}

// server starts the server of a test.
func (p *Prober) server(t *verify.RDMATest, args []string) verify.RDMAOutcome {
	o := verify.RDMAOutcome{ID: t.ID}
	if listens(t.Port) { // otherwise the client would take this program for the server
		o.Error, o.Unknown = fmt.Sprintf("another program listens on TCP port %d of the network namespace, but %s needs this port: end the other program", t.Port, t.Program), true
	} else if err := p.serve(args, t.Port); err != nil {
		o.Error, o.Own = short(err.Error()), true
	}
	return o
}

// short returns the beginning of a text as one line.
func short(s string) string {
	const maxBytes = 500
	return strings.ToValidUTF8(strings.Join(strings.Fields(s[:min(len(s), maxBytes)]), " "), "")
}

// perftest returns the command line of a test.
func (p *Prober) perftest(t *verify.RDMATest) ([]string, error) {
	port, err := p.rdmaOf(p.rails[t.Rail].Name, t.From)
	if err != nil {
		return nil, err
	}
	args := append([]string{t.Program, "-F", "-d", port.device, "-i", strconv.Itoa(int(port.port)), "-p", strconv.Itoa(int(t.Port))}, verify.RDMAPrograms[t.Program]...)
	return append(args, port.index...), nil
}

// errNoDevice is the error for an interface that certainly has no RDMA device.
var errNoDevice = errors.New("has no RDMA device in its network namespace")

// noRDMA reports whether it is certain that no rail has an RDMA device. Then the pod did not get
// any RDMA devices, which is not a defect of a rail.
func (p *Prober) noRDMA() bool {
	for i := range p.rails {
		if p.rails[i].link == nil {
			continue
		}
		if _, err := p.rdmaOf(p.rails[i].Name, netip.IPv4Unspecified()); !errors.Is(err, errNoDevice) && !errors.Is(err, rdma.ErrNoRDMA) {
			return false
		}
	}
	return true
}

// rdmaPort is the RDMA port of an interface, in the form that perftest needs.
type rdmaPort struct {
	device string
	port   uint32
	// index is a flag of perftest. For RoCE it has the index of the RoCE v2 GID of the interface's
	// address. For InfiniBand it has the index of the interface's partition. Without the flag
	// perftest would use index 0, which may be another partition.
	index []string
}

// rdmaOf returns the RDMA port of the interface with this name and address.
func (p *Prober) rdmaOf(name string, address netip.Addr) (rdmaPort, error) {
	port, err := p.rdmaBy(name, address, "")
	if errors.Is(err, unix.EPERM) { // a pod may not mount sysfs; its own /sys is the right one already
		return p.rdmaBy(name, address, "/sys")
	}
	return port, err
}

// rdmaBy does the work of rdmaOf. sys is the root of sysfs. If sys is "", rdmaBy mounts a sysfs.
func (p *Prober) rdmaBy(name string, address netip.Addr, sys string) (port rdmaPort, err error) {
	core, err := rdma.Open(p.netns)
	if err != nil {
		return port, err
	}
	defer core.Close()
	core.Sys = sys
	devices, err := core.Devices()
	if err != nil {
		return port, err
	}
	links, err := link.Links(p.netns)
	if err != nil {
		return port, err
	}
	pairs, err := netdevs.PairsOf(core, devices, links)
	for _, pair := range pairs {
		if pair.Netdev != name {
			continue
		}
		port.device, port.port = pair.Device, pair.Port
		d, err := core.ByName(pair.Device)
		if err != nil {
			return port, err
		}
		if pair.LinkLayer != "Ethernet" {
			port.index, err = partition(core, d, pair.Port, links, name)
			return port, err
		}
		entry, err := core.FindGID(d, pair.Port, address, name)
		port.index = []string{"-x", strconv.Itoa(entry.Index)}
		return port, err
	}
	if err != nil {
		return port, err
	}
	return port, fmt.Errorf("%s %w", name, errNoDevice)
}

// partition returns the flag of perftest that selects the partition of an IPoIB interface.
func partition(core *rdma.Core, d rdma.Device, port uint32, links []*link.Link, netdev string) ([]string, error) {
	i := slices.IndexFunc(links, func(l *link.Link) bool { return l.Name == netdev && l.IPoIB != nil })
	if i < 0 {
		return nil, fmt.Errorf("%s is not an InfiniBand interface", netdev)
	}
	key := links[i].IPoIB.PKey
	found, ok, keys, err := core.Member(d, port, key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("port %d of %s is not in the partition %#04x of %s: its keys are %v", port, d.Name, key, netdev, keys)
	}
	return []string{"--pkey_index", strconv.Itoa(found.Index)}, nil
}

// program is a running process.
type program struct {
	output bounded
	ended  chan struct{}
	err    error // set before ended is closed
}

// start starts a program. The program ends when ctx ends, and when this process ends.
func start(ctx context.Context, args []string) *program {
	c := &program{ended: make(chan struct{})}
	self, err := os.Executable()
	if err != nil {
		c.err = err
		close(c.ended)
		return c
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"verify", "exec", "--"}, args...)...)
	cmd.Stdout, cmd.Stderr = &c.output, &c.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	go func() {
		defer close(c.ended)
		runtime.LockOSThread() // Pdeathsig depends on this thread
		defer runtime.UnlockOSThread()
		c.err = cmd.Run()
	}()
	return c
}

// serve starts a server and waits until the server listens. The server ends when the next server
// starts, or when the prober ends.
func (p *Prober) serve(args []string, port uint16) error {
	ctx, cancel := context.WithTimeout(context.Background(), serverTime+2*clientTime)
	s := start(ctx, args)
	p.mu.Lock()
	p.servers = append(p.servers, func() { cancel(); <-s.ended })
	p.mu.Unlock()
	for began := time.Now(); !listens(port); {
		select {
		case <-s.ended:
			return fmt.Errorf("%s: %w: %s", args[0], errors.Join(s.err, errors.New("it ended")), s.output.last())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(began) > serverTime {
			return fmt.Errorf("%s does not listen after %s", args[0], serverTime)
		}
	}
	return nil
}

// endServers ends the servers of earlier tests.
func (p *Prober) endServers() {
	p.mu.Lock()
	servers := p.servers
	p.servers = nil
	p.mu.Unlock()
	for _, end := range servers {
		end()
	}
}

// listens reports whether this network namespace has a listener on the TCP port.
func listens(port uint16) bool {
	const listening = "0A" // TCP_LISTEN
	suffix := fmt.Sprintf(":%04X", port)
	for _, family := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + family)
		if err != nil {
			continue // the kernel has no IPv6
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == listening && strings.HasSuffix(f[1], suffix) {
				return true
			}
		}
	}
	return false
}

// bounded keeps the beginning of a program's output.
type bounded struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p[:min(len(p), maxOutput-b.text.Len())])
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// last returns the last line of the output.
func (b *bounded) last() string {
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	return lines[len(lines)-1]
}

// Exec replaces this process by a program that sees the /sys of the network namespace. libibverbs
// finds RDMA devices in /sys. In a pod, /sys already belongs to the pod's network namespace, and
// the pod may not mount another one. The calling thread must be the process's first thread, or the
// goroutine must be locked to it.
func Exec(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err == nil {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("sysfs", "/sys", "sysfs", 0, "")); err != nil {
			return fmt.Errorf("mount sysfs: %w", err)
		}
	} else if !errors.Is(err, unix.EPERM) {
		return err
	}
	return unix.Exec(path, args, os.Environ())
}
