package bpf

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/bpf.h. cilium/ebpf has all of these numbers, but would make a plugin 1.9 MB larger,
// which is too much for six commands.
const (
	bpfProgDetach      = 9
	bpfProgGetFdByID   = 13
	bpfObjGetInfoByFd  = 15
	bpfProgQuery       = 16
	bpfLinkGetFdByID   = 30
	bpfLinkGetNextID   = 31
	bpfLinkDetach      = 34
	bpfLinkTypeXDP     = 6
	bpfTCXIngress      = 46
	bpfTCXEgress       = 47
	bpfNetkitPrimary   = 54
	bpfNetkitPeer      = 55
	maxPrograms        = 64 // BPF_MPROG_MAX
	bpfLinkInfoXDPSize = 20
)

// call makes one bpf(2) call. attr is a prefix of union bpf_attr, which the kernel
// pads with zeros.
func call[T any](command int, attr *T) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return -1, errno
		}
	}
}

// query lists the programs that are attached to an interface of the calling thread's netns at a
// hook for many programs (tcx, netkit). It returns the IDs of the programs. For each program, links
// has the ID of the bpf_link that holds it, or 0 if none does. The lists are empty if the kernel or
// the link does not have the hook. They are also empty in a user namespace, which may neither query
// nor attach programs (bpf_prog_query).
func query(index, hook int) (programs, links []uint32, err error) {
	programs, links = make([]uint32, maxPrograms), make([]uint32, maxPrograms)
	attr := struct {
		index, hook, queryFlags, attachFlags uint32
		programs                             unsafe.Pointer
		count, _                             uint32
		programFlags                         uint64
		links                                unsafe.Pointer
		linkFlags                            uint64
		revision                             uint64
	}{
		index: uint32(index), hook: uint32(hook), count: maxPrograms,
		programs: unsafe.Pointer(&programs[0]), links: unsafe.Pointer(&links[0]),
	}
	switch _, err := call(bpfProgQuery, &attr); {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return nil, nil, nil // before Linux 6.6, without CONFIG_BPF_SYSCALL
	case errors.Is(err, unix.EACCES):
		return nil, nil, nil // the peer of a netkit, whose programs belong to its primary (netkit_dev_fetch)
	case err != nil:
		return nil, nil, err
	}
	return programs[:attr.count], links[:attr.count], nil
}

// byID opens the program or the bpf_link with this id.
func byID(command int, id uint32) (fd int, err error) {
	attr := struct{ id, next, flags uint32 }{id: id}
	return call(command, &attr)
}

// detachProgram detaches a program from a hook for many programs.
func detachProgram(index, hook int, program uint32) error {
	fd, err := byID(bpfProgGetFdByID, program)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := struct{ index, program, hook, flags uint32 }{uint32(index), uint32(fd), uint32(hook), 0}
	_, err = call(bpfProgDetach, &attr)
	return err
}

// detachLink detaches the program of a bpf_link. The owner of the bpf_link still has it, but it has
// no effect any more.
func detachLink(id uint32) error {
	fd, err := byID(bpfLinkGetFdByID, id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := struct{ fd uint32 }{uint32(fd)}
	_, err = call(bpfLinkDetach, &attr)
	return err
}

// xdpLinks returns the IDs of the machine's bpf_links that hold the XDP program on an interface
// with this index. A bpf_link does not show in which netns its interface is.
func xdpLinks(index int, program uint32) ([]uint32, error) {
	var found []uint32
	for id := uint32(0); ; {
		next := struct{ start, next, flags uint32 }{start: id}
		if _, err := call(bpfLinkGetNextID, &next); errors.Is(err, unix.ENOENT) {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		id = next.next
		fd, err := byID(bpfLinkGetFdByID, id)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAGAIN) {
			continue // the bpf_link was closed
		}
		if err != nil {
			return nil, err
		}
		info := struct{ kind, id, program, _, index uint32 }{}
		attr := struct {
			fd, size uint32
			info     unsafe.Pointer
		}{uint32(fd), bpfLinkInfoXDPSize, unsafe.Pointer(&info)}
		_, err = call(bpfObjGetInfoByFd, &attr)
		_ = unix.Close(fd)
		if err == nil && info.kind == bpfLinkTypeXDP && info.program == program && int(info.index) == index {
			found = append(found, id)
		}
	}
}
