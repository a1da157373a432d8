package opensm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// OpenFabric is a partitions.conf with one partition, of which all ports are full members.
const OpenFabric = "Default=0x7fff, ipoib, defmember=full : ALL, ALL_SWITCHES=full, SELF=full ;\n"

// PortGUID returns the GUID of the first port of the HCA that is a PCI function, "0xb8cef6fffe000058".
func PortGUID(pci string) (string, error) {
	const path = "/sys/bus/pci/devices/%s/infiniband/*/ports/1/gids/0"
	found, err := filepath.Glob(fmt.Sprintf(path, pci))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has %d RDMA devices with a port 1, not one: %q", pci, len(found), found)
	}
	gid, err := os.ReadFile(found[0]) // "fe80:0000:0000:0000:b8ce:f6ff:fe00:0058"
	words := strings.Split(strings.TrimSpace(string(gid)), ":")
	if err == nil && len(words) != 8 {
		err = fmt.Errorf("the GID of %s is %q", pci, gid)
	}
	if err != nil {
		return "", err
	}
	return "0x" + strings.Join(words[4:], ""), nil
}

// limit bounds the wait for a sweep of the fabric.
const limit = time.Minute

// The lines of OpenSM's log that the package reads.
const (
	swept = "SUBNET UP"
	// OpenSM then continues as if there were no file: all ports reach each other.
	badPartitions = "Partition configuration in error"
)

// options are those that a test needs: the log is not buffered, and a change is soon seen.
const options = "force_log_flush TRUE\nsweep_interval 2\n"

// Manager is a running subnet manager.
type Manager struct {
	dir   string // with its files
	cmd   *exec.Cmd
	ended chan struct{}
	out   bytes.Buffer
	end   sync.Once
}

// Start starts the manager on the port with this GUID, with its files in dir, and returns when it
// has swept the fabric. The partitions are the text of partitions.conf. Number each partition:
// the manager may number the others anew at its next start.
func Start(ctx context.Context, dir, guid, partitions string) (*Manager, error) {
	if _, err := exec.LookPath("opensm"); err != nil {
		return nil, fmt.Errorf("%w: the rig unpacks it from Debian's package opensm; the rig's first log lines say why that failed", err)
	}
	m := &Manager{dir: dir, ended: make(chan struct{})}
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "cache"), 0o755), os.WriteFile(m.file("opensm.conf"), []byte(options), 0o644), m.write(partitions))
	if err != nil {
		return nil, err
	}
	m.cmd = exec.Command("opensm", "-F", m.file("opensm.conf"), "-g", guid, "-f", m.file("log"), "-P", m.file("partitions.conf"))
	m.cmd.Env = append(os.Environ(), "OSM_CACHE_DIR="+m.file("cache"), "OSM_TMP_DIR="+dir)
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the signal is for the end of the thread that has started it
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		started <- err
		if err == nil {
			_ = m.cmd.Wait() // its log says why
			close(m.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := m.await(ctx, 0); err != nil {
		m.Kill()
		return nil, err
	}
	return m, nil
}

// StartOn starts the manager, as [Start] does, on the first port of the HCA that is a PCI function.
func StartOn(ctx context.Context, dir, pci, partitions string) (*Manager, error) {
	guid, err := PortGUID(pci)
	if err != nil {
		return nil, err
	}
	return Start(ctx, dir, guid, partitions)
}

// SetPartitions has the manager read another partitions.conf, and returns when a sweep has ended
// after that: a sweep that was under way may end first, so wait for what the partitions change.
func (m *Manager) SetPartitions(ctx context.Context, partitions string) error {
	before, err := os.Stat(m.file("log"))
	if err == nil {
		err = m.write(partitions)
	}
	if err == nil {
		err = m.cmd.Process.Signal(syscall.SIGHUP)
	}
	if err != nil {
		return err
	}
	return m.await(ctx, before.Size())
}

// Kill ends the manager at once, as when its host dies.
func (m *Manager) Kill() {
	m.end.Do(func() {
		_ = m.cmd.Process.Kill() // it may have ended
		<-m.ended
	})
}

// Log returns what the manager has logged.
func (m *Manager) Log() string {
	text, err := os.ReadFile(m.file("log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (m *Manager) file(name string) string { return filepath.Join(m.dir, name) }

// write replaces partitions.conf as a whole: the manager may read it at any time.
func (m *Manager) write(partitions string) error {
	made := m.file("partitions.new")
	if err := os.WriteFile(made, []byte(partitions), 0o644); err != nil {
		return err
	}
	return os.Rename(made, m.file("partitions.conf"))
}

// await waits until the log shows the end of a sweep after offset.
func (m *Manager) await(ctx context.Context, offset int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no sweep within %v", limit))
	defer cancel()
	for {
		text, _ := os.ReadFile(m.file("log")) // not there yet
		added := string(text[min(offset, int64(len(text))):])
		switch {
		case strings.Contains(added, badPartitions):
			return fmt.Errorf("opensm rejected partitions.conf, and made all ports full members of the default partition:\n%s", added)
		case strings.Contains(added, swept):
			return nil
		}
		select {
		case <-m.ended:
			return fmt.Errorf("opensm has ended: %v\n%s\n%s", m.cmd.ProcessState, m.out.Bytes(), added)
		case <-ctx.Done():
			return fmt.Errorf("opensm: %w\n%s", context.Cause(ctx), added)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
