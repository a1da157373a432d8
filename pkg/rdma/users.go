package rdma

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// User is a user of an RDMA device that loses the device when the device moves to another network
// namespace: the kernel then removes every kernel client, and ends the context of every process
// (rdma_dev_change_netns, remove_client_context).
type User struct {
	// PID is the ID of a process. It is 0 if the kernel does not report the process: the thread
	// that opened the device has ended, or the process is not in the reader's PID namespace
	// (task_pid_vnr).
	PID int
	// Kernel is the module of a kernel client, or "" for a process.
	Kernel string
}

// String returns a text such as "process 4711 (ib_write_bw)" or "kernel module nvme_rdma".
// A process chooses its own name, so a name with special characters is quoted.
func (u User) String() string {
	switch {
	case u.Kernel != "":
		return "kernel module " + u.Kernel
	case u.PID == 0:
		return "an unknown process (the thread that opened the device has ended, or the process is in another PID namespace)"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", u.PID))
	if err != nil {
		return fmt.Sprintf("process %d", u.PID)
	}
	text := strings.TrimSuffix(string(name), "\n")
	if quoted := fmt.Sprintf("%q", text); quoted != `"`+text+`"` {
		text = quoted
	}
	return fmt.Sprintf("process %d (%s)", u.PID, text)
}

// processOf returns the process of a thread: the kernel lists the thread that made the resource
// (fill_res_name_pid).
func processOf(thread int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return thread // the thread has ended
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if pid, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
				return pid
			}
		}
	}
	return thread
}

// Queue pairs that every device has for management (enum ib_qp_type). The kernel cuts the type to
// eight bits, so it reports mlx5's own queue pairs as these types (IB_QPT_RESERVED1, 2).
const (
	qpSMI = 0
	qpGSI = 1
)

// qpUD is the type of datagram queue pairs (IB_QPT_UD).
const qpUD = 4

// modules is the directory of the kernel's modules. Tests set it.
var modules = "/sys/module"

// Users returns the users of d, each only once: processes that have opened a context of d, and
// kernel modules that have a queue pair. Queue pairs of the RDMA core and of drivers do not count.
// Kernels before 5.13 do not list contexts. With such a kernel a process counts once it has a queue
// pair. A program that has opened only a umad device is not listed.
//
// If Users returns an error, it also returns the users that could be listed. The error wraps
// [ErrNotFound] if the device has left the namespace. Some drivers cannot describe all of their
// queue pairs (ib_query_qp).
func (c *Core) Users(d Device) ([]User, error) {
	var users []User
	err := c.inNetns(func() error {
		return c.steady(d, func() error {
			qps, failed := c.resources(cmdQPGet, attrQPs, d)
			contexts, err := c.resources(cmdContextGet, attrContexts, d)
			err = c.ifGone(err, d)
			if err != nil && (errors.Is(err, ErrNotFound) || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP)) {
				failed = errors.Join(failed, err)
			}
			users, err = usersOf(slices.Concat(qps, contexts), func() ([]nlattr.Attrs, error) { return c.resources(cmdCMIDGet, attrCMIDs, d) })
			return errors.Join(failed, err)
		})
	})
	return users, failure.Wrap(err, failure.Kernel, "list the users of RDMA device %s in netns %s", d.Name, c.ns.Path)
}

// moduleIPoIB is the kernel client that makes the interfaces of InfiniBand ports.
const moduleIPoIB = "ib_ipoib"

// IsIPoIB reports whether the user is the kernel client that makes the InfiniBand interfaces of the
// device's ports. This client has a queue pair for each interface and for each child of an
// interface.
func (u User) IsIPoIB() bool { return u.Kernel == moduleIPoIB }

// IPoIBQueuePairs returns the numbers of the datagram queue pairs of the InfiniBand interfaces on d, in
// any network namespace: one for each interface and each child. A driver that makes the queue pairs
// without the RDMA core hides them (probably mlx5's enhanced IPoIB).
func (c *Core) IPoIBQueuePairs(d Device) ([]uint32, error) {
	var found []uint32
	err := c.inNetns(func() error {
		return c.steady(d, func() error {
			found = nil
			qps, err := c.resources(cmdQPGet, attrQPs, d)
			for _, qp := range qps {
				if kind, _ := qp.Uint(attrResourceType); kind == qpUD && qp.Text(attrKernelName) == moduleIPoIB {
					found = append(found, uint32(number(qp, attrQPNumber)))
				}
			}
			return err
		})
	})
	return found, failure.Wrap(err, failure.Kernel, "list the queue pairs of RDMA device %s in netns %s", d.Name, c.ns.Path)
}

// usersOf returns the users to whom these queue pairs and contexts belong. connections reads the
// connections of the device. usersOf calls it only if a kernel client has a queue pair.
func usersOf(resources []nlattr.Attrs, connections func() ([]nlattr.Attrs, error)) (users []User, failed error) {
	connections = sync.OnceValues(connections)
	for _, r := range resources {
		kind, isQP := r.Uint(attrResourceType)
		if isQP && (kind == qpSMI || kind == qpGSI) {
			continue
		}
		u := User{Kernel: r.Text(attrKernelName)}
		if u.Kernel != "" {
			ids, err := connections()
			if err != nil {
				failed = err // the queue pair's own name is good enough
			}
			if u.Kernel = clientOf(r, ids); u.Kernel == "ib_core" || isDriver(u.Kernel) {
				continue
			}
		} else if thread := int(number(r, attrPID)); thread != 0 {
			u.PID = processOf(thread)
		}
		if !slices.Contains(users, u) {
			users = append(users, u)
		}
	}
	return users, failed
}

// clientOf returns the module that uses a kernel's queue pair. If the connection manager made the
// queue pair, clientOf returns the module of the connection.
func clientOf(qp nlattr.Attrs, ids []nlattr.Attrs) string {
	for _, id := range ids {
		if name := id.Text(attrKernelName); name != "" && has(qp, attrQPNumber) && number(id, attrQPNumber) == number(qp, attrQPNumber) {
			return name
		}
	}
	return qp.Text(attrKernelName)
}

// drivers are RDMA drivers that can have their own queue pairs, and for which sysfs may have no
// directory "drivers", because they are not the driver of a bus or are built in.
var drivers = []string{"mlx4_ib", "mlx5_ib", "bnxt_re", "irdma", "hns_roce", "hns_roce_hw_v2", "qedr", "erdma", "mana_ib", "rdma_rxe", "siw"}

// isDriver reports whether the kernel module is a device driver. Drivers such as mlx5_ib have their
// own queue pairs.
func isDriver(module string) bool {
	entries, err := os.ReadDir(filepath.Join(modules, filepath.Base(module), "drivers"))
	return err == nil && len(entries) > 0 || slices.Contains(drivers, module)
}

// resources returns the resources of d that the command cmd lists. It reads them from the nested
// attribute table of the messages (res_get_common_dumpit).
func (c *Core) resources(cmd int, table uint16, d Device) ([]nlattr.Attrs, error) {
	messages, err := c.request(cmd, unix.NLM_F_DUMP, deviceAttr(d.Index))
	if err != nil {
		return nil, err
	}
	var found []nlattr.Attrs
	for _, m := range messages {
		a, err := nlattr.Parse(m)
		if err != nil {
			return nil, err
		}
		if _, ok := a.Get(table); !ok {
			continue
		}
		entries, err := a.Nested(table)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			one, err := nlattr.Parse(e.Value)
			if err != nil {
				return nil, err
			}
			found = append(found, one)
		}
	}
	return found, nil
}
