package gpuplugin

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// GPU is a GPU that the plugin offers.
type GPU struct {
	PCI  string // its address
	UUID string // its ID for the kubelet
	NUMA int    // -1 if the kubelet is not told
}

// GPUs returns GPUs at these PCI addresses, with no NUMA node. A GPU's UUID follows from
// its address.
func GPUs(addresses ...string) []GPU {
	list := make([]GPU, 0, len(addresses))
	for _, pci := range addresses {
		sum := sha256.Sum256([]byte(pci))
		uuid := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
		list = append(list, GPU{PCI: pci, UUID: uuid, NUMA: -1})
	}
	return list
}

// WriteProc writes what NVIDIA's driver says of the GPUs, below a directory that stands
// for /proc: driver/nvidia/gpus/<PCI address>/information.
func WriteProc(proc string, gpus []GPU) error {
	for i, gpu := range gpus {
		dir := filepath.Join(proc, "driver", "nvidia", "gpus", gpu.PCI)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		text := fmt.Sprintf("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t %d\nGPU UUID: \t %s\nBus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\n",
			100+i, gpu.UUID, gpu.PCI, i)
		if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
