package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// fallHome does for a node's rails, which are veths, what the kernel does only
// for NICs of hardware (default_device_exit_net in net/core/dev.c): when a
// network namespace ends they return to the host, down, with their current
// name, or as devN if that is taken. It keeps each namespace in /run/netns
// alive until it contains no rail, and runs until the context ends.
func (n *Node) fallHome(ctx context.Context, home *netns.Netns, rails map[string]bool) {
	defer home.Close()
	pods := map[string]*netns.Netns{}
	defer func() {
		for _, pod := range pods {
			pod.Close()
		}
	}()
	dir := n.Path("/run/netns")
	for ctx.Err() == nil {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.logError(err)
		}
		named := map[string]bool{}
		for _, e := range entries {
			named[e.Name()] = true
			if pods[e.Name()] == nil {
				// It is an ordinary file before the namespace is mounted on it.
				if pod, err := netns.Open(filepath.Join(dir, e.Name())); err == nil {
					pods[e.Name()] = pod
				}
			}
		}
		for name, pod := range pods {
			if !named[name] && !inUse(pod.ID) {
				if err := n.takeHome(pod, home, rails); err != nil {
					n.logError(fmt.Errorf("NICs in the ended %s: %w", name, err))
				}
				pod.Close()
				delete(pods, name)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// takeHome moves the rails, by their MAC addresses, out of a namespace.
func (n *Node) takeHome(pod, home *netns.Netns, rails map[string]bool) error {
	links, err := link.Links(pod)
	if err != nil {
		return err
	}
	var failed []error
	for _, l := range links {
		if l.Kind != "veth" || !rails[l.MAC.String()] {
			continue
		}
		err := link.Move(pod, l.Index, home, l.Name, l.Alias)
		for i := 0; errors.Is(err, unix.EEXIST) && i < 100; i++ {
			err = link.Move(pod, l.Index, home, fmt.Sprintf("dev%d", i), l.Alias)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// inUse reports whether a process other than this one is in a network
// namespace, or has it open.
func inUse(id netns.ID) bool {
	self := fmt.Sprintf("/proc/%d/", os.Getpid())
	for _, pattern := range []string{"/proc/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		paths, _ := filepath.Glob(pattern) // the pattern is valid
		for _, path := range paths {
			if target, err := os.Readlink(path); err == nil && target == id.String() && !strings.HasPrefix(path, self) {
				return true
			}
		}
	}
	return false
}

// logError writes an error to one of the node's logs.
func (n *Node) logError(err error) {
	file, openErr := os.OpenFile(filepath.Join(n.dir, "hardware.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if openErr == nil {
		fmt.Fprintln(file, time.Now().Format(time.RFC3339), err)
		_ = file.Close() // there is nowhere to report an error
	}
}

// startFallingHome starts [Node.fallHome] when the node's rails are there.
func (n *Node) startFallingHome() error {
	home, err := netns.Open(n.Netns())
	if err != nil {
		return err
	}
	rails := map[string]bool{}
	for _, rail := range n.cluster.options.Rails {
		l, err := link.ByName(home, rail)
		if err != nil {
			home.Close()
			return err
		}
		rails[l.MAC.String()] = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		n.fallHome(ctx, home, rails)
		close(ended)
	}()
	n.stop = func() { cancel(); <-ended }
	return nil
}
