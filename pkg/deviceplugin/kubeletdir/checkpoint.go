package kubeletdir

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// maxCheckpoint bounds how much of the kubelet's file is read.
const maxCheckpoint = 16 << 20

// Checkpoint is the content of the kubelet's file about devices. The kubelet writes the file at the
// end of each container's allocation, and after each list of devices.
type Checkpoint struct {
	// Containers have no namespace and no pod name, because the file has only UIDs.
	Containers []Container
	Registered map[string][]string // IDs of healthy devices by resource
}

// ReadCheckpoint reads the file. It returns an error if there is no file: the kubelet makes the
// file with the first list of devices.
func ReadCheckpoint(kubeletDir string) (*Checkpoint, error) {
	f, err := os.Open(filepath.Join(kubeletDir, CheckpointFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string // by NUMA node
			}
			RegisteredDevices map[string][]string
		}
	}
	if err := json.NewDecoder(io.LimitReader(f, maxCheckpoint)).Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	c := &Checkpoint{Registered: file.Data.RegisteredDevices}
	place := map[[2]string]int{}
	for _, e := range file.Data.PodDeviceEntries {
		key := [2]string{e.PodUID, e.ContainerName}
		i, known := place[key]
		if !known {
			i = len(c.Containers)
			place[key] = i
			c.Containers = append(c.Containers, Container{Name: e.ContainerName, Devices: map[string][]string{}})
		}
		for _, ids := range e.DeviceIDs {
			for _, id := range ids {
				// A device of several NUMA nodes is listed below each.
				if have := c.Containers[i].Devices[e.ResourceName]; !slices.Contains(have, id) {
					c.Containers[i].Devices[e.ResourceName] = append(have, id)
				}
			}
		}
	}
	for i := range c.Containers {
		for _, ids := range c.Containers[i].Devices {
			slices.Sort(ids)
		}
	}
	return c, nil
}

// Replaced returns IDs that another device plugin has listed for this resource since the resource
// was registered: the IDs that are in the checkpoint, but in none of the lists that this process
// has sent.
func (c *Checkpoint) Replaced(resource string, sent map[string]bool) []string {
	if len(sent) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Registered[resource]), func(id string) bool { return sent[id] })
}
