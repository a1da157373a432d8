package rig

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// Machine is a virtual machine with RoCE NICs.
type Machine struct {
	Image  *Image
	Initrd string // file: the image's base, followed by the job
	Disk   string // file: a disk with ext4 on it; none if empty
	Memory string // in MB; 1024 if empty
	// With GPUs the machine has two NUMA nodes with PCIe switches ([GPUNode]), in place of
	// its other NICs. It is for machines with the NICs' own driver.
	GPUs bool
	// Reach is an address of this host's loopback, host:port, which the machine
	// reaches at [wire.Reached] through a NIC (eth0, virtio) of its own; that
	// NIC leads nowhere else. None if empty.
	Reach  string
	Out    io.Writer // takes the test's output
	ErrOut io.Writer
	Log    io.Writer // takes the rig's progress, for a person
}

// The slots of PCI bus 0 that hold a NIC each: the eight of the users' nodes,
// ens11np0 … ens18np0, and eight more for a second node. A NIC's rail is the
// last digit of its slot.
const (
	firstSlot   = 11
	secondSlot  = 21
	nicsPerNode = 8
	realPerNode = 3 // with a driver of the kernel: each takes the emulator a moment
)

const defaultMemory = "1024"

// kernelArgs make an emulated boot quick and its log complete: warnings go to
// the console, and a fatal error ends the machine at once.
//
// norandmaps: QEMU up to 7.2 at least keeps translated code by its virtual address.
// With address randomization each start of a dynamic program has the loader and libc
// elsewhere, and they are translated again, which is most of what ip(8) costs.
var kernelArgs = []string{
	"loglevel=5", "8250.nr_uarts=2", "panic=-1", "panic_on_oops=1", "sysctl.kernel.hung_task_timeout_secs=60",
	"mitigations=off", "nokaslr", "cryptomgr.notests", "audit=0", "apparmor=0", "selinux=0", "psi=0", "norandmaps",
	"random.trust_cpu=on", "rcupdate.rcu_expedited=1", "nowatchdog", "net.ifnames=0",
}

// console is the descriptor of QEMU that the kernel's console goes to.
const console = 3

func (m *Machine) args() []string {
	args := slices.Concat(m.Image.qemu.args(), m.Image.accel.args(), []string{
		"-smp", "2", "-m", cmp.Or(m.Memory, defaultMemory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.Image.Kernel, "-initrd", m.Initrd,
		"-append", strings.Join(slices.Concat(kernelArgs, m.Image.arch.kernel, []string{wire.Port + "=" + m.Image.arch.port}), " "),
		"-chardev", fmt.Sprintf("file,id=console,path=/dev/fd/%d", console), "-serial", "chardev:console",
	})
	args = append(args, m.Image.arch.machine...)
	if m.GPUs {
		args = append(args, gpuNode(cmp.Or(m.Memory, defaultMemory))...)
	} else {
		args = append(args, m.Image.nicArgs()...)
	}
	if host, port, err := net.SplitHostPort(m.Reach); err == nil {
		// One program for each connection: a socket that QEMU connects itself
		// is one connection for good.
		args = append(args, "-netdev", fmt.Sprintf("user,id=reach,restrict=on,ipv6=off,guestfwd=tcp:%s-cmd:busybox nc %s %s", wire.Reached, host, port),
			"-device", "virtio-net-pci,bus=pcie.0,netdev=reach,addr=4,romfile=")
	}
	if m.Disk != "" {
		args = append(args, "-drive", "file="+m.Disk+",format=raw,if=none,id=disk", "-device", "virtio-blk-pci,bus=pcie.0,drive=disk,addr=3")
	}
	return args
}

// fakeFunctions are the arguments for a NIC with virtual functions, below a bridge of its own.
var fakeFunctions = []string{
	"-device", "pcie-root-port,id=root1,bus=pcie.0,chassis=1,slot=1,addr=2", "-device", "nvme-subsys,id=subsystem",
	"-device", "nvme,serial=rig,subsys=subsystem,bus=root1,sriov_max_vfs=32,sriov_vq_flexible=64,sriov_vi_flexible=32,max_ioqpairs=66,msix_qsize=66",
}

// nicArgs returns the arguments for the NICs.
func (i *Image) nicArgs() (args []string) {
	switch {
	case i.nics == fakeNICs && i.functions:
		// vfio-pci takes no function without an IOMMU.
		args = []string{"-device", "intel-iommu"}
	case i.nics == fakeNICs:
		args = slices.Clone(fakeFunctions)
	}
	if i.functions {
		args = append(args, "-device", "pcie-root-port,id=root1,chassis=1,slot=1,addr=2", "-netdev", "hubport,id=functions,hubid=0",
			"-device", functionsNIC+",bus=root1,netdev=functions,mac=52:54:00:00:01:00,romfile=")
	}
	for rail := range nicsPerNode {
		for _, first := range []int{firstSlot, secondSlot} {
			slot := first + rail
			addr := strconv.FormatInt(int64(slot), 16)
			switch {
			case i.nics == fakeNICs:
				args = append(args, "-device", "edu,addr="+addr)
			case rail < realPerNode:
				args = append(args, "-netdev", fmt.Sprintf("hubport,id=nic%d,hubid=%d", slot, rail),
					"-device", fmt.Sprintf("%s,netdev=nic%d,addr=%s,mac=52:54:00:00:00:%d,romfile=", i.nics, slot, addr, slot))
			}
		}
	}
	return args
}

// A machine that does not boot is tried once more. A boot takes four to six
// seconds on a quiet host, and longer with more files; the second limit suits a
// busy host.
var bootLimits = []time.Duration{15 * time.Second, 60 * time.Second}

var (
	// errNoBoot is wrapped if a machine gave no sign of life.
	errNoBoot = errors.New("the machine did not boot")
	// errComplaint is wrapped if the machine's kernel reported trouble.
	errComplaint = errors.New("the kernel complained")
	// errEmulator is wrapped if the emulated CPU had impossible flags. scripts/test-rig.sh
	// knows it by its text, and runs the tests once more.
	errEmulator = errors.New("the emulator corrupted the flags of a CPU")
)

// Run boots the machine, runs the test and returns its exit code. The error is
// not nil if the test did not run to its end, or if the kernel reported trouble
// meanwhile; ctx bounds the whole run. Where KVM was the rig's choice and the machine
// does not boot, Run goes on without it, and keeps that for later machines.
func (m *Machine) Run(ctx context.Context) (code int, err error) {
	code, err = m.try(ctx)
	accel := m.Image.accel
	switch {
	case !accel.kvm || !errors.Is(err, errNoBoot) || ctx.Err() != nil:
		return code, err
	case accel.verdict == "":
		return code, fmt.Errorf("%w (RIG_ACCEL=tcg goes without KVM)", err)
	}
	fmt.Fprintln(m.Log, "rig: going on without KVM (RIG_ACCEL=kvm: with it all the same)")
	if err := m.Image.judge(accel.verdict, err.Error()); err != nil {
		return 0, err
	}
	return m.try(ctx)
}

// try is Run on one accelerator.
func (m *Machine) try(ctx context.Context) (code int, err error) {
	more := time.Duration(0)
	if info, err := os.Stat(m.Initrd); err == nil {
		more = time.Duration(info.Size()>>20) * 100 * time.Millisecond
	}
	limits := bootLimits
	if m.Image.accel.verdict != "" && m.Image.accel.kvm { // there is another way
		limits = limits[:1]
	}
	for _, limit := range limits {
		code, err = m.boot(ctx, (limit+more)*time.Duration(m.Image.arch.slowness))
		if !errors.Is(err, errNoBoot) || ctx.Err() != nil {
			break
		}
		fmt.Fprintf(m.Log, "rig: %v\n", err)
	}
	return code, err
}

// boot is one boot of the machine.
func (m *Machine) boot(ctx context.Context, limit time.Duration) (int, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	kernelLog, kernelEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer kernelLog.Close()
	cmd := exec.CommandContext(ctx, m.Image.qemu.program, m.args()...)
	cmd.ExtraFiles = []*os.File{kernelEnd}
	// QEMU must not outlive this process, even if that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	line, err := cmd.StdoutPipe()
	if err != nil {
		return 0, errors.Join(err, kernelEnd.Close())
	}
	err = cmd.Start()
	_ = kernelEnd.Close()
	if err != nil {
		return 0, err
	}
	watch := watchConsole(kernelLog)
	s := &session{m: m, booted: time.AfterFunc(limit, func() { stop(fmt.Errorf("%w within %v", errNoBoot, limit)) })}
	followErr := s.follow(line)
	switch {
	case followErr != nil && ctx.Err() != nil:
		followErr = context.Cause(ctx)
	case followErr != nil && !s.alive:
		followErr = fmt.Errorf("%w: it ended before its first process ran", errNoBoot)
	}
	stop(nil) // the machine has no state that is worth an orderly end
	_ = cmd.Wait()
	log := watch.wait()
	if complaints.Len() > 0 && followErr != nil {
		followErr = fmt.Errorf("%w; QEMU said: %s", followErr, bytes.TrimSpace(complaints.Bytes()))
	}
	return s.ended.Code, s.verdict(followErr, log)
}

// session is the output of one boot.
type session struct {
	m      *Machine
	booted *time.Timer // ends the boot if the machine stays silent
	alive  bool
	ended  wire.Event
}

// follow passes on the test's output until the guest reports its end.
func (s *session) follow(line io.Reader) error {
	defer s.booted.Stop()
	for r := wire.NewReader(line); ; {
		f, err := r.Next()
		if err != nil {
			return fmt.Errorf("the machine ended before the test did: %w", err)
		}
		switch f.Kind {
		case wire.Stdout:
			_, err = s.m.Out.Write(f.Bytes)
		case wire.Stderr:
			_, err = s.m.ErrOut.Write(f.Bytes)
		case wire.News:
			if done, err := s.handle(f.Event); done || err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) handle(e wire.Event) (done bool, err error) {
	switch e.Name {
	case wire.Booted:
		s.alive = true
		s.booted.Stop()
	case wire.Started:
		if os.Getenv("RIG_VERBOSE") != "" {
			fmt.Fprintf(s.m.Log, "rig: the test begins, %.1f s after the machine's kernel\n", e.Uptime)
		}
	case wire.Ended:
		s.ended = e
		return true, nil
	case wire.Failed:
		return true, fmt.Errorf("the machine cannot run the test: %s", e.Text)
	}
	return false, nil
}

// Bits of the kernel's taint that mean damage, without those that only mark our
// out-of-tree module (Documentation/admin-guide/tainted-kernels.rst).
const brokenTaint = 1<<4 | 1<<5 | 1<<7 | 1<<9 | 1<<14

// verdict joins the reason why the test was not run to its end with the
// kernel's reports.
func (s *session) verdict(err error, log *consoleLog) error {
	if s.ended.Taint&brokenTaint != 0 && len(log.trouble) == 0 {
		err = errors.Join(err, fmt.Errorf("the kernel is tainted (%#x) by a warning that its console does not show", s.ended.Taint))
	}
	if len(log.trouble) > 0 {
		err = errors.Join(err, fmt.Errorf("%w:\n%s", errComplaint, strings.Join(log.trouble, "\n")))
		if log.impossibleFlags() {
			err = fmt.Errorf("%w: %w", errEmulator, err)
		}
	} else if err != nil && !errors.Is(err, errNoBoot) {
		err = fmt.Errorf("%w; the kernel's last words:\n%s", err, log.last())
	}
	return err
}
