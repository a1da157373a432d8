package support

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// PodLogs is the kubelet's directory of the containers' logs: NAMESPACE_POD_UID/CONTAINER/N.log
// (pkg/kubelet/kuberuntime/helpers.go in Kubernetes).
const PodLogs = "/var/log/pods"

// AddPodLogs adds the logs of rail-cni's pods that the kubelet keeps in dir. It adds only the end
// of each log.
func (b *Bundle) AddPodLogs(dir, namespace string) {
	found, err := filepath.Glob(filepath.Join(dir, namespace+"_rail-*", "*", "*.log"))
	if err != nil { // the pattern is invalid if the namespace contains "["
		b.Missing("logs", err)
	}
	for _, path := range found {
		text, err := endOf(dir, path)
		name, _ := filepath.Rel(dir, path)
		if err != nil {
			b.Missing("logs/"+name, err)
			continue
		}
		b.Add("logs/"+name, "", text)
	}
}

// dockerLogs is the directory in which Docker keeps the logs of containers. With Docker, the
// kubelet's files are links to files in this directory.
const dockerLogs = "/var/lib/docker/containers"

// endOf returns the last whole lines of a log. A pod may write below the kubelet's directory, and
// could make a link to any file of the node there, or a FIFO: the log must be a regular file below dir
// or of the runtime. An [os.Root] keeps to the directory even if something exchanges a part of the
// path meanwhile.
func endOf(dir, path string) ([]byte, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{dir, dockerLogs} {
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			continue
		}
		if name, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(name) {
			return endOfFile(dir, name)
		}
	}
	return nil, fmt.Errorf("it is a link to %s, which is not below %s or %s", path, dir, dockerLogs)
}

// endOfFile returns the last complete lines of a regular file below dir.
func endOfFile(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // non-blocking, because opening a FIFO would block
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	start := max(0, info.Size()-logBytes)
	if _, err := file.Seek(start, io.SeekStart); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, logBytes))
	if start > 0 {
		text = wholeLines(text)
	}
	return text, err
}
