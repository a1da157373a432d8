package rig

import (
	"debug/elf"
	"fmt"
	"runtime"
)

// arch is an architecture of machines, by the name that Debian and Go have for
// it.
type arch struct {
	name     string
	elf      elf.Machine
	qemu     string   // the emulator
	needed   []string // commands for it, in the form of scripts/need.sh
	machine  []string // arguments of the emulator: the kind of machine, the CPU, the second serial port
	kernel   []string // arguments of the kernel: the console, and what makes a boot quick
	port     string   // the second serial port's file in the guest
	slowness int      // how much longer a boot takes than on amd64, rounded up
}

var amd64 = arch{
	name: "amd64", elf: elf.EM_X86_64,
	qemu: "qemu-system-x86_64",
	needed: []string{
		"qemu-system-x86_64:qemu-system-x86", "gcc:gcc,libc6-dev", "make:make", "ip:iproute2", "rdma:iproute2", "ping:iputils-ping",
	},
	machine:  []string{"-M", "q35", "-cpu", "Nehalem", "-serial", "stdio"},
	kernel:   []string{"console=ttyS0", "tsc=reliable", "no_timer_check"},
	port:     "/dev/ttyS1",
	slowness: 1,
}

var arm64 = arch{
	name: "arm64", elf: elf.EM_AARCH64,
	qemu:   "qemu-system-aarch64",
	needed: []string{"qemu-system-aarch64:qemu-system-arm"},
	// The machine has one serial port of its own.
	machine: []string{
		"-M", "virt,gic-version=3", "-cpu", "neoverse-n1",
		"-chardev", "stdio,id=line", "-device", "pci-serial,chardev=line,addr=2",
	},
	kernel:   []string{"console=ttyAMA0"},
	port:     "/dev/ttyS0",
	slowness: 2,
}

// foreign reports whether programs of this machine do not run there.
func (a *arch) foreign() bool { return a.name != runtime.GOARCH }

// fits fails unless the file is a program for machines of this architecture,
// and one without shared libraries, which the guest may lack.
func (a *arch) fits(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	if f.Machine != a.elf {
		return fmt.Errorf("%s is for another architecture than the machine: build it with GOARCH=%s", path, a.name)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s needs shared libraries: build it with CGO_ENABLED=0 (which excludes -race)", path)
		}
	}
	return nil
}
