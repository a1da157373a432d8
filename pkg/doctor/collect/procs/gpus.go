package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// GPUsOf returns the PCI addresses of the GPUs that the pod's containers have. It finds them by the
// containers' devices: /dev/nvidiaN for NVIDIA, whose driver knows the PCI address,
// /dev/dri/renderDN for AMD, and /dev/accel/accelN for Habana (Linux,
// Documentation/accel/introduction.rst).
func (c *Reader) GPUsOf(r *ledger.Record) ([]string, error) {
	first, err := c.firstProcesses(r)
	if err != nil {
		return nil, err
	}
	byDevice, err := c.gpuDevices()
	if err != nil {
		return nil, err
	}
	found := []string{}
	for _, pid := range first {
		for _, dir := range []string{"dev", "dev/dri", "dev/accel"} {
			names, err := c.devicesIn(pid, dir)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				break // it has ended
			}
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				if pci := byDevice[name]; pci != "" {
					found = append(found, pci)
				}
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// gpuDevices returns the PCI address of each GPU, by the name of the GPU's device.
func (c *Reader) gpuDevices() (map[string]string, error) {
	found := map[string]string{}
	dir := filepath.Join(c.Proc, "driver/nvidia/gpus")
	names, err := files.Names(dir)
	if err != nil {
		return nil, err
	}
	for _, pci := range names {
		text, err := files.ReadText(filepath.Join(dir, pci, "information"))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			if key, minor, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "Device Minor" {
				found["nvidia"+strings.TrimSpace(minor)] = strings.ToLower(pci)
			}
		}
	}
	gpus, err := c.GPUs()
	if err != nil {
		return nil, err
	}
	for _, kind := range []struct{ class, prefix, vendor string }{{"drm", "renderD", "1002"}, {"accel", "accel", "1da3"}} {
		dir := filepath.Join(c.Sys, "class", kind.class)
		if names, err = files.Names(dir); err != nil {
			return nil, err
		}
		for _, name := range names {
			target, err := os.Readlink(filepath.Join(dir, name, "device"))
			isOf := slices.ContainsFunc(gpus, func(g fact.GPU) bool { return err == nil && g.PCI == filepath.Base(target) && g.Vendor == kind.vendor })
			if strings.HasPrefix(name, kind.prefix) && isOf {
				found[name] = filepath.Base(target)
			}
		}
	}
	return found, nil
}

// GPUs returns the node's GPUs.
func (c *Reader) GPUs() ([]fact.GPU, error) {
	tree, err := pcie.Read(c.Sys)
	if err != nil {
		return nil, err
	}
	found := []fact.GPU{}
	for _, d := range tree.GPUs() {
		g := fact.GPU{PCI: d.Address, Vendor: fmt.Sprintf("%04x", d.Vendor)}
		if d.NUMA >= 0 {
			g.NUMA = &d.NUMA
		}
		found = append(found, g)
	}
	return found, nil
}
