// Package gpuplugin is a small device plugin for tests. It offers GPUs to a real kubelet
// by their UUIDs, as NVIDIA's does, so that pods of a test have GPUs that a NIC can be
// near to. It can also take another plugin's resource name, as a device plugin that was
// forgotten on a node does.
//
//	gpus := gpuplugin.GPUs("0000:1b:00.0", "0000:1c:00.0")
//	plugin, err := gpuplugin.Start(gpuplugin.Options{KubeletDir: node.Path("/var/lib/kubelet"), GPUs: gpus})
//	if err != nil {
//		return err
//	}
//	defer plugin.Close()
//
// Containers get no device and no variable of it.
package gpuplugin
