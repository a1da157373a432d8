// Package deviceplugin offers a node's NICs to the kubelet as extended resources, by its
// device plugin API, version v1beta1. It is a component of rail-agent.
//
// Package resource decides which NICs are in which pool. Each pool has a separate gRPC server. The
// server is registered with the kubelet, and again whenever the kubelet has dropped it. A pool that
// another device plugin serves is not registered. A NIC that is lent stays in its pool. It is
// unhealthy only while the pod that has it did not get it from the kubelet.
//
// Package kubeletdir has the kubelet's side: its sockets, and what it has given to containers.
//
// The package reads the inventory by a function, and changes no NIC. It writes only sockets in the
// kubelet's directories, device information files and one CDI specification. If the process is
// killed at any instant, the next process removes everything that was left behind.
//
// A panic is recovered, counted and reported: [Plugin.Run] starts again after a pause.
//
//	p := deviceplugin.New(deviceplugin.Options{
//		Config: config, Inventory: inventory, KubeletDir: "/var/lib/kubelet", Log: log,
//	})
//	p.Run(ctx)
package deviceplugin
