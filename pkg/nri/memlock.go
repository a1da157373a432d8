package nri

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unlimited is RLIM_INFINITY.
const unlimited = ^uint64(0)

// memlock is the highest RLIMIT_MEMLOCK, hard and soft, that a runtime can set for a container. If
// a container gets a limit that the runtime may not set, it does not start.
type memlock uint64

// runtimeMemlock returns the limit that the process at the other end of the connection can set. The
// limit is unlimited if the process has CAP_SYS_RESOURCE, which runtimes usually have, or if
// nothing is known about the process.
func runtimeMemlock(conn net.Conn) memlock {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return memlock(unlimited)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return memlock(unlimited)
	}
	var peer *unix.Ucred
	_ = raw.Control(func(fd uintptr) { peer, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if peer == nil || peer.Pid == 0 { // the peer is in another PID namespace
		return memlock(unlimited)
	}
	status, statusErr := os.ReadFile(fmt.Sprintf("/proc/%d/status", peer.Pid))
	limits, limitsErr := os.ReadFile(fmt.Sprintf("/proc/%d/limits", peer.Pid))
	if statusErr != nil || limitsErr != nil {
		return memlock(unlimited)
	}
	return memlockOf(string(status), string(limits))
}

// memlockOf returns the limit that a process can set. status and limits are the texts of these
// files in /proc/PID (proc_pid_status(5), proc_pid_limits(5)).
func memlockOf(status, limits string) memlock {
	_, after, _ := strings.Cut(status, "\nCapEff:\t")
	line, _, _ := strings.Cut(after, "\n")
	effective, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil || effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return memlock(unlimited)
	}
	_, after, _ = strings.Cut(limits, "\nMax locked memory")
	line, _, _ = strings.Cut(after, "\n")
	if fields := strings.Fields(line); len(fields) == 3 { // soft, hard, unit
		if hard, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
			return memlock(hard)
		}
	}
	return memlock(unlimited)
}
