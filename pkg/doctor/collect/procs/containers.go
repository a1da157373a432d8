package procs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// containerID matches the ID of a container in the path of a cgroup. containerd, CRI-O and Docker
// write such IDs.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// maxContainers is the maximum number of containers of a pod. A pod that may make cgroups can
// pretend to have any number.
const maxContainers = 256

// firstProcesses returns the first process of each container in the pod's netns, by the container's
// ID. It leaves out the sandbox, whose ID is the container ID of the attachment.
func (c *Reader) firstProcesses(r *ledger.Record) (map[string]int, error) {
	processes, err := c.Processes()
	if err != nil {
		return nil, err
	}
	if processes.unread != nil {
		return nil, processes.unread
	}
	found, since, any := map[string]int{}, map[string]uint64{}, false
	for _, p := range processes.list {
		if p.netns == 0 || p.netns != r.Netns.Inode {
			continue
		}
		any = true
		text, err := files.ReadText(filepath.Join(c.Proc, strconv.Itoa(p.pid), "cgroup"))
		if err != nil {
			continue // it has ended
		}
		ids := containerID.FindAllString(text, -1)
		if len(ids) == 0 || ids[len(ids)-1] == r.ContainerID {
			continue
		}
		began, err := c.began(p.pid)
		if err != nil {
			continue
		}
		id := ids[len(ids)-1]
		if found[id] == 0 && len(found) == maxContainers {
			continue
		}
		if found[id] == 0 || began < since[id] { // if two processes began at the same time, the one with the lower PID
			found[id], since[id] = p.pid, began
		}
	}
	if !any && !processes.all {
		return nil, errOtherPIDs
	}
	return found, nil
}

// began returns the time when a process began, in clock ticks since boot (proc_pid_stat(5),
// starttime). The order of PIDs does not show which process is older, because PIDs are used again.
func (c *Reader) began(pid int) (uint64, error) {
	text, err := files.ReadText(c.procPath(pid, "stat"))
	if err != nil {
		return 0, err
	}
	const behindName = 19 // the number of fields between the name and starttime; the name may contain blanks
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= behindName {
		return 0, errors.New("its stat is too short")
	}
	return strconv.ParseUint(fields[behindName], 10, 64)
}

// Containers returns the pod's running containers, sorted by name.
func (c *Reader) Containers(r *ledger.Record) ([]fact.Container, error) {
	first, err := c.firstProcesses(r)
	if err != nil {
		return nil, err
	}
	found, left := []fact.Container{}, maxPodText
	for _, id := range slices.Sorted(maps.Keys(first)) {
		container, err := c.container(id, first[id], &left)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, fmt.Errorf("container %.12s: %w", id, err)
		}
		if container != nil {
			found = append(found, *container)
		}
	}
	slices.SortFunc(found, func(a, b fact.Container) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// container returns the facts about a container, which it reads from the container's first process.
// It returns nil for a sandbox. It subtracts the size of the container's variables and devices from
// left, the number of bytes that the pod may still use.
func (c *Reader) container(id string, pid int, left *int) (*fact.Container, error) {
	name, sandbox := c.nameOf(id)
	if sandbox {
		return nil, nil //nolint:nilnil // the sandbox does not count as a container of the pod
	}
	found := &fact.Container{Name: name}
	var err error
	if found.Memlock, err = c.memlock(pid); err != nil {
		return nil, err
	}
	if found.Memlock.Process, err = files.ReadText(c.procPath(pid, "comm")); err != nil {
		return nil, err
	}
	status, err := files.ReadText(c.procPath(pid, "status"))
	if err != nil {
		return nil, err
	}
	if err := setStatus(found, status); err != nil {
		return nil, err
	}
	if found.Env, err = c.environment(pid, left); err != nil {
		return nil, err
	}
	names, err := c.devicesIn(pid, "dev/infiniband")
	for _, name := range names {
		path := "/dev/infiniband/" + name
		if err := charge(left, path); err != nil {
			return nil, err
		}
		found.CharDevices = append(found.CharDevices, path)
	}
	return found, err
}

// charge subtracts the size of the texts from left, which begins at [maxPodText] for each pod. It
// counts the bytes that a text needs in a JSON document, in which one byte may become six.
func charge(left *int, texts ...string) error {
	for _, text := range texts {
		encoded, err := json.Marshal(text)
		if err != nil {
			return err
		}
		*left -= len(encoded)
	}
	if *left < 0 {
		return fmt.Errorf("the pod's containers have more than %d bytes of variables and names of devices", maxPodText)
	}
	return nil
}

// procPath returns the path of a file of a process.
func (c *Reader) procPath(pid int, file string) string {
	return filepath.Join(c.Proc, strconv.Itoa(pid), file)
}

// setStatus sets the container's user and capabilities from the status of its first process
// (proc_pid_status(5)).
func setStatus(to *fact.Container, status string) error {
	var errs []error
	seen := 0
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		var err error
		switch key {
		case "Uid": // the real, effective, saved and file system user ID
			to.UID, err = strconv.Atoi(fields[min(1, len(fields)-1)])
		case "CapEff":
			to.Capabilities, err = strconv.ParseUint(fields[0], 16, 64)
		case "CapBnd":
			to.Permitted, err = strconv.ParseUint(fields[0], 16, 64)
		default:
			continue
		}
		seen++
		errs = append(errs, err)
	}
	if seen != 3 {
		errs = append(errs, errors.New("the status of the first process lacks Uid, CapEff or CapBnd"))
	}
	return errors.Join(errs...)
}

// families are prefixes of names of variables. Only variables with one of these prefixes become
// facts, because any other variable may be a secret.
var families = []string{"NCCL_", "UCX_", "NVSHMEM_", "GLOO_", "RAIL_CNI_"}

// These limit how much a pod can add to the facts.
const (
	maxPodText  = 128 << 10 // in bytes: variables and names of devices, as JSON
	maxVariable = 4096      // in bytes; the rest is cut off
	maxEnviron  = 4 << 20   // in bytes, including variables that do not become facts
)

// environment returns the variables with these prefixes that a process had when it began. If they
// exceed a limit, it returns an error and not a part of them, because a missing variable would
// count as not set.
func (c *Reader) environment(pid int, left *int) (map[string]string, error) {
	f, err := os.OpenFile(c.procPath(pid, "environ"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The buffer is small, because an environment may have megabytes, and the environments of many
	// containers are read at the same time.
	in := bufio.NewReaderSize(io.LimitReader(f, maxEnviron), maxVariable)
	found := map[string]string{}
	for {
		text, err := in.ReadSlice(0)
		name, value, ok := strings.Cut(strings.TrimRight(string(text), "\x00"), "=")
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice(0)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if ok && slices.ContainsFunc(families, func(f string) bool { return strings.HasPrefix(name, f) }) {
			found[name] = value
			if err := charge(left, name, value); err != nil {
				return nil, err
			}
		}
		if err != nil {
			return found, nil
		}
	}
}

// maxDevices is the maximum number of devices in a directory. The pod may have filled the
// directory.
const maxDevices = 4096

// devicesIn returns the names of the char devices in a directory of the process' root file system.
// It follows no links, because the pod may have made them.
func (c *Reader) devicesIn(pid int, dir string) ([]string, error) {
	if err := c.checkMounts(pid, dir); err != nil {
		return nil, err
	}
	root, err := unix.Open(c.procPath(pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	entries, err := f.ReadDir(maxDevices)
	var found []string
	for _, e := range entries {
		if e.Type()&fs.ModeCharDevice != 0 {
			found = append(found, e.Name())
		}
	}
	slices.Sort(found)
	if len(entries) == 0 {
		return nil, nil // io.EOF
	}
	return found, err
}

// These are the places of the specifications of running containers, by ID, and the annotations in
// which CRI runtimes store a container's name and kind.
var (
	specs = []string{
		"run/containerd/io.containerd.runtime.v2.task/k8s.io/%s/config.json",
		"run/containers/storage/overlay-containers/%s/userdata/config.json",
	}
	nameKeys = []string{"io.kubernetes.cri.container-name", "io.kubernetes.container.name"}
	kindKeys = []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"}
)

// nameOf returns the name of a container, and whether the container is a pod's sandbox. If the
// runtime's specification of the container cannot be read, the name is the container's short ID.
func (c *Reader) nameOf(id string) (name string, sandbox bool) {
	name = id[:min(len(id), 12)]
	for _, path := range specs {
		text, err := files.ReadUpTo(c.HostPath(fmt.Sprintf(path, id)), 4<<20)
		if err != nil {
			continue
		}
		var spec struct {
			Annotations map[string]string `json:"annotations"`
		}
		if json.Unmarshal([]byte(text), &spec) != nil {
			continue
		}
		for i := range nameKeys {
			sandbox = sandbox || spec.Annotations[kindKeys[i]] == "sandbox"
			if n := spec.Annotations[nameKeys[i]]; n != "" {
				name = n
			}
		}
	}
	return name, sandbox
}
