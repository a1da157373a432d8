// Package nri adjusts the containers of pods that hold rails, by the Node Resource
// Interface of containerd and CRI-O (github.com/containerd/nri). It is a component
// of rail-agent.
//
// The plugin answers CreateContainer only. The runtime calls it after CNI and before the
// container exists. It does not change containers of a pod without rails. To others it adds the
// variables of package publish, the mount of the pod's files, RLIMIT_MEMLOCK and the char
// devices of the lent RDMA devices. What the container has already, from the user, the
// image or a device plugin, stays.
//
// An error never keeps a container from starting, unless the pod's annotation
// [publish.RequireAnnotation] says so. An answer takes at most half a second: a runtime
// waits two seconds for a plugin, and then disconnects it. A panic is recovered, counted and reported.
//
//	plugin := nri.New(nri.Options{Socket: "/var/run/nri/nri.sock", Lookup: keeper.Lookup, Log: log})
//	plugin.Run(ctx)
package nri
