package support

import (
	"io"
	"os"
	"path/filepath"
)

// PodLogs is the kubelet's directory of the containers' logs: NAMESPACE_POD_UID/CONTAINER/N.log
// (pkg/kubelet/kuberuntime/helpers.go in Kubernetes).
const PodLogs = "/var/log/pods"

// AddPodLogs adds the logs of rail-cni's pods that the kubelet keeps in dir, the end of each.
func (b *Bundle) AddPodLogs(dir, namespace string) {
	found, err := filepath.Glob(filepath.Join(dir, namespace+"_rail-*", "*", "*.log"))
	if err != nil { // the pattern of a namespace with "["
		b.Missing("logs", err)
	}
	for _, path := range found {
		text, err := endOf(path)
		name, _ := filepath.Rel(dir, path)
		if err != nil {
			b.Missing("logs/"+name, err)
			continue
		}
		b.Add("logs/"+name, "", text)
	}
}

// endOf returns the last bytes of a file.
func endOf(path string) ([]byte, error) {
	file, err := os.Open(path) // the kubelet's files are symbolic links with some runtimes
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(max(0, info.Size()-logBytes), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, logBytes))
}
